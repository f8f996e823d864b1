"""DDIM (Song et al., arXiv 2010.02502, equation 12)."""

import math

from worker.diffusion.config import Options, Solver, accepts
from worker.diffusion.schedules import timesteps
from worker.diffusion.solvers.discrete import Signal, noise, row
from worker.diffusion.table import NOISE, D, Row


def _ddim(options: Options, steps: int, start: int) -> tuple[list[Row], float]:
    signal = Signal.of(options)
    stride = options.num_train_timesteps // steps
    rows: list[Row] = []
    for time in timesteps(options, steps)[start:]:
        now, after = signal.at(time), signal.at(time - stride)
        variance = options.eta**2 * (1 - after) / (1 - now) * (1 - now / after)
        x = (
            math.sqrt(after) * D
            # The direction keeps the unclipped noise, although the denoised latent is clipped.
            + math.sqrt(max(1 - after - variance, 0)) * noise(options, now)
            + math.sqrt(variance) * NOISE
        )
        rows.append(row(options, time, now, x, clip=options.clip, draws=options.eta > 0))
    return rows, 1.0


DDIM = Solver(
    name="ddim",
    class_name="DDIMScheduler",
    defaults=accepts(
        "clip_sample_range",
        "set_alpha_to_one",
        "rescale_betas_zero_snr",
        "eta",
        clip_sample=True,
        timestep_spacing="leading",
    ),
    rows=_ddim,
)
