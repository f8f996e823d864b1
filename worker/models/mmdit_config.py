"""The published configuration of FLUX.1's transformer, as diffusers writes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.errors import CheckpointError
from worker.models.options import Option, each, is_flag, is_size, one_of, read_options

PART = "transformer"
PATCH_SIZE = 2

OPTIONS = {
    # diffusers' own patches; the pipeline has packed 2x2 latents into one token already.
    "patch_size": one_of(1),
    "in_channels": Option(64, is_size),
    "out_channels": one_of(None),
    "num_layers": Option(19, is_size),
    "num_single_layers": Option(38, is_size),
    "attention_head_dim": Option(128, is_size),
    "num_attention_heads": Option(24, is_size),
    "joint_attention_dim": Option(4096, is_size),
    "pooled_projection_dim": Option(768, is_size),
    "guidance_embeds": Option(False, is_flag),
    "axes_dims_rope": Option((16, 56, 56), each(is_size)),
}


@dataclass(frozen=True)
class MMDiTConfig:
    """Sizes of the transformer; `in_channels` are those of a latent, `axes` the features of a head by axis.

    `sample_size` is not stated; `embeds_guidance`: the network is told the guidance scale (dev) or is not (schnell).
    """

    in_channels: int
    double_blocks: int
    single_blocks: int
    heads: int
    head_width: int
    context_features: int
    pooled_features: int
    embeds_guidance: bool
    axes: tuple[int, int, int]
    sample_size: None = None
    patch_size: int = PATCH_SIZE

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "MMDiTConfig":
        """Read a published `config.json`; raises CheckpointError for what is not handled."""
        options = read_options(PART, raw, OPTIONS)
        axes, width = tuple(options["axes_dims_rope"]), options["attention_head_dim"]
        if len(axes) != 3 or sum(axes) != width or any(axis % 2 for axis in axes):
            raise CheckpointError(
                f"configuration of {PART}: axes_dims_rope = {list(axes)} must be three even numbers "
                f"whose sum is the attention_head_dim {width}"
            )
        if options["in_channels"] % PATCH_SIZE**2:
            raise CheckpointError(f"configuration of {PART}: in_channels = {options['in_channels']} is not handled")
        return cls(
            in_channels=options["in_channels"] // PATCH_SIZE**2,
            double_blocks=options["num_layers"],
            single_blocks=options["num_single_layers"],
            heads=options["num_attention_heads"],
            head_width=width,
            context_features=options["joint_attention_dim"],
            pooled_features=options["pooled_projection_dim"],
            embeds_guidance=options["guidance_embeds"],
            axes=axes,
        )

    @property
    def features(self) -> int:
        """Width of the sequence."""
        return self.heads * self.head_width
