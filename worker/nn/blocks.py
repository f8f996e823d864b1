"""Convolutional blocks that the UNet and the autoencoder share, with diffusers' parameter names."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from worker.nn.kernels import Kernels
from worker.nn.layers import AROUND, Conv, GroupNorm, Linear, Padding, silu


class ResnetBlock(nnx.Module):
    """Two 3x3 convolutions beside a shortcut; a time embedding is added between them (`ResnetBlock2D`)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernels: Kernels,
        *,
        groups: int,
        epsilon: float,
        time_features: int | None = None,
    ):
        self.norm1 = GroupNorm(groups, in_channels, epsilon=epsilon)
        self.conv1 = Conv(in_channels, out_channels, 3, kernels, padding=AROUND)
        self.time_emb_proj = None if time_features is None else Linear(time_features, out_channels)
        self.norm2 = GroupNorm(groups, out_channels, epsilon=epsilon)
        self.conv2 = Conv(out_channels, out_channels, 3, kernels, padding=AROUND)
        self.conv_shortcut = None if in_channels == out_channels else Conv(in_channels, out_channels, 1, kernels)

    def __call__(
        self, x_BHWC: Float[Array, "B H W C"], time_BE: Float[Array, "B E"] | None = None
    ) -> Float[Array, "B H W O"]:
        hidden = self.conv1(silu(self.norm1(x_BHWC)))
        if self.time_emb_proj is not None and time_BE is not None:
            hidden = hidden + self.time_emb_proj(silu(time_BE))[:, None, None]
        hidden = self.conv2(silu(self.norm2(hidden)))
        return hidden + (x_BHWC if self.conv_shortcut is None else self.conv_shortcut(x_BHWC))


class Downsample(nnx.Module):
    """Halve the grid by a strided convolution; where it pads differs between networks (`Downsample2D`)."""

    def __init__(self, channels: int, kernels: Kernels, *, padding: Padding):
        self.conv = Conv(channels, channels, 3, kernels, stride=2, padding=padding)

    def __call__(self, x_BHWC: Float[Array, "B H W C"]) -> Float[Array, "B H2 W2 C"]:
        return self.conv(x_BHWC)


class Upsample(nnx.Module):
    """Double the grid by nearest neighbours, then convolve (`Upsample2D`).

    `size` cuts the doubled grid to that of a skip connection whose own height or width was odd.
    """

    def __init__(self, channels: int, kernels: Kernels):
        self.conv = Conv(channels, channels, 3, kernels, padding=AROUND)

    def __call__(
        self, x_BHWC: Float[Array, "B H W C"], size: tuple[int, int] | None = None
    ) -> Float[Array, "B H2 W2 C"]:
        batch, height, width, channels = x_BHWC.shape
        pairs = jnp.broadcast_to(x_BHWC[:, :, None, :, None], (batch, height, 2, width, 2, channels))
        doubled = pairs.reshape(batch, 2 * height, 2 * width, channels)
        return self.conv(doubled if size is None else doubled[:, : size[0], : size[1]])
