"""The T5 tokeniser against transformers', over the toy vocabulary, and SentencePiece's own file."""

import json
import struct

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import T5Tokenizer

from builder.toy import write_toy
from builder.unigram import EXTRA, from_sentencepiece, toy_pieces
from worker.errors import CheckpointError
from worker.text.t5 import load_t5_tokenizer

TEXTS = [
    "a cat",
    "",
    "A  CAT\n\tand a dog!!",
    "a red fox in the snow, oil painting",
    "Ünïcode — 漢字 123 it's",
    "</s> hi <pad>",
    "word " * 40,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    source = tmp_path_factory.mktemp("toy") / "source"
    write_toy("flux", source)
    return source / "tokenizer_2"


def test_ids_equal_those_of_transformers(folder):
    reference = T5Tokenizer.from_pretrained(folder)
    expected = reference(TEXTS, padding="max_length", max_length=24, truncation=True).input_ids
    assert np.array_equal(load_t5_tokenizer(folder, 512)(TEXTS).ids, expected)


def test_lost_tokens_are_counted_and_the_end_is_kept(folder):
    tokenizer = load_t5_tokenizer(folder, 512)
    pieces = tokenizer(["word"]).ids[0].tolist().index(tokenizer.end)
    tokens = tokenizer(["word " * 40, "word"])
    assert tokens.lost == (40 * pieces - 23, 0)
    assert tokens.ids[0, -1] == tokenizer.end


def test_the_network_may_allow_less_than_the_configuration(folder):
    assert load_t5_tokenizer(folder, 512).length == 24
    assert load_t5_tokenizer(folder, 8)(["word " * 40]).ids.shape == (1, 8)


@pytest.mark.parametrize("content", [None, "{}", json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}})])
def test_what_is_no_such_tokeniser(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_t5_tokenizer(tmp_path, 512)


def field(number: int, value: bytes) -> bytes:
    assert len(value) < 128
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def sentencepiece(pieces: list[tuple[str, float]]) -> bytes:
    """As SentencePiece writes it: pieces with score and kind, the number of the unknown one, the name of a rule."""
    listed = (
        field(1, piece.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score) + varint(3 << 3) + varint(1)
        for piece, score in pieces
    )
    trainer = varint(40 << 3) + varint(2)
    return b"".join(field(1, piece) for piece in listed) + field(2, trainer) + field(3, field(1, b"nmt_nfkc"))


def test_a_vocabulary_of_sentencepiece_gives_the_same_ids(folder):
    pieces = toy_pieces(512)
    made = Tokenizer.from_str(from_sentencepiece(sentencepiece(pieces)).decode())
    published = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        assert made.encode(text).ids == published.encode(text).ids
    assert made.token_to_id(f"<extra_id_{EXTRA - 1}>") == 512
    assert made.token_to_id("<extra_id_0>") == made.get_vocab_size() - 1


@pytest.mark.parametrize("cut", [slice(5, None), slice(None, -3), slice(0, 0), slice(1, 40)])
def test_damaged_files_of_sentencepiece(cut):
    with pytest.raises(CheckpointError, match="not a model of SentencePiece"):
        from_sentencepiece(sentencepiece(toy_pieces(512))[cut])
