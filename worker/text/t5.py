"""T5's tokeniser (Kudo 2018, arXiv 1804.10959: unigrams of SentencePiece) on the `tokenizers` library.

Every row is text, end token, padding; a text that is too long is cut and keeps its end token.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from worker.errors import CheckpointError
from worker.text.tokens import Tokens

END, PADDING = "</s>", "<pad>"


@dataclass(frozen=True)
class T5Tokenizer:
    """Texts to rows of `length` token ids."""

    model: Tokenizer
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
        room = self.length - 1
        for row, encoding in zip(rows, self.model.encode_batch(list(texts), add_special_tokens=False), strict=True):
            kept = [*encoding.ids[:room], self.end]
            row[: len(kept)] = kept
            lost.append(max(0, len(encoding.ids) - room))
        return Tokens(rows, tuple(lost))


def load_t5_tokenizer(folder: Path, max_tokens: int) -> T5Tokenizer:
    """Read `tokenizer.json` and its small configuration; raises CheckpointError where there is no such tokeniser.

    Rows have at most `max_tokens` ids, fewer where the configuration's `model_max_length` is less.
    """
    try:
        model = Tokenizer.from_file(str(folder / "tokenizer.json"))
        path = folder / "tokenizer_config.json"
        stated = json.loads(path.read_text("utf-8")).get("model_max_length") if path.is_file() else None
    except Exception as error:  # the library raises bare exceptions
        raise CheckpointError(f"{folder}: tokenizer.json: not a T5 tokeniser: {error}") from error
    end, padding = model.token_to_id(END), model.token_to_id(PADDING)
    if end is None or padding is None:
        raise CheckpointError(f"{folder}: tokenizer.json: has no {END} or no {PADDING}")
    model.no_truncation()
    model.no_padding()
    return T5Tokenizer(model, end, padding, min(max_tokens, int(stated or max_tokens)))
