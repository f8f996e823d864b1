"""What the model is worth: asked through the worker's own service, judged by the nearest emoji in pixels."""

import base64
import json
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from builder.convert import convert
from builder.embedded.data import COLOURS, DataSet, prevailing_hue
from builder.embedded.networks import CONFIGS
from builder.embedded.recipe import MODEL_INDEX, SCHEDULER, TOKENIZER
from builder.embedded.work import BAKED, MEASURED, Work, prepare
from builder.toy import write_random
from worker.engine.loading import load_engine
from worker.errors import GenerationError
from worker.families.presets import EMBEDDED_GUIDANCE, EMBEDDED_STEPS
from worker.families.stable_diffusion import STABLE_DIFFUSION
from worker.service import Service
from worker.settings import Settings
from worker.storage import inline_store

log = logging.getLogger(__name__)

NAMES = 200
BEST = 3
SEED = 0
JOB: dict[str, Any] = {
    "num_inference_steps": EMBEDDED_STEPS,
    "guidance_scale": EMBEDDED_GUIDANCE,
    "seed": SEED,
    "metadata": False,
}
THINGS = ("heart", "circle", "square", "book", "apple", "car", "t-shirt", "fish")
"""Asked for in every colour; few of the pairs have an emoji."""
NEAR_HUE = 25.0


def evaluate(work: Work, *, baseline: bool) -> dict[str, Any]:
    """Measure `work.model`, write the numbers and two contact sheets beside it, and return the numbers."""
    data = prepare(work)
    service = service_of(work.model / BAKED)
    asked: list[int] = np.random.default_rng(SEED).choice(data.emoji, NAMES, replace=False).tolist()
    made = np.stack([picture_of(service, data.names[i]) for i in asked])
    ranks = ranks_of_named(made, asked, data)
    colours = np.stack([picture_of(service, f"{colour} {thing}") for thing in THINGS for colour in COLOURS])
    targets = [hue for _ in THINGS for hue in COLOURS.values()]
    measured: dict[str, Any] = {
        "names": NAMES,
        "job": JOB,
        "top_1": float(np.mean(ranks < 1)),
        "top_3": float(np.mean(ranks < BEST)),
        "colour_followed": float(
            np.mean([_is_of(picture, hue) for picture, hue in zip(colours, targets, strict=True)])
        ),
    }
    if baseline:
        measured["random_top_3"] = random_baseline(asked, data)
    (work.model / MEASURED).write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    pairs = np.concatenate([made, data.pictures[asked]], axis=2)
    Image.fromarray(sheet(pairs[:96], 8)).save(work.model / "names.png", optimize=True)
    Image.fromarray(sheet(colours, len(COLOURS))).save(work.model / "colours.png", optimize=True)
    log.info("%s", measured)
    return measured


def service_of(model_dir: Path) -> Service:
    """The worker's service over a baked folder; its answers carry their pictures."""
    settings = replace(Settings(), model_dir=model_dir)
    return Service(load_engine(settings), inline_store, settings.max_inline_bytes)


def picture_of(service: Service, prompt: str, **fields: Any) -> NDArray[np.uint8]:
    """The answer to one prompt, RGB [H, W, 3]; raises GenerationError where it is an error."""
    answer = service.run({"id": "evaluation", "input": {**JOB, "prompt": prompt, **fields}})
    if "error" in answer:
        raise GenerationError(answer["error"])
    return np.asarray(Image.open(BytesIO(base64.b64decode(answer["images"][0].partition(",")[2]))).convert("RGB"))


def ranks_of_named(made: NDArray[np.uint8], asked: Sequence[int], data: DataSet) -> NDArray[np.int64]:
    """How many emoji of another name are nearer to each picture than the nearest of its own name."""
    emoji = data.pictures[data.emoji].reshape(len(data.emoji), -1).astype(np.float32)
    names = np.array(data.own_names)
    ranks: list[int] = []
    for picture, i in zip(made, asked, strict=True):
        distances: NDArray[np.float32] = np.square(emoji - picture.reshape(-1)).sum(axis=1)
        own = names == data.names[i]
        ranks.append(int(np.sum(distances[~own] < distances[own].min())))
    return np.array(ranks)


def random_baseline(asked: Sequence[int], data: DataSet) -> float:
    """The share within the best three of the same networks with random weights."""
    files = {**CONFIGS, "model_index": MODEL_INDEX, "scheduler": SCHEDULER, "tokenizer": TOKENIZER}
    with tempfile.TemporaryDirectory() as folder:
        write_random(STABLE_DIFFUSION, files, Path(folder) / "random")
        convert(Path(folder) / "random", Path(folder) / "baked", "float32")
        service = service_of(Path(folder) / "baked")
        made = np.stack([picture_of(service, data.names[i]) for i in asked])
    return float(np.mean(ranks_of_named(made, asked, data) < BEST))


def sheet(pictures: Sequence[NDArray[np.uint8]] | NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """Pictures in rows, the last filled up with white."""
    missing = -len(pictures) % columns
    cells = [*pictures, *[np.full_like(pictures[0], 255)] * missing]
    return np.concatenate(
        [np.concatenate(cells[begin : begin + columns], axis=1) for begin in range(0, len(cells), columns)]
    )


def _is_of(picture: NDArray[np.uint8], hue: float) -> bool:
    found = prevailing_hue(picture)
    return found is not None and abs((found - hue + 180) % 360 - 180) <= NEAR_HUE
