"""Euler's method and its ancestral variant (k-diffusion's `sample_euler`, `sample_euler_ancestral`)."""

from worker.diffusion.config import SIGMA_SCHEDULES, Options, Solver, accepts
from worker.diffusion.schedules import sigma_schedule
from worker.diffusion.solvers.exploding import ancestral, noise_scale, row, towards
from worker.diffusion.table import NOISE, Row


def _euler(options: Options, steps: int, start: int) -> tuple[list[Row], float]:
    schedule = sigma_schedule(options, steps)
    sigmas, times = schedule.sigmas, schedule.times
    rows = [row(options, sigmas[i], times[i], towards(sigmas[i], sigmas[i + 1])) for i in range(start, len(times))]
    return rows, noise_scale(options, schedule)


def _euler_ancestral(options: Options, steps: int, start: int) -> tuple[list[Row], float]:
    schedule = sigma_schedule(options, steps)
    sigmas, times = schedule.sigmas, schedule.times
    rows: list[Row] = []
    for i in range(start, len(times)):
        down, up = ancestral(sigmas[i], sigmas[i + 1])
        rows.append(row(options, sigmas[i], times[i], towards(sigmas[i], down) + up * NOISE, draws=True))
    return rows, noise_scale(options, schedule)


EULER = Solver(
    name="euler",
    class_name="EulerDiscreteScheduler",
    defaults=accepts(*SIGMA_SCHEDULES[:3], "sigma_min", "sigma_max", "final_sigmas_type", "rescale_betas_zero_snr"),
    rows=_euler,
)
EULER_ANCESTRAL = Solver(
    name="euler_ancestral",
    class_name="EulerAncestralDiscreteScheduler",
    defaults=accepts("rescale_betas_zero_snr"),
    rows=_euler_ancestral,
)
