import pytest
import torch
from diffusers.models.downsampling import Downsample2D
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.upsampling import Upsample2D

from tests.nn.reference import assert_close, nchw, noise, parameters, randomise, run
from worker.nn.blocks import Downsample, ResnetBlock, Upsample
from worker.nn.kernels import Kernels
from worker.nn.layers import AROUND, BELOW_AND_RIGHT, Padding

SIZES = pytest.mark.parametrize("size", [(9, 13), (8, 6), (3, 2)])


@pytest.mark.parametrize("out_channels", [12, 20])
@pytest.mark.parametrize("timed", [True, False])
def test_resnet_block(out_channels: int, timed: bool):
    reference = ResnetBlock2D(
        in_channels=12, out_channels=out_channels, temb_channels=14 if timed else None, groups=4, eps=1e-5
    )
    randomise(reference)
    x, time = noise(2, 9, 13, 12), noise(2, 14, seed=1) if timed else None
    block = ResnetBlock(12, out_channels, Kernels(), groups=4, epsilon=1e-5, time_features=14 if timed else None)
    expected = reference(nchw(x), None if time is None else torch.from_numpy(time))
    assert_close(run(block, parameters(reference), x, time), expected)


@SIZES
@pytest.mark.parametrize(("padding", "reference_padding"), [(AROUND, 1), (BELOW_AND_RIGHT, 0)])
def test_downsample(size: tuple[int, int], padding: Padding, reference_padding: int):
    reference = Downsample2D(6, use_conv=True, padding=reference_padding, name="op")
    randomise(reference)
    x = noise(2, *size, 6)
    assert_close(run(Downsample(6, Kernels(), padding=padding), parameters(reference), x), reference(nchw(x)))


@SIZES
@pytest.mark.parametrize("cut", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_upsample_to_the_size_of_a_skip_connection(size: tuple[int, int], cut: tuple[int, int]):
    reference = Upsample2D(6, use_conv=True)
    randomise(reference)
    x = noise(2, *size, 6)
    target = (2 * size[0] - cut[0], 2 * size[1] - cut[1])
    params = parameters(reference)
    module = Upsample(6, Kernels())
    assert_close(run(module, params, x, static={"size": target}), reference(nchw(x), target))
    if cut == (0, 0):
        assert_close(run(module, params, x), reference(nchw(x)))
