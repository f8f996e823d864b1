"""Places of pictures: what a store is, and how pictures are named in it.

A picture that is kept already is found again with the facts that were given with it, so that a job that comes a second
time need not make it again.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from worker.outputs import PictureFile


@dataclass(frozen=True)
class Place:
    """What stands for a stored picture in the answer.

    `url` is a link, a data URL or, in a local run, a path; `key` and `expires_at` (UTC, ISO 8601) belong to a bucket.
    """

    url: str
    key: str | None = None
    expires_at: str | None = None


@dataclass(frozen=True)
class Found:
    """A whole picture that was stored before, with the facts that were given with it."""

    place: Place
    facts: Mapping[str, str]
    size_bytes: int
    content_type: str


@dataclass(frozen=True)
class Store:
    """Where pictures are kept; may be used by several threads at once.

    `put(job_id, name, file, facts)` keeps a picture in place of an earlier one of these names, and raises
    GenerationError when it cannot. `facts` are a few words of printable ASCII under names of `a-z 0-9 -`, of 2 KB in
    all. `find(job_id, name, extension)` never fails: what cannot be found can be made again.
    """

    put: Callable[[str, str, PictureFile, Mapping[str, str]], Place]
    find: Callable[[str, str, str], Found | None]


def picture_place(
    job_id: str, request_name: str | None, request_index: int | None, picture_index: int
) -> tuple[str, str]:
    """Folder and name of a picture: those of the request's own name (FOLDER/NAME), if it has one, else of its job."""
    if request_name is None:
        return job_id, picture_name(request_index, picture_index)
    folder, name = request_name.split("/")
    return folder, f"{name}-{picture_index}"


def picture_name(request_index: int | None, picture_index: int) -> str:
    """A picture's name within its job: "0" in a job of one request, "3-0" in request 3 of many."""
    return str(picture_index) if request_index is None else f"{request_index}-{picture_index}"


def file_name(job_id: str, name: str, extension: str) -> str:
    """`job-id/name.extension`, of characters that are safe in paths and keys."""
    # A job id comes from outside: only its own characters may name a folder.
    folder = re.sub(r"[^A-Za-z0-9_-]", "_", job_id)[:200] or "job"
    return f"{folder}/{name}.{extension}"
