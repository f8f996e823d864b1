"""DPM-Solver and DPM-Solver++ (Lu et al., arXiv 2206.00927 and 2211.01095), and their SDE variants.

Multistep ("DPM++ 2M", "2M SDE", "3M SDE") takes its order from earlier steps; singlestep ("DPM++ 2S") groups
steps and starts each group from the same latent.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from worker.diffusion.config import SIGMA_SCHEDULES, Options, Solver, accepts
from worker.diffusion.schedules import log_snr_schedule
from worker.diffusion.solvers.preserving import Point, phi, points, row
from worker.diffusion.table import D1, D2, NOISE, SAVED, D, Row, Vector, X

SHORT_COURSE = 15
"""Below so many steps `lower_order_final` lowers the order of the last ones."""


class Weights(NamedTuple):
    """The exact solution over a step whose variable is a polynomial in lambda: what is kept of the latent, the
    integrals of the variable's value and of its first and second derivative, and the fresh noise."""

    keep: float
    value: float
    first: float
    second: float
    noise: float


def _weights(algorithm: str, s: Point, t: Point) -> Weights:
    h = t.lam - s.lam
    stochastic = algorithm.startswith("sde")
    span = 2 * h if stochastic else h
    keep = t.sigma / s.sigma if algorithm.endswith("++") else t.alpha / s.alpha
    if not algorithm.endswith("++"):
        share = 2 if stochastic else 1
        value, first, second = (-share * t.sigma * h * phi(k, h) for k in (1, 2, 3))
        noise = t.sigma * math.sqrt(math.expm1(2 * h)) if stochastic else 0.0
        return Weights(keep, value, first, second, noise)
    if stochastic:
        keep *= math.exp(-h)
    noise = t.sigma * math.sqrt(-math.expm1(-2 * h)) if stochastic else 0.0
    if t.sigma == 0:
        return Weights(keep, t.alpha, math.nan, math.nan, noise)
    value, first, second = (t.alpha * span * phi(k, -span) for k in (1, 2, 3))
    # diffusers subtracts the half where the integral (and k-diffusion) adds it; its pictures are followed.
    return Weights(keep, value, first, second - t.alpha if stochastic else second, noise)


def _first(w: Weights, x: Vector, m0: Vector) -> Vector:
    return w.keep * x + w.value * m0 + w.noise * NOISE


def _second(options: Options, w: Weights, x: Vector, m: Vector, slope: Vector) -> Vector:
    """`slope` is the divided difference of the variable, scaled by the step in lambda."""
    weight = w.value / 2 if options.solver_type == "midpoint" else w.first
    return _first(w, x, m) + weight * slope


def _multistep_x(options: Options, order: int, past: Sequence[Point], t: Point) -> Vector:
    """`past`: this point and those before it, most recent first."""
    w = _weights(options.algorithm_type, past[0], t)
    if order == 1:
        return _first(w, X, D)
    h, h0 = t.lam - past[0].lam, past[0].lam - past[1].lam
    recent = h / h0 * (D - D1)
    if order == 2:
        return _second(options, w, X, D, recent)
    h1 = past[1].lam - past[2].lam
    older = h / h1 * (D1 - D2)
    first = recent + h0 / (h0 + h1) * (recent - older)
    second = h / (h0 + h1) * (recent - older)
    return _first(w, X, D) + w.first * first + w.second * second


def _singlestep_x(options: Options, order: int, past: Sequence[Point], t: Point) -> Vector:
    """From the saved latent, which belongs to the first point of the group, `past[order - 1]`."""
    origin = past[order - 1]
    w = _weights(options.algorithm_type, origin, t)
    if order == 1:
        return _first(w, X, D)
    h, h0 = t.lam - origin.lam, past[0].lam - origin.lam
    if order == 2:
        return _second(options, w, SAVED, D1, h / h0 * (D - D1))
    h1 = past[1].lam - origin.lam
    near, far = h / h1 * (D1 - D2), h / h0 * (D - D2)
    if options.solver_type == "midpoint":
        return _first(w, SAVED, D2) + w.first * far
    first = (h0 * near - h1 * far) / (h0 - h1)
    second = 2 * h * (far - near) / (h0 - h1)
    return _first(w, SAVED, D2) + w.first * first + w.second * second


def _multistep(options: Options, steps: int, start: int) -> tuple[list[Row], float]:
    _check(options)
    schedule = log_snr_schedule(
        options, steps, end="training", round_karras=options.beta_schedule != "squaredcos_cap_v2"
    )
    course, count = points(schedule.sigmas), len(schedule.times)
    lowers = options.lower_order_final and count < SHORT_COURSE
    rows: list[Row] = []
    for i in range(min(start, count - 1), count):
        order = min(options.solver_order, len(rows) + 1)
        if i == count - 1 and (lowers or options.euler_at_final or course[-1].sigma == 0):
            order = 1
        elif i == count - 2 and lowers:
            order = min(order, 2)
        x = _multistep_x(options, order, course[i::-1], course[i + 1])
        rows.append(_row(options, course[i], schedule.times[i], x))
    return rows, 1.0


def _singlestep(options: Options, steps: int, start: int) -> tuple[list[Row], float]:
    _check(options)
    schedule = log_snr_schedule(options, steps, end="training")
    course, count = points(schedule.sigmas), len(schedule.times)
    orders = _orders(options, count)
    rows: list[Row] = []
    for i in range(start, count):
        order = min(orders[i], len(rows) + 1)
        x = _singlestep_x(options, order, course[i::-1], course[i + 1])
        rows.append(_row(options, course[i], schedule.times[i], x, saved=X if order == 1 else SAVED))
    return rows, 1.0


def _orders(options: Options, count: int) -> list[int]:
    """Order of each step: groups 1, 2 (, 3), of which the last may be cut short."""
    size = options.solver_order
    orders = [1 + i % size for i in range(count)]
    if options.final_sigmas_type == "zero" or (options.lower_order_final and count % size == 0):
        orders[-1] = 1
    return orders


def _row(options: Options, point: Point, time: float, x: Vector, saved: Vector = SAVED) -> Row:
    algorithm = options.algorithm_type
    denoised, draws = algorithm.endswith("++"), algorithm.startswith("sde")
    return row(options, point, time, x, denoised=denoised, saved=saved, draws=draws)


def _check(options: Options) -> None:
    if not options.algorithm_type.endswith("++") and options.final_sigmas_type == "zero":
        raise ValueError(f"algorithm_type: {options.algorithm_type!r} needs final_sigmas_type 'sigma_min'")
    if options.algorithm_type == "sde-dpmsolver" and options.solver_order == 3:
        raise ValueError("solver_order: 3 is not in 1..2 for algorithm_type 'sde-dpmsolver'")


TRANSLATIONS = {
    "algorithm_type": {"deis": "dpmsolver++"},
    "solver_type": {"logrho": "midpoint", "bh1": "midpoint", "bh2": "midpoint"},
}
_SHARED = (
    *SIGMA_SCHEDULES[:3],
    "sigma_min",
    "sigma_max",
    "solver_order",
    "algorithm_type",
    "solver_type",
    "final_sigmas_type",
    "lambda_min_clipped",
)

DPM_MULTISTEP = Solver(
    name="dpm_multistep",
    class_name="DPMSolverMultistepScheduler",
    defaults=accepts(
        *_SHARED,
        "use_lu_lambdas",
        "lower_order_final",
        "euler_at_final",
        "rescale_betas_zero_snr",
        variance_type=None,
    ),
    choices={"solver_type": ("midpoint", "heun")},
    translations=TRANSLATIONS,
    rows=_multistep,
)
DPM_SINGLESTEP = Solver(
    name="dpm_singlestep",
    class_name="DPMSolverSinglestepScheduler",
    defaults={
        name: value
        for name, value in accepts(*_SHARED, lower_order_final=False, variance_type=None).items()
        if name not in ("timestep_spacing", "steps_offset")
    },
    choices={
        "algorithm_type": ("dpmsolver", "dpmsolver++", "sde-dpmsolver++"),
        "solver_type": ("midpoint", "heun"),
    },
    translations=TRANSLATIONS,
    rows=_singlestep,
)
