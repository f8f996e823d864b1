"""A solver as numbers: one row per evaluation of the network, read by the one compiled loop of `diffusion.loop`.

Every solver that is served is linear in what it keeps: the latent `x`, one saved latent, the predictions of this
and of up to three earlier evaluations, fresh noise and the raw output of the network. In a solver's code these
quantities are unit vectors, so that a formula written with them *is* the row of coefficients:

    x_next = (sigma_next / sigma) * X + (1 - sigma_next / sigma) * D
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

TERMS = 8
X, SAVED, D, D1, D2, D3, NOISE, MODEL = (np.eye(TERMS, dtype=np.float64)[term] for term in range(TERMS))
"""`D` is the solver's own variable (denoised latent, noise or derivative) at this row, `D1` to `D3` at the rows
that were last pushed, most recent first. `MODEL` is the raw output, which differs from `D` where `D` is clipped."""

TIME, SCALE, D_FROM_X, D_FROM_MODEL, CLIP = range(5)
X_TERMS = slice(5, 5 + TERMS)
SAVED_TERMS = slice(X_TERMS.stop, X_TERMS.stop + TERMS)
PUSH, REFERENCE_IMAGE, REFERENCE_NOISE = range(SAVED_TERMS.stop, SAVED_TERMS.stop + 3)
COLUMNS = REFERENCE_NOISE + 1

HISTORY = 3
MAX_STEPS = 1000
MAX_ROWS = 2 * MAX_STEPS
"""Rows of the longest table: two stages for each step (PNDM needs one row more than steps)."""


class Row(NamedTuple):
    """One evaluation of the network and what follows from it.

    The network sees `scale * x` at `time`; `D = d[0] * x + d[1] * output`, clipped to `-clip..clip`. The new `x`
    and the new saved latent are combinations of the unit vectors above; `push` makes this `D` the next row's
    `D1`. `draws` tells that one noise of the image's generator is consumed, whatever its coefficient.
    `level` is what `x` consists of before the row: how much of the clean image and of unit noise.
    """

    time: float
    scale: float
    d: tuple[float, float]
    x: Vector
    level: tuple[float, float]
    saved: Vector = SAVED
    clip: float = math.inf
    push: bool = False
    draws: bool = False


@dataclass(frozen=True)
class StepTable:
    """The whole course of one picture.

    `coefficients`: float64 [R, COLUMNS]. `draws`: bool [R], the rows that consume one noise of the image's
    generator, in the order in which diffusers draws. `init`: the first `x` is `init[0] * image + init[1] * noise`
    of the clean image latent and unit noise, which is the first draw of the generator.
    """

    coefficients: npt.NDArray[np.float64]
    draws: npt.NDArray[np.bool_]
    init: tuple[float, float]

    def __len__(self) -> int:
        return len(self.coefficients)

    @property
    def times(self) -> npt.NDArray[np.float64]:
        """The time that the network is given, [R], from late to early."""
        return self.coefficients[:, TIME]

    def run_length(self, row: int) -> int:
        """How many rows from `row` on can run with one noise array: up to the second row that draws."""
        drawing = np.flatnonzero(self.draws[row:])
        return int(len(self) - row if len(drawing) < 2 else drawing[1])

    def estimate(self, x: npt.NDArray[np.float32], rows: int) -> npt.NDArray[np.float32]:
        """The clean latent by what `x` is after so many rows: the best linear guess for a latent of unit variance."""
        image, noise = self.coefficients[rows - 1, [REFERENCE_IMAGE, REFERENCE_NOISE]] if rows else self.init
        return (x * (image / (image**2 + noise**2))).astype(np.float32)

    def packed(self, capacity: int = MAX_ROWS) -> npt.NDArray[np.float32]:
        """The coefficients as float32 [capacity, COLUMNS], zeros after the last row.

        Raises ValueError when the table is longer than `capacity`.
        """
        if len(self) > capacity:
            raise ValueError(f"a table of {len(self)} rows does not fit into {capacity}")
        packed = np.zeros((capacity, COLUMNS), np.float32)
        packed[: len(self)] = self.coefficients
        return packed


def assemble(rows: Sequence[Row], init: tuple[float, float]) -> StepTable:
    """Rows to a table; the reference of a row is the level of the next one, the clean image after the last."""
    coefficients = np.zeros((len(rows), COLUMNS))
    levels = [row.level for row in rows[1:]] + [(1.0, 0.0)]
    for target, row, level in zip(coefficients, rows, levels, strict=True):
        target[[TIME, SCALE, D_FROM_X, D_FROM_MODEL, CLIP]] = row.time, row.scale, *row.d, row.clip
        target[X_TERMS], target[SAVED_TERMS] = row.x, row.saved
        target[[PUSH, REFERENCE_IMAGE, REFERENCE_NOISE]] = row.push, *level
    # The bound of the clipping is infinite where there is none.
    if not np.isfinite(np.delete(coefficients, CLIP, axis=1).astype(np.float32)).all():
        raise ValueError("these options give no finite course")
    return StepTable(coefficients, np.array([row.draws for row in rows], dtype=bool), init)
