"""Embeddings of scalars: sinusoids, and the two-layer network that follows them."""

import math

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from worker.nn.layers import Linear, silu


def timestep_sinusoids(
    values_B: Float[Array, " B"], features: int, *, flip_sin_to_cos: bool, freq_shift: float
) -> Float[Array, "B F"]:
    """Sinusoids of geometrically falling frequency, float32: sines, cosines; the reverse when flipped.

    Arguments reach the thousands, where one unit in the last place of a frequency shows. The exponents are
    therefore rounded to float32 in the order of diffusers' `get_timestep_embedding`.
    """
    half = features // 2
    exponents = -math.log(10000) * np.arange(half, dtype=np.float32) / np.float32(half - freq_shift)
    sines, cosines = _waves(values_B, exponents)
    return jnp.concatenate([cosines, sines] if flip_sin_to_cos else [sines, cosines], axis=-1)


def guidance_embedding(guidance_B: Float[Array, " B"], features: int) -> Float[Array, "B F"]:
    """Sinusoids of a guidance weight (arXiv 2310.04378; diffusers' `get_guidance_scale_embedding`), float32.

    The weight is the guidance scale less one.
    """
    half = features // 2
    exponents = np.arange(half, dtype=np.float32) * -(np.log(np.float32(10000)) / np.float32(half - 1))
    return jnp.concatenate(_waves(1000 * guidance_B, exponents), axis=-1)


def _waves(values_B: Array, exponents_F: np.ndarray) -> tuple[Array, Array]:
    frequencies_F = np.exp(exponents_F.astype(np.float64)).astype(np.float32)
    angles_BF = values_B.astype(jnp.float32)[:, None] * frequencies_F
    return jnp.sin(angles_BF), jnp.cos(angles_BF)


class TimestepEmbedding(nnx.Module):
    """Linear, SiLU, linear; a condition, where the network has one, is projected and added to the input."""

    def __init__(self, in_features: int, features: int, *, condition_features: int | None = None):
        self.linear_1 = Linear(in_features, features)
        self.cond_proj = None if condition_features is None else Linear(condition_features, in_features, bias=False)
        self.linear_2 = Linear(features, features)

    def __call__(
        self, x_BF: Float[Array, "B F"], condition_BG: Float[Array, "B G"] | None = None
    ) -> Float[Array, "B E"]:
        if self.cond_proj is not None and condition_BG is not None:
            x_BF = x_BF + self.cond_proj(condition_BG)
        return self.linear_2(silu(self.linear_1(x_BF)))
