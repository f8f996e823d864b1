"""Workers in processes of their own, most of them over one job API."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.platform.job_api import JobApi, until

ROOT = Path(__file__).parent.parent.parent
EVERY_S = 0.4
"""Seconds between two progress reports."""
STUB = (sys.executable, "-m", "tests.platform.stub_worker")


@dataclass
class Worker:
    """A process and what it has said."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text("utf-8")

    def wait(self, timeout_s: float = 30) -> int:
        return self.process.wait(timeout_s)


Start = Callable[..., Worker]


@pytest.fixture(scope="session")
def stub_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A baked toy checkpoint."""
    from builder.convert import convert
    from builder.toy import write_toy

    folder = tmp_path_factory.mktemp("stub")
    write_toy("sd1", folder / "sd1")
    convert(folder / "sd1", folder / "baked", dtype="float32")
    return folder / "baked"


@pytest.fixture(scope="module")
def start(stub_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Start]:
    """`start(*arguments, command=..., **environment)`; what still runs at the end is killed."""
    workers: list[Worker] = []

    def run(*arguments: str, command: tuple[str, ...] = STUB, **environment: str) -> Worker:
        folder = tmp_path_factory.mktemp("worker")
        settings = {"MODEL_DIR": str(stub_model), "PYTHONPATH": str(ROOT), "WARM_UP": "false"}
        settings["XDG_CACHE_HOME"] = str(folder)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RUNPOD_", "JAX_"))}
        log = folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, *arguments],
                cwd=folder,
                env=inherited | settings | environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        workers.append(Worker(process, log))
        return workers[-1]

    yield run
    for worker in workers:
        # The heartbeat is a process of the same group, and outlives a worker that is killed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait(10)


@pytest.fixture(scope="module")
def api() -> Generator[JobApi]:
    with JobApi() as made:
        yield made


@pytest.fixture(scope="module")
def worker(api: JobApi, start: Start) -> Worker:
    """One worker for all jobs of a module, ready to take them."""
    made = start(**api.environment, ALLOW_CPU="true", MAX_CONCURRENCY="20", PROGRESS_EVERY_S=str(EVERY_S))
    until(lambda: bool(api.takes), 60)
    return made


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def unused_port() -> int:
    """See `free_port`."""
    return free_port()
