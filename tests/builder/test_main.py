"""The commands: one line for people when something is wrong, and never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.__main__ import main
from tests.builder.checkpoints import params_of
from worker.weights.manifest import read_manifest

ROOT = Path(__file__).parent.parent.parent


def test_toy_then_bake(tmp_path, capsys):
    assert main(["toy", "--variant", "sd1", "--out", str(tmp_path / "toy"), "--seed", "3"]) == 0
    assert main(["bake", "--source", str(tmp_path / "toy"), "--out", str(tmp_path / "baked")]) == 0
    dtypes = {str(value.dtype) for part in params_of(tmp_path / "baked").values() for value in part.values()}
    assert dtypes == {"bfloat16"}
    assert "error" not in capsys.readouterr().err


def test_a_toy_is_baked_in_one_step(tmp_path):
    assert main(["bake", "--source", "toy:sdxl-turbo", "--out", str(tmp_path / "baked")]) == 0
    assert read_manifest(tmp_path / "baked").source == "toy-sdxl-turbo"
    assert [path.name for path in tmp_path.iterdir()] == ["baked"]


def test_an_unknown_toy_is_refused_with_the_known_ones(tmp_path, capsys):
    assert main(["bake", "--source", "toy:none", "--out", str(tmp_path / "baked")]) == 1
    assert "sd1" in capsys.readouterr().err
    assert not (tmp_path / "baked").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "--source", "{}/none"], "none: no such folder"),
        (["convert", "--source", "{}"], "no model_index.json"),
        (["bake", "--source", "{}/none"], "no such folder, and not a repository"),
        (["fetch", "--source", "none"], "no such folder, and not a repository"),
    ],
)
def test_one_line_and_a_failure(arguments, message, tmp_path, capsys):
    code = main([*(argument.format(tmp_path) for argument in arguments), "--out", str(tmp_path / "out")])
    lines = capsys.readouterr().err.splitlines()
    assert code == 1
    assert lines[-1].startswith("error: ")
    assert message in lines[-1]
    assert not [line for line in lines if "Traceback" in line]


def test_an_error_of_the_operating_system_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["toy", "--variant", "sd1", "--out", str(tmp_path / "file" / "toy")]) == 1
    assert capsys.readouterr().err.startswith("error: [Errno")


def test_as_a_program_against_the_hub_of_the_environment(hub_server, published, tmp_path):
    hub_server.add("owner/toy", published())
    hub_server.gated["owner/toy"] = "hf_right"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub_server.endpoint, "HF_HOME": str(tmp_path / "home"), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "builder", "bake", "--source", "owner/toy@main", "--out", tmp_path / "baked"]
    refused = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "error: owner/toy" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr
    done = subprocess.run(command, cwd=ROOT, env=environment | {"HF_TOKEN": "hf_right"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert params_of(tmp_path / "baked")
    assert not [path for path in (tmp_path / "baked").rglob("*") if path.is_file() and b"hf_right" in path.read_bytes()]


@pytest.mark.parametrize(
    ("platform", "command", "message"),
    [
        ("cpu", ["target"], "error: cpu: only a GPU can be a target; "),
        ("cuda", ["target"], "error: JAX has no device on cuda "),
        ("cuda", ["compile", "--target", "auto", "--model", "{}"], "error: auto: JAX has no device on cuda "),
    ],
)
def test_a_card_that_is_not_here_is_named_with_what_is(tmp_path, platform, command, message):
    assert main(["bake", "--source", "toy:sd1", "--out", str(tmp_path)]) == 0
    done = subprocess.run(
        [sys.executable, "-m", "builder", *(part.format(tmp_path) for part in command)],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": platform},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(message)
    assert "GPU and driver: " in last
    assert "ALLOW_CPU" not in last
    assert "Traceback" not in done.stderr
