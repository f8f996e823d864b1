"""The UNet, whole and block by block, against diffusers at toy size."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import LatentConsistencyModelPipeline, UNet2DConditionModel

from tests.models import toy
from tests.nn.reference import assert_close, nchw, nhwc, noise, parameters, randomise, run
from worker.models.unet import UNet
from worker.models.unet_config import UNetConfig
from worker.nn.kernels import Kernels

# Odd at two levels: the way up has to cut its doubled grids.
SIZE = (9, 13)


def reference_unet(raw: dict[str, Any]) -> UNet2DConditionModel:
    model = UNet2DConditionModel.from_config(raw).eval()
    randomise(model)
    return model


def inputs(raw: dict[str, Any], size: tuple[int, int] = SIZE) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
    config = UNetConfig.from_json(raw)
    args = (
        noise(2, *size, config.in_channels),
        np.array([999.0, 20.5], np.float32),
        noise(2, 7, config.cross_attention_dim, seed=1),
    )
    conditions: dict[str, Any] = {}
    if config.added is not None:
        conditions["pooled_BP"] = noise(2, 26, seed=2)
        conditions["size_ids_BI"] = np.array([[72, 104, 0, 8, 72, 104], [1024, 768, 64, 0, 512, 640]])
    if config.time_cond_proj_dim is not None:
        conditions["guidance_B"] = np.array([8.5, 1.5], np.float32)
    return args, conditions


def embedded(guidance: torch.Tensor, model: UNet2DConditionModel) -> torch.Tensor:
    make = LatentConsistencyModelPipeline.get_guidance_scale_embedding
    return make(None, guidance - 1, model.config.time_cond_proj_dim)


def expected(model: UNet2DConditionModel, args: tuple[np.ndarray, ...], conditions: dict[str, Any]):
    x, time, context = args
    given = {name: torch.from_numpy(value) for name, value in conditions.items()}
    with torch.no_grad():
        return model(
            nchw(x),
            torch.from_numpy(time),
            torch.from_numpy(context),
            timestep_cond=embedded(given["guidance_B"], model) if "guidance_B" in given else None,
            added_cond_kwargs={"text_embeds": given.get("pooled_BP"), "time_ids": given.get("size_ids_BI")},
        ).sample


def check_whole(raw: dict[str, Any], size: tuple[int, int], kernels: Kernels) -> None:
    model = reference_unet(raw)
    args, conditions = inputs(raw, size)
    ours = run(UNet(UNetConfig.from_json(raw), kernels), parameters(model), *args, **conditions)
    assert_close(ours, expected(model, args, conditions))


@pytest.mark.parametrize(
    "name",
    ["SD1", "LCM_INPAINTING", pytest.param("SD2", marks=pytest.mark.slow), "SDXL", "PRUNED", "ASYMMETRIC"],
)
def test_whole(name: str):
    check_whole(getattr(toy, f"{name}_UNET"), SIZE, Kernels())


def test_shifted_convolutions():
    check_whole(toy.SD1_UNET, SIZE, Kernels(convolution="shifted"))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(8, 8), (1, 1), (5, 16), (16, 11)])
@pytest.mark.parametrize("raw", [toy.SD1_UNET, toy.SDXL_UNET], ids=["sd1", "sdxl"])
@pytest.mark.parametrize("convolution", ["xla", "shifted"])
def test_sizes(raw: dict[str, Any], size: tuple[int, int], convolution: str):
    check_whole(raw, size, Kernels(convolution=convolution))


@dataclass(frozen=True)
class Call:
    """What a block of the reference was given, and what it returned."""

    block: torch.nn.Module
    given: dict[str, Any]
    returned: Any

    def array(self, name: str) -> np.ndarray:
        return nhwc(self.given[name])


@pytest.fixture(scope="module")
def calls() -> dict[str, Call]:
    """One run of the reference, by name of the block."""
    model = reference_unet(toy.SDXL_UNET)
    recorded: dict[str, Call] = {}

    def record(name: str, block: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any):
        given = dict(zip(("hidden_states", "temb"), args, strict=False)) | kwargs
        recorded[name] = Call(block, given, out)

    for name in ("mid_block", *(f"{way}_blocks.{level}" for way in ("down", "up") for level in range(3))):
        model.get_submodule(name).register_forward_hook(partial(record, name), with_kwargs=True)
    expected(model, *inputs(toy.SDXL_UNET))
    return recorded


@pytest.fixture(scope="module")
def unet() -> UNet:
    return UNet(UNetConfig.from_json(toy.SDXL_UNET), Kernels())


CONTEXT = inputs(toy.SDXL_UNET)[0][2]


@pytest.mark.parametrize("level", range(3))
def test_down_block(level: int, unet: UNet, calls: dict[str, Call]):
    call = calls[f"down_blocks.{level}"]
    args = call.array("hidden_states"), call.array("temb"), CONTEXT
    states = run(unet.down_blocks[level], parameters(call.block), *args)
    for state, skip in zip(states, call.returned[1], strict=True):
        assert_close(state, skip)


def test_mid_block(unet: UNet, calls: dict[str, Call]):
    call = calls["mid_block"]
    args = call.array("hidden_states"), call.array("temb"), CONTEXT
    assert_close(run(unet.mid_block, parameters(call.block), *args), call.returned)


@pytest.mark.parametrize("index", range(3))
def test_up_block(index: int, unet: UNet, calls: dict[str, Call]):
    call = calls[f"up_blocks.{index}"]
    skips = [nhwc(skip) for skip in call.given["res_hidden_states_tuple"]]
    size = call.given["upsample_size"] and tuple(call.given["upsample_size"])
    args = call.array("hidden_states"), skips, call.array("temb"), CONTEXT
    assert_close(run(unet.up_blocks[index], parameters(call.block), *args, static={"size": size}), call.returned)


@pytest.mark.parametrize(
    ("raw", "conditions"),
    [
        (toy.SD1_UNET, {"guidance_B": np.ones(2, np.float32)}),
        (toy.SD1_UNET, {"pooled_BP": noise(2, 26)}),
        (toy.SDXL_UNET, {"pooled_BP": noise(2, 26)}),
        (toy.SDXL_UNET, {}),
    ],
)
def test_conditioning_that_does_not_fit(raw: dict[str, Any], conditions: dict[str, Any]):
    args, _ = inputs(raw)
    with pytest.raises(ValueError, match="this UNet"):
        run(UNet(UNetConfig.from_json(raw), Kernels()), parameters(reference_unet(raw)), *args, **conditions)
