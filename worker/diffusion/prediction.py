"""What a network predicts, as two numbers: how much of its input and how much of its output make a quantity.

A noisy latent is `x = alpha * denoised + sigma * noise` with `alpha^2 + sigma^2 = 1`; the network predicts the
noise (`epsilon`), the denoised latent (`sample`) or the velocity `alpha * noise - sigma * denoised`
(`v_prediction`; Salimans and Ho, arXiv 2202.00512).
"""

import math


def denoised(kind: str, alpha: float, sigma: float) -> tuple[float, float]:
    """(from x, from output) of the denoised latent.

    Raises ValueError for `epsilon` where no signal is left (alpha 0), as the noise then tells nothing.
    """
    match kind:
        case "epsilon":
            if alpha == 0:
                raise ValueError(
                    "prediction_type epsilon cannot start at zero signal: rescale_betas_zero_snr needs v_prediction"
                )
            return 1 / alpha, -sigma / alpha
        case "v_prediction":
            return alpha, -sigma
        case "sample":
            return 0.0, 1.0
        case _:
            raise ValueError(f"prediction_type {kind!r} is not one of epsilon, v_prediction, sample")


def noise(kind: str, alpha: float, sigma: float) -> tuple[float, float]:
    """(from x, from output) of the noise."""
    match kind:
        case "epsilon":
            return 0.0, 1.0
        case "v_prediction":
            return sigma, alpha
        case "sample":
            return 1 / sigma, -alpha / sigma
        case _:
            raise ValueError(f"prediction_type {kind!r} is not one of epsilon, v_prediction, sample")


def exploding_denoised(kind: str, sigma: float) -> tuple[float, float]:
    """(from x, from output) of the denoised latent where `x = denoised + sigma * noise`.

    The network's input is this `x` scaled by `1 / sqrt(sigma^2 + 1)`.
    """
    alpha = 1 / math.sqrt(sigma**2 + 1)
    from_x, from_output = denoised(kind, alpha, sigma * alpha)
    return from_x * alpha, from_output


def exploding_derivative(kind: str, sigma: float) -> tuple[float, float]:
    """(from x, from output) of `(x - denoised) / sigma`, which is the noise."""
    alpha = 1 / math.sqrt(sigma**2 + 1)
    from_x, from_output = noise(kind, alpha, sigma * alpha)
    return from_x * alpha, from_output
