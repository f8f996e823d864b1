"""DEIS, the multistep variant in log rho (Zhang and Chen, arXiv 2204.13902)."""

from dataclasses import replace

import numpy as np

from worker.diffusion.config import SIGMA_SCHEDULES, Options, Solver, accepts
from worker.diffusion.schedules import log_snr_schedule
from worker.diffusion.solvers.preserving import points, row
from worker.diffusion.solvers.quadrature import lagrange_integrals
from worker.diffusion.table import D1, D2, SAVED, D, Row, X

SHORT_COURSE = 15


def _deis(options: Options, steps: int, start: int) -> tuple[list[Row], float]:
    schedule = log_snr_schedule(options, steps, end="last")
    course, count = points(schedule.sigmas), len(schedule.times)
    log_rho = [-point.lam for point in course]
    rows: list[Row] = []
    for i in range(start, count):
        order = min(options.solver_order, len(rows) + 1)
        if options.lower_order_final and count < SHORT_COURSE:
            order = min(order, count - i)
        past = [log_rho[i - k] for k in range(order)]
        weights = lagrange_integrals(past, log_rho[i], log_rho[i + 1], weight=np.exp)
        exponential = sum(weight * noise for weight, noise in zip(weights, (D, D1, D2), strict=False))
        x = course[i + 1].alpha * (X / course[i].alpha + exponential)
        rows.append(row(options, course[i], schedule.times[i], x, denoised=False, saved=SAVED))
    return rows, 1.0


DEIS = Solver(
    name="deis",
    class_name="DEISMultistepScheduler",
    defaults=accepts(
        *SIGMA_SCHEDULES[:3],
        "sigma_min",
        "sigma_max",
        "solver_order",
        "lower_order_final",
        algorithm_type="deis",
        solver_type="logrho",
    ),
    choices={"algorithm_type": ("deis",), "solver_type": ("logrho",)},
    translations={
        "algorithm_type": {"dpmsolver": "deis", "dpmsolver++": "deis"},
        "solver_type": {"midpoint": "logrho", "heun": "logrho", "bh1": "logrho", "bh2": "logrho"},
    },
    rows=lambda options, steps, start: _deis(replace(options, final_sigmas_type="sigma_min"), steps, start),
)
