"""Continuous batching: pictures of several jobs share passes, and join and leave between two steps.

All of it happens on one thread, the device's. A turn carries the pictures of one lane on by about a tenth of a second
and then asks for the next turn; whatever else needs the device (`call`) gets in between.
"""

import logging
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue

import jax
import numpy as np
from numpy.typing import NDArray

from worker.diffusion.loop import State
from worker.diffusion.table import StepTable
from worker.engine.memory import is_out_of_memory
from worker.engine.operations import Slot
from worker.engine.pace import Pace
from worker.engine.programs import Programs
from worker.engine.slots import Draw, part_state, stack
from worker.engine.turns import Lane, choose, pass_slots, places
from worker.errors import JobStopped

log = logging.getLogger(__name__)

Glimpse = Callable[[], NDArray[np.float32] | None]
"""The clean latent [h, w, C] of the job's foremost picture, as far as it can be guessed."""
Checkpoint = Callable[[float, Glimpse], None]
"""Told between turns which part of a job is done, 0 to 1; what it raises ends the job."""


@dataclass(eq=False)
class Sample:
    """A picture to be sampled. `start` makes its slot, on the device's thread, when its first turn comes."""

    lane: Lane
    table: StepTable
    start: Callable[[], tuple[Slot, Draw]]
    rows: int = 0
    alone: bool = False
    _begun: tuple[Slot, Draw] | None = None

    @property
    def left(self) -> int:
        """Rows of the table that are still to be done."""
        return len(self.table) - self.rows

    def park(self, state: State) -> None:
        """Keep the state with which it leaves a pass, unless it has ended there."""
        if self._begun is not None:
            slot, draw = self._begun
            self._begun = slot._replace(state=state), draw

    def noise(self, count: int) -> NDArray[np.float32] | None:
        """A noise of its generator, if one of the next rows draws it."""
        return self.begin()[1]() if np.any(self.table.draws[self.rows : self.rows + count]) else None

    def again(self) -> None:
        """Back to the beginning, and alone."""
        self.rows, self.alone = 0, True
        self.forget()

    def forget(self) -> None:
        """Let go of its arrays."""
        self._begun = None

    def begin(self) -> tuple[Slot, Draw]:
        """Its arrays and its generator; made now, if this is its first turn."""
        if self._begun is None:
            self._begun = self.start()
        return self._begun


Outcome = tuple[int, NDArray[np.float32] | Exception]
"""Index of a sample, and its latent [h, w, C] or why there is none."""


@dataclass(eq=False)
class Job:
    """Samples that belong together. `waiting` are those without an outcome, by index."""

    samples: Sequence[Sample]
    checkpoint: Checkpoint
    waiting: dict[int, Sample] = field(default_factory=dict[int, Sample])
    outcomes: SimpleQueue[Outcome | Exception] = field(default_factory=SimpleQueue[Outcome | Exception])
    given_up: bool = False

    def done(self) -> float:
        """The part of its rows that are done."""
        ended = sum(len(sample.table) for index, sample in enumerate(self.samples) if index not in self.waiting)
        rows = ended + sum(sample.rows for sample in self.waiting.values())
        return rows / sum(len(sample.table) for sample in self.samples)


class _Pass:
    """Samples side by side on the device; everything but the state stays as it is."""

    def __init__(self, samples: list[Sample], size: int, place: Callable[[Slot], Slot]):
        self.samples = samples
        self.size = size
        self._fixed = place(stack([sample.begin()[0] for sample in samples], size))
        self.state = self._fixed.state
        self._sharding = self.state.x.sharding
        self._noise = jax.device_put(np.zeros(self.state.x.shape, np.float32), self._sharding)

    def holds(self, samples: list[Sample], size: int) -> bool:
        """Whether these are they, in whatever order."""
        return self.size == size and set(self.samples) == set(samples)

    def park(self) -> None:
        """Give every sample its state back, on the host."""
        try:
            state = jax.tree.map(np.asarray, self.state)
        except Exception:  # the device has lost it
            for sample in self.samples:
                sample.again()
            raise
        for index, sample in enumerate(self.samples):
            sample.park(part_state(state, index))

    def advance(self, programs: Programs, count: int) -> None:
        """Dispatch so many rows, no more than any sample's run length."""
        drawn = {
            index: noise for index, sample in enumerate(self.samples) if (noise := sample.noise(count)) is not None
        }
        if drawn:
            noises = np.zeros(self.state.x.shape, np.float32)
            for index, noise in drawn.items():
                noises[index] = noise
            self._noise = jax.device_put(noises, self._sharding)
        fixed = self._fixed
        self.state = programs.advance(
            self.state, fixed.table, fixed.length, fixed.conditions, self._noise, fixed.blend, count
        )
        for sample in self.samples:
            sample.rows += count


class Batcher:
    """Runs samples in passes of at most `max_slots` on each of the devices that share them; any thread may call it."""

    def __init__(self, programs: Programs, max_slots: int, pace: Pace, devices: int = 1):
        self._programs = programs
        self._sizes = pass_slots(max_slots, devices)
        self._devices = devices
        self._pace = pace
        self._device: Executor = ThreadPoolExecutor(1, thread_name_prefix="device")
        # Touched by the device's thread alone.
        self._jobs: list[Job] = []
        self._passes: dict[Lane, _Pass] = {}
        self._limits: dict[Lane, int] = {}
        self._turns = 0

    def call[T](self, work: Callable[[], T]) -> T:
        """Do something on the device's thread, before its next turn."""
        return self._device.submit(work).result()

    def sample(self, samples: Sequence[Sample], checkpoint: Checkpoint) -> Generator[Outcome]:
        """Outcomes in the order in which they come; raises what `checkpoint` raises.

        Leaving the iterator ends what is still under way.
        """
        job = Job(samples, checkpoint, dict(enumerate(samples)))
        self._device.submit(self._admit, job)
        try:
            for _ in samples:
                outcome = job.outcomes.get()
                if isinstance(outcome, Exception):
                    raise outcome
                yield outcome
        finally:
            job.given_up = True

    def sizes(self, lane: Lane) -> list[int]:
        """Numbers of places that a pass of the lane may have, as far as its memory is known."""
        return [size for size in self._sizes if size <= self._limits.get(lane, size)]

    def _admit(self, job: Job) -> None:
        # While there are jobs, a turn is waiting in the queue.
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._next_turn()

    def _next_turn(self) -> None:
        try:
            self._device.submit(self._turn)
        except RuntimeError:  # the process is ending
            for job in list(self._jobs):
                self._end(job, JobStopped("the worker is ending"))

    def _turn(self) -> None:
        for job in list(self._jobs):
            self._check(job)
        waiting = [list(job.waiting.values()) for job in self._jobs]
        alive = {sample for samples in waiting for sample in samples}
        self._passes = {lane: held for lane, held in self._passes.items() if alive & set(held.samples)}
        if not waiting:
            return
        self._turns += 1
        wanted = choose(waiting, self._turns)
        try:
            self._take(wanted)
        except Exception as error:  # no turn goes by in vain, whatever happens in it
            self._settle(wanted[0], error)
        if self._jobs:
            self._next_turn()

    def _take(self, wanted: list[Sample]) -> None:
        lane, size = wanted[0].lane, self._size(wanted)
        samples = [sample for sample in wanted[:size] if self._has_begun(sample)]
        if samples:
            try:
                self._carry_on(self._pass(lane, samples, size))
            except Exception as error:  # whatever the device's libraries raise
                self._fail(lane, samples, size, error)

    def _check(self, job: Job) -> None:
        try:
            if job.given_up:
                raise JobStopped("its results are not wanted")
            job.checkpoint(job.done(), lambda: self._glimpse(job))
        except Exception as error:
            self._end(job, error)

    def _glimpse(self, job: Job) -> NDArray[np.float32] | None:
        sample = max(job.waiting.values(), key=lambda sample: sample.rows)
        if sample.rows == 0:
            return None
        held = self._passes.get(sample.lane)
        if held is not None and sample in held.samples:
            x = np.asarray(held.state.x)[held.samples.index(sample)]
        else:
            x = np.asarray(sample.begin()[0].state.x)
        return sample.table.estimate(x, sample.rows)

    def _size(self, wanted: list[Sample]) -> int:
        """Slots of the pass for them, of those that are compiled; a better size is compiled behind."""
        lane, allowed = wanted[0].lane, [1] if wanted[0].alone else self.sizes(wanted[0].lane)
        sizes = [size for size in self._programs.sizes(lane) if size in allowed]
        if not sizes:
            self._programs.prepare(lane.height, lane.width, [1], image=False)
            return 1
        size, best = (places(len(wanted), known, self._devices) for known in (sizes, allowed))
        if best > size:
            self._programs.grow(lane, best)
        return size

    def _has_begun(self, sample: Sample) -> bool:
        try:
            sample.begin()
        except Exception as error:  # its texts or its picture could not be encoded
            self._settle(sample, error)
            return False
        return True

    def _pass(self, lane: Lane, samples: list[Sample], size: int) -> _Pass:
        held = self._passes.get(lane)
        if held is None or not held.holds(samples, size):
            if held is not None:
                # Whatever happens, it is not carried on.
                del self._passes[lane]
                held.park()
            held = self._passes[lane] = _Pass(samples, size, self._programs.place)
        return held

    def _carry_on(self, held: _Pass) -> None:
        """One turn; ends early where a sample does, so that its place is free for another one."""
        kind = (held.size, *held.samples[0].lane)
        rows = min(self._pace.rows(kind), *(sample.left for sample in held.samples))
        began, done = time.perf_counter(), 0
        while done < rows:
            # Within a turn the host is ahead of the device; a dispatch takes the rows that can share one noise.
            count = min(rows - done, *(sample.table.run_length(sample.rows) for sample in held.samples))
            held.advance(self._programs, count)
            done += count
        jax.block_until_ready(held.state.x)
        self._pace.learn(kind, (time.perf_counter() - began) / rows)
        if any(sample.left == 0 for sample in held.samples):
            latents = np.array(held.state.x)
            for index, sample in enumerate(held.samples):
                if sample.left == 0:
                    self._settle(sample, latents[index])

    def _fail(self, lane: Lane, samples: list[Sample], size: int, error: Exception) -> None:
        """A pass that failed is lost. Its samples begin again, each alone, where one that fails has only itself."""
        self._passes.pop(lane, None)
        if size == 1:
            self._settle(samples[0], error)
            return
        log.warning("a pass of %d failed, each goes on alone: %s", size, str(error).partition("\n")[0])
        if is_out_of_memory(error):
            self._limits[lane] = size // 2
        for sample in samples:
            sample.again()

    def _settle(self, sample: Sample, outcome: NDArray[np.float32] | Exception) -> None:
        job, index = next((job, index) for job in self._jobs for index, found in job.waiting.items() if found is sample)
        del job.waiting[index]
        sample.forget()
        job.outcomes.put((index, outcome))
        if not job.waiting:
            self._jobs.remove(job)

    def _end(self, job: Job, error: Exception) -> None:
        self._jobs.remove(job)
        job.outcomes.put(error)
