"""This machine as the platform: a process for each device, which all take jobs from one queue."""

import json
import logging
import secrets
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread
from typing import Any

from worker.errors import BatchError

log = logging.getLogger(__name__)

_JOBS_EACH = 3
"""Jobs that a process has at once: one on the device, others that are read, encoded or wait to share its passes."""
_DEATHS_MAX = 3
"""In a row, without an answer between them, until a device is given up."""


def visible_devices(environment: Mapping[str, str], most: int | None) -> list[str | None]:
    """What each process may see: a GPU of its own, or None of one that computes on the CPU.

    `most`: GPUs at most, or processes on the CPU (by default one, which uses all cores).
    """
    named = environment.get("CUDA_VISIBLE_DEVICES", "").strip()
    present = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    gpus = named.split(",") if named else [str(index) for index in range(len(present))]
    return list(gpus[:most]) if gpus else [None] * (most or 1)


class Devices:
    """A `Platform`. `visible` has the device that each process may see, None for whatever there is.

    `command` starts a process, which gets `{"id", "input", ...}` on a line of its standard input for each job and
    writes `{"id", "answer"}` on one of its output (`worker.batch.device`). A process that ends is started again, and
    its jobs are not known any more.
    """

    def __init__(
        self,
        visible: list[str | None],
        environment: Mapping[str, str],
        command: tuple[str, ...] = (sys.executable, "-m", "worker.batch.device"),
    ):
        self._command, self._environment = command, environment
        self._changed = Condition()
        self._queue = deque[dict[str, Any]]()
        self._states: dict[str, dict[str, Any]] = {}
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._closed, self._alive, self._fault = False, len(visible), ""
        self._threads = [Thread(target=self._keep, args=(device,), daemon=True) for device in visible]
        for thread in self._threads:
            thread.start()

    def run(self, job: Mapping[str, Any]) -> str:
        job_id = f"local-{secrets.token_hex(8)}"
        with self._changed:
            self._check()
            self._states[job_id] = {"id": job_id, "status": "IN_QUEUE"}
            self._queue.append({"id": job_id, **job})
            self._changed.notify_all()
        return job_id

    def status(self, job_id: str) -> Mapping[str, Any] | None:
        with self._changed:
            self._check()
            state = self._states.get(job_id)
            if state and state["status"] not in ("IN_QUEUE", "IN_PROGRESS"):
                # It is asked for once; what is in it may be large.
                del self._states[job_id]
            return state

    def cancel(self, job_id: str) -> None:
        with self._changed:
            self._states.pop(job_id, None)
            self._queue = deque(job for job in self._queue if job["id"] != job_id)

    def workers(self) -> int:
        with self._changed:
            return self._alive

    def close(self) -> None:
        with self._changed:
            self._closed = True
            processes = list(self._processes)
            self._changed.notify_all()
        for process in processes:
            process.kill()
        for thread in self._threads:
            thread.join()

    def _check(self) -> None:
        if not self._alive:
            raise BatchError(f"no device can serve: {self._fault}")

    def _keep(self, device: str | None) -> None:
        """Keep a process for a device."""
        seen = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
        deaths = 0
        while deaths < _DEATHS_MAX and (process := self._start({**self._environment, **seen})):
            mine = set[str]()
            feeder = Thread(target=self._feed, args=(process, mine), daemon=True)
            feeder.start()
            deaths = 0 if self._hear(process, mine) else deaths + 1
            process.kill()
            code = process.wait()
            with self._changed:
                self._processes.discard(process)
                for job_id in mine:
                    self._states.pop(job_id, None)
                self._changed.notify_all()
            feeder.join()
            _close(process)
            if not self._closed:
                self._fault = f"its process ended with code {code}"
                log.warning("device %s: %s", device or "0", self._fault)
        with self._changed:
            self._alive -= 1

    def _start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """A new process, None if there is to be none any more."""
        with self._changed:
            if self._closed:
                return None
            # Ctrl-C is the client's to handle.
            process = subprocess.Popen(
                self._command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            self._processes.add(process)
            return process

    def _feed(self, process: subprocess.Popen[bytes], mine: set[str]) -> None:
        """Give the process jobs, as many as it may have at once."""
        assert process.stdin
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or process.returncode is not None or (self._queue and len(mine) < _JOBS_EACH)
                )
                if self._closed or process.returncode is not None:
                    return
                job = self._queue.popleft()
                mine.add(job["id"])
                self._states[job["id"]] = {"id": job["id"], "status": "IN_PROGRESS"}
            try:
                process.stdin.write(json.dumps(job).encode("ascii") + b"\n")
                process.stdin.flush()
            except OSError:
                # Whoever hears its end tells of its jobs.
                return

    def _hear(self, process: subprocess.Popen[bytes], mine: set[str]) -> bool:
        """Take answers until the process ends; whether there were any."""
        assert process.stdout
        heard = False
        for line in process.stdout:
            told = json.loads(line)
            answer, heard = told["answer"], True
            error = {"error": answer["error"]} if "error" in answer else {}
            with self._changed:
                mine.discard(told["id"])
                if told["id"] in self._states:
                    state = "FAILED" if error else "COMPLETED"
                    self._states[told["id"]] = {"id": told["id"], "status": state, "output": answer, **error}
                self._changed.notify_all()
            if answer.get("refresh_worker"):
                return True
        return heard


def _close(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes of a process that has ended."""
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with suppress(OSError):
                pipe.close()
