"""What the solvers of k-diffusion share: the latent is `x = image + sigma * noise` (variance exploding)."""

import math

from worker.diffusion import prediction
from worker.diffusion.config import Options
from worker.diffusion.schedules import SigmaSchedule
from worker.diffusion.table import SAVED, D, Row, Vector, X


def row(
    options: Options,
    sigma: float,
    time: float,
    x: Vector,
    *,
    level: float | None = None,
    derivative: bool = False,
    saved: Vector = SAVED,
    clip: float = math.inf,
    push: bool = False,
    draws: bool = False,
) -> Row:
    """A row whose variable is the denoised latent at `sigma`, or the `derivative` of `x` by sigma.

    `level` is the sigma up to which diffusers noises an image for this row, where it is not `sigma`.
    """
    variable = prediction.exploding_derivative if derivative else prediction.exploding_denoised
    return Row(
        time=time,
        scale=1 / math.sqrt(sigma**2 + 1),
        d=variable(options.prediction_type, sigma),
        x=x,
        level=(1.0, sigma if level is None else level),
        saved=saved,
        clip=clip,
        push=push,
        draws=draws,
    )


def towards(sigma: float, target: float) -> Vector:
    """Euler's step from `sigma` to `target` along `(x - denoised) / sigma`."""
    return target / sigma * X + (1 - target / sigma) * D


def ancestral(sigma: float, target: float) -> tuple[float, float]:
    """(down, up): the level to step to, and the fresh noise that leads from there back up to `target`.

    As k-diffusion has it, after Karras et al., arXiv 2206.00364, section 4.
    """
    up = min(target, math.sqrt(target**2 * (sigma**2 - target**2) / sigma**2))
    return math.sqrt(target**2 - up**2), up


def noise_scale(options: Options, schedule: SigmaSchedule) -> float:
    """Scale of the first latent of pure noise."""
    highest = float(schedule.sigmas[0])
    return math.sqrt(highest**2 + 1) if options.timestep_spacing == "leading" else highest
