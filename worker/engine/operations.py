"""What can be compiled for a pipeline: its operations as pure functions, with the shapes of their arguments.

All shapes follow from the size of the picture and the number of pictures in a pass (`Bucket`). A pass may be spread
over several devices: each has the whole network and carries its share of the places, and none waits for another.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from worker.diffusion.loop import Blend, State, initial_state
from worker.diffusion.table import COLUMNS, MAX_ROWS
from worker.engine.blobs import Key
from worker.families.family import TextCondition
from worker.families.latent_diffusion import Conditions, Pipeline

Specs = tuple[Any, ...]
ParamSpecs = Mapping[str, Mapping[str, Any]]
"""Part -> parameter -> anything with a shape and a dtype."""

_SPREAD = "slots"
"""The mesh's one axis."""


class Bucket(NamedTuple):
    """What fixes the shapes of a pass: pictures in it, and their latents' height and width."""

    slots: int
    height: int
    width: int


class Slot(NamedTuple):
    """The arguments of `Pipeline.advance` for one picture (without their S axis), or for a pass (with it)."""

    state: State
    table: Float[Array, "*S R K"]
    length: Int[Array, "*S"]
    conditions: Conditions
    blend: Blend


def _axes(kind: Any, **axes: Any) -> Any:
    return kind(**axes)


SLOT_AXES: Slot = _axes(
    Slot,
    state=_axes(State, x=0, saved=0, history=1, row=0),
    table=0,
    length=0,
    conditions=_axes(Conditions, context=1, pooled=1, size_ids=1, guidance=0, rescale=0, embedded=0, extra=0),
    blend=_axes(Blend, mask=0, image=0, noise=0),
)
"""Where the S axis stands in each array."""


class Program(NamedTuple):
    """A pure function, the shapes of its arguments, the arguments that it uses up, and where it runs if spread."""

    key: Key
    function: Callable[..., Any]
    specs: Callable[[], Specs]
    donated: tuple[int, ...] = ()
    mesh: Mesh | None = None

    def trace(self) -> Any:
        """The shapes of the results; raises what the model's code raises when configurations do not fit."""
        return jax.eval_shape(self.function, *self.specs())

    def compile(self, sharding: Any = None) -> jax.stages.Compiled:
        """Compile for the devices it is spread over, else for that of a sharding, which may be one that is not here.

        Without either it is for the default device.
        """
        function, specs = self.function, self.specs()
        if self.mesh is not None:
            function, specs = _spread(function, self.mesh), _placed(specs, _shardings(self.mesh))
        elif sharding is not None:
            specs = _placed(specs, sharding)
        return jax.jit(function, donate_argnums=self.donated).lower(*specs).compile()


@dataclass(frozen=True)
class Operations:
    """The programs of a pipeline whose parameters are `params`; weights are always arguments, never constants.

    `text_lengths`: token ids of a text, by tokeniser. `mesh`: the devices that share a pass where there are several.
    """

    pipeline: Pipeline
    params: ParamSpecs
    text_lengths: tuple[int, ...]
    mesh: Mesh | None = None

    @property
    def devices(self) -> int:
        """How many devices share a pass of at least so many pictures."""
        return 1 if self.mesh is None else self.mesh.size

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
        specs, mesh = partial(self._advance_specs, bucket, guided=guided), self.mesh_of(bucket.slots)
        key = ("advance", *bucket, guided) + (() if mesh is None else (mesh.size,))
        return Program(key, self.pipeline.advance, specs, donated=(1,), mesh=mesh)

    def mesh_of(self, slots: int) -> Mesh | None:
        """The devices over which a pass is spread; None for one that is too small for all of them."""
        return None if slots % self.devices else self.mesh

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


def mesh_over(devices: Sequence[Any]) -> Mesh | None:
    """A row of several devices; None for one."""
    return Mesh(np.array(devices), (_SPREAD,)) if len(devices) > 1 else None


def slot_shardings(mesh: Mesh) -> Slot:
    """Where the arrays of a pass lie that is spread."""
    return jax.tree.map(partial(NamedSharding, mesh), _slot_partitions())


def _slot_partitions() -> Slot:
    def partition(axis: int) -> PartitionSpec:
        return PartitionSpec(*[None] * axis, _SPREAD)

    return jax.tree.map(partition, SLOT_AXES)


def _partitions() -> tuple[Any, ...]:
    """Of the arguments of `Pipeline.advance`: parameters and the number of rows are the same everywhere."""
    slot = _slot_partitions()
    whole = PartitionSpec()
    return whole, slot.state, slot.table, slot.length, slot.conditions, slot.state.x, slot.blend, whole


def _shardings(mesh: Mesh) -> tuple[Any, ...]:
    return jax.tree.map(partial(NamedSharding, mesh), _partitions())


def _spread(function: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """Every device runs the function on its own places: no device asks another for anything."""
    return jax.shard_map(
        function, mesh=mesh, in_specs=_partitions(), out_specs=_slot_partitions().state, check_vma=False
    )


def _spec(*shape: int, dtype: Any = np.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _placed(specs: Any, shardings: Any) -> Any:
    """`shardings` is a prefix of the tree of `specs`."""

    def place(sharding: Any, spec: Any) -> Any:
        return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)

    def place_all(sharding: Any, below: Any) -> Any:
        return jax.tree.map(partial(place, sharding), below)

    return jax.tree.map(place_all, shardings, specs)
