import numpy as np
import pytest
from transformers import CLIPTokenizer

from builder.embedded.captions import caption, choose, write_tokenizer
from builder.embedded.recipe import CONTEXT_LENGTH, DROPPED_CAPTIONS, RECOLOURED, VOCABULARY_SIZE
from worker.text.clip import load_clip_tokenizer

TEXTS = ["dog face", "Red APPLE, fruit", "a picture of a blue apple", "Côte “quote” 17", "unknown wörds!", ""]


@pytest.fixture
def tokenizer_folder(data, tmp_path):
    write_tokenizer(tmp_path, data)
    return tmp_path


def test_transformers_reads_the_tokens_as_the_worker_does(tokenizer_folder):
    ours = load_clip_tokenizer(tokenizer_folder)
    theirs = CLIPTokenizer.from_pretrained(tokenizer_folder)
    assert len(theirs) == VOCABULARY_SIZE
    expected = theirs(TEXTS, padding="max_length", max_length=CONTEXT_LENGTH, truncation=True)["input_ids"]
    np.testing.assert_array_equal(ours(TEXTS).ids, expected)


def test_words_of_the_captions_are_whole_tokens(tokenizer_folder):
    tokens = load_clip_tokenizer(tokenizer_folder).model.encode("red apple, dog", add_special_tokens=False).tokens
    assert tokens == ["red</w>", "apple</w>", ",</w>", "dog</w>"]


def test_equal_data_give_equal_tokens(data, tmp_path):
    for name in "ab":
        write_tokenizer(tmp_path / name, data)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_a_caption_is_empty_or_names_the_emoji():
    random = np.random.default_rng(0)
    captions = [caption("dog face", ("animal", "pet"), random) for _ in range(2000)]
    assert abs(captions.count("") / 2000 - DROPPED_CAPTIONS) < 0.02
    assert all("dog face" in text for text in captions if text)
    assert any("pet" in text for text in captions)


def test_pictures_and_captions_belong_together(data):
    picked, captions = choose(data, 4000, np.random.default_rng(0))
    assert all(data.names[i] in text for i, text in zip(picked, captions, strict=True) if text)
    apples = picked[data.owner[picked] == 1]
    assert abs(np.mean(apples != 1) - RECOLOURED) < 0.04
    assert set(picked.tolist()) == set(range(6))
