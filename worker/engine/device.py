"""Is there a device that computes? Asked before anything is loaded."""

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from worker.errors import StartupError

# GPUs round inputs of products to 10 bits of mantissa (TF32) where nothing else is asked for.
_TOLERANCE = 0.01


def check_device(*, allow_cpu: bool) -> str:
    """Compute on JAX's default device and compare with NumPy; returns the platform, such as "gpu" or "cpu".

    Raises StartupError, one line with what is known of driver, CUDA and device, when there is no device, when it is a
    CPU and may not be, or when it fails or computes wrongly.
    """
    try:
        # JAX has no type for it that a checker can see.
        device = cast(Any, jax.devices()[0])
    except Exception as error:  # RuntimeError by a platform that fails, AssertionError without one
        way_out = "" if allow_cpu else "ALLOW_CPU=true serves without a GPU; "
        raise StartupError(
            f"JAX has no device on {jax.config.jax_platforms or 'any platform'} ({_first_line(error)}); "
            f"{way_out}{device_facts()}"
        ) from None
    if device.platform == "cpu" and not allow_cpu:
        raise StartupError(f"JAX found no GPU; ALLOW_CPU=true serves without one; {device_facts()}")
    try:
        differences = _matrix_product(), _convolution()
    except Exception as error:  # whatever the device's libraries raise
        raise StartupError(f"{device.device_kind} cannot compute ({_first_line(error)}); {device_facts()}") from None
    if not all(difference <= _TOLERANCE for difference in differences):
        product, convolution = (f"{difference:.3g}" for difference in differences)
        raise StartupError(
            f"{device.device_kind} computes wrongly: a matrix product differs by {product} of its largest value, "
            f"a convolution by {convolution}; {device_facts()}"
        )
    return str(device.platform)


def device_facts() -> str:
    """GPU, driver and libraries in one line, as far as they can be known."""
    packages = ("jaxlib", "jax-cuda12-plugin", "nvidia-cuda-runtime-cu12", "nvidia-cudnn-cu12")
    versions = ", ".join(f"{name} {version_of(name)}" for name in packages)
    return f"GPU and driver: {_nvidia_smi()}; {versions}; Python {platform.python_version()}"


def _nvidia_smi() -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        return "no nvidia-smi, so no NVIDIA driver in this container"
    query = [command, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi failed ({type(error).__name__})"
    said = "; ".join((done.stdout or done.stderr).split("\n")).strip("; ")
    return said or f"nvidia-smi ended with {done.returncode}"


def version_of(package: str) -> str:
    """The installed version, or "absent"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _matrix_product() -> float:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((256, 256), np.float32) for _ in range(2))
    return _difference(jax.jit(jnp.matmul)(a, b), a @ b)


def _convolution() -> float:
    random = np.random.default_rng(1)
    x_BHWC = random.standard_normal((1, 18, 18, 16), np.float32)
    kernel_OHWI = random.standard_normal((8, 3, 3, 16), np.float32)

    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "OHWI", "NHWC"))

    windows_BHWCij = sliding_window_view(x_BHWC, (3, 3), axis=(1, 2))
    expected = np.einsum("bhwcij,oijc->bhwo", windows_BHWCij, kernel_OHWI)
    return _difference(jax.jit(convolve)(x_BHWC, kernel_OHWI), expected)


def _difference(found: Any, expected: NDArray[np.float32]) -> float:
    return float(np.max(np.abs(np.asarray(found) - expected)) / np.max(np.abs(expected)))
