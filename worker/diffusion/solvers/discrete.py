"""What the solvers on whole training steps share: `x = sqrt(a) * image + sqrt(1 - a) * noise`, `a` of that step."""

import math
from dataclasses import dataclass

from worker.diffusion import prediction
from worker.diffusion.config import Options
from worker.diffusion.schedules import Floats, alphas_cumprod
from worker.diffusion.table import MODEL, SAVED, Row, Vector, X


@dataclass(frozen=True)
class Signal:
    """`alphas_cumprod` by time; before the first training step it is `final`."""

    alphas: Floats
    final: float

    @classmethod
    def of(cls, options: Options) -> "Signal":
        alphas = alphas_cumprod(options)
        return cls(alphas, 1.0 if options.set_alpha_to_one else float(alphas[0]))

    def at(self, time: float) -> float:
        """Share of the signal's variance at a time, which is held at the last training step beyond it."""
        return self.final if time < 0 else float(self.alphas[min(int(time), len(self.alphas) - 1)])


def roots(signal: float) -> tuple[float, float]:
    """(alpha, sigma): the factors of image and noise."""
    return math.sqrt(signal), math.sqrt(1 - signal)


def row(
    options: Options,
    time: float,
    signal: float,
    x: Vector,
    *,
    raw: bool = False,
    saved: Vector = SAVED,
    clip: float = math.inf,
    push: bool = False,
    draws: bool = False,
) -> Row:
    """A row whose variable is the denoised latent, or the `raw` output of the network."""
    level = roots(signal)
    d = (0.0, 1.0) if raw else prediction.denoised(options.prediction_type, *level)
    return Row(time=time, scale=1.0, d=d, x=x, level=level, saved=saved, clip=clip, push=push, draws=draws)


def noise(options: Options, signal: float) -> Vector:
    """The predicted noise, unclipped."""
    from_x, from_output = prediction.noise(options.prediction_type, *roots(signal))
    return from_x * X + from_output * MODEL
