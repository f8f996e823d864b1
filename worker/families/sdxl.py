"""Stable Diffusion XL (Podell et al. 2023, arXiv 2307.01952): base, in-painting, Turbo, Lightning and fine-tunes."""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from worker.families.family import Defaults, Family, TextCondition
from worker.families.presets import checkpoint_defaults
from worker.families.stable_diffusion import AUTOENCODER, UNET, all_positions, text_encoder
from worker.families.tiny import autoencoder, clip_text, model_index, scheduler, tokenizer, unet

if TYPE_CHECKING:
    from worker.models.clip_text import CLIPTextOutput


def _compose_text(outputs: "tuple[CLIPTextOutput, ...]") -> TextCondition:
    return TextCondition(jnp.concatenate([output.penultimate for output in outputs], axis=-1), outputs[-1].pooled)


def _tiny(pipeline: str, scheduler_json: dict[str, Any], in_channels: int = 4):
    return {
        "model_index": model_index(pipeline, scheduler_json, ("text_encoder", "text_encoder_2"))
        | {"force_zeros_for_empty_prompt": True},
        "scheduler": scheduler_json,
        "tokenizer": tokenizer(pad="<|endoftext|>"),
        "tokenizer_2": tokenizer(pad="!"),
        "text_encoder": clip_text(
            hidden_size=40,
            num_hidden_layers=3,
            num_attention_heads=5,
            intermediate_size=72,
            hidden_act="quick_gelu",
        ),
        "text_encoder_2": clip_text(
            hidden_size=56,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=104,
            hidden_act="gelu",
            projection_dim=44,
        ),
        "unet": unet(
            attention=(False, True, True),
            in_channels=in_channels,
            cross_attention_dim=96,
            attention_head_dim=[2, 4, 6],
            use_linear_projection=True,
            transformer_layers_per_block=[1, 2, 3],
            addition_embed_type="text_time",
            addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=44 + 6 * 8,
        ),
        "vae": autoencoder(scaling_factor=0.13025, force_upcast=True),
    }


_SCHEDULE = {
    "steps_offset": 1,
    "timestep_spacing": "leading",
    "clip_sample": False,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "interpolation_type": "linear",
}
_EULER = scheduler("EulerDiscreteScheduler", **_SCHEDULE)

STABLE_DIFFUSION_XL = Family(
    name="stable-diffusion-xl",
    pipelines=(
        "StableDiffusionXLPipeline",
        "StableDiffusionXLImg2ImgPipeline",
        "StableDiffusionXLInpaintPipeline",
    ),
    parts=(
        text_encoder("text_encoder", projected=False),
        text_encoder("text_encoder_2", projected=True),
        UNET,
        AUTOENCODER,
    ),
    compose_text=_compose_text,
    max_tokens=all_positions,
    size_conditioning=True,
    true_guidance=False,
    zero_empty_negative=True,
    default_scaling_factor=0.13025,
    default_sample_size=128,
    defaults=partial(checkpoint_defaults, Defaults(num_inference_steps=50, guidance_scale=5.0, strength=0.3)),
    tiny={
        "sdxl": _tiny(
            "StableDiffusionXLPipeline",
            _EULER,
        ),
        "sdxl-inpaint": _tiny(
            "StableDiffusionXLInpaintPipeline",
            _EULER,
            in_channels=9,
        ),
        "sdxl-turbo": _tiny(
            "StableDiffusionXLPipeline",
            scheduler("EulerAncestralDiscreteScheduler", **{**_SCHEDULE, "timestep_spacing": "trailing"}),
        ),
    },
)
