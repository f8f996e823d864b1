"""Configurations: the reference's defaults, and nothing unknown passes."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextConfig as ReferenceCLIPTextConfig

from bench import published
from worker.errors import CheckpointError
from worker.models import autoencoder_config, clip_text_config, unet_config
from worker.models.autoencoder_config import AutoencoderConfig
from worker.models.clip_text_config import CLIPTextConfig
from worker.models.unet_config import UNetConfig


def read_unet(changes: dict[str, Any]) -> UNetConfig:
    return UNetConfig.from_json(published.SDXL_UNET | changes)


def read_autoencoder(changes: dict[str, Any]) -> AutoencoderConfig:
    return AutoencoderConfig.from_json(published.SDXL_AUTOENCODER | changes)


def read_text_encoder(changes: dict[str, Any]) -> CLIPTextConfig:
    return CLIPTextConfig.from_json(published.SDXL_TEXT_ENCODER_2 | changes, projected=True)


@pytest.mark.parametrize(
    ("read", "option", "value"),
    [
        (read_unet, "class_embed_type", "projection"),
        (read_unet, "num_class_embeds", 1000),
        (read_unet, "encoder_hid_dim_type", "image_proj"),
        (read_unet, "addition_embed_type", "image"),
        (read_unet, "resnet_time_scale_shift", "scale_shift"),
        (read_unet, "mid_block_type", "UNetMidBlock2DSimpleCrossAttn"),
        (read_unet, "down_block_types", ["DownBlock2D", "KDownBlock2D", "CrossAttnDownBlock2D"]),
        (read_unet, "up_block_types", ["CrossAttnUpBlock2D", "UpBlock2D"]),
        (read_unet, "attention_head_dim", [5, 10]),
        (read_unet, "attention_head_dim", True),
        (read_unet, "transformer_layers_per_block", [1, 2, 0]),
        (read_unet, "transformer_layers_per_block", [1, [2, 2], 10]),
        (read_unet, "num_attention_heads", 8),
        (read_unet, "conv_in_kernel", 1),
        (read_unet, "center_input_sample", True),
        (read_unet, "downsample_padding", 0),
        (read_unet, "attention_type", "gated"),
        (read_unet, "addition_time_embed_dim", None),
        (read_unet, "block_out_channels", "320"),
        (read_unet, "block_out_channels", []),
        (read_unet, "invented", 1),
        (read_autoencoder, "latents_mean", [0.1, 0.2, 0.3, 0.4]),
        (read_autoencoder, "down_block_types", ["DownEncoderBlock2D", "AttnDownEncoderBlock2D"] * 2),
        (read_autoencoder, "up_block_types", ["UpDecoderBlock2D"] * 3),
        (read_autoencoder, "act_fn", "gelu"),
        (read_autoencoder, "scaling_factor", "0.13"),
        (read_autoencoder, "invented", None),
        (read_text_encoder, "hidden_act", "relu"),
        (read_text_encoder, "model_type", "t5"),
        (read_text_encoder, "eos_token_id", [49407, 2]),
        (read_text_encoder, "num_hidden_layers", 12.0),
        (read_text_encoder, "is_decoder", True),
        (read_text_encoder, "invented", "yes"),
    ],
)
def test_what_is_not_handled_is_named(read: Callable[[dict[str, Any]], Any], option: str, value: Any):
    with pytest.raises(CheckpointError, match=re.escape(f"{option} = {value!r}")):
        read({option: value})


def test_all_problems_are_named_at_once():
    with pytest.raises(CheckpointError, match=r"(?s)invented = 1 .*class_embed_type = 'timestep'.*conv_out_kernel = 5"):
        read_unet({"conv_out_kernel": 5, "invented": 1, "class_embed_type": "timestep"})


@pytest.mark.parametrize(
    ("reference", "options", "irrelevant", "ours_alone"),
    [
        (UNet2DConditionModel, unet_config.OPTIONS, unet_config.IRRELEVANT, set()),
        # An absent factor is left to the family: the reference's default is wrong for SDXL.
        (AutoencoderKL, autoencoder_config.OPTIONS, "", {"scaling_factor"}),
    ],
)
def test_defaults_are_those_of_the_reference(
    reference: type, options: dict[str, Any], irrelevant: str, ours_alone: set[str]
):
    signature = inspect.signature(reference.__init__).parameters
    defaults = {name: parameter.default for name, parameter in signature.items() if name != "self"}
    assert defaults.keys() == options.keys() | (set(irrelevant.split()) & defaults.keys())
    differing = {name for name, option in options.items() if option.default != defaults[name]}
    assert differing == ours_alone


def test_text_encoder_defaults_are_those_of_the_reference():
    written = ReferenceCLIPTextConfig().to_dict()
    assert {name: option.default for name, option in clip_text_config.OPTIONS.items() if name in written}.items() <= (
        written.items()
    )
    assert CLIPTextConfig.from_json(written, projected=True) == CLIPTextConfig.from_json({}, projected=True)


def test_projection_is_asked_for():
    assert CLIPTextConfig.from_json(published.SDXL_TEXT_ENCODER_2, projected=False).projection_dim is None


@pytest.mark.parametrize(("given", "factor"), [({}, None), ({"scaling_factor": None}, None)])
def test_scaling_factor_may_be_absent(given: dict[str, Any], factor: float | None):
    raw = {name: value for name, value in published.SDXL_AUTOENCODER.items() if name != "scaling_factor"}
    assert AutoencoderConfig.from_json(raw | given).scaling_factor is factor


def test_factors_are_read():
    config = read_autoencoder({"scaling_factor": 0.3611, "shift_factor": 0.1159, "force_upcast": False})
    assert (config.scaling_factor, config.shift_factor, config.force_upcast) == (0.3611, 0.1159, False)
    assert read_autoencoder({}).shift_factor == 0
