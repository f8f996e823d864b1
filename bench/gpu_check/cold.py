"""Cold starts: from a new process to its first picture, part by part, as `handler.py` goes."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.gpu_check.plan import CheckPlan, say
from worker.engine.clock import Clock
from worker.settings import Settings


def fresh(plan: CheckPlan) -> None:
    """Nothing is stored: what a worker compiles on the card goes into the cache."""
    for entry in plan.cache.rglob("*"):
        if entry.is_file():
            entry.unlink()
    _start(plan.baked, plan.cache, plan)


def stored(plan: CheckPlan) -> None:
    """Programs from the cache, which were tried before."""
    _start(plan.baked, plan.cache, plan)


def ahead(plan: CheckPlan) -> None:
    """Programs that were compiled without this card, with their first trial and without."""
    _start(plan.baked_ahead, None, plan)
    _start_again(plan)


def settings_of(plan: CheckPlan, model_dir: Path, cache: Path | None, slots: int) -> Settings:
    """A worker for one size."""
    return Settings(
        model_dir=model_dir,
        program_cache="none" if cache is None else str(cache),
        sizes=((plan.side, plan.side),),
        max_slots=slots,
        xla_flags=os.environ.get("XLA_FLAGS", ""),
        allow_cpu=plan.dry,
    )


def job_of(plan: CheckPlan) -> dict[str, Any]:
    """A job's input with guidance and as many steps as the plan has rows."""
    job = {"prompt": "a red fox in the snow", "seed": 7, "guidance_scale": 5.0, "scheduler": "Euler"}
    return job | {"width": plan.side, "height": plan.side, "num_inference_steps": plan.rows}


def _start(model_dir: Path, cache: Path | None, plan: CheckPlan) -> None:
    python_s = time.time() - float(sys.argv[2])
    _serve(settings_of(plan, model_dir, cache, 1), plan, python_s)


def _start_again(plan: CheckPlan) -> None:
    """In the same process, so without its imports."""
    _serve(replace(settings_of(plan, plan.baked_ahead, None, 1), trust_programs=True), plan, 0.0)


def _serve(settings: Settings, plan: CheckPlan, python_s: float) -> None:
    start = Clock()
    start.add("python_s", python_s)
    with start.stage("device_s"):
        from worker.engine.device import check_device

        check_device(allow_cpu=plan.dry)
    with start.stage("imports_s"):
        from worker.service import load_service
    service = load_service(settings, local=False, start=start)
    service.open(settings)
    for name, seconds in start.seconds.items():
        say(what=name, seconds=seconds)
    report = service.report()
    for kind, found in report["programs"].items():
        say(what=f"programs {kind}", count=found["count"], which=str(found.get("slowest_s") or found.get("first")))
    say(what="memory", which=str(report["device"]["memory"]))
    for number in ("first", "second"):
        began = time.perf_counter()
        answer = service.run({"id": "check", "input": job_of(plan)})
        told = answer.get("error") or str(answer["timings"])
        say(what=f"{number} job of {plan.rows} steps", seconds=time.perf_counter() - began, which=told)
