"""The device is asked before anything is loaded."""

import re

import jax
import numpy as np
import pytest

from worker.engine import device
from worker.errors import StartupError


def test_a_cpu_serves_only_where_it_may():
    assert device.check_device(allow_cpu=True) == "cpu"
    with pytest.raises(StartupError, match="ALLOW_CPU=true") as caught:
        device.check_device(allow_cpu=False)
    assert "\n" not in str(caught.value)
    assert f"jaxlib {jax.lib.__version__}" in str(caught.value)


@pytest.mark.parametrize("factor", [1.02, np.nan])
@pytest.mark.parametrize("operation", ["matmul", "conv_general_dilated"])
def test_a_device_that_computes_wrongly_is_refused(monkeypatch, operation, factor):
    module = jax.numpy if operation == "matmul" else jax.lax
    right = getattr(module, operation)
    monkeypatch.setattr(module, operation, lambda *args, **kwargs: factor * right(*args, **kwargs))
    with pytest.raises(StartupError, match="computes wrongly"):
        device.check_device(allow_cpu=True)


def test_a_driver_that_fails_is_quoted(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed: no driver.\nMake sure.' >&2\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = device.device_facts()
    assert re.search("NVIDIA-SMI has failed: no driver.; Make sure", facts)
    assert "\n" not in facts
