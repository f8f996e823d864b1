"""Runpod's job API on loopback, as the SDK's worker sees it, with faults on demand."""

import asyncio
import contextlib
import json
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

HOLD_S = 1.0
Fault = int | str
"""An HTTP status, or "lost": the connection is cut before an answer."""


@dataclass
class JobApi:
    """Hands out jobs and records what comes back; to be used as a context manager.

    `posts`: every accepted body of a job's done URL in the order of arrival, progress included. `takes`: query of each
    take; `taken`: ids of the jobs that were handed out. `pings`: (seconds, query) of each ping. The faults are used up
    one by one, by the next takes or by the next posts of a job; `post_delay_s` holds progress back before it counts as
    arrived. `raw`: JSON that is handed out in place of a text.
    """

    posts: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    takes: list[dict[str, str]] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    pings: list[tuple[float, dict[str, str]]] = field(default_factory=list)
    take_faults: deque[Fault] = field(default_factory=deque)
    post_faults: dict[str, deque[Fault]] = field(default_factory=dict)
    post_delay_s: float = 0.0
    raw: dict[str, str] = field(default_factory=dict)
    _jobs: deque[dict[str, Any]] = field(default_factory=deque)
    _stops: deque[str] = field(default_factory=deque)

    def __enter__(self) -> "JobApi":
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,))
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        assert not self._thread.is_alive()

    @property
    def environment(self) -> dict[str, str]:
        """What the platform sets for a worker."""
        base = f"http://127.0.0.1:{self._port}/v2/ep-test"
        return {
            "RUNPOD_AI_API_KEY": "rpa_SECRET",
            "RUNPOD_ENDPOINT_ID": "ep-test",
            "RUNPOD_POD_ID": "pod-abc",
            "RUNPOD_POD_HOSTNAME": "pod-abc-host",
            "RUNPOD_PING_INTERVAL": "1000",
            "RUNPOD_WEBHOOK_GET_JOB": f"{base}/job-take/$ID?gpu=X",
            "RUNPOD_WEBHOOK_POST_OUTPUT": f"{base}/job-done/$RUNPOD_POD_ID/$ID?gpu=X",
            "RUNPOD_WEBHOOK_POST_STREAM": f"{base}/job-stream/$RUNPOD_POD_ID/$ID?gpu=X",
            "RUNPOD_WEBHOOK_PING": f"{base}/ping/$RUNPOD_POD_ID?gpu=X",
            "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
            "RUNPOD_SKIP_GPU_CHECK": "true",
        }

    def submit(self, *jobs: dict[str, Any]) -> None:
        """Jobs for the next takes; those of one call can be taken as one batch."""
        self._loop.call_soon_threadsafe(self._jobs.extend, jobs)

    def stop(self, job_id: str) -> None:
        """What a user's cancel, or the platform's time-out, sends to the worker."""
        self._loop.call_soon_threadsafe(self._stops.append, job_id)

    def answers(self, job_id: str) -> list[dict[str, Any]]:
        """The final posts of a job."""
        return [body for body in self.posts[job_id] if body.get("status") != "IN_PROGRESS"]

    def wait(self, *job_ids: str, timeout_s: float = 30) -> list[dict[str, Any]]:
        """The first answer of each."""
        until(lambda: all(self.answers(job_id) for job_id in job_ids), timeout_s)
        return [self.answers(job_id)[0] for job_id in job_ids]

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        runner = web.AppRunner(self._app(), shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self._port = runner.addresses[0][1]
        self._loop.call_soon(ready.set)
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/v2/ep-test/job-take/{worker}", self._take)
        app.router.add_get("/v2/ep-test/job-take-batch/{worker}", self._take)
        app.router.add_get("/v2/ep-test/job-stop/{worker}", self._stop)
        app.router.add_post("/v2/ep-test/job-done/{worker}/{job}", self._done)
        app.router.add_get("/v2/ep-test/ping/{worker}", self._ping)
        return app

    async def _take(self, request: web.Request) -> web.Response:
        self.takes.append(dict(request.query))
        if self.take_faults:
            return _fail(request, self.take_faults.popleft())
        batch = "batch_size" in request.query
        most = int(request.query.get("batch_size", 1))
        await _until(lambda: bool(self._jobs))
        taken = [self._jobs.popleft() for _ in range(min(most, len(self._jobs)))]
        if not taken:
            return web.Response(status=204)
        self.taken += [job["id"] for job in taken]
        text = json.dumps(taken if batch else taken[0])
        for name, raw in self.raw.items():
            text = text.replace(json.dumps(name), raw)
        return web.json_response(text=text)

    async def _stop(self, _request: web.Request) -> web.Response:
        await _until(lambda: bool(self._stops))
        if not self._stops:
            return web.Response(status=204)
        stopped = list(self._stops)
        self._stops.clear()
        return web.json_response({"jobsToStop": stopped})

    async def _done(self, request: web.Request) -> web.Response:
        job_id, body = request.match_info["job"], json.loads(await request.text())
        if self.post_faults.get(job_id):
            return _fail(request, self.post_faults[job_id].popleft())
        if body.get("status") == "IN_PROGRESS":
            await asyncio.sleep(self.post_delay_s)
        self.posts[job_id].append(body)
        return web.Response()

    async def _ping(self, request: web.Request) -> web.Response:
        self.pings.append((time.monotonic(), dict(request.query)))
        return web.Response()


def until(condition: Any, timeout_s: float) -> None:
    """Wait for it; fails after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


async def _until(condition: Any) -> None:
    """Long poll."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(HOLD_S):
            while not condition():
                await asyncio.sleep(0.01)


def _fail(request: web.Request, fault: Fault) -> web.Response:
    if isinstance(fault, int):
        return web.Response(status=fault)
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
