"""The layers of UNets and autoencoders around attention."""

from flax import nnx
from jaxtyping import Array, Float

from worker.nn.attention import attention, split_heads
from worker.nn.kernels import Kernels
from worker.nn.layers import GroupNorm, Linear


class _MultiHead(nnx.Module):
    """The four projections around attention, with diffusers' parameter names."""

    def __init__(self, features: int, context_features: int, heads: int, kernels: Kernels, *, qkv_bias: bool):
        self.to_q = Linear(features, features, bias=qkv_bias)
        self.to_k = Linear(context_features, features, bias=qkv_bias)
        self.to_v = Linear(context_features, features, bias=qkv_bias)
        self.to_out = nnx.List([Linear(features, features)])
        self.heads = heads
        self.kernels = kernels

    def attend(self, x_BSD: Float[Array, "B S D"], context_BTE: Float[Array, "B T E"]) -> Float[Array, "B S D"]:
        """Queries from `x`, keys and values from the context."""
        q_BSNK = split_heads(self.to_q(x_BSD), self.heads)
        k_BTNK = split_heads(self.to_k(context_BTE), self.heads)
        v_BTNK = split_heads(self.to_v(context_BTE), self.heads)
        return self.to_out[0](attention(q_BSNK, k_BTNK, v_BTNK, self.kernels).reshape(x_BSD.shape))


class Attention(_MultiHead):
    """Multi-head attention to a context, or of a sequence to itself, as in the UNet's transformer."""

    def __init__(self, features: int, context_features: int, heads: int, kernels: Kernels):
        super().__init__(features, context_features, heads, kernels, qkv_bias=False)

    def __call__(
        self, x_BSD: Float[Array, "B S D"], context_BTE: Float[Array, "B T E"] | None = None
    ) -> Float[Array, "B S D"]:
        return self.attend(x_BSD, x_BSD if context_BTE is None else context_BTE)


class GridAttention(_MultiHead):
    """Attention of one head among all positions of a grid, behind a group norm and beside a shortcut."""

    def __init__(self, channels: int, kernels: Kernels, *, groups: int, epsilon: float):
        super().__init__(channels, channels, 1, kernels, qkv_bias=True)
        self.group_norm = GroupNorm(groups, channels, epsilon=epsilon)

    def __call__(self, x_BHWC: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        batch, height, width, channels = x_BHWC.shape
        normal_BSD = self.group_norm(x_BHWC).reshape(batch, height * width, channels)
        return x_BHWC + self.attend(normal_BSD, normal_BSD).reshape(x_BHWC.shape)
