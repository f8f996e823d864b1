"""Integrals of interpolation polynomials, from which multistep methods take their weights."""

from collections.abc import Callable, Sequence

import numpy as np

from worker.diffusion.schedules import Floats

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


def lagrange_integrals(
    points: Sequence[float], lower: float, upper: float, weight: Callable[[Floats], Floats] = np.ones_like
) -> list[float]:
    """For each point the integral of `weight` times the polynomial that is 1 there and 0 at the other points."""
    half = (upper - lower) / 2
    u = (upper + lower) / 2 + half * NODES
    return [float(half * np.sum(WEIGHTS * weight(u) * _basis(points, index, u))) for index in range(len(points))]


def _basis(points: Sequence[float], index: int, u: Floats) -> Floats:
    factors = [(u - other) / (points[index] - other) for k, other in enumerate(points) if k != index]
    return np.prod(factors, axis=0) if factors else np.ones_like(u)
