"""The device's memory: how much there is and was used, and which exceptions mean that it did not suffice."""

from typing import cast

import jax

from worker.engine.identity import default_device

_TEXTS = (
    "RESOURCE_EXHAUSTED",
    "Out of memory",
    "out of memory",
    "OUT_OF_MEMORY",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    # Handles of cuDNN and cuBLAS are made at first use, and need memory of their own.
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "Failed to allocate",
)


def is_out_of_memory(error: BaseException) -> bool:
    """True for XLA's own allocator and for the libraries that it calls."""
    return isinstance(error, jax.errors.JaxRuntimeError) and any(text in str(error) for text in _TEXTS)


def device_memory() -> dict[str, int]:
    """Limit, use and peak in bytes, as far as the backend tells; asking does not wait for the device."""
    statistics = cast(dict[str, int], default_device().memory_stats() or {})
    names = {"limit_bytes": "bytes_limit", "used_bytes": "bytes_in_use", "peak_bytes": "peak_bytes_in_use"}
    return {ours: statistics[theirs] for ours, theirs in names.items() if theirs in statistics}
