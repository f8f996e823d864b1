"""The Runpod SDK, with what it leaves open closed."""

import json
import math
import re
import sys
from functools import partial
from threading import Thread, current_thread, main_thread
from types import ModuleType
from typing import Any

import cpuinfo

# While it is imported, the SDK asks for the processor's name, which takes a second, and loads its command line's SSH;
# no job needs either.
cpuinfo.get_cpu_info = dict
sys.modules.setdefault("paramiko", ModuleType("paramiko"))

import runpod  # noqa: E402
from aiohttp import ClientConnectionError, ClientResponse, ClientSession  # noqa: E402
from runpod.serverless.modules import rp_http, rp_progress, rp_scale  # noqa: E402

serverless = runpod.serverless

ANSWER_ATTEMPTS = 20
"""Posts of an answer, up to 3 seconds apart, before it is lost."""
DEPTH_MAX = 100

_retry = rp_http.FibonacciRetry


def mend() -> None:
    """Make the SDK answer every job that it was given; to be called before it starts.

    It posts an answer only three times, and not again when it is told to wait or the connection is lost. A job that is
    handed out after SIGTERM, to the poll that was under way, would never run. And jobs that are taken together are all
    lost when the text of one of them is more than `json.loads` takes.
    """
    rp_http.FibonacciRetry = _retries
    rp_scale.JobScaler = _Scaler
    rp_scale.AsyncClientSession = partial(rp_scale.AsyncClientSession, response_class=_Response)


def post_progress(job: dict[str, Any], update: dict[str, Any]) -> Thread:
    """The SDK's `progress_update`, but the thread that posts is known."""
    thread = Thread(target=rp_progress._thread_target, args=(job, update), name="progress", daemon=True)  # pyright: ignore[reportPrivateUsage]
    thread.start()
    return thread


def read_json(text: str) -> Any:
    """`json.loads`, but an integer of too many digits is infinite, and what lies below `DEPTH_MAX` levels is null.

    No field takes either, so that the request is refused for it.
    """
    try:
        return json.loads(text, parse_int=_integer)
    except RecursionError:
        return json.loads(_cut(text), parse_int=_integer)


def _integer(digits: str) -> float:
    return int(digits) if len(digits) <= sys.get_int_max_str_digits() else math.copysign(math.inf, float(digits))


def _cut(text: str) -> str:
    depth, kept, begin = 0, list[str](), 0
    for mark in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text, re.DOTALL):
        if mark[0] in "[{":
            depth += 1
            if depth == DEPTH_MAX + 1:
                kept += [text[begin : mark.start()], "null"]
        elif mark[0] in "]}":
            if depth == DEPTH_MAX + 1:
                begin = mark.end()
            depth -= 1
    return "".join([*kept, text[begin:]])


def _retries(attempts: int) -> Any:
    # Answers are posted by the main thread's loop. A report of progress that came late would make a finished job a
    # running one again.
    if current_thread() is not main_thread():
        return _retry(1)
    return _retry(max(attempts, ANSWER_ATTEMPTS), statuses={429}, exceptions={ClientConnectionError, TimeoutError})


class _Response(ClientResponse):
    async def json(self, **options: Any) -> Any:
        return await super().json(**options, loads=read_json)


class _Scaler(rp_scale.JobScaler):
    async def get_jobs(self, session: ClientSession) -> None:
        await super().get_jobs(session)
        await self.run_jobs(session)
