"""DDPM's ancestral sampling (Ho et al., arXiv 2006.11239, equations 6 and 7)."""

import math

from worker.diffusion.config import Options, Solver, accepts
from worker.diffusion.schedules import timesteps
from worker.diffusion.solvers.discrete import Signal, row
from worker.diffusion.table import NOISE, D, Row, X

SMALLEST_VARIANCE = 1e-20


def _ddpm(options: Options, steps: int, start: int) -> tuple[list[Row], float]:
    signal = Signal.of(options)
    times = timesteps(options, steps)
    rows: list[Row] = []
    for i in range(start, len(times)):
        now, after = signal.at(times[i]), signal.at(times[i + 1]) if i + 1 < len(times) else 1.0
        beta = 1 - now / after
        posterior = max((1 - after) / (1 - now) * beta, SMALLEST_VARIANCE)
        # diffusers takes the root of a logarithm for "fixed_large_log", which has no value: here the same as
        # "fixed_large", of which it is the logarithm.
        variance = posterior if (options.variance_type or "").startswith("fixed_small") else beta
        x = math.sqrt(after) * beta / (1 - now) * D + math.sqrt(now / after) * (1 - after) / (1 - now) * X
        draws = times[i] > 0
        x = x + math.sqrt(variance) * NOISE if draws else x
        rows.append(row(options, times[i], now, x, clip=options.clip, draws=draws))
    return rows, 1.0


DDPM = Solver(
    name="ddpm",
    class_name="DDPMScheduler",
    defaults=accepts(
        "variance_type",
        "clip_sample_range",
        "rescale_betas_zero_snr",
        clip_sample=True,
        timestep_spacing="leading",
    ),
    choices={"variance_type": ("fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log")},
    rows=_ddpm,
)
