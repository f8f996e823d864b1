"""Axial rotary position embeddings (Su et al. 2021, arXiv 2104.09864), as FLUX.1 turns its queries and keys."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

type Turns = tuple[Float[Array, "S F"], Float[Array, "S F"]]
"""Cosines and sines of the angle by which each pair of features is turned, at each place of a sequence."""

THETA = 10000.0


def grid_turns(text_tokens: int, height: int, width: int, axes: tuple[int, int, int]) -> Turns:
    """For a sequence of text, which stays unturned, and then the cells of a grid, row by row.

    `axes` are the features that an unused axis, the row and the column turn, so many in all as a head has.
    """
    still, by_row, by_column = (features // 2 for features in axes)
    rows, columns = _angles(height, axes[1]), _angles(width, axes[2])

    def turned(wave: np.ufunc) -> Float[Array, "S F"]:
        # The small tables alone are part of the program, rounded once from float64.
        of_row = jnp.asarray(wave(rows).astype(np.float32))[:, None]
        of_column = jnp.asarray(wave(columns).astype(np.float32))[None]
        grid = jnp.concatenate(
            [
                jnp.full((height, width, still), wave(0.0), jnp.float32),
                jnp.broadcast_to(of_row, (height, width, by_row)),
                jnp.broadcast_to(of_column, (height, width, by_column)),
            ],
            axis=-1,
        ).reshape(height * width, -1)
        text = jnp.full((text_tokens, grid.shape[1]), wave(0.0), jnp.float32)
        return jnp.concatenate([text, grid])

    return turned(np.cos), turned(np.sin)


def _angles(places: int, features: int) -> np.ndarray:
    frequencies = THETA ** -(np.arange(0, features, 2, dtype=np.float64) / features)
    return np.outer(np.arange(places, dtype=np.float64), frequencies)


def turn(x_BSNK: Float[Array, "B S N K"], turns: Turns) -> Float[Array, "B S N K"]:
    """Turn neighbouring features as pairs, in float32."""
    cosines, sines = (table[None, :, None] for table in turns)
    pairs = x_BSNK.astype(jnp.float32).reshape(*x_BSNK.shape[:-1], -1, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    turned = jnp.stack([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    return turned.reshape(x_BSNK.shape).astype(x_BSNK.dtype)
