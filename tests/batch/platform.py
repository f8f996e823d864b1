"""An endpoint within the test: the worker's own service over an engine that only draws, and clients as processes."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fake_engine import FakeEngine
from tests.platform.endpoint_api import EndpointApi
from worker.engine.engine import Made
from worker.places import Store
from worker.service import Service

ROOT = Path(__file__).parent.parent.parent
QUICK = ("--poll", "0.3", "--backoff", "0.05")


class Killed(BaseException):
    """The worker's process ends where it is."""


class MortalEngine(FakeEngine):
    """`dies(pictures made in this pass)` says when."""

    dies: Callable[[int], bool] = staticmethod(lambda _made: False)

    def run(self, *arguments: Any) -> Generator[Made]:
        for number, made in enumerate(super().run(*arguments)):
            if self.dies(number):
                raise Killed
            yield made


@contextmanager
def worker(
    api: EndpointApi, engine: MortalEngine, store: Store, after: Callable[[str], Mapping[str, Any] | None]
) -> Generator[Service]:
    """Serves the API's jobs one after another. `after(job id)`: what the platform makes of a job that was served,
    instead of handing its answer on; of a job whose worker died, it makes what it likes.
    """
    service = Service(engine.as_engine, store, 9_000_000, platform=True)
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            job = api.take()
            if job is None:
                time.sleep(0.01)
                continue
            try:
                answer = service.run(job)
            except Killed:
                api.finish(job["id"], status="FAILED", error="the worker exited")
                continue
            fate = after(job["id"])
            if fate is not None:
                api.finish(job["id"], **fate)
            elif "error" in answer:
                api.finish(job["id"], status="FAILED", error=answer.pop("error"), output=answer)
            else:
                api.finish(job["id"], status="COMPLETED", output=answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield service
    finally:
        ended.set()
        thread.join()


class BatchClient:
    """`python -m worker.batch` as its users call it, in `folder`."""

    def __init__(self, folder: Path, environment: Mapping[str, str]):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RUNPOD_", "BUCKET_"))}
        own = {"PYTHONPATH": str(ROOT), "HOME": str(folder), "COLUMNS": "120"}
        self.folder, self.environment = folder, inherited | own | environment

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "worker.batch", *arguments],
            cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *arguments: str, timeout_s: float = 600) -> tuple[int, str]:
        """Exit code and what was said."""
        process = self.start(*arguments)
        try:
            said, _ = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
        return process.returncode, said

    def end(self, process: subprocess.Popen[str], how: signal.Signals) -> tuple[int, str]:
        """Exit code and what was said of one that is ended."""
        process.send_signal(how)
        said, _ = process.communicate(timeout=60)
        return process.returncode, said
