"""The autoencoder, whole and block by block, against diffusers at toy size."""

from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL
from flax import nnx

from tests.models import toy
from tests.nn.reference import assert_close, nchw, nhwc, noise, parameters, randomise, run
from worker.models.autoencoder import Autoencoder
from worker.models.autoencoder_config import AutoencoderConfig
from worker.nn.kernels import Kernels

CASES = pytest.mark.parametrize(
    ("raw", "convolution"),
    [(toy.AUTOENCODER, "xla"), (toy.AUTOENCODER, "shifted"), (toy.BARE_AUTOENCODER, "xla")],
    ids=["full", "shifted", "bare"],
)


def pair(raw: dict[str, Any], convolution: str) -> tuple[AutoencoderKL, Autoencoder]:
    reference = AutoencoderKL.from_config(raw).eval()
    randomise(reference)
    return reference, Autoencoder(AutoencoderConfig.from_json(raw), Kernels(convolution=convolution))


@CASES
def test_encode(raw: dict[str, Any], convolution: str):
    reference, model = pair(raw, convolution)
    # Odd below the first level: the padding on one side shows.
    image = noise(2, 38, 52, 3)
    mean, logvar = run(model, parameters(reference), image, method="encode")
    with torch.no_grad():
        distribution = reference.encode(nchw(image)).latent_dist
    assert_close(mean, distribution.mean)
    assert_close(logvar, distribution.logvar)


@CASES
def test_decode(raw: dict[str, Any], convolution: str):
    reference, model = pair(raw, convolution)
    latent = noise(2, 9, 13, raw["latent_channels"])
    image = run(model, parameters(reference), latent, method="decode")
    with torch.no_grad():
        assert_close(image, reference.decode(nchw(latent)).sample)


def test_variance_is_bounded():
    reference, model = pair(toy.BARE_AUTOENCODER, "xla")
    with torch.no_grad():
        reference.encoder.conv_out.bias[5:] = torch.tensor([100.0, -100.0, 0.0, 0.0, 0.0])
    _, logvar = run(model, parameters(reference), noise(1, 8, 8, 3), method="encode")
    assert (logvar[..., 0] == 20).all()
    assert (logvar[..., 1] == -30).all()


def test_each_block():
    reference, model = pair(toy.AUTOENCODER, "xla")
    blocks: dict[str, nnx.Module] = {"encoder.mid_block": model.encoder.mid_block}
    blocks |= {f"encoder.down_blocks.{level}": block for level, block in enumerate(model.encoder.down_blocks)}
    blocks |= {f"decoder.up_blocks.{level}": block for level, block in enumerate(model.decoder.up_blocks)}
    seen: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for name in blocks:
        reference.get_submodule(name).register_forward_hook(
            lambda _, args, output, name=name: seen.update({name: (args[0], output)})
        )
    with torch.no_grad():
        reference(nchw(noise(1, 36, 52, 3)))
    for name, block in blocks.items():
        given, output = seen[name]
        assert_close(run(block, parameters(reference.get_submodule(name)), nhwc(given)), output)
