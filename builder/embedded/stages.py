"""The stages of latent diffusion (arXiv 2112.10752): autoencoder, text encoder and UNet on its latents, decoder."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from builder.embedded.captions import choose
from builder.embedded.data import DataSet
from builder.embedded.networks import networks
from builder.embedded.recipe import AUTOENCODER_STAGE, DECODER_STAGE, DENOISER_STAGE, KL_WEIGHT, NOISY_TIMES, SCHEDULER
from builder.embedded.training import Task, Weights
from worker.diffusion.config import Options
from worker.diffusion.schedules import alphas_cumprod
from worker.text.clip import ClipTokenizer

SHIFT = 3
"""Pixels by which the autoencoder's pictures are moved at most."""
ENCODING = ("encoder.", "quant_conv.")
"""Parameters of the autoencoder that the latents depend on."""
DECODED_NOISE = 0.05
PASS = 32
"""Pictures through the autoencoder at once."""


def autoencoder_task(data: DataSet) -> Task:
    """Reconstruct pictures, moved a little and mirrored; the latent stays near a normal distribution."""
    apply = networks()["vae"].apply

    def batch(random: np.random.Generator) -> NDArray[np.uint8]:
        picked, _ = choose(data, AUTOENCODER_STAGE.batch, random)
        return np.stack([moved(data.pictures[i], random) for i in picked])

    def loss(weights: Weights, pictures: Array, key: Array) -> Array:
        x_BHWC = _pixels(pictures)
        mean, log_variance = apply(weights["vae"], x_BHWC, method="encode")
        latent = mean + jnp.exp(0.5 * log_variance) * jax.random.normal(key, mean.shape)
        error = apply(weights["vae"], latent, method="decode") - x_BHWC
        divergence = 0.5 * jnp.mean(jnp.square(mean) + jnp.exp(log_variance) - 1 - log_variance)
        return _distance(error) + KL_WEIGHT * divergence

    return Task(AUTOENCODER_STAGE, batch, loss)


def decoder_task(data: DataSet, autoencoder: dict[str, Array]) -> Task:
    """Reconstruct pictures from the latents of an encoder that stays as it is; trains the part "decoder"."""
    apply = networks()["vae"].apply
    encoder = {name: array for name, array in autoencoder.items() if name.startswith(ENCODING)}

    def batch(random: np.random.Generator) -> NDArray[np.uint8]:
        picked, _ = choose(data, DECODER_STAGE.batch, random)
        return data.pictures[picked]

    def loss(weights: Weights, pictures: Array, key: Array) -> Array:
        x_BHWC = _pixels(pictures)
        whole = encoder | weights["decoder"]
        mean, _ = apply(whole, x_BHWC, method="encode")
        # What the UNet makes is never quite a latent of a picture.
        latent = mean + DECODED_NOISE * jax.random.normal(key, mean.shape)
        return _distance(apply(whole, latent, method="decode") - x_BHWC)

    return Task(DECODER_STAGE, batch, loss)


def _distance(error: Array) -> Array:
    return jnp.mean(jnp.abs(error)) + jnp.mean(jnp.square(error))


def moved(picture: NDArray[np.uint8], random: np.random.Generator) -> NDArray[np.uint8]:
    """Shift by up to `SHIFT` pixels over white, mirror half of the time."""
    side = picture.shape[0]
    padded = np.pad(picture, ((SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)), constant_values=255)
    top, left = random.integers(2 * SHIFT + 1, size=2)
    cut = padded[top : top + side, left : left + side]
    return cut[:, ::-1] if random.random() < 0.5 else cut


def denoiser_task(data: DataSet, latents: Float[np.ndarray, "N H W C"], tokenizer: ClipTokenizer) -> Task:
    """Predict the velocity (arXiv 2202.00512) of scaled latents under the scheduler's noise, told the caption."""
    parts = networks()
    training = ("num_train_timesteps", "beta_start", "beta_end", "beta_schedule")
    alphas_T = alphas_cumprod(Options(**{name: SCHEDULER[name] for name in training}))
    signal_T, noise_T = np.sqrt(alphas_T).astype(np.float32), np.sqrt(1 - alphas_T).astype(np.float32)
    size = DENOISER_STAGE.batch

    def batch(random: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        picked, captions = choose(data, size, random)
        return latents[picked], tokenizer(captions).ids

    def loss(weights: Weights, batch: tuple[Array, Array], key: Array) -> Array:
        x_BHWC, ids_BL = batch
        for_time, for_noise = jax.random.split(key)
        # Times are spread evenly over each batch, which calms the gradient (arXiv 2107.00630, appendix I.1).
        share = (jnp.arange(size) / size + jax.random.uniform(for_time)) % 1
        time_B = jnp.floor(share**NOISY_TIMES * len(signal_T)).astype(jnp.int32)
        signal, sigma = (jnp.asarray(table)[time_B][:, None, None, None] for table in (signal_T, noise_T))
        noise = jax.random.normal(for_noise, x_BHWC.shape)
        context = parts["text_encoder"].apply(weights["text_encoder"], ids_BL).last
        velocity = parts["unet"].apply(
            weights["unet"], signal * x_BHWC + sigma * noise, time_B.astype(jnp.float32), context
        )
        return jnp.mean(jnp.square(velocity - (signal * noise - sigma * x_BHWC)))

    return Task(DENOISER_STAGE, batch, loss)


def encode(weights: dict[str, Array], pictures: NDArray[np.uint8]) -> Float[np.ndarray, "N H W C"]:
    """Means of the pictures' latents, not scaled."""
    apply = networks()["vae"].apply

    def mean(weights: dict[str, Array], pictures: Array) -> Array:
        return apply(weights, _pixels(pictures), method="encode")[0]

    return _in_passes(partial(jax.jit(mean), weights), pictures)


def decode(weights: dict[str, Array], latents: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Pictures of latents that are not scaled."""
    apply = networks()["vae"].apply

    def picture(weights: dict[str, Array], latent: Array) -> Array:
        image = apply(weights, latent, method="decode")
        return jnp.round(jnp.clip(image / 2 + 0.5, 0, 1) * 255).astype(jnp.uint8)

    return _in_passes(partial(jax.jit(picture), weights), latents)


def scaling_factor(latents: NDArray[np.float32]) -> float:
    """What gives latents unit size, rounded as it is written down."""
    return round(1 / float(np.sqrt(np.mean(np.square(latents)))), 5)


def _pixels(pictures: Array) -> Array:
    return pictures.astype(jnp.float32) / 127.5 - 1


def _in_passes(apply: Any, inputs: NDArray[Any]) -> NDArray[Any]:
    def results() -> Iterator[NDArray[Any]]:
        for begin in range(0, len(inputs), PASS):
            piece = inputs[begin : begin + PASS]
            # The last pass is filled up: another shape would be compiled anew.
            filled = np.resize(piece, (PASS, *piece.shape[1:]))
            yield np.asarray(apply(filled))[: len(piece)]

    return np.concatenate(list(results()))
