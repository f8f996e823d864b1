"""Names and keywords -> captions, and the byte-pair vocabulary that they are written in."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from builder.embedded.data import COLOURS, DataSet
from builder.embedded.recipe import DROPPED_CAPTIONS, RECOLOURED, TOKENIZER, VOCABULARY_SIZE
from builder.toy_tokenizer import END_OF_WORD, byte_symbols, clip_merges, clip_vocabulary

OPENINGS = (
    "a", "an", "the", "a picture of a", "an emoji of a", "a drawing of a", "an icon of", "a photo of a", "one",
    "a photograph of a", "a picture of", "an illustration of a",
)  # fmt: skip


PRIVATE = 0xE000
"""Where Unicode's private characters begin."""


def write_tokenizer(folder: Path, data: DataSet) -> None:
    """Write a CLIP tokeniser whose merges are learned from all names and keywords; equal data, equal bytes."""
    merges = learn_merges(_texts(data))
    folder.mkdir(parents=True, exist_ok=True)
    special = {role: token for role, token in TOKENIZER.items() if role.endswith("_token")}
    files = {
        "tokenizer_config.json": json.dumps(TOKENIZER, indent=2),
        "special_tokens_map.json": json.dumps(special, indent=2),
        "vocab.json": json.dumps(clip_vocabulary(merges, VOCABULARY_SIZE), indent=0, ensure_ascii=False),
    }
    for name, content in files.items():
        (folder / name).write_text(content + "\n", encoding="utf-8")
    (folder / "merges.txt").write_text(clip_merges(merges), encoding="utf-8")


def _texts(data: DataSet) -> list[str]:
    keywords = [word for words in data.keywords for word in words]
    return [text.lower() for text in (*data.own_names, *keywords, *(list(COLOURS) * 50), *(list(OPENINGS) * 20))]


def learn_merges(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Merges for a vocabulary of `VOCABULARY_SIZE`, the most frequent pair first (arXiv 1508.07909).

    While learning, a symbol at the end of a word is one private character: with an end-of-word suffix the library
    settles ties by chance.
    """
    split = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(False)]
    )
    words = [word for text in texts for word, _ in split.pre_tokenize_str(text)]
    tokenizer = Tokenizer(BPE())
    # As many tokens as are left beside the symbols of CLIP's form that the words lack, and the two special ones.
    seen = {symbol for word in words for symbol in _private(word)}
    size = VOCABULARY_SIZE - 2 - (2 * len(byte_symbols()) - len(seen))
    tokenizer.train_from_iterator(map(_private, words), BpeTrainer(vocab_size=size, show_progress=False))
    pairs: list[list[str]] = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(_public(left), _public(right)) for left, right in pairs]


def _private(word: str) -> str:
    return word[:-1] + chr(PRIVATE + ord(word[-1]))


def _public(symbols: str) -> str:
    last = ord(symbols[-1])
    return symbols if last < PRIVATE else symbols[:-1] + chr(last - PRIVATE) + END_OF_WORD


def caption(name: str, keywords: Sequence[str], random: np.random.Generator) -> str:
    """A caption for training: empty, or the name, often with keywords around it or words before it."""
    draw = random.random()
    if draw < DROPPED_CAPTIONS:
        return ""
    if draw < 0.55:
        return name
    if draw < 0.7:
        return f"{random.choice(OPENINGS)} {name}"
    others = [word for word in keywords if word != name]
    chosen = list(random.permutation(others)[: random.integers(1, 4)]) if others else []
    parts = [name, *chosen] if draw < 0.9 else list(random.permutation([name, *chosen]))
    return ", ".join(map(str, parts))


def choose(data: DataSet, count: int, random: np.random.Generator) -> tuple[np.ndarray, list[str]]:
    """Draw emoji, then a picture of each, recoloured or not; returns indices of pictures and their captions."""
    emoji = data.emoji
    owners = random.integers(len(emoji), size=count)
    ends = np.append(emoji[1:], len(data.names))
    others = ends[owners] - emoji[owners] - 1
    recoloured = (random.random(count) < RECOLOURED) & (others > 0)
    picked = emoji[owners] + np.where(recoloured, 1 + (random.random(count) * others).astype(np.int64), 0)
    chosen: list[tuple[int, int]] = np.stack([picked, owners], axis=1).tolist()
    return picked, [
        caption(data.names[i], data.keywords[owner] if emoji[owner] == i else (), random) for i, owner in chosen
    ]
