"""CLIP's text encoder (arXiv 2103.00020): transformers' `CLIPTextModel` and `CLIPTextModelWithProjection`.

Serves OpenAI's ViT-L/14 (SD 1.x, SDXL), OpenCLIP's ViT-H/14 (SD 2.x) and ViT-bigG/14 (SDXL). Parameters keep
the published `text_model.` prefix.
"""

from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from worker.models.clip_text_config import CLIPTextConfig
from worker.nn.attention import attention, split_heads
from worker.nn.kernels import Kernels
from worker.nn.layers import Embedding, LayerNorm, Linear, gelu, quick_gelu

ACTIVATIONS = {"quick_gelu": quick_gelu, "gelu": gelu}


class CLIPTextOutput(NamedTuple):
    """What pipelines take from the encoder.

    `last`: the final hidden state after the final norm. `penultimate`: the state before the last layer, not
    normalised. `pooled`: `last` at the first end token, projected where the checkpoint has a projection.
    """

    last: Float[Array, "B L D"]
    penultimate: Float[Array, "B L D"]
    pooled: Float[Array, "B P"]


class SelfAttention(nnx.Module):
    """Multi-head attention to earlier tokens and the token itself."""

    def __init__(self, config: CLIPTextConfig, kernels: Kernels):
        width = config.hidden_size
        self.q_proj = Linear(width, width)
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.out_proj = Linear(width, width)
        self.heads = config.num_attention_heads
        self.kernels = kernels

    def __call__(self, x_BLD: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        q_BLNK = split_heads(self.q_proj(x_BLD), self.heads)
        k_BLNK = split_heads(self.k_proj(x_BLD), self.heads)
        v_BLNK = split_heads(self.v_proj(x_BLD), self.heads)
        return self.out_proj(attention(q_BLNK, k_BLNK, v_BLNK, self.kernels, causal=True).reshape(x_BLD.shape))


class MLP(nnx.Module):
    """Linear, activation, linear."""

    def __init__(self, config: CLIPTextConfig):
        self.fc1 = Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size)
        self.activation = config.hidden_act

    def __call__(self, x_BLD: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        return self.fc2(ACTIVATIONS[self.activation](self.fc1(x_BLD)))


class EncoderLayer(nnx.Module):
    """Attention and MLP, each behind a layer norm and beside a shortcut."""

    def __init__(self, config: CLIPTextConfig, kernels: Kernels):
        self.layer_norm1 = LayerNorm(config.hidden_size, epsilon=config.layer_norm_eps)
        self.self_attn = SelfAttention(config, kernels)
        self.layer_norm2 = LayerNorm(config.hidden_size, epsilon=config.layer_norm_eps)
        self.mlp = MLP(config)

    def __call__(self, x_BLD: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        x_BLD = x_BLD + self.self_attn(self.layer_norm1(x_BLD))
        return x_BLD + self.mlp(self.layer_norm2(x_BLD))


class Embeddings(nnx.Module):
    """Token plus position."""

    def __init__(self, config: CLIPTextConfig):
        self.token_embedding = Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = Embedding(config.max_position_embeddings, config.hidden_size)

    def __call__(self, ids_BL: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        return self.token_embedding(ids_BL) + self.position_embedding(jnp.arange(ids_BL.shape[1]))


class Encoder(nnx.Module):
    """The stack of layers; returns the state before each layer, then the final one."""

    def __init__(self, config: CLIPTextConfig, kernels: Kernels):
        self.layers = nnx.List(EncoderLayer(config, kernels) for _ in range(config.num_hidden_layers))

    def __call__(self, x_BLD: Float[Array, "B L D"]) -> list[Float[Array, "B L D"]]:
        states = [x_BLD]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return states


class TextModel(nnx.Module):
    """Embeddings, layers and the final norm, under the checkpoint's prefix."""

    def __init__(self, config: CLIPTextConfig, kernels: Kernels):
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config, kernels)
        self.final_layer_norm = LayerNorm(config.hidden_size, epsilon=config.layer_norm_eps)


class CLIPText(nnx.Module):
    """The text encoder; it computes in the dtype of its token embeddings."""

    def __init__(self, config: CLIPTextConfig, kernels: Kernels):
        self.text_model = TextModel(config, kernels)
        self.text_projection = (
            None if config.projection_dim is None else Linear(config.hidden_size, config.projection_dim, bias=False)
        )
        self.end_token = config.end_token

    def __call__(self, ids_BL: Int[Array, "B L"]) -> CLIPTextOutput:
        """Encode token ids; a row without an end token is pooled at its first token, as in the reference."""
        states = self.text_model.encoder(self.text_model.embeddings(ids_BL))
        last = self.text_model.final_layer_norm(states[-1])
        ends_B = jnp.argmax(ids_BL == self.end_token, axis=1)
        pooled = jnp.take_along_axis(last, ends_B[:, None, None], axis=1)[:, 0]
        if self.text_projection is not None:
            pooled = self.text_projection(pooled)
        return CLIPTextOutput(last, states[-2], pooled)
