"""How far a batch is: a bar on a terminal, else a line in the log now and then."""

import logging
import time
from typing import Any, TextIO, cast

from tqdm import tqdm

log = logging.getLogger(__name__)

_LINE_EVERY_S = 30.0


class Progress:
    """One thread's. `price_per_s` is that of a worker's second; `worker_s` those that were counted before.

    What workers cost is an estimate: their number is looked at every few seconds.
    """

    def __init__(self, out: TextIO, total: int, done: int, failed: int, price_per_s: float, worker_s: float = 0.0):
        self.done, self.failed, self.worker_s = done, failed, worker_s
        self._total, self._price_per_s = total, price_per_s
        self._began = self._last_line = self._counted = time.monotonic()
        self._workers: int | None = None
        self._before = done + failed
        # Answers come in bursts, and workers come and go: the rate is that of the last minutes.
        bar = tqdm(
            total=total, initial=done + failed, unit=" requests", file=out, smoothing=0.05, dynamic_ncols=True,
            disable=not out.isatty(),
        )  # fmt: skip
        self._bar = cast(Any, bar)

    def add(self, done: int, failed: int) -> None:
        """Requests that have ended."""
        self.done += done
        self.failed += failed
        self._bar.update(done + failed)

    def workers(self, count: int | None) -> None:
        """How many there are now; None if it is not known."""
        self._count()
        self._workers = count

    def show(self, jobs: int) -> None:
        """Tell how things are, if it is time to; `jobs` are in flight."""
        self._count()
        self._bar.set_postfix_str(self._state(jobs), refresh=False)
        if self._bar.disable and time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._last_line = time.monotonic()
            log.info("%d of %d requests, %s%s", self.done + self.failed, self._total, self._rate(), self._state(jobs))

    def close(self) -> None:
        self._bar.close()

    @property
    def cost(self) -> float:
        """So far, in the price's currency."""
        return self.worker_s * self._price_per_s

    def _count(self) -> None:
        now = time.monotonic()
        self.worker_s += (self._workers or 0) * (now - self._counted)
        self._counted = now

    def _rate(self) -> str:
        ended, open_ = self.done + self.failed - self._before, self._total - self.done - self.failed
        if not ended:
            return ""
        per_s = ended / (time.monotonic() - self._began)
        return f"{per_s:.2f} a second, {open_ / per_s / 60:.0f} minutes left, "

    def _state(self, jobs: int) -> str:
        ended = self.done + self.failed
        parts = [f"done {self.done}, failed {self.failed}, jobs {jobs}"]
        parts += [] if self._workers is None else [f"workers {self._workers}"]
        if self._price_per_s:
            in_all = f" of about {self.cost * self._total / ended:.2f}" if ended else ""
            parts.append(f"cost {self.cost:.2f}{in_all}")
        return ", ".join(parts)
