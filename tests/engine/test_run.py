"""Runs in turns and beside each other, and memory that does not suffice."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest

from tests.engine.test_engine import pictures
from tests.jobs import JOB, encode_picture, half_mask, photograph
from worker.engine.memory import is_out_of_memory
from worker.engine.pace import Pace
from worker.request import parse_request


class Slowest(Pace):
    """One row in every stretch."""

    def rows(self, kind: tuple[int, ...]) -> int:  # noqa: ARG002
        return 1


class Around:
    """Programs as they are; a test changes what it needs to."""

    def __init__(self, programs: Any):
        self._programs = programs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._programs, name)


def with_engine(service: Any, **changes: Any) -> Any:
    return dataclasses.replace(service, engine=dataclasses.replace(service.engine, **changes))


@pytest.mark.xdist_group("sd1")
@pytest.mark.parametrize("scheduler", ["DDIM", "Euler a", "DPM++ 2S a", "DPM++ SDE"])
def test_turns_do_not_change_the_picture(toy, scheduler):
    service = toy("sd1").service
    job = JOB | {"scheduler": scheduler}
    found = pictures(with_engine(service, pace=Slowest()), job)
    assert np.array_equal(found, pictures(with_engine(service, pace=Pace(stretch_s=100)), job))


@pytest.mark.xdist_group("sd1")
def test_a_run_tells_what_is_done_and_ends_where_it_is_told(toy):
    engine = with_engine(toy("sd1").service, pace=Slowest()).engine
    seen: list[float] = []
    plan = engine.plan(parse_request(JOB | {"num_images": 3, "num_inference_steps": 9}), None, None)
    assert len(list(engine.run([plan], lambda done, _: seen.append(done)))) == 3
    assert seen == sorted(seen)
    assert seen[0] == 0
    assert 0.9 < seen[-1] < 1
    assert len(seen) > 2 * 9

    def end(done: float, _preview: object) -> None:
        seen.append(done)
        if done > 0.5:
            raise KeyError("ended")

    seen.clear()
    with pytest.raises(KeyError, match="ended"):
        list(engine.run([plan], end))
    assert len([done for done in seen if done > 0.5]) == 1


@pytest.mark.xdist_group("sd1")
def test_pictures_of_jobs_that_share_passes_equal_those_of_jobs_alone(toy):
    """Other numbers of slots are other programs, whose sums are in another order: hence the one level."""
    service = with_engine(toy("sd1").service, pace=Slowest())
    image = {"image": encode_picture(photograph(72, 104)), "strength": 0.6}
    jobs = [
        JOB | {"num_inference_steps": 12},
        JOB | {"seed": 8, "scheduler": "Euler a", "num_inference_steps": 9, "guidance_scale": 3.0},
        JOB | {"seed": 9, "prompt": "a house", "num_images": 2, "scheduler": "DPM++ 2S a"},
        JOB | {"seed": 11, "num_inference_steps": 5} | image,
        JOB | {"seed": 12, "num_inference_steps": 5} | image | {"mask": encode_picture(half_mask(72, 104))},
        JOB | {"seed": 10, "guidance_scale": 1.0},
    ]
    alone = [pictures(service, job) for job in jobs]
    service.engine.programs.prepare(13, 9, [1, 2, 4], image=True)
    shared = Shared(service.engine.programs)
    together = with_engine(service, programs=shared)
    with ThreadPoolExecutor(len(jobs)) as threads:
        found = list(threads.map(lambda job: pictures(together, job), jobs))
    assert max(shared.active) == 4
    for one, other in zip(alone, found, strict=True):
        assert np.abs(np.subtract(one, other, dtype=int)).max() <= 1


class Shared(Around):
    """Counts the pictures of each pass that have not ended."""

    def __init__(self, programs: Any):
        super().__init__(programs)
        self.active: list[int] = []

    def advance(self, state: Any, tables: Any, lengths: Any, *rest: Any) -> Any:
        self.active.append(int(np.sum(np.asarray(state.row) < np.asarray(lengths))))
        return self._programs.advance(state, tables, lengths, *rest)


@pytest.mark.xdist_group("sd1")
def test_a_device_that_fails_is_one_error_and_asks_for_another_worker(toy, caplog):
    service = toy("sd1").service
    answer = with_engine(service, programs=Broken(service.engine.programs)).run({"id": "x", "input": JOB})
    assert answer == {"error": "the device failed; the worker's log has its cause", "refresh_worker": True}
    assert "ILLEGAL_ADDRESS" in caplog.text


class Broken(Around):
    """A device that has failed for good."""

    def advance(self, *_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS")


class ShortOfMemory(Around):
    """Memory for so many pictures in a pass."""

    def __init__(self, programs: Any, most: int):
        super().__init__(programs)
        self._most = most
        self.passes: list[int] = []

    def advance(self, state: Any, *rest: Any) -> Any:
        self.passes.append(len(state.x))
        if len(state.x) > self._most:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")
        return self._programs.advance(state, *rest)


@pytest.mark.xdist_group("sd1")
def test_a_pass_that_does_not_fit_is_made_again_of_single_pictures(toy):
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
    assert short.passes[0] == 2
    assert set(short.passes[1:]) == {1}


class ShortOnce(Around):
    """Memory that does not suffice for one operation at its first call, and for nothing else after it."""

    def __init__(self, programs: Any, operation: str):
        super().__init__(programs)
        self._operation = operation
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        if name != self._operation:
            return super().__getattr__(name)
        self.calls += 1
        if self.calls == 1:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")
        return super().__getattr__(name)


@pytest.mark.xdist_group("sd1")
@pytest.mark.parametrize("operation", ["encode_text", "encode_image", "decode"])
def test_what_does_not_fit_beside_others_is_made_once_more(toy, operation):
    service = toy("sd1").service
    job = JOB | {"image": encode_picture(photograph(72, 104)), "strength": 0.5}
    short = ShortOnce(service.engine.programs, operation)
    found = pictures(with_engine(service, programs=short), job)
    assert short.calls == 2
    assert np.array_equal(found, pictures(service, job))


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
