"""Toy checkpoints: small random models in the layout of diffusers, for tests and for trying the service.

The folder loads in `diffusers.DiffusionPipeline.from_pretrained` and in `python -m builder convert` alike.
"""

import json
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from builder.toy_tokenizer import merges_text, vocabulary
from builder.unigram import toy_tokenizer
from worker.errors import BuildError
from worker.families import FAMILIES, Family
from worker.families.family import Part
from worker.nn.functional import functional
from worker.nn.kernels import Kernels
from worker.weights.mapping import published_shape
from worker.weights.tensors import write_tensors

VARIANTS: dict[str, Family] = {variant: family for family in FAMILIES.values() for variant in family.tiny}


def write_toy(variant: str, folder: Path, seed: int = 0) -> None:
    """Write the toy checkpoint of a variant; equal seeds give equal bytes.

    Raises BuildError for a variant that no family has and for a folder that is not empty.
    """
    if variant not in VARIANTS:
        raise BuildError(f"{variant}: no such toy; there are {', '.join(VARIANTS)}")
    family = VARIANTS[variant]
    write_random(family, family.tiny[variant], folder, seed)


def write_random(family: Family, files: Mapping[str, Mapping[str, Any]], folder: Path, seed: int = 0) -> None:
    """Write a checkpoint with random weights; `files` are its JSON files, by sub-folder, and `model_index`.

    Raises BuildError for a folder that is not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise BuildError(f"{folder}: not empty")
    _write_json(folder / "model_index.json", files["model_index"])
    _write_json(folder / "scheduler" / "scheduler_config.json", files["scheduler"])
    for part in family.parts:
        _write_part(folder / part.name, part, files[part.name], seed)
    write_tokenizers(family, files, folder)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_part(folder: Path, part: Part, config: Mapping[str, Any], seed: int) -> None:
    _write_json(folder / "config.json", config)
    ours = functional(part.build(part.parse(config), Kernels())).shapes
    specs = {name: jax.ShapeDtypeStruct(published_shape(spec.shape), np.float32) for name, spec in sorted(ours.items())}
    write_tensors(
        folder / f"{part.stem}.safetensors",
        specs,
        _random_tensors(part.name, specs, seed),
        metadata={"format": "pt"},
    )


def _random_tensors(part: str, specs: Mapping[str, jax.ShapeDtypeStruct], seed: int) -> Iterator[NDArray[np.float32]]:
    """Each tensor depends on its own name alone, so that a new one leaves the others as they were.

    Matrices keep the variance of what they are applied to; norms stay near the identity.
    """
    for name, spec in specs.items():
        generator = np.random.default_rng([seed, zlib.crc32(f"{part}/{name}".encode())])
        shape: tuple[int, ...] = spec.shape
        normal: NDArray[np.float32] = generator.standard_normal(shape, np.float32)
        if name.endswith(".bias"):
            yield normal * np.float32(0.05)
        elif len(shape) == 1:
            yield 1 + normal * np.float32(0.1)
        elif "embedding.weight" in name:
            yield normal * np.float32(0.5)
        else:
            yield normal / np.float32(math.sqrt(math.prod(shape[1:])))


def write_tokenizers(family: Family, files: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Write toy vocabularies of the text encoders' sizes, in the layout of transformers; `files` as above."""
    for part in family.text_encoders:
        config, size = files[part.tokenizer], files[part.name]["vocab_size"]
        target = folder / part.tokenizer
        _write_json(target / "tokenizer_config.json", config)
        _write_json(target / "special_tokens_map.json", {k: v for k, v in config.items() if k.endswith("_token")})
        if part.kind == "t5_text":
            (target / "tokenizer.json").write_text(toy_tokenizer(size), encoding="utf-8")
        else:
            _write_json(target / "vocab.json", vocabulary(size))
            (target / "merges.txt").write_text(merges_text(size), encoding="utf-8")
