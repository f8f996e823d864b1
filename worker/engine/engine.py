"""The device: a baked model's parameters and programs, and plans on their way from noise to pictures."""

import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from worker.engine.batcher import Batcher, Glimpse, Sample
from worker.engine.clock import Clock
from worker.engine.memory import is_out_of_memory
from worker.engine.pace import Pace
from worker.engine.plan import Plan, Planner
from worker.engine.preview import LatentColours
from worker.engine.programs import Programs
from worker.engine.slots import Distribution, Encoded, start
from worker.engine.turns import Lane, pass_sizes
from worker.errors import DeviceError, GenerationError, OutOfMemory
from worker.families.latent_diffusion import Pipeline
from worker.request import Request
from worker.weights.manifest import Manifest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Picture:
    """`pixels`: RGB [H, W, 3]."""

    pixels: NDArray[np.uint8]
    seed: int


class Made(NamedTuple):
    """A picture of a plan, both by number, or why it could not be made."""

    plan: int
    picture: int
    outcome: Picture | GenerationError


Preview = Callable[[], NDArray[np.uint8] | None]
"""A small RGB picture of what is under way, one pixel for each latent; None while there is none."""
Checkpoint = Callable[[float, Preview], None]
"""Told between turns, about ten times a second, which part of a run is done, 0 to 1; what it raises ends the run."""


def _go_on(_done: float, _preview: Preview) -> None:
    pass


@dataclass(frozen=True)
class Engine:
    """A loaded model; any thread may plan and run, and the runs of several threads share the device step by step.

    `start` has the seconds in which it was loaded, by part.
    """

    manifest: Manifest
    planner: Planner
    programs: Programs
    pace: Pace = field(default_factory=Pace)
    start: Clock = field(default_factory=Clock)
    _colours: LatentColours = field(init=False, repr=False, default_factory=LatentColours)
    _batcher: Batcher = field(init=False, repr=False)

    def __post_init__(self):
        # Frozen for everyone else.
        batcher = Batcher(self.programs, self.planner.settings.max_slots, self.pace, self.programs.devices)
        object.__setattr__(self, "_batcher", batcher)

    def plan(self, request: Request, image: Image.Image | None, mask: Image.Image | None) -> Plan:
        """See `Planner.plan`."""
        return self.planner.plan(request, image, mask)

    def run(
        self, plans: Sequence[Plan], checkpoint: Checkpoint = _go_on, clock: Clock | None = None
    ) -> Generator[Made]:
        """The pictures of one job's plans, in the order in which they are done.

        `clock` gets the seconds of the stages; compilation is one of its own. Raises GenerationError when it fails.
        """
        clock = clock or Clock()
        try:
            with clock.stage("compile_s"):
                self._prepare(plans, checkpoint)
        except RuntimeError as error:
            raise _fault(error, plans[0]) from error
        began = time.perf_counter()
        courses = [_Course(self.programs, plan, clock) for plan in plans]
        wanted = [(number, index) for number, plan in enumerate(plans) for index in range(len(plan.seeds))]
        samples = [courses[number].sample(index) for number, index in wanted]

        def watch(done: float, glimpse: Glimpse) -> None:
            checkpoint(done, lambda: None if (latent := glimpse()) is None else self._colours.show(latent))

        with closing(self._batcher.sample(samples, watch)) as latents:
            for position, latent in latents:
                number, index = wanted[position]
                with clock.stage("decode_s"):
                    outcome = self._picture(plans[number], index, latent)
                yield Made(number, index, outcome)
        others = sum(clock.seconds.get(name, 0.0) for name in ("wait_s", *_ENCODING, "decode_s"))
        clock.add("sample_s", time.perf_counter() - began - others)

    def _prepare(self, plans: Sequence[Plan], checkpoint: Checkpoint) -> None:
        counts: dict[tuple[Lane, bool], int] = {}
        for plan in plans:
            key = _lane(self.planner.pipeline, plan), plan.image is not None
            counts[key] = counts.get(key, 0) + len(plan.seeds)
        for (lane, image), count in counts.items():
            checkpoint(0.0, lambda: None)
            slots = pass_sizes(count, self._batcher.sizes(lane), self.programs.devices)
            try:
                self.programs.prepare(lane.height, lane.width, slots, image=image)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                # Trying kernels out, as compilers do, needs memory too.
                self.programs.prepare(lane.height, lane.width, [1], image=image)

    def _picture(self, plan: Plan, index: int, latent: NDArray[np.float32] | Exception) -> Picture | GenerationError:
        """Decode; other threads' steps go on while this one waits for the pixels."""
        try:
            if isinstance(latent, Exception):
                raise latent
            pixels, finite = self._decode(latent)
        except RuntimeError as error:
            return _fault(error, plan)
        if not finite:
            return GenerationError(f"the picture of seed {plan.seeds[index]} is not finite; it was not returned")
        self._colours.learn(latent, pixels)
        return Picture(pixels, plan.seeds[index])

    def _decode(self, latent: NDArray[np.float32]) -> tuple[NDArray[np.uint8], bool]:
        # One at a time: the decoder's activations are the largest of all.
        def decode() -> tuple[Any, Any]:
            return self.programs.decode(latent[None])

        try:
            pixels, finite = map(np.asarray, self._batcher.call(decode))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            # Once more with the device to itself.
            pixels, finite = self._batcher.call(lambda: _on_host(decode()))
        return pixels[0], bool(finite[0])


class _Course:
    """A plan on the device: its texts and its picture are encoded once, when the first of its pictures begins."""

    def __init__(self, programs: Programs, plan: Plan, clock: Clock):
        self._programs = programs
        self._plan = plan
        self._clock = clock
        self._made = time.perf_counter()

    def sample(self, index: int) -> Sample:
        plan, model = self._plan, self._programs.pipeline
        return Sample(_lane(model, plan), plan.table, lambda: start(plan, model, self._encoded, plan.seeds[index]))

    @cached_property
    def _encoded(self) -> Encoded:
        self._clock.seconds.setdefault("wait_s", time.perf_counter() - self._made)
        with self._clock.stage(_ENCODING[0]):
            text = _insist(lambda: self._programs.encode_text(self._plan.ids, self._plan.keep))
        with self._clock.stage(_ENCODING[1]):
            return Encoded(text, *self._encode_images())

    def _encode_images(self) -> tuple[Distribution | None, Distribution | None]:
        plan, model = self._plan, self._programs.pipeline
        if plan.image is None:
            return None, None
        pixels = plan.image.astype(np.float32) / np.float32(255) * 2 - 1
        image = masked = None
        if not (model.takes_extra and plan.strength == 1):
            image = self._encode_image(pixels)
        if plan.mask is not None and model.takes_extra:
            masked = self._encode_image(pixels * ~plan.mask[..., None])
        return image, masked

    def _encode_image(self, image: NDArray[np.float32]) -> Distribution:
        mean, deviation = _insist(lambda: self._programs.encode_image(image[None]))
        return Distribution(mean[0], deviation[0])


_ENCODING = ("encode_text_s", "encode_image_s")


def _insist(work: Callable[[], Any]) -> Any:
    """Results on the host; made once more where the memory did not suffice: decoding, beside it, is over by then."""
    try:
        return _on_host(work())
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return _on_host(work())


def _on_host(results: Any) -> Any:
    return jax.tree.map(np.asarray, results)


def _lane(model: Pipeline, plan: Plan) -> Lane:
    return Lane(plan.height // model.scale_factor, plan.width // model.scale_factor, plan.guided)


def _fault(error: RuntimeError, plan: Plan) -> GenerationError:
    """What the device's error means for the job; an error of our own code is raised again."""
    if is_out_of_memory(error):
        size = f"{plan.width}x{plan.height}"
        return OutOfMemory(f"the device's memory does not suffice for {size}: ask for a smaller picture")
    if isinstance(error, jax.errors.JaxRuntimeError):
        log.error("the device failed", exc_info=error)
        return DeviceError("the device failed; the worker's log has its cause")
    raise error
