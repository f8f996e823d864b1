"""Pictures in an S3 bucket: uploads, look-ups and links."""

import logging
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote, urlsplit

import boto3.session
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from worker.bucket import Bucket, region_of
from worker.errors import GenerationError
from worker.outputs import PictureFile
from worker.places import Found, Place, Store, file_name

log = logging.getLogger(__name__)

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
        key = prefix + file_name(job_id, name, file.extension)
        content = {"Body": file.data, "ContentType": file.content_type, "Metadata": dict(facts)}
        try:
            client.put_object(Bucket=bucket.name, Key=key, **content)
        except (BotoCoreError, ClientError) as error:
            # The texts of such errors may quote keys and signed requests.
            raise GenerationError(f"picture {name}: the upload to {where} failed: {_reason(error)}") from None
        return place(key)

    def find(job_id: str, name: str, extension: str) -> Found | None:
        key = prefix + file_name(job_id, name, extension)
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
