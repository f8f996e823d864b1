"""Make docs/parity.png: `uv run --group reference python -m docs.picture`."""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from builder.convert import convert
from builder.toy import write_toy
from tests.diffusers_pictures import picture
from tests.jobs import decode_picture, run
from worker.engine.loading import load_engine
from worker.service import Service
from worker.settings import Settings
from worker.storage import inline_store

SCHEDULERS = ("DDIM", "Euler a", "DPM++ 2M Karras")
SIDE = 128


def main() -> None:
    """One row per scheduler: this worker, diffusers, and their difference times 100."""
    with tempfile.TemporaryDirectory() as folder:
        source, model_dir = Path(folder) / "sdxl", Path(folder) / "baked"
        write_toy("sdxl", source)
        convert(source, model_dir, "float32")
        service = Service(load_engine(Settings(model_dir=model_dir)), inline_store, 10_000_000)
        rows = [np.concatenate(_row(service, source, scheduler), axis=1) for scheduler in SCHEDULERS]
    sheet = Image.fromarray(np.concatenate(rows))
    sheet.save(Path(__file__).parent / "parity.png", optimize=True)


def _row(service: Service, source: Path, scheduler: str) -> list[np.ndarray]:
    job = {
        "prompt": "a castle by the ocean at sunset",
        "width": SIDE,
        "height": SIDE,
        "scheduler": scheduler,
        "num_inference_steps": 20,
        "guidance_scale": 5.0,
        "seed": 42,
    }
    ours = decode_picture(run(service, job)["images"][0])
    theirs = picture(source, job)
    difference = np.abs(ours.astype(int) - theirs.astype(int))
    return [ours, theirs, np.clip(difference * 100, 0, 255).astype(np.uint8)]


if __name__ == "__main__":
    main()
