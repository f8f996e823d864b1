"""An engine without a device, for what surrounds it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from tests.jobs import photograph
from worker.engine.clock import Clock
from worker.engine.engine import Engine, Made, Picture
from worker.errors import GenerationError
from worker.request import Request


@dataclass(frozen=True)
class FakePlan:
    prompt: str
    seeds: tuple[int, ...]
    width: int = 72
    height: int = 104
    steps: int = 20
    guidance_scale: float = 7.5
    true_cfg_scale: float | None = None
    scheduler: str = "DPMSolverMultistepScheduler"
    scheduler_options: Mapping[str, Any] = field(default_factory=lambda: {"use_karras_sigmas": True})
    strength: float | None = None
    warnings: tuple[str, ...] = ()


class FakeEngine:
    """Makes a picture of its own for every seed, the last of a plan first, and remembers what it has made.

    `faults`: what goes wrong, by prompt. A picture's error is an outcome; anything else ends the run.
    """

    manifest = SimpleNamespace(source="toy", revision="0" * 40, family="stable-diffusion")

    def __init__(self, faults: Mapping[str, Exception] | None = None):
        self.faults = faults or {}
        self.made: list[tuple[str, int]] = []

    def plan(self, request: Request, *_: object) -> FakePlan:
        assert request.seed is not None
        return FakePlan(request.prompt, tuple(range(request.seed, request.seed + request.num_images)))

    def run(self, plans: Sequence[FakePlan], checkpoint: Any, _clock: Clock) -> Iterator[Made]:
        for number, plan in enumerate(plans):
            for index, seed in reversed(list(enumerate(plan.seeds))):
                checkpoint(0.5, lambda: np.zeros((13, 9, 3), np.uint8))
                yield Made(number, index, self._picture(plan, seed))

    def _picture(self, plan: FakePlan, seed: int) -> Picture | GenerationError:
        fault = self.faults.get(plan.prompt)
        if isinstance(fault, GenerationError):
            return fault
        if fault is not None:
            raise fault
        self.made.append((plan.prompt, seed))
        return Picture(np.asarray(photograph(plan.width, plan.height, seed)), seed)

    @property
    def as_engine(self) -> Engine:
        """In the eyes of a type checker."""
        return cast(Engine, self)
