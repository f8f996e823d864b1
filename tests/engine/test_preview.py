"""Small pictures of latents, without the decoder."""

import numpy as np
import pytest

from tests.engine.test_engine import JOB
from tests.engine.test_run import Slowest, with_engine
from worker.engine.preview import LatentColours
from worker.request import parse_request


def linear_pair(channels: int, size: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A latent, and the picture of an autoencoder that is linear in it, of patches of 8x8."""
    mix = np.random.default_rng(0).uniform(-20, 20, (channels, 3))
    latent = np.random.default_rng(seed).standard_normal((*size, channels), np.float32)
    colours = np.clip(np.rint(latent @ mix + 128), 0, 255).astype(np.uint8)
    return latent, colours.repeat(8, axis=0).repeat(8, axis=1)


@pytest.mark.parametrize("channels", [4, 16])
def test_what_is_linear_is_shown_as_it_is(channels):
    colours = LatentColours()
    latent, picture = linear_pair(channels, (40, 24), 1)
    assert colours.show(latent) is None
    colours.learn(latent, picture)
    latent, picture = linear_pair(channels, (13, 9), 2)
    found = colours.show(latent)
    assert found is not None
    assert found.dtype == np.uint8
    assert np.abs(found - picture[::8, ::8].astype(int)).mean() < 8


@pytest.mark.xdist_group("sd1")
def test_a_run_shows_its_picture_ever_more_clearly(toy):
    """Toy weights are random, so that the last preview stands for the picture."""
    engine = with_engine(toy("sd1").service, pace=Slowest()).engine
    plan = engine.plan(parse_request(JOB | {"num_inference_steps": 12, "scheduler": "DDIM"}), None, None)
    (first,) = engine.run([plan], lambda _done, preview: preview() is None or pytest.fail("nothing was decoded yet"))
    seen: list[np.ndarray] = []

    def keep(_done: float, preview: object) -> None:
        assert callable(preview)
        if (picture := preview()) is not None:
            seen.append(picture)

    (again,) = engine.run([plan], keep)
    assert np.array_equal(first.outcome.pixels, again.outcome.pixels)
    assert len(seen) == 11
    differences = [np.abs(np.subtract(picture, seen[-1], dtype=int)).mean() for picture in seen]
    assert differences[0] > 2 * differences[-3] > 0
