"""The model's card, made from the recipe and from what was measured."""

import json
from pathlib import Path
from typing import Any

from builder.embedded.recipe import (
    AUTOENCODER_STAGE,
    DENOISER_STAGE,
    DROPPED_CAPTIONS,
    LATENT_CHANNELS,
    RECOLOURED,
    SIDE,
)
from builder.embedded.work import MEASURED, NOTES

TEMPLATE = Path(__file__).with_name("card.md")
QUALITY = (
    "For {names} names of the training set, at seed {seed} with {steps} steps and guidance {guidance:g}, the named "
    "emoji is the nearest of all in {top_1:.0%}, among the three nearest in {top_3:.0%} (squared distance of pixels). "
    "{baseline}"
    'Of prompts "colour thing", most of which have no emoji, {colour_followed:.0%} give the colour asked for. '
    "`names.png` shows pictures beside the emoji of that name, `colours.png` the colours."
)


def card(model: Path) -> str:
    """The text of the card of the model in that folder."""
    notes = json.loads((model / NOTES).read_text("utf-8"))
    return TEMPLATE.read_text("utf-8").format(
        parameters=sum(notes["parameters"].values()) / 1e6,
        side=SIDE,
        emoji=notes["emoji"],
        recoloured=RECOLOURED,
        channels=LATENT_CHANNELS,
        autoencoder_steps=notes["steps"]["vae"],
        autoencoder_batch=AUTOENCODER_STAGE.batch,
        denoiser_steps=notes["steps"]["unet"],
        denoiser_batch=DENOISER_STAGE.batch,
        decoder_steps=notes["steps"]["decoder"],
        planned=DENOISER_STAGE.steps,
        dropped=DROPPED_CAPTIONS,
        reconstruction_db=notes["reconstruction_db"],
        quality=_quality(model / MEASURED),
    )


def _quality(measured: Path) -> str:
    if not measured.is_file():
        return "Not measured yet."
    found: dict[str, Any] = json.loads(measured.read_text("utf-8"))
    job = found["job"]
    random = found.get("random_top_3")
    baseline = "" if random is None else f"The same networks with random weights: {random:.1%}. "
    return QUALITY.format(
        baseline=baseline,
        seed=job["seed"],
        steps=job["num_inference_steps"],
        guidance=job["guidance_scale"],
        **{name: found[name] for name in ("names", "top_1", "top_3", "colour_followed")},
    )
