"""diffusers' schedulers in float64, a toy network, and an interpreter of step tables to hold against them."""

import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import diffusers
import numpy as np
import pytest
import torch

from worker.diffusion import schedules, table
from worker.diffusion.solvers import SOLVERS
from worker.diffusion.table import StepTable

SHAPE = (1, 2, 3, 4)
Network = Callable[[np.ndarray, float], np.ndarray]

# Stable Diffusion 1.x, 2.x (768, v_prediction) and XL, and what rescaled fine-tunes state.
SD1 = {
    "_class_name": "PNDMScheduler",
    "_diffusers_version": "0.6.0",
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "clip_sample": False,
    "num_train_timesteps": 1000,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
    "trained_betas": None,
}
SD2 = {**SD1, "_class_name": "DDIMScheduler", "prediction_type": "v_prediction"}
SDXL = {
    **SD1,
    "_class_name": "EulerDiscreteScheduler",
    "interpolation_type": "linear",
    "prediction_type": "epsilon",
    "sample_max_value": 1.0,
    "timestep_spacing": "leading",
    "use_karras_sigmas": False,
}
ZERO_SNR = {**SDXL, "prediction_type": "v_prediction", "rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}


WARNINGS_OF_DIFFUSERS = [
    # Arrays made of tensors, options that it means to drop, logarithms of the last sigma.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept context:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*algorithm_type.*deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning"),
]


def _reference_classes() -> dict[str, Any]:
    # diffusers hides this one without torchsde, of which it only uses the noise that is replaced below.
    sys.modules["torchsde"] = types.ModuleType("torchsde")
    try:
        hidden = importlib.import_module("diffusers.schedulers.scheduling_dpmsolver_sde").DPMSolverSDEScheduler
    finally:
        del sys.modules["torchsde"]
    names = {solver.class_name for solver in SOLVERS.values()} - {hidden.__name__}
    found = {name: getattr(diffusers, name) for name in names if hasattr(diffusers, name)}
    return {hidden.__name__: hidden, **found}


CLASSES = _reference_classes()
DIFFUSION = [name for name, solver in SOLVERS.items() if not solver.flow]
"""The solvers for Stable Diffusion."""
REFERENCED = [name for name in DIFFUSION if SOLVERS[name].class_name in CLASSES]
"""Those of them that diffusers has."""


class _Float64(types.ModuleType):
    """A module whose `float32` is float64."""

    def __init__(self, module: types.ModuleType):
        super().__init__(module.__name__)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, "float64" if name == "float32" else name)


@contextmanager
def float64_schedules() -> Iterator[None]:
    """Within, diffusers and we compute in float64 throughout, so that comparisons need no allowance."""
    modules = {sys.modules[reference.__module__] for reference in CLASSES.values()}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(schedules, "KEPT", np.float64))
        for module in modules:
            stack.enter_context(mock.patch.object(module, "torch", _Float64(torch)))
            stack.enter_context(mock.patch.object(module, "np", _Float64(np)))
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def scheduler(solver: str, raw: Mapping[str, Any], **options: Any) -> Any:
    """diffusers' scheduler of a solver, made from a checkpoint's configuration as its pipelines make it."""
    options.pop("eta", None)
    return CLASSES[SOLVERS[solver].class_name].from_config(dict(raw), **options)


def network(seed: int = 0) -> Network:
    """A fixed non-linear function of latent and time, in place of a network."""
    mix = np.random.default_rng(seed).normal(size=(SHAPE[-1], SHAPE[-1])) / 2

    def evaluate(x: np.ndarray, time: float) -> np.ndarray:
        return np.tanh(x @ mix + np.cos(time / 150))

    return evaluate


class Noises:
    """Unit noise in the order of drawing, the same for both sides."""

    def __init__(self, seed: int, dtype: type):
        self._random = np.random.default_rng(seed)
        self._dtype = dtype

    def __call__(self) -> np.ndarray:
        return self._random.normal(size=SHAPE).astype(self._dtype)


def sample_reference(
    pipeline: Any,
    evaluate: Network,
    steps: int,
    *,
    strength: float | None = None,
    image: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    eta: float = 0.0,
    seed: int = 0,
    dtype: type = np.float64,
) -> tuple[np.ndarray, list[float]]:
    """The loop of diffusers' pipelines around its scheduler `pipeline`: (last latent, times)."""
    noises = Noises(seed, dtype)
    pipeline.set_timesteps(steps)
    kept = steps if strength is None else min(max(int(steps * strength), 1), steps)
    begin = (steps - kept) * pipeline.order
    times = pipeline.timesteps[begin:]
    if hasattr(pipeline, "set_begin_index"):
        pipeline.set_begin_index(begin)
    first = torch.from_numpy(noises())
    clean = None if image is None else torch.from_numpy(image.astype(dtype))
    x = first * pipeline.init_noise_sigma
    if strength is not None:
        x = pipeline.add_noise(clean, first, times[:1])
    parameters = pipeline.step.__code__.co_varnames
    extra = {"eta": eta} if "eta" in parameters else {}
    with drawing_from(pipeline, noises):
        for i, time in enumerate(times):
            output = evaluate(pipeline.scale_model_input(x, time).numpy(), float(time)).astype(dtype)
            x = pipeline.step(torch.from_numpy(output), time, x, **extra).prev_sample
            if mask is not None:
                after = clean if i + 1 == len(times) else pipeline.add_noise(clean, first, times[i + 1 : i + 2])
                x = torch.from_numpy(mask) * x + (1 - torch.from_numpy(mask)) * after
    return x.numpy(), [float(time) for time in times]


@contextmanager
def drawing_from(pipeline: Any, noises: Noises) -> Iterator[None]:
    """Within, a scheduler takes its noise from `noises`."""
    module = sys.modules[type(pipeline).__module__]
    if type(pipeline).__name__ == "DPMSolverSDEScheduler":
        with mock.patch.object(module, "BrownianTreeNoiseSampler", return_value=_Brownian(noises)):
            yield
    elif hasattr(module, "randn_tensor"):
        with mock.patch.object(module, "randn_tensor", side_effect=lambda *_, **__: torch.from_numpy(noises())):
            yield
    else:
        yield


class _Brownian:
    """Increments of one Brownian motion over sigma, each scaled to unit variance; asked for twice per step."""

    def __init__(self, noises: Noises):
        self._noises = noises
        self._path: tuple[float, torch.Tensor, float] | None = None

    def __call__(self, sigma: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        length, fresh = float(sigma - target), torch.from_numpy(self._noises())
        if self._path is None:
            self._path = (length, fresh, float(sigma))
            return fresh
        walked, first, origin = self._path
        assert origin == float(sigma)
        self._path = None
        return (first * walked**0.5 + fresh * (length - walked) ** 0.5) / length**0.5


def sample_table(
    steps: StepTable,
    evaluate: Network,
    *,
    image: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    seed: int = 0,
    dtype: type = np.float64,
) -> np.ndarray:
    """Read a table row after row, as `loop.advance` does, in plain numpy."""
    noises = Noises(seed, dtype)
    first = noises()
    clean = np.zeros(SHAPE, dtype) if image is None else image.astype(dtype)
    x = dtype(steps.init[0]) * clean + dtype(steps.init[1]) * first
    saved, history = np.zeros_like(x), [np.zeros_like(x)] * table.HISTORY
    for row, draws in zip(steps.coefficients.astype(dtype), steps.draws, strict=True):
        output = evaluate(row[table.SCALE] * x, float(row[table.TIME])).astype(dtype)
        d = row[table.D_FROM_X] * x + row[table.D_FROM_MODEL] * output
        d = np.clip(d, -row[table.CLIP], row[table.CLIP])
        noise = noises() if draws else np.zeros_like(x)
        terms = np.stack((x, saved, d, *history, noise, output))
        x = np.tensordot(row[table.X_TERMS], terms, 1)
        saved = np.tensordot(row[table.SAVED_TERMS], terms, 1)
        history = [d, *history[:-1]] if row[table.PUSH] else history
        if mask is not None:
            after = row[table.REFERENCE_IMAGE] * clean + row[table.REFERENCE_NOISE] * first
            x = mask * x + (1 - mask) * after
    return x
