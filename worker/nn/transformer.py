"""The UNet's transformer: attention over the grid's positions and to the context, with diffusers' names."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from worker.nn.kernels import Kernels
from worker.nn.layers import Conv, GroupNorm, LayerNorm, Linear, gelu
from worker.nn.multi_head import Attention


class GEGLU(nnx.Module):
    """Half of a projection, gated by the GELU of the other half (arXiv 2002.05202)."""

    def __init__(self, in_features: int, out_features: int):
        self.proj = Linear(in_features, 2 * out_features)

    def __call__(self, x_BSD: Float[Array, "B S D"]) -> Float[Array, "B S F"]:
        value, gate = jnp.split(self.proj(x_BSD), 2, axis=-1)
        return value * gelu(gate)


class Identity(nnx.Module):
    """The place of a layer that does nothing at inference, kept for the numbers of those after it."""

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return x


class FeedForward(nnx.Module):
    """GEGLU to four times the width, and back."""

    def __init__(self, features: int):
        self.net = nnx.List([GEGLU(features, 4 * features), Identity(), Linear(4 * features, features)])

    def __call__(self, x_BSD: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        for layer in self.net:
            x_BSD = layer(x_BSD)
        return x_BSD


class BasicTransformerBlock(nnx.Module):
    """Self-attention, cross-attention and feed-forward, each behind a layer norm and beside a shortcut.

    With `only_cross_attention` the first attention reads the context as well.
    """

    def __init__(
        self,
        features: int,
        context_features: int,
        heads: int,
        kernels: Kernels,
        *,
        only_cross_attention: bool = False,
    ):
        self.norm1 = LayerNorm(features, epsilon=1e-5)
        self.attn1 = Attention(features, context_features if only_cross_attention else features, heads, kernels)
        self.norm2 = LayerNorm(features, epsilon=1e-5)
        self.attn2 = Attention(features, context_features, heads, kernels)
        self.norm3 = LayerNorm(features, epsilon=1e-5)
        self.ff = FeedForward(features)
        self.only_cross_attention = only_cross_attention

    def __call__(self, x_BSD: Float[Array, "B S D"], context_BLE: Float[Array, "B L E"]) -> Float[Array, "B S D"]:
        x_BSD = x_BSD + self.attn1(self.norm1(x_BSD), context_BLE if self.only_cross_attention else None)
        x_BSD = x_BSD + self.attn2(self.norm2(x_BSD), context_BLE)
        return x_BSD + self.ff(self.norm3(x_BSD))


class Transformer2D(nnx.Module):
    """`depth` blocks over the flattened grid, between two projections (`Transformer2DModel`)."""

    def __init__(
        self,
        channels: int,
        context_features: int,
        heads: int,
        depth: int,
        kernels: Kernels,
        *,
        groups: int,
        linear_projection: bool,
        only_cross_attention: bool = False,
    ):
        self.norm = GroupNorm(groups, channels, epsilon=1e-6)
        self.proj_in, self.proj_out = (
            Linear(channels, channels) if linear_projection else Conv(channels, channels, 1, kernels) for _ in range(2)
        )
        self.transformer_blocks = nnx.List(
            BasicTransformerBlock(channels, context_features, heads, kernels, only_cross_attention=only_cross_attention)
            for _ in range(depth)
        )

    def __call__(self, x_BHWC: Float[Array, "B H W C"], context_BLE: Float[Array, "B L E"]) -> Float[Array, "B H W C"]:
        batch, height, width, channels = x_BHWC.shape
        hidden = self.proj_in(self.norm(x_BHWC)).reshape(batch, height * width, channels)
        for block in self.transformer_blocks:
            hidden = block(hidden, context_BLE)
        return x_BHWC + self.proj_out(hidden.reshape(x_BHWC.shape))
