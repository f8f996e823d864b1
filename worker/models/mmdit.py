"""FLUX.1's transformer, after the multimodal diffusion transformer (Esser et al. 2024, arXiv 2403.03206).

Follows diffusers' `FluxTransformer2DModel`. Text and picture are one sequence, text first: its tokens have all the same
place, and every one of them is attended to, padding included, so that nothing is masked. First come blocks with
weights of their own for text and picture, then blocks that share them, with attention beside the feed-forward part
(Dehghani et al. 2023, arXiv 2302.05442).
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from worker.models.mmdit_config import PATCH_SIZE, MMDiTConfig
from worker.nn.attention import attention, split_heads
from worker.nn.embeddings import TimestepEmbedding
from worker.nn.kernels import Kernels
from worker.nn.layers import Linear, RMSNorm, gelu_tanh, layer_norm, silu
from worker.nn.rotary import Turns, grid_turns, turn
from worker.nn.sinusoids import timestep_sinusoids
from worker.nn.transformer import Identity

EPSILON = 1e-6
WAVES = 256


class Modulation(nnx.Module):
    """Shifts, scales and gates for a norm and what follows it, from what is known of the whole picture."""

    def __init__(self, features: int, parts: int):
        self.linear = Linear(features, parts * features)
        self.parts = parts

    def __call__(self, known_BD: Float[Array, "B D"]) -> list[Float[Array, "B 1 D"]]:
        return jnp.split(self.linear(silu(known_BD))[:, None], self.parts, axis=-1)


def modulate(x_BSD: Float[Array, "B S D"], shift: Array, scale: Array) -> Float[Array, "B S D"]:
    """Layer norm, scaled and shifted (Peebles & Xie 2022, arXiv 2212.09748)."""
    scale_f32 = 1 + scale.astype(jnp.float32)
    return (layer_norm(x_BSD, epsilon=EPSILON) * scale_f32 + shift).astype(x_BSD.dtype)


class GELU(nnx.Module):
    """Linear and GELU."""

    def __init__(self, features: int, hidden: int):
        self.proj = Linear(features, hidden)

    def __call__(self, x_BSD: Float[Array, "B S D"]) -> Float[Array, "B S F"]:
        return gelu_tanh(self.proj(x_BSD))


class FeedForward(nnx.Module):
    """GELU of four times the width, and back."""

    def __init__(self, features: int):
        self.net = nnx.List([GELU(features, 4 * features), Identity(), Linear(4 * features, features)])

    def __call__(self, x_BSD: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        for layer in self.net:
            x_BSD = layer(x_BSD)
        return x_BSD


class Heads(nnx.Module):
    """Queries, keys and values by head, the first two normalised."""

    def __init__(self, config: MMDiTConfig):
        self.norm_q = RMSNorm(config.head_width, epsilon=EPSILON)
        self.norm_k = RMSNorm(config.head_width, epsilon=EPSILON)
        self.to_q = Linear(config.features, config.features)
        self.to_k = Linear(config.features, config.features)
        self.to_v = Linear(config.features, config.features)
        self.heads = config.heads

    def project(self, x_BSD: Float[Array, "B S D"]) -> tuple[Array, Array, Array]:
        """[B, S, N, K] each."""
        q, k, v = (split_heads(part(x_BSD), self.heads) for part in (self.to_q, self.to_k, self.to_v))
        return self.norm_q(q), self.norm_k(k), v


class JointAttention(Heads):
    """Attention of text and picture to both, each with projections of its own."""

    def __init__(self, config: MMDiTConfig, kernels: Kernels):
        super().__init__(config)
        features = config.features
        self.norm_added_q = RMSNorm(config.head_width, epsilon=EPSILON)
        self.norm_added_k = RMSNorm(config.head_width, epsilon=EPSILON)
        self.add_q_proj = Linear(features, features)
        self.add_k_proj = Linear(features, features)
        self.add_v_proj = Linear(features, features)
        self.to_out = nnx.List([Linear(features, features)])
        self.to_add_out = Linear(features, features)
        self.kernels = kernels

    def __call__(
        self, text_BLD: Float[Array, "B L D"], x_BPD: Float[Array, "B P D"], turns: Turns
    ) -> tuple[Float[Array, "B L D"], Float[Array, "B P D"]]:
        added = (self.add_q_proj, self.add_k_proj, self.add_v_proj)
        text_q, text_k, text_v = (split_heads(part(text_BLD), self.heads) for part in added)
        q, k, v = self.project(x_BPD)
        q_BSNK = turn(jnp.concatenate([self.norm_added_q(text_q), q], axis=1), turns)
        k_BSNK = turn(jnp.concatenate([self.norm_added_k(text_k), k], axis=1), turns)
        v_BSNK = jnp.concatenate([text_v, v], axis=1)
        joint_BSD = attention(q_BSNK, k_BSNK, v_BSNK, self.kernels).reshape(*v_BSNK.shape[:2], -1)
        text, picture = jnp.split(joint_BSD, [text_BLD.shape[1]], axis=1)
        return self.to_add_out(text), self.to_out[0](picture)


class SingleAttention(Heads):
    """Attention within the joint sequence; the projection of its output belongs to the block."""

    def __init__(self, config: MMDiTConfig, kernels: Kernels):
        super().__init__(config)
        self.kernels = kernels

    def __call__(self, x_BSD: Float[Array, "B S D"], turns: Turns) -> Float[Array, "B S D"]:
        q, k, v = self.project(x_BSD)
        return attention(turn(q, turns), turn(k, turns), v, self.kernels).reshape(x_BSD.shape)


class DoubleBlock(nnx.Module):
    """Joint attention, then a feed-forward part for text and picture each (`FluxTransformerBlock`)."""

    def __init__(self, config: MMDiTConfig, kernels: Kernels):
        self.norm1 = Modulation(config.features, 6)
        self.norm1_context = Modulation(config.features, 6)
        self.attn = JointAttention(config, kernels)
        self.ff = FeedForward(config.features)
        self.ff_context = FeedForward(config.features)

    def __call__(
        self,
        text_BLD: Float[Array, "B L D"],
        x_BPD: Float[Array, "B P D"],
        known_BD: Float[Array, "B D"],
        turns: Turns,
    ) -> tuple[Float[Array, "B L D"], Float[Array, "B P D"]]:
        shift, scale, gate, *after = self.norm1(known_BD)
        text_shift, text_scale, text_gate, *text_after = self.norm1_context(known_BD)
        text, picture = self.attn(modulate(text_BLD, text_shift, text_scale), modulate(x_BPD, shift, scale), turns)
        return (
            _fed(text_BLD + text_gate * text, self.ff_context, *text_after),
            _fed(x_BPD + gate * picture, self.ff, *after),
        )


def _fed(x_BSD: Array, feed_forward: FeedForward, shift: Array, scale: Array, gate: Array) -> Array:
    return x_BSD + gate * feed_forward(modulate(x_BSD, shift, scale))


class SingleBlock(nnx.Module):
    """Attention and feed-forward side by side, with one projection of both (`FluxSingleTransformerBlock`)."""

    def __init__(self, config: MMDiTConfig, kernels: Kernels):
        features = config.features
        self.norm = Modulation(features, 3)
        self.proj_mlp = Linear(features, 4 * features)
        self.proj_out = Linear(5 * features, features)
        self.attn = SingleAttention(config, kernels)

    def __call__(
        self, x_BSD: Float[Array, "B S D"], known_BD: Float[Array, "B D"], turns: Turns
    ) -> Float[Array, "B S D"]:
        shift, scale, gate = self.norm(known_BD)
        normal = modulate(x_BSD, shift, scale)
        both = jnp.concatenate([self.attn(normal, turns), gelu_tanh(self.proj_mlp(normal))], axis=-1)
        return x_BSD + gate * self.proj_out(both)


class Known(nnx.Module):
    """All that is known of the whole picture as one vector: time, pooled text and, in dev, guidance."""

    def __init__(self, config: MMDiTConfig):
        self.timestep_embedder = TimestepEmbedding(WAVES, config.features)
        self.guidance_embedder = TimestepEmbedding(WAVES, config.features) if config.embeds_guidance else None
        self.text_embedder = TimestepEmbedding(config.pooled_features, config.features)

    def __call__(
        self, time_B: Float[Array, " B"], pooled_BP: Float[Array, "B P"], guidance_B: Float[Array, " B"] | None
    ) -> Float[Array, "B D"]:
        known_BD = self.timestep_embedder(_waves(time_B).astype(pooled_BP.dtype))
        if self.guidance_embedder is not None and guidance_B is not None:
            known_BD = known_BD + self.guidance_embedder(_waves(1000 * guidance_B).astype(pooled_BP.dtype))
        return known_BD + self.text_embedder(pooled_BP)


def _waves(values_B: Array) -> Array:
    return timestep_sinusoids(values_B, WAVES, flip_sin_to_cos=True, freq_shift=0.0)


class MMDiT(nnx.Module):
    """Predicts the velocity, noise less image."""

    def __init__(self, config: MMDiTConfig, kernels: Kernels):
        features, packed = config.features, config.in_channels * PATCH_SIZE**2
        self.config = config
        self.time_text_embed = Known(config)
        self.context_embedder = Linear(config.context_features, features)
        self.x_embedder = Linear(packed, features)
        self.transformer_blocks = nnx.List(DoubleBlock(config, kernels) for _ in range(config.double_blocks))
        self.single_transformer_blocks = nnx.List(SingleBlock(config, kernels) for _ in range(config.single_blocks))
        self.norm_out = Modulation(features, 2)
        self.proj_out = Linear(features, packed)

    def __call__(
        self,
        x_BHWC: Float[Array, "B H W C"],
        time_B: Float[Array, " B"],
        context_BLD: Float[Array, "B L D"],
        *,
        pooled_BP: Float[Array, "B P"],
        guidance_B: Float[Array, " B"] | None = None,
    ) -> Float[Array, "B H W C"]:
        """Predict from the latent `x`, in whose dtype all is computed; height and width are even.

        `time` is 0 to 1000; `guidance` the scale, for checkpoints that embed it. Raises ValueError where it and the
        checkpoint do not fit each other.
        """
        if (guidance_B is not None) != self.config.embeds_guidance:
            raise ValueError("guidance is for the transformers that embed it, and for all of these")
        height, width = (side // PATCH_SIZE for side in x_BHWC.shape[1:3])
        turns = grid_turns(context_BLD.shape[1], height, width, self.config.axes)
        known_BD = self.time_text_embed(time_B, pooled_BP.astype(x_BHWC.dtype), guidance_B)
        x_BPD = self.x_embedder(pack(x_BHWC))
        text_BLD = self.context_embedder(context_BLD.astype(x_BHWC.dtype))
        for block in self.transformer_blocks:
            text_BLD, x_BPD = block(text_BLD, x_BPD, known_BD, turns)
        x_BSD = jnp.concatenate([text_BLD, x_BPD], axis=1)
        for block in self.single_transformer_blocks:
            x_BSD = block(x_BSD, known_BD, turns)
        scale, shift = self.norm_out(known_BD)
        x_BPD = modulate(x_BSD[:, text_BLD.shape[1] :], shift, scale)
        return unpack(self.proj_out(x_BPD), height, width)


def pack(x_BHWC: Float[Array, "B H W C"]) -> Float[Array, "B P F"]:
    """Patches of 2x2 latents as tokens, row by row; within one, channels first."""
    batch, height, width, channels = x_BHWC.shape
    patches = x_BHWC.reshape(batch, height // PATCH_SIZE, PATCH_SIZE, width // PATCH_SIZE, PATCH_SIZE, channels)
    return patches.transpose(0, 1, 3, 5, 2, 4).reshape(batch, -1, channels * PATCH_SIZE**2)


def unpack(x_BPF: Float[Array, "B P F"], height: int, width: int) -> Float[Array, "B H W C"]:
    """The inverse of `pack`, for a grid of so many patches."""
    patches = x_BPF.reshape(len(x_BPF), height, width, -1, PATCH_SIZE, PATCH_SIZE)
    return patches.transpose(0, 1, 4, 2, 5, 3).reshape(len(x_BPF), height * PATCH_SIZE, width * PATCH_SIZE, -1)
