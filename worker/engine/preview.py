"""What a latent looks like without the decoder: a linear map from latent to RGB, learnt from what was decoded."""

from threading import Lock

import numpy as np
from numpy.typing import NDArray

_RIDGE = 1e-3
_MOST = 1024
"""Latents of one picture that are learnt from: more tell nothing new."""


class LatentColours:
    """Least squares over all (latent, colour) pairs of the pictures so far; several threads may use one.

    An autoencoder's latent channels are close to linear in the colour of the patch that they stand for, so that a few
    pictures suffice, whichever autoencoder it is.
    """

    def __init__(self):
        self._lock = Lock()
        self._squares: NDArray[np.float64] | None = None
        self._products: NDArray[np.float64] | None = None

    def learn(self, latent: NDArray[np.float32], pixels: NDArray[np.uint8]) -> None:
        """A latent [h, w, C] and its picture [H, W, 3]."""
        height, width, channels = latent.shape
        patches = pixels.reshape(height, pixels.shape[0] // height, width, pixels.shape[1] // width, 3)
        colours = patches.mean(axis=(1, 3), dtype=np.float64).reshape(-1, 3)
        step = -(-len(colours) // _MOST)
        terms, colours = _with_one(latent)[::step], colours[::step]
        with self._lock:
            if self._squares is None or self._products is None:
                self._squares, self._products = _RIDGE * np.eye(channels + 1), np.zeros((channels + 1, 3))
            self._squares += terms.T @ terms
            self._products += terms.T @ colours

    def show(self, latent: NDArray[np.float32]) -> NDArray[np.uint8] | None:
        """A latent [h, w, C] as a small picture [h, w, 3]; None before anything was learnt."""
        with self._lock:
            if self._squares is None or self._products is None:
                return None
            weights = np.linalg.solve(self._squares, self._products)
        colours = _with_one(latent) @ weights
        return np.clip(np.rint(colours), 0, 255).astype(np.uint8).reshape(*latent.shape[:2], 3)


def _with_one(latent: NDArray[np.float32]) -> NDArray[np.float64]:
    flat = latent.reshape(-1, latent.shape[-1]).astype(np.float64)
    return np.concatenate([flat, np.ones((len(flat), 1))], axis=1)
