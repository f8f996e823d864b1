"""Compiled programs: one executable per operation and shape, compiled when a shape is first used, and counted.

All shapes of a program follow from the size of the picture and the number of pictures in a pass (`Bucket`), so that
everything a bucket needs is compiled at its first use, in parallel, whatever the job at hand asks for. Passes of more
pictures, which jobs can share, are compiled behind.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import jax
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from worker.diffusion.loop import Blend, State
from worker.engine.blobs import Key, title
from worker.engine.executable import reason
from worker.engine.operations import Bucket, Operations, Program, Slot, slot_shardings
from worker.engine.store import ProgramStore
from worker.engine.turns import Lane
from worker.families.family import TextCondition
from worker.families.latent_diffusion import Conditions, Params, Pipeline

log = logging.getLogger(__name__)

PROGRAMS_MAX = 64
"""Executables that are held besides those of sizes that are served; the one that was used longest ago goes first."""

Executable = Callable[..., Any]


def _one_thread() -> Executor:
    return ThreadPoolExecutor(1, thread_name_prefix="grow")


@dataclass
class Programs:
    """The four operations of a pipeline, callable with host or device arrays.

    A program comes from memory, from the store, or from the compiler. `compiled` holds the seconds that each program
    took to compile, `failed` why one could not be. `spread` has the denoiser's parameters on all devices that share a
    pass, where there are several.
    """

    operations: Operations
    params: Params
    spread: Params = field(default_factory=dict[str, Any])
    store: ProgramStore | None = None
    compiled: dict[Key, float] = field(default_factory=dict[Key, float])
    failed: dict[Key, str] = field(default_factory=dict[Key, str])
    _executables: dict[Key, Future[Executable]] = field(default_factory=dict[Key, Future[Executable]])
    _lock: Lock = field(default_factory=Lock)
    _kept: set[Key] = field(default_factory=set[Key])
    _growing: set[Key] = field(default_factory=set[Key])
    _background: Executor = field(default_factory=_one_thread)

    @property
    def pipeline(self) -> Pipeline:
        """The model."""
        return self.operations.pipeline

    @property
    def devices(self) -> int:
        """How many devices share a pass."""
        return self.operations.devices

    def prepare(self, height: int, width: int, slots: Iterable[int], *, image: bool) -> None:
        """Compile what passes of so many slots need and is not there, with and without guidance.

        The size is that of the latents; `image` adds the encoder of input images. Any thread may call it.
        """
        needed = self._needed(height, width, slots, image=image)
        if not all(self._is_ready(key) for key in needed):
            log.info("getting %d programs ready for this size", len(needed))
            # XLA compiles outside of Python's lock.
            with ThreadPoolExecutor(len(needed), thread_name_prefix="compile") as pool:
                list(pool.map(self._obtain, needed.values()))

    def is_ready(self, height: int, width: int, slots: int, *, image: bool) -> bool:
        """Whether `prepare` would have nothing to do."""
        return all(self._is_ready(key) for key in self._needed(height, width, [slots], image=image))

    def keep(self, height: int, width: int, slots: Iterable[int]) -> None:
        """Hold the programs of a size, when they are there, for good."""
        self._kept.update(self._needed(height, width, slots, image=True))

    def _needed(self, height: int, width: int, slots: Iterable[int], *, image: bool) -> dict[Key, Program]:
        buckets = [Bucket(size, height, width) for size in slots]
        return {program.key: program for bucket in buckets for program in self.operations.all(bucket, image=image)}

    def sizes(self, lane: Lane) -> tuple[int, ...]:
        """Numbers of slots that can run now without compiling, in growing order."""
        with self._lock:
            keys = [key for key in self._executables if key[0] == "advance" and key[2:5] == lane]
        return tuple(sorted(int(key[1]) for key in keys if self._is_ready(key)))

    def grow(self, lane: Lane, slots: int) -> None:
        """Compile a further number of slots behind, for later passes; a failure is only logged."""
        program = self.operations.advance(Bucket(slots, lane.height, lane.width), guided=lane.guided)
        if program.key not in self._growing:
            self._growing.add(program.key)
            self._background.submit(self._grow, program)

    def _grow(self, program: Program) -> None:
        try:
            self._obtain(program)
        except Exception as error:  # whatever a compiler raises: smaller passes go on
            log.warning("%s cannot be compiled: %s", title(program.key), reason(error))

    def adopt(self, executables: Mapping[Key, Executable]) -> None:
        """Take programs that were loaded, and keep them."""
        self._kept.update(executables)
        for key, executable in executables.items():
            future = Future[Executable]()
            future.set_result(executable)
            with self._lock:
                self._executables[key] = future

    def place(self, slot: Slot) -> Slot:
        """The arrays of a pass where its program expects them."""
        mesh = self.operations.mesh_of(slot.state.x.shape[0])
        return jax.device_put(slot, None if mesh is None else slot_shardings(mesh))

    def encode_text(self, ids: tuple[NDArray[np.int32], ...], keep: NDArray[np.float32]) -> TextCondition:
        """See `Pipeline.encode_text`."""
        return self._obtain(self.operations.text(len(keep)))(self._encoders, ids, keep)

    def encode_image(self, image_BHWC: NDArray[np.float32]) -> tuple[Array, Array]:
        """See `Pipeline.encode_image`."""
        grid = (side // self.pipeline.scale_factor for side in image_BHWC.shape[1:3])
        return self._obtain(self.operations.encode(Bucket(1, *grid)))(self._params("vae"), image_BHWC)

    def advance(
        self,
        state: State,
        tables: Array,
        lengths: Array,
        conditions: Conditions,
        noise: Array,
        blend: Blend,
        n_rows: int,
    ) -> State:
        """See `Pipeline.advance`; `state` is used up."""
        guided = conditions.context.shape[0] == 2
        bucket = Bucket(*state.x.shape[:3])
        executable = self._obtain(self.operations.advance(bucket, guided=guided))
        network = self._params(self.pipeline.family.denoiser)
        if self.operations.mesh_of(bucket.slots):
            network = self.spread
        dispatches, rows = (n_rows, 1) if self.pipeline.kernels.loop == "host" else (1, n_rows)
        for _ in range(dispatches):
            state = executable(network, state, tables, lengths, conditions, noise, blend, np.int32(rows))
        return state

    def decode(self, x_BHWC: NDArray[np.float32]) -> tuple[Array, Array]:
        """See `Pipeline.decode`."""
        return self._obtain(self.operations.decode(Bucket(*x_BHWC.shape[:3])))(self._params("vae"), x_BHWC)

    @property
    def _encoders(self) -> Params:
        return self._params(*(part.name for part in self.pipeline.family.text_encoders))

    def _params(self, *parts: str) -> Params:
        return {part: self.params[part] for part in parts}

    def _is_ready(self, key: Key) -> bool:
        future = self._executables.get(key)
        return future is not None and future.done() and future.exception() is None

    def _obtain(self, program: Program) -> Executable:
        """From memory, or obtained now; who asks for what another thread is obtaining waits for it."""
        with self._lock:
            known = self._executables.pop(program.key, None)
            future = known or Future[Executable]()
            # Used last goes last: the first of the dictionary is the one to forget.
            self._executables[program.key] = future
            loose = [key for key in self._executables if key not in self._kept]
            for key in loose[:-PROGRAMS_MAX]:
                del self._executables[key]
        if known is None:
            try:
                future.set_result(self._load_or_compile(program))
            except BaseException as error:
                self.failed[program.key] = reason(error)
                with self._lock:
                    self._executables.pop(program.key, None)
                future.set_exception(error)
        return future.result()

    def _load_or_compile(self, program: Program) -> Executable:
        stored = self.store.load([program.key]) if self.store else {}
        return stored.get(program.key) or self._compile(program)

    def _compile(self, program: Program) -> Executable:
        began = time.perf_counter()
        executable = program.compile()
        self.compiled[program.key] = time.perf_counter() - began
        self.failed.pop(program.key, None)
        log.info("compiled %s in %.1f s", title(program.key), self.compiled[program.key])
        if self.store:
            self.store.offer(program.key, executable, self.compiled[program.key])
        return executable
