"""Noise levels of training and of sampling.

`sigma` is the ratio of noise to signal, `sqrt((1 - alphas_cumprod) / alphas_cumprod)`; time counts training steps.
Everything is float64, but what diffusers keeps of the training schedule in float32 is rounded as it rounds it:
a picture then starts from the same levels and times, also where a time is cut to a whole number.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from worker.diffusion.config import Options

Floats = npt.NDArray[np.float64]

KEPT: type[np.floating] = np.float32
"""The precision in which diffusers keeps training schedules."""

NEARLY_ZERO_SIGNAL = 2.0**-24
"""What diffusers leaves of `alphas_cumprod` at zero terminal signal to noise where a sigma must be finite."""


def alphas_cumprod(options: Options, *, floor: float = 0.0) -> Floats:
    """Share of the signal's variance after each training step, [T].

    With `rescale_betas_zero_snr` the square roots are shifted so that the last is zero (Lin et al., arXiv
    2305.08891, algorithm 1), and the last is then replaced by `floor`.
    """
    alphas = 1 - _betas(options)
    if not options.rescale_betas_zero_snr:
        return _cumulative(alphas).astype(np.float64)
    roots = np.sqrt(_cumulative(alphas))
    shares = ((roots - roots[-1]) * (roots[0] / (roots[0] - roots[-1]))) ** 2
    # By way of betas, as the rounding depends on it.
    betas = 1 - np.append(shares[:1], shares[1:] / shares[:-1])
    rescaled = _cumulative(1 - betas).astype(np.float64)
    rescaled[-1] = floor
    return rescaled


def _cumulative(alphas: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    return np.cumprod(alphas, dtype=np.float64).astype(KEPT)


def _betas(options: Options) -> npt.NDArray[np.floating]:
    count = options.num_train_timesteps
    if options.trained_betas is not None:
        if len(options.trained_betas) != count:
            raise ValueError(f"trained_betas: {len(options.trained_betas)} values for {count} training steps")
        return np.array(options.trained_betas, KEPT)
    match options.beta_schedule:
        case "linear":
            return _even(options.beta_start, options.beta_end, count)
        case "scaled_linear":
            return _even(options.beta_start**0.5, options.beta_end**0.5, count) ** 2
        case _:
            # Cosine schedule of Nichol and Dhariwal (arXiv 2102.09672), equation 17.
            share = np.cos((np.linspace(0, 1, count + 1) + 0.008) / 1.008 * np.pi / 2) ** 2
            return np.minimum(1 - share[1:] / share[:-1], 0.999).astype(KEPT)


def _even(first: float, last: float, count: int) -> npt.NDArray[np.floating]:
    """`torch.linspace`: the stride is rounded, and counted from the nearer end."""
    low, high = float(KEPT(first)), float(KEPT(last))
    stride = float((KEPT(last) - KEPT(first)) / KEPT(max(count - 1, 1)))
    index = np.arange(count)
    values = np.where(index < count // 2, low + stride * index, high - stride * (count - 1 - index))
    return values.astype(KEPT)


def timesteps(options: Options, steps: int, *, rounded: bool = True) -> Floats:
    """Times of `steps` evaluations, falling (Lin et al., arXiv 2305.08891, table 2); the last is evaluated too.

    Where diffusers leaves 0..T-1 or repeats a time (leading spacing with as many steps as in training), the
    times are moved into range.
    """
    last = options.num_train_timesteps
    times: Floats
    match options.timestep_spacing:
        case "linspace":
            times = np.linspace(0, last - 1, steps, dtype=np.float64)[::-1]
            times = np.round(times) if rounded else times
        case "leading":
            times = (last // steps) * np.arange(steps, dtype=np.float64)[::-1] + options.steps_offset
        case _:
            times = _trailing(last, last / steps, steps)
    return _falling(times, last)


def timesteps_before_end(options: Options, steps: int, alphas: Floats) -> Floats:
    """Times of `steps` evaluations where one more, the end of the course, is spaced with them and dropped."""
    total = options.num_train_timesteps
    last = total - _clipped_steps(options, alphas)
    if steps > last:
        raise ValueError(f"num_inference_steps: {steps} is not in 1..{last}, what lambda_min_clipped leaves")
    times: Floats
    match options.timestep_spacing:
        case "linspace":
            times = np.round(np.linspace(0, last - 1, steps + 1, dtype=np.float64)[:0:-1])
        case "leading":
            stride = max(last // (steps + 1), 1)
            times = stride * np.arange(1, steps + 1, dtype=np.float64)[::-1] + options.steps_offset
        case _:
            times = _trailing(last, total / steps, steps)
    return _falling(times, total)


def _trailing(last: int, stride: float, steps: int) -> Floats:
    # arange may yield one value too many when the stride is not a binary fraction.
    return np.round(np.arange(last, 0, -stride, dtype=np.float64)[:steps]) - 1


def _clipped_steps(options: Options, alphas: Floats) -> int:
    half_log_snr = np.log(alphas / (1 - alphas)) / 2
    return int(np.searchsorted(half_log_snr[::-1], options.lambda_min_clipped))


def _falling(times: Floats, total: int) -> Floats:
    """The same times where they fall from at most T-1, else the nearest that do."""
    if times[0] <= total - 1 and np.all(np.diff(times) < 0):
        return times
    index = np.arange(len(times), dtype=np.float64)
    return np.minimum.accumulate(np.minimum(times, total - 1) + index) - index


@dataclass(frozen=True)
class SigmaSchedule:
    """`sigmas` [n + 1], falling, the last where the course ends; `times` [n]; `training` sigmas [T], rising."""

    sigmas: Floats
    times: Floats
    training: Floats

    def time_of(self, sigma: float) -> float:
        """The time at which training had this sigma, interpolated in log sigma."""
        return float(_time_of(np.array([sigma]), self.training)[0])


def sigma_schedule(options: Options, steps: int, *, round_karras: bool = False) -> SigmaSchedule:
    """Noise levels of the solvers that come from k-diffusion: the spaced times' own, or others between these."""
    training = training_sigmas(options)
    times = timesteps(options, steps, rounded=False)
    sigmas = np.interp(times, np.arange(len(training)), training)
    if _reshaped(options):
        sigmas = _reshape(options, sigmas[0], sigmas[-1], steps)
        times = _time_of(sigmas, training)
        times = times.round() if round_karras and options.use_karras_sigmas else times
    final = training[0] if options.final_sigmas_type == "sigma_min" else 0.0
    return SigmaSchedule(np.append(sigmas, final), times, training)


def log_snr_schedule(
    options: Options, steps: int, *, end: Literal["training", "last"], round_karras: bool = True
) -> SigmaSchedule:
    """Noise levels of the solvers in log signal-to-noise; their times are whole training steps.

    `end` is what `final_sigmas_type` "sigma_min" means when the levels are reshaped: the smallest sigma of
    training, or the last level itself.
    """
    training = training_sigmas(options)
    times = timesteps_before_end(options, steps, 1 / (training**2 + 1))
    final = training[0] if options.final_sigmas_type == "sigma_min" else 0.0
    if _reshaped(options):
        sigmas = _reshape(options, training[-1], training[0], steps)
        times = _time_of(sigmas, training)
        rounds = round_karras and (options.use_karras_sigmas or options.use_lu_lambdas)
        times = times.round() if rounds else np.trunc(times)
        final = sigmas[-1] if end == "last" and final > 0 else final
    else:
        sigmas = np.interp(times, np.arange(len(training)), training)
    return SigmaSchedule(np.append(sigmas, final), times, training)


def dynamic_shift(options: Options, tokens: int) -> float:
    """The shift of a picture whose sequence is so long: on a line through a small picture's and a large one's."""
    if options.base_image_seq_len >= options.max_image_seq_len:
        raise ValueError(
            f"base_image_seq_len: {options.base_image_seq_len} is not below "
            f"max_image_seq_len, {options.max_image_seq_len}"
        )
    slope = (options.max_shift - options.base_shift) / (options.max_image_seq_len - options.base_image_seq_len)
    shift = options.base_shift + slope * (tokens - options.base_image_seq_len)
    shift = math.exp(shift) if options.time_shift_type == "exponential" else shift
    if shift <= 0:
        raise ValueError(f"base_shift, max_shift: the shift of a picture of {tokens} tokens would be {shift:g}")
    return shift


def flow_sigmas(options: Options, steps: int) -> Floats:
    """Levels of flow matching, [steps + 1], from 1 to 0, shifted towards noise (Esser et al., arXiv 2403.03206, 5.3.2).

    Even levels from 1 to 1 / steps are shifted, as diffusers' pipelines of FLUX.1 have it.
    """
    sigmas = np.linspace(1.0, 1 / steps, steps).astype(KEPT).astype(np.float64)
    sigmas = options.shift * sigmas / (1 + (options.shift - 1) * sigmas)
    if options.shift_terminal and steps > 1:
        sigmas = 1 - (1 - sigmas) * (1 - options.shift_terminal) / (1 - sigmas[-1])
    if _reshaped(options):
        sigmas = _reshape(options, sigmas[0], sigmas[-1], steps)
    return np.append(sigmas, 0.0).astype(KEPT).astype(np.float64)


def training_sigmas(options: Options) -> Floats:
    """Sigma after each training step, [T], rising."""
    alphas = alphas_cumprod(options, floor=NEARLY_ZERO_SIGNAL).astype(KEPT)
    return np.sqrt((1 - alphas) / alphas).astype(np.float64)


def _reshaped(options: Options) -> bool:
    return (
        options.use_karras_sigmas or options.use_exponential_sigmas or options.use_beta_sigmas or options.use_lu_lambdas
    )


def _reshape(options: Options, highest: float, lowest: float, steps: int) -> Floats:
    high = highest if options.sigma_max is None else options.sigma_max
    low = lowest if options.sigma_min is None else options.sigma_min
    if low > high or (low == high and steps > 1):
        raise ValueError(f"sigma_min: {low:g} is not below the largest sigma, {high:g}")
    ramp = np.linspace(0, 1, steps)
    if options.use_karras_sigmas:
        # Karras et al., arXiv 2206.00364, equation 5 with rho = 7.
        rho = 7.0
        return (high ** (1 / rho) + ramp * (low ** (1 / rho) - high ** (1 / rho))) ** rho
    if options.use_beta_sigmas:
        # SciPy takes a third of a second to import, and serving needs it nowhere else.
        from scipy import special

        # Lee et al., arXiv 2407.12173, with alpha = beta = 0.6.
        return low + special.betaincinv(0.6, 0.6, 1 - ramp) * (high - low)
    return np.exp(math.log(high) + ramp * (math.log(low) - math.log(high)))


def _time_of(sigmas: Floats, training: Floats) -> Floats:
    log_training = np.log(training).astype(KEPT)
    return np.interp(np.log(np.maximum(sigmas, 1e-10)), log_training, np.arange(len(training)))
