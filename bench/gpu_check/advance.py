"""The sampling loop at growing numbers of pictures side by side, and programs of two origins beside each other."""

import statistics
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bench.gpu_check.cold import job_of, settings_of
from bench.gpu_check.flops import row_flops
from bench.gpu_check.plan import CheckPlan, say
from worker.engine.engine import Engine
from worker.engine.executable import reason
from worker.engine.loading import load_engine
from worker.engine.memory import device_memory
from worker.engine.slots import Encoded, Slot, stack, start
from worker.request import parse_request


class Pass:
    """So many pictures of the plan's job on an engine's device."""

    def __init__(self, engine: Engine, plan: CheckPlan, slots: int):
        self._programs, self._rows = engine.programs, plan.rows
        made = engine.plan(parse_request(job_of(plan)), None, None)
        text = jax.tree.map(np.asarray, self._programs.encode_text(made.ids, made.keep))
        encoded = Encoded(text, None, None)
        pictures = [start(made, engine.planner.pipeline, encoded, seed)[0] for seed in range(slots)]
        self._given: Slot = jax.device_put(stack(pictures, slots))
        self._noise = jax.device_put(np.zeros(self._given.state.x.shape, np.float32))
        self.key = ("advance", *self._given.state.x.shape[:3], made.guided)

    def run(self) -> tuple[float, np.ndarray]:
        """Seconds of all rows, and the latents."""
        given = self._given
        # The program uses the state up.
        state = jax.block_until_ready(jax.tree.map(jax.numpy.copy, given.state))
        began = time.perf_counter()
        state = self._programs.advance(
            state, given.table, given.length, given.conditions, self._noise, given.blend, self._rows
        )
        latents = np.asarray(state.x)
        return time.perf_counter() - began, latents


def advance(plan: CheckPlan) -> None:
    """Seconds and TFLOP/s of a step with guidance, by number of pictures."""
    engine = _engine(plan, plan.baked if plan.ahead is None else plan.baked_ahead, plan.cache)
    flops = _flops(plan)
    for slots in plan.slots:
        try:
            one = Pass(engine, plan, slots)
            first_s, _ = one.run()
        except Exception as error:  # a lack of memory, for one; fewer pictures were measured
            say(pictures=slots, fault=reason(error))
            continue
        step_s = statistics.median(one.run()[0] for _ in range(plan.repeats)) / plan.rows
        say(
            pictures=slots,
            step_ms=1e3 * step_s,
            tflops=flops * slots / step_s / 1e12,
            pictures_per_s_30_steps=slots / (30 * step_s),
            first_run_s=first_s,
            compiled_s=engine.programs.compiled.get(one.key),
            peak_gb=device_memory().get("peak_bytes", 0) / 1e9,
        )


def ahead(plan: CheckPlan) -> None:
    """Programs compiled elsewhere beside those compiled here: equal, and how quick, in turn."""
    theirs, ours = _engine(plan, plan.baked_ahead, None), _engine(plan, plan.baked, plan.cache)
    store = theirs.programs.store
    assert store is not None
    say(what="loaded", count=len(store.loaded), seconds=sum(store.loaded.values()))
    for key, fault in store.faults.items():
        say(what=f"not used: {key}", fault=fault)
    for slots in plan.slots:
        key = Pass(theirs, plan, slots).key
        if key not in store.loaded:
            continue
        pair = [Pass(engine, plan, slots) for engine in (theirs, ours)]
        latents = [one.run()[1] for one in pair]
        rounds = [[one.run()[0] for one in pair] for _ in range(plan.repeats)]
        elsewhere, here = (statistics.median(times) / plan.rows for times in zip(*rounds, strict=True))
        scale = float(np.max(np.abs(latents[1]))) or 1.0
        say(
            what=f"advance, {slots} pictures",
            elsewhere_ms=1e3 * elsewhere,
            here_ms=1e3 * here,
            ratio=elsewhere / here,
            differs_by=float(np.max(np.abs(latents[0] - latents[1]))) / scale,
            compiled_here_s=ours.programs.compiled.get(key),
        )


def _engine(plan: CheckPlan, model_dir: Path, cache: Path | None) -> Engine:
    return load_engine(settings_of(plan, model_dir, cache, max(plan.slots)))


def _flops(plan: CheckPlan) -> Any:
    return row_flops(plan.model, plan.side, guided=True)
