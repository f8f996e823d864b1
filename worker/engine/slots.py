"""A slot: all that one picture holds between two steps, as arrays, and many of them side by side for a pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from worker.diffusion.loop import Blend, State
from worker.diffusion.noise import NoiseStream
from worker.diffusion.table import HISTORY
from worker.engine.operations import SLOT_AXES, Slot
from worker.engine.plan import Plan
from worker.families.family import TextCondition
from worker.families.latent_diffusion import Conditions, Pipeline

Draw = Callable[[], NDArray[np.float32]]
"""The next noise of a picture's own generator, [h, w, C]."""


def stack(slots: Sequence[Slot], size: int) -> Slot:
    """Side by side, on the host; places that are left over are filled with a picture that has ended."""
    ended = slots[0]._replace(state=slots[0].state._replace(row=slots[0].length))
    filled = [*slots, *[ended] * (size - len(slots))]

    def together(axis: int, *arrays: Any) -> Any:
        return None if arrays[0] is None else np.stack(arrays, axis)

    return jax.tree.map(together, SLOT_AXES, *filled)


def part_state(state: State, index: int) -> State:
    """One picture's part of the state of a pass, as copies on the host."""

    def part(axis: int, array: Any) -> Any:
        return np.take(np.asarray(array), index, axis)

    return jax.tree.map(part, SLOT_AXES.state, state)


@dataclass(frozen=True)
class Distribution:
    """An autoencoder's diagonal normal distribution of a latent, [h, w, C] each."""

    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]

    def sample(self, noise: NDArray[np.float32]) -> NDArray[np.float32]:
        """The latent for one unit noise."""
        return (self.mean + self.deviation * noise).astype(np.float32)


class Encoded(NamedTuple):
    """What a plan's texts and pictures have become, on the host; shared by its pictures.

    `image` and `masked` are the latents of the input picture and, for a UNet that sees it, of its kept part.
    """

    text: TextCondition
    image: Distribution | None
    masked: Distribution | None


def start(plan: Plan, model: Pipeline, encoded: Encoded, seed: int) -> tuple[Slot, Draw]:
    """A picture before its first step, and the noises of its later ones.

    Draws in the order in which diffusers' pipelines draw: image, noise, kept part of the image. A picture has a
    generator of its own, so that it does not depend on its batch.
    """
    shape = (model.latent_channels, plan.height // model.scale_factor, plan.width // model.scale_factor)
    stream = NoiseStream(seed)

    def draw() -> NDArray[np.float32]:
        return np.moveaxis(stream.normal(shape), 0, -1)

    nothing = np.zeros((*shape[1:], shape[0]), np.float32)
    image = nothing if encoded.image is None else encoded.image.sample(draw())
    noise = draw()
    masked = nothing
    if plan.mask is not None:
        # Drawn by every in-painting pipeline, though only a UNet that sees the kept part uses it.
        masked_noise = draw()
        masked = nothing if encoded.masked is None else encoded.masked.sample(masked_noise)
    image_scale, noise_scale = plan.table.init
    x = (image_scale * image + noise_scale * noise).astype(np.float32)
    slot = Slot(
        state=State(
            _host(x), _host(np.zeros_like(x)), _host(np.zeros((HISTORY, *x.shape), x.dtype)), _host(np.int32(0))
        ),
        table=_host(plan.table.packed()),
        length=_host(np.int32(len(plan.table))),
        conditions=_conditions(plan, model, encoded.text, masked),
        blend=Blend(*map(_host, (_blend_mask(plan, model, shape[1:]), image, noise))),
    )
    return slot, draw


def _conditions(plan: Plan, model: Pipeline, text: TextCondition, masked: NDArray[np.float32]) -> Conditions:
    extra = None
    if model.takes_extra and plan.mask is not None:
        extra = _host(np.concatenate([_latent_mask(plan.mask, model), masked], axis=-1))
    return Conditions(
        context=text.context,
        pooled=text.pooled,
        size_ids=None if plan.size_ids is None else _host(plan.size_ids),
        guidance=_host(np.float32(plan.pair_scale)),
        rescale=_host(np.float32(plan.guidance_rescale)),
        embedded=_host(np.float32(plan.guidance_scale)) if model.embeds_guidance else None,
        extra=extra,
    )


def _blend_mask(plan: Plan, model: Pipeline, grid: tuple[int, ...]) -> NDArray[np.float32]:
    """In-painting by an ordinary UNet; ones, which change nothing, for everything else."""
    if plan.mask is not None and not model.takes_extra:
        return _latent_mask(plan.mask, model)
    return np.ones((*grid, 1), np.float32)


def _latent_mask(mask: NDArray[np.bool_], model: Pipeline) -> NDArray[np.float32]:
    """Every latent takes the mask of its first pixel, as PyTorch's nearest interpolation does."""
    return mask[:: model.scale_factor, :: model.scale_factor, None].astype(np.float32)


def _host(array: Any) -> Any:
    # Programs take arrays of the host and of the device alike; their types know only the latter.
    return array
