"""The options of noise schedules and solvers: from a checkpoint's `scheduler_config.json` and from a request.

Names and meanings are those of diffusers' scheduler classes. An option is declared once, as a field of `Options`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from worker.diffusion.table import Row

Check = Callable[[Any], Any]


def _boolean(value: Any) -> bool:
    # Some configurations write null for false.
    if value is not None and not isinstance(value, bool):
        raise ValueError("must be true or false")
    return bool(value)


def _integer(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        integral = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if not integral or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"must be an integer in {low}..{high}")
        return int(value)

    return check


def _number(low: float, high: float) -> Check:
    def check(value: Any) -> float:
        try:
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        except OverflowError:
            number = math.nan
        if not low <= number <= high:
            raise ValueError(f"must be a number in {low}..{high}")
        return number

    return check


def _one_of(*choices: str) -> Check:
    def check(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value

    return check


def _list_of(item: Check) -> Check:
    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError("must be a list")
        return tuple(item(entry) for entry in value)  # pyright: ignore[reportUnknownVariableType]

    return check


def _or_null(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _option(default: Any, check: Check, about: str, *, training: bool = False, flow: bool = False) -> Any:
    return field(default=default, metadata={"check": check, "about": about, "training": training, "flow": flow})


@dataclass(frozen=True)
class Options:
    """Everything that shapes a step table besides the number of steps; the defaults are the usual ones."""

    num_train_timesteps: int = _option(1000, _integer(1, 100_000), "steps in training", training=True)
    beta_start: float = _option(0.0001, _number(0, 1), "first beta", training=True)
    beta_end: float = _option(0.02, _number(0, 1), "last beta", training=True)
    beta_schedule: str = _option(
        "linear", _one_of("linear", "scaled_linear", "squaredcos_cap_v2"), "betas in between", training=True
    )
    trained_betas: tuple[float, ...] | None = _option(
        None, _or_null(_list_of(_number(0, 1))), "all betas, instead of the three above", training=True
    )
    prediction_type: str = _option("epsilon", _one_of("epsilon", "v_prediction", "sample"), "what the network predicts")
    timestep_spacing: str = _option(
        "linspace", _one_of("linspace", "leading", "trailing"), "how steps are spread over training steps"
    )
    steps_offset: int = _option(0, _integer(0, 1000), "added to the times of `leading` spacing")
    rescale_betas_zero_snr: bool = _option(False, _boolean, "no signal is left at the last training step")
    clip_sample: bool = _option(False, _boolean, "clip the denoised latent")
    clip_sample_range: float = _option(1.0, _number(0.01, 1000), "bound of the clipping")
    set_alpha_to_one: bool = _option(True, _boolean, "the last step ends without noise")
    skip_prk_steps: bool = _option(False, _boolean, "without effect: PNDM always begins with linear multisteps")
    eta: float = _option(0.0, _number(0, 1), "share of fresh noise: 0 deterministic, 1 as DDPM")
    variance_type: str | None = _option(
        "fixed_small",
        _or_null(_one_of("fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log")),
        "variance of DDPM's noise",
    )
    use_karras_sigmas: bool = _option(False, _boolean, "noise levels of Karras et al.")
    use_exponential_sigmas: bool = _option(False, _boolean, "noise levels even in their logarithm")
    use_beta_sigmas: bool = _option(False, _boolean, "noise levels at quantiles of a beta distribution")
    use_lu_lambdas: bool = _option(False, _boolean, "noise levels even in the logarithm of signal to noise")
    sigma_min: float | None = _option(None, _or_null(_number(0.0001, 10_000)), "smallest level of these")
    sigma_max: float | None = _option(None, _or_null(_number(0.0001, 10_000)), "largest level of these")
    final_sigmas_type: str = _option("zero", _one_of("zero", "sigma_min"), "noise left at the end")
    lambda_min_clipped: float = _option(
        -math.inf, _number(-math.inf, math.inf), "smallest half-logarithm of signal to noise"
    )
    solver_order: int = _option(2, _integer(1, 3), "order of the method")
    algorithm_type: str = _option(
        "dpmsolver++",
        _one_of("dpmsolver", "dpmsolver++", "sde-dpmsolver", "sde-dpmsolver++", "deis"),
        "which equation is solved",
    )
    solver_type: str = _option("midpoint", _one_of("midpoint", "heun", "bh1", "bh2", "logrho"), "variant of the method")
    lower_order_final: bool = _option(True, _boolean, "lower order at the end of a short course")
    euler_at_final: bool = _option(False, _boolean, "first order in the last step")
    predict_x0: bool = _option(True, _boolean, "UniPC in terms of the denoised latent, else of the noise")
    disable_corrector: tuple[int, ...] = _option((), _list_of(_integer(0, 1000)), "steps left uncorrected")
    original_inference_steps: int = _option(50, _integer(1, 1000), "steps of the distillation's teacher")
    timestep_scaling: float = _option(10.0, _number(0.01, 1000), "sharpness of LCM's boundary condition")

    shift: float = _option(1.0, _number(0.01, 100), "more noise for longer, the same for all sizes", flow=True)
    use_dynamic_shifting: bool = _option(False, _boolean, "more noise for longer the larger the picture", flow=True)
    time_shift_type: str = _option("exponential", _one_of("exponential", "linear"), "form of it", flow=True)
    base_image_seq_len: int = _option(256, _integer(1, 1_000_000), "tokens of a small picture", flow=True)
    max_image_seq_len: int = _option(4096, _integer(1, 1_000_000), "tokens of a large picture", flow=True)
    base_shift: float = _option(0.5, _number(-10, 10), "shift of the small one", flow=True)
    max_shift: float = _option(1.15, _number(-10, 10), "shift of the large one", flow=True)
    shift_terminal: float | None = _option(None, _or_null(_number(0, 0.999)), "the last level but zero", flow=True)
    stochastic_sampling: bool = _option(False, _boolean, "fresh noise in every step", flow=True)

    @property
    def clip(self) -> float:
        """Bound of the denoised latent, infinite where it is not clipped."""
        return self.clip_sample_range if self.clip_sample else math.inf


CHECKS: Mapping[str, Check] = {entry.name: entry.metadata["check"] for entry in fields(Options)}
TRAINING = frozenset(entry.name for entry in fields(Options) if entry.metadata["training"])
"""Properties of the checkpoint, which a request cannot change."""
FLOW = frozenset(entry.name for entry in fields(Options) if entry.metadata["flow"])
"""Options of flow matching alone."""

SIGMA_SCHEDULES = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_lu_lambdas")

UNHANDLED: Mapping[str, tuple[Any, ...]] = {
    "thresholding": (False,),
    "use_flow_sigmas": (False,),
    "use_dynamic_shifting": (False,),
    "shift_terminal": (None,),
    "solver_p": (None,),
    "interpolation_type": ("linear",),
    "timestep_type": ("discrete",),
    "invert_sigmas": (False,),
}
"""Options that are not handled, with the values at which they have no effect."""

IRRELEVANT = frozenset(
    ("dynamic_thresholding_ratio", "sample_max_value", "flow_shift", "time_shift_type", "noise_sampler_seed")
)
"""Options that only matter to what is not handled."""


@dataclass(frozen=True)
class Solver:
    """A solver as a table writer.

    `class_name` is diffusers' class, or a name from `names` where it has none; `defaults` are the options it takes
    and their values in that class; `choices` narrows the values of an option; `translations` replace values that
    belong to other classes, as diffusers does when one class is made from another's configuration. `flow` tells solvers
    of flow matching, `x = (1 - sigma) * image + sigma * noise`, from those of diffusion.
    `rows(options, steps, start)` gives the rows from step `start` on, and the scale of the noise from which a
    picture without an image starts.
    """

    name: str
    class_name: str
    defaults: Mapping[str, Any]
    rows: Callable[[Options, int, int], tuple[list[Row], float]]
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    translations: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    flow: bool = False

    @property
    def requestable(self) -> list[str]:
        """The options that a request may set, sorted."""
        return sorted(set(self.defaults) - TRAINING)

    def check(self, name: str, value: Any) -> Any:
        """The value of an option, translated and normalised; raises ValueError naming option and bounds."""
        if name not in self.defaults:
            raise ValueError(f"{name}: not an option of {self.class_name}, which takes {', '.join(self.requestable)}")
        if isinstance(value, str):
            value = self.translations.get(name, {}).get(value, value)
        try:
            value = CHECKS[name](value)
            if name in self.choices:
                _one_of(*self.choices[name])(value)
        except ValueError as error:
            raise ValueError(f"{name}: {value!r} {error}") from None
        return value


def usual(*names: str) -> Mapping[str, Any]:
    """Options at their usual defaults."""
    defaults = {entry.name: entry.default for entry in fields(Options)}
    return {name: defaults[name] for name in names}


def accepts(*names: str, **defaults: Any) -> Mapping[str, Any]:
    """Options of a solver of diffusion: `names` at their usual defaults, `defaults` at others, and those all have."""
    common = (*TRAINING, "prediction_type", "timestep_spacing", "steps_offset")
    return {**usual(*common, *names), **defaults}


@dataclass(frozen=True)
class ScheduleConfig:
    """A checkpoint's `scheduler_config.json`: its own class, and the values that it states."""

    class_name: str
    values: Mapping[str, Any]

    @property
    def flow(self) -> bool:
        """Whether the model was trained by flow matching, which diffusers has classes of its own for."""
        return _is_flow(self.class_name)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "ScheduleConfig":
        """Read the parsed file; raises ValueError naming every option that is unknown or not handled.

        Values that diffusers marked as defaults of the writing class (`_use_default_values`) count as absent.
        """
        class_name = str(raw.get("_class_name", ""))
        known = CHECKS.keys() - (frozenset() if _is_flow(class_name) else FLOW)
        ignored = {"_use_default_values", *raw.get("_use_default_values", ()), *IRRELEVANT - known}
        stated = {name: value for name, value in raw.items() if name not in ignored}
        problems = [
            f"{name}: {value!r} is not handled"
            for name, value in stated.items()
            if not (name.startswith("_") or name in known or value in UNHANDLED.get(name, ()))
        ]
        if stated.get("variance_type") in ("learned", "learned_range"):
            problems.append(f"variance_type: {stated['variance_type']!r} is not handled")
        if problems:
            raise ValueError("scheduler configuration: " + "; ".join(problems))
        return cls(
            class_name=class_name,
            values={name: value for name, value in stated.items() if name in known},
        )

    def resolve(self, solver: Solver, options: Mapping[str, Any]) -> Options:
        """The options of a solver made from this configuration, with the request's `options` on top.

        As diffusers' `from_config`: stated values carry over where the solver's class knows them, all others
        take its defaults. A sigma schedule asked for by the request replaces the checkpoint's. Raises ValueError
        with one clause per option that is unknown, out of bounds or a property of the checkpoint.
        """
        if solver.flow != self.flow:
            kinds = ("diffusion", "flow matching")
            raise ValueError(
                f"scheduler: {solver.class_name} is for models of {kinds[solver.flow]}, "
                f"this one was trained by {kinds[self.flow]}"
            )
        problems = [f"{name}: belongs to the checkpoint" for name in options if name in TRAINING]
        carried = {name: value for name, value in self.values.items() if name in solver.defaults}
        if any(options.get(name) for name in SIGMA_SCHEDULES):
            carried = {name: value for name, value in carried.items() if name not in SIGMA_SCHEDULES}
        checked: dict[str, Any] = {}
        for name, value in {**carried, **options}.items():
            try:
                checked[name] = solver.check(name, value)
            except ValueError as error:
                problems.append(str(error))
        chosen = [name for name in SIGMA_SCHEDULES if checked.get(name)]
        if len(chosen) > 1:
            problems.append(f"only one of {', '.join(chosen)} can be chosen")
        if problems:
            raise ValueError("; ".join(problems))
        return Options(**{**solver.defaults, **checked})


def _is_flow(class_name: str) -> bool:
    return class_name.startswith("FlowMatch")
