"""Linear multistep of order 4 in sigma (k-diffusion's `sample_lms`).

After a cut by `strength` the weights are those of the whole course's order, of which the derivatives before the cut
are missing: so does diffusers, and its pictures are what is promised.
"""

from worker.diffusion.config import SIGMA_SCHEDULES, Options, Solver, accepts
from worker.diffusion.schedules import sigma_schedule
from worker.diffusion.solvers.exploding import noise_scale, row
from worker.diffusion.solvers.quadrature import lagrange_integrals
from worker.diffusion.table import D1, D2, D3, D, Row, X

DERIVATIVES = (D, D1, D2, D3)


def _lms(options: Options, steps: int, start: int) -> tuple[list[Row], float]:
    schedule = sigma_schedule(options, steps)
    sigmas, times = schedule.sigmas, schedule.times
    rows: list[Row] = []
    for i in range(start, len(times)):
        order = min(i + 1, len(DERIVATIVES))
        points = [float(sigmas[i - k]) for k in range(order)]
        weights = lagrange_integrals(points, float(sigmas[i]), float(sigmas[i + 1]))
        known = DERIVATIVES[: i - start + 1]
        x = X + sum(weight * past for weight, past in zip(weights, known, strict=False))
        rows.append(row(options, sigmas[i], times[i], x, derivative=True, push=True))
    return rows, noise_scale(options, schedule)


LMS = Solver(
    name="lms",
    class_name="LMSDiscreteScheduler",
    defaults=accepts(*SIGMA_SCHEDULES[:3], "sigma_min", "sigma_max"),
    rows=_lms,
)
