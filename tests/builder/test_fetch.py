"""A repository at one commit becomes a folder of the needed files, over a hub that fails in every way."""

import json
import logging
import types
from collections import namedtuple

import pytest

from builder.bake import bake
from builder.convert import convert
from builder.fetch import Hub, fetch, read_origin, split_source
from tests.builder.checkpoints import assert_equal, params_of
from tests.builder.fake_hub import COMMIT, FakeHub
from worker.errors import BuildError, CheckpointError
from worker.weights.manifest import read_manifest

REPOSITORY = "owner/toy"
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"


@pytest.fixture(autouse=True)
def client(monkeypatch, tmp_path):
    """No token, no cache and no pauses of the machine's own."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "no-cache"))
    monkeypatch.setattr("huggingface_hub.file_download.time", types.SimpleNamespace(sleep=lambda _: None))


@pytest.fixture
def hub(hub_server: FakeHub, published) -> Hub:
    """A client of a hub that has the toy, with the files beside it that repositories have."""
    folder = published()
    for name in ("v1-5.ckpt", "unet/diffusion_pytorch_model.bin", "unet/diffusion_pytorch_model.fp16.safetensors"):
        (folder / name).write_bytes(b"not needed")
    hub_server.add(REPOSITORY, folder)
    return Hub(hub_server.endpoint)


def run_fetch(hub: Hub, folder, revision: str | None = None) -> None:
    fetch(hub, hub.resolve(REPOSITORY, revision), folder)


def content(folder) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_what_is_needed_is_downloaded_once(hub, hub_server, tmp_path):
    run_fetch(hub, tmp_path / "fetched")
    found = content(tmp_path / "fetched")
    origin = json.loads(found.pop("origin.json"))
    files = hub_server.files[REPOSITORY]
    assert found == {name: files[name] for name in found}
    assert sorted(found) == sorted(set(hub_server.downloads()))
    assert len(hub_server.downloads()) == len(found)
    assert not [name for name in found if name.endswith((".bin", ".ckpt")) or "fp16" in name]
    assert (origin["repository"], origin["revision"], origin["licence"]) == (REPOSITORY, COMMIT, "toy-licence")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fetched", "published"]


def test_a_baked_folder_tells_its_commit(hub, tmp_path):
    run_fetch(hub, tmp_path / "fetched", COMMIT)
    manifest = convert(tmp_path / "fetched", tmp_path / "baked", "float32")
    assert (manifest.source, manifest.revision, manifest.licence) == (REPOSITORY, COMMIT, "toy-licence")
    convert(tmp_path / "published" / "sd1", tmp_path / "local", "float32")
    assert_equal(params_of(tmp_path / "baked"), params_of(tmp_path / "local"))


def test_the_same_commit_again_downloads_nothing(hub, hub_server, tmp_path, caplog):
    run_fetch(hub, tmp_path / "fetched")
    before = len(hub_server.downloads())
    with caplog.at_level(logging.INFO):
        run_fetch(hub, tmp_path / "fetched")
    assert len(hub_server.downloads()) == before
    assert "fetched already" in caplog.text


@pytest.mark.parametrize("name", ["mine.txt", "model_index.json"])
def test_a_folder_with_something_else_is_left_alone(name, hub, tmp_path):
    (tmp_path / name).write_text("mine")
    with pytest.raises(BuildError, match="holds something else"):
        run_fetch(hub, tmp_path)
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("manner", ["close", "reset"])
def test_a_connection_that_breaks_is_taken_up_again(manner, hub, hub_server, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    hub_server.cuts[WEIGHTS] = [(1000, manner), (500_000, manner)]
    run_fetch(hub, tmp_path / "fetched")
    assert (tmp_path / "fetched" / WEIGHTS).read_bytes() == hub_server.files[REPOSITORY][WEIGHTS]
    assert hub_server.downloads().count(WEIGHTS) == 3
    ranges = [bytes_ for method, path, bytes_ in hub_server.requests if method == "GET" and path.endswith(WEIGHTS)]
    if manner == "close":
        assert ranges == [None, "bytes=1000-", "bytes=501000-"]


def test_a_run_that_fails_is_gone_on_with(hub, hub_server, tmp_path):
    hub_server.cuts[WEIGHTS] = [(0, "close")] * 100
    with pytest.raises(BuildError, match=rf"{WEIGHTS}: the connection failed .*; run the same command to go on"):
        run_fetch(hub, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()
    first = set(hub_server.downloads()) - {WEIGHTS}
    assert "text_encoder/model.safetensors" in first
    hub_server.cuts.clear()
    hub_server.requests.clear()
    run_fetch(hub, tmp_path / "fetched")
    assert not first & set(hub_server.downloads())
    assert convert(tmp_path / "fetched", tmp_path / "baked", "float32").revision == COMMIT


def test_what_another_commit_left_is_not_taken_over(hub, hub_server, tmp_path):
    hub_server.cuts[WEIGHTS] = [(0, "close")] * 100
    with pytest.raises(BuildError):
        run_fetch(hub, tmp_path / "fetched")
    (tmp_path / "fetched.partial" / "text_encoder" / "model.fp16.safetensors").write_bytes(b"stale")
    marker = tmp_path / "fetched.partial" / ".staging.json"
    marker.write_text(marker.read_text().replace(COMMIT, "f" * 40))
    hub_server.cuts.clear()
    run_fetch(hub, tmp_path / "fetched")
    assert not (tmp_path / "fetched" / "text_encoder" / "model.fp16.safetensors").exists()


def test_gated_without_a_token(hub, hub_server, tmp_path):
    hub_server.gated[REPOSITORY] = "hf_right"
    with pytest.raises(BuildError, match=r"owner/toy.*: gated: accept its licence .* \(HF_TOKEN is not set\)"):
        run_fetch(hub, tmp_path / "fetched")


def test_gated_with_the_wrong_token_and_with_the_right_one(hub, hub_server, tmp_path, monkeypatch):
    hub_server.gated[REPOSITORY] = "hf_right"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(BuildError, match=r"gated: .* \(the token in HF_TOKEN has no access\)") as caught:
        run_fetch(hub, tmp_path / "fetched")
    assert "hf_wrong" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    run_fetch(hub, tmp_path / "fetched")
    assert not [name for name, data in content(tmp_path / "fetched").items() if b"hf_right" in data]


@pytest.mark.parametrize(
    ("repository", "revision", "message"),
    [
        ("owner/none", None, r"owner/none: no such repository, or a private one \(HF_TOKEN is not set\)"),
        (REPOSITORY, "v9", "owner/toy@v9: the repository has no such revision"),
        (REPOSITORY, "f" * 40, "the repository has no such revision"),
        ("owner/-..-", None, "owner/-..-: "),
    ],
)
def test_what_the_hub_does_not_have(repository, revision, message, hub):
    with pytest.raises(BuildError, match=message):
        hub.resolve(repository, revision)


@pytest.mark.parametrize("status", [500, 503, 418])
def test_a_hub_that_does_not_serve(status, hub, hub_server):
    hub_server.status = status
    with pytest.raises(BuildError, match=f"owner/toy: the hub answered {status}"):
        hub.resolve(REPOSITORY, None)


def test_no_network():
    with pytest.raises(BuildError, match=r"owner/toy: the connection failed \("):
        Hub("http://127.0.0.1:9").resolve(REPOSITORY, None)


def test_offline_by_choice(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BuildError, match="HF_HUB_OFFLINE is set"):
        hub.resolve(REPOSITORY, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("model_index.json"), r"owner/toy: no model_index.json: v1-5.ckpt is a single-file"),
        (lambda f: f.pop("vae/config.json"), r"missing from the checkpoint: vae/config.json"),
        (lambda f: f.pop("tokenizer/merges.txt"), r"neither vocab.json and merges.txt"),
        (
            lambda f: [f.pop(name) for name in [*f] if name.startswith("unet/") and name.endswith(".safetensors")],
            r"unet: only pickled weights \(diffusion_pytorch_model.bin\); safetensors are required",
        ),
        (
            lambda f: f.update({"model_index.json": b'{"_class_name": "HunyuanDiTPipeline"}'}),
            "HunyuanDiTPipeline is not served",
        ),
    ],
)
def test_what_cannot_be_baked_is_not_downloaded(change, message, hub, hub_server, tmp_path):
    change(hub_server.files[REPOSITORY])
    with pytest.raises(CheckpointError, match=message):
        run_fetch(hub, tmp_path / "fetched")
    assert not [name for name in hub_server.downloads() if name.endswith((".safetensors", ".bin"))]


def test_a_pointer_instead_of_the_weights(hub, hub_server, tmp_path):
    hub_server.files[REPOSITORY][WEIGHTS] = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    run_fetch(hub, tmp_path / "fetched")
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS}: a Git LFS pointer"):
        convert(tmp_path / "fetched", tmp_path / "baked", "float32")


def test_weights_that_changed_since_they_were_fetched(hub, tmp_path):
    run_fetch(hub, tmp_path / "fetched")
    data = bytearray((tmp_path / "fetched" / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (tmp_path / "fetched" / WEIGHTS).write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS} differ from the hub's sha256"):
        convert(tmp_path / "fetched", tmp_path / "baked", "float32")


def test_a_disk_too_small_is_found_before_the_weights_are_downloaded(hub, hub_server, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("builder.staging.shutil.disk_usage", lambda _: usage(10**9, 10**9, 1000))
    with pytest.raises(BuildError, match=r"the download needs 0.07 GB of disk, 0.00 GB are free"):
        run_fetch(hub, tmp_path / "fetched")
    assert hub_server.downloads() == ["model_index.json"]


@pytest.mark.parametrize("source", ["", "toy", "a/b/c", "a b/c", "@main", "owner/toy@", "/no/such/folder"])
def test_what_is_no_source(source):
    if source == "owner/toy@":
        assert split_source(source) == ("owner/toy", None)
    else:
        with pytest.raises(BuildError, match="no such folder, and not a repository"):
            split_source(source)


def test_sources():
    assert split_source("owner/toy") == ("owner/toy", None)
    assert split_source("owner/toy.v1_x@refs/pr/1") == ("owner/toy.v1_x", "refs/pr/1")


def test_an_origin_that_is_not_ours(tmp_path):
    assert read_origin(tmp_path) is None
    (tmp_path / "origin.json").write_text('{"other": 1}')
    with pytest.raises(CheckpointError, match="not as `fetch` writes it"):
        read_origin(tmp_path)


def run_bake(source: str, out, hub: Hub, force: bool = False) -> None:
    bake(source, out, "float32", force=force, hub=hub)


def test_bake_is_fetch_and_convert_and_leaves_the_model_alone(hub, hub_server, tmp_path):
    run_bake(REPOSITORY, tmp_path / "baked", hub)
    assert read_manifest(tmp_path / "baked").revision == COMMIT
    assert params_of(tmp_path / "baked")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["baked", "published"]
    hub_server.requests.clear()
    run_bake(REPOSITORY, tmp_path / "baked", hub)
    assert not hub_server.downloads()
    # A commit that is baked needs no hub at all.
    run_bake(f"{REPOSITORY}@{COMMIT}", tmp_path / "baked", Hub("http://127.0.0.1:9"))


def test_bake_asks_for_force_before_it_downloads(hub, hub_server, tmp_path):
    convert(tmp_path / "published" / "sd1", tmp_path / "baked", "float32")
    with pytest.raises(BuildError, match="holds sd1 in float32"):
        run_bake(REPOSITORY, tmp_path / "baked", hub)
    assert not hub_server.downloads()
    run_bake(REPOSITORY, tmp_path / "baked", hub, force=True)
    assert read_manifest(tmp_path / "baked").source == REPOSITORY


def test_bake_of_a_folder_asks_no_hub(published, tmp_path):
    run_bake(str(published()), tmp_path / "baked", Hub("http://127.0.0.1:9"))
    assert read_manifest(tmp_path / "baked").source == "sd1"
