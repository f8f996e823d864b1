"""The device: a baked model's parameters and programs, and one plan at a time from noise to pictures."""

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import jax
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from worker.diffusion.loop import initial_state
from worker.engine.batch import Distribution, Latents, blend, conditions, start_latents
from worker.engine.memory import is_out_of_memory
from worker.engine.pace import Pace
from worker.engine.plan import Plan, Planner
from worker.engine.programs import Bucket, Programs
from worker.errors import GenerationError, OutOfMemory
from worker.families.family import TextCondition
from worker.request import Request
from worker.weights.manifest import Manifest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Picture:
    """`pixels`: RGB [H, W, 3]."""

    pixels: NDArray[np.uint8]
    seed: int


@dataclass(frozen=True)
class Result:
    """Pictures in the order of their seeds, and seconds by stage; compilation is a stage of its own."""

    pictures: tuple[Picture, ...]
    timings: dict[str, float]


Checkpoint = Callable[[float], None]
"""Told between dispatches which part of a run is done, 0 to 1; raises to end the run."""


def _go_on(_done: float) -> None:
    pass


@dataclass(frozen=True)
class Engine:
    """A loaded model; one thread at a time may run plans, any thread may make them."""

    manifest: Manifest
    planner: Planner
    programs: Programs
    pace: Pace = field(default_factory=Pace)

    def plan(self, request: Request, image: Image.Image | None, mask: Image.Image | None) -> Plan:
        """See `Planner.plan`."""
        return self.planner.plan(request, image, mask)

    def run(self, plan: Plan, checkpoint: Checkpoint = _go_on) -> Result:
        """Make a plan's pictures; raises GenerationError when a value is not finite, OutOfMemory.

        `checkpoint` is called between dispatches, about twice a second, with the part that is done; what it raises
        ends the run.
        """
        most = self.planner.settings.max_slots
        result = self._within_memory(plan, checkpoint, most)
        if result is None and (most := len(next(_batches(plan.seeds, most))) // 2):
            log.warning("out of device memory; once more with passes of %d pictures at most", most)
            result = self._within_memory(plan, checkpoint, most)
        if result is None:
            raise OutOfMemory(
                f"the device's memory does not suffice for {plan.width}x{plan.height}: ask for a smaller picture"
            )
        return result

    def _within_memory(self, plan: Plan, checkpoint: Checkpoint, most: int) -> Result | None:
        """None when the memory does not suffice. Its exception ends here, and with it its hold on arrays."""
        try:
            return self._run(plan, checkpoint, most)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            log.warning("%s", str(error).partition("\n")[0])
            return None

    def _run(self, plan: Plan, checkpoint: Checkpoint, most: int) -> Result:
        model, clock = self.planner.pipeline, _Clock()
        batches = list(_batches(plan.seeds, most))
        checkpoint(0.0)
        with clock.stage("compile_s"):
            for seeds in batches:
                height, width = plan.height // model.scale_factor, plan.width // model.scale_factor
                self.programs.prepare(Bucket(len(seeds), height, width), image=plan.image is not None)
        checkpoint(0.0)
        with clock.stage("encode_text_s"):
            text = jax.tree.map(np.asarray, self.programs.encode_text(plan.ids, plan.keep))
        with clock.stage("encode_image_s"):
            image, masked = self._encode_images(plan)
        pictures: list[Picture] = []
        for seeds in batches:
            before, share = len(pictures) / len(plan.seeds), len(seeds) / len(plan.seeds)
            with clock.stage("sample_s"):
                latents = [start_latents(plan, model, seed, image, masked) for seed in seeds]
                x = self._sample(plan, text, latents, lambda done, at=before, of=share: checkpoint(at + of * done))
            with clock.stage("decode_s"):
                # One at a time: the decoder's activations are the largest of all.
                for index, seed in enumerate(seeds):
                    checkpoint(before + share)
                    pixels, finite = self.programs.decode(x[index : index + 1])
                    if not finite[0]:
                        raise GenerationError(f"the picture of seed {seed} is not finite; nothing was returned")
                    pictures.append(Picture(np.asarray(pixels[0]), seed))
        return Result(tuple(pictures), clock.seconds)

    def _encode_images(self, plan: Plan) -> tuple[Distribution | None, Distribution | None]:
        """The distributions of the latents of the image and, for a UNet that sees it, of the kept part."""
        if plan.image is None:
            return None, None
        image = masked = None
        if not (self.planner.pipeline.takes_extra and plan.strength == 1):
            image = self._encode_image(plan.image)
        if plan.mask is not None and self.planner.pipeline.takes_extra:
            masked = self._encode_image(plan.image * (plan.mask[..., None] < 0.5))
        return image, masked

    def _encode_image(self, image: NDArray[np.float32]) -> Distribution:
        mean, deviation = self.programs.encode_image(image[None])
        return Distribution(np.asarray(mean[0]), np.asarray(deviation[0]))

    def _sample(
        self, plan: Plan, text: TextCondition, latents: list[Latents], checkpoint: Checkpoint
    ) -> NDArray[np.float32]:
        """Run the whole table, in stretches between which the host waits for the device and can end the run.

        Within a stretch, a dispatch takes as many rows as can share one noise, and the host is ahead of the device.
        """
        model, slots = self.planner.pipeline, len(latents)
        steering, reference = conditions(plan, model, text, latents), blend(plan, model, latents)
        tables = jax.device_put(np.repeat(plan.table.packed()[None], slots, axis=0))
        lengths = jax.device_put(np.full(slots, len(plan.table), np.int32))
        state = initial_state(jax.device_put(np.stack([latent.x for latent in latents])))
        noise = jax.device_put(np.zeros(state.x.shape, np.float32))
        kind, row = (*state.x.shape[:3], plan.guided), 0
        while row < len(plan.table):
            checkpoint(row / len(plan.table))
            began, first, end = time.perf_counter(), row, min(len(plan.table), row + self.pace.rows(kind))
            while row < end:
                count = min(plan.table.run_length(row), end - row)
                if np.any(plan.table.draws[row : row + count]):
                    noise = jax.device_put(np.stack([latent.draw() for latent in latents]))
                state = self.programs.advance(state, tables, lengths, steering, noise, reference, count)
                row += count
            jax.block_until_ready(state.x)
            self.pace.learn(kind, (time.perf_counter() - began) / (end - first))
        return np.asarray(state.x)


class _Clock:
    """Seconds by stage."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


def _batches(seeds: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    """Cut into runs of 1, 2, 4, ... so that few programs serve any number of pictures."""
    position = 0
    while position < len(seeds):
        size = 1
        while size * 2 <= min(most, len(seeds) - position):
            size *= 2
        yield seeds[position : position + size]
        position += size
