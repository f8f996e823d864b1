"""The images of the project's Dockerfile, each built once, and containers of them.

IMAGE_ENGINE is the command that runs containers, by default `docker`. IMAGE_BUILDER replaces `docker build`, where
the base images have to come from elsewhere; it is called as `IMAGE_BUILDER FOLDER -t TAG -- ARGUMENTS`, with the
arguments of `docker build`.
"""

import contextlib
import os
import shlex
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
TOKEN = "hf_SecretOfTheImageTest"
LOCKED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
"""The least that a container may have."""
QUICK = ("--env", "XLA_FLAGS=--xla_backend_optimization_level=0")
"""For what has to be compiled."""
_ENGINE = shlex.split(os.environ.get("IMAGE_ENGINE", "docker"))


class Done(NamedTuple):
    """How a container ended, and what it said."""

    code: int
    said: str


def engine(*arguments: str) -> Done:
    """Run the engine and wait."""
    done = subprocess.run([*_ENGINE, *arguments], capture_output=True, text=True, timeout=900, check=False)
    return Done(done.returncode, done.stdout + done.stderr)


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Built without CUDA, with a toy model and its programs, and with a token that is not needed."""
    secret = tmp_path_factory.mktemp("secret") / "token"
    secret.write_text(TOKEN)
    given = {"EXTRA": "", "MODEL_ID": "toy:sd1", "DTYPE": "float32", "TARGETS": "cpu", "SLOTS": "1"}
    return _build("test", given, "--secret", f"id=hf_token,src={secret}")


@pytest.fixture(scope="session")
def image_without_model() -> str:
    """The variant with the model on a network volume, without CUDA."""
    return _build("test-volume", {"EXTRA": ""})


def _build(tag: str, given: dict[str, str], *options: str) -> str:
    tag = f"worker-jax-diffusion:{tag}"
    arguments = [part for name, value in given.items() for part in ("--build-arg", f"{name}={value}")]
    arguments += options
    builder = os.environ.get("IMAGE_BUILDER")
    command = (
        [*shlex.split(builder), str(ROOT), "-t", tag, "--", *arguments]
        if builder
        else [*_ENGINE, "build", "-t", tag, *arguments, str(ROOT)]
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return tag


@pytest.fixture
def container() -> Generator[Callable[..., str]]:
    """`container(image, *options)` starts a worker behind and returns its name; it is removed at the end."""
    names: list[str] = []

    def start(image: str, *options: str) -> str:
        names.append(f"worker-test-{os.getpid()}-{len(names)}")
        done = engine("run", "--detach", "--name", names[-1], *options, image)
        assert done.code == 0, done.said
        return names[-1]

    yield start
    for name in names:
        with contextlib.suppress(subprocess.TimeoutExpired):
            engine("rm", "--force", name)
