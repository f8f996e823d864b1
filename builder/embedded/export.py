"""The trained weights as a model: a folder in the layout of diffusers, the baked one, and the card."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from builder.convert import convert
from builder.embedded.card import card
from builder.embedded.networks import CONFIGS
from builder.embedded.recipe import MODEL_INDEX, SCHEDULER
from builder.embedded.stages import encode, scaling_factor
from builder.embedded.training import Weights
from builder.embedded.work import BAKED, NOTES, SOURCE, Work, averages, prepare, reconstruction
from builder.published import CARD, INDEX
from builder.published import SCHEDULER as SCHEDULER_FILE
from worker.families.presets import EMBEDDED
from worker.families.stable_diffusion import STABLE_DIFFUSION
from worker.weights.manifest import Dtype
from worker.weights.mapping import to_published
from worker.weights.tensors import write_tensors

HALF = np.dtype(ml_dtypes.bfloat16)


def export(work: Work, dtype: Dtype) -> None:
    """Write the last checkpoint as `work.model`: `source`, `baked` and notes for going on from it without checkpoints.

    Weights are rounded to bfloat16 in the source, whatever the dtype of the baked folder. Raises BuildError where
    nothing is trained.
    """
    weights, steps = averages(work)
    data = prepare(work)
    scale = scaling_factor(encode(weights["vae"], data.pictures[data.emoji]))
    notes = {
        "steps": steps,
        "emoji": len(data.emoji),
        "reconstruction_db": round(reconstruction(weights["vae"], data), 2),
        "parameters": {part: sum(array.size for array in found.values()) for part, found in weights.items()},
    }
    staged = work.folder / "export" / EMBEDDED
    shutil.rmtree(staged, ignore_errors=True)
    write_source(staged, weights, work.tokenizer, scale)
    work.model.mkdir(parents=True, exist_ok=True)
    (work.model / NOTES).write_text(json.dumps(notes, indent=2) + "\n", encoding="utf-8")
    (staged / CARD).write_text(card(work.model), encoding="utf-8")
    convert(staged, work.model / BAKED, dtype, force=True)
    shutil.rmtree(work.model / SOURCE, ignore_errors=True)
    shutil.move(staged, work.model / SOURCE)
    write_cards(work.model)


def write_source(folder: Path, weights: Weights, tokenizer: Path, scale: float) -> None:
    """A folder that `diffusers.DiffusionPipeline.from_pretrained` loads."""
    _write_json(folder / INDEX, MODEL_INDEX)
    _write_json(folder / SCHEDULER_FILE, SCHEDULER)
    shutil.copytree(tokenizer, folder / "tokenizer")
    for part in STABLE_DIFFUSION.parts:
        config = CONFIGS[part.name] | ({"scaling_factor": scale} if part.role == "autoencoder" else {})
        _write_json(folder / part.name / "config.json", config)
        tensors = {name: to_published(np.asarray(array, HALF)) for name, array in sorted(weights[part.name].items())}
        specs = {name: jax.ShapeDtypeStruct(tensor.shape, HALF) for name, tensor in tensors.items()}
        path = folder / part.name / f"{part.stem}.safetensors"
        write_tensors(path, specs, iter(tensors.values()), metadata={"format": "pt"})


def write_cards(model: Path) -> None:
    """The card, with what was measured so far, for the model and for its source."""
    for folder in (model, model / SOURCE):
        (folder / CARD).write_text(card(model), encoding="utf-8")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
