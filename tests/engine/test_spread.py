"""One worker with several devices: its passes are spread over them, and its pictures are those of one device."""

import json
import os
from typing import Any

import numpy as np
import pytest

from tests.engine.test_stored_programs import process
from tests.jobs import JOB, decode_picture, run

DEVICES = 3
FIVE = {"num_images": 5, "num_inference_steps": 3}


def spread(toy: Any, cache: Any, job: dict[str, Any]) -> dict[str, Any]:
    """A worker's account of one job, with as many devices as the CPU is told to be."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    environment = {"XLA_FLAGS": flags, "MODEL_DIR": str(toy.model_dir), "MAX_SLOTS": "1", "PROGRAM_CACHE": str(cache)}
    return json.loads(process("tests.engine.served", json.dumps(job), **environment))


def passes(keys: list[list[Any]]) -> set[tuple[int, ...]]:
    """Places of the passes, and the devices that carry them where there are several."""
    return {(key[1], *key[5:]) for key in keys if key[0] == "advance"}


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        pytest.param("sd1", {"scheduler": "K_EULER_ANCESTRAL"}, marks=pytest.mark.xdist_group("sd1")),
        pytest.param("sdxl", {}, marks=pytest.mark.xdist_group("sdxl")),
        pytest.param(
            "flux",
            {"width": 80, "height": 112, "guidance_scale": 3.5, "negative_prompt": ""},
            marks=pytest.mark.xdist_group("flux"),
        ),
    ],
)
def test_several_devices_make_the_pictures_of_one(toy, tmp_path, variant, changes):
    made, job = toy(variant), FIVE | changes
    told = spread(made, tmp_path, job)
    assert "error" not in told["answer"], told["answer"]
    assert (DEVICES, DEVICES) in passes(told["programs_compiled"])
    for index, found in enumerate(told["answer"]["images"]):
        alone = run(made.service, JOB | job | {"num_images": 1, "seed": JOB["seed"] + index})
        difference = decode_picture(found).astype(int) - decode_picture(alone["images"][0])
        # A CPU that is several devices adds up in another order: a rounding at the edge of a level.
        assert np.abs(difference).max() <= 1


@pytest.mark.xdist_group("sd1")
def test_spread_programs_are_stored_and_tried(toy, tmp_path):
    spread(toy("sd1"), tmp_path, FIVE)
    again = spread(toy("sd1"), tmp_path, FIVE)
    assert again["compiled"] == []
    assert again["faults"] == []
    assert (DEVICES, DEVICES) in passes(again["programs_loaded"])
