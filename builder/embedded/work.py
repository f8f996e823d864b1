"""The folder of the work: training set, tokeniser, checkpoints; and the whole training over it."""

import json
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from builder.embedded.captions import write_tokenizer
from builder.embedded.data import DataSet, load_data
from builder.embedded.networks import first_parameters, networks
from builder.embedded.recipe import AUTOENCODER_STAGE, DECODER_STAGE, DENOISER_STAGE, Stage
from builder.embedded.stages import (
    ENCODING,
    autoencoder_task,
    decode,
    decoder_task,
    denoiser_task,
    encode,
    scaling_factor,
)
from builder.embedded.training import State, Weights, first_state, load_state, train
from worker.errors import BuildError
from worker.text.clip import load_clip_tokenizer
from worker.weights.load import load
from worker.weights.manifest import read_manifest

log = logging.getLogger(__name__)

BAKED, SOURCE = "baked", "source"
"""Folders of a model: what the worker serves, and the layout of diffusers."""
NOTES, MEASURED = "training.json", "measured.json"
"""What it was trained with, and how good it is."""


@dataclass(frozen=True)
class Work:
    """Paths of one training; where `folder` has no checkpoint, it goes on from the weights in `model`."""

    folder: Path
    model: Path

    @property
    def data(self) -> Path:
        """The training set."""
        return self.folder / "data"

    @property
    def tokenizer(self) -> Path:
        """The tokeniser."""
        return self.folder / "tokenizer"

    @property
    def autoencoder(self) -> Path:
        """Checkpoint of the first stage."""
        return self.folder / "autoencoder.npz"

    @property
    def denoiser(self) -> Path:
        """Checkpoint of the second stage."""
        return self.folder / "denoiser.npz"

    @property
    def decoder(self) -> Path:
        """Checkpoint of the third stage."""
        return self.folder / "decoder.npz"


def prepare(work: Work) -> DataSet:
    """The training set and the tokeniser, made where they are missing.

    Raises BuildError where the weights to go on from were trained with other tokens: the packages have changed.
    """
    data = load_data(work.data)
    if not (work.tokenizer / "merges.txt").is_file():
        write_tokenizer(work.tokenizer, data)
    shipped = work.model / SOURCE / "tokenizer" / "merges.txt"
    if shipped.is_file() and shipped.read_bytes() != (work.tokenizer / "merges.txt").read_bytes():
        raise BuildError(f"{work.tokenizer}: not the tokens of {work.model}; move the latter away to begin anew")
    return data


def run(work: Work, minutes: float | None) -> None:
    """Train what is not trained yet, for so many minutes at most."""
    ends_at = time.monotonic() + (math.inf if minutes is None else 60 * minutes)
    data = prepare(work)
    first = autoencoder_state(work)
    if int(first.step) < AUTOENCODER_STAGE.steps:
        log.info("autoencoder: from step %d of %d", int(first.step), AUTOENCODER_STAGE.steps)
        first = train(autoencoder_task(data), first, work.autoencoder, ends_at)
        if int(first.step) < AUTOENCODER_STAGE.steps:
            return
    latents, scale = scaled_latents(first.average["vae"], data)
    log.info("autoencoder: %.1f dB, scaling factor %.5f", reconstruction(first.average["vae"], data), scale)
    second = denoiser_state(work)
    log.info("text encoder and UNet: from step %d of %d", int(second.step), DENOISER_STAGE.steps)
    second = train(denoiser_task(data, latents, load_clip_tokenizer(work.tokenizer)), second, work.denoiser, ends_at)
    if int(second.step) < DENOISER_STAGE.steps:
        return
    third = decoder_state(work, first.average["vae"])
    log.info("decoder: from step %d of %d", int(third.step), DECODER_STAGE.steps)
    train(decoder_task(data, first.average["vae"]), third, work.decoder, ends_at)


def autoencoder_state(work: Work) -> State:
    """Where the first stage stands."""
    return _state(work, work.autoencoder, AUTOENCODER_STAGE, ("vae",))


def denoiser_state(work: Work) -> State:
    """Where the second stage stands."""
    return _state(work, work.denoiser, DENOISER_STAGE, ("text_encoder", "unet"))


def decoder_state(work: Work, autoencoder: dict[str, Array]) -> State:
    """Where the third stage stands, which begins with the decoder of the first."""
    decoder = {name: array for name, array in autoencoder.items() if not name.startswith(ENCODING)}
    new = first_state(DECODER_STAGE, {"decoder": decoder}, _shipped_steps(work).get("decoder", 0))
    return load_state(work.decoder, new) or new


def _state(work: Work, checkpoint: Path, stage: Stage, parts: tuple[str, ...]) -> State:
    """The last checkpoint, else the weights in the model with a new optimizer, else the state before the first step."""
    shapes = {part: networks()[part].shapes for part in parts}
    new = first_state(stage, {part: first_parameters(part, shapes[part]) for part in parts})
    if saved := load_state(checkpoint, new):
        return saved
    steps = _shipped_steps(work)
    if not steps:
        return new
    manifest = read_manifest(work.model / BAKED)
    model = load(work.model / BAKED, manifest, {part: network.shapes for part, network in networks().items()})
    weights = {
        part: {name: jnp.asarray(np.asarray(array, np.float32)) for name, array in model[part].items()}
        for part in parts
    }
    return first_state(stage, weights, steps[parts[0]])


def _shipped_steps(work: Work) -> dict[str, int]:
    notes = work.model / NOTES
    return json.loads(notes.read_text("utf-8"))["steps"] if notes.is_file() else {}


def averages(work: Work) -> tuple[Weights, dict[str, int]]:
    """The weights to ship, by part, and the steps behind them; raises BuildError before the second stage's first."""
    states = autoencoder_state(work), denoiser_state(work)
    if int(states[1].step) == 0:
        raise BuildError(f"{work.denoiser}: not there yet; train first")
    third = decoder_state(work, states[0].average["vae"])
    steps = {part: int(state.step) for state in (*states, third) for part in state.average}
    whole = states[0].average["vae"] | third.average["decoder"]
    return {"vae": whole, **states[1].average}, steps


def scaled_latents(weights: dict[str, Array], data: DataSet) -> tuple[NDArray[np.float32], float]:
    """All pictures as the UNet sees them, and their scaling factor."""
    scale = scaling_factor(encode(weights, data.pictures[data.emoji]))
    return encode(weights, data.pictures) * np.float32(scale), scale


def reconstruction(weights: dict[str, Array], data: DataSet) -> float:
    """Mean peak signal-to-noise ratio of the emoji after encoding and decoding, in dB."""
    pictures = data.pictures[data.emoji]
    error = decode(weights, encode(weights, pictures)).astype(np.float32) - pictures
    squares = np.mean(np.square(error), axis=(1, 2, 3))
    return float(np.mean(10 * np.log10(255**2 / np.maximum(squares, 1e-3))))
