"""This worker against diffusers: same weights, same noise, same machine, calls in turn."""

import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.sides import Call, diffusers_side, worker_side
from builder.convert import convert
from worker.errors import InvalidRequest
from worker.request import parse_request


def compare(model: Path, job: dict[str, Any], dtype: str, calls: int, compiled: bool) -> str:
    """Measure both sides and write the report; `calls` counts those after the first."""
    if job.get("seed") is None or job.get("image") or job.get("mask"):
        raise InvalidRequest(["job: a seed is needed, and no image: both sides must start from the same noise"])
    parse_request(job)
    with tempfile.TemporaryDirectory() as folder:
        baked = Path(folder) / "baked"
        convert(model, baked, dtype=dtype)
        ours = _start(worker_side, baked, dict(os.environ))
        theirs = _start(diffusers_side, model, dtype, compiled)
        results: dict[str, list[Call]] = {"worker": [], "diffusers": []}
        # In turn, so that a slow spell of the machine meets both.
        for _ in range(calls + 1):
            for name, pipe in (("worker", ours), ("diffusers", theirs)):
                pipe.send(job)
                results[name].append(pipe.recv())
        for pipe in (ours, theirs):
            pipe.send(None)
    return _report(model.name, job, dtype, compiled, results)


def _start(side: Callable[..., None], *arguments: Any) -> Connection:
    context = multiprocessing.get_context("spawn")
    pipe, far_end = context.Pipe()
    context.Process(target=side, args=(far_end, *arguments), daemon=True).start()
    far_end.close()
    began = time.perf_counter()
    pipe.recv()
    print(f"{side.__name__}: loaded in {time.perf_counter() - began:.1f} s")
    return pipe


def _report(model: str, job: dict[str, Any], dtype: str, compiled: bool, results: dict[str, list[Call]]) -> str:
    def row(label: str, value: Callable[[list[Call]], float], unit: str) -> str:
        ours, theirs = value(results["worker"]), value(results["diffusers"])
        return f"| {label} | {ours:.2f} {unit} | {theirs:.2f} {unit} | {ours / theirs:.2f} |"

    pixels = [results[name][-1].pixels for name in ("worker", "diffusers")]
    return "\n".join(
        [
            f"model {model}, {dtype}, {platform.machine()}, {os.cpu_count()} cores, torch.compile {compiled}",
            f"job {json.dumps({name: value for name, value in job.items() if 'prompt' not in name})}",
            "",
            "| | worker | diffusers | ratio |",
            "| --- | --- | --- | --- |",
            row("first call (compilation included)", lambda calls: calls[0].seconds, "s"),
            row("second call", lambda calls: calls[1].seconds, "s"),
            row("median of the rest", lambda calls: statistics.median(c.seconds for c in calls[2:]), "s"),
            row(
                "iterations per second", lambda calls: 1 / statistics.median(c.step_seconds for c in calls[1:]), "it/s"
            ),
            row("peak memory", lambda calls: calls[-1].peak_bytes / 2**30, "GiB"),
            "",
            f"PSNR between the two pictures: {psnr(*pixels):.1f} dB, largest difference {_largest(*pixels)} of 255",
        ]
    )


def _largest(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> int:
    return int(np.abs(first.astype(int) - second.astype(int)).max())


def psnr(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> float:
    """Peak signal-to-noise ratio of two 8-bit pictures in dB; infinite when they are equal."""
    error = float(np.mean((first.astype(np.float64) - second.astype(np.float64)) ** 2))
    return float("inf") if error == 0 else 10 * np.log10(255**2 / error)
