"""UniPC (Zhao et al., arXiv 2302.04867): each evaluation first corrects the step that led to it, then predicts.

Row `i` corrects from the saved latent (the corrected one of the row before) and keeps its own result there.
"""

import math
from collections.abc import Sequence

import numpy as np

from worker.diffusion.config import SIGMA_SCHEDULES, Options, Solver, accepts
from worker.diffusion.schedules import log_snr_schedule
from worker.diffusion.solvers.preserving import Point, phi, points, row
from worker.diffusion.table import D1, D2, D3, SAVED, D, Row, Vector, X


def _unipc(options: Options, steps: int, start: int) -> tuple[list[Row], float]:
    schedule = log_snr_schedule(options, steps, end="last")
    course, count = points(schedule.sigmas), len(schedule.times)
    rows: list[Row] = []
    order = 0
    for i in range(start, count):
        x = X
        if rows and i - 1 not in options.disable_corrector:
            x = _correct(options, order, course[i - 1 :: -1], course[i])
        order = _order(options, len(rows), course[i], course[i + 1], count - i)
        rows.append(
            row(
                options,
                course[i],
                schedule.times[i],
                _predict(options, order, course[i::-1], course[i + 1], x),
                denoised=options.predict_x0,
                saved=x,
            )
        )
    return rows, 1.0


def _order(options: Options, taken: int, s: Point, t: Point, left: int) -> int:
    if t.sigma == 0 or t.lam == s.lam:
        # Divided differences need a finite, non-empty step.
        return 1
    return min(options.solver_order, taken + 1, left if options.lower_order_final else options.solver_order)


def _predict(options: Options, order: int, past: Sequence[Point], t: Point, x: Vector) -> Vector:
    """UniP from the corrected latent; `past`: this point and those before it, most recent first."""
    history = (D, D1, D2)[:order]
    differences, ratios = _differences(history, past, t)
    base, scale, hh = _base(options, past[0], t, x, history[0])
    if order == 1:
        return base
    matrix, target = _system(options, [*ratios, 1.0], hh)
    # Order 2 takes one half instead of the solution, in UniC below order 1: they agree to the order.
    rho = [0.5] if order == 2 else np.linalg.solve(matrix[:-1, :-1], target[:-1])
    return base + scale * sum(r * difference for r, difference in zip(rho, differences, strict=True))


def _correct(options: Options, order: int, past: Sequence[Point], t: Point) -> Vector:
    """UniC: the step from `past[0]` to `t` again, with what the network says at `t`."""
    history = (D1, D2, D3)[:order]
    differences, ratios = _differences(history, past, t)
    base, scale, hh = _base(options, past[0], t, SAVED, history[0])
    matrix, target = _system(options, [*ratios, 1.0], hh)
    rho = [0.5] if order == 1 else np.linalg.solve(matrix, target)
    known = [*differences, D - history[0]]
    return base + scale * sum(r * difference for r, difference in zip(rho, known, strict=True))


def _differences(history: Sequence[Vector], past: Sequence[Point], t: Point) -> tuple[list[Vector], list[float]]:
    h = t.lam - past[0].lam
    ratios = [(point.lam - past[0].lam) / h for point in past[1 : len(history)]]
    return [(m - history[0]) / r for m, r in zip(history[1:], ratios, strict=True)], ratios


def _base(options: Options, s: Point, t: Point, x: Vector, m: Vector) -> tuple[Vector, float, float]:
    """(first-order step, factor of the residual, step of the exponential integrator)."""
    h = t.lam - s.lam
    hh = -h if options.predict_x0 else h
    keep, end = (t.sigma / s.sigma, t.alpha) if options.predict_x0 else (t.alpha / s.alpha, t.sigma)
    # To zero noise the noise's weight is sigma times infinity: its limit removes all noise there is.
    weight = keep * s.sigma if hh == math.inf else end * math.expm1(hh)
    return keep * x - weight * m, -end * _b(options, hh), hh


def _b(options: Options, hh: float) -> float:
    return hh if options.solver_type == "bh1" else math.expm1(hh)


def _system(options: Options, ratios: Sequence[float], hh: float) -> tuple[np.ndarray, np.ndarray]:
    """The conditions on the residual's weights, equation 5 of the paper."""
    order = range(1, len(ratios) + 1)
    matrix = np.array([[ratio ** (i - 1) for ratio in ratios] for i in order])
    target = np.array([math.factorial(i) * hh * phi(i + 1, hh) / _b(options, hh) for i in order])
    return matrix, target


UNIPC = Solver(
    name="unipc",
    class_name="UniPCMultistepScheduler",
    defaults=accepts(
        *SIGMA_SCHEDULES[:3],
        "sigma_min",
        "sigma_max",
        "solver_order",
        "predict_x0",
        "lower_order_final",
        "disable_corrector",
        "final_sigmas_type",
        "rescale_betas_zero_snr",
        solver_type="bh2",
    ),
    choices={"solver_type": ("bh1", "bh2")},
    translations={"solver_type": {"midpoint": "bh2", "heun": "bh2", "logrho": "bh2"}},
    rows=_unipc,
)
