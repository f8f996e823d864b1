"""Gaussian noise equal to that of PyTorch's CPU generator, so that a seed gives the same picture as diffusers."""

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt

BLOCK = 16


class NoiseStream:
    """The generator of one image: `torch.randn(shape, generator=torch.Generator().manual_seed(seed))`, drawn on.

    MT19937 seeded with 32 bits; Box-Muller on 24-bit uniforms in blocks of sixteen, on 53-bit uniforms below
    sixteen values (PyTorch's ATen/native/cpu/DistributionTemplates.h and ATen/core/DistributionsHelper.h).
    PyTorch evaluates it in float32: values agree to 5e-7. Raises ValueError for a seed outside 0..2^32-1.
    """

    def __init__(self, seed: int):
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed {seed} is not in 0..4294967295")
        self._bits = np.random.MT19937()
        self._bits.state = cast(Any, np.random.RandomState(seed).get_state(legacy=False))
        self._spare: float | None = None

    def normal(self, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """The next standard normal values of the stream, filled in row-major order."""
        size = math.prod(shape)
        values = self._blocks(size) if size >= BLOCK else np.array([self._single() for _ in range(size)])
        return values.astype(np.float32).reshape(shape)

    def _blocks(self, size: int) -> npt.NDArray[np.float64]:
        uniforms = self._uniform24(size)
        whole = size - size % BLOCK
        values = np.empty(size)
        values[:whole] = _box_muller(uniforms[:whole])
        if whole < size:
            # The last sixteen values are made anew from fresh uniforms, over the end of the last whole block.
            values[-BLOCK:] = _box_muller(self._uniform24(BLOCK))
        return values

    def _single(self) -> float:
        if self._spare is not None:
            value, self._spare = self._spare, None
            return value
        angle = 2 * math.pi * self._uniform53()
        radius = math.sqrt(-2 * math.log1p(-self._uniform53()))
        self._spare = radius * math.sin(angle)
        return radius * math.cos(angle)

    def _uniform24(self, size: int) -> npt.NDArray[np.float64]:
        return (self._bits.random_raw(size) & (2**24 - 1)).astype(np.float64) * 2.0**-24

    def _uniform53(self) -> float:
        high, low = (int(word) for word in self._bits.random_raw(2))
        return ((high << 32 | low) & (2**53 - 1)) * 2.0**-53


def _box_muller(uniforms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Each block of sixteen: the first half makes radii, the second half angles."""
    first, second = uniforms.reshape(-1, 2, BLOCK // 2).transpose(1, 0, 2)
    radius = np.sqrt(-2 * np.log1p(-first))
    # PyTorch's angle is rounded to float32, which is the one rounding that is felt: the others are below 5e-7.
    angle = (np.float32(2 * np.pi) * second.astype(np.float32)).astype(np.float64)
    return np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1).reshape(-1)
