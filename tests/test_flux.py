"""The whole job of FLUX.1, through builder and service, against diffusers' own picture: within 1 level of 255."""

from typing import Any

import pytest

from tests.jobs import half_mask, photograph
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
