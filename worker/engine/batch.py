"""What a batch of pictures starts from: the latents, the conditions and the in-painting reference of its slots."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from worker.diffusion.loop import Blend
from worker.diffusion.noise import NoiseStream
from worker.engine.plan import Plan
from worker.families.family import TextCondition
from worker.families.latent_diffusion import Conditions, Pipeline


@dataclass(frozen=True)
class Distribution:
    """An autoencoder's diagonal normal distribution of a latent, [h, w, C] each."""

    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]

    def sample(self, noise: NDArray[np.float32]) -> NDArray[np.float32]:
        """The latent for one unit noise."""
        return (self.mean + self.deviation * noise).astype(np.float32)


@dataclass(frozen=True)
class Latents:
    """What one picture starts from, [h, w, C] each; `draw` goes on with the noises of its steps."""

    x: NDArray[np.float32]
    image: NDArray[np.float32]
    noise: NDArray[np.float32]
    masked: NDArray[np.float32]
    draw: Callable[[], NDArray[np.float32]]


def start_latents(
    plan: Plan, model: Pipeline, seed: int, image: Distribution | None, masked: Distribution | None
) -> Latents:
    """Draw in the order in which diffusers' pipelines draw: image, noise, kept part of the image.

    A picture has a generator of its own, so that it does not depend on the others of its batch.
    """
    shape = (model.latent_channels, plan.height // model.scale_factor, plan.width // model.scale_factor)
    stream = NoiseStream(seed)

    def draw() -> NDArray[np.float32]:
        return np.moveaxis(stream.normal(shape), 0, -1)

    nothing = np.zeros((*shape[1:], shape[0]), np.float32)
    image_latent = nothing if image is None else image.sample(draw())
    noise = draw()
    masked_latent = nothing
    if plan.mask is not None:
        # Drawn by every in-painting pipeline, though only a UNet that sees the kept part uses it.
        masked_noise = draw()
        masked_latent = nothing if masked is None else masked.sample(masked_noise)
    image_scale, noise_scale = plan.table.init
    x = (image_scale * image_latent + noise_scale * noise).astype(np.float32)
    return Latents(x, image_latent, noise, masked_latent, draw)


def conditions(plan: Plan, model: Pipeline, text: TextCondition, latents: list[Latents]) -> Conditions:
    """The plan's conditions for every slot of a batch, on the device."""
    slots = len(latents)

    def spread(rows: NDArray[np.float32]) -> Array:
        return jax.device_put(np.repeat(rows[:, None], slots, axis=1))

    extra = None
    if model.takes_extra and plan.mask is not None:
        mask = _latent_mask(plan.mask, model)
        extra = jax.device_put(np.stack([np.concatenate([mask, latent.masked], axis=-1) for latent in latents]))
    return Conditions(
        context=spread(np.asarray(text.context)),
        pooled=None if text.pooled is None else spread(np.asarray(text.pooled)),
        size_ids=None if plan.size_ids is None else spread(plan.size_ids),
        guidance=jax.device_put(np.full(slots, plan.guidance_scale, np.float32)),
        rescale=jax.device_put(np.full(slots, plan.guidance_rescale, np.float32)),
        extra=extra,
    )


def blend(plan: Plan, model: Pipeline, latents: list[Latents]) -> Blend:
    """In-painting by an ordinary UNet; a mask of ones, which changes nothing, for everything else."""
    images = np.stack([latent.image for latent in latents])
    mask = np.ones((*images.shape[:3], 1), np.float32)
    if plan.mask is not None and not model.takes_extra:
        mask *= _latent_mask(plan.mask, model)
    noises = np.stack([latent.noise for latent in latents])
    return Blend(jax.device_put(mask), jax.device_put(images), jax.device_put(noises))


def _latent_mask(mask: NDArray[np.float32], model: Pipeline) -> NDArray[np.float32]:
    """Every latent takes the mask of its first pixel, as PyTorch's nearest interpolation does."""
    return mask[:: model.scale_factor, :: model.scale_factor, None]
