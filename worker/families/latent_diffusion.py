"""Latent diffusion as pure functions of the parameters: text, image to latent, steps, latent to image.

A pipeline is a family's parts bound to the configurations of one checkpoint. Nothing that a request chooses is
static here but the shapes and whether guidance is on; the rest comes as arrays.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt8

from worker.diffusion.loop import Blend, State, advance, one_row
from worker.families.family import Family, TextCondition
from worker.nn.kernels import Kernels

if TYPE_CHECKING:
    from worker.nn.functional import Functional

Params = dict[str, dict[str, Array]]


class Conditions(NamedTuple):
    """All that steers the samples of a batch of S slots.

    The leading axis G is 2 with guidance (negative, positive) and 1 without. `guidance` is the scale per slot,
    `rescale` the strength of the correction of its overexposure; `embedded` the scale that the network itself is told.
    `size_ids` are original height and width, crop top and left, target height and width. `extra` are the mask and the
    masked image's latent of nine-channel models.
    """

    context: Float[Array, "G S L D"]
    pooled: Float[Array, "G S P"] | None
    size_ids: Float[Array, "G S 6"] | None
    guidance: Float[Array, " S"]
    rescale: Float[Array, " S"]
    embedded: Float[Array, " S"] | None
    extra: Float[Array, "S H W 5"] | None


@dataclass(frozen=True)
class Pipeline:
    """`family` bound to the parsed configurations of its parts, by part name; `scaled` names those in 8 bits."""

    family: Family
    configs: Mapping[str, Any]
    kernels: Kernels
    scaled: frozenset[str] = frozenset()

    @cached_property
    def parts(self) -> "dict[str, Functional]":
        """Part name -> parameter shapes and pure function."""
        # It brings Flax, which a worker whose programs are stored never needs.
        from worker.nn.functional import functional

        return {
            part.name: functional(part.build(self.configs[part.name], self.kernels), scaled=part.name in self.scaled)
            for part in self.family.parts
        }

    @property
    def shapes(self) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
        """Part name -> parameter -> shape."""
        return {name: part.shapes for name, part in self.parts.items()}

    @property
    def latent_channels(self) -> int:
        """Channels of a latent."""
        return self.configs["vae"].latent_channels

    @property
    def scale_factor(self) -> int:
        """Pixels per latent, along each side."""
        return self.configs["vae"].downscale

    @property
    def scaling_factor(self) -> float:
        """What latents are multiplied with; the family's, where the checkpoint does not say."""
        stated = self.configs["vae"].scaling_factor
        return stated or self.family.default_scaling_factor

    @property
    def denoiser(self) -> Any:
        """The configuration of the part that predicts."""
        return self.configs[self.family.denoiser]

    @property
    def sample_size(self) -> int:
        """Side in pixels of the pictures that the model was trained for."""
        latents = self.denoiser.sample_size or self.family.default_sample_size
        return latents * self.scale_factor if latents else self.configs["vae"].sample_size

    @property
    def size_step(self) -> int:
        """What width and height of a picture are multiples of."""
        return self.scale_factor * self.denoiser.patch_size

    @property
    def takes_extra(self) -> bool:
        """Whether the UNet is an in-painting one: it sees the mask and the masked image besides the latent."""
        return self.denoiser.in_channels == self.latent_channels * 2 + 1

    @property
    def embeds_guidance(self) -> bool:
        """Whether the network takes the guidance scale as an input."""
        return self.denoiser.embeds_guidance

    @property
    def takes_pairs(self) -> bool:
        """Whether there is guidance by pairs of evaluations, with and without the prompt."""
        return self.family.true_guidance or not self.embeds_guidance

    def sequence(self, width: int, height: int) -> int:
        """Tokens of a picture of so many pixels, where the network reads one as a sequence."""
        return (width // self.size_step) * (height // self.size_step)

    def encode_text(
        self, params: Params, ids: tuple[Int[Array, "B L"], ...], keep: Float[Array, " B"]
    ) -> TextCondition:
        """Token ids, one array per tokeniser -> context and pooled; rows whose `keep` is 0 become zeros."""
        outputs = tuple(
            self.parts[part.name].apply(params[part.name], tokens)
            for part, tokens in zip(self.family.text_encoders, ids, strict=True)
        )
        condition = self.family.compose_text(outputs)
        return TextCondition(
            condition.context.astype(jnp.float32) * keep[:, None, None],
            None if condition.pooled is None else condition.pooled.astype(jnp.float32) * keep[:, None],
        )

    def encode_image(
        self, params: Params, image_BHWC: Float[Array, "B H W 3"]
    ) -> tuple[Float[Array, "B h w C"], Float[Array, "B h w C"]]:
        """Pixels in -1..1 -> mean and standard deviation of the scaled latent's distribution."""
        config = self.configs["vae"]
        image_BHWC = image_BHWC.astype(_dtype(params["vae"]))
        mean, log_variance = self.parts["vae"].apply(params["vae"], image_BHWC, method="encode")
        mean, log_variance = mean.astype(jnp.float32), log_variance.astype(jnp.float32)
        scale = self.scaling_factor
        return (mean - config.shift_factor) * scale, jnp.exp(0.5 * log_variance) * scale

    def decode(
        self, params: Params, x_BHWC: Float[Array, "B h w C"]
    ) -> tuple[UInt8[Array, "B H W 3"], Bool[Array, " B"]]:
        """Scaled latent -> 8-bit picture, and whether every value before the 8 bits was finite."""
        config = self.configs["vae"]
        x_BHWC = x_BHWC / self.scaling_factor + config.shift_factor
        image_BHWC = self.parts["vae"].apply(params["vae"], x_BHWC.astype(_dtype(params["vae"])), method="decode")
        image_BHWC = image_BHWC.astype(jnp.float32)
        finite = jnp.all(jnp.isfinite(image_BHWC), axis=(1, 2, 3))
        levels = jnp.round(jnp.clip(image_BHWC / 2 + 0.5, 0, 1) * 255)
        return levels.astype(jnp.uint8), finite

    def advance(
        self,
        params: Params,
        state: State,
        tables: Float[Array, "S R K"],
        lengths: Int[Array, " S"],
        conditions: Conditions,
        noise: Float[Array, "S H W C"],
        blend: Blend,
        n_rows: Int[Array, ""],
    ) -> State:
        """Run up to `n_rows` rows of every slot's step table, or one (see `diffusion.loop`, `Kernels.loop`)."""

        def evaluate(x_SHWC: Float[Array, "S H W C"], time_S: Float[Array, " S"]) -> Float[Array, "S H W C"]:
            return self._predict(params, conditions, x_SHWC, time_S)

        if self.kernels.loop == "host":
            return one_row(evaluate, state, tables, lengths, noise, blend)
        return advance(evaluate, state, tables, lengths, noise, blend, n_rows)

    def _predict(
        self,
        params: Params,
        conditions: Conditions,
        x_SHWC: Float[Array, "S H W C"],
        time_S: Float[Array, " S"],
    ) -> Float[Array, "S H W C"]:
        """The network's output with classifier-free guidance (Ho & Salimans 2022, arXiv 2207.12598)."""
        network = self.family.denoiser
        dtype = _dtype(params[network])
        groups = conditions.context.shape[0]
        if conditions.extra is not None:
            x_SHWC = jnp.concatenate([x_SHWC, conditions.extra], axis=-1)
        known: dict[str, Array] = {}
        if conditions.pooled is not None:
            known["pooled_BP"] = _merge(conditions.pooled).astype(dtype)
        if conditions.size_ids is not None:
            known["size_ids_BI"] = _merge(conditions.size_ids)
        if conditions.embedded is not None:
            known["guidance_B"] = jnp.tile(conditions.embedded, groups)
        output = (
            self.parts[network]
            .apply(
                params[network],
                jnp.tile(x_SHWC, (groups, 1, 1, 1)).astype(dtype),
                jnp.tile(time_S, groups),
                _merge(conditions.context).astype(dtype),
                **known,
            )
            .astype(jnp.float32)
        )
        if groups == 1:
            return output
        negative, positive = jnp.split(output, 2)
        return _guide(negative, positive, conditions.guidance, conditions.rescale)


def _guide(
    negative: Float[Array, "S H W C"],
    positive: Float[Array, "S H W C"],
    scale: Float[Array, " S"],
    rescale: Float[Array, " S"],
) -> Float[Array, "S H W C"]:
    """Guidance, its deviation pulled towards the positive output's (Lin et al. 2023, arXiv 2305.08891, 3.4)."""
    scale, rescale = scale[:, None, None, None], rescale[:, None, None, None]
    guided = negative + scale * (positive - negative)
    axes = (1, 2, 3)
    ratio = positive.std(axis=axes, keepdims=True) / guided.std(axis=axes, keepdims=True)
    return jnp.where(rescale > 0, rescale * guided * ratio + (1 - rescale) * guided, guided)


def _merge(array: Array) -> Array:
    return array.reshape(-1, *array.shape[2:])


def _dtype(params: Mapping[str, Array]) -> jnp.dtype:
    """What is computed in: 8 bits are for storage alone."""
    return next(array.dtype for array in params.values() if array.dtype.itemsize > 1)


def pipeline(
    family: Family,
    configs: Mapping[str, Mapping[str, Any]],
    kernels: Kernels,
    scaled: frozenset[str] = frozenset(),
) -> Pipeline:
    """Parse a checkpoint's part configurations (`config.json` each); raises CheckpointError for an unhandled option."""
    return Pipeline(family, {part.name: part.parse(configs[part.name]) for part in family.parts}, kernels, scaled)


__all__ = ["Conditions", "Params", "Pipeline", "pipeline"]
