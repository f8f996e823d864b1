"""Both sides of Runpod's job API on loopback: workers take jobs, clients send them and ask for them."""

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.platform.job_api import Fault, JobApi

KEY = "rpa_CLIENT_SECRET"
_JOB_BYTES_MAX = 10_000_000
_LOST = 499


@dataclass
class EndpointApi(JobApi):
    """A `JobApi` with `/run`, `/status`, `/cancel` and `/health` for clients that show `KEY`.

    `fault(call)` says what becomes of a call ("run", "status" ...); a `run` that is "lost" is taken, and its answer
    lost. `sent`: the jobs as they came. `states`: what `/status` says of each; what is taken out of it is forgotten.
    `calls` counts what came in, faults included.
    """

    fault: Callable[[str], Fault | None] = lambda _call: None
    sent: dict[str, dict[str, Any]] = field(default_factory=dict)
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    retry_after: str = ""

    @property
    def client_environment(self) -> dict[str, str]:
        """What a client is given."""
        return {"RUNPOD_API_KEY": KEY, "RUNPOD_ENDPOINT_BASE_URL": f"http://127.0.0.1:{self._port}/v2"}

    def take(self) -> dict[str, Any] | None:
        """The next job, for a worker within the test."""
        return asyncio.run_coroutine_threadsafe(self._take_one(), self._loop).result()

    def finish(self, job_id: str, **state: Any) -> None:
        """A job's end, unless it is forgotten."""
        self._loop.call_soon_threadsafe(self._finish, job_id, state)

    async def _take_one(self) -> dict[str, Any] | None:
        if not self._jobs:
            return None
        job = self._jobs.popleft()
        self._set(job["id"], status="IN_PROGRESS")
        return job

    def _set(self, job_id: str, **state: Any) -> None:
        if job_id in self.states:
            self.states[job_id] = {"id": job_id, "delayTime": 1, "executionTime": 2, "workerId": "pod-abc", **state}

    def _finish(self, job_id: str, state: dict[str, Any]) -> None:
        if self.states.get(job_id, {}).get("status") in ("IN_QUEUE", "IN_PROGRESS"):
            self._set(job_id, **state)

    def _app(self) -> web.Application:
        app = super()._app()
        app.router.add_post("/v2/ep-test/run", self._run)
        app.router.add_get("/v2/ep-test/status/{job}", self._status)
        app.router.add_post("/v2/ep-test/cancel/{job}", self._cancel)
        app.router.add_get("/v2/ep-test/health", self._health)
        return app

    async def _take(self, request: web.Request) -> web.Response:
        reply = await super()._take(request)
        for job_id in self.taken:
            if self.states.get(job_id, {}).get("status") == "IN_QUEUE":
                self._set(job_id, status="IN_PROGRESS")
        return reply

    async def _done(self, request: web.Request) -> web.Response:
        reply = await super()._done(request)
        job_id = request.match_info["job"]
        if reply.status == 200 and (answers := self.answers(job_id)):
            body = {name: value for name, value in answers[-1].items() if name in ("output", "error")}
            self._finish(job_id, {"status": "FAILED" if "error" in body else "COMPLETED", **body})
        return reply

    def _refuses(self, request: web.Request, call: str) -> web.Response | None:
        self.calls[call] += 1
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.Response(status=401)
        fault = self.fault(call)
        if isinstance(fault, int):
            return web.json_response({}, status=fault, headers={"Retry-After": self.retry_after})
        return None if fault is None else _lose(request)

    async def _run(self, request: web.Request) -> web.Response:
        text = await request.text()
        if len(text) > _JOB_BYTES_MAX:
            return web.json_response({}, status=413)
        refused = self._refuses(request, "run")
        if refused and refused.status != _LOST:
            return refused
        job = {"id": f"{secrets.token_hex(8)}-u1", **json.loads(text)}
        self.sent[job["id"]] = job
        self.states[job["id"]] = {"id": job["id"], "status": "IN_QUEUE"}
        self._jobs.append(job)
        return refused or web.json_response(self.states[job["id"]])

    async def _status(self, request: web.Request) -> web.Response:
        if refused := self._refuses(request, "status"):
            return refused
        state = self.states.get(request.match_info["job"])
        return web.json_response({}, status=404) if state is None else web.json_response(state)

    async def _cancel(self, request: web.Request) -> web.Response:
        if refused := self._refuses(request, "cancel"):
            return refused
        job_id = request.match_info["job"]
        if job_id not in self.states:
            return web.json_response({}, status=404)
        self._finish(job_id, {"status": "CANCELLED"})
        return web.json_response(self.states[job_id])

    async def _health(self, request: web.Request) -> web.Response:
        if refused := self._refuses(request, "health"):
            return refused
        counts = Counter(state["status"] for state in self.states.values())
        workers = {"idle": 0, "initializing": 0, "running": 2, "throttled": 0}
        return web.json_response({"workers": workers, "jobs": {"inQueue": counts["IN_QUEUE"]}})


def _lose(request: web.Request) -> web.Response:
    """Cut the connection."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response(status=_LOST)
