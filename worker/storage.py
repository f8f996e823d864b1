"""Where pictures go: an S3 bucket, a local folder, or into the answer itself as base64."""

import base64
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import quote, urlsplit

import boto3.session
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from runpod.serverless.utils import rp_ssrf

from worker.errors import GenerationError, InvalidRequest, SettingsError
from worker.outputs import PictureFile
from worker.settings import Settings


@dataclass(frozen=True)
class Place:
    """What stands for a stored picture in the answer.

    `url` is a link, a data URL or, in a local run, a path; `key` and `expires_at` (UTC, ISO 8601) belong to a bucket.
    """

    url: str
    key: str | None = None
    expires_at: str | None = None


Store = Callable[[str, int, PictureFile], Place]
"""Takes job id, index and file; raises GenerationError when the picture cannot be kept."""


def folder_store(folder: Path) -> Store:
    """Store into `folder/job-id/index.extension`; a retried job overwrites its own files. The place is the path."""

    def store(job_id: str, index: int, file: PictureFile) -> Place:
        path = folder / _file_name(job_id, index, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(file.data)
        partial.replace(path)
        return Place(str(path))

    return store


def inline_store(_job_id: str, _index: int, file: PictureFile) -> Place:
    """The picture as a data URL, as worker-sdxl returns it without a bucket."""
    return Place(f"data:{file.content_type};base64,{base64.b64encode(file.data).decode('ascii')}")


def _file_name(job_id: str, index: int, file: PictureFile) -> str:
    # A job id comes from outside: only its own characters may name a folder.
    name = re.sub(r"[^A-Za-z0-9_-]", "_", job_id)[:200] or "job"
    return f"{name}/{index}.{file.extension}"


# S3.

UPLOAD_ATTEMPTS = 4
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 20
URL_EXPIRY_MAX_S = 7 * 24 * 3600
"""SigV4 signs no link for longer."""
ENDPOINT_EXAMPLE = "https://s3.eu-central-1.amazonaws.com"


@dataclass(frozen=True)
class Bucket:
    """A whole and checked configuration; `region` may be empty, then the endpoint decides (`region_of`)."""

    endpoint_url: str
    name: str
    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""
    prefix: str = ""
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    url_expiry_s: int = URL_EXPIRY_MAX_S
    public_url: str = ""


# Hosts of known services with the region that they sign for: a group of the host's name, or one for all. What stands
# before the service's own name is a bucket.
_SERVICES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(rf"(?P<bucket>.+\.)?{host}"), region)
    for host, region in (
        (r"s3[.-](?:dualstack\.)?(?P<region>[a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com(?:\.cn)?", ""),
        (r"s3\.amazonaws\.com", "us-east-1"),
        (r"[0-9a-f]{32}\.(?:[a-z]+\.)?r2\.cloudflarestorage\.com", "auto"),
        (r"storage\.googleapis\.com", "auto"),
        (r"(?:fly\.storage\.tigris|t3\.storage)\.dev", "auto"),
        (r"s3\.(?P<region>[a-z0-9-]+)\.backblazeb2\.com", ""),
        (r"s3\.wasabisys\.com", "us-east-1"),
        (r"s3\.(?P<region>[a-z0-9-]+)\.wasabisys\.com", ""),
        (r"s3\.(?P<region>[a-z0-9-]+)\.scw\.cloud", ""),
        (r"s3\.(?P<region>[a-z0-9-]+)\.(?:io|perf)\.cloud\.ovh\.(?:net|us)", ""),
        (r"(?P<region>[a-z0-9-]+)\.digitaloceanspaces\.com", ""),
        (r"(?P<region>[a-z0-9-]+)\.linodeobjects\.com", ""),
        (r"(?P<region>[a-z0-9-]+)\.vultrobjects\.com", ""),
        (r"(?P<region>[a-z0-9-]+)\.your-objectstorage\.com", ""),
        (r"sos-(?P<region>[a-z0-9-]+)\.exo\.io", ""),
    )
)


def region_of(endpoint_url: str) -> str:
    """The region that an endpoint's signatures and links carry; us-east-1 where its name says none (MinIO, Ceph)."""
    host = urlsplit(endpoint_url).hostname or ""
    for pattern, region in _SERVICES:
        if found := pattern.fullmatch(host):
            return region or found["region"]
    return "us-east-1"


_ENVIRONMENT_NAMES = {
    "endpoint_url": "BUCKET_ENDPOINT_URL",
    "name": "BUCKET_NAME",
    "access_key_id": "BUCKET_ACCESS_KEY_ID",
    "secret_access_key": "BUCKET_SECRET_ACCESS_KEY",
}
_JOB_NAMES = {
    "endpoint_url": "s3Config.endpointUrl",
    "name": "s3Config.bucketName",
    "access_key_id": "s3Config.accessId",
    "secret_access_key": "s3Config.accessSecret",
}


def bucket_of_settings(settings: Settings) -> Bucket | None:
    """The operator's bucket, None without one; half a configuration is a SettingsError that names what is wrong."""
    names = {name.removeprefix("bucket_") for name in vars(settings) if name.startswith("bucket_")}
    values = {name: getattr(settings, f"bucket_{name}") for name in names}
    default = Settings()
    if all(value == getattr(default, f"bucket_{name}") for name, value in values.items()):
        return None
    problems = _problems(values, _ENVIRONMENT_NAMES)
    if settings.bucket_url_expiry_s > URL_EXPIRY_MAX_S:
        problems.append(
            f"BUCKET_URL_EXPIRY_S: {settings.bucket_url_expiry_s} is more than {URL_EXPIRY_MAX_S}, the 7 days for "
            "which a link can be signed; BUCKET_PUBLIC_URL gives links without an end"
        )
    if re.search(r"[^A-Za-z0-9!_.*'()/-]|(^|/)\.\.?(/|$)", settings.bucket_prefix):
        problems.append(
            f"BUCKET_PREFIX: {settings.bucket_prefix!r} is not a path of letters, digits and -_.!*'(), such as worker/a"
        )
    if not re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9-]{0,61}[A-Za-z0-9])?", settings.bucket_region):
        problems.append(f"BUCKET_REGION: {settings.bucket_region!r} is not a region such as eu-central-1")
    public = urlsplit(settings.bucket_public_url)
    if settings.bucket_public_url and (public.scheme not in ("http", "https") or not public.hostname):
        problems.append(
            f"BUCKET_PUBLIC_URL: {settings.bucket_public_url!r} is not a URL such as https://cdn.example.com"
        )
    if problems:
        raise SettingsError("; ".join(problems))
    return Bucket(**values)


def bucket_of_job(config: object) -> Bucket:
    """The bucket of a job's `s3Config`, as Runpod documents it; raises InvalidRequest with all that is wrong.

    Like a URL to fetch, its endpoint has to be at a public address.
    """
    if not isinstance(config, dict):
        raise InvalidRequest(["s3Config: an object with accessId, accessSecret, bucketName and endpointUrl is needed"])
    given = {str(name): value for name, value in cast(dict[Any, Any], config).items() if value is not None}
    fields: dict[str, Any] = {
        name: given.pop(shown.removeprefix("s3Config."), "") for name, shown in _JOB_NAMES.items()
    }
    problems = [f"s3Config.{name}: unknown field" for name in given]
    problems += [f"{_JOB_NAMES[name]}: text is needed" for name, value in fields.items() if not isinstance(value, str)]
    problems = problems or _problems(fields, _JOB_NAMES)
    if not problems:
        endpoint = urlsplit(str(fields["endpoint_url"]))
        try:
            rp_ssrf.resolve_and_validate(str(endpoint.hostname), endpoint.port or 443)
        except rp_ssrf.SSRFError:
            problems.append(f"s3Config.endpointUrl: refused: {endpoint.hostname!r} has no public address")
    if problems:
        raise InvalidRequest(problems)
    return Bucket(**fields)


def _problems(values: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    """What is wrong with the four needed values, each under its name in `names`; never the value of a secret."""
    missing = [shown for name, shown in names.items() if not values[name]]
    problems = [f"{', '.join(missing)}: missing; a bucket needs {', '.join(names.values())}"] if missing else []
    if values["endpoint_url"] and (wrong := _endpoint_problem(values["endpoint_url"], values["name"])):
        problems.append(f"{names['endpoint_url']}: {wrong}; an example is {ENDPOINT_EXAMPLE}")
    if values["name"] and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}", values["name"]):
        problems.append(f"{names['name']}: {values['name']!r} is not a bucket's name such as my-pictures")
    problems += [
        f"{names[name]}: has blanks or letters that no key has"
        for name in ("access_key_id", "secret_access_key")
        if not re.fullmatch(r"[!-~]*", values[name])
    ]
    return problems


def _endpoint_problem(endpoint: str, bucket: str) -> str:
    label = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
    try:
        parts = urlsplit(endpoint)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        return f"{endpoint!r} is not a URL"
    if parts.username is not None or parts.password is not None:
        return "has a name or a password in it, which belong to the keys"
    if parts.scheme not in ("http", "https") or not re.fullmatch(rf"{label}(\.{label})*|[0-9a-f:]+", host):
        return f"{endpoint!r} is not a URL that begins with https:// or http://"
    if parts.query or parts.fragment:
        return f"{endpoint!r} has more than a host in it"
    known = next((found for pattern, _ in _SERVICES if (found := pattern.fullmatch(host))), None)
    inside = (known["bucket"] or "").rstrip(".") if known else ""
    if bucket and not known and re.match(rf"{re.escape(bucket)}\.s3[.-]", host):
        inside = bucket
    path = parts.path.strip("/")
    if inside:
        return f"{endpoint!r} has the bucket {inside!r} in its host; it goes without"
    if path and (known or bucket in path.split("/")):
        return f"{endpoint!r} has the path {path!r}, as if a bucket; it goes without"
    return ""


def s3_store(bucket: Bucket) -> Store:
    """Store as `prefix/job-id/index.extension`, so that a repeated job overwrites its own; the place is a link.

    One client serves all threads. It repeats a failed upload, and only that, with growing pauses up to
    `UPLOAD_ATTEMPTS`.
    """
    client = _client(bucket)
    prefix = "".join(f"{part}/" for part in bucket.prefix.split("/") if part)

    def store(job_id: str, index: int, file: PictureFile) -> Place:
        key = prefix + _file_name(job_id, index, file)
        try:
            client.put_object(Bucket=bucket.name, Key=key, Body=file.data, ContentType=file.content_type)
        except (BotoCoreError, ClientError) as error:
            host = urlsplit(bucket.endpoint_url).hostname
            # The texts of such errors may quote keys and signed requests.
            raise GenerationError(
                f"picture {index}: the upload to bucket {bucket.name!r} at {host} failed: {_reason(error)}"
            ) from None
        if bucket.public_url:
            return Place(f"{bucket.public_url.rstrip('/')}/{quote(key)}", key)
        expires_at = datetime.now(UTC) + timedelta(seconds=bucket.url_expiry_s)
        wanted = {"Bucket": bucket.name, "Key": key}
        url = client.generate_presigned_url("get_object", Params=wanted, ExpiresIn=bucket.url_expiry_s)
        return Place(url, key, expires_at.strftime("%Y-%m-%dT%H:%M:%SZ"))

    return store


def job_store(config: object) -> Store:
    """The store of a job's own `s3Config`; raises InvalidRequest."""
    return s3_store(bucket_of_job(config))


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
        response = cast(Mapping[str, Any], error.response)
        code = str(response.get("Error", {}).get("Code", "unknown"))[:60]
        metadata = response.get("ResponseMetadata", {})
        tries = int(metadata.get("RetryAttempts", 0)) + 1
        return f"{code} (HTTP {metadata.get('HTTPStatusCode')}, attempt {tries})"
    return type(error).__name__
