import json

import pytest

from worker.errors import CheckpointError
from worker.weights.manifest import BakedFile, BakedPart, Manifest, read_manifest, write_manifest

SHA = "0123456789abcdef" * 4


def manifest() -> Manifest:
    return Manifest(
        converter_version=1,
        source="owner/name",
        revision="a" * 40,
        content_sha256=SHA,
        licence="openrail++",
        family="stable-diffusion",
        dtype="bfloat16",
        parts={
            "unet": BakedPart(
                config={"nested": [1, None, 0.5]}, file="unet.safetensors", dtype="bfloat16", sha256=SHA, size_bytes=8
            )
        },
        tokenizers={"tokenizer": {"vocab.json": BakedFile(sha256=SHA, size_bytes=3)}},
        scheduler={"_class_name": "DDIMScheduler"},
        model_index={"_class_name": "StableDiffusionPipeline", "safety_checker": [None, None]},
    )


def change(folder, edit):
    write_manifest(folder, manifest())
    raw = json.loads((folder / "manifest.json").read_text())
    edit(raw)
    (folder / "manifest.json").write_text(json.dumps(raw))


def test_what_is_written_is_read(tmp_path):
    write_manifest(tmp_path, manifest())
    assert read_manifest(tmp_path) == manifest()
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_one_is_not_a_model(tmp_path, exists):
    with pytest.raises(CheckpointError, match=r"not a baked model .*python -m builder bake"):
        read_manifest(tmp_path if exists else tmp_path / "none")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"version https://git-lfs.github.com/spec/v1"])
def test_garbled(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="not readable as JSON"):
        read_manifest(tmp_path)


def test_a_later_format_says_so_whatever_else_it_holds(tmp_path):
    (tmp_path / "manifest.json").write_text('{"format_version": 99, "novel": true}')
    with pytest.raises(CheckpointError, match="format 99 is later than 1"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda raw: raw.pop("family"), "family: Field required"),
        (lambda raw: raw.update(novel=1), "novel: Extra inputs"),
        (lambda raw: raw.update(format_version="1"), "format_version: "),
        (lambda raw: raw.update(dtype="float16"), "dtype: "),
        (lambda raw: raw["parts"]["unet"].update(sha256="xyz"), "parts.unet.sha256: "),
        (lambda raw: raw["parts"]["unet"].update(size_bytes="8"), "parts.unet.size_bytes: "),
        (lambda raw: raw["parts"]["unet"].update(file="../unet.safetensors"), "parts.unet.file: "),
        (lambda raw: raw["parts"]["unet"].update(file="/etc/passwd"), "parts.unet.file: "),
        (lambda raw: raw["tokenizers"].update({"..": {}}), "tokenizers.*: "),
    ],
)
def test_what_is_not_a_manifest_is_named(tmp_path, edit, message):
    change(tmp_path, edit)
    with pytest.raises(CheckpointError, match=message):
        read_manifest(tmp_path)


@pytest.mark.parametrize("content", ["[]", "null", '"manifest"'])
def test_json_that_is_no_object(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match="bake the model again"):
        read_manifest(tmp_path)
