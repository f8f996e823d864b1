"""From a solver, a schedule and a number of steps to the table that the program reads."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from worker.diffusion.config import ScheduleConfig
from worker.diffusion.schedules import dynamic_shift
from worker.diffusion.solvers import SOLVERS
from worker.diffusion.table import MAX_STEPS, StepTable, assemble


def step_table(
    solver: str,
    config: ScheduleConfig,
    steps: int,
    *,
    options: Mapping[str, Any] | None = None,
    strength: float | None = None,
    tokens: int = 0,
) -> StepTable:
    """The rows that `steps` steps of a solver (a key of `SOLVERS`) take on a checkpoint's schedule.

    `options` are the request's, by diffusers' names. `strength` (0 to 1) starts from an image instead of pure
    noise and runs the last steps (see `steps_of`), at least one; multistep solvers begin anew at the cut.
    In-painting at full strength starts from pure noise in diffusers: leave `strength` out for it. `tokens` is the
    length of the picture's sequence, on which flow matching's schedule can depend. Raises ValueError, with the
    bounds, for steps, strength or options that cannot be.
    """
    chosen = SOLVERS[solver]
    resolved = config.resolve(chosen, options or {})
    most = min(resolved.num_train_timesteps, MAX_STEPS)
    if not 1 <= steps <= most:
        raise ValueError(f"num_inference_steps: {steps} is not in 1..{most}")
    if strength is not None and not 0 <= strength <= 1:
        raise ValueError(f"strength: {strength} is not in 0..1")
    if resolved.use_dynamic_shifting:
        resolved = replace(resolved, shift=dynamic_shift(resolved, tokens))
    kept = steps if strength is None else max(steps_of(config, steps, strength), 1)
    try:
        rows, noise_scale = chosen.rows(resolved, steps, steps - kept)
    except ArithmeticError as error:
        raise ValueError(f"these options give no course: {error}") from None
    return assemble(rows, (0.0, noise_scale) if strength is None else rows[0].level)


def steps_of(config: ScheduleConfig, steps: int, strength: float) -> int:
    """How many steps of a course a strength runs; diffusers rounds down, for flow matching up."""
    return steps - int(steps - steps * strength) if config.flow else min(int(steps * strength), steps)
