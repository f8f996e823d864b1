"""The CLIP tokeniser against transformers', over the toy vocabulary."""

import json
import warnings

import numpy as np
import pytest

from builder.toy import write_toy
from worker.errors import CheckpointError
from worker.text.clip import load_clip_tokenizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import CLIPTokenizer

TEXTS = [
    "a cat",
    "",
    "A  CAT\n\tand a dog!!",
    "Ünïcode — 漢字 123 it's they've",
    "hello ! world",
    "<|endoftext|> hi <|startoftext|>",
    "!!",
    "word " * 200,
    "🐱 emoji ﬁ ligature",
    "e\u0301 composed",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    source = tmp_path_factory.mktemp("toy") / "source"
    write_toy("sdxl", source)
    return source


@pytest.mark.parametrize("name", ["tokenizer", "tokenizer_2"])
def test_ids_equal_those_of_transformers(folder, name):
    reference = CLIPTokenizer.from_pretrained(folder / name)
    expected = reference(TEXTS, padding="max_length", max_length=77, truncation=True).input_ids
    assert np.array_equal(load_clip_tokenizer(folder / name)(TEXTS).ids, expected)


def test_lost_tokens_are_counted_and_the_end_is_kept(folder):
    tokenizer = load_clip_tokenizer(folder / "tokenizer")
    pieces = tokenizer(["word"]).ids[0].tolist().index(tokenizer.end) - 1
    tokens = tokenizer(["word " * 200, "word"])
    assert tokens.lost == (200 * pieces - 75, 0)
    assert tokens.ids[0, -1] == tokenizer.end


def test_each_tokenizer_has_its_own_padding(folder):
    first, second = (load_clip_tokenizer(folder / name)(["a"]).ids[0, -1] for name in ("tokenizer", "tokenizer_2"))
    vocabulary = json.loads((folder / "tokenizer" / "vocab.json").read_text("utf-8"))
    assert (first, second) == (vocabulary["<|endoftext|>"], vocabulary["!"])


def test_the_map_of_special_tokens_wins(folder, tmp_path):
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / "tokenizer" / name).read_bytes())
    (tmp_path / "special_tokens_map.json").write_text('{"pad_token": "!"}')
    reference = CLIPTokenizer.from_pretrained(tmp_path)
    assert load_clip_tokenizer(tmp_path).padding == reference.pad_token_id


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"vocab\.json"):
        load_clip_tokenizer(tmp_path)
