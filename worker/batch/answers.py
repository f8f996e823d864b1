"""What the platform says of a job -> what came of each of its requests. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from worker.errors import BatchError

FINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"})
"""States in which a job stays."""
_TEXT_MAX = 500
_REFUSED = re.compile(r"requests\[(\d+)\]\.(.*?)(?=; requests\[\d+\]\.|; and \d+ more$|$)", re.DOTALL)


@dataclass(frozen=True)
class Trouble:
    """No pictures, and why: the request was `refused` (asking again will not help), the job was `lost` on the way,
    making it `failed`, or it was `spared`: only others of its job were at fault.
    """

    kind: Literal["refused", "lost", "failed", "spared"]
    text: str


Verdict = Mapping[str, Any] | Trouble
"""The worker's result for a request, with its `model`, or the trouble."""


def verdicts(reply: Mapping[str, Any] | None, count: int) -> list[Verdict]:
    """One for each of a job's `count` requests; `reply` is None if the platform does not know the job.

    Raises BatchError if the endpoint cannot serve any batch.
    """
    if reply is None:
        return [Trouble("lost", "the platform does not know its job any more")] * count
    state, error, output = reply.get("status"), _text(reply.get("error")), _fields(reply.get("output"))
    if state == "CANCELLED":
        return [Trouble("lost", "its job was cancelled")] * count
    if state == "TIMED_OUT":
        return [Trouble("failed", "its job ran out of time")] * count
    results: object = output.get("results")
    if isinstance(results, list) and len(listed := cast(list[Any], results)) == count:
        return [_verdict(_fields(result), output.get("model")) for result in listed]
    error = error or _text(output.get("error"))
    if refused := _refused(error, count):
        return [refused.get(index, Trouble("spared", error)) for index in range(count)]
    return [Trouble("failed", error or "its job ended without results")] * count


def _verdict(result: Mapping[str, Any], model: object) -> Verdict:
    images, pictures = _list(result.get("images"), str), _list(result.get("pictures"), dict)
    if "error" in result or not images or len(images) != len(pictures):
        return Trouble("failed", _text(result.get("error")) or "its result has no pictures")
    return {**{name: value for name, value in result.items() if name != "image_url"}, "model": model}


def _refused(error: str, count: int) -> dict[int, Trouble]:
    """Requests that the worker's checks name; the schema is checked before, so what is left depends on the model."""
    if error.startswith("s3Config"):
        raise BatchError(f"the endpoint refuses the bucket: {error}")
    lines: dict[int, list[str]] = {}
    for index, line in _REFUSED.findall(error):
        lines.setdefault(int(index), []).append(line)
    if any(line.startswith("name: unknown field") for found in lines.values() for line in found):
        raise BatchError("the endpoint's worker is too old for batches: it does not know a request's name")
    return {index: Trouble("refused", "; ".join(found)) for index, found in lines.items() if index < count}


def _fields(value: object) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, dict) else {}


def _list(value: object, kind: type) -> list[Any]:
    """A list whose members are all of a kind, else an empty one."""
    listed = cast(list[Any], value) if isinstance(value, list) else []
    return listed if all(isinstance(one, kind) for one in listed) else []


def _text(error: object) -> str:
    """An error for people: the SDK reports a handler's exception as JSON with a traceback in it."""
    text = error if isinstance(error, str) else "" if error is None else json.dumps(error)
    try:
        told = _fields(json.loads(text))
    except ValueError:
        told = {}
    if "error_message" in told:
        text = f"{told.get('error_type', 'error')}: {told['error_message']}"
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."


def job_input(folder: str, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """A job's `input`: each request under its name, so that its pictures have their place, however often it is sent."""
    return {"requests": [{**fields, "name": f"{folder}/{name}"} for name, fields in requests]}
