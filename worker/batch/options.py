"""The command line. Pure."""

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from worker.batch.client import Limits
from worker.batch.rows import from_text
from worker.errors import BatchError
from worker.job import REQUESTS_MAX
from worker.request import Request, bounds

_FOLDER = re.compile(r"[A-Za-z0-9_-]{1,100}")
EXITS = """exit codes: 0 all pictures are there; 1 some requests failed; 2 nothing was begun (arguments, lines);
3 it could not go on, and can be called again; 130 interrupted, and can be called again"""
ENVIRONMENT = """environment: RUNPOD_API_KEY, and with --out s3://BUCKET/FOLDER the keys that go along with the jobs:
BUCKET_ENDPOINT_URL, BUCKET_ACCESS_KEY_ID, BUCKET_SECRET_ACCESS_KEY"""


class Out(NamedTuple):
    """Where things go. `bucket`: None if pictures come here, "" if the endpoint's own takes them.

    `folder` is the first part of every request's name, and so of its pictures' keys; "" to be named after the file.
    """

    state: Path
    bucket: str | None
    folder: str


def parse_options(arguments: Sequence[str]) -> Namespace:
    """What is asked for; exits with 2 where it cannot be understood."""
    parser = ArgumentParser(
        prog="python -m worker.batch", description="Pictures of a whole file of requests.", epilog=EXITS
    )
    commands = parser.add_subparsers(required=True, dest="command")
    _submit(commands.add_parser("submit", help="make what is not made yet", epilog=f"{ENVIRONMENT}. {EXITS}."))
    cancel = commands.add_parser("cancel", help="cancel the jobs that an interrupted client has left behind")
    cancel.add_argument("--endpoint", required=True, metavar="ID")
    _out(cancel)
    gallery = commands.add_parser("gallery", help="a page of the results to look at")
    gallery.add_argument("folder", type=Path, help="the batch's folder, with results.jsonl in it")
    gallery.add_argument("--page", type=Path, metavar="FILE", help="by default gallery.html in that folder")
    return parser.parse_args(arguments)


def request_defaults(options: Namespace) -> dict[str, Any]:
    """What the command line says for all requests."""
    given = {name: getattr(options, f"request_{name}") for name in _DEFAULTS}
    return {name: from_text(name, text) for name, text in given.items() if text is not None}


_DEFAULTS = tuple(name for name in Request.model_fields if name != "name")


def _submit(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="requests: .jsonl with an object a line, or .csv with a header")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--endpoint", metavar="ID", help="the Runpod endpoint that makes them")
    where.add_argument("--local", action="store_true", help="make them on this machine, one process per GPU")
    _out(parser)
    parser.add_argument("--retry-failed", action="store_true", help="requests that have failed are tried anew")
    parser.add_argument("--ignore", action="append", default=[], metavar="NAME", help="leave a column out")
    parser.add_argument("--price", type=_positive(float), default=0.0, help="of a worker's second, for the cost")
    parser.add_argument("--devices", type=_positive(int), help="with --local: processes; by default one per GPU")
    limits = parser.add_argument_group("limits")
    default = Limits()
    limits.add_argument("--jobs", type=_positive(int), default=default.jobs, help="in flight at once (%(default)s)")
    limits.add_argument(
        "--per-job", type=_upto(REQUESTS_MAX), default=default.requests_per_job,
        help="most requests in a job (%(default)s); fewer where pictures come in the answer",
    )  # fmt: skip
    limits.add_argument("--tries", type=_positive(int), default=default.tries, help="of each request (%(default)s)")
    limits.add_argument(
        "--timeout", type=_positive(float), default=default.timeout_s, help="seconds that a job may run (%(default)g)"
    )
    limits.add_argument(
        "--poll", type=_positive(float), default=default.poll_s, help="seconds between looks at a job (%(default)g)"
    )
    limits.add_argument(
        "--backoff", type=_positive(float), default=default.backoff_s,
        help="seconds before a first repetition; it doubles with each (%(default)g)",
    )  # fmt: skip
    limits.add_argument(
        "--outage", type=_positive(float), default=3600.0,
        help="seconds without any answer of the platform after which to stop (%(default)g)",
    )  # fmt: skip
    limits.add_argument(
        "--stop-after", type=_positive(int), default=default.failures_in_a_row, metavar="JOBS",
        help="stop when so many jobs in a row have failed (%(default)s)",
    )  # fmt: skip
    group = parser.add_argument_group("requests", "for lines that do not say otherwise")
    for name in _DEFAULTS:
        field = Request.model_fields[name]
        about = f"{field.description} {bounds(field)}".strip().replace("%", "%%")
        group.add_argument(f"--{name.replace('_', '-')}", dest=f"request_{name}", metavar="VALUE", help=about)


def _out(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=_parse_out, required=True, metavar="DIR|s3://BUCKET/FOLDER",
        help="where pictures go; s3:///FOLDER is the endpoint's own bucket",
    )  # fmt: skip
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help="for journal and results; by default --out's folder, or batch-FOLDER"
    )


def out_of(options: Namespace, file: Path | None) -> Out:
    """Where things go, with what is left to defaults; raises BatchError where the file's name cannot serve."""
    out: Out = options.out
    folder = out.folder or re.sub(r"[^A-Za-z0-9_-]", "-", file.stem if file else "")[:100]
    if file and not _FOLDER.fullmatch(folder):
        raise BatchError(f"{file}: its name is empty; --out s3:///FOLDER names the folder")
    state = options.state or (Path(f"batch-{folder}") if out.bucket is not None else out.state)
    return Out(state, out.bucket, folder)


def _parse_out(text: str) -> Out:
    if not text.startswith("s3://"):
        return Out(Path(text), None, "")
    parts = urlsplit(text)
    folder = parts.path.strip("/")
    if not _FOLDER.fullmatch(folder):
        raise ArgumentTypeError(f"{text!r} is not s3://BUCKET/FOLDER: one folder of letters, digits, - and _ is needed")
    return Out(Path(), parts.netloc, folder)


def _positive[T: (int, float)](kind: type[T]) -> Callable[[str], T]:
    def parse(text: str) -> T:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise ArgumentTypeError(f"{text} is not above 0")
        return value

    parse.__name__ = "number"
    return parse


def _upto(most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not 1 <= int(text) <= most:
            raise ArgumentTypeError(f"{text} is not 1 to {most}")
        return int(text)

    parse.__name__ = "number"
    return parse
