"""FLUX.1 (Black Forest Labs 2024): dev, which is told the guidance scale, schnell, which is not, and fine-tunes.

Lengths of texts, steps and guidance are those of the model cards.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from worker.families.family import Defaults, Family, Part, TextCondition
from worker.families.stable_diffusion import AUTOENCODER, text_encoder
from worker.families.tiny import autoencoder, clip_text, flux_index, t5_tokenizer, tokenizer
from worker.models.mmdit_config import MMDiTConfig
from worker.models.t5_text_config import T5TextConfig
from worker.nn.kernels import Kernels

if TYPE_CHECKING:
    from flax import nnx

# The modules, and Flax with them, are imported where one is built: stored programs need none of them.


def _t5_text(config: T5TextConfig, kernels: Kernels) -> "nnx.Module":
    from worker.models.t5_text import T5Text

    return T5Text(config, kernels)


def _mmdit(config: MMDiTConfig, kernels: Kernels) -> "nnx.Module":
    from worker.models.mmdit import MMDiT

    return MMDiT(config, kernels)


def _compose_text(outputs: tuple[Any, ...]) -> TextCondition:
    clip, t5 = outputs
    return TextCondition(t5, clip.pooled)


def _max_tokens(configs: Mapping[str, Any]) -> tuple[int, ...]:
    return configs["text_encoder"].max_position_embeddings, 512 if configs["transformer"].embeds_guidance else 256


def _defaults(_source: str, _scheduler_class: str, embeds_guidance: bool) -> Defaults:
    if embeds_guidance:
        return Defaults(num_inference_steps=28, guidance_scale=3.5, strength=0.6)
    return Defaults(num_inference_steps=4, guidance_scale=0.0, strength=0.6)


def _tiny(*, embeds_guidance: bool) -> Mapping[str, Any]:
    scheduler_json = {
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "base_image_seq_len": 256,
        "base_shift": 0.5,
        "max_image_seq_len": 4096,
        "max_shift": 1.15,
        "num_train_timesteps": 1000,
        "shift": 3.0 if embeds_guidance else 1.0,
        "use_dynamic_shifting": embeds_guidance,
    }
    return {
        "model_index": flux_index(scheduler_json),
        "scheduler": scheduler_json,
        "tokenizer": tokenizer(pad="<|endoftext|>"),
        "tokenizer_2": t5_tokenizer(24),
        "text_encoder": clip_text(
            hidden_size=40,
            num_hidden_layers=2,
            num_attention_heads=5,
            intermediate_size=72,
            hidden_act="quick_gelu",
        ),
        "text_encoder_2": {
            "architectures": ["T5EncoderModel"],
            "model_type": "t5",
            "d_ff": 88,
            "d_kv": 8,
            "d_model": 48,
            "dense_act_fn": "gelu_new",
            "feed_forward_proj": "gated-gelu",
            "is_encoder_decoder": True,
            "is_gated_act": True,
            "num_decoder_layers": 2,
            "num_heads": 5,
            "num_layers": 2,
            "vocab_size": 512,
        },
        "transformer": {
            "_class_name": "FluxTransformer2DModel",
            "attention_head_dim": 16,
            "axes_dims_rope": [4, 4, 8],
            "guidance_embeds": embeds_guidance,
            "in_channels": 64,
            "joint_attention_dim": 48,
            "num_attention_heads": 2,
            "num_layers": 2,
            "num_single_layers": 3,
            "patch_size": 1,
            "pooled_projection_dim": 40,
        },
        "vae": autoencoder(
            latent_channels=16,
            scaling_factor=0.3611,
            shift_factor=0.1159,
            use_quant_conv=False,
            use_post_quant_conv=False,
            force_upcast=True,
        ),
    }


_T5 = Part(
    "text_encoder_2", "text_encoder", "t5_text", ("T5EncoderModel",), T5TextConfig.from_json, _t5_text, eight_bits=True
)
_TRANSFORMER = Part(
    "transformer", "denoiser", "mmdit", ("FluxTransformer2DModel",), MMDiTConfig.from_json, _mmdit, eight_bits=True
)

FLUX_1 = Family(
    name="flux.1",
    pipelines=("FluxPipeline", "FluxImg2ImgPipeline", "FluxInpaintPipeline"),
    parts=(
        text_encoder("text_encoder", projected=False),
        _T5,
        _TRANSFORMER,
        AUTOENCODER,
    ),
    compose_text=_compose_text,
    max_tokens=_max_tokens,
    size_conditioning=False,
    true_guidance=True,
    zero_empty_negative=False,
    default_scaling_factor=0.3611,
    default_sample_size=None,
    defaults=_defaults,
    tiny={"flux": _tiny(embeds_guidance=False), "flux-dev": _tiny(embeds_guidance=True)},
)
