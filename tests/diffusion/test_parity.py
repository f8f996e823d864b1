"""Every solver against diffusers: the same times, the same noise, the same last latent."""

from typing import Any

import numpy as np
import pytest

from tests.diffusion import reference
from tests.diffusion.reference import REFERENCED, SD1, SD2, SDXL, ZERO_SNR
from worker.diffusion.config import SIGMA_SCHEDULES, ScheduleConfig
from worker.diffusion.sampling import step_table
from worker.diffusion.solvers import SOLVERS

SAMPLE = {**SD1, "prediction_type": "sample"}
CHECKPOINTS = {"sd1": SD1, "sd2": SD2, "sdxl": SDXL, "zero_snr": ZERO_SNR, "sample": SAMPLE}
SPACINGS = ("leading", "trailing", "linspace")

# Not offered by the classes of diffusers, which refuse it.
WITHOUT_SAMPLE = {"pndm", "euler_ancestral", "dpm2", "dpm2_ancestral", "dpm_sde"}
# Where diffusers itself has no finite answer: UniPC in order 2 and 3 to zero noise.
UNDEFINED = {"lower_order_final": False}

pytestmark = reference.WARNINGS_OF_DIFFUSERS


def variants(solver: str) -> list[dict[str, Any]]:
    """Each option of a solver away from its default, and combinations that belong together."""
    taken = SOLVERS[solver].defaults
    found: list[dict[str, Any]] = [{}]
    found += [{name: True} for name in SIGMA_SCHEDULES if name in taken]
    if "final_sigmas_type" in taken:
        found += [{"final_sigmas_type": "sigma_min"}, {"final_sigmas_type": "sigma_min", "use_karras_sigmas": True}]
    if "solver_order" in taken:
        found += [{"solver_order": 1}, {"solver_order": 3}]
        if solver != "unipc":
            found += [UNDEFINED, {"solver_order": 3, **UNDEFINED}]
    if "clip_sample" in taken:
        found += [{"clip_sample": True, "clip_sample_range": 0.7}, {"clip_sample": False}]
    if "set_alpha_to_one" in taken:
        found += [{"set_alpha_to_one": True}, {"set_alpha_to_one": False}]
    if "eta" in taken:
        found += [{"eta": 0.3}, {"eta": 0.9}]
    return found + SPECIAL.get(solver, [])


SPECIAL: dict[str, list[dict[str, Any]]] = {
    "ddpm": [{"variance_type": "fixed_small_log"}, {"variance_type": "fixed_large"}],
    "unipc": [
        {"disable_corrector": [0, 2]},
        *(
            {"solver_order": order, "solver_type": kind, "predict_x0": x0, "final_sigmas_type": "sigma_min"}
            for order in (1, 2, 3)
            for kind in ("bh1", "bh2")
            for x0 in (True, False)
        ),
    ],
    "dpm_multistep": [
        {"euler_at_final": True, "final_sigmas_type": "sigma_min"},
        {"solver_type": "heun"},
        {"algorithm_type": "sde-dpmsolver++", "solver_order": 3},
        *(
            {"algorithm_type": kind, "solver_type": form, "solver_order": order, "final_sigmas_type": "sigma_min"}
            for kind in ("dpmsolver", "sde-dpmsolver", "sde-dpmsolver++")
            for form in ("midpoint", "heun")
            for order in (1, 2, 3)
            if (kind, order) != ("sde-dpmsolver", 3)
        ),
    ],
    "dpm_singlestep": [
        {"solver_type": "heun"},
        {"solver_type": "heun", "solver_order": 3},
        *(
            {"algorithm_type": kind, "solver_type": form, "solver_order": order, "final_sigmas_type": "sigma_min"}
            for kind in ("dpmsolver", "sde-dpmsolver++")
            for form in ("midpoint", "heun")
            for order in (1, 2, 3)
        ),
    ],
}


def compare(solver, raw, steps, *, options=None, tolerance=1e-8, **inputs):
    options = options or {}
    with reference.float64_schedules():
        theirs, times = reference.sample_reference(
            reference.scheduler(solver, raw, **options),
            reference.network(),
            steps,
            eta=options.get("eta", 0.0),
            **inputs,
        )
        config = ScheduleConfig.from_json(raw)
        table = step_table(solver, config, steps, options=options, strength=inputs.pop("strength", None))
    ours = reference.sample_table(table, reference.network(), **inputs)
    np.testing.assert_allclose(table.times, times, atol=1e-9)
    np.testing.assert_allclose(ours, theirs, atol=tolerance * np.abs(theirs).max(), rtol=0)


def cases(checkpoints, *, with_variants=False):
    return list(_cases(checkpoints, with_variants))


def _cases(checkpoints, with_variants):
    for solver in REFERENCED:
        for name in checkpoints:
            if name == "sample" and solver in WITHOUT_SAMPLE:
                continue
            for options in variants(solver) if with_variants else [{}]:
                label = "-".join([solver, name, *(f"{key}={value}" for key, value in options.items())])
                yield pytest.param(solver, CHECKPOINTS[name], options, id=label)


@pytest.mark.parametrize(("solver", "raw", "options"), cases(["sd1", "sd2", "zero_snr", "sample"]))
@pytest.mark.parametrize("steps", [1, 2, 20])
def test_text_to_image(solver, raw, options, steps):
    compare(solver, raw, steps, options=options)


@pytest.mark.parametrize(("solver", "raw", "options"), cases(["sd2"], with_variants=True))
def test_options(solver, raw, options, image):
    compare(solver, raw, 6, options=options)
    compare(solver, raw, 17, options=options, strength=0.6, image=image)


@pytest.mark.parametrize(("solver", "raw", "options"), cases(["sd1"]))
@pytest.mark.parametrize("strength", [0.0, 0.35, 0.8, 1.0])
def test_image_to_image_and_in_painting(solver, raw, options, strength, image, mask):
    compare(solver, raw, 15, options=options, strength=strength, image=image, mask=mask)


@pytest.mark.parametrize(("solver", "raw", "options"), cases(["sd2"]))
def test_in_painting_from_pure_noise(solver, raw, options, image, mask):
    compare(solver, raw, 5, options=options, image=image, mask=mask)


@pytest.mark.parametrize(("solver", "raw", "options"), cases(["sdxl", "zero_snr"]))
@pytest.mark.parametrize("spacing", SPACINGS)
def test_spacings(solver, raw, options, spacing):
    compare(solver, {**raw, "timestep_spacing": spacing}, 12, options=options)


@pytest.mark.parametrize("solver", [name for name in REFERENCED if "sigma_min" in SOLVERS[name].defaults])
@pytest.mark.parametrize("schedule", ["use_exponential_sigmas", "use_beta_sigmas"])
def test_bounds_of_sigmas(solver, schedule):
    compare(solver, {**SDXL, "sigma_min": 0.1, "sigma_max": 9.0}, 9, options={schedule: True})


@pytest.mark.parametrize("solver", ["dpm_multistep", "dpm_singlestep"])
@pytest.mark.parametrize("spacing", SPACINGS)
def test_clipped_signal_to_noise(solver, spacing):
    raw = {**SDXL, "beta_schedule": "squaredcos_cap_v2", "lambda_min_clipped": -3.0, "timestep_spacing": spacing}
    for options in ({}, {"use_karras_sigmas": True}):
        compare(solver, raw, 10, options=options)


@pytest.mark.parametrize("schedule", [{"beta_schedule": "linear"}, {"beta_schedule": "squaredcos_cap_v2"}])
@pytest.mark.parametrize("solver", REFERENCED)
def test_other_betas(solver, schedule):
    compare(solver, {**SDXL, **schedule, "timestep_spacing": "trailing"}, 8, tolerance=1e-7)


def test_trained_betas():
    betas = list(np.linspace(0.001, 0.01, 300))
    compare("euler", {**SDXL, "trained_betas": betas, "num_train_timesteps": 300}, 8)


@pytest.mark.parametrize("steps", [2, 4, 8])
@pytest.mark.parametrize("solver", ["lcm", "tcd"])
def test_distilled_models_with_other_teachers(solver, steps):
    for original in (10, 100):
        raw = {**SDXL, "original_inference_steps": original, "timestep_scaling": 3.0}
        compare(solver, raw, steps, options={"eta": 0.5} if solver == "tcd" else {})


def sigma_schedules():
    return [
        (solver, {schedule: True} if schedule else {})
        for solver in REFERENCED
        for schedule in (None, *SIGMA_SCHEDULES)
        if schedule is None or schedule in SOLVERS[solver].defaults
    ]


@pytest.mark.parametrize(("solver", "options"), sigma_schedules())
@pytest.mark.parametrize("checkpoint", ["sd1", "zero_snr"])
def test_unchanged_diffusers_in_float32(solver, checkpoint, options):
    """The reference as users run it, float32 throughout; times that it makes whole are the same ones."""
    raw = CHECKPOINTS[checkpoint]
    theirs, times = reference.sample_reference(
        reference.scheduler(solver, raw, **options), reference.network(), 25, dtype=np.float32
    )
    table = step_table(solver, ScheduleConfig.from_json(raw), 25, options=options)
    ours = reference.sample_table(table, reference.network(), dtype=np.float32)
    whole = np.all(np.equal(times, np.round(times)))
    np.testing.assert_allclose(table.times, times, atol=0 if whole else 1e-2)
    # DEIS takes differences of nearly equal logarithms, in which the reference loses figures in float32.
    tolerance = 2e-5 if solver == "deis" else 1e-5
    np.testing.assert_allclose(ours, theirs, atol=tolerance * np.abs(theirs).max(), rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "raw", "options"), cases(CHECKPOINTS, with_variants=True))
@pytest.mark.parametrize("spacing", SPACINGS)
def test_every_option_with_every_checkpoint_and_spacing(solver, raw, options, spacing, image, mask):
    raw = {**raw, "timestep_spacing": spacing}
    for steps in (4, 9, 20):
        compare(solver, raw, steps, options=options)
    compare(solver, raw, 19, options=options, strength=0.55, image=image, mask=mask)


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "raw", "options"), cases(["sdxl", "zero_snr"]))
def test_every_strength(solver, raw, options, image, mask):
    for strength in np.arange(21) / 20:
        for steps in (4, 15):
            compare(solver, raw, steps, options=options, strength=float(strength), image=image, mask=mask)
