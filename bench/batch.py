"""What the batch client itself costs: seconds per request and memory, against a platform that answers at once."""

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from aiohttp import web


def measure(requests: int) -> str:
    """A report of `requests` requests that go through the client, each with a prompt of its own."""
    receive, send = get_context("spawn").Pipe(duplex=False)
    platform = get_context("spawn").Process(target=_platform, args=(send,), daemon=True)
    platform.start()
    url = receive.recv()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "prompts.jsonl")
        with file.open("w") as lines:
            for index in range(requests):
                lines.write(json.dumps({"prompt": f"a red fox in the snow, number {index}", "seed": index}) + "\n")
        environment = {**os.environ, "RUNPOD_API_KEY": "rpa_bench", "RUNPOD_ENDPOINT_BASE_URL": f"{url}/v2"}
        command = [
            sys.executable, "-m", "worker.batch", "submit", str(file), "--endpoint", "bench",
            "--out", "s3:///bench", "--state", folder, "--poll", "0.5",
        ]  # fmt: skip
        began = time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wall_s = time.perf_counter() - began
        journal_mb = Path(folder, "journal.sqlite3").stat().st_size / 2**20
    platform.kill()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s, peak_mb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    return "\n".join(
        [
            "| requests | seconds | CPU time per request | peak memory | journal |",
            "| --- | --- | --- | --- | --- |",
            f"| {requests} | {wall_s:.0f} | {1e3 * cpu_s / requests:.2f} ms | {peak_mb:.0f} MB | {journal_mb:.0f} MB |",
        ]
    )


def _platform(ready: Connection) -> None:
    """Takes jobs; each is done when it is asked for."""
    jobs: dict[str, int] = {}

    async def run(request: web.Request) -> web.Response:
        job = await request.json()
        job_id = f"job-{len(jobs)}"
        jobs[job_id] = len(job["input"]["requests"])
        return web.json_response({"id": job_id, "status": "IN_QUEUE"})

    async def status(request: web.Request) -> web.Response:
        job_id = request.match_info["job"]
        results = [_result(f"{job_id}-{index}") for index in range(jobs[job_id])]
        return web.json_response({"id": job_id, "status": "COMPLETED", "output": {"results": results}})

    async def health(_request: web.Request) -> web.Response:
        return web.json_response({"workers": {"running": 1}, "jobs": {}})

    async def main() -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v2/bench/run", run)
        app.router.add_get("/v2/bench/status/{job}", status)
        app.router.add_get("/v2/bench/health", health)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ready.send(f"http://127.0.0.1:{runner.addresses[0][1]}")
        await asyncio.Event().wait()

    asyncio.run(main())


def _result(name: str) -> dict[str, Any]:
    url = f"https://bucket.example.com/bench/{name}.png?" + "X-Amz-Signature=" + "0" * 400
    picture = {
        "seed": 1, "width": 1024, "height": 1024, "content_type": "image/png", "size_bytes": 1_500_000,
        "sha256": "0" * 64, "url": url, "key": name, "expires_at": "2030-01-01T00:00:00Z",
    }  # fmt: skip
    used = {
        "width": 1024, "height": 1024, "num_inference_steps": 30, "guidance_scale": 7.5, "guidance_rescale": 0.0,
        "scheduler": "PNDMScheduler", "scheduler_options": {}, "strength": None,
    }  # fmt: skip
    return {"images": [url], "image_url": url, "seed": 1, "pictures": [picture], "used": used, "warnings": []}
