"""A job's `input` -> its requests: one, or many over the same defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple, cast

from pydantic_core import ErrorDetails

from worker.errors import InvalidRequest
from worker.request import (
    Request,
    capped,
    check_fields,
    check_together,
    fault,
    fault_text,
    named_fields,
    parse_request,
    shown,
)

REQUESTS_MAX = 100
HEALTH_FIELD = "health"
"""Alone in an input, it asks for the worker's report instead of pictures."""
MANY_FIELDS = ("requests", "defaults")
"""The fields of an input with many requests; either of them makes it one."""


@dataclass(frozen=True)
class ParsedJob:
    """Checked requests; `many` if they came as a list, so that the answer is one too."""

    requests: tuple[Request, ...]
    many: bool

    def refusal(self, problems: Mapping[int, Sequence[str]]) -> InvalidRequest:
        """The error of what is found wrong later, each request's lines by its index."""
        lines = [_place(index) + line if self.many else line for index, found in problems.items() for line in found]
        return InvalidRequest(capped(lines, str))


def mentions_health(raw: object) -> bool:
    """Whether a job's `input` asks for the worker's report, rightly or not."""
    return isinstance(raw, dict) and HEALTH_FIELD in raw


def check_health(raw: object) -> None:
    """Raise InvalidRequest if an input that mentions it is not `{"health": true}`."""
    job = named_fields(cast(dict[Any, Any], raw))
    problems = [f"{name}: cannot stand beside {HEALTH_FIELD}" for name in job if name != HEALTH_FIELD]
    if job[HEALTH_FIELD] is not True:
        problems.append(f"{HEALTH_FIELD}: {shown(job[HEALTH_FIELD])} is not allowed: only true is")
    if problems:
        raise InvalidRequest(capped(problems, str))


def parse_job(raw: object) -> ParsedJob:
    """Check a job's `input`: one request, or `{"requests": [...], "defaults": {...}}`.

    The defaults hold for each of the 1 to `REQUESTS_MAX` requests where it gives nothing, or null. Raises
    InvalidRequest with the faults of all requests, such as `requests[3].width: ...`; a fault of the defaults stands
    there once, as `defaults.width: ...`.
    """
    job = named_fields(cast(dict[Any, Any], raw)) if isinstance(raw, dict) else {}
    if job.keys().isdisjoint(MANY_FIELDS):
        return ParsedJob((parse_request(cast(object, raw)),), False)
    items, defaults = _items(job), _defaults(job)
    _, wrong = check_fields({"prompt": "", **defaults})
    unsound = {detail["loc"][0] for detail in wrong}
    sound = {name: value for name, value in defaults.items() if name not in unsound}
    results = [_check(index, item, defaults, sound) for index, item in enumerate(items)]
    shared = [one for one in check_together(defaults) if all(_has(result, one) for result in results)]
    faults = [_Fault("", fault(name, _hint(name))) for name in job if name not in MANY_FIELDS]
    faults += [_Fault("defaults.", detail) for detail in [*wrong, *shared]]
    faults += [one for result in results if isinstance(result, list) for one in result if one.detail not in shared]
    requests = tuple(result for result in results if isinstance(result, Request))
    faults += _doubled_names(requests) if not faults else []
    if faults:
        raise InvalidRequest(capped(faults, lambda one: one.where + fault_text(one.detail)))
    return ParsedJob(requests, True)


class _Fault(NamedTuple):
    where: str
    detail: ErrorDetails


def _doubled_names(requests: Sequence[Request]) -> list[_Fault]:
    """Two requests of one name would write the same pictures."""
    first: dict[str | None, int] = {}
    return [
        _Fault(_place(index), fault("name", f"{shown(request.name)} is that of requests[{before}] too"))
        for index, request in enumerate(requests)
        if (before := first.setdefault(request.name, index)) != index and request.name is not None
    ]


def _place(index: int) -> str:
    return f"requests[{index}]."


def _items(job: Mapping[str, Any]) -> list[Any]:
    items: object = job.get("requests")
    if not isinstance(items, list):
        raise InvalidRequest([f"requests: a list of 1 to {REQUESTS_MAX} requests is needed, not {shown(items)}"])
    listed = cast(list[Any], items)
    if not 1 <= len(listed) <= REQUESTS_MAX:
        raise InvalidRequest([f"requests: {len(listed)} in one job, allowed are 1 to {REQUESTS_MAX}"])
    return listed


def _defaults(job: Mapping[str, Any]) -> dict[str, Any]:
    defaults: object = job.get("defaults")
    if defaults is None:
        return {}
    if not isinstance(defaults, dict):
        raise InvalidRequest([f"defaults: an object is needed, not {shown(defaults)}"])
    fields = named_fields(cast(dict[Any, Any], defaults))
    return {name: value for name, value in fields.items() if value is not None or name not in Request.model_fields}


def _check(index: int, item: object, defaults: Mapping[str, Any], sound: Mapping[str, Any]) -> Request | list[_Fault]:
    """Request `index` over the defaults, or its faults; those of inherited values are not among them."""
    if not isinstance(item, dict):
        return [_Fault("", fault(f"requests[{index}]", f"an object is needed, not {shown(item)}"))]
    fields = named_fields(cast(dict[Any, Any], item))
    own = {name: value for name, value in fields.items() if value is not None or name not in defaults}
    request, faults = check_fields({**sound, **own})
    together = check_together({**defaults, **own})
    if request is not None and not together:
        return request
    inherited = defaults.keys() - own.keys()
    kept = [detail for detail in faults if detail["loc"][0] not in inherited]
    return [_Fault(_place(index), detail) for detail in kept + together]


def _has(result: Request | list[_Fault], detail: ErrorDetails) -> bool:
    return isinstance(result, list) and any(one.detail == detail for one in result)


def _hint(name: str) -> str:
    near = get_close_matches(name, MANY_FIELDS, 1)
    if near:
        return f"unknown field; is {near[0]} meant?"
    belongs = "it belongs into defaults" if name in Request.model_fields else "only defaults may stand there"
    return f"unknown field beside requests; {belongs}"
