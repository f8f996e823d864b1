"""Euler's method for flow matching (Lipman et al. 2022, arXiv 2210.02747): `x = (1 - sigma) * image + sigma * noise`.

The network predicts the derivative of `x` by sigma, noise less image.
"""

from worker.diffusion.config import FLOW, SIGMA_SCHEDULES, Options, Solver, usual
from worker.diffusion.schedules import flow_sigmas
from worker.diffusion.table import MODEL, NOISE, Row, Vector, X


def _euler(options: Options, steps: int, start: int) -> tuple[list[Row], float]:
    sigmas = [float(sigma) for sigma in flow_sigmas(options, steps)]
    rows = [_row(options, *sigmas[i : i + 2]) for i in range(start, steps)]
    return rows, sigmas[0]


def _row(options: Options, sigma: float, target: float) -> Row:
    x: Vector = X + (target - sigma) * MODEL
    if options.stochastic_sampling:
        x = (1 - target) * (X - sigma * MODEL) + target * NOISE
    return Row(
        time=options.num_train_timesteps * sigma,
        scale=1.0,
        d=(0.0, 1.0),
        x=x,
        level=(1 - sigma, sigma),
        draws=options.stochastic_sampling,
    )


FLOW_EULER = Solver(
    name="flow_euler",
    class_name="FlowMatchEulerDiscreteScheduler",
    defaults=usual("num_train_timesteps", *SIGMA_SCHEDULES[:3], *sorted(FLOW)),
    rows=_euler,
    flow=True,
)
