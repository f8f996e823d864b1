"""The real Dockerfile, built and run: what is in the image, and that it serves with the least rights there are."""

import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image.conftest import LOCKED, QUICK, TOKEN, engine
from tests.platform.job_api import JobApi, until
from worker.weights.manifest import read_manifest

pytestmark = [pytest.mark.image, pytest.mark.xdist_group("image")]
COMPILED = "programs: compiled"
"""What the log says of each program that was not stored."""


def python(image: str, code: str, *options: str) -> str:
    done = engine("run", "--rm", "--network", "none", *LOCKED, *options, image, "python", "-c", code)
    assert done.code == 0, done.said
    return done.said.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def saved(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image as an archive of its configuration and its layers."""
    path = tmp_path_factory.mktemp("saved") / "image.tar"
    done = engine("save", "-o", str(path), image)
    assert done.code == 0, done.said
    return path


def layer_files(saved: Path) -> Iterator[tuple[str, bytes]]:
    """All files of all layers: what a later layer removes, or has again, counts too."""
    with tarfile.open(saved) as archive:
        for layer in json.loads(_content(archive, "manifest.json"))[0]["Layers"]:
            # Engines differ in whether a layer is compressed; tarfile sees.
            with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                yield from (
                    (entry.name.removeprefix("./"), _content(files, entry)) for entry in files if entry.isfile()
                )


def history(saved: Path) -> bytes:
    """The image's configuration, which has the commands that made it, as they were run."""
    with tarfile.open(saved) as archive:
        return _content(archive, json.loads(_content(archive, "manifest.json"))[0]["Config"])


def _content(archive: tarfile.TarFile, entry: str | tarfile.TarInfo) -> bytes:
    file = archive.extractfile(entry)
    assert file is not None
    return file.read()


def test_a_job_runs_without_network_as_nobody_on_a_root_to_read(image):
    done = engine("run", "--rm", "--network", "none", *LOCKED, image)
    assert done.code == 0, done.said
    assert "/tmp/output/local_test/0.png" in done.said
    assert "Traceback" not in done.said
    assert COMPILED not in done.said
    assert int(python(image, "import os; print(os.getuid())")) > 0


def test_jobs_of_the_platform_are_answered_and_a_stop_is_followed(image, container):
    with JobApi() as api:
        environment = api.environment | {"ALLOW_CPU": "true", "MAX_SLOTS": "1"}
        options = [part for name, value in environment.items() for part in ("--env", f"{name}={value}")]
        name = container(image, "--network", "host", *LOCKED, *options)
        until(lambda: bool(api.takes), 180)
        api.submit({"id": "one", "input": {"prompt": "a fox", "num_inference_steps": 2, "seed": 1}})
        (answer,) = api.wait("one", timeout_s=180)
        assert answer["output"]["seed"] == 1
        assert answer["output"]["images"][0].startswith("data:image/png;base64,")
        api.submit({"id": "health", "input": {"health": True}})
        health = api.wait("health", timeout_s=60)[0]["output"]["health"]
        assert health["model"]["source"] == "toy-sd1"
        assert health["jobs"]["served"] >= 1
        assert {kind: found["count"] for kind, found in health["programs"].items()} == {
            "loaded": 6,
            "compiled": 0,
            "stored_but_not_used": 0,
            "failed": 0,
        }
        assert COMPILED not in engine("logs", name).said
        assert engine("stop", "--time", "20", name).code == 0
        assert engine("inspect", "--format", "{{.State.ExitCode}}", name).said.strip() == "0"


def test_only_what_serving_needs_is_there(image):
    absent = ["torch", "diffusers", "transformers", "pytest", "uv"]
    tools = ["cc", "gcc", "g++", "clang", "ld", "as", "make", "uv"]
    code = (
        "import importlib.util, json, shutil; "
        f"print(json.dumps([n for n in {absent} if importlib.util.find_spec(n)]"
        f" + [n for n in {tools} if shutil.which(n)]))"
    )
    assert json.loads(python(image, code)) == []


def test_weights_are_there_once_and_nothing_that_only_a_build_needs(saved):
    files = Counter(path for path, _ in layer_files(saved))
    weights = [path for path in files if path.endswith(".safetensors")]
    assert sorted(weights) == [f"model/{part}.safetensors" for part in ("text_encoder", "unet", "vae")]
    assert all(files[path] == 1 for path in weights)
    unwanted = re.compile(
        r"huggingface/|^root/\.cache/|site-packages/(torch|diffusers|transformers)/|/libcuda\.so|^model\.source"
    )
    assert [path for path in files if unwanted.search(path)] == []
    assert [path for path in files if path.startswith("app/worker/") and path.endswith(".pyc")]


def test_the_token_is_nowhere(saved):
    said = history(saved)
    # First, that what is searched is what was meant.
    assert b"handler.py" in said
    assert TOKEN.encode() not in said
    found = {path: TOKEN.encode() in content for path, content in layer_files(saved)}
    assert "model/manifest.json" in found
    assert [path for path, has in found.items() if has] == []


def test_an_image_without_a_model_says_what_is_missing(image_without_model):
    done = engine("run", "--rm", "--network", "none", *LOCKED, image_without_model)
    assert done.code == 1
    assert done.said.strip().splitlines()[-1].startswith("worker: /model: not a baked model")


def test_of_two_workers_on_a_volume_one_bakes_and_the_next_ones_start_from_it(image_without_model, container, tmp_path):
    tmp_path.chmod(0o777)
    options = (
        *LOCKED,
        *QUICK,
        "--network",
        "none",
        "--volume",
        f"{tmp_path}:/runpod-volume",
        "--env",
        "MODEL_ID=toy:sdxl",
    )
    names = [container(image_without_model, *options) for _ in range(2)]
    assert [engine("wait", name).said.strip() for name in names] == ["0", "0"]
    said = [engine("logs", name).said for name in names]
    assert sorted("baking to" in text for text in said) == [False, True]
    done = engine("run", "--rm", *options, image_without_model)
    assert done.code == 0, done.said
    assert "baking to" not in done.said
    (baked,) = (tmp_path / "baked-models").glob("[!.]*")
    assert read_manifest(baked).source == "toy-sdxl"


def test_a_volume_that_cannot_be_written_is_told(image_without_model, tmp_path):
    tmp_path.chmod(0o555)
    options = (
        "--network",
        "none",
        *LOCKED,
        *QUICK,
        "--volume",
        f"{tmp_path}:/runpod-volume:ro",
        "--env",
        "MODEL_ID=toy:sd1",
    )
    done = engine("run", "--rm", *options, image_without_model)
    assert done.code == 0, done.said
    assert "again at every start" in done.said


@pytest.mark.parametrize(("folder", "fault"), [("/opt", "Read-only file system"), ("/full", "No space left on device")])
def test_a_program_cache_that_takes_nothing_costs_a_line(image, folder, fault):
    """With other flags than those of the stored programs, so that there is something to keep."""
    options = (*LOCKED, *QUICK, "--network", "none", "--tmpfs", "/full:size=64k,mode=1777")
    done = engine("run", "--rm", *options, "--env", f"PROGRAM_CACHE={folder}/programs", image)
    assert done.code == 0, done.said
    assert done.said.count(f"cannot be written ({fault})") == 1
    assert "baked programs not used: made with XLA_FLAGS" in done.said
