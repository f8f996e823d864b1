"""Small configurations whose widths all differ, so that a missed transpose changes a shape."""

from bench import published

SD1_UNET = published.SD15_UNET | {
    "attention_head_dim": 2,
    "block_out_channels": [12, 20, 28],
    "cross_attention_dim": 22,
    "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
}
LCM_INPAINTING_UNET = SD1_UNET | {"in_channels": 9, "time_cond_proj_dim": 18}
SD2_UNET = SD1_UNET | {
    "attention_head_dim": [3, 5, 7],
    "upcast_attention": True,
    "use_linear_projection": True,
}
SDXL_UNET = published.SDXL_UNET | {
    "addition_time_embed_dim": 6,
    "attention_head_dim": [2, 5, 7],
    "block_out_channels": [12, 20, 28],
    "cross_attention_dim": 22,
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "projection_class_embeddings_input_dim": 26 + 6 * 6,
    "transformer_layers_per_block": [1, 1, 2],
}
# Options that distilled and older models set, all at once.
PRUNED_UNET = SD1_UNET | {
    "flip_sin_to_cos": False,
    "freq_shift": 1,
    "layers_per_block": [1, 2, 1],
    "mid_block_type": None,
    "norm_eps": 1e-6,
    "only_cross_attention": [True, False, False],
    "time_embedding_dim": 34,
}
ASYMMETRIC_UNET = SD1_UNET | {
    "layers_per_block": 2,
    "mid_block_type": "UNetMidBlock2D",
    "reverse_transformer_layers_per_block": [1, [1, 2, 1], 1],
    "transformer_layers_per_block": [1, [2, 1], 1],
}

AUTOENCODER = published.SDXL_AUTOENCODER | {
    "block_out_channels": [12, 20, 28],
    "down_block_types": ["DownEncoderBlock2D"] * 3,
    "norm_num_groups": 4,
    "up_block_types": ["UpDecoderBlock2D"] * 3,
}
BARE_AUTOENCODER = AUTOENCODER | {
    "latent_channels": 5,
    "layers_per_block": 1,
    "mid_block_add_attention": False,
    "use_post_quant_conv": False,
    "use_quant_conv": False,
}

TEXT_ENCODER = published.SDXL_TEXT_ENCODER_2 | {
    "eos_token_id": 90,
    "hidden_size": 30,
    "intermediate_size": 44,
    "max_position_embeddings": 17,
    "num_attention_heads": 5,
    "num_hidden_layers": 3,
    "projection_dim": 26,
    "torch_dtype": "float32",
    "vocab_size": 99,
}
OPENAI_TEXT_ENCODER = TEXT_ENCODER | {"architectures": ["CLIPTextModel"], "hidden_act": "quick_gelu"}

FLUX_TRANSFORMER = published.FLUX_SCHNELL_TRANSFORMER | {
    "attention_head_dim": 12,
    "axes_dims_rope": [2, 4, 6],
    "in_channels": 20,
    "joint_attention_dim": 22,
    "num_attention_heads": 3,
    "num_layers": 2,
    "num_single_layers": 2,
    "pooled_projection_dim": 26,
}
FLUX_GUIDED_TRANSFORMER = FLUX_TRANSFORMER | {"guidance_embeds": True}
T5 = published.T5_XXL | {
    "d_ff": 44,
    "d_kv": 7,
    "d_model": 30,
    "num_heads": 5,
    "num_layers": 3,
    "relative_attention_max_distance": 20,
    "relative_attention_num_buckets": 12,
    "torch_dtype": "float32",
    "vocab_size": 99,
}
