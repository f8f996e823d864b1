"""Jobs beside each other against the same jobs one after another, and what the service adds to the device's work."""

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.engine.loading import load_engine
from worker.engine.programs import Programs
from worker.engine.turns import pass_slots
from worker.service import Service
from worker.settings import Settings
from worker.storage import inline_store

_DEVICE = ("encode_text_s", "encode_image_s", "sample_s", "decode_s")
Answer = dict[str, Any]


class _Counted:
    """Programs that count their passes' slots; everything else as it is."""

    def __init__(self, programs: Programs):
        self._programs = programs
        self.slots: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._programs, name)

    def advance(self, state: Any, *arguments: Any) -> Any:
        self.slots.append(len(state.x))
        return self._programs.advance(state, *arguments)


def throughput(model_dir: Path, job: dict[str, Any], jobs: int, slots: int, rounds: int) -> str:
    """Measure `rounds` of both sides in turn and write the report.

    `job` is a job's input; its seed grows by one from job to job. The first call, and everything that is compiled,
    come before.
    """
    engine = load_engine(Settings(model_dir=model_dir, max_slots=slots))
    programs = _Counted(engine.programs)
    engine = replace(engine, programs=programs)  # pyright: ignore[reportArgumentType]
    service = Service(engine, inline_store, 1 << 40)
    first_s, first = _timed(lambda: _run(service, job, 0))
    width, height = first["used"]["width"], first["used"]["height"]
    scale = engine.planner.pipeline.scale_factor
    engine.programs.prepare(height // scale, width // scale, pass_slots(slots), image=False)
    sides: dict[str, Callable[[], list[tuple[float, Answer]]]] = {
        "one after another": lambda: [_timed(lambda seed=seed: _run(service, job, seed)) for seed in range(jobs)],
        "beside each other": lambda: _together(service, job, jobs),
    }
    for side in sides.values():
        side()
    walls: dict[str, list[float]] = {name: [] for name in sides}
    calls: dict[str, list[tuple[float, Answer]]] = {name: [] for name in sides}
    filled: dict[str, float] = {}
    for _ in range(rounds):
        for name, side in sides.items():
            programs.slots.clear()
            wall_s, done = _timed(side)
            walls[name].append(wall_s)
            calls[name] += done
            filled[name] = statistics.mean(programs.slots)
    return _report(model_dir, job, jobs, slots, first_s, walls, calls, filled)


def _together(service: Service, job: dict[str, Any], jobs: int) -> list[tuple[float, Answer]]:
    with ThreadPoolExecutor(jobs) as threads:
        return list(threads.map(lambda seed: _timed(lambda: _run(service, job, seed)), range(jobs)))


def _run(service: Service, job: dict[str, Any], seed: int) -> Answer:
    answer = service.run({"id": f"bench-{seed}", "input": job | {"seed": seed}})
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer


def _timed[T](work: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def _report(
    model_dir: Path,
    job: dict[str, Any],
    jobs: int,
    slots: int,
    first_s: float,
    walls: dict[str, list[float]],
    calls: dict[str, list[tuple[float, Answer]]],
    filled: dict[str, float],
) -> str:
    def row(label: str, value: Callable[[str], float], unit: str, digits: int = 2) -> str:
        alone, together = value("one after another"), value("beside each other")
        return f"| {label} | {alone:.{digits}f} {unit} | {together:.{digits}f} {unit} | {together / alone:.2f} |"

    def latency(name: str, part: float) -> float:
        return _quantile([seconds for seconds, _ in calls[name]], part)

    single = [answer["timings"] for _, answer in calls["one after another"]]
    total = [call_s - sum(answer["timings"][name] for name in _DEVICE) for call_s, answer in calls["one after another"]]
    stored = [timings["store_s"] for timings in single]
    settings = {name: value for name, value in job.items() if "prompt" not in name}
    return "\n".join(
        [
            f"{model_dir.name}: {jobs} jobs, passes of at most {slots}, first call {first_s:.2f} s, job {settings}",
            "",
            "| | one after another | beside each other | ratio |",
            "| --- | --- | --- | --- |",
            row("jobs per second", lambda name: jobs / statistics.median(walls[name]), "/s"),
            row("median latency", lambda name: latency(name, 0.5), "s"),
            row("95 % latency", lambda name: latency(name, 0.95), "s"),
            row("pictures in a pass", lambda name: filled[name], "", 1),
            "",
            "What the service adds to the device's stages of a job alone (median, 95 %): "
            f"{1e3 * statistics.median(total):.2f} ms, {1e3 * _quantile(total, 0.95):.2f} ms, of which encoding the "
            f"picture {1e3 * statistics.median(stored):.2f} ms",
        ]
    )


def _quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]
