"""What may end a job before it is done, and who hears how far it is: the caller's stop, the deadline, progress."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any

from worker.errors import GenerationError, JobStopped

Preview = Callable[[], str | None]
"""What is under way as a data URL; made only when it is called."""
Report = Callable[[float, Preview | None], None]
"""Told the part that is done, 0 to 1."""

_CHECK_EVERY_S = 0.1


class JobControl:
    """One job's; the event loop stops it, the threads that work on the job ask it.

    `timeout_s` counts from here, 0 is without end.
    """

    def __init__(self, timeout_s: float = 0, report: Report | None = None):
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s if timeout_s else None
        self._report = report
        self._stopped = False

    def stop(self) -> None:
        """The answer is not wanted any more."""
        self._stopped = True

    def check(self) -> None:
        """Raises JobStopped after `stop`, GenerationError after the deadline."""
        if self._stopped:
            raise JobStopped("the job was stopped")
        if self._deadline is not None and time.monotonic() > self._deadline:
            limit = f"{self._timeout_s:g} s (JOB_TIMEOUT_S)"
            raise GenerationError(f"the job was not done within its {limit}: ask for fewer steps or pictures")

    def wait(self, futures: Iterable[Future[Any]]) -> None:
        """Wait until all of them are done, or for what `check` raises meanwhile."""
        left = set(futures)
        while left:
            self.check()
            left = wait(left, _CHECK_EVERY_S).not_done

    def checkpoint(self, done: float, preview: Preview | None = None) -> None:
        """`check`, and a report of the part that is done."""
        self.check()
        if self._report is not None:
            self._report(done, preview)
