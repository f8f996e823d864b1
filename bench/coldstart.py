"""A worker's start, part by part, in fresh processes: with the stored programs of a baked folder, and without them.

`python -m bench.coldstart` is such a process: it starts in the order of `handler.py` and prints one line of JSON.
"""

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

ROOT = Path(__file__).parents[1]
_MARK = "coldstart "
_PACKAGES = 8
"""How many of the packages that take longest to import are named."""

PARTS = {
    "interpreter_s": "interpreter",
    "jax_s": "imports until JAX is there",
    "device_s": "device check",
    "rest_s": "imports of the rest",
    "plan_s": "manifest and planning",
    "weights_s": "weights (beside the programs)",
    "programs_s": "programs loaded (beside the weights)",
    "ready_s": "**all until jobs are taken**",
    "first_job_s": "first job",
    "first_compile_s": "of it compilation",
    "second_job_s": "second job",
}


def coldstart(model_dir: Path, job: dict[str, Any], starts: int) -> str:
    """Start `starts` workers of each side, in turn, and write the report of medians. `job` is a job's input."""
    with tempfile.TemporaryDirectory() as folder:
        bare = _without_programs(model_dir, Path(folder) / "bare")
        cache = str(Path(folder) / "cache")
        # The verdicts of its trials are remembered, as on a network volume.
        trial = _start(model_dir, job, cache)
        sides: dict[str, Callable[[], dict[str, Any]]] = {
            "stored": lambda: _start(model_dir, job, cache),
            "compiled": lambda: _start(bare, job, "none"),
        }
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        for _ in range(starts):
            for name, side in sides.items():
                found[name].append(side())
        return _report(model_dir, job, starts, found, trial, _import_seconds())


def _without_programs(model_dir: Path, bare: Path) -> Path:
    """The baked folder once more, by links, without its programs."""
    bare.mkdir()
    for path in model_dir.resolve().iterdir():
        if path.name != "manifest.json":
            (bare / path.name).symlink_to(path)
    manifest = json.loads((model_dir / "manifest.json").read_text("utf-8"))
    (bare / "manifest.json").write_text(json.dumps(manifest | {"programs": None}), "utf-8")
    return bare


def _start(model_dir: Path, job: dict[str, Any], cache: str) -> dict[str, Any]:
    environment = os.environ | {"MODEL_DIR": str(model_dir.resolve()), "PROGRAM_CACHE": cache}
    command = [sys.executable, "-m", "bench.coldstart", json.dumps(job), str(time.monotonic())]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"a worker ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.rpartition(_MARK)[2])


def _import_seconds() -> dict[str, float]:
    """Package -> seconds of its own modules, as `python -X importtime` counts them."""
    command = [sys.executable, "-X", "importtime", "-c", "import worker.engine.device, worker.service, worker.sdk"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    seconds = defaultdict[str, float](float)
    for line in done.stderr.splitlines():
        own, *_, name = line.removeprefix("import time:").split("|")
        if own.strip().isdigit():
            seconds[name.strip().partition(".")[0]] += int(own) / 1e6
    return seconds


def _report(
    model_dir: Path,
    job: dict[str, Any],
    starts: int,
    found: dict[str, list[dict[str, Any]]],
    trial: dict[str, Any],
    imports: dict[str, float],
) -> str:
    def cell(side: str, part: str) -> str:
        return f"{statistics.median(start[part] for start in found[side]):.2f} s"

    stored, compiled = found["stored"][-1], found["compiled"][-1]
    slowest = sorted(imports, key=lambda name: -imports[name])[:_PACKAGES]
    shown = {name: value for name, value in job.items() if "prompt" not in name}
    return "\n".join(
        [
            f"{model_dir.name} on {stored['device']}: medians of {starts} starts of each side in turn, job {shown}",
            "",
            "| | stored programs | none |",
            "| --- | --- | --- |",
            *(f"| {label} | {cell('stored', part)} | {cell('compiled', part)} |" for part, label in PARTS.items()),
            f"| programs loaded, compiled | {stored['loaded']}, {stored['compiled']} "
            f"| {compiled['loaded']}, {compiled['compiled']} |",
            f"| bytes of weights | {stored['weights_bytes']} | {compiled['weights_bytes']} |",
            f"| Flax imported | {stored['flax']} | {compiled['flax']} |",
            "",
            f"First start with a driver, trials of the programs included: ready after {trial['ready_s']:.2f} s.",
            f"Imports one after the other, {sum(imports.values()):.2f} s: "
            + ", ".join(f"{name} {imports[name]:.2f}" for name in slowest),
        ]
    )


def _measure(job: dict[str, Any], began: float) -> dict[str, Any]:
    seconds: dict[str, float] = {}
    last = began

    def mark(part: str) -> None:
        nonlocal last
        now = time.monotonic()
        seconds[part], last = now - last, now

    mark("interpreter_s")
    multiprocessing.set_start_method("spawn")
    sdk = Thread(target=import_module, args=("worker.sdk",))
    sdk.start()
    device = import_module("worker.engine.device")
    mark("jax_s")
    platform = device.check_device(allow_cpu=True)
    mark("device_s")
    service, storage = import_module("worker.service"), import_module("worker.storage")
    loading, clock = import_module("worker.engine.loading"), import_module("worker.engine.clock").Clock()
    load_settings = import_module("worker.settings").load_settings
    sdk.join()
    mark("rest_s")
    engine = loading.load_engine(load_settings(os.environ), clock)
    serving = service.Service(engine, storage.inline_store, 1 << 40)
    mark("load_s")
    seconds |= clock.seconds
    seconds["ready_s"] = last - began
    for part in ("first_job_s", "second_job_s"):
        answer = serving.run({"id": "coldstart", "input": job})
        mark(part)
        if "error" in answer:
            raise ValueError(answer["error"])
        seconds.setdefault("first_compile_s", answer["timings"]["compile_s"])
    return seconds | {
        "device": platform,
        "loaded": len(engine.programs.store.loaded),
        "compiled": len(engine.programs.compiled),
        "weights_bytes": sum(part.size_bytes for part in engine.manifest.parts.values()),
        "flax": "flax" in sys.modules,
    }


if __name__ == "__main__":
    print(_MARK + json.dumps(_measure(json.loads(sys.argv[1]), float(sys.argv[2]))))
