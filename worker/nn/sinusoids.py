"""Sinusoids of scalars: times, sizes, guidance weights."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


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
