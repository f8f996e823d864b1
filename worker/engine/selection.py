"""Which kernels serve on this device: the setting, tried once, with a fall-back."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from worker.nn.attention import attention
from worker.nn.kernels import Kernels
from worker.settings import Settings

log = logging.getLogger(__name__)

# bfloat16 has 8 bits of mantissa: outputs of order 1 agree to a few units of 2^-8.
_TOLERANCE = 0.03


def select_kernels(settings: Settings, platform: str) -> Kernels:
    """Resolve "auto" for the platform ("cpu", "gpu")."""
    fused = settings.attention == "cudnn" or (settings.attention == "auto" and platform == "gpu")
    shifted = settings.convolution == "shifted" or (settings.convolution == "auto" and platform == "cpu")
    return Kernels(
        attention="cudnn" if fused else "xla",
        convolution="shifted" if shifted else "xla",
        loop="host" if platform == "cpu" else "device",
    )


def sound_kernels(kernels: Kernels) -> Kernels:
    """The same, but for a fused attention that fails its self-test on this device."""
    if kernels.attention == "cudnn" and (reason := attention_fault(kernels)):
        log.warning("attention: cudnn failed its self-test, xla serves instead: %s", reason)
        return replace(kernels, attention="xla")
    return kernels


def attention_fault(kernels: Kernels) -> str | None:
    """Run a small attention as chosen and as XLA does it; the reason if they differ or the first one fails."""
    shape_BSNK = (2, 64, 4, 64)
    random = np.random.default_rng(0)
    q, k, v = (jnp.asarray(random.standard_normal(shape_BSNK), jnp.bfloat16) for _ in range(3))
    expected = np.asarray(attention(q, k, v, Kernels()), np.float32)
    chosen = cast(Callable[..., Any], jax.jit(partial(attention, kernels=kernels)))
    try:
        found = np.asarray(chosen(q, k, v), np.float32)
    except Exception as error:  # whatever the kernel's library raises must not stop the start
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    difference = float(np.max(np.abs(found - expected)))
    return None if difference <= _TOLERANCE else f"differs by {difference:.3g}"
