"""Runs the parts one after the other, each in a process of its own with a time limit, and writes results as they come.

A part that crashes, hangs or is cut costs itself; what it has told stays.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.gpu_check.page import page
from bench.gpu_check.plan import CheckPlan, heard
from worker.engine.blobs import write_whole

_LEAST_S = 5.0
"""Nothing is begun with less time than this."""


class Part(NamedTuple):
    """`function`: module and name, below `bench.gpu_check`; `environment` is set before Python starts."""

    name: str
    title: str
    function: str
    limit_s: float
    environment: dict[str, str] = {}  # noqa: RUF012
    needs_ahead: bool = False


_SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
PARTS = (
    Part("device", "Device", "kernels.device", 60),
    Part("ceiling", "Ceiling: bfloat16 matrix products", "kernels.ceiling", 45),
    Part("attention", "Attention", "kernels.attention_backends", 75, _SHARED),
    Part("flops", "FLOPs of one step", "flops.flops", 90, {"JAX_PLATFORMS": "cpu"}),
    Part("bake", "Model with random weights", "model.bake", 120, {"JAX_PLATFORMS": "cpu"}),
    Part("cold-ahead", "Cold start with programs compiled elsewhere", "cold.ahead", 75, _SHARED, needs_ahead=True),
    Part("cold-compile", "Cold start that compiles", "cold.fresh", 240, _SHARED),
    Part("cold-stored", "Cold start with stored programs", "cold.stored", 60, _SHARED),
    Part("ahead", "Programs compiled elsewhere against those compiled here", "advance.ahead", 90, _SHARED, True),
    Part("advance", "Steps at growing numbers of pictures", "advance.advance", 180, _SHARED),
    Part("diffusers", "diffusers, the same shapes", "torch_side.diffusers_steps", 150),
    Part("tests", "pytest -m gpu", "tests.gpu_tests", 90, _SHARED),
)


@dataclass
class Result:
    """What a part has told so far; `state` says how it ended."""

    name: str
    title: str
    state: str = "running"
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)


def check(plan: CheckPlan, limit_s: float, only: Sequence[str] = ()) -> list[Result]:
    """Run all parts, or those that are named, within so many seconds; files `results.json` and `results.md`."""
    until, results = time.monotonic() + limit_s, list[Result]()
    plan.folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if only and part.name not in only:
            continue
        result = Result(part.name, part.title)
        results.append(result)
        left = until - time.monotonic()
        if part.needs_ahead and plan.ahead is None:
            result.state = "left out: no folder of programs was given"
        elif left < _LEAST_S:
            result.state = "left out: the time is up"
        else:
            _run(part, plan, min(part.limit_s, left), result, results)
        _write(plan.folder, results)
        print(f"{part.name}: {result.state} ({result.seconds:.1f} s)", flush=True)
    return results


def _run(part: Part, plan: CheckPlan, limit_s: float, result: Result, results: list[Result]) -> None:
    began = time.monotonic()
    command = [sys.executable, "-m", "bench.gpu_check.part", part.function, str(time.time())]
    log = plan.folder / f"{part.name}.log"
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, **part.environment, "PYTHONPATH": root}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=root,
            start_new_session=True,
            text=True,
        )
        reader = threading.Thread(target=_read, args=(process, plan, result, results), daemon=True)
        reader.start()
        try:
            process.wait(limit_s)
            result.state = "done" if process.returncode == 0 else f"ended with {process.returncode}; {_last_line(log)}"
        except subprocess.TimeoutExpired:
            result.state = f"cut after {limit_s:.0f} s"
        finally:
            # A part's own processes are of its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reader.join(5)
    result.seconds = round(time.monotonic() - began, 1)


def _read(process: subprocess.Popen[str], plan: CheckPlan, result: Result, results: list[Result]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(plan.to_json())
        process.stdin.close()
    for line in process.stdout:
        if row := heard(line):
            result.rows.append(dict(row))
            print(f"{result.name}: {json.dumps(row)}", flush=True)
            _write(plan.folder, results)


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "nothing in its log"


def _write(folder: Path, results: list[Result]) -> None:
    listed = [asdict(result) for result in results]
    write_whole(folder / "results.json", (json.dumps(listed, indent=1) + "\n").encode())
    write_whole(folder / "results.md", page(listed).encode())
