import pytest

from worker.diffusion.config import ScheduleConfig
from worker.diffusion.names import NAMES, SUFFIXES, markdown_table, offered, resolve
from worker.diffusion.sampling import step_table
from worker.diffusion.solvers import SOLVERS

CONFIG = ScheduleConfig.from_json({"_class_name": "PNDMScheduler"})
FLOW = ScheduleConfig.from_json({"_class_name": "FlowMatchEulerDiscreteScheduler"})

EXPECTED = {
    # worker-sdxl
    "PNDM": "pndm",
    "KLMS": "lms",
    "DDIM": "ddim",
    "K_EULER": "euler",
    "K_EULER_ANCESTRAL": "euler_ancestral",
    "K_HEUN": "heun",
    "DPMSolverMultistep": "dpm_multistep",
    "DPMSolverSinglestep": "dpm_singlestep",
    "DPM++": "dpm_multistep",
    "LMSDiscrete": "lms",
    # AUTOMATIC1111
    "Euler a": "euler_ancestral",
    "DPM2 a Karras": "dpm2_ancestral",
    "DPM++ SDE Karras": "dpm_sde",
    "DPM++ 2M Karras": "dpm_multistep",
    "DPM++ 3M SDE Exponential": "dpm_multistep",
    "LMS Karras": "lms",
    "Heun": "heun",
    "UniPC": "unipc",
    "PLMS": "pndm",
    # ComfyUI
    "euler_ancestral": "euler_ancestral",
    "dpmpp_2m_sde": "dpm_multistep",
    "dpm_2": "dpm2",
    "uni_pc": "unipc",
}


@pytest.mark.parametrize(("name", "solver"), EXPECTED.items())
def test_names_of_other_workers(name, solver):
    assert resolve(name).solver == solver


def test_every_name_that_is_offered_means_something_of_its_own():
    meanings = [resolve(name) for name in offered()]
    assert {"Euler", "DPM++ 2M Karras"} <= set(offered())
    assert {meaning.solver for meaning in meanings} == set(SOLVERS)
    assert all(meaning not in meanings[:index] for index, meaning in enumerate(meanings))


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_is_known_by_its_class_in_diffusers(solver):
    class_name = SOLVERS[solver].class_name
    for spelling in (class_name, class_name.removesuffix("Scheduler"), class_name.upper()):
        assert resolve(spelling).solver == solver
        assert resolve(spelling).options == {}


def test_every_spelling_makes_a_table():
    for entry in NAMES:
        for spelling in (entry.title, *entry.others):
            choice = resolve(spelling)
            assert choice.solver == entry.solver
            config = FLOW if SOLVERS[choice.solver].flow else CONFIG
            assert len(step_table(choice.solver, config, 4, options=choice.options)) >= 4


def test_case_and_separators_do_not_matter():
    plain = resolve("DPM++ 2M SDE Karras")
    for spelling in ("dpm++ 2m sde karras", "DPM++_2M_SDE_KARRAS", "dpm++2msdekarras", "DPM++-2M-SDE-Karras"):
        assert resolve(spelling) == plain


@pytest.mark.parametrize(("suffix", "option"), SUFFIXES.items())
def test_suffixes_turn_on_a_sigma_schedule(suffix, option):
    for entry in NAMES:
        if option in SOLVERS[entry.solver].defaults:
            assert resolve(f"{entry.title} {suffix}").options == {**entry.options, option: True}
        else:
            with pytest.raises(ValueError, match="is not one of"):
                resolve(f"{entry.title} {suffix}")


@pytest.mark.parametrize("name", ["", "K_EULERR", "DPM++ 2S b", "Karras", "Scheduler"])
def test_an_unknown_name_is_answered_with_all_names(name):
    with pytest.raises(ValueError, match="is not one of") as error:
        resolve(name)
    assert all(entry.title in str(error.value) for entry in NAMES)


def test_no_two_solvers_share_a_name():
    spellings = [spelling for entry in NAMES for spelling in (entry.title, *entry.others)]
    for spelling in spellings:
        owners = [entry for entry in NAMES if spelling in (entry.title, *entry.others)]
        assert [owner.solver for owner in owners] == [resolve(spelling).solver]


def test_the_table_for_people_lists_every_name_and_option():
    text = markdown_table()
    assert len(text.splitlines()) == len(NAMES) + 2
    for entry in NAMES:
        row = next(line for line in text.splitlines() if line.startswith(f"| {entry.title} |"))
        assert all(f"`{other}`" in row for other in entry.others)
        assert all(f"`{option}`" in row for option in SOLVERS[entry.solver].requestable)
