"""Compiled programs: one executable per operation and shape bucket, compiled when first needed and counted."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from worker.diffusion.loop import Blend, State
from worker.families.family import TextCondition
from worker.families.latent_diffusion import Conditions, Params, Pipeline

log = logging.getLogger(__name__)

Key = tuple[str | int | bool, ...]


@dataclass
class Programs:
    """The four operations of a pipeline, callable with host or device arrays.

    Weights are always arguments of an executable, never constants in it. `compiled` holds the seconds that each
    program took to compile.
    """

    pipeline: Pipeline
    params: Params
    compiled: dict[Key, float] = field(default_factory=dict[Key, float])
    _executables: dict[Key, Callable[..., Any]] = field(default_factory=dict[Key, Callable[..., Any]])

    def encode_text(self, ids: tuple[NDArray[np.int32], ...], keep: NDArray[np.float32]) -> TextCondition:
        """See `Pipeline.encode_text`."""
        encoders = {name: self.params[name] for name in self.pipeline.family.text_encoders}
        return self._run(("encode_text", len(keep)), self.pipeline.encode_text, (), encoders, ids, keep)

    def encode_image(self, image_BHWC: NDArray[np.float32]) -> tuple[Array, Array]:
        """See `Pipeline.encode_image`."""
        key = ("encode_image", *image_BHWC.shape[:3])
        return self._run(key, self.pipeline.encode_image, (), {"vae": self.params["vae"]}, image_BHWC)

    def advance(
        self,
        state: State,
        tables: NDArray[np.float32] | Array,
        lengths: NDArray[np.int32] | Array,
        conditions: Conditions,
        noise: NDArray[np.float32] | Array,
        blend: Blend,
        n_rows: int,
    ) -> State:
        """See `Pipeline.advance`; `state` is used up."""
        slots, height, width, _ = state.x.shape
        key = ("advance", slots, height, width, conditions.context.shape[0] == 2)
        unet = {"unet": self.params["unet"]}
        # The state is donated: its buffers become the new state's.
        return self._run(
            key,
            self.pipeline.advance,
            (1,),
            unet,
            state,
            tables,
            lengths,
            conditions,
            noise,
            blend,
            np.int32(n_rows),
        )

    def decode(self, x_BHWC: NDArray[np.float32] | Array) -> tuple[Array, Array]:
        """See `Pipeline.decode`."""
        key = ("decode", *x_BHWC.shape[:3])
        return self._run(key, self.pipeline.decode, (), {"vae": self.params["vae"]}, x_BHWC)

    def _run(self, key: Key, function: Callable[..., Any], donated: tuple[int, ...], *args: Any) -> Any:
        if key not in self._executables:
            began = time.perf_counter()
            self._executables[key] = jax.jit(function, donate_argnums=donated).lower(*args).compile()
            self.compiled[key] = time.perf_counter() - began
            log.info("compiled %s in %.1f s", "-".join(map(str, key)), self.compiled[key])
        return self._executables[key](*args)
