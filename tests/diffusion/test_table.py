import numpy as np
import pytest

from tests.diffusion.reference import DIFFUSION, SD1, SDXL
from worker.diffusion import table
from worker.diffusion.config import ScheduleConfig
from worker.diffusion.sampling import step_table
from worker.diffusion.solvers import SOLVERS
from worker.diffusion.table import Row, assemble

CONFIG = ScheduleConfig.from_json(SD1)


def test_the_longest_course_fits():
    lengths = [
        len(step_table(name, CONFIG, 1000, options={"original_inference_steps": 1000} if teacher else {}))
        for name in DIFFUSION
        for teacher in ["original_inference_steps" in SOLVERS[name].defaults]
    ]
    assert max(lengths) == table.MAX_ROWS - 1


def test_packing_pads_with_zeros_and_rounds_to_float32():
    steps = step_table("heun", CONFIG, 5)
    packed = steps.packed(12)
    assert packed.shape == (12, table.COLUMNS)
    assert packed.dtype == np.float32
    np.testing.assert_array_equal(packed[: len(steps)], steps.coefficients.astype(np.float32))
    assert not packed[len(steps) :].any()


def test_a_table_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="a table of 9 rows does not fit into 8"):
        step_table("heun", CONFIG, 5).packed(8)


def row(level, **rest):
    return Row(time=1.0, scale=1.0, d=(0.0, 1.0), x=table.D, level=level, **rest)


def test_the_reference_of_a_row_is_the_level_of_the_next():
    steps = assemble([row((0.6, 0.8)), row((0.8, 0.6))], (0.0, 1.0))
    columns = steps.coefficients[:, [table.REFERENCE_IMAGE, table.REFERENCE_NOISE]]
    np.testing.assert_array_equal(columns, [(0.8, 0.6), (1.0, 0.0)])


@pytest.mark.parametrize(
    ("draws", "lengths"),
    [
        ([False] * 3, [3, 2, 1, 0]),
        ([True] * 3, [1, 1, 1, 0]),
        ([False, True, False, True], [3, 2, 2, 1, 0]),
    ],
)
def test_rows_that_can_run_with_one_noise(draws, lengths):
    steps = assemble([row((1.0, 0.0), draws=drawn) for drawn in draws], (0.0, 1.0))
    assert [steps.run_length(at) for at in range(len(draws) + 1)] == lengths


@pytest.mark.parametrize("solver", DIFFUSION)
def test_rows_without_a_draw_use_no_noise(solver):
    for options in ({}, {"eta": 0.5}) if "eta" in SOLVERS[solver].defaults else ({},):
        steps = step_table(solver, CONFIG, 10, options=options)
        noise = table.NOISE.argmax()
        used = steps.coefficients[:, table.X_TERMS][:, noise], steps.coefficients[:, table.SAVED_TERMS][:, noise]
        assert not np.any(np.abs(used)[:, ~steps.draws])


@pytest.mark.parametrize("solver", DIFFUSION)
def test_rows_read_nothing_before_it_is_written(solver):
    """Saved latent and history are zeros at the start."""
    saved_term, past_terms = table.SAVED.argmax(), [term.argmax() for term in (table.D1, table.D2, table.D3)]
    for strength in (None, 0.5):
        saved, pushed = False, 0
        for entry in step_table(solver, CONFIG, 12, strength=strength).coefficients:
            x, kept = entry[table.X_TERMS], entry[table.SAVED_TERMS]
            assert saved or x[saved_term] == 0
            assert not x[past_terms][pushed:].any()
            assert not kept[past_terms][pushed:].any()
            saved = saved or kept[saved_term] == 0
            pushed += int(entry[table.PUSH])


def test_text_and_image_start():
    sigma = 14.6146
    assert step_table("euler", CONFIG, 20).init == pytest.approx((0, sigma), rel=1e-4)
    leading = ScheduleConfig.from_json(SDXL)
    level = step_table("euler", leading, 20, strength=1.0).init[1]
    assert step_table("euler", leading, 20).init == (0, pytest.approx(np.sqrt(level**2 + 1)))
    assert step_table("ddim", CONFIG, 20).init == (0, 1)
    image, noise = step_table("ddim", CONFIG, 20, strength=0.5).init
    assert image**2 + noise**2 == pytest.approx(1)
    assert step_table("euler", CONFIG, 20, strength=0.5).init[0] == 1
