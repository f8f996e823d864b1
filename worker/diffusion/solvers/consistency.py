"""Samplers of distilled models: LCM (Luo et al., arXiv 2310.04378) and TCD (Zheng et al., arXiv 2402.19159).

Their steps are a part of the `original_inference_steps` of the teacher.
"""

import math

import numpy as np

from worker.diffusion.config import Options, Solver, accepts
from worker.diffusion.schedules import Floats
from worker.diffusion.solvers.discrete import Signal, noise, roots, row
from worker.diffusion.table import NOISE, D, Row, X

SIGMA_DATA = 0.5


def _times(options: Options, steps: int) -> Floats:
    original, total = options.original_inference_steps, options.num_train_timesteps
    if original > total:
        raise ValueError(f"original_inference_steps: {original} is not in 1..{total}")
    if steps > original:
        raise ValueError(f"num_inference_steps: {steps} is not in 1..{original}, the original_inference_steps")
    teacher = np.arange(original, 0, -1, dtype=np.float64) * (total // original) - 1
    return teacher[np.floor(np.linspace(0, original, steps, endpoint=False)).astype(int)]


def _lcm(options: Options, steps: int, start: int) -> tuple[list[Row], float]:
    signal, times = Signal.of(options), _times(options, steps)
    rows: list[Row] = []
    for i in range(start, steps):
        now, draws = signal.at(times[i]), i < steps - 1
        scaled = times[i] * options.timestep_scaling
        skip = SIGMA_DATA**2 / (scaled**2 + SIGMA_DATA**2)
        out = scaled / math.sqrt(scaled**2 + SIGMA_DATA**2)
        x = out * D + skip * X
        if draws:
            alpha, sigma = roots(signal.at(times[i + 1]))
            x = alpha * x + sigma * NOISE
        rows.append(row(options, times[i], now, x, clip=options.clip, draws=draws))
    return rows, 1.0


def _tcd(options: Options, steps: int, start: int) -> tuple[list[Row], float]:
    signal, times = Signal.of(options), _times(options, steps)
    rows: list[Row] = []
    for i in range(start, steps):
        now, draws = signal.at(times[i]), options.eta > 0 and i < steps - 1
        target = times[i + 1] if i + 1 < steps else 0.0
        # The trajectory is followed beyond the target, to which fresh noise then leads back.
        # The product is taken in float32 as diffusers takes it, since its floor decides.
        beyond = signal.at(float(np.floor(np.float32(1 - options.eta) * np.float32(target))))
        alpha, sigma = roots(beyond)
        x = alpha * D + sigma * noise(options, now)
        if draws:
            back = signal.at(target) / beyond
            x = math.sqrt(back) * x + math.sqrt(1 - back) * NOISE
        rows.append(row(options, times[i], now, x, draws=draws))
    return rows, 1.0


_DEFAULTS = accepts(
    "original_inference_steps",
    "clip_sample",
    "clip_sample_range",
    "set_alpha_to_one",
    "timestep_scaling",
    "rescale_betas_zero_snr",
    beta_start=0.00085,
    beta_end=0.012,
    beta_schedule="scaled_linear",
    timestep_spacing="leading",
)
LCM = Solver(name="lcm", class_name="LCMScheduler", defaults=_DEFAULTS, rows=_lcm)
TCD = Solver(name="tcd", class_name="TCDScheduler", defaults={**_DEFAULTS, "eta": 0.0}, rows=_tcd)
