"""Jobs as the Runpod SDK hands them over: several at once, none of them on the SDK's event loop."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from worker.control import JobControl, Preview
from worker.settings import Settings

Job = dict[str, Any]
Run = Callable[[Job, JobControl], dict[str, Any]]
Send = Callable[[Job, dict[str, Any]], threading.Thread | None]
"""Tells one progress report; the thread in which it is still under way, if it is."""

_LAST_REPORT_S = 10


class JobRunner:
    """`handle` and `concurrency` are what the SDK is given.

    A job has a thread; what they share, the device, is the service's to order. `send` None: no progress.
    """

    def __init__(self, run: Run, settings: Settings, send: Send | None = None):
        self._run = run
        self._settings = settings
        self._send = send if settings.progress_every_s else None
        self._threads = ThreadPoolExecutor(settings.max_concurrency, thread_name_prefix="job")

    async def handle(self, job: Job) -> dict[str, Any]:
        """Answer one job; when the SDK cancels the call, the job ends at its next checkpoint."""
        progress = Progress(job, self._send, self._settings.progress_every_s) if self._send else None
        control = JobControl(self._settings.job_timeout_s, progress)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, job, control, progress)
        except asyncio.CancelledError:
            control.stop()
            raise

    def concurrency(self, _current: int) -> int:
        """How many jobs the SDK may have in hand."""
        return self._settings.max_concurrency

    def _answer(self, job: Job, control: JobControl, progress: "Progress | None") -> dict[str, Any]:
        answer = self._run(job, control)
        if progress is not None:
            progress.finish()
        return answer


class Progress:
    """At most one report in `every_s` and under way, the first one after as long, and none after `finish`.

    Any thread may report.
    """

    def __init__(self, job: Job, send: Send, every_s: float):
        self._job = job
        self._send = send
        self._every_s = every_s
        self._last, self._done = time.monotonic(), 0.0
        self._posting: threading.Thread | None = None
        self._ended = False
        self._lock = threading.Lock()

    def __call__(self, done: float, preview: Preview | None = None) -> None:
        with self._lock:
            now = time.monotonic()
            busy = self._posting is not None and self._posting.is_alive()
            # The start is no progress, and the end is the answer's to tell. A job that begins again does not go back.
            if self._ended or busy or not self._done < done < 1 or now - self._last < self._every_s:
                return
            self._last, self._done = now, done
            picture = preview() if preview else None
            update = {"progress": round(done, 3)} | ({"preview": picture} if picture else {})
            self._posting = self._send(self._job, update)

    def finish(self) -> None:
        """Wait for a report that is under way: after the answer it would make a finished job a running one again."""
        with self._lock:
            self._ended = True
        if self._posting is not None:
            self._posting.join(_LAST_REPORT_S)
