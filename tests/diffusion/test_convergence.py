"""Solvers on data whose answer is known: independent normal values of variance `S2`.

Their denoised latent is linear in `x`, the exact course keeps `x / sqrt(alpha^2 S2 + sigma^2)`, and stochastic
solvers keep that variance. The course is measured where the schedules of different step counts meet, before the
last step, in which the order of every method ends.
"""

import dataclasses
import math

import numpy as np
import pytest

from tests.diffusion.reference import SD1
from worker.diffusion import table
from worker.diffusion.config import Options, ScheduleConfig
from worker.diffusion.sampling import step_table
from worker.diffusion.schedules import training_sigmas
from worker.diffusion.table import StepTable

S2 = 0.3
TRAINING_STEPS = 1201

RAW = {**SD1, "prediction_type": "v_prediction", "clip_sample": False, "set_alpha_to_one": True}
# From time 1200 in even strides to 240, for every number of steps that divides 1200 and of which 4/5 are whole.
SPACED = {
    True: {**RAW, "num_train_timesteps": TRAINING_STEPS, "timestep_spacing": "linspace"},
    False: {**RAW, "num_train_timesteps": TRAINING_STEPS - 1, "timestep_spacing": "trailing"},
}
SHARE = 0.8
TWO_STAGES = ("heun", "dpm2", "dpm2_ancestral", "dpm_2s_ancestral", "dpm_sde")
INCLUDES_END = ("dpm_singlestep",)


def network(raw):
    """What the data imply for the network to say, by time; `log sigma` is linear between training steps."""
    names = {field.name for field in dataclasses.fields(Options)}
    options = Options(**{name: value for name, value in raw.items() if name in names})
    log_sigmas = np.log(training_sigmas(options))

    def evaluate(x, time):
        alpha, sigma = levels(math.exp(np.interp(time, np.arange(len(log_sigmas)), log_sigmas)))
        denoised = alpha * S2 / (alpha**2 * S2 + sigma**2) * x
        noise = (x - alpha * denoised) / sigma
        return noise if raw["prediction_type"] == "epsilon" else alpha * noise - sigma * denoised

    return evaluate


def levels(ratio):
    alpha = 1 / math.sqrt(1 + ratio**2)
    return alpha, ratio * alpha


def spread(image, noise):
    """Standard deviation of the data's latents at a level."""
    return math.sqrt(image**2 * S2 + noise**2)


def run(steps: StepTable, rows: int, evaluate):
    """`x` after `rows` rows as the weights of its independent parts: the first latent, then each row's noise."""
    x = np.zeros(rows + 1)
    x[0] = spread(*steps.init) if steps.init[0] else spread(*start(steps))
    saved, history = np.zeros_like(x), [np.zeros_like(x)] * table.HISTORY
    for index, row in enumerate(steps.coefficients[:rows]):
        output = evaluate(row[table.SCALE] * x, row[table.TIME])
        d = row[table.D_FROM_X] * x + row[table.D_FROM_MODEL] * output
        noise = np.eye(rows + 1)[index + 1]
        terms = np.stack((x, saved, d, *history, noise, output))
        x, saved = row[table.X_TERMS] @ terms, row[table.SAVED_TERMS] @ terms
        history = [d, *history[:-1]] if row[table.PUSH] else history
    return x


def start(steps):
    """The level that the first row takes `x` to be at, in the solver's own scale."""
    first = steps.coefficients[0]
    return (1.0, math.sqrt(first[table.SCALE] ** -2 - 1)) if first[table.SCALE] < 1 else (0.0, 1.0)


def course(solver, count, options):
    """(weights of the parts of `x`, the right standard deviation) at the measured level."""
    # PNDM extrapolates whatever the network says, which is of first order only for a velocity.
    raw = {**SPACED[solver in INCLUDES_END], **({"prediction_type": "epsilon"} if solver == "pndm" else {})}
    steps = step_table(solver, ScheduleConfig.from_json(raw), count, options=options, strength=1.0)
    rows = round(SHARE * count) * (2 if solver in TWO_STAGES else 1) + (solver == "pndm")
    x = run(steps, rows, network(raw))
    last = steps.coefficients[rows - 1]
    exact = spread(last[table.REFERENCE_IMAGE], last[table.REFERENCE_NOISE])
    return x, exact


def error(solver, count, options):
    x, exact = course(solver, count, options)
    return abs(np.linalg.norm(x) / exact - 1)


ORDERS = [
    ("ddim", {}, 1),
    ("euler", {}, 1),
    ("heun", {}, 2),
    ("dpm2", {}, 2),
    ("lms", {}, 2),
    ("pndm", {}, 2),
    ("dpm_multistep", {"solver_order": 1}, 1),
    ("dpm_multistep", {"solver_order": 2}, 2),
    ("dpm_multistep", {"solver_order": 2, "solver_type": "heun"}, 2),
    ("dpm_multistep", {"solver_order": 3}, 2),
    ("dpm_multistep", {"algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min"}, 2),
    ("dpm_singlestep", {"solver_order": 1}, 1),
    ("dpm_singlestep", {"solver_order": 2}, 2),
    ("dpm_singlestep", {"solver_order": 3}, 3),
    ("unipc", {"solver_order": 1}, 2),
    ("unipc", {"solver_order": 2}, 3),
    ("deis", {"solver_order": 1}, 1),
    ("deis", {"solver_order": 2}, 2),
    ("deis", {"solver_order": 3}, 2),
]

SDE = {"algorithm_type": "sde-dpmsolver++"}
STOCHASTIC = [
    ("ddpm", {}, 1),
    ("ddim", {"eta": 1.0}, 1),
    ("euler_ancestral", {}, 1),
    ("dpm2_ancestral", {}, 2),
    ("dpm_2s_ancestral", {}, 2),
    ("dpm_sde", {}, 2),
    ("dpm_multistep", {**SDE, "solver_order": 1}, 1),
    ("dpm_multistep", SDE, 2),
    ("dpm_singlestep", SDE, 1),
]
# Of first order only, and far from the data in a long course: one of its weights is kept as diffusers has it.
THIRD_ORDER_SDE = [("dpm_multistep", {**SDE, "solver_order": 3}, 1)]


@pytest.mark.parametrize(("solver", "options", "order"), ORDERS + STOCHASTIC + THIRD_ORDER_SDE)
def test_order_of_convergence(solver, options, order):
    coarse, fine = error(solver, 60, options), error(solver, 120, options)
    assert math.log2(coarse / fine) > order - 0.2
    assert fine < 0.02


@pytest.mark.parametrize(("solver", "options", "_"), ORDERS)
def test_deterministic_solvers_add_no_noise(solver, options, _):
    x, _ = course(solver, 60, options)
    assert np.count_nonzero(x) == 1


@pytest.mark.parametrize(("solver", "options", "_"), STOCHASTIC)
def test_stochastic_solvers_forget_the_first_latent(solver, options, _):
    x, exact = course(solver, 60, options)
    assert abs(x[0]) < 0.05 * exact


@pytest.mark.parametrize(("solver", "options", "_"), ORDERS + STOCHASTIC)
def test_the_end_has_the_spread_of_the_data(solver, options, _):
    raw = {**SPACED[False], **({"prediction_type": "epsilon"} if solver == "pndm" else {})}
    steps = step_table(solver, ScheduleConfig.from_json(raw), 240, options=options, strength=1.0)
    x = run(steps, len(steps), network(raw))
    assert np.linalg.norm(x) == pytest.approx(math.sqrt(S2), rel=0.05)


EXACT_AT_THE_END = (
    *("ddim", "ddpm", "euler", "euler_ancestral", "heun", "dpm2", "dpm2_ancestral"),
    *("dpm_multistep", "dpm_singlestep", "dpm_2s_ancestral", "dpm_sde", "unipc"),
)


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 30])
@pytest.mark.parametrize("solver", EXACT_AT_THE_END)
def test_a_constant_denoised_latent_is_reached(solver, steps):
    """Their last step returns what the network takes for the denoised latent."""
    raw = {**SPACED[False], "prediction_type": "sample"}
    rows = step_table(solver, ScheduleConfig.from_json(raw), steps)
    x = run(rows, len(rows), lambda x, _: np.full_like(x, 0.7))
    np.testing.assert_allclose(x, 0.7, atol=1e-9)
