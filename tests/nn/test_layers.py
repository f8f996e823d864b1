import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.nn.program import equations
from tests.nn.reference import assert_close, nchw, noise, parameters, randomise, run
from worker.nn.functional import functional
from worker.nn.kernels import Kernels
from worker.nn.layers import (
    AROUND,
    BELOW_AND_RIGHT,
    NO_PADDING,
    Conv,
    Embedding,
    GroupNorm,
    LayerNorm,
    Linear,
    Padding,
    gelu,
    quick_gelu,
    silu,
)

FORMS = pytest.mark.parametrize("kernels", [Kernels(convolution="xla"), Kernels(convolution="shifted")])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 7), (2, 3, 7), (2, 3, 5, 7)])
def test_linear(shape: tuple[int, ...], bias: bool):
    reference = torch.nn.Linear(7, 11, bias=bias)
    randomise(reference)
    x = noise(*shape)
    ours = run(Linear(7, 11, bias=bias), parameters(reference), x)
    np.testing.assert_allclose(ours, reference(torch.from_numpy(x)).detach().numpy(), rtol=0, atol=1e-5)


@FORMS
@pytest.mark.parametrize(
    ("kernel_size", "stride", "padding"),
    [(1, 1, NO_PADDING), (3, 1, AROUND), (3, 2, AROUND), (3, 2, BELOW_AND_RIGHT), (3, 1, NO_PADDING)],
)
@pytest.mark.parametrize(("size", "out_channels"), [((9, 13), 5), ((3, 5), 41), ((4, 3), 41)])
def test_convolution(
    kernels: Kernels,
    kernel_size: int,
    stride: int,
    padding: Padding,
    size: tuple[int, int],
    out_channels: int,
):
    reference = torch.nn.Conv2d(7, out_channels, kernel_size, stride)
    randomise(reference)
    x = noise(2, *size, 7)
    layer = Conv(7, out_channels, kernel_size, kernels, stride=stride, padding=padding)
    (top, bottom), (left, right) = padding
    expected = reference(torch.nn.functional.pad(nchw(x), (left, right, top, bottom)))
    assert_close(run(layer, parameters(reference), x), expected)


@pytest.mark.parametrize(
    ("form", "size", "primitive"),
    [
        ("xla", (3, 5), "conv_general_dilated"),
        ("shifted", (3, 5), "dot_general"),
        ("shifted", (9, 13), "conv_general_dilated"),
    ],
)
def test_form_of_convolution(form: str, size: tuple[int, int], primitive: str):
    """Slices are shifted only where the grid is smaller than the layer is wide."""
    pure = functional(Conv(7, 41, 3, Kernels(convolution=form), padding=AROUND))
    names = {equation.primitive.name for equation in equations(pure.apply, pure.shapes, noise(2, *size, 7))}
    assert names & {"conv_general_dilated", "dot_general"} == {primitive}


@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])
def test_group_norm(epsilon: float):
    reference = torch.nn.GroupNorm(3, 12, eps=epsilon)
    randomise(reference)
    # So little variance that the epsilon tells.
    x = 1e-3 * noise(2, 5, 7, 12)
    assert_close(run(GroupNorm(3, 12, epsilon=epsilon), parameters(reference), x), reference(nchw(x)))


@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])
def test_layer_norm(epsilon: float):
    reference = torch.nn.LayerNorm(12, eps=epsilon)
    randomise(reference)
    x = 1e-3 * noise(2, 5, 12)
    ours = run(LayerNorm(12, epsilon=epsilon), parameters(reference), x)
    np.testing.assert_allclose(ours, reference(torch.from_numpy(x)).detach().numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm", [GroupNorm(2, 8, epsilon=1e-6), LayerNorm(8, epsilon=1e-6)])
def test_variance_survives_a_large_mean(norm: GroupNorm | LayerNorm):
    """Values of 4096 +- 1: their squares differ by less than float32 holds."""
    signs = np.where(np.arange(8 * 24).reshape(1, 24, 8) % 2, 1.0, -1.0).astype(np.float32)
    params = {"weight": jnp.ones(8), "bias": jnp.zeros(8)}
    np.testing.assert_allclose(run(norm, params, 4096 + signs), signs, atol=1e-5)


@pytest.mark.parametrize(
    ("ours", "reference"),
    [
        (silu, torch.nn.functional.silu),
        (gelu, torch.nn.functional.gelu),
        (quick_gelu, lambda x: x * torch.sigmoid(1.702 * x)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations(ours, reference, dtype: torch.dtype):
    x = torch.linspace(-8, 8, 1001).to(dtype)
    result = ours(jnp.asarray(x.float().numpy(), dtype=str(dtype).removeprefix("torch.")))
    exact = reference(x.double())
    # A single rounding to the dtype: half a unit in the last place.
    relative = torch.finfo(dtype).eps / 2 + 1e-6
    np.testing.assert_allclose(np.asarray(result, np.float64), exact, rtol=relative, atol=1e-6)


def test_embedding():
    table = noise(9, 5)
    ids = np.array([[0, 8, 3], [3, 3, 1]])
    np.testing.assert_array_equal(run(Embedding(9, 5), {"weight": jnp.asarray(table)}, ids), table[ids])


@pytest.mark.parametrize("stored", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("computed", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "layer",
    [
        Linear(8, 6),
        Conv(8, 6, 3, Kernels()),
        Conv(8, 6, 3, Kernels(convolution="shifted")),
        Conv(8, 6, 1, Kernels()),
        GroupNorm(2, 8, epsilon=1e-5),
        LayerNorm(8, epsilon=1e-5),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_activations_keep_their_dtype(layer, stored: jnp.dtype, computed: jnp.dtype):
    pure = functional(layer)
    params = {name: jax.ShapeDtypeStruct(spec.shape, stored) for name, spec in pure.shapes.items()}
    out = jax.eval_shape(pure.apply, params, jax.ShapeDtypeStruct((2, 5, 7, 8), computed))
    assert out.dtype == computed
