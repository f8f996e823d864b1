"""What the solvers on whole training steps share: `x = sqrt(a) * image + sqrt(1 - a) * noise`, `a` of that step."""

import math
from dataclasses import dataclass
from typing import Any

from worker.diffusion import prediction
from worker.diffusion.config import Options
from worker.diffusion.schedules import Floats, alphas_cumprod
from worker.diffusion.table import MODEL, Row, Vector, X


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


def row(options: Options, time: float, signal: float, x: Vector, **rest: Any) -> Row:
    """A row whose variable is the denoised latent, clipped where the options ask for it."""
    level = roots(signal)
    clip = options.clip_sample_range if options.clip_sample else math.inf
    d = rest.pop("d", None) or prediction.denoised(options.prediction_type, *level)
    return Row(time=time, scale=1.0, d=d, x=x, level=level, clip=rest.pop("clip", clip), **rest)


def noise(options: Options, signal: float) -> Vector:
    """The predicted noise, unclipped."""
    from_x, from_output = prediction.noise(options.prediction_type, *roots(signal))
    return from_x * X + from_output * MODEL
