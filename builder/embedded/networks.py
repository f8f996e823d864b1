"""The worker's own modules with the recipe's sizes, and parameters to begin training with."""

import math
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from builder.embedded.recipe import AUTOENCODER, SEED, TEXT_ENCODER, UNET
from worker.families.stable_diffusion import STABLE_DIFFUSION
from worker.nn.functional import Functional, functional
from worker.nn.kernels import Kernels

CONFIGS: Mapping[str, dict[str, Any]] = {"text_encoder": TEXT_ENCODER, "unet": UNET, "vae": AUTOENCODER}

# The last layer of every branch beside a shortcut: a network begins as its shortcuts (arXiv 1706.02677, 5.1).
BRANCH_ENDS = (
    "conv2.weight", "proj_out.weight", "to_out.0.weight", "ff.net.2.weight", "out_proj.weight", "fc2.weight",
)  # fmt: skip


def networks() -> dict[str, Functional]:
    """Part -> parameter shapes and pure function."""
    return {
        part.name: functional(part.build(part.parse(CONFIGS[part.name]), Kernels())) for part in STABLE_DIFFUSION.parts
    }


def first_parameters(part: str, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Array]:
    """Matrices keep the variance of what they are applied to (LeCun), branches end in zeros; float32.

    Each tensor depends on its own name and the recipe's seed alone.
    """
    return {name: jax.numpy.asarray(_first(part, name, spec.shape)) for name, spec in shapes.items()}


def _first(part: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name.endswith(".bias") or name.endswith(BRANCH_ENDS) or (part, name) == ("unet", "conv_out.weight"):
        return np.zeros(shape, np.float32)
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    generator = np.random.default_rng([SEED, zlib.crc32(f"{part}/{name}".encode())])
    normal = generator.standard_normal(shape, np.float32)
    if name.endswith("_embedding.weight"):
        return normal * np.float32(0.02)
    return normal / np.float32(math.sqrt(math.prod(shape[1:])))
