"""A folder that could not be served stops the start with one clear error."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.jobs import run
from worker.engine import loading, selection
from worker.engine.loading import load_engine
from worker.engine.store import ProgramStore
from worker.errors import CheckpointError
from worker.nn.kernels import Kernels
from worker.settings import Settings
from worker.weights.manifest import read_manifest


@pytest.fixture
def folder(toy, tmp_path) -> Path:
    return Path(shutil.copytree(toy("sd1").model_dir, tmp_path / "baked"))


def edit(folder: Path, change) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    change(manifest)
    path.write_text(json.dumps(manifest), "utf-8")


@pytest.mark.xdist_group("sd1")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda manifest: manifest.update(family="stable-cascade"), "stable-cascade is not one of"),
        (lambda manifest: manifest.update(family="stable-diffusion-xl"), "text_encoder_2"),
        (lambda manifest: manifest["parts"].pop("unet"), "unet: not the parts"),
        (lambda manifest: manifest["scheduler"].update(_class_name="SASolverScheduler"), "SASolver"),
        (lambda manifest: manifest["scheduler"].update(thresholding=True), "thresholding"),
        (lambda manifest: manifest["scheduler"].update(beta_schedule="cubic"), "beta_schedule"),
        (lambda manifest: manifest["scheduler"].update(beta_start=0, beta_end=0), "scheduler"),
    ],
)
def test_a_manifest_that_does_not_fit(folder, change, words):
    edit(folder, change)
    with pytest.raises(CheckpointError, match=words):
        load_engine(Settings(model_dir=folder))


@pytest.mark.xdist_group("sd1")
def test_a_tokenizer_that_was_changed(folder):
    path = folder / "tokenizer" / "vocab.json"
    text = path.read_text("utf-8")
    (one, two), content = ('"cat</w>"', '"dog</w>"'), text
    assert one in text
    assert two in text
    for old, new in ((one, '"___"'), (two, one), ('"___"', two)):
        content = content.replace(old, new)
    path.write_text(content, "utf-8")
    with pytest.raises(CheckpointError, match="sha256"):
        load_engine(Settings(model_dir=folder))


@pytest.mark.xdist_group("sd1")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", '{"model_max_length": 1}'),
        ("tokenizer_config.json", '{"model_max_length": null}'),
        ("vocab.json", '{"a": "b"}'),
        ("merges.txt", "no such\n"),
    ],
)
def test_a_tokenizer_that_is_none(folder, name, content):
    (folder / "tokenizer" / name).write_text(content, "utf-8")
    with pytest.raises(CheckpointError, match="tokenizer"):
        load_engine(Settings(model_dir=folder))


@pytest.mark.xdist_group("sd1")
def test_a_null_sample_size_is_the_family_s(folder):
    edit(folder, lambda manifest: manifest["parts"]["unet"]["config"].update(sample_size=None))
    assert read_manifest(folder).parts["unet"].config["sample_size"] is None
    assert load_engine(Settings(model_dir=folder)).planner.pipeline.sample_size == 512


@pytest.mark.xdist_group("sd1")
@pytest.mark.parametrize(("layout", "built"), [("as baked", False), (None, True), ("0" * 64, True)])
def test_the_model_is_built_only_where_the_layout_is_of_other_code(folder, layout, built):
    if layout != "as baked":
        edit(folder, lambda manifest: manifest.update(layout=layout))
    engine = load_engine(Settings(model_dir=folder))
    assert ("parts" in vars(engine.planner.pipeline)) == built
    assert engine.programs.params.keys() == {"text_encoder", "unet", "vae"}


@pytest.mark.xdist_group("sd1")
def test_a_header_that_was_changed(folder):
    path = folder / "unet.safetensors"
    content = path.read_bytes()
    assert content.count(b'"conv_in.weight"') == 1
    path.write_bytes(content.replace(b'"conv_in.weight"', b'"conv_xx.weight"'))
    with pytest.raises(CheckpointError, match=r"unknown \(1\): conv_xx.weight; missing \(1\): conv_in.weight"):
        load_engine(Settings(model_dir=folder))


@pytest.mark.xdist_group("sd1")
@pytest.mark.parametrize("loaded", [True, False])
def test_kernels_are_tried_only_where_no_program_is_stored(folder, monkeypatch, loaded):
    monkeypatch.setattr(loading, "select_kernels", lambda *_: Kernels(attention="cudnn", loop="host"))
    monkeypatch.setattr(ProgramStore, "load", lambda _store, _keys: {("decode", 1, 1): print} if loaded else {})
    tried: list[Kernels] = []
    monkeypatch.setattr(selection, "attention_fault", lambda kernels: tried.append(kernels) or "fails")
    engine = load_engine(Settings(model_dir=folder))
    assert engine.planner.pipeline.kernels.attention == ("cudnn" if loaded else "xla")
    assert len(tried) == (0 if loaded else 1)
    assert engine.programs.pipeline is engine.planner.pipeline


@pytest.mark.xdist_group("flux")
@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_text_encoders_between_texts(toy, place):
    plain = toy("flux")
    params = load_engine(Settings(model_dir=plain.model_dir, text_encoders=place)).programs.params
    on_device = {
        part for part, arrays in params.items() if all(isinstance(array, jax.Array) for array in arrays.values())
    }
    encoders = {"text_encoder", "text_encoder_2"}
    assert on_device == params.keys() - (set() if place == "device" else encoders)
    mapped = {name for name, array in params["text_encoder_2"].items() if is_mapped(array)}
    assert mapped == (params["text_encoder_2"].keys() if place == "disk" else set())
    job = {"prompt": "a fox", "width": 64, "height": 64, "num_inference_steps": 2, "seed": 1}
    engine = plain.service.engine
    same = dataclasses.replace(engine, programs=dataclasses.replace(engine.programs, params=params))
    service = dataclasses.replace(plain.service, engine=same)
    assert [run(service, job)["images"] for _ in range(2)] == [run(plain.service, job)["images"]] * 2


def is_mapped(array: Any) -> bool:
    """Whether it is a view of a file."""
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return array is not None
