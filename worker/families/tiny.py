"""Configurations of toy checkpoints, as diffusers and transformers write them.

Widths differ from each other wherever the architecture lets them, so that a forgotten transpose changes a shape.
"""

from collections.abc import Mapping
from typing import Any

VOCABULARY_SIZE = 1024
START_TOKEN, END_TOKEN = VOCABULARY_SIZE - 2, VOCABULARY_SIZE - 1


def model_index(pipeline: str, scheduler_json: dict[str, Any], text_encoders: tuple[str, ...]) -> dict[str, Any]:
    """`model_index.json`; the last of several text encoders has the projection, as in SDXL."""
    classes = ["CLIPTextModel"] * len(text_encoders)
    if len(text_encoders) > 1:
        classes[-1] = "CLIPTextModelWithProjection"
    index: dict[str, Any] = {"_class_name": pipeline, "_diffusers_version": "0.42.1"}
    for encoder, class_name in zip(text_encoders, classes, strict=True):
        index[encoder] = ["transformers", class_name]
        index[encoder.replace("text_encoder", "tokenizer")] = ["transformers", "CLIPTokenizer"]
    index["unet"] = ["diffusers", "UNet2DConditionModel"]
    index["vae"] = ["diffusers", "AutoencoderKL"]
    index["scheduler"] = ["diffusers", scheduler_json["_class_name"]]
    if len(text_encoders) == 1:
        index |= {
            "safety_checker": [None, None],
            "feature_extractor": [None, None],
            "requires_safety_checker": False,
        }
    return index


def flux_index(scheduler_json: Mapping[str, Any]) -> dict[str, Any]:
    """`model_index.json` of FLUX.1."""
    return {
        "_class_name": "FluxPipeline",
        "_diffusers_version": "0.42.1",
        "scheduler": ["diffusers", scheduler_json["_class_name"]],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "T5TokenizerFast"],
        "transformer": ["diffusers", "FluxTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }


def scheduler(class_name: str, **options: Any) -> dict[str, Any]:
    """`scheduler_config.json` with the noise schedule of all Stable Diffusion checkpoints."""
    return {
        "_class_name": class_name,
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "num_train_timesteps": 1000,
        "prediction_type": "epsilon",
        **options,
    }


def tokenizer(pad: str) -> dict[str, Any]:
    """`tokenizer_config.json` of a CLIP tokeniser with the given padding token."""
    return {
        "tokenizer_class": "CLIPTokenizer",
        "model_max_length": 77,
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "pad_token": pad,
    }


def t5_tokenizer(length: int) -> dict[str, Any]:
    """`tokenizer_config.json` of a T5 tokeniser."""
    return {
        "tokenizer_class": "T5Tokenizer",
        "model_max_length": length,
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "extra_ids": 0,
    }


def clip_text(**options: Any) -> dict[str, Any]:
    """`config.json` of a CLIP text encoder over the toy vocabulary."""
    return {
        "architectures": ["CLIPTextModelWithProjection" if "projection_dim" in options else "CLIPTextModel"],
        "model_type": "clip_text_model",
        "vocab_size": VOCABULARY_SIZE,
        "max_position_embeddings": 77,
        "bos_token_id": START_TOKEN,
        "eos_token_id": END_TOKEN,
        "layer_norm_eps": 1e-05,
        "projection_dim": options["hidden_size"],
        **options,
    }


def unet(*, attention: tuple[bool, bool, bool], **options: Any) -> dict[str, Any]:
    """`config.json` of a UNet with three levels; `attention` says which of them attend to the text."""
    return {
        "_class_name": "UNet2DConditionModel",
        "sample_size": 8,
        "in_channels": 4,
        "out_channels": 4,
        "down_block_types": ["CrossAttnDownBlock2D" if level else "DownBlock2D" for level in attention],
        "up_block_types": ["CrossAttnUpBlock2D" if level else "UpBlock2D" for level in reversed(attention)],
        "block_out_channels": [16, 32, 48],
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "flip_sin_to_cos": True,
        "freq_shift": 0,
        **options,
    }


def autoencoder(**options: Any) -> dict[str, Any]:
    """`config.json` of an autoencoder with a factor of 8, as all Stable Diffusion checkpoints have it."""
    return {
        "_class_name": "AutoencoderKL",
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": 4,
        "down_block_types": ["DownEncoderBlock2D"] * 4,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
        "block_out_channels": [8, 16, 24, 32],
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "act_fn": "silu",
        "sample_size": 64,
        **options,
    }
