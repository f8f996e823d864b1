"""Checkpoints of published sizes with random weights: what can be measured where no model can be fetched."""

from pathlib import Path

from bench import published
from builder.toy import write_random
from worker.families import FAMILIES
from worker.families.tiny import model_index, tokenizer

_SD15_SCHEDULER = FAMILIES["stable-diffusion"].tiny["sd1"]["scheduler"]
_SDXL_SCHEDULER = FAMILIES["stable-diffusion-xl"].tiny["sdxl"]["scheduler"]

PUBLISHED = {
    "sd15": (
        FAMILIES["stable-diffusion"],
        {
            "model_index": model_index("StableDiffusionPipeline", _SD15_SCHEDULER, ("text_encoder",)),
            "scheduler": _SD15_SCHEDULER,
            "tokenizer": tokenizer(pad="<|endoftext|>"),
            "text_encoder": published.SD15_TEXT_ENCODER,
            "unet": published.SD15_UNET,
            "vae": published.SD15_AUTOENCODER,
        },
    ),
    "sdxl": (
        FAMILIES["stable-diffusion-xl"],
        {
            "model_index": model_index(
                "StableDiffusionXLPipeline", _SDXL_SCHEDULER, ("text_encoder", "text_encoder_2")
            ),
            "scheduler": _SDXL_SCHEDULER,
            "tokenizer": tokenizer(pad="<|endoftext|>"),
            "tokenizer_2": tokenizer(pad="!"),
            "text_encoder": published.SDXL_TEXT_ENCODER,
            "text_encoder_2": published.SDXL_TEXT_ENCODER_2,
            "unet": published.SDXL_UNET,
            "vae": published.SDXL_AUTOENCODER,
        },
    ),
}
"""Name -> family and the JSON files of the checkpoint."""


def write_full_size(name: str, folder: Path) -> None:
    """Write a key of `PUBLISHED` in float32, in the layout of diffusers (4 GB for sd15, 14 GB for sdxl)."""
    family, files = PUBLISHED[name]
    write_random(family, files, folder)
