"""At full size every parameter has the name and the shape that the published checkpoint gives it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel, UNet2DConditionModel
from flax import nnx
from transformers import CLIPTextConfig as ReferenceCLIPTextConfig
from transformers import CLIPTextModel, CLIPTextModelWithProjection, T5EncoderModel
from transformers import T5Config as ReferenceT5Config

from bench import published
from tests.nn.reference import names_and_shapes
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


def ours(module: nnx.Module) -> dict[str, tuple[int, ...]]:
    return {name: struct.shape for name, struct in functional(module).shapes.items()}


def on_meta(build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    with torch.device("meta"):
        return build()


@pytest.mark.parametrize(
    "raw",
    [
        published.SD15_UNET,
        published.SD15_INPAINTING_UNET,
        published.SD15_LCM_UNET,
        published.SD21_UNET,
        published.SD2_INPAINTING_UNET,
        published.SDXL_UNET,
        published.SDXL_INPAINTING_UNET,
    ],
    ids=["sd15", "sd15-inpainting", "sd15-lcm", "sd21", "sd2-inpainting", "sdxl", "sdxl-inpainting"],
)
def test_unet(raw: dict[str, Any]):
    reference = on_meta(lambda: UNet2DConditionModel.from_config(raw))
    assert ours(UNet(UNetConfig.from_json(raw), Kernels())) == names_and_shapes(reference)


@pytest.mark.parametrize(
    "raw",
    [published.SD15_AUTOENCODER, published.SD21_AUTOENCODER, published.SDXL_AUTOENCODER, published.FLUX_AUTOENCODER],
    ids=["sd15", "sd21", "sdxl", "flux"],
)
def test_autoencoder(raw: dict[str, Any]):
    reference = on_meta(lambda: AutoencoderKL.from_config(raw))
    assert ours(Autoencoder(AutoencoderConfig.from_json(raw), Kernels())) == names_and_shapes(reference)


@pytest.mark.parametrize(
    "raw",
    [
        published.SD15_TEXT_ENCODER,
        published.SD21_TEXT_ENCODER,
        published.SDXL_TEXT_ENCODER,
        published.SDXL_TEXT_ENCODER_2,
        published.FLUX_TEXT_ENCODER,
    ],
    ids=["sd15", "sd21", "sdxl-1", "sdxl-2", "flux"],
)
def test_text_encoder(raw: dict[str, Any]):
    projected = raw["architectures"] == ["CLIPTextModelWithProjection"]
    kind = CLIPTextModelWithProjection if projected else CLIPTextModel
    reference = on_meta(lambda: kind(ReferenceCLIPTextConfig(**raw)))
    # The reference's own class lacks the published prefix unless it has a projection beside the text model.
    expected = names_and_shapes(reference, prefix="" if projected else "text_model.")
    assert ours(CLIPText(CLIPTextConfig.from_json(raw, projected=projected), Kernels())) == expected


@pytest.mark.parametrize(
    "raw", [published.FLUX_SCHNELL_TRANSFORMER, published.FLUX_DEV_TRANSFORMER], ids=["schnell", "dev"]
)
def test_mmdit(raw: dict[str, Any]):
    reference = on_meta(lambda: FluxTransformer2DModel.from_config(raw))
    assert ours(MMDiT(MMDiTConfig.from_json(raw), Kernels())) == names_and_shapes(reference)


def test_t5():
    expected = names_and_shapes(on_meta(lambda: T5EncoderModel(ReferenceT5Config(**published.T5_XXL))))
    # Tied to `shared`, and published once.
    assert expected.pop("encoder.embed_tokens.weight") == expected["shared.weight"]
    assert ours(T5Text(T5TextConfig.from_json(published.T5_XXL), Kernels())) == expected
