"""Checkpoints of published sizes with random weights: what can be measured where no model can be fetched."""

from hashlib import sha256
from pathlib import Path

from bench import published
from builder.toy import write_random, write_tokenizer
from worker.families import FAMILIES
from worker.families.tiny import model_index, tokenizer
from worker.weights.manifest import BakedPart, Manifest, write_manifest

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


def write_hollow(name: str, folder: Path) -> None:
    """Write a baked folder of a key of `PUBLISHED` without its weights: all that compiling needs.

    bfloat16, but for an autoencoder with `force_upcast`, as the builder has it.
    """
    family, files = PUBLISHED[name]
    nothing = sha256(b"").hexdigest()
    folder.mkdir(parents=True)
    for encoder, tokens in zip(family.text_encoders, family.tokenizers, strict=True):
        write_tokenizer(folder / tokens, files[tokens], files[encoder]["vocab_size"])
    parts = {
        part.name: BakedPart(
            config=files[part.name],
            file=f"{part.name}.safetensors",
            dtype="float32" if files[part.name].get("force_upcast") else "bfloat16",
            sha256=nothing,
            size_bytes=0,
        )
        for part in family.parts
    }
    manifest = Manifest(
        converter_version=0,
        source=name,
        revision=None,
        content_sha256=nothing,
        licence=None,
        family=family.name,
        dtype="bfloat16",
        parts=parts,
        tokenizers={},
        scheduler=files["scheduler"],
        model_index=files["model_index"],
    )
    write_manifest(folder, manifest)
