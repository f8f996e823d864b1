"""FLUX.1's transformer, whole and block by block, against diffusers at toy size."""

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline, FluxTransformer2DModel

from tests.models import toy
from tests.nn.reference import assert_close, nchw, noise, parameters, randomise, run
from worker.errors import CheckpointError
from worker.models.mmdit import DoubleBlock, MMDiT, SingleBlock, pack
from worker.models.mmdit_config import MMDiTConfig
from worker.nn.kernels import Kernels
from worker.nn.rotary import grid_turns

SIZE = (6, 10)
TOKENS = 7


def reference_transformer(raw: dict[str, Any]) -> FluxTransformer2DModel:
    model = FluxTransformer2DModel.from_config(raw).eval()
    randomise(model)
    return model


def image_ids(height: int, width: int) -> torch.Tensor:
    return FluxPipeline._prepare_latent_image_ids(1, height // 2, width // 2, "cpu", torch.float32)


def packed(x_BHWC: np.ndarray) -> torch.Tensor:
    batch, height, width, channels = x_BHWC.shape
    return FluxPipeline._pack_latents(nchw(x_BHWC), batch, channels, height, width)


@pytest.mark.parametrize("raw", [toy.FLUX_TRANSFORMER, toy.FLUX_GUIDED_TRANSFORMER], ids=["schnell", "dev"])
@pytest.mark.parametrize("size", [SIZE, (2, 2), (16, 4)])
def test_whole(raw: dict[str, Any], size: tuple[int, int]):
    model = reference_transformer(raw)
    x, context, pooled = noise(2, *size, 5), noise(2, TOKENS, 22, seed=1), noise(2, 26, seed=2)
    time = np.array([1000.0, 20.5], np.float32)
    guidance = {"guidance_B": np.array([3.5, 1.25], np.float32)} if raw["guidance_embeds"] else {}
    with torch.no_grad():
        output = model(
            hidden_states=packed(x),
            timestep=torch.from_numpy(time / 1000),
            encoder_hidden_states=torch.from_numpy(context),
            pooled_projections=torch.from_numpy(pooled),
            img_ids=image_ids(*size),
            txt_ids=torch.zeros(TOKENS, 3),
            guidance=torch.from_numpy(guidance["guidance_B"]) if guidance else None,
        ).sample
    expected = FluxPipeline._unpack_latents(output, size[0] * 8, size[1] * 8, 8)
    mmdit = MMDiT(MMDiTConfig.from_json(raw), Kernels())
    ours = run(mmdit, parameters(model), x, time, context, pooled_BP=pooled, **guidance)
    assert_close(ours, expected)


def test_each_kind_of_block():
    config = MMDiTConfig.from_json(toy.FLUX_TRANSFORMER)
    model = reference_transformer(toy.FLUX_TRANSFORMER)
    text, x, known = noise(2, TOKENS, 36), noise(2, 15, 36, seed=1), noise(2, 36, seed=2)
    ids = torch.cat([torch.zeros(TOKENS, 3), image_ids(*SIZE)])
    given = [torch.from_numpy(array) for array in (x, text, known)]
    turns = grid_turns(TOKENS, SIZE[0] // 2, SIZE[1] // 2, config.axes)
    with torch.no_grad():
        double = model.transformer_blocks[1](*given, model.pos_embed(ids))
        single = model.single_transformer_blocks[1](*given, model.pos_embed(ids))
    ours = run(DoubleBlock(config, Kernels()), parameters(model.transformer_blocks[1]), text, x, known, turns)
    for found, expected in zip(ours, double, strict=True):
        assert_close(found, expected)
    joint = np.concatenate([text, x], axis=1)
    found = run(SingleBlock(config, Kernels()), parameters(model.single_transformer_blocks[1]), joint, known, turns)
    assert_close(found, torch.cat(single, dim=1))


def test_turns_of_a_large_grid():
    model = FluxTransformer2DModel.from_config(toy.FLUX_TRANSFORMER | {"num_layers": 1, "num_single_layers": 1})
    expected = model.pos_embed(torch.cat([torch.zeros(3, 3), image_ids(512, 256)]))
    for found, reference in zip(grid_turns(3, 256, 128, (2, 4, 6)), expected, strict=True):
        assert_close(np.repeat(np.asarray(found), 2, axis=1), reference)


def test_patches():
    x = noise(2, *SIZE, 5)
    np.testing.assert_array_equal(np.asarray(pack(x)), packed(x).numpy())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out_channels": 64, "in_channels": 384}, "out_channels = 64 is not handled"),
        ({"axes_dims_rope": [2, 4, 4]}, "axes_dims_rope"),
        ({"axes_dims_rope": [3, 3, 6]}, "axes_dims_rope"),
        ({"in_channels": 22}, "in_channels = 22 is not handled"),
    ],
)
def test_what_is_not_handled(change: dict[str, Any], message: str):
    with pytest.raises(CheckpointError, match=message):
        MMDiTConfig.from_json(toy.FLUX_TRANSFORMER | change)
