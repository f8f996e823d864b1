"""The two sides of a comparison, each in a process of its own: this worker, and PyTorch diffusers.

A side is driven through a pipe: it gets a job's input and sends back a `Call`.
"""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Call:
    """One job: wall seconds, seconds per step of the sampling loop alone, peak memory so far, the picture."""

    seconds: float
    step_seconds: float
    peak_bytes: int
    pixels: NDArray[np.uint8]


def worker_side(pipe: Connection, model_dir: Path, environment: dict[str, str]) -> None:
    """Serve jobs with this project's engine until the pipe closes."""
    import jax

    from worker.engine.loading import load_engine
    from worker.request import parse_request
    from worker.settings import load_settings

    engine = load_engine(load_settings({**environment, "MODEL_DIR": str(model_dir)}))

    def run(job: dict[str, Any]) -> tuple[float, NDArray[np.uint8]]:
        plan = engine.plan(parse_request(job), None, None)
        result = engine.run(plan)
        compiled = result.timings["compile_s"]
        if compiled:
            print(f"worker: {compiled:.1f} s of this call were compilation", flush=True)
        return result.timings["sample_s"] / len(plan.table), result.pictures[0].pixels

    def peak() -> int:
        statistics = jax.devices()[0].memory_stats() or {}
        return statistics.get("peak_bytes_in_use", _resident_peak())

    _serve(pipe, run, peak)


def diffusers_side(pipe: Connection, source: Path, dtype: str, compiled: bool) -> None:
    """Serve jobs with diffusers' pipeline over the same checkpoint until the pipe closes."""
    import diffusers
    import torch

    from worker.diffusion.names import resolve
    from worker.diffusion.solvers import SOLVERS

    device = "cuda" if torch.cuda.is_available() else "cpu"
    diffusers.utils.logging.disable_progress_bar()
    loaded: Any = diffusers.DiffusionPipeline.from_pretrained(source, torch_dtype=getattr(torch, dtype)).to(device)
    loaded.set_progress_bar_config(disable=True)
    if compiled:
        loaded.unet = torch.compile(loaded.unet, fullgraph=True)
    stored = loaded.scheduler.config

    def run(job: dict[str, Any]) -> tuple[float, NDArray[np.uint8]]:
        call = dict(job)
        if scheduler := call.pop("scheduler", None):
            choice = resolve(scheduler)
            kind = getattr(diffusers, SOLVERS[choice.solver].class_name)
            loaded.scheduler = kind.from_config(stored, **choice.options)
        generator = torch.Generator().manual_seed(call.pop("seed"))
        ends = [time.perf_counter()]

        def note(_pipe: Any, _step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            if device == "cuda":
                torch.cuda.synchronize()
            ends.append(time.perf_counter())
            return tensors

        with torch.no_grad():
            found = loaded(**call, generator=generator, output_type="np", callback_on_step_end=note).images[0]
        # The text encoder runs before the first step ends: with several steps, the others are free of it.
        steps = np.diff(ends[1:]) if len(ends) > 2 else np.diff(ends)
        return float(np.median(steps)), np.round(found * 255).astype(np.uint8)

    def peak() -> int:
        return torch.cuda.max_memory_allocated() if device == "cuda" else _resident_peak()

    _serve(pipe, run, peak)


def _serve(
    pipe: Connection, run: Callable[[dict[str, Any]], tuple[float, NDArray[np.uint8]]], peak: Callable[[], int]
) -> None:
    pipe.send("ready")
    while (job := pipe.recv()) is not None:
        began = time.perf_counter()
        step_seconds, pixels = run(job)
        pipe.send(Call(time.perf_counter() - began, step_seconds, peak(), pixels))


def _resident_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
