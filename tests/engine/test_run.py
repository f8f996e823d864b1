"""A run in stretches, and memory that does not suffice."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from tests.engine.test_engine import JOB, pictures
from worker.engine.memory import is_out_of_memory
from worker.engine.pace import Pace
from worker.request import parse_request


class Slowest(Pace):
    """One row in every stretch."""

    def rows(self, kind: tuple[int, ...]) -> int:  # noqa: ARG002
        return 1


def with_engine(service: Any, **changes: Any) -> Any:
    return dataclasses.replace(service, engine=dataclasses.replace(service.engine, **changes))


@pytest.mark.xdist_group("sd1")
@pytest.mark.parametrize("scheduler", ["DDIM", "Euler a", "DPM++ 2S a", "DPM++ SDE"])
def test_stretches_do_not_change_the_picture(toy, scheduler):
    service = toy("sd1").service
    job = JOB | {"scheduler": scheduler}
    found = pictures(with_engine(service, pace=Slowest()), job)
    assert np.array_equal(found, pictures(with_engine(service, pace=Pace(stretch_s=100)), job))


@pytest.mark.xdist_group("sd1")
def test_a_run_tells_what_is_done_and_ends_where_it_is_told(toy):
    engine = with_engine(toy("sd1").service, pace=Slowest()).engine
    seen: list[float] = []
    plan = engine.plan(parse_request(JOB | {"num_images": 3, "num_inference_steps": 9}), None, None)
    engine.run(plan, seen.append)
    assert seen == sorted(seen)
    assert seen[0] == 0
    assert seen[-1] == 1
    assert len(seen) > 2 * 9

    def end(done: float) -> None:
        seen.append(done)
        if done > 0.5:
            raise KeyError("ended")

    seen.clear()
    with pytest.raises(KeyError, match="ended"):
        engine.run(plan, end)
    assert len([done for done in seen if done > 0.5]) == 1


class ShortOfMemory:
    """Programs that have memory for so many pictures in a pass."""

    def __init__(self, programs: Any, most: int):
        self._programs, self._most = programs, most
        self.passes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._programs, name)

    def advance(self, state: Any, *rest: Any) -> Any:
        self.passes.append(len(state.x))
        if len(state.x) > self._most:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")
        return self._programs.advance(state, *rest)


@pytest.mark.xdist_group("sd1")
def test_a_pass_that_does_not_fit_is_split_once(toy):
    service = toy("sd1").service
    job = JOB | {"num_images": 2}
    expected = pictures(service, job)
    short = ShortOfMemory(service.engine.programs, 1)
    assert np.abs(np.subtract(pictures(with_engine(service, programs=short), job), expected, dtype=int)).max() <= 1
    assert short.passes[0] == 2
    assert set(short.passes[1:]) == {1}
    short = ShortOfMemory(service.engine.programs, 0)
    answer = with_engine(service, programs=short).run({"id": "x", "input": job})
    assert answer["refresh_worker"] is True
    assert "memory does not suffice for 72x104" in answer["error"]
    assert short.passes == [2, 1]


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes"), True),
        (jax.errors.JaxRuntimeError("INTERNAL: CUDNN_STATUS_ALLOC_FAILED in cudnn_frontend"), True),
        (jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: out of memory"), True),
        (jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS"), False),
        (RuntimeError("RESOURCE_EXHAUSTED"), False),
    ],
)
def test_memory_is_told_from_other_faults(error, memory):
    assert is_out_of_memory(error) == memory
