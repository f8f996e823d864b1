"""Compiled programs: one executable per operation and shape, compiled when a shape is first used, and counted.

All shapes of a program follow from the size of the picture and the number of pictures in a pass (`Bucket`), so that
everything a bucket needs is compiled at its first use, in parallel, whatever the job at hand asks for. Passes of more
pictures, which jobs can share, are compiled behind.
"""

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from worker.diffusion.loop import Blend, State, initial_state
from worker.diffusion.table import COLUMNS, MAX_ROWS
from worker.engine.turns import Lane
from worker.families.family import TextCondition
from worker.families.latent_diffusion import Conditions, Params, Pipeline

log = logging.getLogger(__name__)

PROGRAMS_MAX = 64
"""Executables that are kept; the one that was used longest ago goes first."""

Key = tuple[str | int | bool, ...]
Executable = Callable[..., Any]
Specs = tuple[Any, ...]


class Bucket(NamedTuple):
    """What fixes the shapes of a pass: pictures in it, and their latents' height and width."""

    slots: int
    height: int
    width: int


class _Program(NamedTuple):
    """What can be compiled: a pure function, the shapes of its arguments, and the arguments that it uses up."""

    key: Key
    function: Callable[..., Any]
    specs: Callable[[], Specs]
    donated: tuple[int, ...] = ()


def _one_thread() -> Executor:
    return ThreadPoolExecutor(1, thread_name_prefix="grow")


@dataclass
class Programs:
    """The four operations of a pipeline, callable with host or device arrays.

    Weights are always arguments of an executable, never constants in it. `text_lengths`: token ids of a text, by
    tokeniser. `compiled` holds the seconds that each program took to compile.
    """

    pipeline: Pipeline
    params: Params
    text_lengths: tuple[int, ...]
    compiled: dict[Key, float] = field(default_factory=dict[Key, float])
    _executables: dict[Key, Future[Executable]] = field(default_factory=dict[Key, Future[Executable]])
    _lock: Lock = field(default_factory=Lock)
    _growing: set[Key] = field(default_factory=set[Key])
    _background: Executor = field(default_factory=_one_thread)

    def prepare(self, height: int, width: int, slots: Iterable[int], *, image: bool) -> None:
        """Compile what passes of so many slots need and is not there, with and without guidance.

        The size is that of the latents; `image` adds the encoder of input images. Any thread may call it.
        """
        needed = [program for size in slots for program in self._all(Bucket(size, height, width), image=image)]
        needed = list({program.key: program for program in needed}.values())
        if not all(self._is_ready(program.key) for program in needed):
            # XLA compiles outside of Python's lock.
            with ThreadPoolExecutor(len(needed), thread_name_prefix="compile") as pool:
                list(pool.map(self._obtain, needed))

    def sizes(self, lane: Lane) -> tuple[int, ...]:
        """Numbers of slots that can run now without compiling, in growing order."""
        with self._lock:
            keys = [key for key in self._executables if key[0] == "advance" and key[2:] == lane]
        return tuple(sorted(int(key[1]) for key in keys if self._is_ready(key)))

    def grow(self, lane: Lane, slots: int) -> None:
        """Compile a further number of slots behind, for later passes; a failure is only logged."""
        program = self._advance(Bucket(slots, lane.height, lane.width), guided=lane.guided)
        if program.key not in self._growing:
            self._growing.add(program.key)
            self._background.submit(self._grow, program)

    def _grow(self, program: "_Program") -> None:
        try:
            self._obtain(program)
        except Exception as error:  # whatever a compiler raises: smaller passes go on
            log.warning("%s cannot be compiled: %s", " ".join(map(str, program.key)), str(error).partition("\n")[0])

    def trace(self, bucket: Bucket) -> None:
        """Trace all programs of a bucket; raises what the model's code raises when configurations do not fit."""
        for program in self._all(bucket, image=True):
            jax.eval_shape(program.function, *program.specs())

    def _all(self, bucket: Bucket, *, image: bool) -> list[_Program]:
        guided = (False,) if self.pipeline.embeds_guidance else (False, True)
        needed = [self._text(1 + int(both)) for both in guided]
        needed += [self._advance(bucket, guided=both) for both in guided]
        return needed + [self._decode(bucket)] + ([self._encode(bucket)] if image else [])

    def encode_text(self, ids: tuple[NDArray[np.int32], ...], keep: NDArray[np.float32]) -> TextCondition:
        """See `Pipeline.encode_text`."""
        return self._obtain(self._text(len(keep)))(self._encoders, ids, keep)

    def encode_image(self, image_BHWC: NDArray[np.float32]) -> tuple[Array, Array]:
        """See `Pipeline.encode_image`."""
        grid = (side // self.pipeline.scale_factor for side in image_BHWC.shape[1:3])
        return self._obtain(self._encode(Bucket(1, *grid)))(self._params("vae"), image_BHWC)

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
        executable = self._obtain(self._advance(Bucket(*state.x.shape[:3]), guided=guided))
        unet = self._params("unet")
        dispatches, rows = (n_rows, 1) if self.pipeline.kernels.loop == "host" else (1, n_rows)
        for _ in range(dispatches):
            state = executable(unet, state, tables, lengths, conditions, noise, blend, np.int32(rows))
        return state

    def decode(self, x_BHWC: NDArray[np.float32]) -> tuple[Array, Array]:
        """See `Pipeline.decode`."""
        return self._obtain(self._decode(Bucket(*x_BHWC.shape[:3])))(self._params("vae"), x_BHWC)

    @property
    def _encoders(self) -> Params:
        return self._params(*self.pipeline.family.text_encoders)

    def _params(self, *parts: str) -> Params:
        return {part: self.params[part] for part in parts}

    def _text(self, rows: int) -> _Program:
        return _Program(("encode_text", rows), self.pipeline.encode_text, partial(self._text_specs, rows))

    def _text_specs(self, rows: int) -> Specs:
        ids = tuple(_spec(rows, length, dtype=np.int32) for length in self.text_lengths)
        return _specs_of(self._encoders), ids, _spec(rows)

    def _encode(self, bucket: Bucket) -> _Program:
        size = [side * self.pipeline.scale_factor for side in bucket[1:]]
        return _Program(
            ("encode_image", *size),
            self.pipeline.encode_image,
            lambda: (_specs_of(self._params("vae")), _spec(1, *size, 3)),
        )

    def _decode(self, bucket: Bucket) -> _Program:
        return _Program(
            ("decode", *bucket[1:]),
            self.pipeline.decode,
            lambda: (_specs_of(self._params("vae")), _spec(1, *bucket[1:], self.pipeline.latent_channels)),
        )

    def _advance(self, bucket: Bucket, *, guided: bool) -> _Program:
        specs = partial(self._advance_specs, bucket, guided=guided)
        # The state is donated: its buffers become the new state's.
        return _Program(("advance", *bucket, guided), self.pipeline.advance, specs, donated=(1,))

    def _advance_specs(self, bucket: Bucket, *, guided: bool) -> Specs:
        slots, grid, groups = bucket.slots, bucket[1:], 1 + int(guided)
        x = _spec(*bucket, self.pipeline.latent_channels)
        text = cast(TextCondition, jax.eval_shape(self.pipeline.encode_text, *self._text_specs(1)))
        conditions = Conditions(
            context=_spec(groups, slots, *text.context.shape[1:]),
            pooled=None if text.pooled is None else _spec(groups, slots, *text.pooled.shape[1:]),
            size_ids=_spec(groups, slots, 6) if self.pipeline.family.size_conditioning else None,
            guidance=_spec(slots),
            rescale=_spec(slots),
            extra=_spec(slots, *grid, 1 + self.pipeline.latent_channels) if self.pipeline.takes_extra else None,
        )
        state, blend = jax.eval_shape(initial_state, x), Blend(_spec(slots, *grid, 1), x, x)
        tables, lengths = _spec(slots, MAX_ROWS, COLUMNS), _spec(slots, dtype=np.int32)
        unet = _specs_of(self._params("unet"))
        return unet, state, tables, lengths, conditions, x, blend, _spec(dtype=np.int32)

    def _is_ready(self, key: Key) -> bool:
        future = self._executables.get(key)
        return future is not None and future.done() and future.exception() is None

    def _obtain(self, program: _Program) -> Executable:
        """From memory, or compiled now; who asks for what another thread compiles waits for it."""
        with self._lock:
            known = self._executables.pop(program.key, None)
            future = known or Future[Executable]()
            # Used last goes last: the first of the dictionary is the one to forget.
            self._executables[program.key] = future
            while len(self._executables) > PROGRAMS_MAX:
                del self._executables[next(iter(self._executables))]
        if known is None:
            try:
                future.set_result(self._compile(program))
            except BaseException as error:
                with self._lock:
                    self._executables.pop(program.key, None)
                future.set_exception(error)
        return future.result()

    def _compile(self, program: _Program) -> Executable:
        began = time.perf_counter()
        executable = jax.jit(program.function, donate_argnums=program.donated).lower(*program.specs()).compile()
        self.compiled[program.key] = time.perf_counter() - began
        log.info("compiled %s in %.1f s", " ".join(map(str, program.key)), self.compiled[program.key])
        return executable


def _spec(*shape: int, dtype: Any = np.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _specs_of(params: Params) -> Any:
    return {
        part: {name: _spec(*array.shape, dtype=array.dtype) for name, array in arrays.items()}
        for part, arrays in params.items()
    }
