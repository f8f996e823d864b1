"""Pictures reach their bucket and are found there: a real S3 server, and one that misbehaves."""

import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from tests.s3_servers import BUCKET, KEY, SECRET, StubS3, bucket_at, seaweed
from worker import s3
from worker.bucket import URL_EXPIRY_MAX_S
from worker.errors import GenerationError
from worker.outputs import PictureFile
from worker.places import Place
from worker.s3 import s3_store

FILE = PictureFile(b"not really a picture", "image/webp", "webp")
FACTS = {"request": "9" * 64, "seed": "7", "sha256": "a" * 64, "width": "512", "height": "768"}


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


def fetch(url: str) -> tuple[bytes, str]:
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read(), response.headers["Content-Type"]


# A real server.


@pytest.mark.xdist_group("seaweed")
@pytest.mark.parametrize("style", ["auto", "path"])
def test_the_link_of_a_stored_picture_gives_the_picture(server, style):
    store = s3_store(bucket_at(server, addressing_style=style, prefix="/worker//a/", url_expiry_s=60))
    place = store.put("job-1", "3", FILE, FACTS)
    assert place.key == "worker/a/job-1/3.webp"
    assert fetch(place.url) == (FILE.data, FILE.content_type)
    assert place.expires_at is not None
    left = datetime.fromisoformat(place.expires_at) - datetime.now(UTC)
    assert 50 < left.total_seconds() <= 60


@pytest.mark.xdist_group("seaweed")
def test_a_repeated_job_overwrites_its_own_picture(server):
    store = s3_store(bucket_at(server))
    first = store.put("job-2", "0", FILE, FACTS)
    second = store.put("job-2", "0", replace(FILE, data=b"another"), FACTS)
    assert first.key == second.key
    assert fetch(first.url)[0] == fetch(second.url)[0] == b"another"


@pytest.mark.xdist_group("seaweed")
def test_a_link_that_was_tampered_with_is_refused(server):
    place = s3_store(bucket_at(server)).put("job-3", "0", FILE, FACTS)
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
        s3_store(bucket_at(server, **changes)).put("job", "0", FILE, FACTS)
    assert "attempt 1" in str(caught.value)
    assert SECRET not in str(caught.value)


# One that misbehaves.


def test_an_upload_is_one_plain_request(stub):
    s3_store(bucket_at(stub.endpoint)).put("job", "0", FILE, FACTS)
    (request,) = stub.requests
    assert request.path == f"/{BUCKET}/job/0.webp"
    assert request.body == FILE.data
    assert request.headers["content-type"] == "image/webp"
    assert "checksum" not in str(request.headers)
    assert "aws-chunked" not in str(request.headers)


def test_only_the_upload_is_repeated_with_pauses(stub, pauses):
    stub.script = [503, 503]
    place = s3_store(bucket_at(stub.endpoint)).put("job", "0", FILE, FACTS)
    assert [request.body for request in stub.requests] == [FILE.data] * 3
    assert place.key == "job/0.webp"
    assert len(pauses) == 2
    assert all(0 <= pause <= 2**index for index, pause in enumerate(pauses))


def test_repetitions_have_an_end(stub, pauses):
    stub.script = [503] * 20
    with pytest.raises(GenerationError, match=r"SlowDown \(HTTP 503, attempt 4\)"):
        s3_store(bucket_at(stub.endpoint)).put("job", "0", FILE, FACTS)
    assert len(stub.requests) == s3.UPLOAD_ATTEMPTS == len(pauses) + 1


def test_a_refusal_is_not_repeated(stub, pauses):
    stub.script = [403]
    with pytest.raises(GenerationError, match="AccessDenied"):
        s3_store(bucket_at(stub.endpoint)).put("job", "0", FILE, FACTS)
    assert len(stub.requests) == 1
    assert not pauses


def test_a_connection_that_dies_in_mid_upload_is_made_anew(stub, pauses):
    stub.script = ["die", "die"]
    large = replace(FILE, data=bytes(4_000_000))
    s3_store(bucket_at(stub.endpoint)).put("job", "0", large, FACTS)
    assert [len(request.body) for request in stub.requests] == [4_000_000]
    assert len(pauses) == 2


def test_a_server_that_says_nothing_is_given_up(stub, pauses, monkeypatch):
    monkeypatch.setattr(s3, "READ_TIMEOUT_S", 0.2)
    stub.script = [1.0] * s3.UPLOAD_ATTEMPTS
    with pytest.raises(GenerationError, match="ReadTimeoutError"):
        s3_store(bucket_at(stub.endpoint)).put("job", "0", FILE, FACTS)
    assert len(pauses) == s3.UPLOAD_ATTEMPTS - 1


def test_a_server_that_is_not_there_is_given_up(pauses):
    with pytest.raises(GenerationError, match="EndpointConnectionError"):
        s3_store(bucket_at("http://127.0.0.1:9")).put("job", "0", FILE, FACTS)
    assert len(pauses) == s3.UPLOAD_ATTEMPTS - 1


def test_errors_and_texts_of_a_bucket_hold_no_secret(stub):
    bucket = bucket_at(stub.endpoint, session_token="a-session-token")
    stub.script = [403]
    with pytest.raises(GenerationError) as caught:
        s3_store(bucket).put("job", "0", FILE, FACTS)
    for text in (str(caught.value), repr(bucket)):
        assert not any(secret in text for secret in (KEY, SECRET, "a-session-token"))
    assert caught.value.__cause__ is None


def test_one_client_serves_a_thousand_uploads_in_parallel(stub):
    bucket = bucket_at(stub.endpoint)
    with ThreadPoolExecutor(32) as pool:
        places = list(pool.map(lambda index: s3_store(bucket).put("job", str(index), FILE, FACTS), range(1000)))
    assert [place.key for place in places] == [f"job/{index}.webp" for index in range(1000)]
    assert {request.path for request in stub.requests} == {f"/{BUCKET}/{place.key}" for place in places}


# Pictures that are there already.


@pytest.mark.xdist_group("seaweed")
def test_a_stored_picture_is_found_with_its_facts_and_a_link_that_works(server):
    store = s3_store(bucket_at(server, prefix="worker"))
    stored = store.put("job-4", "3-0", FILE, FACTS)
    found = store.find("job-4", "3-0", "webp")
    assert found is not None
    assert found.facts == FACTS
    assert (found.size_bytes, found.content_type) == (len(FILE.data), FILE.content_type)
    assert found.place.key == stored.key == "worker/job-4/3-0.webp"
    assert fetch(found.place.url) == (FILE.data, FILE.content_type)


@pytest.mark.xdist_group("seaweed")
@pytest.mark.parametrize("names", [("job-4", "3-1", "webp"), ("job-4", "3-0", "png"), ("job-5", "3-0", "webp")])
def test_what_is_not_there_is_not_found(server, names, caplog):
    store = s3_store(bucket_at(server, prefix="worker"))
    store.put("job-4", "3-0", FILE, FACTS)
    assert store.find(*names) is None
    assert not caplog.records


@pytest.mark.xdist_group("seaweed")
def test_a_picture_that_was_overwritten_is_found_with_its_new_facts(server):
    store = s3_store(bucket_at(server))
    store.put("job-6", "0", FILE, FACTS)
    store.put("job-6", "0", replace(FILE, data=b"another"), {"request": "0"})
    found = store.find("job-6", "0", "webp")
    assert found is not None
    assert (found.facts, found.size_bytes) == ({"request": "0"}, 7)


def test_facts_travel_as_metadata_and_come_back(stub):
    store = s3_store(bucket_at(stub.endpoint))
    place = store.put("job", "0", FILE, FACTS)
    sent = {name: value for name, value in stub.requests[0].headers.items() if name.startswith("x-amz-meta-")}
    assert sent == {f"x-amz-meta-{name}": value for name, value in FACTS.items()}
    found = store.find("job", "0", "webp")
    assert found is not None
    assert found.facts == FACTS
    assert found.place.key == place.key
    assert stub.lookups == [f"/{BUCKET}/{place.key}"]


@pytest.mark.parametrize("status", [403, 404])
def test_who_may_not_look_or_sees_nothing_finds_nothing_and_says_nothing(stub, caplog, status):
    store = s3_store(bucket_at(stub.endpoint))
    store.put("job", "0", FILE, FACTS)
    stub.lookup_script = [status]
    assert store.find("job", "0", "webp") is None
    assert not caplog.records
    assert len(stub.lookups) == 1


def test_a_look_up_is_repeated_too(stub, pauses):
    store = s3_store(bucket_at(stub.endpoint))
    store.put("job", "0", FILE, FACTS)
    stub.lookup_script = [503, 503]
    assert store.find("job", "0", "webp") is not None
    assert len(stub.lookups) == len(pauses) + 1 == 3


@pytest.mark.usefixtures("pauses")
@pytest.mark.parametrize("status", [503, 501])
def test_a_look_up_that_fails_is_one_line_of_the_log(stub, caplog, status):
    stub.lookup_script = [status] * 20
    assert s3_store(bucket_at(stub.endpoint)).find("job", "0", "webp") is None
    (record,) = caplog.records
    assert f"HTTP {status}" in record.message
    assert not any(secret in caplog.text for secret in (KEY, SECRET))
    assert len(stub.lookups) == (s3.UPLOAD_ATTEMPTS if status == 503 else 1)


@pytest.mark.usefixtures("pauses")
def test_a_server_that_is_not_there_has_no_pictures(caplog):
    assert s3_store(bucket_at("http://127.0.0.1:9")).find("job", "0", "webp") is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


# Links.


@pytest.mark.parametrize(
    ("style", "start"),
    [
        ("path", "https://s3.eu-west-1.amazonaws.com/pictures/job/0.webp?"),
        ("virtual", "https://pictures.s3.eu-west-1.amazonaws.com/job/0.webp?"),
    ],
)
def test_the_addressing_style_is_that_of_the_link(style, start, monkeypatch):
    bucket = bucket_at("https://s3.eu-west-1.amazonaws.com", addressing_style=style, session_token="token")
    monkeypatch.setattr(s3._client(bucket), "put_object", lambda **_: None)
    place = s3_store(bucket).put("job", "0", FILE, FACTS)
    assert place.url.startswith(start)
    assert "X-Amz-Security-Token=token" in place.url
    assert f"X-Amz-Expires={URL_EXPIRY_MAX_S}" in place.url


def test_a_public_bucket_has_links_without_a_signature_or_an_end(stub):
    place = s3_store(bucket_at(stub.endpoint, public_url="https://cdn.example.org/x/")).put("job", "0", FILE, FACTS)
    assert place == Place("https://cdn.example.org/x/job/0.webp", "job/0.webp")
    found = s3_store(bucket_at(stub.endpoint, public_url="https://cdn.example.org/x/")).find("job", "0", "webp")
    assert found is not None
    assert found.place == place


def test_a_profile_of_the_environment_has_no_say(stub, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "absent")
    s3._session.cache_clear()
    assert s3_store(bucket_at(stub.endpoint)).put("job", "0", FILE, FACTS).key == "job/0.webp"
