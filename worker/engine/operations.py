"""What can be compiled for a pipeline: its operations as pure functions, with the shapes of their arguments.

All shapes follow from the size of the picture and the number of pictures in a pass (`Bucket`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from worker.diffusion.loop import Blend, initial_state
from worker.diffusion.table import COLUMNS, MAX_ROWS
from worker.engine.blobs import Key
from worker.families.family import TextCondition
from worker.families.latent_diffusion import Conditions, Pipeline

Specs = tuple[Any, ...]
ParamSpecs = Mapping[str, Mapping[str, Any]]
"""Part -> parameter -> anything with a shape and a dtype."""


class Bucket(NamedTuple):
    """What fixes the shapes of a pass: pictures in it, and their latents' height and width."""

    slots: int
    height: int
    width: int


class Program(NamedTuple):
    """A pure function, the shapes of its arguments, and the arguments that it uses up."""

    key: Key
    function: Callable[..., Any]
    specs: Callable[[], Specs]
    donated: tuple[int, ...] = ()

    def trace(self) -> Any:
        """The shapes of the results; raises what the model's code raises when configurations do not fit."""
        return jax.eval_shape(self.function, *self.specs())

    def compile(self, sharding: Any = None) -> jax.stages.Compiled:
        """Compile for the default device, or for that of a sharding, which may be one that is not here."""
        specs = self.specs()
        if sharding is not None:
            specs = jax.tree.map(partial(_placed, sharding=sharding), specs)
        return jax.jit(self.function, donate_argnums=self.donated).lower(*specs).compile()


@dataclass(frozen=True)
class Operations:
    """The programs of a pipeline whose parameters are `params`; weights are always arguments, never constants.

    `text_lengths`: token ids of a text, by tokeniser.
    """

    pipeline: Pipeline
    params: ParamSpecs
    text_lengths: tuple[int, ...]

    def all(self, bucket: Bucket, *, image: bool) -> list[Program]:
        """All that a bucket needs, with and without guidance; `image` adds the encoder of input images."""
        guided = (False, True) if self.pipeline.takes_pairs else (False,)
        needed = [self.text(1 + int(both)) for both in guided]
        needed += [self.advance(bucket, guided=both) for both in guided]
        return needed + [self.decode(bucket)] + ([self.encode(bucket)] if image else [])

    def text(self, rows: int) -> Program:
        """See `Pipeline.encode_text`."""
        return Program(("encode_text", rows), self.pipeline.encode_text, partial(self._text_specs, rows))

    def encode(self, bucket: Bucket) -> Program:
        """See `Pipeline.encode_image`; one picture."""
        size = [side * self.pipeline.scale_factor for side in bucket[1:]]
        return Program(
            ("encode_image", *size),
            self.pipeline.encode_image,
            lambda: (self._params("vae"), _spec(1, *size, 3)),
        )

    def decode(self, bucket: Bucket) -> Program:
        """See `Pipeline.decode`; one picture."""
        return Program(
            ("decode", *bucket[1:]),
            self.pipeline.decode,
            lambda: (self._params("vae"), _spec(1, *bucket[1:], self.pipeline.latent_channels)),
        )

    def advance(self, bucket: Bucket, *, guided: bool) -> Program:
        """See `Pipeline.advance`. The state is donated: its buffers become the new state's."""
        specs = partial(self._advance_specs, bucket, guided=guided)
        return Program(("advance", *bucket, guided), self.pipeline.advance, specs, donated=(1,))

    def _text_specs(self, rows: int) -> Specs:
        ids = tuple(_spec(rows, length, dtype=np.int32) for length in self.text_lengths)
        return self._params(*(part.name for part in self.pipeline.family.text_encoders)), ids, _spec(rows)

    def _advance_specs(self, bucket: Bucket, *, guided: bool) -> Specs:
        slots, grid, groups = bucket.slots, bucket[1:], 1 + int(guided)
        x = _spec(*bucket, self.pipeline.latent_channels)
        text = cast(TextCondition, self.text(1).trace())
        conditions = Conditions(
            context=_spec(groups, slots, *text.context.shape[1:]),
            pooled=None if text.pooled is None else _spec(groups, slots, *text.pooled.shape[1:]),
            size_ids=_spec(groups, slots, 6) if self.pipeline.family.size_conditioning else None,
            guidance=_spec(slots),
            rescale=_spec(slots),
            embedded=_spec(slots) if self.pipeline.embeds_guidance else None,
            extra=_spec(slots, *grid, 1 + self.pipeline.latent_channels) if self.pipeline.takes_extra else None,
        )
        state, blend = jax.eval_shape(initial_state, x), Blend(_spec(slots, *grid, 1), x, x)
        tables, lengths = _spec(slots, MAX_ROWS, COLUMNS), _spec(slots, dtype=np.int32)
        network = self._params(self.pipeline.family.denoiser)
        return network, state, tables, lengths, conditions, x, blend, _spec(dtype=np.int32)

    def _params(self, *parts: str) -> Any:
        return {
            part: {name: _spec(*array.shape, dtype=array.dtype) for name, array in self.params[part].items()}
            for part in parts
        }


def _spec(*shape: int, dtype: Any = np.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _placed(spec: Any, sharding: Any) -> Any:
    return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)
