"""The denoising UNet with cross-attention (arXiv 2112.10752, 2307.01952): diffusers' `UNet2DConditionModel`.

Serves SD 1.x, SD 2.x and SDXL, and their in-painting, distilled and pruned descendants.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Num

from worker.models.unet_config import UNetConfig
from worker.nn.blocks import Downsample, ResnetBlock, Upsample
from worker.nn.embeddings import TimestepEmbedding
from worker.nn.kernels import Kernels
from worker.nn.layers import AROUND, Conv, GroupNorm, silu
from worker.nn.sinusoids import guidance_embedding, timestep_sinusoids
from worker.nn.transformer import Transformer2D


def _resnet(in_channels: int, out_channels: int, config: UNetConfig, kernels: Kernels) -> ResnetBlock:
    return ResnetBlock(
        in_channels,
        out_channels,
        kernels,
        groups=config.norm_num_groups,
        epsilon=config.norm_eps,
        time_features=config.time_embedding_dim,
    )


def _transformer(
    level: int, depth: int, config: UNetConfig, kernels: Kernels, *, only_cross_attention: bool
) -> Transformer2D:
    return Transformer2D(
        config.block_out_channels[level],
        config.cross_attention_dim,
        config.heads[level],
        depth,
        kernels,
        groups=config.norm_num_groups,
        linear_projection=config.use_linear_projection,
        only_cross_attention=only_cross_attention,
    )


class Stage(nnx.Module):
    """Residual blocks at one level, each followed by a transformer where the level attends to the text."""

    def __init__(
        self,
        level: int,
        inputs: list[int],
        depths: tuple[int, ...],
        config: UNetConfig,
        kernels: Kernels,
    ):
        channels = config.block_out_channels[level]
        only_cross = config.only_cross_attention[level]
        self.resnets = nnx.List(_resnet(width, channels, config, kernels) for width in inputs)
        self.attentions = nnx.List(
            _transformer(level, depth, config, kernels, only_cross_attention=only_cross) for depth in depths if depth
        )

    def step(
        self,
        index: int,
        x_BHWC: Float[Array, "B H W C"],
        time_BE: Float[Array, "B E"],
        context_BLD: Float[Array, "B L D"],
    ) -> Float[Array, "B H W O"]:
        """The residual block of that index, then its transformer."""
        x_BHWC = self.resnets[index](x_BHWC, time_BE)
        return self.attentions[index](x_BHWC, context_BLD) if self.attentions else x_BHWC


class DownBlock(Stage):
    """A level on the way down (`DownBlock2D`, `CrossAttnDownBlock2D`)."""

    def __init__(self, level: int, config: UNetConfig, kernels: Kernels):
        widths = config.block_out_channels
        depths = config.down_depths[level]
        inputs = [widths[max(level - 1, 0)], *[widths[level]] * (len(depths) - 1)]
        super().__init__(level, inputs, depths, config, kernels)
        self.downsamplers = nnx.List(
            Downsample(widths[level], kernels, padding=AROUND) for _ in range(level < len(widths) - 1)
        )

    def __call__(
        self,
        x_BHWC: Float[Array, "B H W C"],
        time_BE: Float[Array, "B E"],
        context_BLD: Float[Array, "B L D"],
    ) -> list[Float[Array, "B _ _ O"]]:
        """Return the state after every step: the skip connections, of which the last goes on down."""
        states: list[Array] = []
        for index in range(len(self.resnets)):
            x_BHWC = self.step(index, x_BHWC, time_BE, context_BLD)
            states.append(x_BHWC)
        return states + [downsample(x_BHWC) for downsample in self.downsamplers]


class MidBlock(nnx.Module):
    """The bottom: one residual block, or two around a transformer (`UNetMidBlock2D`, `...CrossAttn`)."""

    def __init__(self, depth: int, config: UNetConfig, kernels: Kernels):
        channels = config.block_out_channels[-1]
        level = len(config.block_out_channels) - 1
        self.resnets = nnx.List(_resnet(channels, channels, config, kernels) for _ in range(2 if depth else 1))
        self.attentions = nnx.List(
            _transformer(level, depth, config, kernels, only_cross_attention=False) for _ in range(depth > 0)
        )

    def __call__(
        self,
        x_BHWC: Float[Array, "B H W C"],
        time_BE: Float[Array, "B E"],
        context_BLD: Float[Array, "B L D"],
    ) -> Float[Array, "B H W C"]:
        x_BHWC = self.resnets[0](x_BHWC, time_BE)
        for attention, resnet in zip(self.attentions, list(self.resnets)[1:], strict=True):
            x_BHWC = resnet(attention(x_BHWC, context_BLD), time_BE)
        return x_BHWC


class UpBlock(Stage):
    """A level on the way up (`UpBlock2D`, `CrossAttnUpBlock2D`): each step takes one skip connection in."""

    def __init__(self, level: int, config: UNetConfig, kernels: Kernels):
        widths = config.block_out_channels
        last = len(widths) - 1
        depths = config.up_depths[last - level]
        states = [widths[min(level + 1, last)], *[widths[level]] * (len(depths) - 1)]
        skips = [*[widths[level]] * (len(depths) - 1), widths[max(level - 1, 0)]]
        inputs = [state + skip for state, skip in zip(states, skips, strict=True)]
        super().__init__(level, inputs, depths, config, kernels)
        self.upsamplers = nnx.List(Upsample(widths[level], kernels) for _ in range(level > 0))

    def __call__(
        self,
        x_BHWC: Float[Array, "B H W C"],
        skips: list[Float[Array, "B H W _"]],
        time_BE: Float[Array, "B E"],
        context_BLD: Float[Array, "B L D"],
        size: tuple[int, int] | None,
    ) -> Float[Array, "B H2 W2 O"]:
        """Take `skips` from the last to the first; `size` is the grid of the next level."""
        for index, skip in enumerate(reversed(skips)):
            joined = jnp.concatenate([x_BHWC, skip], axis=-1)
            x_BHWC = self.step(index, joined, time_BE, context_BLD)
        for upsample in self.upsamplers:
            x_BHWC = upsample(x_BHWC, size)
        return x_BHWC


class UNet(nnx.Module):
    """Predicts noise, velocity or image, as its checkpoint was trained to."""

    def __init__(self, config: UNetConfig, kernels: Kernels):
        widths = config.block_out_channels
        features = config.time_embedding_dim
        self.config = config
        self.conv_in = Conv(config.in_channels, widths[0], 3, kernels, padding=AROUND)
        self.time_embedding = TimestepEmbedding(widths[0], features, condition_features=config.time_cond_proj_dim)
        self.add_embedding = None if config.added is None else TimestepEmbedding(config.added.features, features)
        self.down_blocks = nnx.List(DownBlock(level, config, kernels) for level in range(len(widths)))
        self.mid_block = None if config.mid_depth is None else MidBlock(config.mid_depth, config, kernels)
        self.up_blocks = nnx.List(UpBlock(level, config, kernels) for level in reversed(range(len(widths))))
        self.conv_norm_out = GroupNorm(config.norm_num_groups, widths[0], epsilon=config.norm_eps)
        self.conv_out = Conv(widths[0], config.out_channels, 3, kernels, padding=AROUND)

    def __call__(
        self,
        x_BHWC: Float[Array, "B H W C"],
        time_B: Float[Array, " B"],
        context_BLD: Float[Array, "B L D"],
        *,
        pooled_BP: Float[Array, "B P"] | None = None,
        size_ids_BI: Num[Array, "B I"] | None = None,
        guidance_B: Float[Array, " B"] | None = None,
    ) -> Float[Array, "B H W O"]:
        """Predict from the scaled latent `x`, in whose dtype all is computed, at any height and width.

        SDXL's conditioning (`pooled`, `size_ids`) is required by the checkpoints that have it. `guidance` is
        the scale, for checkpoints that embed it; without it they ignore guidance.
        Raises ValueError where a conditioning and the checkpoint do not fit each other.
        """
        context_BLD = context_BLD.astype(x_BHWC.dtype)
        time_BE = self._embed(x_BHWC.dtype, time_B, pooled_BP, size_ids_BI, guidance_B)
        x_BHWC = self.conv_in(x_BHWC)
        skips = [x_BHWC]
        for block in self.down_blocks:
            skips += block(skips[-1], time_BE, context_BLD)
        x_BHWC = skips[-1]
        if self.mid_block is not None:
            x_BHWC = self.mid_block(x_BHWC, time_BE, context_BLD)
        for block in self.up_blocks:
            own = len(block.resnets)
            skips, taken = skips[:-own], skips[-own:]
            size = (skips[-1].shape[1], skips[-1].shape[2]) if skips else None
            x_BHWC = block(x_BHWC, taken, time_BE, context_BLD, size)
        return self.conv_out(silu(self.conv_norm_out(x_BHWC)))

    def _embed(
        self,
        dtype: jnp.dtype,
        time_B: Array,
        pooled_BP: Array | None,
        size_ids_BI: Array | None,
        guidance_B: Array | None,
    ) -> Array:
        """All that is known of the whole picture, as one vector."""
        guidance_BG = None
        if guidance_B is not None:
            if self.config.time_cond_proj_dim is None:
                raise ValueError("this UNet has no embedding of guidance")
            guidance_BG = guidance_embedding(guidance_B - 1, self.config.time_cond_proj_dim).astype(dtype)
        waves_BF = self._sinusoids(time_B, self.config.block_out_channels[0]).astype(dtype)
        time_BE = self.time_embedding(waves_BF, guidance_BG)
        if self.add_embedding is None or self.config.added is None:
            if pooled_BP is not None or size_ids_BI is not None:
                raise ValueError("this UNet takes neither pooled text nor size ids")
            return time_BE
        if pooled_BP is None or size_ids_BI is None:
            raise ValueError("this UNet needs pooled text and size ids")
        sizes = self._sinusoids(size_ids_BI.reshape(-1), self.config.added.time_features)
        added = jnp.concatenate([pooled_BP, sizes.reshape(len(pooled_BP), -1)], axis=-1)
        return time_BE + self.add_embedding(added.astype(dtype))

    def _sinusoids(self, values_B: Array, features: int) -> Array:
        return timestep_sinusoids(
            values_B.astype(jnp.float32),
            features,
            flip_sin_to_cos=self.config.flip_sin_to_cos,
            freq_shift=self.config.freq_shift,
        )
