"""What the solvers in log signal-to-noise share: `x = alpha * image + sigma * noise`, `alpha^2 + sigma^2 = 1`."""

import math
from typing import NamedTuple

from worker.diffusion import prediction
from worker.diffusion.config import Options
from worker.diffusion.schedules import Floats
from worker.diffusion.table import Row, Vector


class Point(NamedTuple):
    """A point of the course; `lam` is `log(alpha / sigma)`, infinite at its end if no noise is left."""

    alpha: float
    sigma: float
    lam: float


def points(sigmas: Floats) -> list[Point]:
    """The points of a schedule of sigmas (ratios of noise to signal)."""
    alphas = [1 / math.sqrt(float(sigma) ** 2 + 1) for sigma in sigmas]
    return [
        Point(alpha, float(sigma) * alpha, -math.log(sigma) if sigma > 0 else math.inf)
        for sigma, alpha in zip(sigmas, alphas, strict=True)
    ]


def row(
    options: Options, point: Point, time: float, x: Vector, *, denoised: bool, saved: Vector, draws: bool = False
) -> Row:
    """A row whose variable, the denoised latent or else the noise, enters the history."""
    quantity = prediction.denoised if denoised else prediction.noise
    return Row(
        time=time,
        scale=1.0,
        d=quantity(options.prediction_type, point.alpha, point.sigma),
        x=x,
        level=(point.alpha, point.sigma),
        saved=saved,
        push=True,
        draws=draws,
    )


def phi(k: int, z: float) -> float:
    """The phi functions of exponential integrators: `phi_0 = exp`, `phi_k(z) = (phi_{k-1}(z) - 1/(k-1)!) / z`.

    Summed as a series near zero, where the recurrence cancels.
    """
    if abs(z) < 1:
        return sum(z**j / math.factorial(j + k) for j in range(20))
    value = math.exp(z)
    for j in range(k):
        value = (value - 1 / math.factorial(j)) / z
    return value
