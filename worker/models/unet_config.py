"""The published configuration of a UNet, as numbers per level."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.errors import CheckpointError
from worker.models.options import (
    Option,
    each,
    is_flag,
    is_list,
    is_number,
    is_size,
    neutral,
    one_of,
    or_null,
    per_level,
    read_options,
    single_or_each,
)

PART = "UNet"
DOWN_ATTENDS = {"CrossAttnDownBlock2D": True, "DownBlock2D": False}
UP_ATTENDS = {"CrossAttnUpBlock2D": True, "UpBlock2D": False}
MID_ATTENDS = "UNetMidBlock2DCrossAttn"
MID_PLAIN = "UNetMidBlock2D"
# diffusers' own defaults, which early files rely on.
DOWN_TYPES = ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D")
UP_TYPES = ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D")

OPTIONS = {
    "sample_size": Option(None, or_null(single_or_each(is_size))),
    "in_channels": Option(4, is_size),
    "out_channels": Option(4, is_size),
    "block_out_channels": Option((320, 640, 1280, 1280), each(is_size)),
    "layers_per_block": Option(2, single_or_each(is_size)),
    "down_block_types": Option(DOWN_TYPES, each(DOWN_ATTENDS.__contains__)),
    "up_block_types": Option(UP_TYPES, each(UP_ATTENDS.__contains__)),
    "mid_block_type": one_of(MID_ATTENDS, MID_PLAIN, None),
    "attention_head_dim": Option(8, single_or_each(is_size)),
    "transformer_layers_per_block": Option(1, single_or_each(single_or_each(is_size))),
    "reverse_transformer_layers_per_block": Option(None, or_null(each(single_or_each(is_size)))),
    "only_cross_attention": Option(False, single_or_each(is_flag)),
    "cross_attention_dim": Option(1280, is_size),
    "use_linear_projection": Option(False, is_flag),
    "norm_num_groups": Option(32, is_size),
    "norm_eps": Option(1e-5, is_number),
    "flip_sin_to_cos": Option(True, is_flag),
    "freq_shift": Option(0, is_number),
    "time_embedding_dim": Option(None, or_null(is_size)),
    "time_cond_proj_dim": Option(None, or_null(is_size)),
    "addition_embed_type": one_of(None, "text_time"),
    "addition_time_embed_dim": Option(None, or_null(is_size)),
    "projection_class_embeddings_input_dim": Option(None, or_null(is_size)),
    # Attention logits and softmax are always float32, which is what this option asks for.
    "upcast_attention": Option(False, or_null(is_flag)),
    "act_fn": one_of("silu", "swish"),
    "attention_type": one_of("default"),
    "center_input_sample": one_of(False),
    "class_embed_type": one_of(None),
    "class_embeddings_concat": one_of(False),
    "conv_in_kernel": neutral(3),
    "conv_out_kernel": neutral(3),
    "cross_attention_norm": one_of(None),
    "downsample_padding": neutral(1),
    "dual_cross_attention": one_of(False),
    "encoder_hid_dim": one_of(None),
    "encoder_hid_dim_type": one_of(None),
    "mid_block_only_cross_attention": one_of(None, False),
    "mid_block_scale_factor": neutral(1),
    "num_attention_heads": one_of(None),
    "num_class_embeds": one_of(None),
    "resnet_out_scale_factor": neutral(1.0),
    "resnet_skip_time_act": one_of(False),
    "resnet_time_scale_shift": one_of("default"),
    "time_embedding_act_fn": one_of(None),
    "time_embedding_type": one_of("positional"),
    "timestep_post_act": one_of(None),
}

# Training (the last line: moving averages of the weights), and a count that only refused types read.
IRRELEVANT = """
    dropout addition_embed_type_num_heads
    decay inv_gamma min_decay optimization_step power update_after_step use_ema_warmup
    """


BY_LEVEL = (
    "attention_head_dim",
    "down_block_types",
    "up_block_types",
    "layers_per_block",
    "only_cross_attention",
    "transformer_layers_per_block",
)

type Depths = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class AddedConditioning:
    """SDXL's "text_time": pooled text and sinusoids of the size ids, `features` in all."""

    time_features: int
    features: int


@dataclass(frozen=True)
class UNetConfig:
    """Sizes of a UNet, the finest level first.

    `heads`: attention heads of a level. `down_depths`, `up_depths`: for each residual block of a level the
    number of transformer blocks after it, 0 for none; `up_depths` begins at the coarsest level. `mid_depth`:
    the same for the middle, None where there is no middle.
    """

    sample_size: int | None
    in_channels: int
    out_channels: int
    block_out_channels: tuple[int, ...]
    heads: tuple[int, ...]
    down_depths: Depths
    mid_depth: int | None
    up_depths: Depths
    only_cross_attention: tuple[bool, ...]
    cross_attention_dim: int
    use_linear_projection: bool
    norm_num_groups: int
    norm_eps: float
    flip_sin_to_cos: bool
    freq_shift: float
    time_embedding_dim: int
    time_cond_proj_dim: int | None
    added: AddedConditioning | None
    patch_size: int = 1

    @property
    def embeds_guidance(self) -> bool:
        """Whether the network takes the guidance scale as an input (latent consistency models)."""
        return self.time_cond_proj_dim is not None

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "UNetConfig":
        """Read a published `config.json`; raises CheckpointError for what is not handled.

        `attention_head_dim` holds the number of heads: diffusers keeps that misnomer for its published files.
        """
        options = read_options(PART, raw, OPTIONS, IRRELEVANT)
        channels = tuple(options["block_out_channels"])
        by_level = {name: per_level(PART, name, options[name], len(channels)) for name in BY_LEVEL}
        depths = by_level["transformer_layers_per_block"]
        counts = list(by_level["layers_per_block"])
        deepest = per_level(PART, "transformer_layers_per_block", depths[-1], counts[-1])[0]
        return cls(
            sample_size=_largest(options["sample_size"]),
            in_channels=options["in_channels"],
            out_channels=options["out_channels"],
            block_out_channels=channels,
            heads=by_level["attention_head_dim"],
            down_depths=_per_block(
                "transformer_layers_per_block",
                depths,
                [DOWN_ATTENDS[kind] for kind in by_level["down_block_types"]],
                counts,
            ),
            mid_depth={MID_ATTENDS: deepest, MID_PLAIN: 0, None: None}[options["mid_block_type"]],
            up_depths=_per_block(
                "reverse_transformer_layers_per_block",
                _up_depths(options, by_level),
                [UP_ATTENDS[kind] for kind in by_level["up_block_types"]],
                [count + 1 for count in reversed(counts)],
            ),
            only_cross_attention=by_level["only_cross_attention"],
            cross_attention_dim=options["cross_attention_dim"],
            use_linear_projection=options["use_linear_projection"],
            norm_num_groups=options["norm_num_groups"],
            norm_eps=float(options["norm_eps"]),
            flip_sin_to_cos=options["flip_sin_to_cos"],
            freq_shift=float(options["freq_shift"]),
            time_embedding_dim=options["time_embedding_dim"] or 4 * channels[0],
            time_cond_proj_dim=options["time_cond_proj_dim"],
            added=_added(options),
        )


def _largest(size: Any) -> int | None:
    return max(size) if is_list(size) else size


def _added(options: Mapping[str, Any]) -> AddedConditioning | None:
    if options["addition_embed_type"] is None:
        return None
    names = "addition_time_embed_dim", "projection_class_embeddings_input_dim"
    missing = [f"{name} = None" for name in names if options[name] is None]
    if missing:
        raise CheckpointError(f"configuration of {PART}: {'; '.join(missing)} with addition_embed_type")
    return AddedConditioning(*(options[name] for name in names))


def _up_depths(options: Mapping[str, Any], by_level: Mapping[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    """Depths from the coarsest level on; a level with a list of its own has to give both directions."""
    name = "reverse_transformer_layers_per_block"
    down = by_level["transformer_layers_per_block"]
    if options[name] is not None:
        return per_level(PART, name, options[name], len(down))
    if not all(map(is_size, down)):
        given = options["transformer_layers_per_block"]
        raise CheckpointError(f"configuration of {PART}: transformer_layers_per_block = {given!r} needs {name}")
    return down[::-1]


def _per_block(name: str, depths: tuple[Any, ...], attends: list[bool], counts: list[int]) -> Depths:
    """Depth after each of a level's residual blocks."""
    return tuple(
        per_level(PART, name, depth, count) if attending else (0,) * count
        for depth, attending, count in zip(depths, attends, counts, strict=True)
    )
