"""PNDM (Liu et al., arXiv 2202.09778) with linear multisteps from the start, as Stable Diffusion runs it.

The paper's Runge-Kutta start (`skip_prk_steps` false) is not offered: all Stable Diffusion checkpoints skip it.
Instead the second step is taken twice, first to a provisional latent, then anew from the saved one.
"""

import math

import numpy as np

from worker.diffusion import prediction
from worker.diffusion.config import Options, Solver, accepts
from worker.diffusion.schedules import timesteps
from worker.diffusion.solvers.discrete import Signal, roots, row
from worker.diffusion.table import D1, D2, D3, SAVED, D, Row, Vector, X

ADAMS_BASHFORTH = (
    D,
    (3 * D - D1) / 2,
    (23 * D - 16 * D1 + 5 * D2) / 12,
    (55 * D - 59 * D1 + 37 * D2 - 9 * D3) / 24,
)
HEUN = (D + D1) / 2


def _pndm(options: Options, steps: int, start: int) -> tuple[list[Row], float]:
    signal = Signal.of(options)
    stride = options.num_train_timesteps // steps
    spaced = timesteps(options, steps)
    times = np.concatenate((spaced[:1], spaced[1:2], spaced[1:]))
    rows: list[Row] = []
    for count, time in enumerate(times[start:]):
        if count == 1:
            x = _transfer(options, signal, SAVED, HEUN, time + stride, time)
        else:
            known = min(max(count, 1), len(ADAMS_BASHFORTH))
            x = _transfer(options, signal, X, ADAMS_BASHFORTH[known - 1], time, time - stride)
        saved = X if count == 0 else SAVED
        rows.append(row(options, time, signal.at(time), x, raw=True, saved=saved, push=count != 1))
    return rows, 1.0


def _transfer(options: Options, signal: Signal, sample: Vector, output: Vector, now: float, after: float) -> Vector:
    """Equation 11, from the latent `sample` at time `now`; `output` is what the network is taken to say there."""
    a, b = signal.at(now), signal.at(after)
    from_x, from_output = prediction.noise(options.prediction_type, *roots(a))
    noise = from_x * sample + from_output * output
    weight = (b - a) / (a * math.sqrt(1 - b) + math.sqrt(a * (1 - a) * b))
    return math.sqrt(b / a) * sample - weight * noise


PNDM = Solver(
    name="pndm",
    class_name="PNDMScheduler",
    defaults=accepts("skip_prk_steps", set_alpha_to_one=False, timestep_spacing="leading"),
    choices={"prediction_type": ("epsilon", "v_prediction")},
    rows=_pndm,
)
