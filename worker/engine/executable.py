"""Executables as bytes (`jax.experimental.serialize_executable`)."""

import pickle
from collections.abc import Callable
from typing import Any, cast

import jax
from jax.experimental import serialize_executable

from worker.errors import ProgramFault

_Serialised = tuple[bytes, Any, Any]


def pack(compiled: jax.stages.Compiled) -> bytes:
    """An executable with the structure of its arguments and results."""
    serialise = cast(Callable[[jax.stages.Compiled], _Serialised], serialize_executable.serialize)
    return pickle.dumps(serialise(compiled), protocol=5)


def unpack(content: bytes, device: Any) -> jax.stages.Compiled:
    """The executable, ready on a device; raises ProgramFault. Never give it bytes of unknown origin: it is a pickle."""
    load = cast(Callable[..., jax.stages.Compiled], serialize_executable.deserialize_and_load)
    try:
        serialised, arguments, results = cast(_Serialised, pickle.loads(content))
        return load(serialised, arguments, results, backend=device.client, execution_devices=[device])
    except Exception as error:  # whatever the runtime, or a class that has moved, raises
        raise ProgramFault(f"does not load ({reason(error)})") from error


def reason(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {str(error).strip().partition('\n')[0][:200]}"
