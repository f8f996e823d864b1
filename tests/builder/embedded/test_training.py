import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from builder.embedded.recipe import Stage
from builder.embedded.training import Task, first_state, learning_rate, load_state, save_state, train
from worker.errors import BuildError

STAGE = Stage(
    steps=120, batch=8, learning_rate=0.1, warm_up=5, decay=60, weight_decay=0.0, ema_decay=0.9, clip_norm=1.0
)
TARGET = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32)


def line():
    """Fit a matrix to noisy products."""

    def loss(weights, x, key):
        y = x @ TARGET + 0.01 * jax.random.normal(key, x.shape)
        return jnp.mean(jnp.square(x @ weights["part"]["matrix"] - y))

    return Task(STAGE, lambda random: random.standard_normal((8, 2), np.float32), loss)


def beginning():
    return first_state(STAGE, {"part": {"matrix": jnp.zeros((2, 2)), "bias": jnp.zeros(2)}})


def test_it_learns(tmp_path):
    state = train(line(), beginning(), tmp_path / "state.npz", np.inf)
    np.testing.assert_allclose(state.average["part"]["matrix"], TARGET, atol=0.1)
    assert int(state.step) == STAGE.steps


def test_an_interrupted_run_ends_where_the_whole_one_does(tmp_path, monkeypatch):
    whole = train(line(), beginning(), tmp_path / "whole.npz", np.inf)
    clock = iter(range(10_000))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    path = tmp_path / "part.npz"
    stopped = train(line(), beginning(), path, 40)
    assert 0 < int(stopped.step) < STAGE.steps
    resumed = train(line(), load_state(path, beginning()), path, np.inf)
    for ours, expected in zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    save_state(tmp_path / "state.npz", beginning())
    other = first_state(STAGE, {"part": {"matrix": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}})
    with pytest.raises(BuildError, match="another recipe"):
        load_state(tmp_path / "state.npz", other)


def test_the_learning_rate_rises_stays_and_ends_at_zero():
    rate = learning_rate(STAGE)
    assert [float(rate(step)) for step in (0, 5, 60, 120)] == pytest.approx([0, 0.1, 0.1, 0])
