"""The whole job of FLUX.1, through builder and service, against diffusers' own picture: within 1 level of 255."""

from typing import Any

import pytest

from tests.jobs import half_mask, photograph, run
from tests.test_pictures import check

JOB: dict[str, Any] = {"prompt": "a red fox in the snow", "width": 80, "height": 112, "seed": 1234}


def inputs(mode: str, job: dict[str, Any]) -> dict[str, Any]:
    size = (job["width"], job["height"])
    image = None if mode == "text" else photograph(*size)
    return {"image": image, "mask": half_mask(*size) if mode == "mask" else None}


def cases(variant: str, *changes: dict[str, Any]) -> list[Any]:
    mark = pytest.mark.xdist_group(variant)
    return [pytest.param(variant, mode, change, marks=mark) for change in changes for mode in ("text", "image", "mask")]


SCHNELL = cases(
    "flux",
    {"num_inference_steps": 4},
    {"num_inference_steps": 1, "strength": 1.0},
    {"num_inference_steps": 9, "width": 64, "height": 64, "strength": 0.35},
    {"num_inference_steps": 3, "true_cfg_scale": 4.0, "negative_prompt": "blurry, grey"},
    {"num_inference_steps": 5, "scheduler_options": {"shift": 3.0}},
    {"num_inference_steps": 4, "scheduler_options": {"use_dynamic_shifting": True, "time_shift_type": "linear"}},
)
DEV = cases(
    "flux-dev",
    {"num_inference_steps": 28, "guidance_scale": 3.5},
    {"num_inference_steps": 6, "guidance_scale": 1.0, "width": 208, "height": 64, "strength": 0.9},
    {"num_inference_steps": 2, "guidance_scale": 7.0},
    {"num_inference_steps": 4, "guidance_scale": 2.5, "true_cfg_scale": 3.0, "negative_prompt": ""},
    {"num_inference_steps": 7, "guidance_scale": 3.5, "scheduler": "Flow Euler Karras"},
    {"num_inference_steps": 5, "scheduler_options": {"use_dynamic_shifting": False}},
)


@pytest.mark.parametrize(("variant", "mode", "change"), SCHNELL + DEV, ids=str)
def test_picture_equals_that_of_diffusers(toy, variant, mode, change):
    job = JOB | ({"strength": 0.7} if mode != "text" else {}) | change
    if mode == "text":
        job.pop("strength", None)
    if variant == "flux-dev":
        job.setdefault("guidance_scale", 3.5)
    check(toy(variant), job, **inputs(mode, job))


def refused(toy, variant: str, job: dict[str, Any]) -> str:
    answer = toy(variant).service.run({"id": "x", "input": job})
    assert list(answer) == ["error"]
    return answer["error"]


@pytest.mark.xdist_group("flux")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"width": 72}, "width: 72 is not allowed (the image's, if none was given): 64 to 4096 in steps of 16"),
        ({"scheduler": "DDIM"}, "scheduler: DDIMScheduler is for models of diffusion"),
        ({"target_size": [64, 64]}, "target_size: this model is not told sizes"),
        ({"scheduler_options": {"num_train_timesteps": 10}}, "num_train_timesteps: belongs to the checkpoint"),
    ],
)
def test_what_flux_cannot_do_is_named(toy, change, words):
    assert words in refused(toy, "flux", JOB | change)


@pytest.mark.xdist_group("sd1")
def test_flow_matching_and_true_guidance_are_for_flux(toy):
    job = {"prompt": "a fox", "width": 64, "height": 64}
    assert "is for models of flow matching" in refused(toy, "sd1", job | {"scheduler": "Flow Euler"})
    assert "true_cfg_scale: this model has one scale" in refused(toy, "sd1", job | {"true_cfg_scale": 3})


@pytest.mark.xdist_group("flux")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"guidance_scale": 7.5}, "guidance_scale: this model was trained without"),
        ({"true_cfg_scale": 3.0}, "true_cfg_scale: has no effect without a negative_prompt"),
        ({"negative_prompt": "grey"}, "negative_prompt: has no effect without guidance (true_cfg_scale above 1)"),
        ({"prompt": "word " * 100}, "prompt:"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_not_done_as_asked_is_warned_of(toy, change, words):
    warnings = run(toy("flux").service, JOB | {"num_inference_steps": 1} | change)["warnings"]
    assert len(warnings) == 1
    assert warnings[0].startswith(words)


@pytest.mark.parametrize(
    ("variant", "steps", "guidance"),
    [
        pytest.param("flux", 4, 0.0, marks=pytest.mark.xdist_group("flux")),
        pytest.param("flux-dev", 28, 3.5, marks=pytest.mark.xdist_group("flux-dev")),
    ],
)
def test_what_a_job_leaves_out_is_the_checkpoints(toy, variant, steps, guidance):
    used = run(toy(variant).service, {"prompt": "a fox"})["used"]
    assert (used["num_inference_steps"], used["guidance_scale"]) == (steps, guidance)
    assert (used["width"], used["height"], used["true_cfg_scale"]) == (64, 64, 1.0)
    assert used["scheduler"] == "FlowMatchEulerDiscreteScheduler"
