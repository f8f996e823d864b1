"""A model comes onto the volume once, whoever comes first and whatever happens to it, and from where it is near."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from builder.fetch import Hub
from builder.volume import Model, find_snapshot, model_on_volume
from tests.builder.fake_hub import COMMIT
from tests.platform.job_api import until
from worker.errors import BuildError
from worker.weights.load import folder_problems
from worker.weights.manifest import read_manifest

ROOT = Path(__file__).parent.parent.parent
TOY = Model("toy:sd1", "", "float32")
# A worker that says when it has begun to bake, and goes on when there is a file named "go".
WORKER = """
import logging, sys, time
from pathlib import Path
from builder import volume
from builder.fetch import Hub

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
place, go, begun = map(Path, sys.argv[1:])
bake = volume.bake

def slow(*arguments, **options):
    begun.touch()
    while not go.exists():
        time.sleep(0.02)
    bake(*arguments, **options)

volume.bake = slow
print("ready", volume.model_on_volume(volume.Model("toy:sd1", "", "float32"), place, Hub()))
"""


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "volume").mkdir()
    return tmp_path / "volume"


@pytest.fixture
def offline() -> Hub:
    """A hub that is not there."""
    return Hub("http://127.0.0.1:9")


def start(volume: Path, name: str) -> tuple[subprocess.Popen[bytes], Path, Path]:
    """A worker, its output, and the file that tells that it has begun to bake."""
    said, begun = volume.parent / f"{name}.log", volume.parent / f"{name}.begun"
    arguments = [sys.executable, "-c", WORKER, str(volume), str(volume.parent / "go"), str(begun)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    with said.open("wb") as out:
        return subprocess.Popen(arguments, env=environment, stdout=out, stderr=out), said, begun


def test_of_two_workers_at_once_one_bakes_and_both_serve_the_same(volume, offline):
    first, first_said, begun = start(volume, "first")
    until(begun.exists, 60)
    second, second_said, second_begun = start(volume, "second")
    until(lambda: "waiting" in second_said.read_text(), 60)
    (volume.parent / "go").touch()
    assert first.wait(60) == second.wait(60) == 0
    ready = [said.read_text().splitlines()[-1] for said in (first_said, second_said)]
    assert ready[0] == ready[1] == f"ready {model_on_volume(TOY, volume, offline)}"
    assert not second_begun.exists()


def test_a_worker_that_is_killed_holds_nobody_up(volume, offline):
    first, _, begun = start(volume, "first")
    until(begun.exists, 60)
    first.kill()
    first.wait(10)
    baked = model_on_volume(TOY, volume, offline)
    assert not folder_problems(baked, read_manifest(baked))


def test_a_model_is_baked_once_and_damage_is_mended(volume, offline, caplog):
    caplog.set_level("INFO", "builder")
    baked = model_on_volume(TOY, volume, offline)
    assert baked.parent.parent == volume
    assert read_manifest(baked).dtype == "float32"
    assert "baking" in caplog.text
    caplog.clear()
    assert model_on_volume(TOY, volume, offline) == baked
    assert not caplog.text
    (baked / "unet.safetensors").write_bytes(b"cut")
    assert model_on_volume(TOY, volume, offline) == baked
    assert not folder_problems(baked, read_manifest(baked))


def test_models_that_differ_have_places_of_their_own():
    models = {Model(source, revision, dtype) for source in ("a/b", "a/c") for revision in ("", "x") for dtype in (
        "bfloat16", "float32"
    )}  # fmt: skip
    assert len({model.folder for model in models}) == len(models) == 8
    assert all("/" not in model.folder for model in models)


def test_without_a_volume_the_containers_disk_is_used(tmp_path, offline, monkeypatch, caplog):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
    (tmp_path / "disk").mkdir()
    baked = model_on_volume(TOY, tmp_path / "absent", offline)
    assert baked.is_relative_to(tmp_path / "disk")
    assert not (tmp_path / "absent").exists()
    assert "again at every start" in caplog.text


def test_a_volume_to_read_only_is_served_from_and_never_written(volume, offline, monkeypatch):
    baked = model_on_volume(TOY, volume, offline)
    monkeypatch.setattr("builder.volume._place", lambda _: pytest.fail("nothing is to be written"))
    assert model_on_volume(TOY, volume, offline) == baked


def cache(source: Path, hub_cache: Path, *, branch: str | None = "main") -> Path:
    """Lay a checkpoint out as the hub's client does; returns the snapshot."""
    folder = hub_cache / "models--owner--toy"
    snapshot = folder / "snapshots" / COMMIT
    for number, path in enumerate(sorted(path for path in source.rglob("*") if path.is_file())):
        blob, link = folder / "blobs" / str(number), snapshot / path.relative_to(source)
        for made in (blob, link):
            made.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, blob)
        link.symlink_to(Path(os.path.relpath(blob, link.parent)))
    if branch:
        (folder / "refs").mkdir()
        (folder / "refs" / branch).write_text(COMMIT)
    return snapshot


@pytest.mark.parametrize("revision", ["", "main", COMMIT])
def test_a_model_in_runpods_cache_is_not_downloaded(volume, offline, published, revision):
    source = published()
    (source / "README.md").write_text("---\nlicense: toy-licence\n---\n")
    cache(source, volume / "huggingface-cache" / "hub")
    manifest = read_manifest(model_on_volume(Model("owner/toy", revision, "float32"), volume, offline))
    assert (manifest.source, manifest.revision, manifest.licence) == ("owner/toy", COMMIT, "toy-licence")


def test_what_the_cache_lacks_comes_from_the_hub(volume, hub_server, published, caplog):
    source = published()
    snapshot = cache(source, volume / "huggingface-cache" / "hub")
    (snapshot / "unet/diffusion_pytorch_model.safetensors").unlink()
    hub_server.add("owner/toy", source)
    baked = model_on_volume(Model("owner/toy", "", "float32"), volume, Hub(hub_server.endpoint))
    assert "cache is not used: " in caplog.text
    assert read_manifest(baked).source == "owner/toy"
    assert "unet/diffusion_pytorch_model.safetensors" in hub_server.downloads()


def test_another_revision_than_the_cached_one_is_not_taken(published, tmp_path):
    snapshot = cache(published(), tmp_path / "cache")
    assert find_snapshot(tmp_path / "cache", "owner/toy", "") == snapshot
    assert find_snapshot(tmp_path / "cache", "owner/toy", "dev") is None
    assert find_snapshot(tmp_path / "cache", "owner/other", "") is None


def test_a_cache_without_branches_is_unambiguous_only_with_one_snapshot(published, tmp_path):
    snapshot = cache(published(), tmp_path / "cache", branch=None)
    assert find_snapshot(tmp_path / "cache", "owner/toy", "") == snapshot
    snapshot.with_name("f" * 40).mkdir()
    assert find_snapshot(tmp_path / "cache", "owner/toy", "") is None


def test_what_the_disk_refuses_is_one_error(volume, offline, monkeypatch):
    def fail(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("builder.volume.bake", fail)
    with pytest.raises(BuildError, match="cannot be baked"):
        model_on_volume(TOY, volume, offline)
