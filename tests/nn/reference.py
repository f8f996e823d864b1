"""What a PyTorch module holds and computes, in the names and layouts of this project."""

from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from flax import nnx

from worker.nn.functional import functional

torch.set_num_threads(1)

TOLERANCE = 1e-5
# These programs are compiled once and run once.
COMPILER_OPTIONS = {"xla_backend_optimization_level": 0}


def names_and_shapes(module: torch.nn.Module, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """Weights of a reference module (constants left out), convolutions as OHWI."""
    return {
        prefix + name: _ohwi(tuple(tensor.shape))
        for name, tensor in module.state_dict().items()
        if not name.endswith("position_ids")
    }


def _ohwi(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], shape[2], shape[3], shape[1]) if len(shape) == 4 else shape


def randomise(module: torch.nn.Module, seed: int = 0) -> None:
    """Give every parameter a value that matters: products keep their size, no scale is 1, no bias is 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise / parameter[0].numel() ** 0.5)
            else:
                parameter.copy_(name.endswith("weight") + 0.1 * noise)


def parameters(module: torch.nn.Module, prefix: str = "") -> dict[str, jax.Array]:
    """The values behind `names_and_shapes`."""
    return {
        prefix + name: jax.numpy.asarray(nhwc(tensor))
        for name, tensor in module.state_dict().items()
        if not name.endswith("position_ids")
    }


def nhwc(tensor: torch.Tensor) -> np.ndarray:
    """A detached copy, with the second axis of four moved to the end."""
    array = tensor.detach().numpy()
    return np.moveaxis(array, 1, -1).copy() if array.ndim == 4 else array.copy()


def nchw(array: np.ndarray) -> torch.Tensor:
    """The inverse of `nhwc`."""
    return torch.from_numpy(np.moveaxis(array, -1, 1).copy() if array.ndim == 4 else array)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal float32."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def run(
    module: nnx.Module,
    params: dict[str, Any],
    *args: Any,
    method: str = "__call__",
    static: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Compile and call a module with these parameters; `static` arguments are part of the program."""
    apply = partial(functional(module).apply, method=method, **(static or {}))
    compiled = jax.jit(lambda params, args, kwargs: apply(params, *args, **kwargs), compiler_options=COMPILER_OPTIONS)
    return jax.tree.map(np.asarray, compiled(params, args, kwargs))


def assert_close(ours: np.ndarray, reference: torch.Tensor) -> None:
    """Compare with a reference result (NCHW where it has four axes), to 1e-5 of its own size if that exceeds 1."""
    expected = nhwc(reference)
    size = np.sqrt(np.mean(np.square(expected)))
    np.testing.assert_allclose(ours, expected, rtol=0, atol=TOLERANCE * max(1.0, size))
