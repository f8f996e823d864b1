"""The whole job, through builder and service, against diffusers' own picture: within 1 level of 255."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.diffusers_pictures import picture
from tests.jobs import Toy, decode_picture, encode_picture, half_mask, photograph, run

SOLVERS = [
    "DDIMScheduler",
    "DDPMScheduler",
    "PNDMScheduler",
    "LMSDiscreteScheduler",
    "EulerDiscreteScheduler",
    "EulerAncestralDiscreteScheduler",
    "HeunDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSinglestepScheduler",
    "UniPCMultistepScheduler",
    "DEISMultistepScheduler",
    "LCMScheduler",
    "TCDScheduler",
    "DPM++ 2M Karras",
    "DPM++ 2M SDE",
    "DPM++ 3M SDE",
]
VARIANTS = ["sd1", "sd1-inpaint", "sd2", "sdxl", "sdxl-inpaint"]
SIZES = [(72, 104), (136, 64)]
STEPS = [1, 2, 4, 9, 20]
GUIDANCE = [0.0, 1.0, 7.5]
MODES = ["text", "image", "mask"]

Case = tuple[str, str, str, tuple[int, int], int, float]


def grid() -> list[Case]:
    cases = itertools.product(VARIANTS, SOLVERS, MODES, SIZES, STEPS, GUIDANCE)
    # A UNet made for in-painting does nothing else.
    return [case for case in cases if not case[0].endswith("inpaint") or case[2] == "mask"]


def covering() -> Iterator[Case]:
    """Every variant with every solver in every mode; sizes, steps and guidance in rotation."""
    for index, (variant, solver, mode) in enumerate(itertools.product(VARIANTS, SOLVERS, MODES)):
        if not variant.endswith("inpaint") or mode == "mask":
            # Divisors without a common factor, so that every pairing occurs.
            size, steps, guidance = SIZES[index % 2], STEPS[index % 5], GUIDANCE[index // 2 % 3]
            yield variant, solver, mode, size, steps, guidance


def cases(chosen: list[Case]) -> list[Any]:
    return [pytest.param(*case, marks=pytest.mark.xdist_group(case[0]), id="-".join(map(str, case))) for case in chosen]


def check(toy: Toy, job: dict[str, Any], image: Image.Image | None = None, mask: Image.Image | None = None) -> None:
    sent = dict(job)
    if image is not None:
        sent["image"] = encode_picture(image)
    if mask is not None:
        sent["mask"] = encode_picture(mask)
    found = decode_picture(run(toy.service, sent)["images"][0]).astype(int)
    expected = picture(toy.source, job, image, mask).astype(int)
    assert found.shape == expected.shape
    assert np.ptp(expected) > 20, "a picture without contrast shows nothing"
    assert np.abs(found - expected).max() <= 1


def check_case(
    toy: Callable[[str], Toy],
    variant: str,
    solver: str,
    mode: str,
    size: tuple[int, int],
    steps: int,
    guidance: float,
) -> None:
    width, height = size
    job: dict[str, Any] = {
        "prompt": "a red fox in the snow",
        "negative_prompt": "blurry, grey",
        "width": width,
        "height": height,
        "scheduler": solver,
        "num_inference_steps": steps,
        "guidance_scale": guidance,
        "seed": 1234,
    }
    image = mask = None
    if mode != "text":
        image = photograph(width, height)
        job["strength"] = 1.0 if steps == 1 else 0.7
    if mode == "mask":
        mask = half_mask(width, height)
    check(toy(variant), job, image, mask)


@pytest.mark.parametrize(("variant", "solver", "mode", "size", "steps", "guidance"), cases(list(covering())))
def test_picture_equals_that_of_diffusers(toy, variant, solver, mode, size, steps, guidance):
    check_case(toy, variant, solver, mode, size, steps, guidance)


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "solver", "mode", "size", "steps", "guidance"), cases(grid()))
def test_whole_grid(toy, variant, solver, mode, size, steps, guidance):
    check_case(toy, variant, solver, mode, size, steps, guidance)
