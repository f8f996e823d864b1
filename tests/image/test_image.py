"""The real Dockerfile, built and run: what is in the image, and that it serves with the least rights there are."""

import json
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


def layer_files(saved: Path) -> Iterator[str]:
    """Paths of all files of all layers: what a later layer removes, or has again, counts too."""
    with tarfile.open(saved) as archive:
        for layer in json.loads(_content(archive, "manifest.json"))[0]["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                yield from (entry.name.removeprefix("./") for entry in files if entry.isfile())


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def test_a_job_runs_without_network_as_nobody_on_a_root_to_read(image):
    done = engine("run", "--rm", "--network", "none", *LOCKED, image)
    assert done.code == 0, done.said
    assert "/tmp/output/local_test/0.png" in done.said
    assert "Traceback" not in done.said
    assert COMPILED not in done.said
    assert int(python(image, "import os; print(os.getuid())")) > 0


def test_jobs_of_the_platform_are_answered_and_a_stop_is_followed(container):
    with JobApi() as api:
        environment = api.environment | {"ALLOW_CPU": "true", "MAX_SLOTS": "1"}
        options = [part for name, value in environment.items() for part in ("--env", f"{name}={value}")]
        name = container("--network", "host", *LOCKED, *options)
        until(lambda: bool(api.takes), 180)
        api.submit({"id": "one", "input": {"prompt": "a fox", "num_inference_steps": 2, "seed": 1}})
        (answer,) = api.wait("one", timeout_s=180)
        assert answer["output"]["seed"] == 1
        assert COMPILED not in engine("logs", name).said
        assert answer["output"]["images"][0].startswith("data:image/png;base64,")
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


def test_weights_are_there_once_and_no_caches(saved):
    files = Counter(layer_files(saved))
    weights = [path for path in files if path.endswith(".safetensors")]
    assert sorted(weights) == [f"model/{part}.safetensors" for part in ("text_encoder", "unet", "vae")]
    assert all(files[path] == 1 for path in weights)
    assert not [path for path in files if "huggingface/" in path or path.startswith("root/.cache/")]
    assert [path for path in files if path.startswith("app/worker/") and path.endswith(".pyc")]


def test_the_token_is_nowhere(saved):
    with saved.open("rb") as archive:
        before = b""
        while block := archive.read(1 << 24):
            assert TOKEN.encode() not in before + block
            before = block[-len(TOKEN) :]


def test_a_model_of_the_operator_is_baked_onto_the_volume_once(image, tmp_path):
    tmp_path.chmod(0o777)
    options = (
        "--network",
        "none",
        *LOCKED,
        *QUICK,
        "--volume",
        f"{tmp_path}:/runpod-volume",
        "--env",
        "MODEL_ID=toy:sdxl",
    )
    for baking in (True, False):
        done = engine("run", "--rm", *options, image)
        assert done.code == 0, done.said
        assert ("baking to" in done.said) is baking
    (baked,) = (tmp_path / "baked-models").glob("[!.]*")
    assert read_manifest(baked).source == "toy-sdxl"


def test_a_volume_that_cannot_be_written_is_told(image, tmp_path):
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
    done = engine("run", "--rm", *options, image)
    assert done.code == 0, done.said
    assert "again at every start" in done.said
