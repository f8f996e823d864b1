"""`handler.py` as it is, over a toy checkpoint whose programs only pretend to compute: `python -m` this module.

A row of a step table takes ROW_S; pictures of some heights have faults.
"""

import time
from dataclasses import replace
from functools import partial
from typing import Any

import handler

ROW_S = 0.01
COMPILE_S = 3.0
SMALL_MEMORY, NO_MEMORY, BROKEN, NOT_FINITE, COMPILED = 72, 80, 88, 96, 104
"""Heights of pictures: memory for one at a time, for none; a program that fails; one whose values are not finite; one
whose programs take COMPILE_S to compile."""


def _operations(count: int, x: Any) -> Any:
    import jax.numpy as jnp

    for _ in range(count):
        x = jnp.sin(jnp.outer(jnp.ones(7) * x, jnp.ones(9)) @ jnp.ones((9, 5))).sum()
    return x


class StubPrograms:
    """Stands for `worker.engine.programs.Programs`; a picture's grey depends on its first latent, so on its seed."""

    store = None
    devices = 1

    def __init__(self, pipeline: Any):
        self.pipeline = pipeline
        self.compiled: dict[Any, float] = {}
        self.failed: dict[Any, str] = {}

    def is_ready(self, *_: Any, **__: Any) -> bool:
        return True

    def prepare(self, height: int, width: int, slots: Any, *, image: bool) -> None:  # noqa: ARG002
        import jax

        if 8 * height == COMPILED:
            end, operations = time.monotonic() + COMPILE_S, 100
            while time.monotonic() < end:
                jax.jit(partial(_operations, operations))(1.0)
                operations += 1

    def sizes(self, _lane: Any) -> tuple[int, ...]:
        return (1, 2, 4)

    def place(self, slot: Any) -> Any:
        import jax

        return jax.device_put(slot)

    def encode_text(self, _ids: Any, keep: Any) -> Any:
        import numpy as np

        from worker.families.family import TextCondition

        return TextCondition(np.zeros((len(keep), 4, 4), np.float32), None)

    def advance(self, state: Any, *rest: Any) -> Any:
        import jax

        slots, height = len(state.x), 8 * state.x.shape[1]
        if height == NO_MEMORY or (height == SMALL_MEMORY and slots > 1):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes.")
        if height == BROKEN:
            raise RuntimeError("secret: pod-abc-host rpa_SECRET")
        time.sleep(ROW_S * rest[-1])
        return state

    def decode(self, x_BHWC: Any) -> tuple[Any, Any]:
        import numpy as np

        height, width = (8 * side for side in x_BHWC.shape[1:3])
        pixels = np.full((1, height, width, 3), int(1000 * abs(float(x_BHWC[0, 0, 0, 0]))) % 256, np.uint8)
        return pixels, np.array([height != NOT_FINITE])


def main() -> None:
    """Imports stay within, as in `handler.py`: the heartbeat process imports this file too."""
    from worker import runner

    real = runner.JobRunner

    def over_stub(run: Any, settings: Any, send: Any) -> Any:
        service = run.__self__
        programs = StubPrograms(service.engine.programs.pipeline)
        return real(replace(service, engine=replace(service.engine, programs=programs)).run, settings, send)

    runner.JobRunner = over_stub
    handler.main()


if __name__ == "__main__":
    main()
