"""Pictures reach their place: a real S3 server, one that misbehaves, and configurations that cannot be used."""

import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.s3_servers import BUCKET, KEY, SECRET, StubS3, seaweed
from worker import storage
from worker.errors import GenerationError, InvalidRequest, SettingsError
from worker.outputs import PictureFile
from worker.settings import load_settings
from worker.storage import Bucket, bucket_of_job, bucket_of_settings, folder_store, inline_store, region_of, s3_store

FILE = PictureFile(b"not really a picture", "image/webp", "webp")
ENVIRONMENT = {
    "BUCKET_ENDPOINT_URL": "https://s3.eu-west-1.amazonaws.com",
    "BUCKET_NAME": "pictures",
    "BUCKET_ACCESS_KEY_ID": KEY,
    "BUCKET_SECRET_ACCESS_KEY": SECRET,
}
JOB = {"accessId": KEY, "accessSecret": SECRET, "bucketName": "pictures", "endpointUrl": "https://s3.example.org"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with seaweed(tmp_path_factory.mktemp("seaweed")) as endpoint:
        yield endpoint


@pytest.fixture
def stub():
    server = StubS3()
    yield server
    server.close()


@pytest.fixture
def pauses(monkeypatch):
    """The pauses between attempts, which are not waited for."""
    taken: list[float] = []
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=taken.append))
    return taken


def bucket_at(endpoint: str, **changes) -> Bucket:
    return replace(Bucket(endpoint, BUCKET, KEY, SECRET), **changes)


def fetch(url: str) -> tuple[bytes, str]:
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read(), response.headers["Content-Type"]


# A real server.


@pytest.mark.xdist_group("seaweed")
@pytest.mark.parametrize("style", ["auto", "path"])
def test_the_link_of_a_stored_picture_gives_the_picture(server, style):
    store = s3_store(bucket_at(server, addressing_style=style, prefix="/worker//a/", url_expiry_s=60))
    place = store("job-1", 3, FILE)
    assert place.key == "worker/a/job-1/3.webp"
    assert fetch(place.url) == (FILE.data, FILE.content_type)
    assert place.expires_at is not None
    left = datetime.fromisoformat(place.expires_at) - datetime.now(UTC)
    assert 50 < left.total_seconds() <= 60


@pytest.mark.xdist_group("seaweed")
def test_a_repeated_job_overwrites_its_own_picture(server):
    store = s3_store(bucket_at(server))
    first = store("job-2", 0, FILE)
    second = store("job-2", 0, replace(FILE, data=b"another"))
    assert first.key == second.key
    assert fetch(first.url)[0] == fetch(second.url)[0] == b"another"


@pytest.mark.xdist_group("seaweed")
def test_a_link_that_was_tampered_with_is_refused(server):
    place = s3_store(bucket_at(server))("job-3", 0, FILE)
    with pytest.raises(urllib.error.HTTPError) as caught:
        fetch(place.url.replace("/0.webp", "/1.webp"))
    caught.value.close()
    assert caught.value.code == 403


@pytest.mark.xdist_group("seaweed")
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"secret_access_key": "wrong"}, "SignatureDoesNotMatch"),
        ({"access_key_id": "wrong"}, "InvalidAccessKeyId"),
        ({"name": "absent"}, "NoSuchBucket"),
    ],
)
def test_a_refused_upload_is_one_error_with_the_servers_code(server, changes, code):
    with pytest.raises(GenerationError, match=code) as caught:
        s3_store(bucket_at(server, **changes))("job", 0, FILE)
    assert "attempt 1" in str(caught.value)
    assert SECRET not in str(caught.value)


# One that misbehaves.


def test_an_upload_is_one_plain_request(stub):
    s3_store(bucket_at(stub.endpoint))("job", 0, FILE)
    (request,) = stub.requests
    assert request.path == f"/{BUCKET}/job/0.webp"
    assert request.body == FILE.data
    assert request.headers["content-type"] == "image/webp"
    assert "checksum" not in str(request.headers)
    assert "aws-chunked" not in str(request.headers)


def test_only_the_upload_is_repeated_with_pauses(stub, pauses):
    stub.script = [503, 503]
    place = s3_store(bucket_at(stub.endpoint))("job", 0, FILE)
    assert [request.body for request in stub.requests] == [FILE.data] * 3
    assert place.key == "job/0.webp"
    assert len(pauses) == 2
    assert all(0 <= pause <= 2**index for index, pause in enumerate(pauses))


def test_repetitions_have_an_end(stub, pauses):
    stub.script = [503] * 20
    with pytest.raises(GenerationError, match=r"SlowDown \(HTTP 503, attempt 4\)"):
        s3_store(bucket_at(stub.endpoint))("job", 0, FILE)
    assert len(stub.requests) == storage.UPLOAD_ATTEMPTS == len(pauses) + 1


def test_a_refusal_is_not_repeated(stub, pauses):
    stub.script = [403]
    with pytest.raises(GenerationError, match="AccessDenied"):
        s3_store(bucket_at(stub.endpoint))("job", 0, FILE)
    assert len(stub.requests) == 1
    assert not pauses


def test_a_connection_that_dies_in_mid_upload_is_made_anew(stub, pauses):
    stub.script = ["die", "die"]
    large = replace(FILE, data=bytes(4_000_000))
    s3_store(bucket_at(stub.endpoint))("job", 0, large)
    assert [len(request.body) for request in stub.requests] == [4_000_000]
    assert len(pauses) == 2


def test_a_server_that_says_nothing_is_given_up(stub, pauses, monkeypatch):
    monkeypatch.setattr(storage, "READ_TIMEOUT_S", 0.2)
    stub.script = [1.0] * storage.UPLOAD_ATTEMPTS
    with pytest.raises(GenerationError, match="ReadTimeoutError"):
        s3_store(bucket_at(stub.endpoint))("job", 0, FILE)
    assert len(pauses) == storage.UPLOAD_ATTEMPTS - 1


def test_a_server_that_is_not_there_is_given_up(pauses):
    with pytest.raises(GenerationError, match="EndpointConnectionError"):
        s3_store(bucket_at("http://127.0.0.1:9"))("job", 0, FILE)
    assert len(pauses) == storage.UPLOAD_ATTEMPTS - 1


def test_errors_and_texts_of_a_bucket_hold_no_secret(stub):
    bucket = bucket_at(stub.endpoint, session_token="a-session-token")
    stub.script = [403]
    with pytest.raises(GenerationError) as caught:
        s3_store(bucket)("job", 0, FILE)
    for text in (str(caught.value), repr(bucket)):
        assert not any(secret in text for secret in (KEY, SECRET, "a-session-token"))
    assert caught.value.__cause__ is None


def test_one_client_serves_a_thousand_uploads_in_parallel(stub):
    bucket = bucket_at(stub.endpoint)
    with ThreadPoolExecutor(32) as pool:
        places = list(pool.map(lambda index: s3_store(bucket)("job", index, FILE), range(1000)))
    assert [place.key for place in places] == [f"job/{index}.webp" for index in range(1000)]
    assert {request.path for request in stub.requests} == {f"/{BUCKET}/{place.key}" for place in places}


# Links.


@pytest.mark.parametrize(
    ("endpoint", "region"),
    [
        ("https://s3.eu-west-1.amazonaws.com", "eu-west-1"),
        ("https://s3-us-west-2.amazonaws.com", "us-west-2"),
        ("https://s3.dualstack.ap-southeast-2.amazonaws.com", "ap-southeast-2"),
        ("https://s3.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("https://s3.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("https://s3.amazonaws.com", "us-east-1"),
        ("https://0123456789abcdef0123456789abcdef.r2.cloudflarestorage.com", "auto"),
        ("https://0123456789abcdef0123456789abcdef.eu.r2.cloudflarestorage.com", "auto"),
        ("https://storage.googleapis.com", "auto"),
        ("https://fly.storage.tigris.dev", "auto"),
        ("https://s3.us-west-004.backblazeb2.com", "us-west-004"),
        ("https://s3.wasabisys.com", "us-east-1"),
        ("https://s3.eu-central-2.wasabisys.com", "eu-central-2"),
        ("https://nyc3.digitaloceanspaces.com", "nyc3"),
        ("https://us-east-1.linodeobjects.com", "us-east-1"),
        ("https://fsn1.your-objectstorage.com", "fsn1"),
        ("https://s3.fr-par.scw.cloud", "fr-par"),
        ("https://s3.gra.io.cloud.ovh.net", "gra"),
        ("https://minio.example.org:9000", "us-east-1"),
        ("http://10.0.0.7:9000", "us-east-1"),
    ],
)
def test_the_endpoint_says_the_region_unless_the_operator_does(endpoint, region):
    assert region_of(endpoint) == region
    assert bucket_of_settings(load_settings(ENVIRONMENT | {"BUCKET_ENDPOINT_URL": endpoint}))
    for set_region, expected in (("", region), ("mars-1", "mars-1")):
        bucket = bucket_at(endpoint, region=set_region)
        url = storage._client(bucket).generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "a"})
        scope = parse_qs(urlsplit(url).query)["X-Amz-Credential"][0].split("/")
        assert scope[2] == expected
        assert urlsplit(url).hostname == urlsplit(endpoint).hostname


@pytest.mark.parametrize(
    ("style", "start"),
    [
        ("path", "https://s3.eu-west-1.amazonaws.com/pictures/job/0.webp?"),
        ("virtual", "https://pictures.s3.eu-west-1.amazonaws.com/job/0.webp?"),
    ],
)
def test_the_addressing_style_is_that_of_the_link(style, start, monkeypatch):
    bucket = bucket_at("https://s3.eu-west-1.amazonaws.com", addressing_style=style, session_token="token")
    monkeypatch.setattr(storage._client(bucket), "put_object", lambda **_: None)
    place = s3_store(bucket)("job", 0, FILE)
    assert place.url.startswith(start)
    assert "X-Amz-Security-Token=token" in place.url
    assert f"X-Amz-Expires={storage.URL_EXPIRY_MAX_S}" in place.url


def test_a_public_bucket_has_links_without_a_signature_or_an_end(stub):
    place = s3_store(bucket_at(stub.endpoint, public_url="https://cdn.example.org/x/"))("job", 0, FILE)
    assert place == storage.Place("https://cdn.example.org/x/job/0.webp", "job/0.webp")


@pytest.mark.parametrize("job_id", ["../../etc", "a/b", "", "a b?#%", "é" * 500])
def test_a_job_id_is_one_part_of_a_key(stub, tmp_path, job_id):
    key = s3_store(bucket_at(stub.endpoint, prefix="p"))(job_id, 0, FILE).key
    assert key is not None
    assert key.startswith("p/")
    assert key.count("/") == 2
    assert len(key) < 256
    path = folder_store(tmp_path)(job_id, 0, FILE).url
    assert (tmp_path / key.removeprefix("p/")).read_bytes() == FILE.data
    assert path == str(tmp_path / key.removeprefix("p/"))


def test_without_a_bucket_a_picture_is_in_the_answer():
    place = inline_store("job", 0, FILE)
    assert place.key is None
    assert urllib.request.urlopen(place.url).read() == FILE.data
    assert place.url.startswith("data:image/webp;base64,")


# Configurations.


def test_without_any_variable_there_is_no_bucket():
    assert bucket_of_settings(load_settings({})) is None


def test_a_whole_configuration_is_a_bucket():
    more = {
        "BUCKET_SESSION_TOKEN": "token",
        "BUCKET_REGION": "eu-west-3",
        "BUCKET_PREFIX": "a/b",
        "BUCKET_ADDRESSING_STYLE": "virtual",
        "BUCKET_URL_EXPIRY_S": "3600",
        "BUCKET_PUBLIC_URL": "https://cdn.example.org",
    }
    expected = Bucket(
        "https://s3.eu-west-1.amazonaws.com", "pictures", KEY, SECRET, "token", "eu-west-3", "a/b", "virtual", 3600,
        "https://cdn.example.org",
    )  # fmt: skip
    assert bucket_of_settings(load_settings(ENVIRONMENT | more)) == expected


@pytest.mark.parametrize("missing", ENVIRONMENT)
def test_half_a_configuration_names_what_is_missing(missing):
    environment = {name: value for name, value in ENVIRONMENT.items() if name != missing}
    with pytest.raises(SettingsError, match=f"^{missing}: missing"):
        bucket_of_settings(load_settings(environment))


@pytest.mark.parametrize("name", ["BUCKET_REGION", "BUCKET_PUBLIC_URL", "BUCKET_SESSION_TOKEN"])
def test_what_goes_with_a_bucket_needs_one(name):
    with pytest.raises(SettingsError, match=r"BUCKET_ENDPOINT_URL, BUCKET_NAME, .*: missing"):
        bucket_of_settings(load_settings({name: "https://x.example.org"}))


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("BUCKET_ENDPOINT_URL", "s3.eu-west-1.amazonaws.com", "begins with https"),
        ("BUCKET_ENDPOINT_URL", "ftp://s3.eu-west-1.amazonaws.com", "begins with https"),
        ("BUCKET_ENDPOINT_URL", '"https://s3.eu-west-1.amazonaws.com"', "begins with https"),
        ("BUCKET_ENDPOINT_URL", "https://[::1", "is not a URL"),
        ("BUCKET_ENDPOINT_URL", "https://a.example.org:port", "is not a URL"),
        ("BUCKET_ENDPOINT_URL", "https://pictures.s3.eu-west-1.amazonaws.com", "bucket 'pictures' in its host"),
        ("BUCKET_ENDPOINT_URL", "https://other.s3.amazonaws.com", "bucket 'other' in its host"),
        ("BUCKET_ENDPOINT_URL", "https://pictures.nyc3.digitaloceanspaces.com", "bucket 'pictures' in its host"),
        ("BUCKET_ENDPOINT_URL", "https://pictures.s3.example.org", "bucket 'pictures' in its host"),
        ("BUCKET_ENDPOINT_URL", "https://s3.eu-west-1.amazonaws.com/other", "path 'other'"),
        ("BUCKET_ENDPOINT_URL", "https://minio.example.org/pictures", "path 'pictures'"),
        ("BUCKET_ENDPOINT_URL", "https://minio.example.org/?x=1", "more than a host"),
        ("BUCKET_ENDPOINT_URL", "https://my_host.example.org", "begins with https"),
        ("BUCKET_REGION", "eu west", "eu-central-1"),
        ("BUCKET_NAME", "my bucket", "my-pictures"),
        ("BUCKET_NAME", "a/b", "my-pictures"),
        ("BUCKET_PREFIX", "a/../b", "such as"),
        ("BUCKET_PREFIX", "a b", "such as"),
        ("BUCKET_URL_EXPIRY_S", "691200", "7 days"),
        ("BUCKET_PUBLIC_URL", "cdn.example.org", "https://cdn.example.com"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_value_and_an_example(variable, value, words):
    with pytest.raises(SettingsError) as caught:
        bucket_of_settings(load_settings(ENVIRONMENT | {variable: value}))
    assert str(caught.value).startswith(f"{variable}: ")
    assert value in str(caught.value)
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BUCKET_ACCESS_KEY_ID", "hidden words"),
        ("BUCKET_SECRET_ACCESS_KEY", "hidden\nwords"),
        ("BUCKET_ENDPOINT_URL", "https://user:hidden@s3.example.org"),
    ],
)
def test_a_secret_that_cannot_be_used_is_named_without_its_value(variable, value):
    with pytest.raises(SettingsError) as caught:
        bucket_of_settings(load_settings(ENVIRONMENT | {variable: value}))
    assert str(caught.value).startswith(f"{variable}: ")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9000", "http://[::1]:9000/", "http://minio:9000", "HTTPS://A.b"]
)
def test_addresses_of_a_private_network_are_endpoints(endpoint):
    bucket = bucket_of_settings(load_settings(ENVIRONMENT | {"BUCKET_ENDPOINT_URL": endpoint}))
    assert bucket is not None
    url = storage._client(bucket).generate_presigned_url("get_object", {"Bucket": "pictures", "Key": "a"})
    assert urlsplit(url).netloc.lower() == urlsplit(endpoint).netloc.lower()


def test_a_profile_of_the_environment_has_no_say(stub, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "absent")
    storage._session.cache_clear()
    assert s3_store(bucket_at(stub.endpoint))("job", 0, FILE).key == "job/0.webp"


def test_an_endpoint_below_a_path_is_kept():
    endpoint = "https://project.example.co/storage/v1/s3"
    bucket = bucket_of_settings(load_settings(ENVIRONMENT | {"BUCKET_ENDPOINT_URL": endpoint}))
    assert bucket is not None
    url = storage._client(bucket).generate_presigned_url("get_object", {"Bucket": "pictures", "Key": "a"})
    assert url.startswith(f"{endpoint}/pictures/a?")


# A job's own.


def test_a_jobs_own_bucket(monkeypatch):
    monkeypatch.setenv("RUNPOD_ALLOW_PRIVATE_DOWNLOAD_URLS", "true")
    bucket = bucket_of_job(JOB | {"endpointUrl": "http://127.0.0.1:9000"})
    assert bucket == Bucket("http://127.0.0.1:9000", "pictures", KEY, SECRET)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ([], "s3Config: an object"),
        ({}, "s3Config.endpointUrl, s3Config.bucketName, s3Config.accessId, s3Config.accessSecret: missing"),
        (JOB | {"accessSecret": None}, "s3Config.accessSecret: missing"),
        (JOB | {"accessId": 3}, "s3Config.accessId: text is needed"),
        (JOB | {"region": "x"}, "s3Config.region: unknown field"),
        (JOB | {"endpointUrl": "s3.example.org"}, "s3Config.endpointUrl: 's3.example.org' is not a URL"),
        (JOB | {"endpointUrl": "http://127.0.0.1:9000"}, "s3Config.endpointUrl: refused"),
        (JOB | {"endpointUrl": "http://169.254.169.254"}, "s3Config.endpointUrl: refused"),
        (JOB | {"bucketName": "a/b"}, "s3Config.bucketName: 'a/b'"),
    ],
)
def test_a_jobs_own_bucket_that_cannot_be_used_is_refused(config, problem):
    with pytest.raises(InvalidRequest) as caught:
        bucket_of_job(config)
    assert str(caught.value).startswith(problem)
    assert SECRET not in str(caught.value)
