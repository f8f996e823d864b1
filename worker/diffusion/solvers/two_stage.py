"""Solvers with a second evaluation in each step: Heun, DPM2, DPM2 ancestral (Karras et al., arXiv 2206.00364;
k-diffusion's `sample_heun`, `sample_dpm_2`, `sample_dpm_2_ancestral`), DPM++ 2S ancestral (Lu et al., arXiv 2211.01095,
algorithm 1; `sample_dpmpp_2s_ancestral`) and DPM++ SDE (`sample_dpmpp_sde`).

The last step, to zero noise, has one stage. Rows `2k` and `2k + 1` belong to step `k`.
"""

import math
from collections.abc import Callable
from functools import partial

from worker.diffusion.config import SIGMA_SCHEDULES, Options, Solver, accepts
from worker.diffusion.schedules import SigmaSchedule, sigma_schedule
from worker.diffusion.solvers.exploding import ancestral, noise_scale, row, towards
from worker.diffusion.table import D1, NOISE, SAVED, D, Row, Vector, X

Stages = Callable[[Options, SigmaSchedule, int], list[Row]]


def _rows(stages: Stages, options: Options, steps: int, start: int, *, round_karras: bool) -> tuple[list[Row], float]:
    schedule = sigma_schedule(options, steps, round_karras=round_karras)
    sigmas, times = schedule.sigmas, schedule.times
    last = len(times) - 1
    rows = [stage for i in range(start, last) for stage in stages(options, schedule, i)]
    rows.append(row(options, sigmas[last], times[last], D, clip=options.clip))
    return rows, noise_scale(options, schedule)


def _heun(options: Options, schedule: SigmaSchedule, i: int) -> list[Row]:
    (sigma, target), (time, time_after) = schedule.sigmas[i : i + 2], schedule.times[i : i + 2]
    slope = (SAVED - D1) / sigma / 2 + (X - D) / target / 2
    return [
        row(options, sigma, time, towards(sigma, target), saved=X, push=True, clip=options.clip),
        row(options, target, time_after, SAVED + (target - sigma) * slope, clip=options.clip),
    ]


def _dpm2(options: Options, schedule: SigmaSchedule, i: int) -> list[Row]:
    sigma, target = schedule.sigmas[i : i + 2]
    middle = math.sqrt(sigma * target)
    return _midpoint(options, schedule, i, middle, SAVED + (target - sigma) / middle * (X - D))


def _dpm2_ancestral(options: Options, schedule: SigmaSchedule, i: int) -> list[Row]:
    sigma, target = schedule.sigmas[i : i + 2]
    down, up = ancestral(sigma, target)
    middle = math.sqrt(sigma * down)
    x = SAVED + (down - sigma) / middle * (X - D) + up * NOISE
    return _midpoint(options, schedule, i, middle, x, draws=True)


def _dpm_2s_ancestral(options: Options, schedule: SigmaSchedule, i: int) -> list[Row]:
    sigma, target = schedule.sigmas[i : i + 2]
    down, up = ancestral(sigma, target)
    x = down / sigma * SAVED + (1 - down / sigma) * D + up * NOISE
    return _midpoint(options, schedule, i, math.sqrt(sigma * down), x, draws=True)


def _midpoint(
    options: Options, schedule: SigmaSchedule, i: int, middle: float, x: Vector, *, draws: bool = False
) -> list[Row]:
    sigma, target = schedule.sigmas[i : i + 2]
    return [
        row(options, sigma, schedule.times[i], towards(sigma, middle), saved=X),
        row(options, middle, schedule.time_of(middle), x, level=target, draws=draws),
    ]


def _dpm_sde(options: Options, schedule: SigmaSchedule, i: int) -> list[Row]:
    """Both stages draw. Their noises are increments of one Brownian motion over sigma, as in k-diffusion: what
    the first one moves is part of the second one's path, so its share is kept in the saved latent."""
    sigma, target = schedule.sigmas[i : i + 2]
    middle = math.sqrt(sigma * target)
    (middle_down, middle_up), (down, up) = ancestral(sigma, middle), ancestral(sigma, target)
    shared = (sigma - middle) / (sigma - target)
    x = down / sigma * SAVED + (1 - down / sigma) * D + up * math.sqrt(1 - shared) * NOISE
    first = towards(sigma, middle_down) + middle_up * NOISE
    saved = X + up * math.sqrt(shared) * sigma / down * NOISE
    return [
        row(options, sigma, schedule.times[i], first, saved=saved, draws=True),
        row(options, middle, schedule.time_of(middle), x, level=target, draws=True),
    ]


def _solver(name: str, class_name: str, stages: Stages, *names: str, round_karras: bool = False) -> Solver:
    return Solver(
        name=name,
        class_name=class_name,
        defaults=accepts(*SIGMA_SCHEDULES[:3], "sigma_min", "sigma_max", *names, beta_start=0.00085, beta_end=0.012),
        rows=partial(_rows, stages, round_karras=round_karras),
    )


HEUN = _solver("heun", "HeunDiscreteScheduler", _heun, "clip_sample", "clip_sample_range")
DPM2 = _solver("dpm2", "KDPM2DiscreteScheduler", _dpm2, round_karras=True)
DPM2_ANCESTRAL = _solver("dpm2_ancestral", "KDPM2AncestralDiscreteScheduler", _dpm2_ancestral, round_karras=True)
DPM_2S_ANCESTRAL = _solver("dpm_2s_ancestral", "DPM++ 2S ancestral", _dpm_2s_ancestral)
"""Not in diffusers; it takes the options that its relatives take there."""
DPM_SDE = _solver("dpm_sde", "DPMSolverSDEScheduler", _dpm_sde)
