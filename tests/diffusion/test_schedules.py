import numpy as np
import pytest

from tests.diffusion import reference
from tests.diffusion.reference import SD1, SDXL, ZERO_SNR
from worker.diffusion.config import SIGMA_SCHEDULES, ScheduleConfig
from worker.diffusion.schedules import alphas_cumprod, log_snr_schedule, sigma_schedule, timesteps
from worker.diffusion.solvers import SOLVERS

pytestmark = reference.WARNINGS_OF_DIFFUSERS


def options_of(solver, raw, **options):
    return ScheduleConfig.from_json(raw).resolve(SOLVERS[solver], options)


@pytest.mark.parametrize("beta_schedule", ["linear", "scaled_linear", "squaredcos_cap_v2"])
@pytest.mark.parametrize("zero_snr", [False, True])
def test_alphas_are_those_of_diffusers(beta_schedule, zero_snr):
    raw = {**SD1, "beta_schedule": beta_schedule, "rescale_betas_zero_snr": zero_snr}
    theirs = reference.scheduler("ddim", raw).alphas_cumprod.numpy()
    ours = alphas_cumprod(options_of("ddim", raw))
    # To the last bit, but for PyTorch's square root in the rescaling, which is not rounded correctly everywhere.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-7 if zero_snr else 0)
    assert bool(ours[-1] == 0) is zero_snr


def test_the_floor_of_zero_terminal_signal():
    ours = alphas_cumprod(options_of("euler", ZERO_SNR), floor=2.0**-24)
    assert ours[-1] == 2.0**-24
    assert np.all(np.diff(ours) < 0)


@pytest.mark.parametrize("schedule", [None, *SIGMA_SCHEDULES[:3]])
@pytest.mark.parametrize("spacing", ["leading", "trailing", "linspace"])
@pytest.mark.parametrize("steps", [1, 4, 20, 25])
def test_sigmas_of_euler(schedule, spacing, steps):
    raw = {**SDXL, "timestep_spacing": spacing}
    chosen = {schedule: True} if schedule else {}
    theirs = reference.scheduler("euler", raw, **chosen)
    theirs.set_timesteps(steps)
    ours = sigma_schedule(options_of("euler", raw, **chosen), steps)
    np.testing.assert_allclose(ours.sigmas, theirs.sigmas.numpy(), rtol=3e-7)
    np.testing.assert_allclose(ours.times, theirs.timesteps.numpy(), atol=1e-3)


@pytest.mark.parametrize("schedule", [None, *SIGMA_SCHEDULES])
@pytest.mark.parametrize("spacing", ["leading", "trailing", "linspace"])
def test_sigmas_of_dpm(schedule, spacing):
    """25 steps of SDXL end at zero by default; with Karras levels too."""
    raw = {**SDXL, "timestep_spacing": spacing}
    chosen = {schedule: True} if schedule else {}
    theirs = reference.scheduler("dpm_multistep", raw, **chosen)
    theirs.set_timesteps(25)
    ours = log_snr_schedule(options_of("dpm_multistep", raw, **chosen), 25, end="training")
    np.testing.assert_allclose(ours.sigmas, theirs.sigmas.numpy(), rtol=3e-7)
    np.testing.assert_array_equal(ours.times, theirs.timesteps.numpy())
    assert ours.sigmas[-1] == 0


def test_time_of_a_sigma_inverts_training():
    schedule = sigma_schedule(options_of("euler", SD1), 10)
    assert [schedule.time_of(schedule.training[t]) for t in (0, 17, 999)] == pytest.approx([0, 17, 999])
    assert schedule.time_of(1e9) == 999
    assert schedule.time_of(1e-9) == 0


@pytest.mark.parametrize(
    ("spacing", "steps", "first", "last"),
    [
        ("leading", 4, 751, 1),
        ("trailing", 4, 999, 249),
        ("linspace", 4, 999, 0),
        ("leading", 20, 951, 1),
        ("trailing", 20, 999, 49),
        ("linspace", 20, 999, 0),
        ("leading", 1000, 999, 0),
        ("trailing", 3, 999, 332),
    ],
)
def test_first_and_last_times(spacing, steps, first, last):
    times = timesteps(options_of("ddim", {**SD1, "timestep_spacing": spacing}), steps)
    assert (len(times), times[0], times[-1]) == (steps, first, last)
    assert np.all(np.diff(times) < 0)


def test_trained_betas_of_another_length_are_refused():
    with pytest.raises(ValueError, match="trained_betas: 2 values for 1000 training steps"):
        alphas_cumprod(options_of("ddim", {**SD1, "trained_betas": [0.1, 0.2]}))


def test_steps_beyond_what_clipping_leaves_are_refused():
    raw = {**SD1, "beta_schedule": "squaredcos_cap_v2", "lambda_min_clipped": -3.0}
    with pytest.raises(ValueError, match="what lambda_min_clipped leaves"):
        log_snr_schedule(options_of("dpm_multistep", raw), 1000, end="training")
