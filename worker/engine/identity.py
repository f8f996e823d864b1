"""What a compiled program depends on: the card, the libraries, XLA's flags, the model and the code that declares it.

Two machines with equal `Machine`s can run each other's programs; two models with equal fingerprints have the same
programs. Both are known without tracing anything.
"""

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import jax
from pydantic import BaseModel, ConfigDict

from worker.engine.device import version_of
from worker.nn.kernels import Kernels
from worker.weights.load import Shapes
from worker.weights.manifest import Manifest

# What programs are made of: the pure folders, and the file with the shapes of their arguments.
_SOURCES = ("nn", "models", "diffusion", "families", "engine/operations.py")
_LIBRARIES = ("jax", "jaxlib")
_GPU_LIBRARIES = ("jax-cuda12-plugin", "nvidia-cuda-runtime-cu12", "nvidia-cudnn-cu12")


class Machine(BaseModel):
    """Where a program runs.

    `card`: compute capability and number of multiprocessors of a GPU, so that one program serves all names under which
    a chip is sold (A100 of 40 and 80 GB, A40 and RTX A6000, H100 SXM and H200); the instruction sets of a CPU.
    `libraries`: package -> version. `flags`: those of XLA that the operator chose, in order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    card: str
    libraries: dict[str, str]
    flags: tuple[str, ...]

    def difference(self, other: "Machine") -> str:
        """The first thing in which `other`, a stored program's, differs from this one; empty if nothing does."""
        if self.card != other.card:
            return f"for {other.card}, this is {self.card}"
        for name, version in self.libraries.items():
            if other.libraries.get(name) != version:
                return f"made with {name} {other.libraries.get(name, 'absent')}, this is {version}"
        if self.flags != other.flags:
            return f"made with XLA_FLAGS {' '.join(other.flags)!r}, these are {' '.join(self.flags)!r}"
        return "" if self == other else "made with other libraries"


def machine_of(device: Any, xla_flags: str) -> Machine:
    """The machine of a device of JAX, live or made for compiling only."""
    if device.platform == "cpu":
        card, packages = f"cpu {platform.machine()} {_cpu_features()}", _LIBRARIES
    else:
        card = f"{device.platform} {device.compute_capability} with {device.core_count} multiprocessors"
        packages = _LIBRARIES + _GPU_LIBRARIES
    return Machine(
        card=card,
        libraries={name: version_of(name) for name in packages},
        flags=tuple(sorted(xla_flags.split())),
    )


def default_device() -> Any:
    """JAX's first device, without a type that a checker could see."""
    return devices()[0]


def devices() -> list[Any]:
    """All of JAX's devices."""
    return cast(list[Any], jax.devices())


@cache
def driver_version() -> str:
    """The NVIDIA driver of this host, "none" without one."""
    try:
        return Path("/sys/module/nvidia/version").read_text("ascii").strip()
    except OSError:
        return "none"


def fingerprint(manifest: Manifest, kernels: Kernels, text_lengths: Iterable[int]) -> str:
    """sha256 of all that determines the programs of a baked model but their sizes."""
    return digest(_model(manifest) | {"kernels": asdict(kernels), "text_lengths": list(text_lengths)})


def layout(manifest: Manifest, shapes: Shapes) -> str:
    """sha256 of the shapes of all parameters and of all that determines them.

    A baked folder whose manifest has this digest has the parameters of the model as today's code declares it: the model
    need not be built to find out.
    """
    found = {part: {name: list(spec.shape) for name, spec in specs.items()} for part, specs in shapes.items()}
    return digest(_model(manifest) | {"shapes": found})


def _model(manifest: Manifest) -> dict[str, Any]:
    return {
        "sources": _sources_sha256(),
        "flax": version_of("flax"),
        "family": manifest.family,
        "parts": {name: [part.dtype, part.config] for name, part in manifest.parts.items()},
    }


def digest(facts: Any) -> str:
    """sha256 of a JSON value, whatever the order of its keys."""
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@cache
def _sources_sha256() -> str:
    root = Path(__file__).parents[1]
    files = [
        path for name in _SOURCES for path in ([root / name] if name.endswith(".py") else (root / name).rglob("*.py"))
    ]
    total = sha256()
    for path in sorted(files):
        total.update(f"{path.relative_to(root).as_posix()} {sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _cpu_features() -> str:
    """A short hash of the instruction sets: a program with one that is missing ends the process."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return "unknown"
    flags = {line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))}
    return digest(sorted(flags))[:8]
