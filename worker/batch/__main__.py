"""Make pictures of a whole file of requests on a Runpod endpoint, or on this machine."""

import logging
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from worker.batch.client import Client, Limits, Platform
from worker.batch.journal import Journal
from worker.batch.options import Out, out_of, parse_options, request_defaults
from worker.batch.pictures import Keep, keep_in_bucket, keep_in_folder
from worker.batch.progress import Progress
from worker.batch.results import RESULTS, write_results, write_summary
from worker.batch.rows import Row, check_defaults, read_rows
from worker.errors import BatchError, InvalidRequest, JobStopped, SettingsError
from worker.settings import load_settings

JOURNAL = "journal.sqlite3"
ALL_DONE, SOME_FAILED, NOT_BEGUN, NOT_ENDED, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes."""


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; returns the exit code."""
    options = parse_options(arguments)
    try:
        match options.command:
            case "gallery":
                from worker.batch.gallery import write_gallery

                print(write_gallery(options.folder, options.page))
                return ALL_DONE
            case "cancel":
                return _cancel(options)
            case _:
                return _submit(options)
    except (BatchError, InvalidRequest, SettingsError) as error:
        print(f"batch: {error}", file=sys.stderr)
        return NOT_BEGUN
    except KeyboardInterrupt:
        return INTERRUPTED


def _submit(options: Namespace) -> int:
    out = out_of(options, options.file)
    job_fields = _s3_config(out)
    out.state.mkdir(parents=True, exist_ok=True)
    journal = Journal(out.state / JOURNAL)
    try:
        _load(journal, options, out)
        return _run(journal, options, out, job_fields)
    finally:
        journal.close()


def _load(journal: Journal, options: Namespace, out: Out) -> None:
    """Bring the journal into agreement with file and options."""
    defaults = request_defaults(options)
    if wrong := [line.partition(":") for line in check_defaults(defaults)]:
        raise BatchError("; ".join(f"--{name.replace('_', '-')}:{rest}" for name, _, rest in wrong))
    known, endpoint = journal.facts(), options.endpoint or ""
    own = {"bucket": str(out.bucket), "folder": out.folder}
    for name, value in own.items():
        if (before := known.get(name, value)) != value:
            raise BatchError(f"{out.state / JOURNAL}: is that of a batch whose {name} is {before!r}, not {value!r}")
    journal.load(_valid(read_rows(options.file, defaults, frozenset(options.ignore))))
    if known.get("endpoint", endpoint) != endpoint or options.local:
        # Nobody answers for jobs of another endpoint, or of processes that are gone.
        journal.recall()
    journal.set_facts({**own, "endpoint": endpoint})
    if out.bucket is None:
        # Files that are gone are made again.
        journal.reset(_gone(journal, out.state))
    if options.retry_failed:
        journal.reset_failed()


def _valid(rows: Iterator[Row | str]) -> Iterator[Row]:
    """The rows; each that is not valid is told at once, and after the last one nothing is taken."""
    faults = count = 0
    for row in rows:
        count += 1
        if isinstance(row, str):
            faults += 1
            print(row, file=sys.stderr)
        elif not faults:
            yield row
    if faults:
        raise InvalidRequest([f"{faults} of {count} requests are not valid: nothing was sent"])
    if not count:
        raise BatchError("there are no requests in the file")


def _gone(journal: Journal, folder: Path) -> list[int]:
    return [
        position
        for position, entry in enumerate(journal.entries())
        if entry.answer and not all((folder / place).is_file() for place in entry.answer.get("images", ()))
    ]


def _run(journal: Journal, options: Namespace, out: Out, job_fields: dict[str, Any]) -> int:
    stop, began = Event(), time.monotonic()
    keep: Keep = keep_in_folder(out.state) if out.bucket is None else keep_in_bucket
    counts = journal.counts()
    limits = Limits(
        options.jobs, options.per_job, out.bucket is None and not options.local, options.tries, options.timeout,
        options.poll, options.backoff, options.stop_after,
    )  # fmt: skip
    progress = Progress(
        sys.stderr, sum(counts.values()), counts["done"], counts["failed"], options.price,
        float(journal.facts().get("worker_s", 0)),
    )  # fmt: skip
    code = NOT_ENDED
    try:
        if counts["waiting"] or counts["sent"]:
            platform = _platform(options, stop)
            try:
                Client(journal, platform, keep, limits, out.folder, progress, stop, job_fields).run()
            finally:
                platform.close()
        code = SOME_FAILED if progress.failed else ALL_DONE
    except BatchError as error:
        print(f"batch: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        progress.close()
    _finish(journal, out, progress, time.monotonic() - began, code)
    return code


def _finish(journal: Journal, out: Out, progress: Progress, seconds: float, code: int) -> None:
    """Results, summary, and what people are told."""
    write_results(journal, out.state)
    counts, errors = journal.counts(), journal.errors()
    cost = {"cost": round(progress.cost, 4)} if progress.cost else {}
    told = {
        "requests": sum(counts.values()), "done": counts["done"], "failed": counts["failed"],
        "open": sum(counts[state] for state in ("waiting", "sending", "sent")),
        "seconds": round(seconds, 1), "worker_seconds": round(progress.worker_s, 1), **cost,
        "jobs": journal.jobs_ended(), "errors": errors,
    }  # fmt: skip
    write_summary(out.state, told)
    print(f"{told['done']} of {told['requests']} requests are done, {told['failed']} failed, {told['open']} are open")
    for text, number in errors.items():
        print(f"  {number} x {text}")
    if code in (NOT_ENDED, INTERRUPTED):
        print(f"{counts['sent']} requests are with the platform; the same command goes on from here")
    print(out.state / RESULTS)


def _platform(options: Namespace, stop: Event) -> Platform:
    def pause(seconds: float) -> None:
        if stop.wait(seconds):
            raise JobStopped("the client ends")

    if options.local:
        from worker.batch.local import Devices, visible_devices

        # Pictures for a folder here need no way round by a bucket.
        hidden = () if options.out.bucket is not None else ("BUCKET_",)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        return Devices(visible_devices(environment, options.devices), environment)
    from worker.batch.endpoint import Endpoint

    key = os.environ.get("RUNPOD_API_KEY") or None
    return Endpoint(options.endpoint, key, options.jobs, pause, options.backoff, options.outage)


def _s3_config(out: Out) -> dict[str, Any]:
    """The bucket that goes along with each job."""
    if not out.bucket:
        return {}
    settings = load_settings(os.environ)
    names = ("bucket_endpoint_url", "bucket_access_key_id", "bucket_secret_access_key")
    if missing := [name.upper() for name in names if not getattr(settings, name)]:
        raise BatchError(
            f"--out s3://{out.bucket}/{out.folder} needs {', '.join(missing)} in the environment; "
            f"--out s3:///{out.folder} is the endpoint's own bucket"
        )
    endpoint_url, access_id, secret = (getattr(settings, name) for name in names)
    config = {"endpointUrl": endpoint_url, "accessId": access_id, "accessSecret": secret, "bucketName": out.bucket}
    return {"s3Config": config}


def _cancel(options: Namespace) -> int:
    out = out_of(options, None)
    if not (out.state / JOURNAL).is_file():
        raise BatchError(f"{out.state}: has no journal")
    journal = Journal(out.state / JOURNAL)
    try:
        jobs = journal.jobs_sent()
        options.local, options.jobs, options.backoff, options.outage = False, 1, 1.0, 60.0
        platform = _platform(options, Event())
        for job_id, _ in jobs:
            platform.cancel(job_id)
        journal.recall()
        print(f"{len(jobs)} jobs are cancelled")
        return ALL_DONE
    finally:
        journal.close()


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("worker").setLevel(logging.INFO)
    # A supervisor's stop is handled as Ctrl-C is.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
