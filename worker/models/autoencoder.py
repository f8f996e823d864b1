"""The variational autoencoder of latent diffusion (arXiv 2112.10752), as diffusers' `AutoencoderKL`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from worker.models.options import (
    Option,
    each,
    is_flag,
    is_number,
    is_size,
    one_of,
    or_null,
    per_level,
    read_options,
    single_or_each,
)
from worker.nn.attention import GridAttention
from worker.nn.blocks import Downsample, ResnetBlock, Upsample
from worker.nn.kernels import Kernels
from worker.nn.layers import AROUND, BELOW_AND_RIGHT, Conv, GroupNorm, silu

PART = "autoencoder"
EPSILON = 1e-6

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
    file does not say. `force_upcast`: the network overflows in float16.
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
        )

    @property
    def downscale(self) -> int:
        """Image pixels along one side of a latent pixel."""
        return 2 ** (len(self.block_out_channels) - 1)


class MidBlock(nnx.Module):
    """Two residual blocks, with attention between them where the checkpoint has it (`UNetMidBlock2D`)."""

    def __init__(self, config: AutoencoderConfig, kernels: Kernels):
        channels = config.block_out_channels[-1]
        groups = config.norm_num_groups
        self.attentions = nnx.List(
            GridAttention(channels, kernels, groups=groups, epsilon=EPSILON)
            for _ in range(config.mid_block_add_attention)
        )
        self.resnets = nnx.List(
            ResnetBlock(channels, channels, kernels, groups=groups, epsilon=EPSILON) for _ in range(2)
        )

    def __call__(self, x_BHWC: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        x_BHWC = self.resnets[0](x_BHWC)
        for attention in self.attentions:
            x_BHWC = attention(x_BHWC)
        return self.resnets[1](x_BHWC)


class DownBlock(nnx.Module):
    """Residual blocks, then a downsampler on all levels but the last (`DownEncoderBlock2D`)."""

    def __init__(self, level: int, config: AutoencoderConfig, kernels: Kernels):
        widths = config.block_out_channels
        inputs = [widths[max(level - 1, 0)], *[widths[level]] * (config.layers_per_block - 1)]
        self.resnets = nnx.List(
            ResnetBlock(width, widths[level], kernels, groups=config.norm_num_groups, epsilon=EPSILON)
            for width in inputs
        )
        self.downsamplers = nnx.List(
            Downsample(widths[level], kernels, padding=BELOW_AND_RIGHT) for _ in range(level < len(widths) - 1)
        )

    def __call__(self, x_BHWC: Float[Array, "B H W C"]) -> Float[Array, "B H2 W2 D"]:
        for layer in (*self.resnets, *self.downsamplers):
            x_BHWC = layer(x_BHWC)
        return x_BHWC


class UpBlock(nnx.Module):
    """Residual blocks, then an upsampler on all levels but the finest (`UpDecoderBlock2D`)."""

    def __init__(self, level: int, config: AutoencoderConfig, kernels: Kernels):
        widths = config.block_out_channels
        inputs = [widths[min(level + 1, len(widths) - 1)], *[widths[level]] * config.layers_per_block]
        self.resnets = nnx.List(
            ResnetBlock(width, widths[level], kernels, groups=config.norm_num_groups, epsilon=EPSILON)
            for width in inputs
        )
        self.upsamplers = nnx.List(Upsample(widths[level], kernels) for _ in range(level > 0))

    def __call__(self, x_BHWC: Float[Array, "B H W C"]) -> Float[Array, "B H2 W2 D"]:
        for layer in (*self.resnets, *self.upsamplers):
            x_BHWC = layer(x_BHWC)
        return x_BHWC


class Encoder(nnx.Module):
    """Image to the moments of its latent."""

    def __init__(self, config: AutoencoderConfig, kernels: Kernels):
        widths = config.block_out_channels
        self.conv_in = Conv(config.in_channels, widths[0], 3, kernels, padding=AROUND)
        self.down_blocks = nnx.List(DownBlock(level, config, kernels) for level in range(len(widths)))
        self.mid_block = MidBlock(config, kernels)
        self.conv_norm_out = GroupNorm(config.norm_num_groups, widths[-1], epsilon=EPSILON)
        self.conv_out = Conv(widths[-1], 2 * config.latent_channels, 3, kernels, padding=AROUND)

    def __call__(self, x_BHWC: Float[Array, "B H W C"]) -> Float[Array, "B H2 W2 D"]:
        x_BHWC = self.conv_in(x_BHWC)
        for block in (*self.down_blocks, self.mid_block):
            x_BHWC = block(x_BHWC)
        return self.conv_out(silu(self.conv_norm_out(x_BHWC)))


class Decoder(nnx.Module):
    """Latent to image."""

    def __init__(self, config: AutoencoderConfig, kernels: Kernels):
        widths = config.block_out_channels
        self.conv_in = Conv(config.latent_channels, widths[-1], 3, kernels, padding=AROUND)
        self.mid_block = MidBlock(config, kernels)
        self.up_blocks = nnx.List(UpBlock(level, config, kernels) for level in reversed(range(len(widths))))
        self.conv_norm_out = GroupNorm(config.norm_num_groups, widths[0], epsilon=EPSILON)
        self.conv_out = Conv(widths[0], config.out_channels, 3, kernels, padding=AROUND)

    def __call__(self, x_BHWC: Float[Array, "B H W C"]) -> Float[Array, "B H2 W2 D"]:
        x_BHWC = self.conv_in(x_BHWC)
        for block in (self.mid_block, *self.up_blocks):
            x_BHWC = block(x_BHWC)
        return self.conv_out(silu(self.conv_norm_out(x_BHWC)))


class Autoencoder(nnx.Module):
    """Encoder and decoder; images in -1..1, latents as they leave the encoder, not scaled."""

    def __init__(self, config: AutoencoderConfig, kernels: Kernels):
        latents = config.latent_channels
        self.encoder = Encoder(config, kernels)
        self.decoder = Decoder(config, kernels)
        self.quant_conv = Conv(2 * latents, 2 * latents, 1, kernels) if config.use_quant_conv else None
        self.post_quant_conv = Conv(latents, latents, 1, kernels) if config.use_post_quant_conv else None

    def encode(
        self, image_BHWC: Float[Array, "B H W C"]
    ) -> tuple[Float[Array, "B H2 W2 D"], Float[Array, "B H2 W2 D"]]:
        """Return mean and logarithm of variance of the latent's normal distribution."""
        moments = self.encoder(image_BHWC)
        if self.quant_conv is not None:
            moments = self.quant_conv(moments)
        mean_BHWC, logvar_BHWC = jnp.split(moments, 2, axis=-1)
        return mean_BHWC, jnp.clip(logvar_BHWC, -30.0, 20.0)

    def decode(self, latent_BHWC: Float[Array, "B H W C"]) -> Float[Array, "B H2 W2 D"]:
        """Return the image, which may leave -1..1 a little."""
        if self.post_quant_conv is not None:
            latent_BHWC = self.post_quant_conv(latent_BHWC)
        return self.decoder(latent_BHWC)
