"""The shapes in signatures hold: the modules are imported once more with their annotations checked."""

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from jaxtyping import TypeCheckError, install_import_hook

from tests.models import toy
from tests.models.test_unet import inputs
from tests.nn.reference import noise

PACKAGES = ("worker.nn", "worker.models")


def ours() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.startswith(PACKAGES)}


@pytest.fixture(scope="module")
def checked() -> Iterator[dict[str, ModuleType]]:
    """The modules by their last name, annotated shapes enforced by beartype."""
    unchecked = ours()
    for name in unchecked:
        del sys.modules[name]
    with install_import_hook(PACKAGES, "beartype.beartype"):
        models = ("unet", "autoencoder", "clip_text", "mmdit", "t5_text")
        parts = (*(f"models.{name}" for name in models), "nn.functional", "nn.kernels")
        modules = {part.split(".")[1]: import_module(f"worker.{part}") for part in parts}
    yield modules
    for name in ours():
        del sys.modules[name]
    sys.modules.update(unchecked)


def trace(checked: dict[str, ModuleType], module: Any, *args: Any, method: str = "__call__", **kwargs: Any) -> Any:
    pure = checked["functional"].functional(module)
    return jax.eval_shape(lambda *a, **k: pure.apply(*a, **k, method=method), pure.shapes, *args, **kwargs)


@pytest.mark.parametrize(
    ("name", "convolution"),
    [("SD1", "shifted"), ("LCM_INPAINTING", "xla"), ("SDXL", "xla"), ("PRUNED", "xla"), ("ASYMMETRIC", "xla")],
)
def test_unet(name: str, convolution: str, checked: dict[str, ModuleType]):
    raw = getattr(toy, f"{name}_UNET")
    kernels = checked["kernels"].Kernels(convolution=convolution)
    unet = checked["unet"].UNet(checked["unet"].UNetConfig.from_json(raw), kernels)
    args, conditions = inputs(raw)
    assert trace(checked, unet, *args, **conditions).shape == (2, 9, 13, 4)
    with pytest.raises(TypeCheckError):
        trace(checked, unet, args[0][0], *args[1:], **conditions)
    with pytest.raises(TypeCheckError):
        trace(checked, unet, args[0], args[1][:1], args[2], **conditions)


@pytest.mark.parametrize("raw", [toy.AUTOENCODER, toy.BARE_AUTOENCODER], ids=["full", "bare"])
def test_autoencoder(raw: dict[str, Any], checked: dict[str, ModuleType]):
    config = checked["autoencoder"].AutoencoderConfig.from_json(raw)
    model = checked["autoencoder"].Autoencoder(config, checked["kernels"].Kernels())
    latent = noise(2, 9, 13, config.latent_channels)
    mean, logvar = trace(checked, model, noise(2, 36, 52, 3), method="encode")
    assert mean.shape == logvar.shape == latent.shape
    assert trace(checked, model, latent, method="decode").shape == (2, 36, 52, 3)
    assert config.downscale == 4
    with pytest.raises(TypeCheckError):
        trace(checked, model, latent[0], method="decode")


@pytest.mark.parametrize("projected", [True, False])
def test_text_encoder(projected: bool, checked: dict[str, ModuleType]):
    config = checked["clip_text"].CLIPTextConfig.from_json(toy.TEXT_ENCODER, projected=projected)
    encoder = checked["clip_text"].CLIPText(config, checked["kernels"].Kernels())
    output = trace(checked, encoder, np.zeros((2, 7), np.int32))
    assert output.last.shape == output.penultimate.shape == (2, 7, 30)
    assert output.pooled.shape == (2, 26 if projected else 30)
    with pytest.raises(TypeCheckError):
        trace(checked, encoder, np.zeros((2, 7), np.float32))


@pytest.mark.parametrize("raw", [toy.FLUX_TRANSFORMER, toy.FLUX_GUIDED_TRANSFORMER], ids=["schnell", "dev"])
def test_mmdit(raw: dict[str, Any], checked: dict[str, ModuleType]):
    config = checked["mmdit"].MMDiTConfig.from_json(raw)
    model = checked["mmdit"].MMDiT(config, checked["kernels"].Kernels())
    args = noise(2, 6, 10, 5), np.array([1000, 5], np.float32), noise(2, 7, 22)
    guidance = {"guidance_B": np.ones(2, np.float32)} if config.embeds_guidance else {}
    assert trace(checked, model, *args, pooled_BP=noise(2, 26), **guidance).shape == (2, 6, 10, 5)
    with pytest.raises(TypeCheckError):
        trace(checked, model, *args, pooled_BP=noise(1, 26), **guidance)
    with pytest.raises(ValueError, match="guidance is for the transformers that embed it"):
        trace(checked, model, *args, pooled_BP=noise(2, 26), **({} if guidance else {"guidance_B": np.ones(2, "f")}))


def test_t5(checked: dict[str, ModuleType]):
    config = checked["t5_text"].T5TextConfig.from_json(toy.T5)
    encoder = checked["t5_text"].T5Text(config, checked["kernels"].Kernels())
    assert trace(checked, encoder, np.zeros((2, 7), np.int32)).shape == (2, 7, 30)
    with pytest.raises(TypeCheckError):
        trace(checked, encoder, np.zeros((2, 7), np.float32))
