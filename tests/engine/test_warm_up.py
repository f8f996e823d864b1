"""The start: sizes in order, its budget, sizes that cannot be made, and nothing to compile afterwards."""

import dataclasses
import logging
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import jax
import pytest

from tests.engine.test_run import Around
from tests.jobs import JOB, encode_picture, photograph, run
from tests.platform.job_api import until
from worker.engine.engine import Engine
from worker.engine.loading import load_engine
from worker.engine.warm_up import WarmUp
from worker.errors import StartupError
from worker.settings import Settings

pytestmark = pytest.mark.xdist_group("sd1")
SMALL, LARGE = (64, 64), (72, 104)
NO_MEMORY = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes."


def engine_of(toy, **changes: Any) -> Engine:
    return load_engine(Settings(model_dir=toy("sd1").model_dir, **changes))


class Compiling(Around):
    """Programs in name only: `prepare` notes what it is asked for, and waits or fails by the height of the latents."""

    def __init__(self, programs: Any, waits: tuple[int, ...] = (), fails: dict[int, str] | None = None):
        super().__init__(programs)
        self.waits, self.fails = waits, fails or {}
        self.go_on = Event()
        self.asked: list[tuple[int, int, int]] = []
        self.done: set[tuple[int, int, int]] = set()

    def prepare(self, height: int, width: int, slots: Any, *, image: bool) -> None:  # noqa: ARG002
        for size in slots:
            self.asked.append((height, width, size))
            if height in self.waits:
                assert self.go_on.wait(30)
            if height in self.fails:
                raise jax.errors.JaxRuntimeError(self.fails[height])
            self.done.add((height, width, size))

    def is_ready(self, height: int, width: int, slots: int, *, image: bool) -> bool:  # noqa: ARG002
        return (height, width, slots) in self.done


@pytest.fixture
def stand_in(toy, monkeypatch):
    """`stand_in(sizes, ...)`: an engine over `Compiling` that makes no pictures, and the programs."""

    def make(sizes: tuple[tuple[int, int], ...], **behaviour: Any) -> tuple[WarmUp, Compiling]:
        engine = toy("sd1").service.engine
        settings = dataclasses.replace(engine.planner.settings, sizes=sizes, max_slots=2)
        planner = dataclasses.replace(engine.planner, settings=settings)
        programs = Compiling(engine.programs, **behaviour)
        engine = dataclasses.replace(engine, planner=planner, programs=programs)
        monkeypatch.setattr("worker.engine.engine.Batcher.sample", lambda *_: (_ for _ in ()))
        return WarmUp(engine), programs

    return make


def test_after_warm_up_nothing_is_compiled_whatever_comes(toy):
    engine = engine_of(toy, sizes=(LARGE,), max_slots=2)
    warm_up = WarmUp(engine)
    warm_up.run(120)
    until(lambda: warm_up.passes(LARGE) == (1, 2), 60)
    compiled = dict(engine.programs.compiled)
    service = dataclasses.replace(toy("sd1").service, engine=engine)
    jobs = [JOB | {"seed": seed, "num_images": 1 + seed % 3, "guidance_scale": seed % 4} for seed in range(6)]
    jobs.append(JOB | {"image": encode_picture(photograph(90, 90)), "scheduler": "UniPC"})
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda job: run(service, job), jobs))
    assert engine.programs.compiled == compiled


def test_the_smallest_size_comes_first_and_larger_passes_last(stand_in):
    warm_up, programs = stand_in((LARGE, SMALL))
    warm_up.run(30)
    until(lambda: len(programs.asked) == 4, 10)
    assert programs.asked == [(8, 8, 1), (13, 9, 1), (8, 8, 2), (13, 9, 2)]


def test_when_the_budget_is_spent_the_rest_follows_behind(stand_in, caplog):
    warm_up, programs = stand_in((LARGE, SMALL), waits=(13,))
    warm_up.run(0.5)
    (line,) = [record.getMessage() for record in caplog.records if "budget" in record.getMessage()]
    assert "ready are 64x64" in line
    assert line.endswith(": 72x104")
    assert warm_up.passes(SMALL) == (1,)
    assert warm_up.passes(LARGE) == ()
    programs.go_on.set()
    until(lambda: warm_up.passes(LARGE) == warm_up.passes(SMALL) == (1, 2), 10)


def test_what_is_ready_already_needs_no_budget(stand_in, caplog):
    warm_up, programs = stand_in((SMALL, LARGE), waits=(8, 13))
    programs.done |= {(8, 8, 1), (13, 9, 1)}
    warm_up.run(0)
    assert warm_up.passes(SMALL) == warm_up.passes(LARGE) == (1,)
    assert "ready are 64x64, 72x104" in caplog.text
    programs.go_on.set()


def test_a_size_too_large_for_the_memory_is_a_warning(stand_in, caplog):
    warm_up, programs = stand_in((SMALL, LARGE), fails={13: NO_MEMORY})
    warm_up.run(30)
    assert warm_up.failed.keys() == {LARGE}
    until(lambda: warm_up.passes(SMALL) == (1, 2), 10)
    assert warm_up.passes(LARGE) == ()
    assert (13, 9, 2) not in programs.asked
    assert "72x104 cannot be made" in caplog.text


@pytest.mark.parametrize(
    ("sizes", "fault"), [((SMALL,), NO_MEMORY), ((SMALL, LARGE), NO_MEMORY), ((SMALL, LARGE), "INTERNAL: broken")]
)
def test_a_start_without_any_size_or_with_a_broken_device_ends(stand_in, sizes, fault):
    warm_up, _ = stand_in(sizes, fails={8: fault} if "INTERNAL" in fault else {8: fault, 13: fault})
    with pytest.raises(StartupError, match=r"64x64|no picture"):
        warm_up.run(30)


@pytest.mark.parametrize("size", [(0, 0), (100_000, 8), (4096, 4096)])
def test_a_size_that_no_job_may_have_ends_the_start_before_anything_is_compiled(stand_in, size):
    warm_up, programs = stand_in((SMALL, size))
    with pytest.raises(StartupError, match=f"SIZES, MAX_PIXELS: {size[0]}x{size[1]} cannot be served: width"):
        warm_up.run(30)
    assert not programs.asked


def test_a_failure_behind_is_told_in_the_log(stand_in, caplog):
    warm_up, programs = stand_in((SMALL,), waits=(8,), fails={8: NO_MEMORY})
    warm_up.run(0.1)
    with caplog.at_level(logging.ERROR):
        programs.go_on.set()
        until(lambda: "failed behind" in caplog.text, 10)


def test_served_sizes_are_never_forgotten_for_others(toy, monkeypatch):
    programs = toy("sd1").service.engine.programs
    programs = dataclasses.replace(programs, _executables={}, _kept=set(), compiled={})
    monkeypatch.setattr("worker.engine.programs.PROGRAMS_MAX", 2)
    monkeypatch.setattr(type(programs), "_compile", lambda *_: print)
    programs.keep(8, 8, [1, 2])
    programs.adopt({("decode", 99, 99): print})
    for side in (8, 9, 10, 11):
        programs.prepare(side, side, [1, 2], image=True)
    assert programs.is_ready(8, 8, 1, image=True)
    assert programs.is_ready(8, 8, 2, image=True)
    assert ("decode", 99, 99) in programs._executables
    assert not programs.is_ready(9, 9, 1, image=True)
