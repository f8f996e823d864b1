"""Which exceptions of the device's libraries mean that its memory did not suffice."""

import jax

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
