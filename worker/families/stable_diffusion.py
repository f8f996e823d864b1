"""Stable Diffusion 1.x and 2.x (Rombach et al. 2022, arXiv 2112.10752), in-painting and LCM checkpoints included."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from worker.families.family import Defaults, Family, Part, TextCondition
from worker.families.presets import checkpoint_defaults
from worker.families.tiny import autoencoder, clip_text, model_index, scheduler, tokenizer, unet
from worker.models.autoencoder_config import AutoencoderConfig
from worker.models.clip_text_config import CLIPTextConfig
from worker.models.unet_config import UNetConfig
from worker.nn.kernels import Kernels

if TYPE_CHECKING:
    from flax import nnx

    from worker.models.clip_text import CLIPTextOutput

# The modules, and Flax with them, are imported where one is built: stored programs need none of them.


def _unet(config: UNetConfig, kernels: Kernels) -> "nnx.Module":
    from worker.models.unet import UNet

    return UNet(config, kernels)


def _autoencoder(config: AutoencoderConfig, kernels: Kernels) -> "nnx.Module":
    from worker.models.autoencoder import Autoencoder

    return Autoencoder(config, kernels)


def _clip_text(config: CLIPTextConfig, kernels: Kernels) -> "nnx.Module":
    from worker.models.clip_text import CLIPText

    return CLIPText(config, kernels)


UNET = Part("unet", "denoiser", "unet", ("UNet2DConditionModel",), UNetConfig.from_json, _unet, eight_bits=True)
AUTOENCODER = Part("vae", "autoencoder", "autoencoder", ("AutoencoderKL",), AutoencoderConfig.from_json, _autoencoder)


def text_encoder(name: str, *, projected: bool) -> Part:
    """A CLIP text encoder; `projected` says that its pooled output has a projection."""
    classes = ("CLIPTextModel", "CLIPTextModelWithProjection")
    parse = partial(CLIPTextConfig.from_json, projected=projected)
    return Part(name, "text_encoder", "clip_text", classes, parse, _clip_text)


def all_positions(configs: Mapping[str, Any]) -> tuple[int, ...]:
    """As many token ids as each CLIP text encoder has positions for."""
    return tuple(config.max_position_embeddings for config in configs.values() if isinstance(config, CLIPTextConfig))


def _compose_text(outputs: "tuple[CLIPTextOutput, ...]") -> TextCondition:
    return TextCondition(outputs[0].last, None)


def _tiny(pipeline: str, scheduler_json: dict[str, Any], unet_json: dict[str, Any], text_json: dict[str, Any]):
    return {
        "model_index": model_index(pipeline, scheduler_json, ("text_encoder",)),
        "scheduler": scheduler_json,
        "tokenizer": tokenizer(pad=text_json.pop("pad")),
        "text_encoder": clip_text(**text_json),
        "unet": unet(attention=(True, True, False), **unet_json),
        "vae": autoencoder(scaling_factor=0.18215),
    }


_SD1_TEXT = {"hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 72}
_SD2_TEXT = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 88}
_SD1_UNET = {"cross_attention_dim": 40, "attention_head_dim": 4}
_SD2_UNET = {
    "cross_attention_dim": 48,
    "attention_head_dim": [2, 4, 6],
    "use_linear_projection": True,
    "layers_per_block": 2,
}
_PNDM = {"steps_offset": 1, "skip_prk_steps": True, "set_alpha_to_one": False, "clip_sample": False}
_QUICK = {"hidden_act": "quick_gelu", "pad": "<|endoftext|>"}
_EXACT = {"hidden_act": "gelu", "pad": "!"}

STABLE_DIFFUSION = Family(
    name="stable-diffusion",
    pipelines=(
        "StableDiffusionPipeline",
        "StableDiffusionImg2ImgPipeline",
        "StableDiffusionInpaintPipeline",
        "LatentConsistencyModelPipeline",
    ),
    parts=(text_encoder("text_encoder", projected=False), UNET, AUTOENCODER),
    compose_text=_compose_text,
    max_tokens=all_positions,
    size_conditioning=False,
    true_guidance=False,
    zero_empty_negative=False,
    default_scaling_factor=0.18215,
    default_sample_size=64,
    defaults=partial(checkpoint_defaults, Defaults(num_inference_steps=50, guidance_scale=7.5, strength=0.8)),
    tiny={
        "sd1": _tiny(
            "StableDiffusionPipeline", scheduler("PNDMScheduler", **_PNDM), _SD1_UNET, {**_SD1_TEXT, **_QUICK}
        ),
        "sd1-inpaint": _tiny(
            "StableDiffusionInpaintPipeline",
            scheduler("PNDMScheduler", **_PNDM),
            {**_SD1_UNET, "in_channels": 9},
            {**_SD1_TEXT, **_QUICK},
        ),
        "sd2": _tiny(
            "StableDiffusionPipeline",
            scheduler(
                "DDIMScheduler",
                steps_offset=1,
                set_alpha_to_one=False,
                clip_sample=False,
                prediction_type="v_prediction",
            ),
            _SD2_UNET,
            {**_SD2_TEXT, **_EXACT},
        ),
        "lcm": _tiny(
            "LatentConsistencyModelPipeline",
            scheduler("LCMScheduler", steps_offset=1, set_alpha_to_one=True, clip_sample=False),
            {**_SD1_UNET, "time_cond_proj_dim": 24},
            {**_SD1_TEXT, **_QUICK},
        ),
    },
)
