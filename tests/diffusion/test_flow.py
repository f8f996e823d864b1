"""Flow matching against diffusers: the same levels, the same noise, the same last latent."""

from typing import Any

import numpy as np
import pytest
import torch
from diffusers.pipelines.flux.pipeline_flux import calculate_shift

from bench.published import FLUX_DEV_SCHEDULER, FLUX_SCHNELL_SCHEDULER
from tests.diffusion import reference
from tests.diffusion.reference import SD1
from worker.diffusion.config import ScheduleConfig
from worker.diffusion.sampling import step_table
from worker.diffusion.table import MODEL, TIME, X_TERMS, StepTable, X

TOKENS = (16, 256, 1024, 4096, 8100)

OPTIONS: list[dict[str, Any]] = [
    {},
    {"shift": 3.0},
    {"shift": 0.5},
    {"use_dynamic_shifting": True},
    {"use_dynamic_shifting": True, "time_shift_type": "linear"},
    {"use_dynamic_shifting": True, "base_shift": 0.2, "max_shift": 2.0, "base_image_seq_len": 64},
    {"shift_terminal": 0.1},
    {"use_dynamic_shifting": True, "shift_terminal": 0.02},
    {"use_karras_sigmas": True},
    {"use_exponential_sigmas": True, "shift": 3.0},
    {"use_beta_sigmas": True, "use_dynamic_shifting": True},
    {"stochastic_sampling": True},
]
CONFIG = ScheduleConfig.from_json(FLUX_SCHNELL_SCHEDULER)

pytestmark = reference.WARNINGS_OF_DIFFUSERS


def sample_reference(scheduler, steps, tokens, *, strength=None, image=None, mask=None):
    """The loop of diffusers' pipelines of FLUX.1 around their scheduler: (last latent, times)."""
    noises = reference.Noises(0, np.float64)
    names = ("base_image_seq_len", "max_image_seq_len", "base_shift", "max_shift")
    mu = calculate_shift(tokens, *(scheduler.config[name] for name in names))
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
    begin = 0 if strength is None else int(max(steps - min(steps * strength, steps), 0))
    times = scheduler.timesteps[begin:]
    scheduler.set_begin_index(begin)
    first = torch.from_numpy(noises())
    clean = None if image is None else torch.from_numpy(image)
    x = first if strength is None else scheduler.scale_noise(clean, times[:1], first)
    with reference.drawing_from(scheduler, noises):
        for i, time in enumerate(times):
            output = torch.from_numpy(reference.network()(x.numpy(), float(time)))
            x = scheduler.step(output, time, x).prev_sample
            if mask is not None:
                after = clean if i + 1 == len(times) else scheduler.scale_noise(clean, times[i + 1 : i + 2], first)
                x = torch.from_numpy(mask) * x + (1 - torch.from_numpy(mask)) * after
    return x.numpy(), [float(time) for time in times]


def compare(steps: int, tokens: int, options: dict[str, Any], **inputs: Any) -> StepTable:
    with reference.float64_schedules():
        scheduler = reference.scheduler("flow_euler", FLUX_SCHNELL_SCHEDULER, **options)
        theirs, times = sample_reference(scheduler, steps, tokens, **inputs)
        strength = inputs.pop("strength", None)
        table = step_table("flow_euler", CONFIG, steps, options=options, strength=strength, tokens=tokens)
    np.testing.assert_allclose(table.times, times, atol=1e-9)
    ours = reference.sample_table(table, reference.network(), **inputs)
    np.testing.assert_allclose(ours, theirs, atol=1e-8 * np.abs(theirs).max(), rtol=0)
    return table


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("steps", [2, 4, 28])
def test_options(options, steps, image):
    compare(steps, 1024, options)
    compare(steps, 1024, options, strength=0.6, image=image)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("kind", ["exponential", "linear"])
def test_dynamic_shifting_by_size(tokens, kind):
    compare(7, tokens, {"use_dynamic_shifting": True, "time_shift_type": kind})


@pytest.mark.parametrize("strength", [0.05, 0.35, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("steps", [4, 9])
def test_image_to_image_and_in_painting(strength, steps, image, mask):
    compare(steps, 300, {"shift": 3.0}, strength=strength, image=image, mask=mask)


def test_published_schedules_in_float32():
    """The very numbers that the network is given, in a job of the production types."""
    for raw in (FLUX_SCHNELL_SCHEDULER, FLUX_DEV_SCHEDULER):
        scheduler = reference.scheduler("flow_euler", raw)
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / 28, 28), mu=calculate_shift(4096))
        table = step_table("flow_euler", ScheduleConfig.from_json(raw), 28, tokens=4096)
        np.testing.assert_allclose(table.times, scheduler.timesteps.numpy(), rtol=3e-7)


@pytest.mark.parametrize("steps", [*range(1, 101), 999, 1000])
def test_every_number_of_steps(steps):
    for options in OPTIONS:
        table = step_table("flow_euler", CONFIG, steps, options=options, tokens=4096)
        assert len(table) == steps
        assert 1000 >= table.times[0] > 999.99
        assert table.times[-1] > 0
        assert (np.diff(table.times) < 0).all()
        assert np.isfinite(table.packed()[:steps, X_TERMS]).all()


def test_order_of_convergence():
    """Normal data of variance `s2`: the exact course keeps x over its own deviation."""
    s2 = 0.3

    def variance(sigma: float) -> float:
        return (1 - sigma) ** 2 * s2 + sigma**2

    def error(steps: int) -> float:
        x = 1.0
        for row in step_table("flow_euler", CONFIG, steps).coefficients[: steps // 2]:
            sigma = row[TIME] / 1000
            output = (sigma - (1 - sigma) * s2) / variance(sigma) * x
            x = row[X_TERMS] @ (X * x + MODEL * output)
        return abs(x - variance(0.5) ** 0.5)

    assert 1.8 < error(40) / error(80) < 2.2


@pytest.mark.parametrize(
    ("solver", "raw", "options", "message"),
    [
        (
            "ddim",
            FLUX_DEV_SCHEDULER,
            {},
            "DDIMScheduler is for models of diffusion, this one .* flow matching",
        ),
        ("flow_euler", SD1, {}, "FlowMatchEulerDiscreteScheduler is for models of flow matching"),
        ("flow_euler", FLUX_DEV_SCHEDULER, {"shift": 0}, r"shift: 0 must be a number in 0\.01\.\.100"),
        ("flow_euler", FLUX_DEV_SCHEDULER, {"shift": 3, "eta": 1}, "eta: not an option of FlowMatch"),
        ("flow_euler", FLUX_DEV_SCHEDULER, {"time_shift_type": "linear", "base_shift": -5}, "would be -5"),
        ("flow_euler", FLUX_DEV_SCHEDULER, {"base_image_seq_len": 4096}, "base_image_seq_len: .* is not below"),
        ("flow_euler", FLUX_DEV_SCHEDULER, {"num_train_timesteps": 10}, "belongs to the checkpoint"),
    ],
)
def test_what_cannot_be(solver, raw, options, message):
    with pytest.raises(ValueError, match=message):
        step_table(solver, ScheduleConfig.from_json(raw), 4, options=options, tokens=256)


def test_options_of_flow_matching_are_unknown_to_diffusion():
    with pytest.raises(ValueError, match=r"shift: 3\.0 is not handled; use_dynamic_shifting: True is not handled"):
        ScheduleConfig.from_json({**SD1, "shift": 3.0, "use_dynamic_shifting": True})
    with pytest.raises(ValueError, match="invert_sigmas: True is not handled"):
        ScheduleConfig.from_json({**FLUX_DEV_SCHEDULER, "invert_sigmas": True})


def test_a_small_strength_leaves_one_step():
    assert len(step_table("flow_euler", CONFIG, 4, strength=0.0)) == 1
    assert len(step_table("flow_euler", CONFIG, 4, strength=0.1)) == 1
    assert len(step_table("flow_euler", CONFIG, 4, strength=0.3)) == 2
