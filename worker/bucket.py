"""Which S3 bucket pictures go to, from the operator's settings or a job's own configuration, with its checks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from runpod.serverless.utils import rp_ssrf

from worker.errors import InvalidRequest, SettingsError
from worker.request import capped, named_fields, shown
from worker.settings import Settings

URL_EXPIRY_MAX_S = 7 * 24 * 3600
"""SigV4 signs no link for longer."""
ENDPOINT_EXAMPLE = "https://s3.eu-central-1.amazonaws.com"
_ENDPOINT_MAX = 250
_PLAIN = re.compile(r"[!-~]*")
"""Printable, and no blank: what can stand in a URL or a header."""


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
    if not _PLAIN.fullmatch(settings.bucket_session_token):
        problems.append("BUCKET_SESSION_TOKEN: has blanks or letters that no token has")
    if re.search(r"[^A-Za-z0-9!_.*'()/-]|(^|/)\.\.?(/|$)", settings.bucket_prefix):
        problems.append(
            f"BUCKET_PREFIX: {settings.bucket_prefix!r} is not a path of letters, digits and -_.!*'(), such as worker/a"
        )
    if not re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9-]{0,61}[A-Za-z0-9])?", settings.bucket_region):
        problems.append(f"BUCKET_REGION: {settings.bucket_region!r} is not a region such as eu-central-1")
    if settings.bucket_public_url and not _is_link(settings.bucket_public_url):
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
    given = {name: value for name, value in named_fields(cast(dict[Any, Any], config)).items() if value is not None}
    fields: dict[str, Any] = {
        name: given.pop(title.removeprefix("s3Config."), "") for name, title in _JOB_NAMES.items()
    }
    problems = [f"s3Config.{name}: unknown field" for name in given]
    problems += [f"{_JOB_NAMES[name]}: text is needed" for name, value in fields.items() if not isinstance(value, str)]
    problems = problems or _problems(fields, _JOB_NAMES)
    if not problems:
        endpoint = urlsplit(str(fields["endpoint_url"]))
        try:
            rp_ssrf.resolve_and_validate(str(endpoint.hostname), endpoint.port or 443)
        except (rp_ssrf.SSRFError, UnicodeError):
            problems.append(f"s3Config.endpointUrl: refused: {endpoint.hostname!r} has no public address")
    if problems:
        raise InvalidRequest(capped(problems, str))
    return Bucket(**fields)


def _is_link(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _port = parts.port
    except ValueError:
        return False
    more = parts.query or parts.fragment
    return bool(parts.scheme in ("http", "https") and parts.hostname and not more and _PLAIN.fullmatch(url))


def _problems(values: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    """What is wrong with the four needed values, each under its name in `names`; never the value of a secret."""
    missing = [title for name, title in names.items() if not values[name]]
    problems = [f"{', '.join(missing)}: missing; a bucket needs {', '.join(names.values())}"] if missing else []
    if values["endpoint_url"] and (wrong := _endpoint_problem(values["endpoint_url"], values["name"])):
        problems.append(f"{names['endpoint_url']}: {wrong}; an example is {ENDPOINT_EXAMPLE}")
    if values["name"] and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}", values["name"]):
        problems.append(f"{names['name']}: {shown(values['name'])} is not a bucket's name such as my-pictures")
    problems += [
        f"{names[name]}: has blanks or letters that no key has"
        for name in ("access_key_id", "secret_access_key")
        if not _PLAIN.fullmatch(values[name])
    ]
    return problems


def _endpoint_problem(endpoint: str, bucket: str) -> str:
    if len(endpoint) > _ENDPOINT_MAX:
        return f"{len(endpoint)} characters, allowed are {_ENDPOINT_MAX}"
    label = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
    try:
        parts = urlsplit(endpoint)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        return "is not a URL" if "@" in endpoint else f"{endpoint!r} is not a URL"
    if parts.username is not None or parts.password is not None:
        return "has a name or a password in it, which belong to the keys"
    sound = _PLAIN.fullmatch(endpoint) and re.fullmatch(rf"{label}(\.{label})*|[0-9a-f]*:[0-9a-f:]+", host)
    if parts.scheme not in ("http", "https") or not sound:
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
