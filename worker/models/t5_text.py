"""T5's encoder (Raffel et al. 2020, arXiv 1910.10683) in its version 1.1: transformers' `T5EncoderModel`.

Padding is attended to like any other token: FLUX.1 was trained on the states of padded texts.
"""

import math
from typing import cast

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from worker.models.t5_text_config import T5TextConfig
from worker.nn.attention import attention, split_heads
from worker.nn.kernels import Kernels
from worker.nn.layers import Embedding, Linear, RMSNorm, gelu_tanh


class SelfAttention(nnx.Module):
    """Multi-head attention among all tokens, not scaled; the first layer's bias of distances serves all."""

    def __init__(self, config: T5TextConfig, kernels: Kernels, *, biased: bool):
        inner = config.num_heads * config.d_kv
        self.q = Linear(config.d_model, inner, bias=False)
        self.k = Linear(config.d_model, inner, bias=False)
        self.v = Linear(config.d_model, inner, bias=False)
        self.o = Linear(inner, config.d_model, bias=False)
        self.relative_attention_bias = Embedding(config.buckets, config.num_heads) if biased else None
        self.heads = config.num_heads
        self.kernels = kernels

    def distances(self, buckets_LL: Int[Array, "L L"]) -> Float[Array, "N L L"]:
        """The bias of distances, which the first layer alone has."""
        if self.relative_attention_bias is None:
            raise ValueError("this layer has no bias of its own")
        return self.relative_attention_bias(buckets_LL).transpose(2, 0, 1)

    def __call__(self, x_BLD: Float[Array, "B L D"], bias_NLL: Float[Array, "N L L"]) -> Float[Array, "B L D"]:
        q_BLNK, k_BLNK, v_BLNK = (split_heads(part(x_BLD), self.heads) for part in (self.q, self.k, self.v))
        attended = attention(q_BLNK, k_BLNK, v_BLNK, self.kernels, bias_NST=bias_NLL)
        return self.o(attended.reshape(*x_BLD.shape[:-1], -1))


class GatedDense(nnx.Module):
    """Half of a projection, gated by the GELU of the other half (arXiv 2002.05202)."""

    def __init__(self, config: T5TextConfig):
        self.wi_0 = Linear(config.d_model, config.d_ff, bias=False)
        self.wi_1 = Linear(config.d_model, config.d_ff, bias=False)
        self.wo = Linear(config.d_ff, config.d_model, bias=False)

    def __call__(self, x_BLD: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        return self.wo(gelu_tanh(self.wi_0(x_BLD)) * self.wi_1(x_BLD))


class AttentionLayer(nnx.Module):
    """Attention behind a norm and beside a shortcut."""

    def __init__(self, config: T5TextConfig, kernels: Kernels, *, biased: bool):
        self.SelfAttention = SelfAttention(config, kernels, biased=biased)
        self.layer_norm = RMSNorm(config.d_model, epsilon=config.layer_norm_epsilon)

    def __call__(self, x_BLD: Float[Array, "B L D"], bias_NLL: Float[Array, "N L L"]) -> Float[Array, "B L D"]:
        return x_BLD + self.SelfAttention(self.layer_norm(x_BLD), bias_NLL)


class DenseLayer(nnx.Module):
    """Feed-forward behind a norm and beside a shortcut."""

    def __init__(self, config: T5TextConfig):
        self.DenseReluDense = GatedDense(config)
        self.layer_norm = RMSNorm(config.d_model, epsilon=config.layer_norm_epsilon)

    def __call__(self, x_BLD: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        return x_BLD + self.DenseReluDense(self.layer_norm(x_BLD))


class Block(nnx.Module):
    """The two layers, as the checkpoint numbers them."""

    def __init__(self, config: T5TextConfig, kernels: Kernels, *, biased: bool):
        self.layer = nnx.List([AttentionLayer(config, kernels, biased=biased), DenseLayer(config)])

    def __call__(self, x_BLD: Float[Array, "B L D"], bias_NLL: Float[Array, "N L L"]) -> Float[Array, "B L D"]:
        return cast(DenseLayer, self.layer[1])(self.attention(x_BLD, bias_NLL))

    @property
    def attention(self) -> AttentionLayer:
        """The first layer."""
        return cast(AttentionLayer, self.layer[0])


class Encoder(nnx.Module):
    """The stack of blocks and the final norm."""

    def __init__(self, config: T5TextConfig, kernels: Kernels):
        self.block = nnx.List(Block(config, kernels, biased=i == 0) for i in range(config.num_layers))
        self.final_layer_norm = RMSNorm(config.d_model, epsilon=config.layer_norm_epsilon)

    def __call__(self, x_BLD: Float[Array, "B L D"], buckets_LL: Int[Array, "L L"]) -> Float[Array, "B L D"]:
        bias_NLL = self.block[0].attention.SelfAttention.distances(buckets_LL)
        for block in self.block:
            x_BLD = block(x_BLD, bias_NLL)
        return self.final_layer_norm(x_BLD)


class T5Text(nnx.Module):
    """The text encoder; it computes in the dtype of its token embeddings."""

    def __init__(self, config: T5TextConfig, kernels: Kernels):
        self.shared = Embedding(config.vocab_size, config.d_model)
        self.encoder = Encoder(config, kernels)
        self.config = config

    def __call__(self, ids_BL: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        """Token ids to the last states."""
        buckets_LL = jnp.asarray(distance_buckets(ids_BL.shape[1], self.config))
        return self.encoder(self.shared(ids_BL), buckets_LL)


def distance_buckets(length: int, config: T5TextConfig) -> Int[np.ndarray, "L L"]:
    """The bucket of every distance from a query to a key: half for keys behind it, half for keys ahead.

    Small distances have a bucket each, larger ones share them evenly in the logarithm up to `max_distance`.
    """
    places = np.arange(length)
    distance_LL = places[None] - places[:, None]
    half = config.buckets // 2
    exact = half // 2
    apart_LL = np.abs(distance_LL)
    # In float32 as the reference, where a logarithm decides on the side of a border.
    share = np.log(np.maximum(apart_LL, 1).astype(np.float32) / np.float32(exact), dtype=np.float32)
    share = share / np.float32(math.log(config.max_distance / exact)) * np.float32(half - exact)
    far_LL = np.minimum(exact + share.astype(np.int64), half - 1)
    return (np.where(apart_LL < exact, apart_LL, far_LL) + half * (distance_LL > 0)).astype(np.int32)
