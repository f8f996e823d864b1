"""The baked folder is whole or absent, whatever happens on the way, and nobody else's files are touched."""

import errno
import logging
import os
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from builder.convert import PartPlan, convert
from builder.staging import exclusive
from builder.toy import write_toy
from tests.builder.checkpoints import FILES, assert_equal, edit, leftovers, params_of
from worker.errors import BuildError, CheckpointError
from worker.weights.manifest import read_manifest

ROOT = Path(__file__).parent.parent.parent


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.rglob("*")}


def test_the_same_again_is_left_as_it_is(published, tmp_path, caplog):
    source, baked = published(), tmp_path / "baked"
    convert(source, baked, "float32")
    before = snapshot(baked)
    with caplog.at_level(logging.INFO):
        convert(source, baked, "float32")
    assert snapshot(baked) == before
    assert "baked already" in caplog.text


def test_another_model_is_replaced_by_force_alone(published, tmp_path):
    source, baked = published(), tmp_path / "baked"
    convert(source, baked, "float32")
    before = snapshot(baked)
    with pytest.raises(BuildError, match=r"holds sd1 in float32 .*--force replaces it"):
        convert(source, baked, "bfloat16")
    assert snapshot(baked) == before
    convert(source, baked, "bfloat16", force=True)
    assert read_manifest(baked).dtype == "bfloat16"
    edit(source / "unet" / FILES["unet"], lambda t: t | {"conv_in.bias": t["conv_in.bias"] + 1})
    with pytest.raises(BuildError, match="--force replaces it"):
        convert(source, baked, "bfloat16")
    assert leftovers(tmp_path) == ["baked"]


def test_a_damaged_model_is_replaced_by_force_alone(published, tmp_path):
    source, baked = published(), tmp_path / "baked"
    convert(source, baked, "float32")
    (baked / "unet.safetensors").unlink()
    with pytest.raises(BuildError, match=r"unet.safetensors is missing; --force replaces it"):
        convert(source, baked, "float32")
    convert(source, baked, "float32", force=True)
    assert params_of(baked)


@pytest.mark.parametrize("force", [True, False])
def test_files_of_others_are_never_replaced(force, published, tmp_path):
    source = published()
    for name in ("baked", "new.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").write_text("all of it")
    with pytest.raises(BuildError, match="is there and is not a baked model"):
        convert(source, tmp_path / "baked", "float32", force=force)
    with pytest.raises(BuildError, match=r"new.partial: is in the way"):
        convert(source, tmp_path / "new", "float32", force=force)
    assert (tmp_path / "baked" / "thesis.tex").exists()
    assert (tmp_path / "new.partial" / "thesis.tex").exists()


def test_an_empty_folder_is_free(published, tmp_path):
    (tmp_path / "baked").mkdir()
    assert convert(published(), tmp_path / "baked", "float32") == read_manifest(tmp_path / "baked")


def test_a_disk_too_small_is_found_before_anything_is_written(published, tmp_path, monkeypatch):
    source = published()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("builder.staging.shutil.disk_usage", lambda _: usage(10**9, 10**9, 1000))
    with pytest.raises(BuildError, match=r"the conversion needs 0.07 GB of disk, 0.00 GB are free"):
        convert(source, tmp_path / "baked", "float32")
    assert not (tmp_path / "baked").exists()
    assert not list((tmp_path / "baked.partial").glob("*.safetensors*"))


def interrupt(monkeypatch, part: str, error: BaseException) -> None:
    """Let the conversion fail half way through a part."""
    original = PartPlan.tensors

    def tensors(self):
        for i, tensor in enumerate(original(self)):
            if self.part.name == part and i == len(self.specs) // 2:
                raise error
            yield tensor

    monkeypatch.setattr(PartPlan, "tensors", tensors)


def test_a_disk_that_fills_up_on_the_way(published, tmp_path, monkeypatch):
    source, baked = published(), tmp_path / "baked"
    with monkeypatch.context() as patch:
        interrupt(patch, "vae", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        with pytest.raises(BuildError, match="the disk is full; make room and run the same command to go on"):
            convert(source, baked, "float32")
    # Writing to this device fails as on a full disk.
    half = tmp_path / "baked.partial" / "vae.safetensors.partial"
    half.unlink()
    half.symlink_to("/dev/full")
    with pytest.raises(BuildError, match="the disk is full"):
        convert(source, baked, "float32")
    half.unlink()
    assert not baked.exists()
    convert(source, baked, "float32")
    assert params_of(baked)


def test_finished_parts_are_kept_if_they_are_whole(published, tmp_path, monkeypatch, caplog):
    source, baked = published(), tmp_path / "baked"
    with monkeypatch.context() as patch:
        interrupt(patch, "vae", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            convert(source, baked, "float32")
    content = bytearray((tmp_path / "baked.partial" / "unet.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "baked.partial" / "unet.safetensors").write_bytes(content)
    with caplog.at_level(logging.INFO):
        convert(source, baked, "float32")
    assert "text_encoder: converted already" in caplog.text
    assert "unet: converted already" not in caplog.text
    convert(source, tmp_path / "straight", "float32")
    assert_equal(params_of(baked), params_of(tmp_path / "straight"))


@pytest.mark.parametrize("change", ["dtype", "content", "garbled"])
def test_what_other_work_left_is_not_taken_over(change, published, tmp_path, monkeypatch, caplog):
    source, baked = published(), tmp_path / "baked"
    with monkeypatch.context() as patch:
        interrupt(patch, "vae", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            convert(source, baked, "float32")
    if change == "content":
        edit(source / "unet" / FILES["unet"], lambda t: t | {"conv_in.bias": t["conv_in.bias"] + 1})
    if change == "garbled":
        (tmp_path / "baked.partial" / ".staging.json").write_text("{")
    with caplog.at_level(logging.INFO):
        convert(source, baked, "bfloat16" if change == "dtype" else "float32")
    assert "converted already" not in caplog.text
    assert params_of(baked)


KILLED = """
import sys, time
from pathlib import Path
import builder.convert
from builder.staging import Staging

def stop(*_):
    print("now", flush=True)
    time.sleep(600)

source, out, where = sys.argv[1:]
if where == "publish":
    Staging.publish = stop
else:
    original, count = builder.convert.to_runtime, 0
    def to_runtime(tensor, rank):
        global count
        count += 1
        if count == int(where):
            stop()
        return original(tensor, rank)
    builder.convert.to_runtime = to_runtime
builder.convert.convert(Path(source), Path(out), "float32")
"""


@pytest.mark.parametrize("where", ["100", "publish"])
def test_killed_on_the_way_and_run_again(where, published, tmp_path, caplog):
    source, baked = published(), tmp_path / "baked"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, source, baked, where],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"now\n"
        child.send_signal(signal.SIGKILL)
    assert not baked.exists()
    with pytest.raises(CheckpointError, match="not a baked model"):
        read_manifest(baked)
    with caplog.at_level(logging.INFO):
        convert(source, baked, "float32")
    assert "text_encoder: converted already" in caplog.text
    assert leftovers(tmp_path) == ["baked"]
    convert(source, tmp_path / "straight", "float32")
    assert read_manifest(baked) == read_manifest(tmp_path / "straight")
    assert_equal(params_of(baked), params_of(tmp_path / "straight"))
    assert leftovers(baked) == leftovers(tmp_path / "straight")


def test_a_link_as_the_target_is_followed(tmp_path):
    write_toy("sd1", tmp_path / "toy")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    convert(tmp_path / "toy", tmp_path / "link", "float32")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "manifest.json").is_file()


def test_two_bakes_do_not_share_a_place(tmp_path):
    write_toy("sd1", tmp_path / "toy")
    with exclusive(tmp_path / "baked"), pytest.raises(BuildError, match="another bake"):
        convert(tmp_path / "toy", tmp_path / "baked", "float32")
    convert(tmp_path / "toy", tmp_path / "baked", "float32")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["baked", "toy"]


def test_a_mount_point_and_a_file_in_the_way_are_refused_at_once(tmp_path, monkeypatch):
    write_toy("sd1", tmp_path / "toy")
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="is not a folder"):
        convert(tmp_path / "toy", tmp_path / "file" / "baked", "float32")
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "volume")
    with pytest.raises(BuildError, match="mount point"):
        convert(tmp_path / "toy", tmp_path / "volume", "float32")


def test_what_a_worker_would_refuse_is_not_baked(tmp_path):
    write_toy("sd1", tmp_path / "toy")
    path = tmp_path / "toy" / "scheduler" / "scheduler_config.json"
    path.write_text(path.read_text().replace("PNDMScheduler", "SASolverScheduler"))
    with pytest.raises(CheckpointError, match="SASolver"):
        convert(tmp_path / "toy", tmp_path / "baked", "float32")
    assert not (tmp_path / "baked").exists()
