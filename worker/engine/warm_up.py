"""The first jobs are quick: what pictures of the served sizes need is compiled before they come, within a budget."""

import logging
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property

import jax
from PIL import Image

from worker.engine.engine import Engine
from worker.engine.executable import reason
from worker.engine.plan import Plan
from worker.engine.turns import pass_slots
from worker.errors import GenerationError, InvalidRequest, OutOfMemory, StartupError
from worker.request import parse_request

log = logging.getLogger(__name__)

Size = tuple[int, int]
"""Width and height in pixels."""


class WarmUp:
    """Makes an engine ready for the sizes that are served, or its own; `failed` says which cannot be made, and why."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self.failed: dict[Size, str] = {}

    @cached_property
    def sizes(self) -> tuple[Size, ...]:
        """What is made ready, in that order: the smallest first."""
        planner = self._engine.planner
        side = planner.pipeline.sample_size
        return tuple(sorted(planner.settings.sizes or ((side, side),), key=lambda size: size[0] * size[1]))

    def passes(self, size: Size) -> tuple[int, ...]:
        """Numbers of slots for which nothing is to be compiled, whatever a job of the size asks for."""
        programs, grid = self._engine.programs, self._grid(size)
        if size in self.failed:
            return ()
        return tuple(slots for slots in self._slots if programs.is_ready(*grid, slots, image=True))

    def run(self, budget_s: float) -> None:
        """Wait until pictures of every size can be made without compiling, or for so many seconds.

        What is not ready then follows behind, and so do passes of more than one picture: jobs are served meanwhile.
        A size for which the memory does not suffice is left out. Raises StartupError when no size can be made, and
        when the device fails.
        """
        single = Future[None]()
        # Its thread is not waited for between two programs when the process ends.
        ThreadPoolExecutor(1, thread_name_prefix="warm-up").submit(self._run, single)
        try:
            single.result(max(budget_s, 0))
        except TimeoutError:
            single.add_done_callback(_tell)
            ready = [size for size in self.sizes if self.passes(size)]
            behind = [size for size in self.sizes if size not in ready and size not in self.failed]
            log.warning(
                "the start's budget is spent: ready are %s; compiled behind, or when a job asks for them: %s",
                titles(ready) or "none",
                titles(behind) or "none",
            )

    def _run(self, single: Future[None]) -> None:
        try:
            plans = {size: self._plan(size) for size in self.sizes}
            for size, plan in plans.items():
                self._make(size, plan)
            if len(self.failed) == len(self.sizes):
                raise StartupError(f"no picture can be made: {next(iter(self.failed.values()))}")
            single.set_result(None)
            for slots in self._slots[1:]:
                for size in self.sizes:
                    self._grow(size, slots)
        except Exception as error:
            if single.done():
                # New threads are refused, for one, when the process ends.
                log.warning("the warm-up ended early: %s", reason(error))
            else:
                single.set_exception(error)

    def _plan(self, size: Size) -> Plan:
        width, height = size
        job = {"prompt": "", "image": "given", "width": width, "height": height, "num_inference_steps": 1}
        try:
            # What is not allowed is refused before there is a picture of the size.
            request = parse_request(job)
            return self._engine.plan(request, Image.new("RGB", size), Image.new("L", size, 255))
        except InvalidRequest as error:
            raise StartupError(f"SIZES, MAX_PIXELS: {titles([size])} cannot be served: {error}") from None

    def _make(self, size: Size, plan: Plan) -> None:
        """Compile, and make one picture, with which libraries take what they need."""
        engine = self._engine
        try:
            engine.programs.keep(*self._grid(size), self._slots)
            outcomes = [made.outcome for made in engine.run([plan])]
        except GenerationError as error:
            outcomes = [error]
        for outcome in outcomes:
            if isinstance(outcome, OutOfMemory):
                self.failed[size] = str(outcome)
                log.warning("%s cannot be made: %s", titles([size]), outcome)
            elif isinstance(outcome, GenerationError):
                self.failed[size] = str(outcome)
                raise StartupError(f"{titles([size])} cannot be made: {outcome}")

    def _grow(self, size: Size, slots: int) -> None:
        if size in self.failed:
            return
        try:
            self._engine.programs.prepare(*self._grid(size), [slots], image=False)
        except RuntimeError as error:
            if not isinstance(error, jax.errors.JaxRuntimeError):
                raise
            log.warning("%s: no passes of %d (%s)", titles([size]), slots, reason(error))

    def _grid(self, size: Size) -> tuple[int, int]:
        scale = self._engine.planner.pipeline.scale_factor
        return size[1] // scale, size[0] // scale

    @cached_property
    def _slots(self) -> list[int]:
        return pass_slots(self._engine.planner.settings.max_slots, self._engine.programs.devices)


def _tell(single: Future[None]) -> None:
    if error := single.exception():
        log.error("the warm-up failed behind: %s", error)


def titles(sizes: Iterable[Size]) -> str:
    """Sizes for people."""
    return ", ".join(f"{width}x{height}" for width, height in sizes)
