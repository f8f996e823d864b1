"""Programs are tried in a process of their own before they are trusted: what the card refuses can end a process.

`python -m worker.engine.trial` is that process. It reads the files' names from its input, runs each program once on
arguments that follow from their shapes alone, and prints a line before and after each, so that its end tells which one
caused it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax.sharding import Sharding
from numpy.typing import NDArray

from worker.engine.blobs import digest_of
from worker.engine.executable import reason, unpack
from worker.engine.identity import devices
from worker.engine.memory import is_out_of_memory
from worker.errors import ProgramFault

TIMEOUT_S = 240.0
"""For all programs of one process."""

_SAMPLES = 32
# Results of equal programs on one kind of card; other libraries may choose other kernels within it.
_TOLERANCE = 0.02
_MARK = "trial "

Samples = tuple[tuple[float, ...], ...]


class Outcome(NamedTuple):
    """`fault` says why a program is not to be used; `untried` why nothing is known of it; `samples` are its results."""

    fault: str | None = None
    untried: str | None = None
    samples: Samples = ()


def run_trials(paths: list[Path], timeout_s: float = TIMEOUT_S) -> list[Outcome]:
    """Try the blobs, whose names are their sha256, one after the other; a crash is the fault of the one that ran."""
    outcomes: list[Outcome] = []
    until = time.monotonic() + timeout_s
    while len(outcomes) < len(paths):
        left = paths[len(outcomes) :]
        events, end = _run_process(left, until - time.monotonic())
        done = [Outcome(event["fault"], event["untried"], _samples(event)) for event in events if "fault" in event]
        outcomes += done
        if any(event.get("begun") == len(done) for event in events):
            outcomes.append(Outcome(fault=f"its trial {end}"))
        elif not done:
            outcomes += [Outcome(untried=f"the trial {end}")] * len(left)
    return outcomes


def compare(found: Samples, expected: Samples) -> str | None:
    """What is wrong with results, or None."""
    if [len(values) for values in found] != [len(values) for values in expected]:
        return "its results have other shapes than those stored with it"
    differences = [
        float(np.max(np.abs(np.subtract(ours, theirs))) / (np.max(np.abs(theirs)) or 1.0))
        for ours, theirs in zip(found, expected, strict=True)
    ]
    worst = max(differences, default=0.0)
    return None if worst <= _TOLERANCE else f"its results differ from those stored with it by {worst:.3g}"


def _samples(event: dict[str, Any]) -> Samples:
    return tuple(tuple(values) for values in event["samples"])


def _run_process(paths: list[Path], timeout_s: float) -> tuple[list[dict[str, Any]], str]:
    """The lines of a trial process, and how it ended."""
    # JAX would take three quarters of the device's memory, which the service needs.
    command = ["env", "XLA_PYTHON_CLIENT_PREALLOCATE=false", sys.executable, "-m", "worker.engine.trial"]
    root = Path(__file__).parents[2]
    given = json.dumps([str(path.resolve()) for path in paths])
    try:
        done = subprocess.run(
            command, input=given.encode(), capture_output=True, timeout=max(timeout_s, 0.1), check=False, cwd=root
        )
        output, end = done.stdout, f"ended with {done.returncode}"
    except subprocess.TimeoutExpired as error:
        output, end = error.stdout or b"", "took too long"
    except OSError as error:
        output, end = b"", f"did not start ({error.strerror})"
    return list(_events(output.decode("utf-8", "replace"))), end


def _events(output: str) -> Iterator[dict[str, Any]]:
    for line in output.splitlines():
        if line.startswith(_MARK):
            # The last line of a process that was ended may be half of one.
            try:
                yield json.loads(line.removeprefix(_MARK))
            except ValueError:
                return


def _main() -> None:
    made: dict[tuple[Any, ...], Any] = {}
    for index, path in enumerate(json.load(sys.stdin)):
        _say({"begun": index})
        outcome = _try(Path(path), made)
        _say(outcome._asdict())
        if outcome.fault:
            # A failed kernel can leave the process without a working device: the next program gets a new one.
            return


def _say(event: dict[str, Any]) -> None:
    print(f"{_MARK}{json.dumps(event)}", flush=True)


def _try(path: Path, made: dict[tuple[Any, ...], Any]) -> Outcome:
    try:
        content = path.read_bytes()
        if digest_of(content) != path.name:
            return Outcome(fault="differs from its sha256")
        return Outcome(samples=_run(unpack(content, devices()), made))
    except (ProgramFault, OSError) as error:
        return Outcome(fault=str(error))
    except Exception as error:  # whatever the device's libraries raise
        if is_out_of_memory(error):
            return Outcome(untried="the device's memory did not suffice for its trial")
        return Outcome(fault=f"does not run ({reason(error)})")


def _run(program: jax.stages.Compiled, made: dict[tuple[Any, ...], Any]) -> Samples:
    described = cast(list[tuple[Any, Any]], jax.tree_util.tree_flatten_with_path(program.args_info)[0])
    # An argument that the program does not use has no place.
    places = dict(cast(list[tuple[Any, Any]], jax.tree_util.tree_flatten_with_path(program.input_shardings)[0]))
    leaves = [_argument(path, info, places.get(path), made) for path, info in described]
    arguments, _ = cast(tuple[tuple[Any, ...], dict[str, Any]], jax.tree.unflatten(cast(Any, program.in_tree), leaves))
    results = [np.asarray(result) for result in jax.tree.leaves(program(*arguments))]
    if any(result.dtype.kind in "fV" and not np.isfinite(result.astype(np.float32)).all() for result in results):
        raise ProgramFault("its results are not finite")
    if not all(result.all() for result in results if result.dtype == np.bool_):
        # The one truth value that a program returns is whether the picture was finite.
        raise ProgramFault("its picture is not finite")
    return tuple(_sample(result) for result in results)


def _argument(path: tuple[Any, ...], info: Any, place: Sharding | None, made: dict[tuple[Any, ...], Any]) -> Any:
    """An array for one argument; parameters, which programs share, are made once."""
    # `program.args_info` is (arguments, keywords); parameters are the first argument.
    parameter = path[1].idx == 0
    name = jax.tree_util.keystr(path)
    key = (name, info.shape, info.dtype, place)
    if parameter and key in made:
        return made[key]
    array = jax.device_put(_values(name, info.shape, info.dtype, parameter=parameter), place)
    if parameter:
        made[key] = array
    return array


def _values(name: str, shape: tuple[int, ...], dtype: Any, *, parameter: bool) -> NDArray[Any]:
    """A pattern: matrices keep the variance of what they are applied to. A step table is at its first row."""
    if np.issubdtype(dtype, np.integer):
        return np.full(shape, 0 if name.endswith(".row") else 1, dtype)
    pattern = np.random.default_rng(0).standard_normal(4099)
    scale = float(np.prod(shape[1:])) ** -0.5 if parameter else 1.0
    return np.resize((pattern * scale).astype(dtype), shape)


def _sample(result: NDArray[Any]) -> tuple[float, ...]:
    flat = result.reshape(-1)
    positions = np.linspace(0, flat.size - 1, min(flat.size, _SAMPLES)).astype(int)
    return tuple(float(value) for value in flat[positions])


if __name__ == "__main__":
    _main()
