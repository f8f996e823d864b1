from pathlib import Path

import jax
import numpy as np
import pytest

from builder.embedded.captions import write_tokenizer
from builder.embedded.networks import first_parameters, networks
from builder.embedded.recipe import DENOISER_STAGE
from builder.embedded.stages import (
    ENCODING,
    SHIFT,
    autoencoder_task,
    decode,
    decoder_task,
    denoiser_task,
    encode,
    moved,
    scaling_factor,
)
from builder.embedded.work import Work, decoder_state
from worker.text.clip import load_clip_tokenizer


@pytest.fixture(scope="module")
def weights():
    return {part: first_parameters(part, network.shapes) for part, network in networks().items()}


def test_a_new_denoiser_predicts_nothing_and_errs_by_the_velocity(data, weights, tmp_path):
    write_tokenizer(tmp_path, data)
    latents = np.random.default_rng(0).standard_normal((6, 8, 8, 8), np.float32)
    task = denoiser_task(data, latents, load_clip_tokenizer(tmp_path))
    batch = task.batch(np.random.default_rng(0))
    assert [array.shape for array in batch] == [(DENOISER_STAGE.batch, 8, 8, 8), (DENOISER_STAGE.batch, 32)]
    # Velocity of unit latents under unit noise has unit size at every time.
    assert float(task.loss(weights, batch, jax.random.key(0))) == pytest.approx(1, abs=0.05)


def test_the_last_stage_trains_what_decodes_alone(data, weights):
    encoding = {name for name in weights["vae"] if name.startswith(ENCODING)}
    state = decoder_state(Work(Path("none"), Path("none")), weights["vae"])
    assert state.weights["decoder"].keys() == weights["vae"].keys() - encoding
    task = decoder_task(data, weights["vae"])
    loss = jax.jit(task.loss)
    batch = task.batch(np.random.default_rng(0))
    assert np.isfinite(loss(state.weights, batch, jax.random.key(0)))


@pytest.mark.slow
def test_the_autoencoder_is_trained_end_to_end(data, weights):
    task = autoencoder_task(data)
    gradient = jax.grad(task.loss)(weights, task.batch(np.random.default_rng(0)), jax.random.key(0))["vae"]
    for end in ("encoder.conv_in.weight", "decoder.conv_out.weight", "quant_conv.weight"):
        assert np.abs(gradient[end]).max() > 0, end


def test_pictures_move_over_white():
    picture = np.zeros((16, 16, 3), np.uint8)
    shifted = [moved(picture, np.random.default_rng(seed)) for seed in range(30)]
    assert {one.shape for one in shifted} == {picture.shape}
    assert {int(value) for one in shifted for value in np.unique(one)} == {0, 255}
    assert all((one == 0).sum() >= 3 * (16 - SHIFT) ** 2 for one in shifted)


def test_passes_do_not_depend_on_their_size(data, weights):
    pictures = np.resize(data.pictures, (33, 64, 64, 3))
    latents = encode(weights["vae"], pictures)
    assert latents.shape == (33, 8, 8, 8)
    # Where a picture stands in a pass decides which lanes and threads sum it: the last bits may differ, no more.
    np.testing.assert_allclose(latents[30:], encode(weights["vae"], pictures[30:]), rtol=0, atol=1e-6)
    assert decode(weights["vae"], latents).dtype == np.uint8


def test_scaled_latents_have_unit_size():
    latents = np.random.default_rng(0).standard_normal((4, 8, 8, 8), np.float32) * 3 + 1
    assert np.mean(np.square(latents * scaling_factor(latents))) == pytest.approx(1, abs=1e-3)
