import dataclasses
import hashlib
import logging
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest

from worker.errors import CheckpointError
from worker.weights.load import load
from worker.weights.manifest import BakedFile, BakedPart, Manifest
from worker.weights.tensors import write_tensors

DTYPES = {"unet": "bfloat16", "vae": "float32"}
NUMPY = {"bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


@dataclasses.dataclass
class Model:
    folder: object
    manifest: Manifest
    shapes: dict
    values: dict


@pytest.fixture
def model(tmp_path) -> Model:
    random = np.random.default_rng(0)
    layout = {
        "unet": {"conv.weight": (4, 3, 3, 2), "conv.bias": (4,), "empty": (0, 3)},
        "vae": {f"block.{i}.weight": (i + 1, 5) for i in range(40)},
    }
    shapes = {
        part: {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in found.items()}
        for part, found in layout.items()
    }
    values, parts = {}, {}
    for part, found in layout.items():
        dtype = NUMPY[DTYPES[part]]
        values[part] = {name: random.standard_normal(shape).astype(dtype) for name, shape in found.items()}
        specs = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in found.items()}
        digest = write_tensors(tmp_path / f"{part}.safetensors", specs, values[part].values())
        parts[part] = BakedPart(config={}, file=f"{part}.safetensors", dtype=DTYPES[part], **digest._asdict())
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.json").write_text("{}")
    manifest = Manifest(
        converter_version=1,
        source="toy",
        revision=None,
        content_sha256="0" * 64,
        licence=None,
        family="toy",
        dtype="bfloat16",
        parts=parts,
        tokenizers={"tokenizer": {"vocab.json": BakedFile(sha256=hashlib.sha256(b"{}").hexdigest(), size_bytes=2)}},
        scheduler={},
        model_index={},
    )
    return Model(tmp_path, manifest, shapes, values)


def with_part(manifest: Manifest, part: str, **changes) -> Manifest:
    parts = manifest.parts | {part: manifest.parts[part].model_copy(update=changes)}
    return manifest.model_copy(update={"parts": parts})


@pytest.mark.parametrize("verify", [True, False])
def test_every_value_arrives(model, verify):
    params = load(model.folder, model.manifest, model.shapes, verify=verify)
    assert params.keys() == model.values.keys()
    for part, values in model.values.items():
        assert params[part].keys() == values.keys()
        for name, value in values.items():
            assert isinstance(params[part][name], jax.Array)
            assert params[part][name].dtype == value.dtype
            np.testing.assert_array_equal(np.asarray(params[part][name]), value)


def test_the_sharding_is_kept(model):
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[-1])
    params = load(model.folder, model.manifest, model.shapes, sharding=sharding)
    assert {array.sharding for part in params.values() for array in part.values()} == {sharding}


def test_bytes_and_seconds_are_logged(model, caplog):
    with caplog.at_level(logging.INFO, "worker.weights.load"):
        load(model.folder, model.manifest, model.shapes)
    size = sum((model.folder / part.file).stat().st_size for part in model.manifest.parts.values())
    assert f"{size} bytes in " in caplog.text


def test_a_flipped_byte_is_found_when_asked_for(model):
    path = model.folder / "vae.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"vae.safetensors differ from the sha256"):
        load(model.folder, model.manifest, model.shapes, verify=True)
    load(model.folder, model.manifest, model.shapes)


def test_truncated_and_missing_files_are_named_together(model):
    path = model.folder / "vae.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    (model.folder / "tokenizer" / "vocab.json").unlink()
    with pytest.raises(CheckpointError) as caught:
        load(model.folder, model.manifest, model.shapes)
    assert "vae.safetensors has " in str(caught.value)
    assert "tokenizer/vocab.json is missing" in str(caught.value)
    assert "unet" not in str(caught.value)


def test_a_foreign_folder(model, tmp_path_factory):
    with pytest.raises(CheckpointError, match=r"unet.safetensors is missing; vae.safetensors is missing"):
        load(tmp_path_factory.mktemp("other"), model.manifest, model.shapes)


def test_a_file_of_the_right_size_that_is_none(model):
    path = model.folder / "unet.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CheckpointError, match=r"unet.safetensors: not a safetensors file"):
        load(model.folder, model.manifest, model.shapes)


def test_files_of_two_parts_exchanged(model):
    manifest = with_part(
        model.manifest, "unet", file="vae.safetensors", size_bytes=model.manifest.parts["vae"].size_bytes
    )
    with pytest.raises(CheckpointError, match=r"unet: .*unknown \(40\).*missing \(3\).*dtype \(40\)"):
        load(model.folder, manifest, model.shapes)


def edit_shapes(shapes, part, name, shape):
    changed = dict(shapes[part])
    if shape is None:
        del changed[name]
    else:
        changed[name] = jax.ShapeDtypeStruct(shape, np.float32)
    return shapes | {part: changed}


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("conv.bias", None, r"unet: .*unknown \(1\): conv.bias"),
        ("conv.scale", (4,), r"unet: .*missing \(1\): conv.scale"),
        ("conv.weight", (4, 2, 3, 3), r"conv.weight is \[4, 3, 3, 2\], \[4, 2, 3, 3\] is expected"),
    ],
)
def test_another_model_than_was_baked(model, name, shape, message):
    with pytest.raises(CheckpointError, match=message):
        load(model.folder, model.manifest, edit_shapes(model.shapes, "unet", name, shape))


def test_another_dtype_than_the_manifest_says(model):
    manifest = with_part(model.manifest, "vae", dtype="bfloat16")
    with pytest.raises(CheckpointError, match=r"vae: .*dtype \(40\): block.0.weight is F32, bfloat16 is expected"):
        load(model.folder, manifest, model.shapes)


def test_other_parts_than_the_model_has(model):
    with pytest.raises(CheckpointError, match=r"its parts are \['unet', 'vae'\], those of the model are \['unet'\]"):
        load(model.folder, model.manifest, {"unet": model.shapes["unet"]})


def test_it_reads_the_folder_wherever_it_was_copied(model, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copied") / "model"
    shutil.copytree(model.folder, copy)
    assert load(copy, model.manifest, model.shapes).keys() == model.values.keys()
