"""Checkpoints of published sizes with random weights: what can be measured where no model can be fetched."""

import math
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from bench import published
from builder.convert import part_dtype
from builder.toy import write_random, write_tokenizers
from worker.families import FAMILIES
from worker.families.family import Family, Part
from worker.families.tiny import flux_index, model_index, t5_tokenizer, tokenizer
from worker.nn.functional import functional
from worker.nn.kernels import Kernels
from worker.weights.manifest import EIGHT_BITS, BakedPart, Dtype, Manifest, write_manifest
from worker.weights.mapping import stored_dtype
from worker.weights.tensors import Digest, write_tensors

_SD15_SCHEDULER = FAMILIES["stable-diffusion"].tiny["sd1"]["scheduler"]
_SDXL_SCHEDULER = FAMILIES["stable-diffusion-xl"].tiny["sdxl"]["scheduler"]

PUBLISHED = {
    "sd15": (
        FAMILIES["stable-diffusion"],
        {
            "model_index": model_index("StableDiffusionPipeline", _SD15_SCHEDULER, ("text_encoder",)),
            "scheduler": _SD15_SCHEDULER,
            "tokenizer": tokenizer(pad="<|endoftext|>"),
            "text_encoder": published.SD15_TEXT_ENCODER,
            "unet": published.SD15_UNET,
            "vae": published.SD15_AUTOENCODER,
        },
    ),
    "sdxl": (
        FAMILIES["stable-diffusion-xl"],
        {
            "model_index": model_index(
                "StableDiffusionXLPipeline", _SDXL_SCHEDULER, ("text_encoder", "text_encoder_2")
            ),
            "scheduler": _SDXL_SCHEDULER,
            "tokenizer": tokenizer(pad="<|endoftext|>"),
            "tokenizer_2": tokenizer(pad="!"),
            "text_encoder": published.SDXL_TEXT_ENCODER,
            "text_encoder_2": published.SDXL_TEXT_ENCODER_2,
            "unet": published.SDXL_UNET,
            "vae": published.SDXL_AUTOENCODER,
        },
    ),
    "flux-schnell": (
        FAMILIES["flux.1"],
        {
            "model_index": flux_index(published.FLUX_SCHNELL_SCHEDULER),
            "scheduler": published.FLUX_SCHNELL_SCHEDULER,
            "tokenizer": tokenizer(pad="<|endoftext|>"),
            "tokenizer_2": t5_tokenizer(512),
            "text_encoder": published.FLUX_TEXT_ENCODER,
            "text_encoder_2": published.T5_XXL,
            "transformer": published.FLUX_SCHNELL_TRANSFORMER,
            "vae": published.FLUX_AUTOENCODER,
        },
    ),
}
_SCHNELL = PUBLISHED["flux-schnell"][1]
_DEV = {"scheduler": published.FLUX_DEV_SCHEDULER, "transformer": published.FLUX_DEV_TRANSFORMER}
PUBLISHED["flux-dev"] = FAMILIES["flux.1"], {**_SCHNELL, **_DEV}
"""Name -> family and the JSON files of the checkpoint."""


def write_full_size(name: str, folder: Path) -> None:
    """Write a key of `PUBLISHED` in float32, in the layout of diffusers (4 GB for sd15, 14 GB for sdxl)."""
    family, files = PUBLISHED[name]
    write_random(family, files, folder)


BAKED = {**PUBLISHED, "toy": (FAMILIES["stable-diffusion-xl"], FAMILIES["stable-diffusion-xl"].tiny["sdxl"])}
"""What `write_hollow` and `write_baked` can write: also a toy of SDXL."""

_PATTERN = 1 << 20
"""Random numbers that the weights of `write_baked` are made of, again and again."""


def baked_parts(name: str, dtype: Dtype = "bfloat16") -> tuple[Family, Mapping[str, Any], dict[str, Dtype]]:
    """Family, JSON files, and the number format of each part's weights, as the builder chooses it for `dtype`."""
    family, files = BAKED[name]
    return family, files, {part.name: part_dtype(part, files[part.name], dtype) for part in family.parts}


def baked_shapes(name: str, dtype: Dtype = "bfloat16") -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    """Part -> parameter -> shape and dtype of a baked folder of a key of `BAKED`."""
    family, files, dtypes = baked_parts(name, dtype)

    def shapes(part: Part) -> dict[str, jax.ShapeDtypeStruct]:
        stored = dtypes[part.name]
        found = functional(part.build(part.parse(files[part.name]), Kernels()), scaled=stored == EIGHT_BITS).shapes
        return {
            name: jax.ShapeDtypeStruct(spec.shape, stored_dtype(stored, name, found)) for name, spec in found.items()
        }

    return {part.name: shapes(part) for part in family.parts}


def weights_table() -> str:
    """GB of the weights of every published size, by part and by what the builder is asked for."""
    lines = ["| model | dtype | all, GB | by part |", "| --- | --- | --- | --- |"]
    for name, dtype in product(PUBLISHED, ("bfloat16", EIGHT_BITS)):
        sizes = {
            part: sum(spec.size * spec.dtype.itemsize for spec in specs.values()) / 1e9
            for part, specs in baked_shapes(name, dtype).items()
        }
        parts = ", ".join(f"{part} {size:.2f}" for part, size in sizes.items())
        lines.append(f"| {name} | {dtype} | {sum(sizes.values()):.2f} | {parts} |")
    return "\n".join(lines)


def write_hollow(name: str, folder: Path, dtype: Dtype = "bfloat16") -> None:
    """Write a baked folder of a key of `BAKED` without its weights: all that compiling needs."""
    family = BAKED[name][0]
    nothing = Digest(sha256(b"").hexdigest(), 0)
    _write_folder(name, folder, dtype, {part.name: nothing for part in family.parts})


def write_baked(name: str, folder: Path, dtype: Dtype = "bfloat16") -> None:
    """Write a baked folder of a key of `BAKED` with random weights, as fast as the disk takes them.

    Its programs are those of `write_hollow`.
    """
    folder.mkdir(parents=True)
    shapes = baked_shapes(name, dtype)

    def write(part: str) -> Digest:
        return write_tensors(folder / f"{part}.safetensors", shapes[part], _patterned(shapes[part]))

    with ThreadPoolExecutor(len(shapes)) as pool:
        written = list(pool.map(write, shapes))
    _write_folder(name, folder, dtype, dict(zip(shapes, written, strict=True)))


def _patterned(specs: Mapping[str, jax.ShapeDtypeStruct]) -> Iterator[NDArray[Any]]:
    """Matrices keep the variance of what they are applied to; norms stay near the identity."""
    normal = np.random.default_rng(0).standard_normal(_PATTERN, np.float32)
    for name, spec in specs.items():
        if name.endswith(".bias"):
            pattern = normal * np.float32(0.05)
        elif len(spec.shape) == 1:
            pattern = 1 + normal * np.float32(0.1)
        else:
            pattern = normal / np.float32(2.0 if "embedding.weight" in name else math.sqrt(math.prod(spec.shape[1:])))
        # Another beginning for each tensor, so that no two are equal.
        turned = np.roll(pattern, zlib.crc32(name.encode()) % _PATTERN)
        yield np.resize(turned.astype(spec.dtype), spec.shape)


def _write_folder(name: str, folder: Path, dtype: Dtype, weights: Mapping[str, Digest]) -> None:
    family, files, dtypes = baked_parts(name, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizers(family, files, folder)
    parts = {
        part: BakedPart(
            config=dict(files[part]),
            file=f"{part}.safetensors",
            dtype=dtypes[part],
            sha256=written.sha256,
            size_bytes=written.size_bytes,
        )
        for part, written in weights.items()
    }
    manifest = Manifest(
        converter_version=0,
        source=name,
        revision=None,
        content_sha256=sha256(b"").hexdigest(),
        licence=None,
        family=family.name,
        dtype=dtype,
        parts=parts,
        tokenizers={},
        scheduler=dict(files["scheduler"]),
        model_index=dict(files["model_index"]),
    )
    write_manifest(folder, manifest)
