"""bfloat16: nothing but bfloat16 is multiplied, and the result is close to float32's."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models import toy
from tests.models.test_unet import inputs
from tests.nn.program import equations
from tests.nn.reference import COMPILER_OPTIONS, noise
from worker.models.autoencoder import Autoencoder
from worker.models.autoencoder_config import AutoencoderConfig
from worker.models.clip_text import CLIPText
from worker.models.clip_text_config import CLIPTextConfig
from worker.models.mmdit import MMDiT
from worker.models.mmdit_config import MMDiTConfig
from worker.models.t5_text import T5Text
from worker.models.t5_text_config import T5TextConfig
from worker.models.unet import UNet
from worker.models.unet_config import UNetConfig
from worker.nn.functional import functional
from worker.nn.kernels import Kernels

# One rounding to bfloat16's 8 bits leaves an error 59 dB below the value, 75 dB below a range of six deviations.
# Those of all operations on the way add up to 46 dB in the UNet, 53 and more in the others.
LEAST_PSNR_DB = 42


def unet(dtype: Any) -> tuple[nnx.Module, str, tuple[Any, ...], dict[str, Any]]:
    (x, time, context), conditions = inputs(toy.SD1_UNET)
    module = UNet(UNetConfig.from_json(toy.SD1_UNET), Kernels())
    return module, "__call__", (x.astype(dtype), time, context.astype(dtype)), conditions


def encoder(dtype: Any) -> tuple[nnx.Module, str, tuple[Any, ...], dict[str, Any]]:
    module = Autoencoder(AutoencoderConfig.from_json(toy.AUTOENCODER), Kernels())
    return module, "encode", (noise(1, 36, 52, 3).astype(dtype),), {}


def decoder(dtype: Any) -> tuple[nnx.Module, str, tuple[Any, ...], dict[str, Any]]:
    module = Autoencoder(AutoencoderConfig.from_json(toy.AUTOENCODER), Kernels())
    return module, "decode", (noise(1, 9, 13, 4).astype(dtype),), {}


def text_encoder(dtype: Any) -> tuple[nnx.Module, str, tuple[Any, ...], dict[str, Any]]:
    del dtype
    module = CLIPText(CLIPTextConfig.from_json(toy.TEXT_ENCODER, projected=True), Kernels())
    return module, "__call__", (np.array([[7, 95, 3, 98, 11, 42, 90]]),), {}


def t5(dtype: Any) -> tuple[nnx.Module, str, tuple[Any, ...], dict[str, Any]]:
    del dtype
    return T5Text(T5TextConfig.from_json(toy.T5), Kernels()), "__call__", (np.arange(20)[None],), {}


def mmdit(dtype: Any) -> tuple[nnx.Module, str, tuple[Any, ...], dict[str, Any]]:
    module = MMDiT(MMDiTConfig.from_json(toy.FLUX_GUIDED_TRANSFORMER), Kernels())
    args = noise(2, 6, 10, 5).astype(dtype), np.array([1000, 5], np.float32), noise(2, 7, 22, seed=1)
    return module, "__call__", args, {"pooled_BP": noise(2, 26, seed=2), "guidance_B": np.array([3.5, 1], np.float32)}


CASES = pytest.mark.parametrize("case", [unet, mmdit, encoder, decoder, text_encoder, t5])


def random_parameters(shapes: dict[str, jax.ShapeDtypeStruct]) -> dict[str, np.ndarray]:
    """Values that keep the size of what they multiply; each norm scales by about 1."""
    values = {}
    for seed, (name, spec) in enumerate(shapes.items()):
        fan_in = int(np.prod(spec.shape[1:]))
        matrix = len(spec.shape) > 1
        centre = float(not matrix and name.endswith("weight"))
        values[name] = centre + noise(*spec.shape, seed=seed) * (fan_in**-0.5 if matrix else 0.1)
    return values


def psnr_db(ours: np.ndarray, exact: np.ndarray) -> float:
    mean_square = np.mean(np.square(ours.astype(np.float32) - exact))
    return float(20 * np.log10(np.ptp(exact)) - 10 * np.log10(mean_square))


@CASES
def test_only_bfloat16_is_multiplied(case: Callable[..., Any]):
    module, method, args, kwargs = case(jnp.bfloat16)
    pure = functional(module)
    # Parameters in float32, the other form that they may come in, must not widen anything.
    made = equations(lambda *a, **k: pure.apply(*a, **k, method=method), pure.shapes, *args, **kwargs)
    products = [e for e in made if e.primitive.name in ("dot_general", "conv_general_dilated")]
    assert len(products) > 10
    dtypes = {operand.aval.dtype for product in products for operand in product.invars}
    assert dtypes == {jnp.dtype(jnp.float32 if case in (text_encoder, t5) else jnp.bfloat16)}


@CASES
def test_close_to_float32(case: Callable[..., Any]):
    module, method, args, kwargs = case(np.float32)
    pure = functional(module)
    exact_params = random_parameters(pure.shapes)
    rounded_params = {name: value.astype(jnp.bfloat16) for name, value in exact_params.items()}
    apply = jax.jit(lambda p, a, k: pure.apply(p, *a, **k, method=method), compiler_options=COMPILER_OPTIONS)
    exact = apply(exact_params, args, kwargs)
    _, _, rounded_args, _ = case(jnp.bfloat16)
    for ours, wanted in zip(
        jax.tree.leaves(apply(rounded_params, rounded_args, kwargs)), jax.tree.leaves(exact), strict=True
    ):
        assert ours.dtype == jnp.bfloat16
        assert psnr_db(np.asarray(ours), np.asarray(wanted)) > LEAST_PSNR_DB
