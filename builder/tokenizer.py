"""A tokeniser's published folder -> the files of the baked one.

CLIP's are `vocab.json` and `merges.txt`: transformers 5 publishes `tokenizer.json` alone, earlier versions these two
(besides it or alone). T5's is `tokenizer.json`, made of `spiece.model` where that is missing. Both have small
configurations.
"""

import json
from pathlib import Path
from typing import Any

from builder.published import read_json
from builder.unigram import from_sentencepiece
from worker.errors import CheckpointError


def tokenizer_contents(kind: str, folder: Path, names: list[str]) -> dict[str, bytes]:
    """The baked files' contents, by name, from those of the published ones that `published.tokenizer_files` chose.

    `kind` is that of the text encoder. Raises CheckpointError for a vocabulary of another kind.
    """
    contents = {name: (folder / name).read_bytes() for name in names}
    if kind == "clip_text" and contents.pop("tokenizer.json", None):
        contents |= _split(folder / "tokenizer.json")
    if model := contents.pop("spiece.model", None):
        contents["tokenizer.json"] = from_sentencepiece(model)
    return contents


def _split(path: Path) -> dict[str, bytes]:
    published = read_json(path)
    model: dict[str, Any] = published.get("model") or {}
    if (model.get("type"), model.get("end_of_word_suffix")) != ("BPE", "</w>"):
        raise CheckpointError(f"{path}: not a tokeniser of CLIP's kind (byte pairs, with an end-of-word mark)")
    added = {token["content"]: token["id"] for token in published.get("added_tokens", ())}
    # Versions of the file differ: a merge is a pair, or one string with a space.
    pairs = (pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
    return {
        "vocab.json": json.dumps(model["vocab"] | added, ensure_ascii=False).encode(),
        "merges.txt": "".join(f"{line}\n" for line in ("#version: 0.2", *pairs)).encode(),
    }
