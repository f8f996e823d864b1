"""A small vocabulary for CLIP's byte-pair encoding, made from the words of ordinary prompts.

The form is that of OpenAI's CLIP: 256 symbols for the bytes, the same with an end-of-word mark, one token per
merge, the start and the end token.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

START, END, END_OF_WORD = "<|startoftext|>", "<|endoftext|>", "</w>"

WORDS = """
a an the of in on at by and with from photo photograph picture painting portrait landscape illustration
astronaut riding horse cat dog bird fox owl tiger dragon castle mountain forest river ocean beach desert
city street village garden flower rose tree leaf cloud sky sunset sunrise night moon star galaxy space
ship train car bicycle bridge house window door table chair lamp book cup coffee tea bread apple orange
lemon cherry red green blue yellow purple black white golden silver bright dark soft warm cold old young
small large woman man girl boy king queen knight wizard robot futuristic ancient medieval modern vintage
watercolor oil pencil sketch digital art artwork style detailed realistic cinematic lighting shadow
reflection background foreground close view wide angle macro lens beautiful blurry quality high low
resolution sharp focus masterpiece concept render studio winter summer autumn spring snow rain storm fire
water stone glass metal wood paper
"""


def byte_symbols() -> tuple[str, ...]:
    """One printable character per byte: itself where it prints, else one from 256 upwards."""
    printing = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    others = (byte for byte in range(256) if byte not in printing)
    return tuple(chr(byte) for byte in sorted(printing)) + tuple(chr(256 + i) for i, _ in enumerate(others))


@cache
def _learned(count: int) -> tuple[tuple[str, str], ...]:
    merges: dict[tuple[str, str], int] = {}
    made: set[str] = set()
    for word in WORDS.split():
        symbols = _merged([*word[:-1], word[-1] + END_OF_WORD], merges)
        while len(symbols) > 1 and len(merges) < count and symbols[0] + symbols[1] not in made:
            merges[symbols[0], symbols[1]] = len(merges)
            made.add(symbols[0] + symbols[1])
            symbols = _merged(symbols, merges)
    return tuple(merges)


def _merged(symbols: list[str], merges: dict[tuple[str, str], int]) -> list[str]:
    """Byte-pair encode: merge the earliest learned pair until none is left."""
    while True:
        pairs = [pair for pair in pairwise(symbols) if pair in merges]
        if not pairs:
            return symbols
        left, right = min(pairs, key=lambda pair: merges[pair])
        joined: list[str] = []
        for symbol in symbols:
            if joined and joined[-1] == left and symbol == right:
                joined[-1] = left + right
            else:
                joined.append(symbol)
        symbols = joined


def _merges(vocabulary_size: int) -> tuple[tuple[str, str], ...]:
    return _learned(vocabulary_size - 2 * 256 - 2)


def vocabulary(size: int) -> dict[str, int]:
    """`vocab.json` with exactly `size` tokens, of the words of ordinary prompts."""
    return clip_vocabulary(_merges(size), size)


def clip_vocabulary(merges: Sequence[tuple[str, str]], size: int) -> dict[str, int]:
    """`vocab.json` with exactly `size` tokens, the end token last; ids that the merges do not fill stay unused."""
    symbols = byte_symbols()
    tokens = [*symbols, *(symbol + END_OF_WORD for symbol in symbols)]
    tokens += [left + right for left, right in merges]
    unused = [f"<|unused{i}|>" for i in range(size - 2 - len(tokens))]
    return {token: i for i, token in enumerate([*tokens, *unused, START, END])}


def merges_text(vocabulary_size: int) -> str:
    """`merges.txt` for a vocabulary of that size."""
    return clip_merges(_merges(vocabulary_size))


def clip_merges(merges: Sequence[tuple[str, str]]) -> str:
    """`merges.txt`."""
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    return "\n".join(lines) + "\n"
