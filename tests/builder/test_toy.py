import hashlib
import json

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from tokenizers import Tokenizer
from tokenizers.models import BPE

from builder.toy import VARIANTS, write_toy
from builder.toy_tokenizer import END, START, merges_text, vocabulary
from worker.errors import BuildError
from worker.families import FAMILIES

# diffusers 0.42 turns tensors into arrays by a protocol that NumPy 2 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def digests(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_every_family_has_a_toy():
    assert {family.name for family in VARIANTS.values()} == FAMILIES.keys()


def test_a_seed_stands_for_the_same_bytes(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_toy("sd1", tmp_path / name, seed)
    a, b, c = (digests(tmp_path / name) for name in "abc")
    assert a == b
    assert {name for name in a if a[name] != c[name]} == {name for name in a if name.endswith(".safetensors")}


@pytest.mark.parametrize("variant", VARIANTS)
def test_diffusers_loads_it_whole(variant, tmp_path):
    write_toy(variant, tmp_path / "toy")
    pipeline = DiffusionPipeline.from_pretrained(tmp_path / "toy")
    assert type(pipeline).__name__ == VARIANTS[variant].tiny[variant]["model_index"]["_class_name"]
    for part in VARIANTS[variant].parts:
        network = type(pipeline.components[part.name])
        _, found = network.from_pretrained(tmp_path / "toy" / part.name, output_loading_info=True)
        assert found.keys() >= {"missing_keys", "unexpected_keys", "mismatched_keys"}
        assert not any(found.values()), found


def test_its_pictures_show_something(tmp_path):
    torch.set_num_threads(1)
    write_toy("sd1", tmp_path / "toy")
    pipeline = DiffusionPipeline.from_pretrained(tmp_path / "toy")
    pipeline.set_progress_bar_config(disable=True)
    pictures = [
        np.asarray(
            pipeline(
                prompt, height=64, width=64, num_inference_steps=4, generator=torch.Generator().manual_seed(0)
            ).images[0],
            dtype=np.float64,
        )
        for prompt in ("a red castle", "blue")
    ]
    for picture in pictures:
        assert 15 < picture.std() < 110
        assert np.mean((picture == 0) | (picture == 255)) < 0.5
    assert np.abs(pictures[0] - pictures[1]).max() > 5


def test_the_tokeniser_has_the_form_of_clip(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary(1024)))
    (tmp_path / "merges.txt").write_text(merges_text(1024))
    tokens = vocabulary(1024)
    assert sorted(tokens.values()) == list(range(1024))
    assert (tokens[START], tokens[END]) == (1022, 1023)
    model = BPE.from_file(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), end_of_word_suffix="</w>")
    encoder = Tokenizer(model)
    assert encoder.encode("castle").tokens == ["castle</w>"]
    assert len(encoder.encode("castellan").tokens) > 1
    assert "".join(encoder.encode("zyzzyva").tokens) == "zyzzyva</w>"


def test_ids_beyond_the_words_stay_unused():
    tokens = list(vocabulary(10_000))
    assert len(tokens) == 10_000
    assert tokens[-2:] == ["<|startoftext|>", "<|endoftext|>"]


@pytest.mark.parametrize(("variant", "message"), [("sd9", "no such toy; there are sd1"), ("sd1", "not empty")])
def test_refusals(variant, message, tmp_path):
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(BuildError, match=message):
        write_toy(variant, tmp_path)
