"""What may end a job before it is done, and who hears how far it is: the caller's stop, the deadline, progress."""

import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from threading import Lock
from typing import Any

from worker.errors import GenerationError, JobStopped


class JobControl:
    """One job's; the event loop stops it, the threads that work on the job ask it.

    `timeout_s` counts from here, 0 is without end; `report` is told the part that is done, 0 to 1.
    """

    def __init__(self, timeout_s: float = 0, report: Callable[[float], None] | None = None):
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s if timeout_s else None
        self._report = report
        self._stopped = False
        self._queued: Future[Any] | None = None
        self._lock = Lock()

    def stop(self) -> None:
        """The answer is not wanted any more: what waits for the device never starts, what runs ends soon."""
        with self._lock:
            self._stopped = True
            if self._queued is not None:
                self._queued.cancel()

    def check(self) -> None:
        """Raises JobStopped after `stop`, GenerationError after the deadline."""
        if self._stopped:
            raise JobStopped("the job was stopped")
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise self._too_late()

    def checkpoint(self, done: float) -> None:
        """`check`, and a report of the part that is done."""
        self.check()
        if self._report is not None:
            self._report(done)

    def run_on[T](self, executor: Executor, work: Callable[[], T]) -> T:
        """Queue the work and wait for it; a stop or the deadline takes it out of the queue."""

        def start() -> T:
            self.check()
            return work()

        with self._lock:
            self.check()
            future = executor.submit(start)
            self._queued = future
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        try:
            return future.result(left)
        except CancelledError:
            raise JobStopped("the job was stopped in the queue") from None
        except TimeoutError:
            if future.cancel():
                raise self._too_late() from None
            return future.result()

    def _too_late(self) -> GenerationError:
        return GenerationError(
            f"the job was not done within its {self._timeout_s:g} s (JOB_TIMEOUT_S): ask for fewer steps or pictures"
        )
