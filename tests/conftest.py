"""Toy checkpoints, baked once per run, and engines over them."""

import base64
import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

# Toy programs run in milliseconds and compile in many seconds: compile them quickly. Set before JAX starts.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

from builder.convert import convert
from builder.toy import write_toy
from worker.engine.engine import load_engine
from worker.service import Service
from worker.settings import Settings
from worker.storage import inline_store


class Toy(NamedTuple):
    """A toy checkpoint: its diffusers-layout folder, its baked folder and a service over the latter."""

    source: Path
    model_dir: Path
    service: Service


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Toy]:
    """`toy("sd1")`: made, baked and loaded when first asked for."""
    made: dict[str, Toy] = {}

    def get(variant: str) -> Toy:
        if variant not in made:
            folder = tmp_path_factory.mktemp(variant)
            source, model_dir = folder / "source", folder / "baked"
            write_toy(variant, source)
            convert(source, model_dir, dtype="float32")
            engine = load_engine(Settings(model_dir=model_dir))
            made[variant] = Toy(source, model_dir, Service(engine, inline_store, 50_000_000))
        return made[variant]

    return get


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
