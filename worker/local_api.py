"""The API of a local run: a stand-in for an endpoint on Runpod, and a page to try the model with.

It takes the place of the SDK's own, in which a job of `/run` begins only when its status is asked for. None of this is
served on Runpod.
"""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi import Path as InPath
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import FileResponse, JSONResponse
from PIL import Image
from pydantic import BaseModel
from runpod.serverless.modules import rp_fastapi

from worker.form import offered_fields
from worker.guard import LOOPBACK_NAMES, is_loopback, refusal
from worker.outputs import EXTENSIONS
from worker.report import VERSION
from worker.schema import input_schema
from worker.service import Service

PAGE = Path(__file__).with_name("page")
PAGE_FILES = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
JOBS_KEPT = 200
"""Jobs whose answers can be asked for; the oldest is forgotten first."""
LISTED = 60
"""Pictures of earlier runs that are listed, the newest first."""
POLICIES = {
    "/docs": "frame-ancestors 'none'",  # Its scripts come from a CDN, as FastAPI has it.
    "": "default-src 'self'; img-src 'self' data: https: http:; frame-ancestors 'none'",
}

_DESCRIPTION = "Runs jobs as an endpoint on Runpod does. [A page to try it with](/)."
# As pictures are named by `worker.places`.
_JOB, _NAME = r"^[A-Za-z0-9_-]+$", rf"^[0-9-]+\.({'|'.join(EXTENSIONS.values())})$"


class NewJob(BaseModel):
    """What is posted to make a job of."""

    model_config = {"json_schema_extra": {"examples": [{"input": {"prompt": "red heart", "seed": 42}}]}}

    input: dict[str, Any]
    webhook: str | None = None
    s3Config: dict[str, Any] | None = None  # noqa: N815


class JobState(TypedDict):
    """How a job does: `output` is its answer, or while it runs its last progress report."""

    id: str
    status: str
    output: NotRequired[dict[str, Any]]
    error: NotRequired[str]


def extend_api(service: Service, output_dir: Path, reports: Mapping[str, dict[str, Any]]) -> None:
    """Have the SDK serve the API of this file; to be called before it starts.

    `reports`: the last progress report of each job that runs, by its id.
    """
    rp_fastapi.WorkerAPI = partial(LocalApi, service, output_dir, reports)


class LocalApi(rp_fastapi.WorkerAPI):
    """Served by the SDK, which reads the command line, with an app of its own."""

    def __init__(
        self, service: Service, output_dir: Path, reports: Mapping[str, dict[str, Any]], config: dict[str, Any]
    ):
        super().__init__(config)
        self._service = service
        self._folder = output_dir
        self._reports = reports
        self._tasks: dict[str, asyncio.Task[JobState]] = {}
        self.rp_app = self._app()
        if is_loopback(config["rp_args"]["rp_api_host"]):
            # Another site's name that is made to point here (DNS rebinding) would pass for this origin.
            self.rp_app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK_NAMES, www_redirect=False)

    def _app(self) -> FastAPI:
        app = FastAPI(title="worker-jax-diffusion", version=VERSION, description=_DESCRIPTION, redoc_url=None)
        app.middleware("http")(_guard)
        for path, name in PAGE_FILES.items():
            app.get(path, include_in_schema=False, response_class=FileResponse)(_file(PAGE / name))
        app.post("/run", summary="Begin a job.")(self._run)
        app.post("/runsync", summary="Do a job.")(self._runsync)
        app.get("/status/{job_id}", summary="How a job does, or its answer.")(self._status)
        app.post("/status/{job_id}", summary="Wait for a job's answer, as the SDK's API does.")(self._wait)
        app.post("/cancel/{job_id}", summary="End a job.")(self._cancel)
        app.get("/health", summary="How many jobs there are.")(self._health)
        app.get("/schema", summary="The JSON schema of a job's input.")(_schema)
        app.get("/options", summary="The model, and the fields that it takes.")(self._options)
        app.get("/output", summary="The newest pictures of the output folder.")(self._list)
        app.get("/output/{job}/{name}", summary="One of them.", response_class=FileResponse)(self._picture)
        app.openapi = partial(_openapi, app)
        return app

    async def _run(self, given: NewJob) -> JobState:
        return {"id": self._begin(given), "status": "IN_PROGRESS"}

    async def _runsync(self, given: NewJob, wait: Annotated[int | None, Query(ge=1000, le=300_000)] = None) -> JobState:
        """After `wait` milliseconds the answer is the job's status."""
        job_id = self._begin(given)
        await asyncio.wait([self._task(job_id)], timeout=wait and wait / 1000)
        return await self._status(job_id)

    def _begin(self, given: NewJob) -> str:
        job_id = f"local-{uuid.uuid4()}"
        job = {"id": job_id, "input": given.input} | ({"s3Config": given.s3Config} if given.s3Config else {})
        self._tasks[job_id] = asyncio.create_task(self._work(job, given.webhook))
        ended = [name for name, task in self._tasks.items() if task.done()]
        for name in ended[: max(0, len(self._tasks) - JOBS_KEPT)]:
            del self._tasks[name]
        return job_id

    async def _work(self, job: dict[str, Any], webhook: str | None) -> JobState:
        done = await rp_fastapi.run_job(self.config["handler"], job)
        state: JobState = {"id": job["id"], "status": "FAILED" if "error" in done else "COMPLETED"}
        if "error" in done:
            state["error"] = done["error"]
        else:
            state["output"] = done["output"]
        if webhook:
            await asyncio.to_thread(rp_fastapi._send_webhook, webhook, dict(state))  # pyright: ignore[reportPrivateUsage]
        return state

    def _task(self, job_id: str) -> asyncio.Task[JobState]:
        if job_id not in self._tasks:
            raise HTTPException(404, f"no job {job_id}")
        return self._tasks[job_id]

    async def _status(self, job_id: str) -> JobState:
        task = self._task(job_id)
        if task.cancelled():
            return {"id": job_id, "status": "CANCELLED"}
        if task.done():
            return task.result()
        state: JobState = {"id": job_id, "status": "IN_PROGRESS"}
        if job_id in self._reports:
            state["output"] = self._reports[job_id]
        return state

    async def _wait(self, job_id: str) -> JobState:
        await asyncio.wait([self._task(job_id)])
        return await self._status(job_id)

    async def _cancel(self, job_id: str) -> JobState:
        self._task(job_id).cancel()
        return await self._wait(job_id)

    async def _health(self) -> dict[str, dict[str, int]]:
        jobs = self._service.tally.jobs()
        busy = int(jobs["in_hand"] > 0)
        return {
            "jobs": {
                "completed": jobs["served"],
                "failed": jobs["failed"],
                "inProgress": jobs["in_hand"],
                "inQueue": 0,
                "retried": 0,
            },
            "workers": {"idle": 1 - busy, "initializing": 0, "ready": 1, "running": busy, "throttled": 0},
        }

    def _options(self) -> dict[str, Any]:
        planner, manifest = self._service.engine.planner, self._service.engine.manifest
        model = {"source": manifest.source, "revision": manifest.revision, "family": manifest.family}
        return {"model": model, "fields": offered_fields(planner)}

    def _list(self) -> list[dict[str, str]]:
        # Other files in the folder have no address here.
        named = (path for path in self._folder.glob("*/*") if re.match(_JOB, path.parent.name))
        found = [(path.stat().st_mtime, path) for path in named if re.match(_NAME, path.name)]
        return [_listed(path, modified) for modified, path in sorted(found, reverse=True)[:LISTED]]

    def _picture(
        self, job: Annotated[str, InPath(pattern=_JOB)], name: Annotated[str, InPath(pattern=_NAME)]
    ) -> FileResponse:
        path = self._folder / job / name
        if not path.is_file():
            raise HTTPException(404, f"no picture {job}/{name}")
        return FileResponse(path)


def _schema() -> dict[str, Any]:
    return input_schema()


def _file(path: Path) -> Callable[[], Path]:
    return lambda: path


async def _guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    if reason := refusal(request.method, request.headers):
        return JSONResponse({"detail": reason}, 403)
    response = await answer(request)
    response.headers["Content-Security-Policy"] = POLICIES.get(request.url.path, POLICIES[""])
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's description of the API, with the schema of a job's input in it."""
    if app.openapi_schema is None:
        app.openapi_schema = FastAPI.openapi(app)
        schemas = app.openapi_schema["components"]["schemas"]
        given = input_schema("#/components/schemas")
        schemas |= given["$defs"]
        schemas["NewJob"]["properties"]["input"] = {"title": given["title"], "anyOf": given["anyOf"]}
    return app.openapi_schema


def _listed(path: Path, modified: float) -> dict[str, str]:
    """A picture's address, its time, and the text in it that says how it was made, if it is a PNG with one."""
    try:
        with Image.open(path) as image:
            parameters = str(image.info.get("parameters", ""))
    except OSError:
        parameters = ""
    made = datetime.fromtimestamp(modified, UTC).isoformat(timespec="seconds")
    return {"url": f"/output/{path.parent.name}/{path.name}", "modified": made, "parameters": parameters}
