"""The published configuration of an autoencoder, as diffusers writes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.models.options import (
    Option,
    each,
    is_flag,
    is_list,
    is_number,
    is_size,
    one_of,
    or_null,
    per_level,
    read_options,
    single_or_each,
)

PART = "autoencoder"

OPTIONS = {
    "in_channels": Option(3, is_size),
    "out_channels": Option(3, is_size),
    "down_block_types": Option(("DownEncoderBlock2D",), each("DownEncoderBlock2D".__eq__)),
    "up_block_types": Option(("UpDecoderBlock2D",), each("UpDecoderBlock2D".__eq__)),
    "block_out_channels": Option((64,), each(is_size)),
    "layers_per_block": Option(1, is_size),
    "act_fn": one_of("silu", "swish"),
    "latent_channels": Option(4, is_size),
    "norm_num_groups": Option(32, is_size),
    "sample_size": Option(32, single_or_each(is_size)),
    "scaling_factor": Option(None, or_null(is_number)),
    "shift_factor": Option(None, or_null(is_number)),
    "latents_mean": one_of(None),
    "latents_std": one_of(None),
    "force_upcast": Option(True, is_flag),
    "use_quant_conv": Option(True, is_flag),
    "use_post_quant_conv": Option(True, is_flag),
    "mid_block_add_attention": Option(True, is_flag),
}


@dataclass(frozen=True)
class AutoencoderConfig:
    """Sizes of an autoencoder, and how its latents relate to those of the diffusion model.

    A diffusion model's latent is (latent - shift_factor) * scaling_factor; `scaling_factor` is None where the
    file does not say. `force_upcast`: the network overflows in float16. `sample_size`: side in pixels of
    the pictures that it was trained for.
    """

    in_channels: int
    out_channels: int
    latent_channels: int
    block_out_channels: tuple[int, ...]
    layers_per_block: int
    norm_num_groups: int
    use_quant_conv: bool
    use_post_quant_conv: bool
    mid_block_add_attention: bool
    scaling_factor: float | None
    shift_factor: float
    force_upcast: bool
    sample_size: int

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "AutoencoderConfig":
        """Read a published `config.json`; raises CheckpointError for what is not handled."""
        options = read_options(PART, raw, OPTIONS)
        levels = len(options["block_out_channels"])
        for name in ("down_block_types", "up_block_types"):
            per_level(PART, name, options[name], levels)
        return cls(
            in_channels=options["in_channels"],
            out_channels=options["out_channels"],
            latent_channels=options["latent_channels"],
            block_out_channels=tuple(options["block_out_channels"]),
            layers_per_block=options["layers_per_block"],
            norm_num_groups=options["norm_num_groups"],
            use_quant_conv=options["use_quant_conv"],
            use_post_quant_conv=options["use_post_quant_conv"],
            mid_block_add_attention=options["mid_block_add_attention"],
            scaling_factor=options["scaling_factor"],
            shift_factor=float(options["shift_factor"] or 0),
            force_upcast=options["force_upcast"],
            sample_size=max(options["sample_size"]) if is_list(options["sample_size"]) else options["sample_size"],
        )

    @property
    def downscale(self) -> int:
        """Image pixels along one side of a latent pixel."""
        return 2 ** (len(self.block_out_channels) - 1)
