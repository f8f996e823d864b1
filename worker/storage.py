"""Where pictures go: an S3 bucket, a local folder, or into the answer itself as base64.

A picture that is kept already is found again with the facts that were given with it, so that a job that comes a second
time need not make it again.
"""

import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlsplit

import boto3.session
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from worker.bucket import Bucket, bucket_of_job, bucket_of_settings, region_of
from worker.errors import GenerationError
from worker.outputs import PictureFile, data_url
from worker.settings import Settings

log = logging.getLogger(__name__)


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


def picture_name(request_index: int | None, picture_index: int) -> str:
    """A picture's name within its job: "0" in a job of one request, "3-0" in request 3 of many."""
    return str(picture_index) if request_index is None else f"{request_index}-{picture_index}"


def operator_store(settings: Settings, *, local: bool) -> Store:
    """The bucket if one is set, else in a local run a folder, else the answer; raises SettingsError."""
    if bucket := bucket_of_settings(settings):
        return s3_store(bucket)
    return folder_store(settings.output_dir) if local else inline_store


def job_store(config: object) -> Store:
    """The store of a job's own `s3Config`; raises InvalidRequest."""
    return s3_store(bucket_of_job(config))


def folder_store(folder: Path) -> Store:
    """Store into `folder/job-id/name.extension`; the place is the path. A JSON file beside it has the facts, if any."""

    def put(job_id: str, name: str, file: PictureFile, facts: Mapping[str, str]) -> Place:
        path = folder / _file_name(job_id, name, file.extension)
        path.parent.mkdir(parents=True, exist_ok=True)
        if facts:
            # The digest tells whether picture and facts belong together, wherever a run was cut off.
            digest = hashlib.sha256(file.data).hexdigest()
            described = {"sha256": digest, "content_type": file.content_type, "facts": dict(facts)}
            _replace(_facts_file(path), json.dumps(described).encode("ascii"))
        _replace(path, file.data)
        return Place(str(path))

    def find(job_id: str, name: str, extension: str) -> Found | None:
        path = folder / _file_name(job_id, name, extension)
        try:
            described = json.loads(_facts_file(path).read_bytes())
            data = path.read_bytes()
        except (OSError, ValueError):
            return None
        if hashlib.sha256(data).hexdigest() != described["sha256"]:
            return None
        return Found(Place(str(path)), described["facts"], len(data), described["content_type"])

    return Store(put, find)


def _put_inline(_job_id: str, _name: str, file: PictureFile, _facts: Mapping[str, str]) -> Place:
    return Place(data_url(file))


def _find_nothing(_job_id: str, _name: str, _extension: str) -> None:
    return None


inline_store = Store(_put_inline, _find_nothing)
"""The picture as a data URL, as worker-sdxl returns it without a bucket; nothing is kept."""


def _file_name(job_id: str, name: str, extension: str) -> str:
    # A job id comes from outside: only its own characters may name a folder.
    folder = re.sub(r"[^A-Za-z0-9_-]", "_", job_id)[:200] or "job"
    return f"{folder}/{name}.{extension}"


def _facts_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _replace(path: Path, data: bytes) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(data)
    partial.replace(path)


# S3.

UPLOAD_ATTEMPTS = 4
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 20


def s3_store(bucket: Bucket) -> Store:
    """Store as `prefix/job-id/name.extension`, so that a repeated job overwrites its own; the place is a link.

    The facts are the object's metadata. One client serves all threads. It repeats a failed upload or look-up, and only
    that, with growing pauses up to `UPLOAD_ATTEMPTS`.
    """
    client = _client(bucket)
    prefix = "".join(f"{part}/" for part in bucket.prefix.split("/") if part)
    where = f"bucket {bucket.name!r} at {urlsplit(bucket.endpoint_url).hostname}"

    def put(job_id: str, name: str, file: PictureFile, facts: Mapping[str, str]) -> Place:
        key = prefix + _file_name(job_id, name, file.extension)
        content = {"Body": file.data, "ContentType": file.content_type, "Metadata": dict(facts)}
        try:
            client.put_object(Bucket=bucket.name, Key=key, **content)
        except (BotoCoreError, ClientError) as error:
            # The texts of such errors may quote keys and signed requests.
            raise GenerationError(f"picture {name}: the upload to {where} failed: {_reason(error)}") from None
        return place(key)

    def find(job_id: str, name: str, extension: str) -> Found | None:
        key = prefix + _file_name(job_id, name, extension)
        try:
            head = client.head_object(Bucket=bucket.name, Key=key)
        except (BotoCoreError, ClientError) as error:
            # Who may not list a bucket hears 403 of what is not there.
            if _status(error) not in (403, 404):
                log.warning("picture %s of job %s: not looked up in %s: %s", name, job_id, where, _reason(error))
            return None
        # Some servers capitalise the names.
        facts = {name.lower(): value for name, value in head["Metadata"].items()}
        return Found(place(key), facts, head["ContentLength"], head.get("ContentType", ""))

    def place(key: str) -> Place:
        if bucket.public_url:
            return Place(f"{bucket.public_url.rstrip('/')}/{quote(key)}", key)
        expires_at = datetime.now(UTC) + timedelta(seconds=bucket.url_expiry_s)
        wanted = {"Bucket": bucket.name, "Key": key}
        url = client.generate_presigned_url("get_object", Params=wanted, ExpiresIn=bucket.url_expiry_s)
        return Place(url, key, expires_at.strftime("%Y-%m-%dT%H:%M:%SZ"))

    return Store(put, find)


_building = threading.Lock()


def _client(bucket: Bucket) -> Any:
    # Building clients is not safe in several threads; using one is.
    with _building:
        return _built_client(bucket)


@lru_cache(maxsize=16)
def _built_client(bucket: Bucket) -> Any:
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": bucket.addressing_style},
        # Services other than AWS refuse the checksums that boto3 adds of itself.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"mode": "standard", "total_max_attempts": UPLOAD_ATTEMPTS},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        max_pool_connections=32,
    )
    session: Any = _session()
    return session.client(
        "s3",
        endpoint_url=bucket.endpoint_url.rstrip("/"),
        region_name=bucket.region or region_of(bucket.endpoint_url),
        aws_access_key_id=bucket.access_key_id,
        aws_secret_access_key=bucket.secret_access_key,
        aws_session_token=bucket.session_token or None,
        config=config,
    )


@lru_cache(maxsize=1)
def _session() -> boto3.session.Session:
    # It reads descriptions of all of AWS, which takes a second. A profile of the environment has no say here.
    return boto3.session.Session(botocore_session=botocore.session.Session({"profile": (None, None, None, None)}))


def _reason(error: BotoCoreError | ClientError) -> str:
    if isinstance(error, ClientError):
        response = _response(error)
        code = str(response.get("Error", {}).get("Code", "unknown"))[:60]
        tries = int(response.get("ResponseMetadata", {}).get("RetryAttempts", 0)) + 1
        return f"{code} (HTTP {_status(error)}, attempt {tries})"
    return type(error).__name__


def _status(error: BotoCoreError | ClientError) -> int | None:
    return _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode")


def _response(error: BotoCoreError | ClientError) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], error.response) if isinstance(error, ClientError) else {}
