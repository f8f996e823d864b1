import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline

from builder.convert import convert
from builder.embedded.captions import write_tokenizer
from builder.embedded.card import card
from builder.embedded.data import DataSet
from builder.embedded.evaluate import picture_of, ranks_of_named, service_of, sheet
from builder.embedded.export import export
from builder.embedded.networks import networks
from builder.embedded.recipe import AUTOENCODER_STAGE, DENOISER_STAGE
from builder.embedded.training import first_state, save_state
from builder.embedded.work import SOURCE, Work, autoencoder_state, denoiser_state
from worker.errors import BuildError

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.xdist_group("embedded"),
]
LIMIT_BYTES = 30_000_000


def random_state(stage, parts, step):
    random = np.random.default_rng(0)
    weights = {
        part: {
            name: random.standard_normal(spec.shape, np.float32) / np.float32(np.sqrt(max(1, np.prod(spec.shape[1:]))))
            for name, spec in networks()[part].shapes.items()
        }
        for part in parts
    }
    return first_state(stage, weights, step)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embedded")
    work = Work(folder / "work", folder / "model")
    pictures = np.random.default_rng(1).integers(0, 256, (3, 64, 64, 3), np.uint8)
    data = DataSet(pictures, ("dog face", "red apple", "cat"), np.arange(3, dtype=np.int32), ((), ("fruit",), ()))
    data.write(work.data)
    write_tokenizer(work.tokenizer, data)
    save_state(work.autoencoder, random_state(AUTOENCODER_STAGE, ("vae",), AUTOENCODER_STAGE.steps))
    save_state(work.denoiser, random_state(DENOISER_STAGE, ("text_encoder", "unet"), 7))
    export(work, "bfloat16")
    return work


def test_source_and_baked_model_fit_the_repository(work):
    assert sum(path.stat().st_size for path in work.model.rglob("*") if path.is_file()) < LIMIT_BYTES


@pytest.mark.slow
def test_diffusers_makes_the_same_picture(work, tmp_path):
    torch.set_num_threads(1)
    pipeline = StableDiffusionPipeline.from_pretrained(work.model / SOURCE, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    theirs = pipeline(
        "red apple",
        num_inference_steps=4,
        guidance_scale=3.0,
        generator=torch.Generator().manual_seed(0),
        output_type="np",
    ).images[0]
    convert(work.model / SOURCE, tmp_path / "baked", "float32")
    ours = picture_of(service_of(tmp_path / "baked"), "red apple", num_inference_steps=4, guidance_scale=3.0)
    assert ours.shape == (64, 64, 3)
    assert np.abs(ours - np.round(theirs * 255)).max() <= 1


def test_training_goes_on_from_the_model_alone(work):
    elsewhere = replace(work, folder=work.folder / "elsewhere")
    for now, before in (
        (autoencoder_state(elsewhere), autoencoder_state(work)),
        (denoiser_state(elsewhere), denoiser_state(work)),
    ):
        assert int(now.step) == int(before.step)
        for part, found in now.weights.items():
            for name, array in found.items():
                np.testing.assert_allclose(array, before.average[part][name], rtol=2**-8, err_msg=name)


def test_nothing_is_exported_before_it_is_trained(tmp_path):
    with pytest.raises(BuildError, match="train first"):
        export(Work(tmp_path / "work", tmp_path / "model"), "bfloat16")


def test_the_card_states_what_was_measured(work):
    assert "Not measured yet" in card(work.model)
    measured = {
        "names": 200, "top_1": 0.5, "top_3": 0.75, "colour_followed": 0.6, "random_top_3": 0.005,
        "job": {"seed": 0, "num_inference_steps": 20, "guidance_scale": 3.0},
    }  # fmt: skip
    (work.model / "measured.json").write_text(json.dumps(measured), "utf-8")
    text = card(work.model)
    assert all(number in text for number in ("200 names", "50%", "75%", "60%", "0.5%"))


def test_ranks_count_nearer_emoji_of_other_names(data):
    other = data.pictures[5].astype(np.float32)
    near = np.round(0.6 * data.pictures[0] + 0.4 * other).astype(np.uint8)
    assert ranks_of_named(np.stack([data.pictures[0], near, near]), [0, 0, 5], data).tolist() == [0, 0, 1]


def test_a_sheet_is_filled_up_with_white():
    cells = np.zeros((5, 4, 6, 3), np.uint8)
    whole = sheet(cells, 2)
    assert whole.shape == (12, 12, 3)
    assert (whole[8:, 6:] == 255).all()
    assert not whole[:8].any()
