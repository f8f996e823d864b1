"""No number of steps leaves the range: finite coefficients, times within training and not rising."""

import numpy as np
import pytest

from tests.diffusion.reference import DIFFUSION, SD1, SDXL, ZERO_SNR
from worker.diffusion import table
from worker.diffusion.config import SIGMA_SCHEDULES, ScheduleConfig
from worker.diffusion.sampling import step_table
from worker.diffusion.solvers import SOLVERS

STEPS = (*range(1, 101), 999, 1000)
TWO_STAGES = ("heun", "dpm2", "dpm2_ancestral", "dpm_2s_ancestral", "dpm_sde")
CHECKPOINTS = {"sd1": SD1, "zero_snr": ZERO_SNR}


def demanding(solver):
    """Options that make the most of a solver."""
    options = {"original_inference_steps": 1000, "eta": 1.0, "solver_order": 3}
    return {name: value for name, value in options.items() if name in SOLVERS[solver].defaults}


def run(packed, rows, output):
    """The table in float32 on one number, with a network that always says `output` and noise of one."""
    x, saved, history = np.float32(1), np.float32(0), [np.float32(0)] * table.HISTORY
    for row in packed[:rows]:
        d = np.clip(row[table.D_FROM_X] * x + row[table.D_FROM_MODEL] * output, -row[table.CLIP], row[table.CLIP])
        terms = np.array([x, saved, d, *history, 1, output], np.float32)
        x, saved = row[table.X_TERMS] @ terms, row[table.SAVED_TERMS] @ terms
        history = [d, *history[:-1]] if row[table.PUSH] else history
    return x


def check(solver, raw, steps, options):
    steps_of = step_table(solver, ScheduleConfig.from_json(raw), steps, options={**demanding(solver), **options})
    rows = {"pndm": steps + 1 if steps > 1 else 1}.get(solver, steps)
    assert len(steps_of) == (2 * steps - 1 if solver in TWO_STAGES else rows)
    times = steps_of.times[::2] if solver in TWO_STAGES else steps_of.times
    assert steps_of.times.min() >= 0
    assert steps_of.times.max() <= 999
    falls = np.diff(times) <= 0 if options or solver == "pndm" else np.diff(times) < 0
    assert falls.all()
    packed = steps_of.packed()
    assert np.isfinite(np.delete(packed, table.CLIP, axis=1)).all()
    return packed, len(steps_of)


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("solver", DIFFUSION)
def test_every_number_of_steps(solver, checkpoint):
    for steps in STEPS:
        check(solver, CHECKPOINTS[checkpoint], steps, {})


@pytest.mark.parametrize("schedule", SIGMA_SCHEDULES)
@pytest.mark.parametrize("solver", DIFFUSION)
def test_every_sigma_schedule(solver, schedule):
    if schedule in SOLVERS[solver].defaults:
        for steps in (*range(1, 30), 100, 999, 1000):
            check(solver, SDXL, steps, {schedule: True})


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("solver", DIFFUSION)
@pytest.mark.parametrize("output", [0.0, 1.0])
def test_a_constant_network_stays_finite_in_float32(solver, checkpoint, output):
    for steps in (1, 2, 3, 9, 27, 36, 100, 1000):
        assert np.isfinite(run(*check(solver, CHECKPOINTS[checkpoint], steps, {}), np.float32(output)))


@pytest.mark.parametrize("steps", [0, -1, 1001])
@pytest.mark.parametrize("solver", DIFFUSION)
def test_steps_out_of_bounds(solver, steps):
    with pytest.raises(ValueError, match=rf"num_inference_steps: {steps} is not in 1\.\.1000"):
        step_table(solver, ScheduleConfig.from_json(SD1), steps)


@pytest.mark.parametrize("solver", ["lcm", "tcd"])
def test_steps_beyond_the_teacher(solver):
    with pytest.raises(ValueError, match=r"num_inference_steps: 51 is not in 1\.\.50, the original_inference_steps"):
        step_table(solver, ScheduleConfig.from_json(SD1), 51)


@pytest.mark.parametrize("strength", [-0.1, 1.5, float("nan")])
def test_strength_out_of_bounds(strength):
    with pytest.raises(ValueError, match=r"strength: .* is not in 0\.\.1"):
        step_table("euler", ScheduleConfig.from_json(SD1), 20, strength=strength)


@pytest.mark.parametrize(("steps", "strength"), [(15, 0.05), (1, 0.8), (1, 0.0), (20, 0.0), (3, 0.4), (1, 1.0)])
@pytest.mark.parametrize("solver", DIFFUSION)
def test_strength_leaves_at_least_one_step(solver, steps, strength):
    kept = step_table(solver, ScheduleConfig.from_json(SD1), steps, strength=strength)
    assert len(kept) == (2 if solver == "pndm" and steps > 1 else 1)
    assert kept.init[0] > 0
    assert kept.init[1] > 0
