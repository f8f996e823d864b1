"""Seconds by stage."""

import time
from collections.abc import Generator
from contextlib import contextmanager


class Clock:
    """One job's, or one start's; a stage that is entered again adds to its seconds."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    @property
    def age_s(self) -> float:
        """Seconds since it was made."""
        return time.perf_counter() - self._began

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        """Measure what is done within."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - began)

    def add(self, name: str, seconds: float) -> None:
        """Seconds that were measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
