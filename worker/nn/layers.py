"""Layers with PyTorch's parameter names; convolution weights are OHWI, linear weights [out, in].

Activations are NHWC or [..., channels] and keep their dtype: weights are cast to it, norm statistics and
activation functions are evaluated in float32. Parameters are declared by shape alone.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from worker.nn.kernels import Kernels

type Padding = tuple[tuple[int, int], tuple[int, int]]

NO_PADDING: Padding = ((0, 0), (0, 0))
AROUND: Padding = ((1, 1), (1, 1))
BELOW_AND_RIGHT: Padding = ((0, 1), (0, 1))


def parameter(*shape: int) -> nnx.Param[Any]:
    """Declare a parameter: its shape, and no memory."""
    return nnx.Param(jax.ShapeDtypeStruct(shape, jnp.float32))


def silu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x * sigmoid(x)."""
    return jax.nn.silu(x.astype(jnp.float32)).astype(x.dtype)


def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The exact form, with erf (arXiv 1606.08415)."""
    return jax.nn.gelu(x.astype(jnp.float32), approximate=False).astype(x.dtype)


def gelu_tanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The tanh approximation (arXiv 1606.08415), with which T5 v1.1 and FLUX.1 were trained."""
    return jax.nn.gelu(x.astype(jnp.float32), approximate=True).astype(x.dtype)


def quick_gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The sigmoid approximation that OpenAI's CLIP was trained with: x * sigmoid(1.702 x)."""
    x_f32 = x.astype(jnp.float32)
    return (x_f32 * jax.nn.sigmoid(1.702 * x_f32)).astype(x.dtype)


def _project(x: Array, weight_OI: Array) -> Array:
    """Contract the last axis of `x` with the last of `weight_OI`, so that no transpose is needed."""
    return lax.dot_general(x, weight_OI.astype(x.dtype), (((x.ndim - 1,), (1,)), ((), ())))


class Linear(nnx.Module):
    """y = x weight^T + bias, weight [out, in], its rows times `weight_scale` where there is one."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True):
        self.weight = parameter(out_features, in_features)
        self.weight_scale: nnx.Param[Any] | None = None
        self.out_features = out_features
        self.bias = parameter(out_features) if bias else None

    def add_scale(self) -> None:
        """Declare the scale of weights that are stored in a format of little range."""
        self.weight_scale = nnx.data(parameter(self.out_features))

    def __call__(self, x: Float[Array, "*rest I"]) -> Float[Array, "*rest O"]:
        y = _project(x, self.weight[...])
        if self.weight_scale is not None:
            y = y * self.weight_scale[...].astype(y.dtype)
        return y if self.bias is None else y + self.bias[...].astype(y.dtype)


class Conv(nnx.Module):
    """2D convolution over NHWC with an OHWI weight and a bias; padding is given per side."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        kernels: Kernels,
        *,
        stride: int = 1,
        padding: Padding = NO_PADDING,
    ):
        self.weight = parameter(out_channels, kernel_size, kernel_size, in_channels)
        self.bias = parameter(out_channels)
        self.stride = stride
        self.padding = padding
        self.form = kernels.convolution

    def __call__(self, x_BHWC: Float[Array, "B H W C"]) -> Float[Array, "B H2 W2 O"]:
        weight_OHWI = self.weight[...].astype(x_BHWC.dtype)
        if weight_OHWI.shape[1:3] == (1, 1) and self.stride == 1 and self.padding == NO_PADDING:
            y = _project(x_BHWC, weight_OHWI[:, 0, 0])
        elif self.form == "shifted" and _shifting_pays(x_BHWC, weight_OHWI, self.stride):
            y = _convolve_shifted(x_BHWC, weight_OHWI, self.stride, self.padding)
        else:
            y = lax.conv_general_dilated(
                x_BHWC,
                weight_OHWI,
                (self.stride, self.stride),
                self.padding,
                dimension_numbers=("NHWC", "OHWI", "NHWC"),
            )
        return y + self.bias[...].astype(y.dtype)


def _shifting_pays(x_BHWC: Array, weight_OHWI: Array, stride: int) -> bool:
    """Slices copy each output position's inputs, XLA on a CPU transposes the weight: the fewer rows win.

    Measured on CPU, float32: 8x8x1280 four times quicker than XLA's own, 16x16x1280 1.6 times, 32x32x640 even,
    512x512x128 2.7 times slower, and worse for three output channels.
    """
    batch, height, width, _ = x_BHWC.shape
    return batch * height * width < stride**2 * weight_OHWI.shape[0]


def _convolve_shifted(x_BHWC: Array, weight_OHWI: Array, stride: int, padding: Padding) -> Array:
    """A convolution as one matrix product over the concatenated shifted slices of its input."""
    out_channels, rows, columns, _ = weight_OHWI.shape
    x = jnp.pad(x_BHWC, ((0, 0), *padding, (0, 0)))
    height = (x.shape[1] - rows) // stride + 1
    width = (x.shape[2] - columns) // stride + 1
    slices = [
        x[:, i : i + stride * (height - 1) + 1 : stride, j : j + stride * (width - 1) + 1 : stride]
        for i in range(rows)
        for j in range(columns)
    ]
    return _project(jnp.concatenate(slices, axis=-1), weight_OHWI.reshape(out_channels, -1))


def _standardise(x_f32: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """Zero mean and unit variance over `axes`, in two passes: E[x^2] - E[x]^2 would cancel."""
    centred = x_f32 - jnp.mean(x_f32, axes, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(jnp.square(centred), axes, keepdims=True) + epsilon)


class GroupNorm(nnx.Module):
    """Group normalisation over [B, ..., C] (arXiv 1803.08494)."""

    def __init__(self, groups: int, channels: int, *, epsilon: float):
        self.weight = parameter(channels)
        self.bias = parameter(channels)
        self.groups = groups
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "B *grid C"]) -> Float[Array, "B *grid C"]:
        batch, *grid, channels = x.shape
        grouped = x.astype(jnp.float32).reshape(batch, math.prod(grid), self.groups, channels // self.groups)
        normal = _standardise(grouped, (1, 3), self.epsilon).reshape(x.shape)
        return (normal * self.weight[...] + self.bias[...]).astype(x.dtype)


def layer_norm(x: Float[Array, "*rest C"], *, epsilon: float) -> Float[Array, "*rest C"]:
    """Layer normalisation over the last axis (arXiv 1607.06450) without parameters; float32, whatever `x` is."""
    return _standardise(x.astype(jnp.float32), (x.ndim - 1,), epsilon)


class RMSNorm(nnx.Module):
    """Normalisation by the root mean square of the last axis (arXiv 1910.07467)."""

    def __init__(self, features: int, *, epsilon: float):
        self.weight = parameter(features)
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*rest C"]) -> Float[Array, "*rest C"]:
        x_f32 = x.astype(jnp.float32)
        scale = lax.rsqrt(jnp.mean(jnp.square(x_f32), axis=-1, keepdims=True) + self.epsilon)
        return (x_f32 * scale * self.weight[...]).astype(x.dtype)


class LayerNorm(nnx.Module):
    """Layer normalisation over the last axis (arXiv 1607.06450)."""

    def __init__(self, features: int, *, epsilon: float):
        self.weight = parameter(features)
        self.bias = parameter(features)
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*rest C"]) -> Float[Array, "*rest C"]:
        normal = layer_norm(x, epsilon=self.epsilon)
        return (normal * self.weight[...] + self.bias[...]).astype(x.dtype)


class Embedding(nnx.Module):
    """Rows of a table, in the table's dtype."""

    def __init__(self, rows: int, features: int):
        self.weight = parameter(rows, features)

    def __call__(self, ids: Int[Array, "*rest"]) -> Float[Array, "*rest C"]:
        return jnp.take(self.weight[...], ids, axis=0, mode="clip")
