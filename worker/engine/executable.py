"""Executables as bytes (`jax.experimental.serialize_executable`)."""

import pickle
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
from jax.experimental import serialize_executable

from worker.errors import ProgramFault

_Serialised = tuple[bytes, Any, Any]


def pack(compiled: jax.stages.Compiled) -> bytes:
    """An executable with the structure of its arguments and results, and the number of its devices."""
    serialise = cast(Callable[[jax.stages.Compiled], _Serialised], serialize_executable.serialize)
    devices = max(len(sharding.device_set) for sharding in jax.tree.leaves(compiled.input_shardings))
    return pickle.dumps((devices, serialise(compiled)), protocol=5)


def unpack(content: bytes, devices: Sequence[Any]) -> jax.stages.Compiled:
    """The executable, ready on as many of the devices as it needs, from the first on; raises ProgramFault.

    Never give it bytes of unknown origin: it is a pickle.
    """
    load = cast(Callable[..., jax.stages.Compiled], serialize_executable.deserialize_and_load)
    try:
        count, (serialised, arguments, results) = cast(tuple[int, _Serialised], pickle.loads(content))
        chosen = list(devices[:count])
        return load(serialised, arguments, results, backend=devices[0].client, execution_devices=chosen)
    except Exception as error:  # whatever the runtime, or a class that has moved, raises
        raise ProgramFault(f"does not load ({reason(error)})") from error


def reason(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {str(error).strip().partition('\n')[0][:200]}"
