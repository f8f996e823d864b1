"""Configurations of a bucket that can be used, and those that cannot."""

from urllib.parse import parse_qs, urlsplit

import pytest

from tests.s3_servers import BUCKET, KEY, SECRET, bucket_at
from worker import s3
from worker.bucket import Bucket, bucket_of_job, bucket_of_settings, region_of
from worker.errors import InvalidRequest, SettingsError
from worker.settings import load_settings

ENVIRONMENT = {
    "BUCKET_ENDPOINT_URL": "https://s3.eu-west-1.amazonaws.com",
    "BUCKET_NAME": "pictures",
    "BUCKET_ACCESS_KEY_ID": KEY,
    "BUCKET_SECRET_ACCESS_KEY": SECRET,
}
JOB = {"accessId": KEY, "accessSecret": SECRET, "bucketName": "pictures", "endpointUrl": "https://s3.example.org"}


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
        url = s3._client(bucket).generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "a"})
        scope = parse_qs(urlsplit(url).query)["X-Amz-Credential"][0].split("/")
        assert scope[2] == expected
        assert urlsplit(url).hostname == urlsplit(endpoint).hostname


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
        ("BUCKET_ENDPOINT_URL", "https://minio.example.org/a b", "begins with https"),
        ("BUCKET_ENDPOINT_URL", "https://minio.example.org/ä", "begins with https"),
        ("BUCKET_REGION", "eu west", "eu-central-1"),
        ("BUCKET_NAME", "my bucket", "my-pictures"),
        ("BUCKET_NAME", "a/b", "my-pictures"),
        ("BUCKET_PREFIX", "a/../b", "such as"),
        ("BUCKET_PREFIX", "a b", "such as"),
        ("BUCKET_URL_EXPIRY_S", "691200", "7 days"),
        ("BUCKET_PUBLIC_URL", "cdn.example.org", "https://cdn.example.com"),
        ("BUCKET_PUBLIC_URL", "https://[cdn", "https://cdn.example.com"),
        ("BUCKET_PUBLIC_URL", "https://cdn.example.org:port", "https://cdn.example.com"),
        ("BUCKET_PUBLIC_URL", "https://cdn.example.org/?a=1", "https://cdn.example.com"),
        ("BUCKET_PUBLIC_URL", "https://cdn.example.org/a b", "https://cdn.example.com"),
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
        ("BUCKET_SESSION_TOKEN", "hidden\nwords"),
        ("BUCKET_ENDPOINT_URL", "https://user:hidden@s3.example.org"),
        ("BUCKET_ENDPOINT_URL", "https://user:hidden@[::1"),
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
    url = s3._client(bucket).generate_presigned_url("get_object", {"Bucket": "pictures", "Key": "a"})
    assert urlsplit(url).netloc.lower() == urlsplit(endpoint).netloc.lower()


def test_an_endpoint_below_a_path_is_kept():
    endpoint = "https://project.example.co/storage/v1/s3"
    bucket = bucket_of_settings(load_settings(ENVIRONMENT | {"BUCKET_ENDPOINT_URL": endpoint}))
    assert bucket is not None
    url = s3._client(bucket).generate_presigned_url("get_object", {"Bucket": "pictures", "Key": "a"})
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
        (JOB | {"bucketName": "-" * 10_000}, "s3Config.bucketName: '---"),
        (JOB | {"endpointUrl": "https://s3.exa\nmple.org"}, "s3Config.endpointUrl: 'https://s3.exa\\nmple.org' is not"),
        (JOB | {"endpointUrl": "https://s3.example.org/\ud800"}, "s3Config.endpointUrl: "),
        (JOB | {"endpointUrl": f"https://{'a' * 64}.org"}, "s3Config.endpointUrl: "),
        (JOB | {"endpointUrl": "https://" + "a." * 9_999}, "s3Config.endpointUrl: 20006 characters, allowed are 250"),
        (JOB | {"a\nERROR": 1, "b" * 9_999: 1}, "s3Config.a\\nERROR: unknown field; s3Config.bbb"),
        (JOB | {str(index): 1 for index in range(9_999)}, "s3Config.0: unknown field"),
    ],
)
def test_a_jobs_own_bucket_that_cannot_be_used_is_refused(config, problem):
    with pytest.raises(InvalidRequest) as caught:
        bucket_of_job(config)
    assert str(caught.value).startswith(problem)
    assert SECRET not in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
