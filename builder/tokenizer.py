"""A tokeniser's published folder -> the files of the baked one: `vocab.json`, `merges.txt` and small configurations.

transformers 5 publishes `tokenizer.json` alone, earlier versions the vocabulary and the merges (besides it or alone).
"""

import json
from pathlib import Path
from typing import Any

from builder.published import read_json
from worker.errors import CheckpointError


def tokenizer_contents(folder: Path, names: list[str]) -> dict[str, bytes]:
    """The baked files' contents, by name, from those of the published ones that `published.tokenizer_files` chose.

    Raises CheckpointError for a `tokenizer.json` that is not of CLIP's kind.
    """
    contents = {name: (folder / name).read_bytes() for name in names if name != "tokenizer.json"}
    if "tokenizer.json" in names:
        contents |= _split(folder / "tokenizer.json")
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
