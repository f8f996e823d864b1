import inspect

import pytest

from tests.diffusion import reference
from tests.diffusion.reference import SD1, SD2, SDXL, ZERO_SNR
from worker.diffusion.config import IRRELEVANT, TRAINING, UNHANDLED, ScheduleConfig
from worker.diffusion.sampling import step_table
from worker.diffusion.solvers import SOLVERS

pytestmark = reference.WARNINGS_OF_DIFFUSERS

# Options of the table's own: diffusers passes `eta` to each step; `sigma_min` and `sigma_max` it reads from any
# configuration that states them.
OWN = {"eta", "sigma_min", "sigma_max"}


@pytest.mark.parametrize("solver", [*reference.REFERENCED, "flow_euler"])
def test_options_and_defaults_are_those_of_the_class_in_diffusers(solver):
    parameters = inspect.signature(reference.CLASSES[SOLVERS[solver].class_name].__init__).parameters
    theirs = {name: entry.default for name, entry in parameters.items() if name != "self"}
    ours = dict(SOLVERS[solver].defaults)
    assert set(theirs) <= {*ours, *UNHANDLED, *IRRELEVANT}
    assert set(ours) - set(theirs) <= OWN
    for name, value in theirs.items():
        if name in ours:
            assert ours[name] == (tuple(value) if isinstance(value, list) else value), name
        elif name in UNHANDLED:
            assert value in UNHANDLED[name], name


@pytest.mark.parametrize("raw", [SD1, SD2, SDXL, ZERO_SNR], ids=["sd1", "sd2", "sdxl", "zero_snr"])
@pytest.mark.parametrize("solver", reference.REFERENCED)
def test_another_solver_takes_over_what_its_class_knows(solver, raw):
    """`from_config` of diffusers, also for options that belong to yet another class."""
    raw = {**raw, "solver_type": "bh1", "algorithm_type": "dpmsolver++", "solver_order": 3, "clip_sample": True}
    theirs = reference.scheduler(solver, raw).config
    ours = ScheduleConfig.from_json(raw).resolve(SOLVERS[solver], {})
    for name in set(SOLVERS[solver].defaults) & set(theirs):
        value = theirs[name]
        assert getattr(ours, name) == (tuple(value) if isinstance(value, list) else value), name


def test_what_diffusers_wrote_as_a_default_counts_as_absent():
    raw = {"_use_default_values": ["timestep_spacing"], "timestep_spacing": "leading", "steps_offset": 1}
    config = ScheduleConfig.from_json(raw)
    assert config.resolve(SOLVERS["euler"], {}).timestep_spacing == "linspace"
    assert config.resolve(SOLVERS["euler"], {}).steps_offset == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("thresholding", True),
        ("use_flow_sigmas", True),
        ("timestep_type", "continuous"),
        ("interpolation_type", "log_linear"),
        ("variance_type", "learned_range"),
        ("solver_p", {}),
        ("sigma_data", 0.5),
        ("shift", 3.0),
    ],
)
def test_what_is_not_handled_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name}: .* is not handled"):
        ScheduleConfig.from_json({**SD1, name: value})


def test_all_that_is_not_handled_is_named_at_once():
    with pytest.raises(ValueError, match=r"thresholding.*shift"):
        ScheduleConfig.from_json({**SD1, "thresholding": True, "shift": 3.0})


@pytest.mark.parametrize(
    ("solver", "options", "message"),
    [
        ("euler", {"eta": 0.5}, "eta: not an option of EulerDiscreteScheduler, which takes final_sigmas_type"),
        ("ddim", {"eta": 1.5}, r"eta: 1.5 must be a number in 0\.\.1"),
        ("ddim", {"eta": True}, "eta: True must be a number"),
        ("ddim", {"clip_sample": 1}, "clip_sample: 1 must be true or false"),
        ("dpm_multistep", {"solver_order": 4}, r"solver_order: 4 must be an integer in 1\.\.3"),
        ("dpm_multistep", {"solver_order": True}, "solver_order: True must be an integer"),
        ("dpm_multistep", {"solver_order": 1.5}, "solver_order: 1.5 must be an integer"),
        ("dpm_multistep", {"solver_order": float("inf")}, "solver_order: inf must be an integer"),
        ("dpm_multistep", {"solver_order": float("nan")}, "solver_order: nan must be an integer"),
        ("ddim", {"eta": float("nan")}, "eta: nan must be a number"),
        ("unipc", {"solver_type": "euler"}, "solver_type: 'euler' must be one of"),
        ("unipc", {"disable_corrector": 3}, "disable_corrector: 3 must be a list"),
        ("deis", {"algorithm_type": "sde-dpmsolver++"}, "algorithm_type: .* must be one of deis"),
        ("dpm_multistep", {"algorithm_type": "dpmsolver"}, "needs final_sigmas_type 'sigma_min'"),
        ("euler", {"beta_start": 0.1}, "beta_start: belongs to the checkpoint"),
        ("euler", {"use_karras_sigmas": True, "use_beta_sigmas": True}, "only one of"),
        ("dpm_multistep", {"solver_order": 10**400}, "solver_order: 1.* must be an integer"),
        ("heun", {"use_karras_sigmas": True, "sigma_min": 0}, "sigma_min: 0 must be a number in 0.0001"),
        ("heun", {"use_karras_sigmas": True, "sigma_min": 20}, "sigma_min: 20 is not below the largest sigma"),
        ("heun", {"use_karras_sigmas": True, "sigma_max": float("inf")}, "sigma_max: inf must be a number"),
        ("euler", {"timestep_spacing": None}, "timestep_spacing: None must be one of"),
    ],
)
def test_options_that_cannot_be(solver, options, message):
    with pytest.raises(ValueError, match=message):
        step_table(solver, ScheduleConfig.from_json(SD1), 10, options=options)


def test_every_problem_is_told_at_once():
    with pytest.raises(ValueError, match=r"(?s)beta_end.*solver_order.*eta"):
        step_table(
            "dpm_multistep", ScheduleConfig.from_json(SD1), 10, options={"eta": 0, "solver_order": 9, "beta_end": 1}
        )


def test_a_requested_sigma_schedule_replaces_the_checkpoints():
    config = ScheduleConfig.from_json({**SDXL, "use_karras_sigmas": True})
    chosen = config.resolve(SOLVERS["euler"], {"use_exponential_sigmas": True})
    assert (chosen.use_karras_sigmas, chosen.use_exponential_sigmas) == (False, True)
    assert config.resolve(SOLVERS["euler"], {"use_karras_sigmas": False}).use_karras_sigmas is False


def test_zero_signal_is_no_start_for_noise_prediction():
    raw = {**ZERO_SNR, "prediction_type": "epsilon"}
    with pytest.raises(ValueError, match="rescale_betas_zero_snr needs v_prediction"):
        step_table("ddim", ScheduleConfig.from_json(raw), 10)


def test_training_options_are_options_of_all():
    assert all(set(SOLVERS[name].defaults) >= TRAINING for name in reference.DIFFUSION)
