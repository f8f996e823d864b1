"""Cards that programs can be compiled for without having one: `<name>.txtpb` each, as XLA describes a device.

The files hold what is true of the hardware; versions of CUDA and cuDNN are those of the libraries that compile.
"""

import importlib
from pathlib import Path
from typing import Any, cast

from worker.engine.device import check_device, device_facts
from worker.engine.identity import default_device
from worker.errors import BuildError

_FOLDER = Path(__file__).parent
_OPENING = "gpu_device_info {\n"

CARDS = tuple(sorted(path.stem for path in _FOLDER.glob("*.txtpb")))
"""Names of targets."""


def target_config(name: str) -> str:
    """A card's `stream_executor.GpuTargetConfigProto` as text, with the versions of the installed libraries.

    XLA refuses to load a program on a machine whose libraries are older than those stated here. Raises BuildError
    without CUDA's libraries.
    """
    return with_versions((_FOLDER / f"{name}.txtpb").read_text("utf-8"), *_versions())


def with_versions(text: str, cuda: tuple[int, int, int], cudnn: tuple[int, int, int]) -> str:
    """State the versions of CUDA and cuDNN in a description that has none."""
    cuda_text, cudnn_text = (".".join(map(str, version)) for version in (cuda, cudnn))
    fields = {
        "driver_version": cuda_text,
        "runtime_version": cuda_text,
        "compile_time_toolkit_version": cuda_text,
        "dnn_version": cudnn_text,
    }
    lines = "".join(f'  {field}: "{value}"\n' for field, value in fields.items())
    major, minor, patch = cudnn
    return (
        text.replace(_OPENING, _OPENING + lines)
        + f"dnn_version_info {{ major: {major} minor: {minor} patch: {patch} }}\n"
    )


def live_config() -> str:
    """What XLA says of the first device of this machine.

    Raises StartupError if there is none that computes, BuildError if it is not a GPU.
    """
    if check_device(allow_cpu=True) != "gpu":
        raise BuildError(f"{default_device().device_kind}: only a GPU can be a target; {device_facts()}")
    return config_of(default_device())


def config_of(device: Any) -> str:
    """What XLA says of a device, which may be one that is only compiled for."""
    topology = cast(Any, importlib.import_module("jax._src.lib.xla_client")).get_topology_for_devices([device])
    return str(topology.target_config)


def _versions() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    try:
        versions = cast(Any, importlib.import_module("jax_cuda12_plugin._versions"))
        cuda, cudnn = int(versions.cuda_runtime_get_version()), int(versions.cudnn_get_version())
    except (ImportError, RuntimeError) as error:
        raise BuildError(f"CUDA's libraries are not installed ({error}): install the extra cuda12") from None
    # 12090 is 12.9.0, 92601 is 9.26.1.
    return (cuda // 1000, cuda % 1000 // 10, cuda % 10), (cudnn // 10000, cudnn % 10000 // 100, cudnn % 100)
