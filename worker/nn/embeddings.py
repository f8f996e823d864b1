"""Embeddings of scalars: the two-layer network that follows their sinusoids."""

from flax import nnx
from jaxtyping import Array, Float

from worker.nn.layers import Linear, silu


class TimestepEmbedding(nnx.Module):
    """Linear, SiLU, linear; a condition, where the network has one, is projected and added to the input."""

    def __init__(self, in_features: int, features: int, *, condition_features: int | None = None):
        self.linear_1 = Linear(in_features, features)
        self.cond_proj = None if condition_features is None else Linear(condition_features, in_features, bias=False)
        self.linear_2 = Linear(features, features)

    def __call__(
        self, x_BF: Float[Array, "B F"], condition_BG: Float[Array, "B G"] | None = None
    ) -> Float[Array, "B E"]:
        if self.cond_proj is not None and condition_BG is not None:
            x_BF = x_BF + self.cond_proj(condition_BG)
        return self.linear_2(silu(self.linear_1(x_BF)))
