"""The SDK's API on localhost, made a stand-in for Runpod's: jobs run behind `/run`, `/status` tells how far they are.

Beside it, a page to try the model with. None of this is served on Runpod.
"""

import asyncio
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException
from fastapi import Path as InPath
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse
from PIL import Image
from runpod.serverless.modules import rp_fastapi

from worker.diffusion.names import offered, title_of
from worker.outputs import EXTENSIONS
from worker.schema import field_schemas, input_schema
from worker.service import Service

PAGE = Path(__file__).with_name("page.html")
JOBS_KEPT = 200
"""Jobs whose answers can be asked for; the oldest is forgotten first."""
LISTED = 60
"""Pictures of earlier runs that are listed, the newest first."""

_DESCRIPTION = """
Runs jobs as an endpoint on Runpod does. `/schema` has the JSON schema of a job's input, and `/` a page to try it with.
"""
# As pictures are named by `worker.places`.
JobFolder = Annotated[str, InPath(pattern=r"^[A-Za-z0-9_-]+$")]
PictureName = Annotated[str, InPath(pattern=rf"^[0-9-]+\.({'|'.join(EXTENSIONS.values())})$")]


def extend_api(service: Service, output_dir: Path, reports: Mapping[str, dict[str, Any]]) -> None:
    """Have the SDK serve the API of this file; to be called before it starts.

    `reports`: the last progress report of each job that runs, by its id.
    """
    rp_fastapi.WorkerAPI = partial(LocalApi, service, output_dir, reports)


class LocalApi(rp_fastapi.WorkerAPI):
    """The SDK's app with other answers of `/run` and `/status`, and a few routes more."""

    def __init__(
        self, service: Service, output_dir: Path, reports: Mapping[str, dict[str, Any]], config: dict[str, Any]
    ):
        super().__init__(config)
        self._service = service
        self._folder = output_dir
        self._reports = reports
        self._tasks: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self.rp_app.title, self.rp_app.description = "worker-jax-diffusion", _DESCRIPTION
        router = APIRouter()
        # Hidden from the docs are pages, and what the SDK's own routes describe.
        hidden: dict[str, Any] = {"include_in_schema": False}
        router.add_api_route("/", self._page, response_class=HTMLResponse, **hidden)
        router.add_api_route("/docs", self._docs, response_class=HTMLResponse, **hidden)
        router.add_api_route("/run", self._run, methods=["POST"], **hidden)
        router.add_api_route("/status/{job_id}", self._wait, methods=["POST"], **hidden)
        router.add_api_route("/status/{job_id}", self._status, summary="How a job does, or its answer.")
        router.add_api_route("/cancel/{job_id}", self._cancel, methods=["POST"], summary="End a job.")
        router.add_api_route("/schema", input_schema, summary="The JSON schema of a job's input.")
        router.add_api_route("/options", self._options, summary="What the model and the worker offer.")
        router.add_api_route("/output", self._list, summary="The newest pictures of the output folder.")
        router.add_api_route("/output/{job}/{name}", self._picture, response_class=FileResponse, summary="A picture.")
        self.rp_app.include_router(router)
        # The first route that fits a path answers: ours come before the SDK's.
        routes = self.rp_app.router.routes
        routes.insert(0, routes.pop())

    async def _run(self, given: rp_fastapi.DefaultRequest) -> dict[str, Any]:
        job_id = f"test-{uuid.uuid4()}"
        job = {"id": job_id, "input": given.input}
        self._tasks[job_id] = asyncio.create_task(self._work(job, given.webhook))
        ended = [name for name, task in self._tasks.items() if task.done()]
        for name in ended[: len(self._tasks) - JOBS_KEPT]:
            del self._tasks[name]
        return {"id": job_id, "status": "IN_PROGRESS"}

    async def _wait(self, job_id: str) -> dict[str, Any]:
        """As the SDK's, which answers when the job is done."""
        await asyncio.wait([self._task(job_id)])
        return await self._status(job_id)

    async def _work(self, job: dict[str, Any], webhook: str | None) -> dict[str, Any]:
        done = await rp_fastapi.run_job(self.config["handler"], job)
        failed = {"status": "FAILED", "error": done.get("error")}
        answer = {"id": job["id"]} | (failed if "error" in done else {"status": "COMPLETED", "output": done["output"]})
        if webhook:
            await asyncio.to_thread(rp_fastapi._send_webhook, webhook, answer)  # pyright: ignore[reportPrivateUsage]
        return answer

    def _task(self, job_id: str) -> asyncio.Task[dict[str, Any]]:
        if job_id not in self._tasks:
            raise HTTPException(404, f"no job {job_id}")
        return self._tasks[job_id]

    async def _status(self, job_id: str) -> dict[str, Any]:
        task = self._task(job_id)
        if task.cancelled():
            return {"id": job_id, "status": "CANCELLED"}
        if task.done():
            return task.result()
        report = self._reports.get(job_id)
        return {"id": job_id, "status": "IN_PROGRESS"} | ({"output": report} if report else {})

    async def _cancel(self, job_id: str) -> dict[str, Any]:
        self._task(job_id).cancel()
        await asyncio.wait([self._task(job_id)])
        return await self._status(job_id)

    def _page(self) -> str:
        return PAGE.read_text("utf-8")

    def _docs(self) -> HTMLResponse:
        return get_swagger_ui_html(openapi_url="/openapi.json", title=self.rp_app.title)

    def _options(self) -> dict[str, Any]:
        """Fields with their bounds, names of schedulers, and what this model does where a job says nothing."""
        planner, manifest = self._service.engine.planner, self._service.engine.manifest
        side = planner.pipeline.sample_size
        return {
            "model": {"source": manifest.source, "revision": manifest.revision, "family": manifest.family},
            "fields": field_schemas(),
            "schedulers": offered(),
            "sizes": planner.settings.sizes,
            "defaults": {
                "width": side,
                "height": side,
                "num_inference_steps": planner.defaults.num_inference_steps,
                "guidance_scale": planner.defaults.guidance_scale,
                "strength": planner.defaults.strength,
                "scheduler": title_of(planner.schedule.class_name, {}),
            },
        }

    def _list(self) -> list[dict[str, str]]:
        extensions = {f".{extension}" for extension in EXTENSIONS.values()}
        found = [(path.stat().st_mtime, path) for path in self._folder.glob("*/*") if path.suffix in extensions]
        return [_listed(path, modified) for modified, path in sorted(found, reverse=True)[:LISTED]]

    def _picture(self, job: JobFolder, name: PictureName) -> FileResponse:
        path = self._folder / job / name
        if not path.is_file():
            raise HTTPException(404, f"no picture {job}/{name}")
        return FileResponse(path)


def _listed(path: Path, modified: float) -> dict[str, str]:
    """A picture's address, its time, and the text in it that says how it was made, if it is a PNG with one."""
    with Image.open(path) as image:
        parameters = str(image.info.get("parameters", ""))
    made = datetime.fromtimestamp(modified, UTC).isoformat(timespec="seconds")
    return {"url": f"/output/{path.parent.name}/{path.name}", "modified": made, "parameters": parameters}
