"""`manifest.json` of a baked folder: what it holds, what it was made from, and how to know that it is whole.

A baked folder is `manifest.json`, one `<part>.safetensors` per part in the runtime's layout and dtype, and
the tokenisers' folders. The manifest is written last: a folder without one is not a model.
"""

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from worker.errors import CheckpointError

FORMAT_VERSION = 1
FILE_NAME = "manifest.json"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
SizeBytes = Annotated[int, Field(ge=0)]
# A name within the folder: no separator, so that no manifest reaches outside.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
Dtype = Literal["bfloat16", "float32", "float8_e4m3"]
EIGHT_BITS: Dtype = "float8_e4m3"
"""Linear weights in 8 bits with a scale for each row (arXiv 2209.05433), all else of the part in bfloat16."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class BakedFile(_Record):
    """A file of a tokeniser."""

    sha256: Sha256
    size_bytes: SizeBytes


class BakedPart(_Record):
    """One network: its `config.json` and the file of its weights."""

    config: dict[str, Any]
    file: Name
    dtype: Dtype
    sha256: Sha256
    size_bytes: SizeBytes


class Manifest(_Record):
    """The whole of `manifest.json`.

    `source` is a repository or the name of a folder; `revision` the commit of a repository, None for a
    folder; `content_sha256` stands for the bytes of all files that were converted; `dtype` is what was asked
    for (an autoencoder with `force_upcast` is kept in float32, small parts in bfloat16 instead of 8 bits);
    `tokenizers`: folder -> file name -> file; `programs` the sha256, and so the name, of the index of compiled
    programs; `layout` stands for the names and shapes of all parameters and the code that declares them
    (`engine.identity.layout`).
    """

    format_version: Literal[1] = FORMAT_VERSION
    converter_version: int
    source: str
    revision: str | None
    content_sha256: Sha256
    licence: str | None
    family: str
    dtype: Dtype
    parts: dict[Name, BakedPart]
    tokenizers: dict[Name, dict[Name, BakedFile]]
    scheduler: dict[str, Any]
    model_index: dict[str, Any]
    programs: Sha256 | None = None
    layout: Sha256 | None = None


def read_manifest(model_dir: Path) -> Manifest:
    """Read the manifest of a baked folder.

    Raises CheckpointError where there is none, where it cannot be read, and where its format is a later one.
    """
    path = model_dir / FILE_NAME
    try:
        raw: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(
            f"{model_dir}: not a baked model ({FILE_NAME}: {error.strerror}); "
            "make one with `python -m builder bake --source ... --out ...`"
        ) from None
    except ValueError:
        raise CheckpointError(f"{path}: not readable as JSON; bake the model again") from None
    version = cast(dict[str, Any], raw).get("format_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format {version} is later than {FORMAT_VERSION}, the latest that this worker reads; "
            "bake the model with the worker's own builder"
        )
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'manifest'}: {problem['msg']}" for problem in error.errors()[:10]
        )
        raise CheckpointError(f"{path}: {problems}; bake the model again") from None


def write_manifest(model_dir: Path, manifest: Manifest) -> None:
    """Write the manifest so that it is either whole or absent, whatever happens meanwhile."""
    path, partial = model_dir / FILE_NAME, model_dir / f"{FILE_NAME}.partial"
    with partial.open("w", encoding="utf-8") as file:
        file.write(manifest.model_dump_json(indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
