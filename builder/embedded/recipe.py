"""The recipe of the embedded model: sizes, schedule and training, each declared once."""

from dataclasses import dataclass
from typing import Any

SIDE = 64
"""Pixels of a picture's side."""
VOCABULARY_SIZE = 4096
CONTEXT_LENGTH = 32
SEED = 0


@dataclass(frozen=True)
class Stage:
    """Training of one network: `steps` are planned, over the last `decay` of them the learning rate falls to zero."""

    steps: int
    batch: int
    learning_rate: float
    warm_up: int
    decay: int
    weight_decay: float
    ema_decay: float
    clip_norm: float


AUTOENCODER_STAGE = Stage(
    steps=4_000,
    batch=4,
    learning_rate=2e-3,
    warm_up=200,
    decay=3_000,
    weight_decay=0.0,
    ema_decay=0.995,
    clip_norm=1.0,
)
DENOISER_STAGE = Stage(
    steps=54_000,
    batch=16,
    learning_rate=1e-3,
    warm_up=500,
    decay=16_000,
    weight_decay=0.01,
    ema_decay=0.999,
    clip_norm=1.0,
)
DECODER_STAGE = Stage(
    steps=4_000,
    batch=4,
    learning_rate=1e-3,
    warm_up=100,
    decay=3_500,
    weight_decay=0.0,
    ema_decay=0.995,
    clip_norm=1.0,
)
"""Once the UNet has learned its latents, the autoencoder can still learn to decode them better."""

KL_WEIGHT = 2e-4
"""Weight of the latent's divergence from a normal distribution, per number, beside an error per pixel."""
DROPPED_CAPTIONS = 0.1
"""Share of captions replaced by the empty one, which guidance needs."""
NOISY_TIMES = 0.6
"""Exponent on the evenly drawn share of the noise's time: below 1, more of the noisy ones, where a caption decides."""
RECOLOURED = 0.2
"""Share of pictures taken in another colour where there is one."""

LATENT_CHANNELS = 8

TEXT_ENCODER: dict[str, Any] = {
    "architectures": ["CLIPTextModel"],
    "model_type": "clip_text_model",
    "vocab_size": VOCABULARY_SIZE,
    "max_position_embeddings": CONTEXT_LENGTH,
    "hidden_size": 128,
    "intermediate_size": 512,
    "projection_dim": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-05,
    "bos_token_id": VOCABULARY_SIZE - 2,
    "eos_token_id": VOCABULARY_SIZE - 1,
}
UNET: dict[str, Any] = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": SIDE // 8,
    "in_channels": LATENT_CHANNELS,
    "out_channels": LATENT_CHANNELS,
    # Attention at the finer level alone would cost as much as all the rest.
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "block_out_channels": [80, 144],
    "layers_per_block": 1,
    "cross_attention_dim": 128,
    "attention_head_dim": 4,
    "norm_num_groups": 16,
    "flip_sin_to_cos": True,
    "freq_shift": 0,
}
AUTOENCODER: dict[str, Any] = {
    "_class_name": "AutoencoderKL",
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": LATENT_CHANNELS,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [16, 32, 48, 64],
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "act_fn": "silu",
    "sample_size": SIDE,
    "force_upcast": False,
}
SCHEDULER: dict[str, Any] = {
    "_class_name": "DPMSolverMultistepScheduler",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "prediction_type": "v_prediction",
    # The first step has to see noise alone: "leading" would start where a trace of the picture is expected.
    "timestep_spacing": "trailing",
    "steps_offset": 1,
}
TOKENIZER: dict[str, Any] = {
    "tokenizer_class": "CLIPTokenizer",
    "model_max_length": CONTEXT_LENGTH,
    "bos_token": "<|startoftext|>",
    "eos_token": "<|endoftext|>",
    "unk_token": "<|endoftext|>",
    "pad_token": "<|endoftext|>",
}
MODEL_INDEX: dict[str, Any] = {
    "_class_name": "StableDiffusionPipeline",
    "_diffusers_version": "0.42.1",
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "scheduler": ["diffusers", SCHEDULER["_class_name"]],
    "safety_checker": [None, None],
    "feature_extractor": [None, None],
    "requires_safety_checker": False,
}
