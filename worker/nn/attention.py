"""Scaled dot-product attention (arXiv 1706.03762) as functions of arrays."""

from typing import cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from worker.nn.kernels import Kernels

# Logits of one chunk of queries, in elements: 256 MiB in float32.
LOGITS_LIMIT = 1 << 26
# The fused kernel of every card since Ampere takes heads up to this width, in steps of eight.
FUSED_HEAD_LIMIT = 128


def attention(
    q_BSNK: Float[Array, "B S N K"],
    k_BTNK: Float[Array, "B T N K"],
    v_BTNK: Float[Array, "B T N K"],
    kernels: Kernels,
    *,
    causal: bool = False,
    bias_NST: Float[Array, "N S T"] | None = None,
) -> Float[Array, "B S N K"]:
    """softmax(q k^T / sqrt(K)) v for each head, logits and softmax in float32; `causal` needs S = T.

    The fused kernel is used when it was chosen and can do it; long sequences are otherwise taken in chunks of
    queries, so that the logits never occupy more than `LOGITS_LIMIT` elements at once. With a `bias`, as T5 has it,
    the logits are not scaled and the sequence is taken as a whole.
    """
    if bias_NST is not None:
        return _attend(q_BSNK, k_BTNK, v_BTNK, None, bias_NST)
    if kernels.attention == "cudnn" and _fusable(q_BSNK):
        return jax.nn.dot_product_attention(q_BSNK, k_BTNK, v_BTNK, is_causal=causal, implementation="cudnn")
    batch, queries, heads, _ = q_BSNK.shape
    keys = k_BTNK.shape[1]
    chunk = max(1, LOGITS_LIMIT // (batch * heads * keys))
    if chunk >= queries:
        return _attend(q_BSNK, k_BTNK, v_BTNK, jnp.arange(queries) if causal else None)
    return _attend_in_chunks(q_BSNK, k_BTNK, v_BTNK, chunk, causal)


def _fusable(q_BSNK: Array) -> bool:
    head_width = q_BSNK.shape[-1]
    half = q_BSNK.dtype in (jnp.bfloat16, jnp.float16)
    return half and head_width <= FUSED_HEAD_LIMIT and head_width % 8 == 0


def _attend(
    q_BSNK: Array, k_BTNK: Array, v_BTNK: Array, positions_S: Array | None, bias_NST: Array | None = None
) -> Array:
    """Attend to all keys, or with `positions_S` to those no later than each query's own position."""
    logits_BNST = jnp.einsum("BSNK,BTNK->BNST", q_BSNK, k_BTNK, preferred_element_type=jnp.float32)
    logits_BNST = logits_BNST * q_BSNK.shape[-1] ** -0.5 if bias_NST is None else logits_BNST + bias_NST
    if positions_S is not None:
        seen_ST = positions_S[:, None] >= jnp.arange(k_BTNK.shape[1])
        logits_BNST = jnp.where(seen_ST, logits_BNST, -jnp.inf)
    weights_BNST = jax.nn.softmax(logits_BNST, axis=-1).astype(v_BTNK.dtype)
    return jnp.einsum("BNST,BTNK->BSNK", weights_BNST, v_BTNK)


def _attend_in_chunks(q_BSNK: Array, k_BTNK: Array, v_BTNK: Array, chunk: int, causal: bool) -> Array:
    batch, queries, heads, head_width = q_BSNK.shape
    count = -(-queries // chunk)
    # Equal chunks keep the padding below one row per chunk.
    chunk = -(-queries // count)
    padded = jnp.pad(q_BSNK, ((0, 0), (0, count * chunk - queries), (0, 0), (0, 0)))
    chunks = jnp.moveaxis(padded.reshape(batch, count, chunk, heads, head_width), 1, 0)
    positions = jnp.arange(count * chunk).reshape(count, chunk)

    def attend(piece: tuple[Array, Array]) -> Array:
        return _attend(piece[0], k_BTNK, v_BTNK, piece[1] if causal else None)

    attended = cast(Array, jax.lax.map(attend, (chunks, positions)))
    return jnp.moveaxis(attended, 0, 1).reshape(padded.shape)[:, :queries]


def split_heads(x_BSD: Float[Array, "B S D"], heads: int) -> Float[Array, "B S N K"]:
    """Cut the features into `heads` equal parts."""
    return x_BSD.reshape(*x_BSD.shape[:-1], heads, -1)
