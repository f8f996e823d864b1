"""Jobs side by side, on a device that only counts."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, cast

import jax
import numpy as np
import pytest

from worker.diffusion.loop import Blend, State
from worker.diffusion.table import COLUMNS, HISTORY, StepTable
from worker.engine.batcher import Batcher, Sample
from worker.engine.pace import Pace
from worker.engine.slots import Slot
from worker.engine.turns import Lane
from worker.errors import JobStopped
from worker.families.latent_diffusion import Conditions

LANE, OTHER = Lane(2, 3, True), Lane(4, 3, True)
POISON = 666.0
RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes."


class Counting:
    """Stands for Programs: x grows by 1 % and 1 in a row, and by the noise in a row that draws one."""

    def __init__(self, ready: tuple[int, ...] = (1, 2, 4), most: int = 4, row_s: float = 0.0):
        self.ready = {lane: list(ready) for lane in (LANE, OTHER)}
        self.most, self.row_s = most, row_s
        self.passes: list[tuple[Lane, int, int]] = []

    def sizes(self, lane: Lane) -> tuple[int, ...]:
        return tuple(sorted(self.ready[lane]))

    def grow(self, lane: Lane, slots: int) -> None:
        self.ready[lane].append(slots)

    def prepare(self, height: int, width: int, slots: list[int], *, image: bool) -> None:  # noqa: ARG002
        self.ready[Lane(height, width, True)] += slots

    def place(self, slot: Slot) -> Slot:
        return jax.device_put(slot)

    def advance(self, state: Any, tables: Any, lengths: Any, _: Any, noise: Any, __: Any, n_rows: int) -> State:
        time.sleep(self.row_s * n_rows)
        tables, lengths, noise = map(np.asarray, (tables, lengths, noise))
        x, row = np.array(state.x), np.array(state.row)
        height, width = x.shape[1:3]
        self.passes.append((Lane(height, width, True), len(x), int(np.sum(row < lengths))))
        if np.any(np.abs(x) == POISON):
            raise ValueError("poisoned")
        if len(x) > self.most:
            raise jax.errors.JaxRuntimeError(RESOURCE_EXHAUSTED)
        for _ in range(n_rows):
            for slot in np.flatnonzero(row < lengths):
                x[slot] = x[slot] * np.float32(1.01) + 1 + tables[slot, row[slot], 0] * noise[slot]
                row[slot] += 1
        return State(x, np.asarray(state.saved), np.asarray(state.history), row)


def sample(seed: int, rows: int, draws: tuple[int, ...] = (), lane: Lane = LANE, first: float | None = None) -> Sample:
    table = StepTable(np.zeros((rows, COLUMNS)), np.isin(np.arange(rows), draws), (0.0, 1.0))
    table.coefficients[list(draws), 0] = 1
    shape = (lane.height, lane.width, 1)

    def start() -> tuple[Slot, Callable[[], Any]]:
        random = np.random.default_rng(seed)
        x = random.standard_normal(shape, np.float32) if first is None else np.full(shape, first, np.float32)
        nothing = np.zeros(shape, np.float32)
        slot = Slot(
            State(*cast(Any, (x, nothing, np.zeros((HISTORY, *shape), np.float32), np.int32(0)))),
            *cast(Any, (table.packed(), np.int32(rows))),
            Conditions(
                *cast(Any, (np.zeros((2, 1, 1), np.float32), None, None, np.float32(1), np.float32(0), None, None))
            ),
            Blend(*cast(Any, (nothing[..., :1], nothing, nothing))),
        )
        return slot, lambda: random.standard_normal(shape, np.float32)

    return Sample(lane, table, start)


def batcher(programs: Counting, stretch_s: float = 1e-9, max_slots: int = 4) -> Batcher:
    """One row in a turn, unless told otherwise."""
    return Batcher(cast(Any, programs), max_slots, Pace(stretch_s))


def go_on(_done: float, _glimpse: object) -> None:
    pass


def run(subject: Batcher, *jobs: list[Sample], checkpoint: Any = go_on) -> list[dict[int, Any]]:
    """Each in a thread of its own, as the service does it; the device begins when all of them are there."""
    arrived = threading.Event()
    with ThreadPoolExecutor(len(jobs) + 1) as threads:
        threads.submit(lambda: subject.call(lambda: arrived.wait(10)))
        results = []
        for job in jobs:
            time.sleep(0.02)
            results.append(threads.submit(lambda job=job: dict(subject.sample(job, checkpoint))))
        time.sleep(0.05)
        arrived.set()
        return [result.result(20) for result in results]


JOBS = [
    [(1, 9, ()), (2, 9, ())],
    [(3, 4, (0, 1, 2, 3))],
    [(4, 30, (7, 9, 20))],
    [(5, 1, ()), (6, 17, (3,)), (7, 2, (1,))],
    [(8, 12, tuple(range(12)))],
]


@pytest.mark.parametrize("stretch_s", [1e-9, 10.0])
@pytest.mark.parametrize("ready", [(1,), (1, 2, 4), (4,)])
def test_a_picture_does_not_depend_on_who_goes_along(ready, stretch_s):
    programs = Counting(ready)
    together = run(batcher(programs, stretch_s), *([sample(*one) for one in job] for job in JOBS))
    assert max(active for _, _, active in programs.passes) > 1
    for job, found in zip(JOBS, together, strict=True):
        for index, one in enumerate(job):
            (alone,) = dict(batcher(Counting()).sample([sample(*one)], go_on)).values()
            assert np.array_equal(found[index], alone)


def test_lanes_are_not_mixed_and_each_gets_its_turn():
    programs = Counting()
    run(batcher(programs), [sample(1, 20)], [sample(2, 3, lane=OTHER)], [sample(3, 20)])
    lanes = [lane for lane, _, _ in programs.passes]
    assert {lane: lanes.count(lane) for lane in lanes} == {LANE: 20, OTHER: 3}
    assert lanes.index(LANE) < len(lanes) - lanes[::-1].index(OTHER) <= 8


def test_places_are_taken_when_they_get_free():
    programs = Counting()
    run(batcher(programs), *([sample(number, 10)] for number in range(8)))
    assert [active for _, _, active in programs.passes] == [4] * 20


def test_a_better_size_is_compiled_when_it_is_wanted():
    programs = Counting((1,))
    run(batcher(programs), *([sample(number, 10)] for number in range(4)))
    assert {size for _, size, _ in programs.passes} >= {1, 4}


def test_a_job_that_is_stopped_leaves_within_a_turn():
    programs = Counting(row_s=0.01)
    subject, seen = batcher(programs), count()

    def stop_at_5(_done: float, _glimpse: object) -> None:
        if next(seen) == 5:
            raise JobStopped("stopped")

    stopped, other = [sample(1, 1000)], [sample(2, 12)]
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: list(subject.sample(stopped, stop_at_5)))
        second = threads.submit(lambda: list(subject.sample(other, go_on)))
        with pytest.raises(JobStopped):
            first.result(10)
        second.result(10)
    assert stopped[0].rows <= 6
    assert other[0].rows == 12


def test_who_does_not_listen_any_more_leaves():
    programs = Counting(row_s=0.001)
    subject = batcher(programs)
    job = [sample(1, 2), sample(2, 2), sample(3, 1_000, lane=OTHER)]
    outcomes = subject.sample(job, go_on)
    next(outcomes)
    outcomes.close()
    subject.call(lambda: None)
    rows = job[2].rows
    time.sleep(0.05)
    assert job[2].rows <= rows + 1 < 1_000
    (later,) = run(subject, [sample(4, 3)])
    assert later.keys() == {0}


def test_what_is_done_grows_to_the_end():
    programs, seen = Counting(), []
    run(
        batcher(programs),
        [sample(1, 5), sample(2, 9), sample(3, 2, lane=OTHER)],
        checkpoint=lambda done, _: seen.append(done),
    )
    assert seen == sorted(seen)
    assert seen[0] == 0
    assert 0.8 < seen[-1] < 1


def test_a_picture_that_breaks_a_pass_breaks_no_other():
    programs = Counting()
    bad = [sample(1, 5), sample(2, 5, first=POISON)]
    good = [sample(3, 9, draws=(0, 4))]
    found_bad, found_good = run(batcher(programs), bad, good)
    (alone,) = run(batcher(Counting()), [sample(3, 9, draws=(0, 4))])
    assert np.array_equal(found_good[0], alone[0])
    assert isinstance(found_bad[0], np.ndarray)
    assert isinstance(found_bad[1], ValueError)


def test_a_pass_too_large_for_the_memory_is_made_of_single_pictures_and_the_lane_remembers():
    programs = Counting(most=2)
    subject = batcher(programs)
    (found,) = run(subject, [sample(number, 3) for number in range(4)])
    assert all(isinstance(latent, np.ndarray) for latent in found.values())
    assert [size for _, size, _ in programs.passes] == [4] + [1] * 12
    assert max(subject.sizes(LANE)) == 2
    assert max(subject.sizes(OTHER)) == 4
    programs.passes.clear()
    run(subject, [sample(number, 3) for number in range(4)])
    assert {size for _, size, _ in programs.passes} == {2}


class Lost:
    """An array on a device that has failed."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise jax.errors.JaxRuntimeError("INTERNAL: the device is lost")


def test_a_picture_whose_state_is_lost_begins_again():
    """One place, two jobs in turn: the state that is to be put aside cannot be read."""

    class Losing(Counting):
        def advance(self, state: Any, *rest: Any) -> State:
            made = super().advance(state._replace(saved=np.zeros_like(state.x)), *rest)
            return made._replace(saved=cast(Any, Lost())) if len(self.passes) == 5 else made

    rows = {1: 9, 2: 5}
    found = run(batcher(Losing(), max_slots=1), *([sample(*one)] for one in rows.items()))
    lost = [job[0] for job in found if isinstance(job[0], Exception)]
    assert len(lost) == 1
    for seed, job in enumerate(found, 1):
        (alone,) = run(batcher(Counting()), [sample(seed, rows[seed])])
        assert isinstance(job[0], Exception) or np.array_equal(job[0], alone[0])


def test_a_single_picture_too_large_for_the_memory_is_an_outcome():
    programs = Counting(most=0)
    subject = batcher(programs)
    (found,) = run(subject, [sample(1, 3)])
    assert isinstance(found[0], jax.errors.JaxRuntimeError)
    programs.most = 4
    (found,) = run(subject, [sample(1, 3)])
    assert isinstance(found[0], np.ndarray)


def test_a_picture_that_cannot_begin_is_an_outcome():
    programs = Counting()
    broken = sample(1, 3)
    broken.start = lambda: (_ for _ in ()).throw(KeyError("no text"))
    found, other = run(batcher(programs), [broken, sample(2, 3)], [sample(3, 3)])
    assert isinstance(found[0], KeyError)
    assert isinstance(found[1], np.ndarray)
    assert isinstance(other[0], np.ndarray)


def test_a_size_that_cannot_be_compiled_is_an_outcome_and_the_next_job_is_served():
    programs = Counting(())
    subject = batcher(programs)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no compiler")

    programs.prepare = fail
    found, other = run(subject, [sample(1, 3)], [sample(2, 3)])
    assert isinstance(found[0], RuntimeError)
    assert isinstance(other[0], RuntimeError)
    programs.ready[LANE] = [1]
    (found,) = run(subject, [sample(1, 3)])
    assert isinstance(found[0], np.ndarray)


def test_a_call_gets_in_between_two_turns():
    programs = Counting(row_s=0.02)
    subject = batcher(programs)
    with ThreadPoolExecutor(1) as threads:
        long = threads.submit(lambda: list(subject.sample([sample(1, 50)], go_on)))
        time.sleep(0.1)
        before = len(programs.passes)
        assert subject.call(lambda: 3) == 3
        assert len(programs.passes) - before <= 2
        with pytest.raises(KeyError):
            subject.call(lambda: {}[0])
        long.result(10)
