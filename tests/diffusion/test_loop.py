import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.diffusion import reference
from tests.diffusion.reference import DIFFUSION, SD1, SD2, SHAPE
from worker.diffusion import loop
from worker.diffusion.config import ScheduleConfig
from worker.diffusion.sampling import step_table

pytestmark = reference.WARNINGS_OF_DIFFUSERS

CAPACITY = 64
JOBS = [
    # solver, checkpoint, steps, options, strength
    ("ddim", SD1, 7, {"eta": 0.5}, None),
    ("pndm", SD1, 5, {}, None),
    ("heun", SD2, 6, {}, 0.5),
    ("unipc", SD2, 8, {"solver_order": 3}, None),
    ("lms", SD1, 9, {}, None),
    ("dpm_sde", SD1, 4, {}, 0.8),
    ("ddpm", SD1, 6, {"clip_sample": True, "clip_sample_range": 0.5}, None),
    ("lcm", SD1, 4, {}, None),
]


@jax.jit
def advance(state, tables, lengths, noise, blend, n_rows):
    mix = jnp.asarray(np.random.default_rng(0).normal(size=(SHAPE[-1], SHAPE[-1])) / 2, jnp.float32)

    def evaluate(x, time):
        return jnp.tanh(x @ mix + jnp.cos(time / 150)[:, None, None, None])

    return loop.advance(evaluate, state, tables, lengths, noise, blend, n_rows)


def table_of(job):
    solver, raw, steps, options, strength = job
    return step_table(solver, ScheduleConfig.from_json(raw), steps, options=options, strength=strength)


def inputs(jobs, image, mask):
    tables = [table_of(job) for job in jobs]
    streams = [reference.Noises(seed, np.float32) for seed in range(len(jobs))]
    first = np.concatenate([stream() for stream in streams])
    images = np.concatenate([image] * len(jobs)).astype(np.float32)
    init = np.array([table.init for table in tables], np.float32)
    x = init[:, :1, None, None] * images + init[:, 1:, None, None] * first
    blend = loop.Blend(np.concatenate([mask] * len(jobs)).astype(np.float32), images, first)
    packed = np.stack([table.packed(CAPACITY) for table in tables])
    lengths = np.array([len(table) for table in tables], np.int32)
    return tables, streams, loop.initial_state(jnp.asarray(x)), packed, lengths, blend


def drive(jobs, image, mask):
    """Rows in runs as long as every slot's noise allows, as the engine does it."""
    tables, streams, state, packed, lengths, blend = inputs(jobs, image, mask)
    while np.any(np.asarray(state.row) < lengths):
        at = np.asarray(state.row)
        rows = min(table.run_length(i) for table, i in zip(tables, at, strict=True) if i < len(table))
        noise = [
            stream() if table.draws[i : i + rows].any() else np.zeros(SHAPE, np.float32)
            for table, stream, i in zip(tables, streams, at, strict=True)
        ]
        state = advance(state, packed, lengths, np.concatenate(noise), blend, rows)
    return state


def test_slots_with_their_own_solvers_agree_with_diffusers(image, mask):
    state = drive(JOBS, image, mask)
    for slot, (solver, raw, steps, options, strength) in enumerate(JOBS):
        theirs, _ = reference.sample_reference(
            reference.scheduler(solver, raw, **options),
            reference.network(),
            steps,
            strength=strength,
            image=image,
            mask=mask.astype(np.float32),
            eta=options.get("eta", 0.0),
            seed=slot,
            dtype=np.float32,
        )
        np.testing.assert_allclose(state.x[slot][None], theirs, atol=2e-5 * np.abs(theirs).max(), rtol=0)


def test_a_slot_does_not_depend_on_its_neighbours(image, mask):
    together = drive(JOBS[:3], image, mask)
    for slot in range(3):
        others = [JOBS[slot] if index == slot else JOBS[4 + index] for index in range(3)]
        np.testing.assert_array_equal(together.x[slot], drive(others, image, mask).x[slot])


@pytest.mark.parametrize("solver", DIFFUSION)
def test_equals_the_table_read_in_numpy(solver, image):
    ones = np.ones((*SHAPE[:-1], 1))
    state = drive([(solver, SD1, 6, {}, None)], image, ones)
    ours = reference.sample_table(
        table_of((solver, SD1, 6, {}, None)), reference.network(), image=image, dtype=np.float32
    )
    np.testing.assert_allclose(state.x, ours, atol=1e-5 * np.abs(ours).max(), rtol=0)


def test_a_slot_at_its_end_is_left_as_it_is(image, mask):
    _, _, state, packed, lengths, blend = inputs(JOBS[1:3], image, mask)
    lengths = np.array([2, lengths[1]], np.int32)
    zeros = np.zeros((2, *SHAPE[1:]), np.float32)
    ended = advance(state, packed, lengths, zeros, blend, 2)
    later = advance(ended, packed, lengths, zeros, blend, 2)
    assert later.row.tolist() == [2, 4]
    for before, after in zip(ended[:2], later[:2], strict=True):
        np.testing.assert_array_equal(before[0], after[0])
        assert np.any(before[1] != after[1])
    np.testing.assert_array_equal(ended.history[:, 0], later.history[:, 0])


def test_rows_in_one_call_or_in_many_are_the_same(image, mask):
    _, _, state, packed, lengths, blend = inputs(JOBS[2:5], image, mask)
    zeros = np.zeros((3, *SHAPE[1:]), np.float32)
    once = advance(state, packed, lengths, zeros, blend, 100)
    for _ in range(max(lengths)):
        state = advance(state, packed, lengths, zeros, blend, 1)
    assert once.row.tolist() == lengths.tolist()
    np.testing.assert_allclose(once.x, state.x, rtol=1e-6, atol=1e-6)


def test_one_program_serves_all_tables(image, mask):
    advance.clear_cache()
    for jobs in (JOBS[:3], JOBS[3:6], JOBS[5:8]):
        drive(jobs, image, mask)
    assert advance._cache_size() == 1
