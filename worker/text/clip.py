"""The CLIP tokeniser (Radford et al. 2021, arXiv 2103.00020) on the `tokenizers` library.

Follows transformers' `CLIPTokenizer`: NFC, runs of white space to one, lower case, then byte-level BPE with `</w>`
at the end of a word. Every row is start token, text, end token, padding; a text that is too long is cut and
keeps its end token.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

from worker.errors import CheckpointError
from worker.text.tokens import Tokens

_WORDS = r"""<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""


@dataclass(frozen=True)
class ClipTokenizer:
    """Texts to rows of `length` token ids, padded as this checkpoint's encoder was trained."""

    model: Tokenizer
    start: int
    end: int
    padding: int
    length: int

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""
        return self.model.get_vocab_size()

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Tokenise; a special token written out in a text counts as that token, as in transformers."""
        rows = np.full((len(texts), self.length), self.padding, np.int32)
        lost: list[int] = []
        room = self.length - 2
        for row, encoding in zip(rows, self.model.encode_batch(list(texts), add_special_tokens=False), strict=True):
            ids = encoding.ids
            kept = [self.start, *ids[:room], self.end]
            row[: len(kept)] = kept
            lost.append(max(0, len(ids) - room))
        return Tokens(rows, tuple(lost))


def load_clip_tokenizer(folder: Path) -> ClipTokenizer:
    """Read `vocab.json`, `merges.txt` and the two small configurations; raises CheckpointError for no tokeniser."""
    try:
        return _load(folder)
    except CheckpointError:
        raise
    except Exception as error:  # the library raises bare exceptions for files that do not fit each other
        raise CheckpointError(f"{folder}: not a CLIP tokeniser: {error}") from error


def _load(folder: Path) -> ClipTokenizer:
    try:
        vocabulary: dict[str, int] = json.loads((folder / "vocab.json").read_text("utf-8"))
        merges = (folder / "merges.txt").read_text("utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder.name}: {error}") from error
    pairs = [
        (left, right)
        for left, _, right in (line.partition(" ") for line in merges.splitlines() if not line.startswith("#version"))
        if right
    ]
    config = _optional_json(folder / "tokenizer_config.json")
    special = config | _optional_json(folder / "special_tokens_map.json")

    def token(role: str, default: str) -> str:
        value: Any = special.get(role) or default
        content = str(cast(dict[str, Any], value)["content"] if isinstance(value, dict) else value)
        if content not in vocabulary:
            raise CheckpointError(f"{folder.name}: {role} {content!r} is not in vocab.json")
        return content

    start, end = token("bos_token", "<|startoftext|>"), token("eos_token", "<|endoftext|>")
    padding = token("pad_token", "<|endoftext|>")
    model = Tokenizer(
        BPE(
            vocabulary,
            pairs,
            end_of_word_suffix="</w>",
            continuing_subword_prefix="",
            unk_token=token("unk_token", end),
        )
    )
    model.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    model.add_special_tokens([start, end] if padding in (start, end) else [start, end, padding])
    return ClipTokenizer(
        model,
        vocabulary[start],
        vocabulary[end],
        vocabulary[padding],
        min(config.get("model_max_length", 77), 77),
    )


def _optional_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}
