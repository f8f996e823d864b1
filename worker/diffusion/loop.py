"""The sampling loop: reads step tables row after row, for many pictures at once."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from worker.diffusion import table


class State(NamedTuple):
    """What a picture keeps between two rows; the leading axis (second of `history`) counts slots.

    `history` holds the predictions that were pushed, most recent first; `row` is the next row of the table.
    """

    x: Float[Array, "S H W C"]
    saved: Float[Array, "S H W C"]
    history: Float[Array, "3 S H W C"]
    row: Int[Array, " S"]


class Blend(NamedTuple):
    """In-painting: where `mask` is 0 the picture follows `image`, noised with `noise` to the level of the row.

    Unused, the mask is 1 everywhere.
    """

    mask: Float[Array, "S H W 1"]
    image: Float[Array, "S H W C"]
    noise: Float[Array, "S H W C"]


Evaluate = Callable[[Float[Array, "S H W C"], Float[Array, " S"]], Float[Array, "S H W C"]]


def initial_state(x: Float[Array, "S H W C"]) -> State:
    """The state before the first row."""
    return State(
        x=x,
        saved=jnp.zeros_like(x),
        history=jnp.zeros((table.HISTORY, *x.shape), x.dtype),
        row=jnp.zeros(x.shape[0], jnp.int32),
    )


def advance(
    evaluate: Evaluate,
    state: State,
    tables: Float[Array, "S R K"],
    lengths: Int[Array, " S"],
    noise: Float[Array, "S H W C"],
    blend: Blend,
    n_rows: Int[Array, ""] | int,
) -> State:
    """Carry every slot on by up to `n_rows` rows of its own table; a slot past its end is left as it is.

    `tables` are `StepTable.packed`, `lengths` their numbers of rows. `noise` is used by each row of this call
    that asks for noise, so that no more than `StepTable.run_length` rows may run with it. `evaluate(x, time)`
    is the network, guidance included, on the scaled latents; slots do not touch each other outside of it.
    """

    def pending(carry: tuple[Array, State]) -> Bool[Array, ""]:
        done, now = carry
        return (done < n_rows) & jnp.any(now.row < lengths)

    def body(carry: tuple[Array, State]) -> tuple[Array, State]:
        done, now = carry
        return done + 1, one_row(evaluate, now, tables, lengths, noise, blend)

    return jax.lax.while_loop(pending, body, (jnp.int32(0), state))[1]


def one_row(
    evaluate: Evaluate,
    state: State,
    tables: Float[Array, "S R K"],
    lengths: Int[Array, " S"],
    noise: Float[Array, "S H W C"],
    blend: Blend,
) -> State:
    """Carry every slot on by one row; the arguments are those of `advance`."""
    active_S = state.row < lengths
    # A finished slot reads its last row again, so that the network never sees the zeros of the padding.
    index_S = jnp.minimum(state.row, lengths - 1)
    row_SK = jnp.take_along_axis(tables, index_S[:, None, None], axis=1)[:, 0]

    def column(index: int) -> Float[Array, "S 1 1 1"]:
        return row_SK[:, index, None, None, None]

    output = evaluate(column(table.SCALE) * state.x, row_SK[:, table.TIME])
    d = column(table.D_FROM_X) * state.x + column(table.D_FROM_MODEL) * output
    d = jnp.clip(d, -column(table.CLIP), column(table.CLIP))
    terms = (state.x, state.saved, d, *state.history, noise, output)

    def combine(columns: slice) -> Float[Array, "S H W C"]:
        indices = range(columns.start, columns.stop)
        return sum((column(i) * term for i, term in zip(indices, terms, strict=True)), jnp.zeros_like(d))

    x = combine(table.X_TERMS)
    reference = column(table.REFERENCE_IMAGE) * blend.image + column(table.REFERENCE_NOISE) * blend.noise
    x = blend.mask * x + (1 - blend.mask) * reference
    pushed = jnp.stack((d, *state.history[:-1]))
    history = jnp.where((column(table.PUSH) > 0)[None], pushed, state.history)

    def keep(new: Array, old: Array) -> Array:
        return jnp.where(active_S[:, None, None, None], new, old)

    return State(
        x=keep(x, state.x),
        saved=keep(combine(table.SAVED_TERMS), state.saved),
        history=keep(history, state.history),
        row=state.row + active_S,
    )
