"""Tokenisers, by the kind of text encoder that they are for."""

from collections.abc import Callable, Mapping
from pathlib import Path

from worker.errors import CheckpointError
from worker.text.clip import load_clip_tokenizer
from worker.text.t5 import load_t5_tokenizer
from worker.text.tokens import TextTokenizer

_LOADERS: Mapping[str, Callable[[Path, int], TextTokenizer]] = {
    "clip_text": lambda folder, _: load_clip_tokenizer(folder),
    "t5_text": load_t5_tokenizer,
}


def load_tokenizer(kind: str, folder: Path, max_tokens: int, vocabulary: int) -> TextTokenizer:
    """Read a baked tokeniser; raises CheckpointError where it does not suit a text encoder of these sizes."""
    tokenizer = _LOADERS[kind](folder, max_tokens)
    if tokenizer.vocabulary > vocabulary:
        raise CheckpointError(f"{folder}: more tokens than the {vocabulary} that its text encoder knows")
    if not 3 <= tokenizer.length <= max_tokens:
        raise CheckpointError(f"{folder}: model_max_length is not in 3..{max_tokens}")
    return tokenizer


__all__ = ["TextTokenizer", "load_tokenizer"]
