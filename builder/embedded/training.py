"""One training loop: AdamW, a moving average of the weights, checkpoints that survive an end at any moment."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from builder.embedded.recipe import SEED, Stage
from worker.errors import BuildError

log = logging.getLogger(__name__)

SAVE_EVERY_S = 180.0
LOG_EVERY_STEPS = 100

type Weights = dict[str, dict[str, Array]]
"""Part -> parameter -> array."""


class State(NamedTuple):
    """All that a run needs to go on; `average` is what is shipped."""

    step: Array
    weights: Weights
    average: Weights
    optimizer: Any


@dataclass(frozen=True)
class Task:
    """What is trained: `batch` draws arrays on the host, `loss` is pure."""

    stage: Stage
    batch: Callable[[np.random.Generator], Any]
    loss: Callable[[Weights, Any, Array], Array]


def learning_rate(stage: Stage) -> optax.Schedule:
    """Linear up, level, linear to zero at the end."""
    level_ends = stage.steps - stage.decay
    return optax.join_schedules(
        [
            optax.linear_schedule(0.0, stage.learning_rate, stage.warm_up),
            optax.constant_schedule(stage.learning_rate),
            optax.linear_schedule(stage.learning_rate, 0.0, stage.decay),
        ],
        [stage.warm_up, level_ends],
    )


def optimizer(stage: Stage) -> optax.GradientTransformation:
    """AdamW (arXiv 1711.05101) behind a bound on the gradient's norm; norms and biases do not decay."""

    def decays(array: Array) -> bool:
        return array.ndim > 1

    return optax.chain(
        optax.clip_by_global_norm(stage.clip_norm),
        optax.adamw(learning_rate(stage), b2=0.99, weight_decay=stage.weight_decay, mask=partial(_each, decays)),
    )


def first_state(stage: Stage, weights: Weights, step: int = 0) -> State:
    """Begin with these weights; `step` is above 0 where they were trained before and the optimizer's state is lost."""
    return State(jnp.asarray(step, jnp.int32), weights, jax.tree.map(jnp.copy, weights), optimizer(stage).init(weights))


def advance(task: Task) -> Callable[[State, Any], tuple[State, Array]]:
    """One compiled step; the state's memory is used again."""
    chain = optimizer(task.stage)

    def step(state: State, batch: Any) -> tuple[State, Array]:
        key = jax.random.fold_in(jax.random.key(SEED), state.step)
        loss, gradient = jax.value_and_grad(task.loss)(state.weights, batch, key)
        updates, moments = chain.update(gradient, state.optimizer, cast(Any, state.weights))
        weights = cast(Weights, optax.apply_updates(cast(Any, state.weights), updates))
        # The average forgets its beginning: few steps count fully.
        decay = jnp.minimum(task.stage.ema_decay, (1 + state.step) / (10 + state.step))

        def mixed(old: Array, new: Array) -> Array:
            return decay * old + (1 - decay) * new

        average = _each(mixed, state.average, weights)
        return State(state.step + 1, weights, average, moments), loss

    return jax.jit(step, donate_argnums=0)


def train(task: Task, state: State, checkpoint: Path, ends_at: float) -> State:
    """Go on from `state` to the stage's last step, or until `time.monotonic()` reaches `ends_at`.

    Batches and noise depend on the step alone, so a run that was interrupted continues as it would have.
    """
    step = advance(task)
    losses: list[float] = []
    saved = began = time.monotonic()
    index = int(state.step)
    while index < task.stage.steps and time.monotonic() < ends_at:
        state, loss = step(state, task.batch(np.random.default_rng([SEED, index])))
        losses.append(float(loss))
        index += 1
        if index % LOG_EVERY_STEPS == 0:
            now = time.monotonic()
            log.info("step %d  loss %.5f  %.3f s a step", index, np.mean(losses), (now - began) / len(losses))
            losses, began = [], now
        if time.monotonic() - saved > SAVE_EVERY_S:
            save_state(checkpoint, state)
            saved = time.monotonic()
    save_state(checkpoint, state)
    return state


def save_state(path: Path, state: State) -> None:
    """Write whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, *(np.asarray(leaf) for leaf in jax.tree.leaves(state)))
    partial.replace(path)


def load_state(path: Path, like: State) -> State | None:
    """Read what `save_state` wrote, None if there is nothing; raises BuildError for a checkpoint of another recipe."""
    if not path.is_file():
        return None
    with np.load(path) as arrays:
        read = [arrays[f"arr_{i}"] for i in range(len(arrays.files))]
    if [leaf.shape for leaf in read] != [leaf.shape for leaf in jax.tree.leaves(like)]:
        raise BuildError(f"{path}: of another recipe; move it away to begin anew")
    return jax.tree.unflatten(cast(Any, jax.tree.structure(like)), [jnp.asarray(leaf) for leaf in read])


def _each(function: Callable[..., Any], *trees: Any) -> Any:
    return jax.tree.map(function, *trees)
