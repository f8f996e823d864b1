"""The variational autoencoder of latent diffusion (arXiv 2112.10752), as diffusers' `AutoencoderKL`."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from worker.models.autoencoder_config import AutoencoderConfig
from worker.nn.blocks import Downsample, ResnetBlock, Upsample
from worker.nn.kernels import Kernels
from worker.nn.layers import AROUND, BELOW_AND_RIGHT, Conv, GroupNorm, silu
from worker.nn.multi_head import GridAttention

EPSILON = 1e-6


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
