from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers.models.attention_processor import Attention as ReferenceAttention

from tests.nn.program import equations
from tests.nn.reference import assert_close, nchw, noise, parameters, randomise, run
from worker.nn import attention as module
from worker.nn.attention import attention
from worker.nn.kernels import Kernels
from worker.nn.multi_head import Attention, GridAttention


def queries_keys_values(queries: int, keys: int, head_width: int = 6) -> tuple[np.ndarray, ...]:
    return (
        noise(2, queries, 3, head_width, seed=0),
        noise(2, keys, 3, head_width, seed=1),
        noise(2, keys, 3, head_width, seed=2),
    )


def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool) -> np.ndarray:
    heads_first = (torch.from_numpy(part).transpose(1, 2) for part in (q, k, v))
    result = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=causal)
    return result.transpose(1, 2).numpy()


@pytest.mark.parametrize(("queries", "keys", "causal"), [(11, 5, False), (11, 11, False), (11, 11, True)])
@pytest.mark.parametrize("limit", [1 << 26, 2 * 3 * 11 * 4, 1])
def test_against_reference(queries: int, keys: int, causal: bool, limit: int, monkeypatch: pytest.MonkeyPatch):
    """Whole, in chunks that do not divide the queries, and query by query."""
    monkeypatch.setattr(module, "LOGITS_LIMIT", limit)
    q, k, v = queries_keys_values(queries, keys)
    ours = jax.jit(lambda *parts: attention(*parts, Kernels(), causal=causal))(q, k, v)
    np.testing.assert_allclose(ours, expected(q, k, v, causal=causal), rtol=0, atol=1e-5)


def test_chunks_bound_the_logits():
    long = jax.ShapeDtypeStruct((1, 16384, 1, 8), jnp.float32)
    made = equations(lambda q, k, v: attention(q, k, v, Kernels()), long, long, long)
    assert max(out.aval.size for equation in made for out in equation.outvars) == module.LOGITS_LIMIT


@pytest.mark.parametrize(
    ("dtype", "head_width", "fused"),
    [
        (jnp.bfloat16, 64, True),
        (jnp.float16, 128, True),
        (jnp.bfloat16, 40, True),
        (jnp.bfloat16, 160, False),
        (jnp.bfloat16, 36, False),
        (jnp.float32, 64, False),
    ],
)
def test_fused_kernel_where_it_can(dtype: jnp.dtype, head_width: int, fused: bool, monkeypatch: pytest.MonkeyPatch):
    calls: list[dict[str, Any]] = []

    def record(q: jax.Array, *_: jax.Array, **options: Any) -> jax.Array:
        calls.append(options)
        return q

    monkeypatch.setattr(jax.nn, "dot_product_attention", record)
    q, k, v = (jnp.asarray(part, dtype) for part in queries_keys_values(11, 11, head_width))
    attention(q, k, v, Kernels(attention="cudnn"), causal=True)
    assert calls == ([{"is_causal": True, "implementation": "cudnn"}] if fused else [])


@pytest.mark.parametrize("cross", [True, False])
def test_attention_layer(cross: bool):
    reference = ReferenceAttention(12, cross_attention_dim=10 if cross else None, heads=3, dim_head=4)
    randomise(reference)
    x, context = noise(2, 11, 12), noise(2, 7, 10, seed=1) if cross else None
    ours = run(Attention(12, 10 if cross else 12, 3, Kernels()), parameters(reference), x, context)
    assert_close(ours, reference(torch.from_numpy(x), None if context is None else torch.from_numpy(context)))


def test_grid_attention():
    reference = ReferenceAttention(
        12, heads=1, dim_head=12, bias=True, norm_num_groups=3, eps=1e-6, residual_connection=True
    )
    randomise(reference)
    x = noise(2, 5, 7, 12)
    layer = GridAttention(12, Kernels(), groups=3, epsilon=1e-6)
    assert_close(run(layer, parameters(reference), x), reference(nchw(x)))
