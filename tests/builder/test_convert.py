"""A published folder becomes the parameters of the model, or one error."""

import json
import logging
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import transformers
from diffusers import DiffusionPipeline
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

from builder.convert import convert
from tests.builder.checkpoints import FILES, STEM, assert_equal, edit, edit_json, leftovers, params_of, shard
from worker.errors import CheckpointError
from worker.families import FAMILIES
from worker.weights.manifest import read_manifest

ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")


@pytest.mark.parametrize("variant", ["sd1", "sdxl"])
def test_float32_arrives_as_it_was_published(variant, published, tmp_path):
    source = published(variant)
    convert(source, tmp_path / "baked", "float32")
    params = params_of(tmp_path / "baked")
    for part, found in params.items():
        (file,) = (source / part).glob("*.safetensors")
        original = load_file(file)
        assert found.keys() == original.keys()
        for name, value in found.items():
            expected = np.moveaxis(original[name], 1, -1) if original[name].ndim == 4 else original[name]
            assert value.dtype == np.float32
            np.testing.assert_array_equal(value, expected, err_msg=name)


def test_bfloat16_rounds_to_nearest_and_a_delicate_autoencoder_stays_float32(published, tmp_path):
    source = published("sdxl")
    manifest = convert(source, tmp_path / "baked", "bfloat16")
    assert {name: part.dtype for name, part in manifest.parts.items()} == {
        "text_encoder": "bfloat16",
        "text_encoder_2": "bfloat16",
        "unet": "bfloat16",
        "vae": "float32",
    }
    name = "time_embedding.linear_1.weight"
    value = params_of(tmp_path / "baked")["unet"][name]
    reference = load_torch(source / "unet" / FILES["unet"])[name].bfloat16().float().numpy()
    assert value.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(value.astype(np.float32), reference)


def test_published_bfloat16_stays_exact(published, tmp_path):
    source = published()
    path = source / "unet" / FILES["unet"]
    tensors = {name: tensor.bfloat16() for name, tensor in load_torch(path).items()}
    save_torch(tensors, path, metadata={"format": "pt"})
    convert(source, tmp_path / "baked", "bfloat16")
    for name, value in params_of(tmp_path / "baked")["unet"].items():
        original = tensors[name].float().numpy()
        expected = np.moveaxis(original, 1, -1) if original.ndim == 4 else original
        np.testing.assert_array_equal(value.astype(np.float32), expected)


def test_the_manifest_tells_all(published, tmp_path):
    source = published()
    (source / "README.md").write_text("---\ntags: [a]\nlicense: other\nlicense_name: toy-licence\n---\n# Toy\n")
    manifest = convert(source, tmp_path / "baked", "bfloat16")
    tiny = FAMILIES["stable-diffusion"].tiny["sd1"]
    assert read_manifest(tmp_path / "baked") == manifest
    assert (manifest.source, manifest.revision, manifest.licence) == ("sd1", None, "toy-licence")
    assert (manifest.family, manifest.dtype) == ("stable-diffusion", "bfloat16")
    assert manifest.scheduler == tiny["scheduler"]
    assert manifest.model_index == json.loads(json.dumps(tiny["model_index"]))
    assert manifest.parts["unet"].config == json.loads(json.dumps(tiny["unet"]))
    for name in manifest.tokenizers["tokenizer"]:
        assert (tmp_path / "baked/tokenizer" / name).read_bytes() == (source / "tokenizer" / name).read_bytes()


def test_the_folder_holds_no_more_than_it_must(published, tmp_path):
    """Also from a source of links, as the hub's cache is one."""
    source = published()
    for path in [*source.rglob("*.safetensors"), source / "tokenizer" / "vocab.json"]:
        blob = tmp_path / "blobs" / f"{path.parent.name}-{path.name}"
        blob.parent.mkdir(exist_ok=True)
        path.rename(blob)
        path.symlink_to(blob)
    manifest = convert(source, tmp_path / "baked", "bfloat16")
    paths = list((tmp_path / "baked").rglob("*"))
    assert not [path for path in paths if path.is_symlink()]
    assert sorted(path.name for path in paths if path.suffix == ".safetensors") == sorted(
        part.file for part in manifest.parts.values()
    )
    tensors = sum(value.nbytes for part in params_of(tmp_path / "baked").values() for value in part.values())
    assert sum((tmp_path / "baked" / part.file).stat().st_size for part in manifest.parts.values()) <= 1.05 * tensors
    assert leftovers(tmp_path) == ["baked", "blobs"]


def test_both_names_of_the_autoencoders_attention_give_the_same(published, tmp_path):
    source = published()
    convert(source, tmp_path / "new", "float32")
    old = dict(zip(ATTENTION, ("query", "key", "value", "proj_attn"), strict=True))

    def rename(tensors):
        renamed = {}
        for name, tensor in tensors.items():
            for ours, theirs in old.items():
                if f".{ours}." in name:
                    name = name.replace(f".{ours}.", f".{theirs}.")
                    tensor = tensor[:, :, None, None] if theirs == "key" and tensor.ndim == 2 else tensor
            renamed[name] = tensor
        return renamed

    edit(source / "vae" / FILES["vae"], rename)
    assert any(".proj_attn." in name for name in load_file(source / "vae" / FILES["vae"]))
    convert(source, tmp_path / "old", "float32")
    assert_equal(params_of(tmp_path / "new"), params_of(tmp_path / "old"))


def test_text_encoders_with_and_without_prefix_give_the_same(published, tmp_path):
    source = published()
    convert(source, tmp_path / "prefixed", "float32")
    edit(
        source / "text_encoder" / "model.safetensors",
        lambda t: {k.removeprefix("text_model."): v for k, v in t.items()},
    )
    convert(source, tmp_path / "flat", "float32")
    assert_equal(params_of(tmp_path / "prefixed"), params_of(tmp_path / "flat"))


@pytest.mark.parametrize(
    ("names", "mixed"),
    [
        ((f"{STEM}-00001-of-00002.safetensors", f"{STEM}-00002-of-00002.safetensors"), False),
        ((f"{STEM}.fp16.safetensors",), True),
        ((f"{STEM}.fp16-00001-of-00002.safetensors", f"{STEM}.fp16-00002-of-00002.safetensors"), True),
        ((f"{STEM}-00001-of-00002.fp16.safetensors", f"{STEM}-00002-of-00002.fp16.safetensors"), True),
    ],
    ids=["sharded", "fp16", "fp16 shards, new spelling", "fp16 shards, old spelling"],
)
def test_every_way_of_publishing_gives_the_same(names, mixed, published, tmp_path, caplog):
    source = published()
    edit(source / "unet" / FILES["unet"], lambda t: {k: v.astype(np.float16) for k, v in t.items()})
    convert(source, tmp_path / "one", "float32")
    shard(source / "unet" / FILES["unet"], names)
    with caplog.at_level(logging.WARNING):
        convert(source, tmp_path / "other", "float32")
    assert_equal(params_of(tmp_path / "one"), params_of(tmp_path / "other"))
    assert ("mixed precision: text_encoder plain, unet fp16, vae plain" in caplog.text) is mixed


def test_a_tensor_in_two_shards(published, tmp_path):
    source = published()
    path = source / "unet" / FILES["unet"]
    for i in (1, 2):
        shutil.copy(path, path.with_name(f"{STEM}-0000{i}-of-00002.safetensors"))
    path.unlink()
    with pytest.raises(CheckpointError, match=r"unet: in two shards: .*conv_in.bias"):
        convert(source, tmp_path / "baked", "float32")


def drop(tensors):
    del tensors["conv_in.bias"]
    return tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop, r"unet: .*missing \(1\): conv_in.bias$"),
        (lambda t: t | {"more.weight": np.zeros(3, np.float32)}, r"unet: .*unknown \(1\): more.weight$"),
        (
            lambda t: t | {"time_embedding.linear_1.weight": t["time_embedding.linear_1.weight"].T.copy()},
            r"shape \(1\): time_",
        ),
        (lambda t: t | {"conv_in.bias": np.zeros(16, np.int32)}, r"dtype \(1\): conv_in.bias is I32"),
        (
            lambda t: t | {"conv_in.bias": t["conv_in.bias"] * np.float32(np.nan)},
            "conv_in.bias has values that are not finite",
        ),
    ],
    ids=["missing", "extra", "transposed", "dtype", "not finite"],
)
def test_a_checkpoint_that_is_not_the_model(change, message, published, tmp_path):
    source = published()
    edit(source / "unet" / FILES["unet"], change)
    with pytest.raises(CheckpointError, match=message):
        convert(source, tmp_path / "baked", "float32")
    assert not (tmp_path / "baked").exists()


def test_differences_of_all_parts_come_at_once_before_anything_is_written(published, tmp_path):
    source = published()
    edit(source / "unet" / FILES["unet"], drop)
    edit_json(source / "vae" / "config.json", norm_eps=1.0)
    (source / "text_encoder" / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError) as caught:
        convert(source, tmp_path / "baked", "float32")
    for piece in ("conv_in.bias", "norm_eps", "Git LFS pointer"):
        assert piece in str(caught.value)
    assert leftovers(tmp_path) == []


def test_a_projection_that_is_missing(published, tmp_path):
    source = published("sdxl")
    path = source / "text_encoder_2" / "model.safetensors"
    edit(path, lambda t: {k: v for k, v in t.items() if k != "text_projection.weight"})
    with pytest.raises(CheckpointError, match=r"text_encoder_2: .*missing \(1\): text_projection.weight"):
        convert(source, tmp_path / "baked", "float32")


@pytest.mark.parametrize("given", ["absent", None, 0.5])
def test_the_scaling_factor(given, published, tmp_path, caplog):
    source = published("sdxl")
    edit_json(source / "vae" / "config.json", scaling_factor=given)
    with caplog.at_level(logging.INFO):
        manifest = convert(source, tmp_path / "baked", "float32")
    assert manifest.parts["vae"].config["scaling_factor"] == (given if isinstance(given, float) else 0.13025)
    assert ("vae: no scaling_factor, 0.13025 is used" in caplog.text) is not isinstance(given, float)


@pytest.mark.parametrize(("prediction", "warned"), [("epsilon", True), ("v_prediction", False)])
def test_markers_are_no_weights(prediction, warned, published, tmp_path, caplog):
    source = published()
    edit(
        source / "unet" / FILES["unet"],
        lambda t: t | {"v_pred": np.zeros(0, np.float32), "ztsnr": np.zeros(0, np.float32)},
    )
    edit_json(source / "scheduler/scheduler_config.json", prediction_type=prediction)
    with caplog.at_level(logging.INFO):
        manifest = convert(source, tmp_path / "baked", "float32")
    assert "v_pred" not in params_of(tmp_path / "baked")["unet"]
    assert manifest.scheduler["prediction_type"] == prediction
    assert "unet: ztsnr left out: " in caplog.text
    assert bool([r for r in caplog.records if r.levelno == logging.WARNING]) is warned


def test_other_components_are_not_read(published, tmp_path, caplog):
    source = published()
    edit_json(source / "model_index.json", safety_checker=["stable_diffusion", "StableDiffusionSafetyChecker"])
    (source / "safety_checker").mkdir()
    (source / "safety_checker" / "pytorch_model.bin").write_bytes(b"never opened")
    with caplog.at_level(logging.INFO):
        convert(source, tmp_path / "baked", "float32")
    assert "not used: safety_checker" in caplog.text
    assert not (tmp_path / "baked" / "safety_checker").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "no model_index.json: the layout of diffusers is needed"),
        ({"v1-5.safetensors": b""}, "v1-5.safetensors is a single-file checkpoint; the layout of diffusers"),
        ({"model.ckpt": b""}, "model.ckpt is a single-file checkpoint"),
        ({"model_index.json": b"{"}, "model_index.json: not readable as JSON"),
        ({"model_index.json": b"[]"}, "model_index.json: a JSON object is expected"),
    ],
)
def test_a_folder_that_is_no_checkpoint(content, message, tmp_path):
    source = tmp_path / "published"
    source.mkdir()
    for name, data in content.items():
        (source / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        convert(source, tmp_path / "baked", "float32")


def test_pickles_are_never_opened(published, tmp_path, monkeypatch):
    source = published()
    (source / "unet" / FILES["unet"]).rename(source / "unet" / f"{STEM}.bin")
    opened = []
    original = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *a, **k: opened.append(self.suffix) or original(self, *a, **k))
    with pytest.raises(CheckpointError, match=r"unet: only pickled weights \(diffusion_pytorch_model.bin\)"):
        convert(source, tmp_path / "baked", "float32")
    assert ".bin" not in opened


def test_a_tokeniser_in_one_file_gives_the_same(published, tmp_path):
    source = published()
    transformers.CLIPTokenizer.from_pretrained(source / "tokenizer").save_pretrained(tmp_path / "saved")
    convert(source, tmp_path / "two", "float32")
    for name in ("vocab.json", "merges.txt"):
        (source / "tokenizer" / name).unlink()
    shutil.copy(tmp_path / "saved" / "tokenizer.json", source / "tokenizer")
    manifest = convert(source, tmp_path / "one", "float32")
    assert manifest.tokenizers["tokenizer"].keys() >= {"vocab.json", "merges.txt"}
    vocabularies, merges = zip(
        *(
            (
                json.loads((tmp_path / n / "tokenizer/vocab.json").read_text()),
                (tmp_path / n / "tokenizer/merges.txt").read_text(),
            )
            for n in ("one", "two")
        ),
        strict=True,
    )
    assert vocabularies[0] == vocabularies[1]
    assert merges[0] == merges[1]


def test_a_tokeniser_of_another_kind(published, tmp_path):
    source = published()
    (source / "tokenizer" / "vocab.json").unlink()
    (source / "tokenizer" / "tokenizer.json").write_text('{"model": {"type": "Unigram", "vocab": []}}')
    with pytest.raises(CheckpointError, match="not a tokeniser of CLIP's kind"):
        convert(source, tmp_path / "baked", "float32")


@pytest.mark.parametrize("variant", ["sd1", "sdxl"])
def test_what_diffusers_saves_is_what_it_loaded(variant, published, tmp_path):
    source = published(variant)
    DiffusionPipeline.from_pretrained(source).save_pretrained(tmp_path / "saved")
    convert(source, tmp_path / "ours", "float32")
    convert(tmp_path / "saved", tmp_path / "theirs", "float32")
    assert_equal(params_of(tmp_path / "ours"), params_of(tmp_path / "theirs"))
