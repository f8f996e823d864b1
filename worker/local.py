"""Runs on one's own machine: the job of `test_input.json`, or an API on localhost; what they show of their jobs."""

import argparse
import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, TextIO, cast

from tqdm import tqdm

from worker.errors import StartupError
from worker.runner import Job, JobRunner
from worker.sdk import serverless
from worker.service import Service
from worker.settings import Settings

log = logging.getLogger(__name__)

API_FLAG = "--rp_serve_api"
"""With which the SDK serves an API."""
_EXAMPLE = """an example is '{"input": {"prompt": "a red fox"}}'"""
_LINE_EVERY_S = 5.0
_BAR = "{desc} {percentage:3.0f}% |{bar:30}| {elapsed}, {remaining} left"


def check_job(arguments: Sequence[str]) -> None:
    """Raise StartupError if the job of the command line, or of `test_input.json`, is none that the SDK takes."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--test_input")
    parser.add_argument(API_FLAG, dest="serves", action="store_true")
    options, _ = parser.parse_known_args(arguments)
    file = Path("test_input.json")
    if options.serves or (options.test_input is None and not file.exists()):
        return
    source = file.name if options.test_input is None else "--test_input"
    try:
        job = json.loads(file.read_text("utf-8") if options.test_input is None else options.test_input)
    except (OSError, ValueError, RecursionError) as error:
        raise StartupError(f"{source}: cannot be read ({error}); {_EXAMPLE}") from None
    if not isinstance(job, dict) or cast(Job, job).get("input") is None:
        raise StartupError(f'{source}: not an object with "input"; {_EXAMPLE}')


def run_locally(service: Service, settings: Settings) -> None:
    """Hand the service to the SDK, which runs one job and exits, or serves its API."""
    console = Console(sys.stderr)
    reports: dict[str, dict[str, Any]] = {}

    def report(job: Job, update: dict[str, Any]) -> None:
        reports[job["id"]] = update
        console.progress(job, update)

    runner = JobRunner(service.run, settings, report)

    async def handle(job: Job) -> dict[str, Any]:
        try:
            answer = await runner.handle(job)
            console.finish(job, answer)
            return answer
        finally:
            reports.pop(job["id"], None)

    if API_FLAG in sys.argv:
        # A web framework is not waited for by a run of one job.
        from worker.local_api import extend_api

        extend_api(service, settings.output_dir, reports)
    serverless.start({"handler": handle})


class Console:
    """How far jobs are, as bars on a terminal, else as lines in the log; any thread may tell it."""

    def __init__(self, out: TextIO):
        self._out = out
        self._lock = Lock()
        self._bars: dict[str, Any] = {}
        self._last = time.monotonic()

    def progress(self, job: Job, update: Mapping[str, Any]) -> None:
        """Show that `update["progress"]` of a job, 0 to 1, is done."""
        done: float = update["progress"]
        with self._lock:
            if self._out.isatty():
                self._bar(job["id"]).update(done - self._bar(job["id"]).n)
            elif time.monotonic() - self._last >= _LINE_EVERY_S:
                self._last = time.monotonic()
                log.info("job %s: %.0f %%", job["id"], 100 * done)

    def finish(self, job: Job, answer: dict[str, Any]) -> None:
        """End the job's bar, and print what came of it; an error is the SDK's to print."""
        with self._lock:
            bar = self._bars.pop(job["id"], None)
            if bar is not None:
                bar.update(0 if "error" in answer else 1 - bar.n)
                bar.close()
            if "error" not in answer:
                print("\n".join(summary(answer)), flush=True)

    def _bar(self, job_id: str) -> Any:
        if job_id not in self._bars:
            bar = tqdm(total=1.0, desc=job_id, bar_format=_BAR, file=self._out, mininterval=0)
            self._bars[job_id] = cast(Any, bar)
        return self._bars[job_id]


def summary(answer: Mapping[str, Any]) -> list[str]:
    """Lines for people: where the pictures are, what was used, how long it took. A report is shown as it is."""
    results: Sequence[Mapping[str, Any]] = answer.get("results", [answer])
    if "timings" not in answer:
        return [json.dumps(answer, indent=2)]
    lines = [line for result in results for line in _result(result)]
    seconds: Mapping[str, float] = answer["timings"]
    compiled = f", {seconds['compile_s']:.1f} s of them to compile" if seconds.get("compile_s", 0) >= 0.1 else ""
    return [*lines, f"model {answer['model']['source']}, {seconds['total_s']:.1f} s{compiled}"]


def _result(result: Mapping[str, Any]) -> list[str]:
    if "error" in result:
        return [f"error: {result['error']}"]
    pictures: Sequence[Mapping[str, Any]] = result["pictures"]
    used: Mapping[str, Any] = result["used"]
    places = [
        f"{place}  {picture['width']}x{picture['height']}, seed {picture['seed']}"
        for place, picture in zip(result["images"], pictures, strict=True)
    ]
    strength = "" if used["strength"] is None else f", strength {used['strength']:g}"
    settings = f"{used['num_inference_steps']} steps, guidance {used['guidance_scale']:g}{strength}"
    warnings = [f"warning: {warning}" for warning in result["warnings"]]
    return [*places, f"{settings}, {used['scheduler']}", *warnings]
