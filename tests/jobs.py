"""What tests of whole jobs share: inputs, and reading answers."""

import base64
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from worker.service import Service

JOB: dict[str, Any] = {
    "prompt": "a red fox in the snow",
    "negative_prompt": "blurry",
    "width": 72,
    "height": 104,
    "num_inference_steps": 4,
    "guidance_scale": 7.5,
    "seed": 3,
}
"""A small job of four steps with guidance."""


class Toy(NamedTuple):
    """A toy checkpoint: its diffusers-layout folder, its baked folder and a service over the latter."""

    source: Path
    model_dir: Path
    service: Service


def decode_picture(data_url: str) -> np.ndarray:
    """A picture of an answer -> RGB [H, W, 3]."""
    return np.asarray(Image.open(BytesIO(base64.b64decode(data_url.partition(",")[2]))))


def encode_picture(image: Image.Image) -> str:
    """A picture -> base64 of its PNG, as a job carries it."""
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """A smooth random colour picture, as an input."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def half_mask(width: int, height: int) -> Image.Image:
    """White on the right and in a notch, black elsewhere."""
    pixels = np.zeros((height, width), np.uint8)
    pixels[:, width // 2 + 3 :] = 255
    pixels[height // 3 : height // 2, width // 4 :] = 255
    return Image.fromarray(pixels)


def run(service: Service, job: dict[str, Any]) -> dict[str, Any]:
    """Run a job's input; its answer must not be an error."""
    answer = service.run({"id": "test", "input": job})
    assert "error" not in answer, answer
    return answer
