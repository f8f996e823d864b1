"""The worker's account of itself, for its log and for a health job: versions, device, model, programs, start, jobs."""

import platform
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from worker.engine.blobs import Key, title
from worker.engine.device import version_of
from worker.engine.engine import Engine
from worker.engine.identity import default_device, driver_version
from worker.engine.memory import device_memory
from worker.engine.warm_up import WarmUp, titles

VERSION = "0.1.0"
_PACKAGES = {
    "jax": "jax",
    "jaxlib": "jaxlib",
    "cuda": "nvidia-cuda-runtime-cu12",
    "cudnn": "nvidia-cudnn-cu12",
    "runpod": "runpod",
}
_LISTED = 8
_TEXT = 100
"""Characters of a text that others have written."""


class Tally:
    """Counts the jobs of a worker; any thread may use it."""

    def __init__(self):
        self._lock = Lock()
        self._served = self._failed = self._in_hand = 0

    def count(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Do one job's work, which returns its answer; one with an error has failed."""
        with self._lock:
            self._in_hand += 1
        failed = True
        try:
            answer = work()
            failed = "error" in answer
            return answer
        finally:
            with self._lock:
                self._in_hand -= 1
                self._failed += failed
                self._served += not failed

    def jobs(self) -> dict[str, int]:
        """Jobs by what has become of them."""
        with self._lock:
            return {"served": self._served, "failed": self._failed, "in_hand": self._in_hand}


def report(engine: Engine, warm_up: WarmUp, tally: Tally) -> dict[str, Any]:
    """Facts as JSON values, under 4 KB; nothing of it waits for the device."""
    device = default_device()
    manifest, start = engine.manifest, engine.start
    return {
        "versions": {
            "worker": VERSION,
            **{name: version_of(package) for name, package in _PACKAGES.items()},
            "driver": driver_version(),
            "python": platform.python_version(),
        },
        "device": {
            "platform": device.platform,
            "kind": device.device_kind,
            "count": engine.programs.devices,
            "memory": device_memory(),
        },
        "model": {
            "source": manifest.source[:_TEXT],
            "revision": manifest.revision,
            "family": manifest.family,
            "weights_bytes": sum(part.size_bytes for part in manifest.parts.values()),
            "weights_s": round(start.seconds.get("weights_s", 0.0), 2),
        },
        "programs": _programs(engine),
        "sizes": _sizes(warm_up),
        "start": {name: round(seconds, 2) for name, seconds in start.seconds.items()},
        "uptime_s": round(start.age_s, 2),
        "jobs": tally.jobs(),
    }


def _programs(engine: Engine) -> dict[str, Any]:
    store = engine.programs.store
    return {
        "loaded": _timed(dict(store.loaded) if store else {}),
        "compiled": _timed(dict(engine.programs.compiled)),
        "stored_but_not_used": _explained(dict(store.faults) if store else {}),
        "failed": _explained(dict(engine.programs.failed)),
    }


def _timed(seconds: Mapping[Key, float]) -> dict[str, Any]:
    """How many, and the slowest."""
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:_LISTED]
    return {"count": len(seconds), "slowest_s": {title(key): round(value, 2) for key, value in slowest}}


def _explained(reasons: Mapping[Key, str]) -> dict[str, Any]:
    """How many, and the first."""
    return {"count": len(reasons), "first": {title(key): text[:_TEXT] for key, text in list(reasons.items())[:3]}}


def _sizes(warm_up: WarmUp) -> dict[str, Any]:
    """Passes that are ready by size, the first of many; why sizes cannot be made."""
    passes = {size: warm_up.passes(size) for size in warm_up.sizes}
    return {
        "ready": sum(map(bool, passes.values())),
        "served": len(passes),
        "passes": {titles([size]): list(found) for size, found in list(passes.items())[: 2 * _LISTED]},
        "failed": {titles([size]): text[:_TEXT] for size, text in list(warm_up.failed.items())[:3]},
    }
