"""T5's tokeniser as `tokenizer.json`, made of SentencePiece's `spiece.model` where only that is published.

The file is a protocol buffer, of which three things are needed (google/sentencepiece, `sentencepiece_model.proto`):
pieces with their scores, the number of the unknown piece, and the table of characters that normalisation replaces.
"""

import struct
from collections.abc import Iterator, Sequence
from functools import cache

from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import Unigram

from builder.toy_tokenizer import WORDS
from worker.errors import CheckpointError

SPACE = "▁"
UNKNOWN = 2
SPECIAL = ("<pad>", "</s>", "<unk>")
EXTRA = 100
"""Markers of gaps, with which T5 was trained; transformers numbers them backwards after the pieces."""

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_UNKNOWN_ID, _CHARACTER_MAP = 40, 2
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


def from_sentencepiece(model: bytes) -> bytes:
    """`spiece.model` to `tokenizer.json`; raises CheckpointError for what is no such file."""
    pieces: list[tuple[str, float]] = []
    unknown, characters = 0, b""
    try:
        for number, value in _fields(model):
            if number == _PIECES:
                piece = dict(_fields(_message(value)))
                pieces.append((_message(piece[1]).decode(), struct.unpack("<f", _message(piece[2]))[0]))
            elif number == _TRAINER:
                unknown = dict(_fields(_message(value))).get(_UNKNOWN_ID, unknown)
            elif number == _NORMALIZER:
                characters = _message(dict(_fields(_message(value))).get(_CHARACTER_MAP, b""))
        if not pieces:
            raise ValueError("no pieces")
        gaps = [f"<extra_id_{number}>" for number in reversed(range(EXTRA))]
        tokens = [*pieces, *((gap, 0.0) for gap in gaps)]
        return _tokenizer(tokens, int(unknown), characters, gaps).to_str().encode()
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise CheckpointError(f"spiece.model: not a model of SentencePiece: {error}") from error


def _tokenizer(pieces: Sequence[tuple[str, float]], unknown: int, characters: bytes, gaps: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(Unigram(list(pieces), unknown, False))
    if characters:
        tokenizer.normalizer = normalizers.Precompiled(characters)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, prepend_scheme="always", split=True)]
    )
    tokenizer.add_special_tokens([*SPECIAL, *gaps])
    return tokenizer


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a protocol buffer."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind not in (_EIGHT_BYTES, _BYTES, _FOUR_BYTES):
            raise ValueError(f"field {number} is of kind {kind}")
        size = 8 if kind == _EIGHT_BYTES else 4
        if kind == _BYTES:
            size, at = _varint(message, at)
        if at + size > len(message):
            raise ValueError("cut off")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise TypeError("a number stands where bytes are expected")
    return value


def toy_pieces(size: int) -> list[tuple[str, float]]:
    """A vocabulary of exactly `size` pieces: special ones, the words of ordinary prompts, and single characters."""
    characters = [SPACE, *map(chr, range(ord("!"), ord("~") + 1))]
    words = [SPACE + word for word in dict.fromkeys(WORDS.split()) if len(word) > 1]
    pieces = [(token, 0.0) for token in SPECIAL] + [(piece, -8.0) for piece in characters]
    pieces += [(word, -10.0) for word in words][: size - len(pieces)]
    return pieces + [(f"{SPACE}<unused{number}>", -100.0) for number in range(size - len(pieces))]


@cache
def toy_tokenizer(size: int) -> str:
    """`tokenizer.json` over these."""
    return _tokenizer(toy_pieces(size), UNKNOWN, b"", ()).to_str()
