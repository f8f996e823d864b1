"""What surrounds the engine: where pictures go, what the answer holds, and what a failure leaves behind."""

import base64
import hashlib
import json
import logging
import re
from io import BytesIO
from typing import Any, cast

import pytest
from PIL import Image

from tests.fake_engine import FakeEngine
from tests.s3_servers import BUCKET, KEY, SECRET, StubS3
from worker.control import JobControl
from worker.errors import DeviceError, SettingsError
from worker.s3 import s3_store
from worker.service import Service, load_service
from worker.settings import Settings
from worker.storage import Bucket, folder_store, inline_store

JOB = {"prompt": "a fox in the snow", "negative_prompt": "blurry", "seed": 7}
SMALL = {"prompt": "a fox", "width": 72, "height": 104, "num_inference_steps": 2, "seed": 1}


@pytest.fixture
def stub():
    server = StubS3()
    yield server
    server.close()


def service(store: Any, max_answer_bytes: int = 9_000_000) -> Service:
    return Service(FakeEngine().as_engine, store, max_answer_bytes)


def run(subject: Service, job: dict[str, Any], **beside: object) -> dict[str, Any]:
    answer = subject.run({"id": "job-1", "input": JOB | job, **beside})
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    return answer


def s3_config(stub: StubS3) -> dict[str, str]:
    return {"accessId": KEY, "accessSecret": SECRET, "bucketName": BUCKET, "endpointUrl": stub.endpoint}


@pytest.mark.parametrize(("output_format", "extension"), [("png", "png"), ("jpeg", "jpg"), ("webp", "webp")])
def test_an_uploaded_picture_is_described_and_linked(stub, output_format, extension):
    store = s3_store(Bucket(stub.endpoint, BUCKET, KEY, SECRET, prefix="worker"))
    answer = run(service(store), {"num_images": 3, "output_format": output_format})
    bodies = {request.path: request for request in stub.requests}
    assert answer["image_url"] == answer["images"][0]
    assert len(bodies) == 3
    for index, (url, picture) in enumerate(zip(answer["images"], answer["pictures"], strict=True)):
        assert picture["key"] == f"worker/job-1/{index}.{extension}"
        request = bodies[f"/{BUCKET}/{picture['key']}"]
        assert picture["url"] == url
        assert url.startswith(f"{stub.endpoint}/{BUCKET}/{picture['key']}?")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", picture["expires_at"])
        assert picture["sha256"] == hashlib.sha256(request.body).hexdigest()
        assert picture["size_bytes"] == len(request.body)
        assert picture["content_type"] == request.headers["content-type"] == f"image/{output_format}"
        assert Image.open(BytesIO(request.body)).size == (picture["width"], picture["height"]) == (72, 104)


def test_besides_its_pictures_an_answer_is_small():
    answer = run(service(inline_store), {"num_images": 4, "prompt": "a fox " * 3000})
    assert all(picture.keys().isdisjoint({"url", "key"}) for picture in answer["pictures"])
    pictures = {"images": [], "image_url": ""}
    assert len(json.dumps(answer | pictures)) < 4096
    assert "a fox" not in json.dumps(answer | pictures)


def test_besides_links_an_answer_with_many_pictures_is_small(stub):
    answer = run(service(s3_store(Bucket(stub.endpoint, BUCKET, KEY, SECRET))), {"num_images": 16})
    assert len(answer["images"]) == 16
    for picture in answer["pictures"]:
        del picture["url"]
    assert len(json.dumps(answer | {"images": [], "image_url": ""}, separators=(",", ":"))) < 4096


def test_a_device_that_failed_asks_for_another_worker():
    engine = FakeEngine({"a fox in the snow": DeviceError("the device failed")}).as_engine
    answer = Service(engine, inline_store, 9_000_000).run({"id": "x", "input": JOB})
    assert answer == {"error": "the device failed", "refresh_worker": True}


def test_a_picture_carries_how_it_was_made():
    answer = run(service(inline_store), {"num_images": 2})
    for index, url in enumerate(answer["images"]):
        image = Image.open(BytesIO(base64.b64decode(url.partition(",")[2])))
        assert image.info["parameters"] == (
            "a fox in the snow\nNegative prompt: blurry\n"
            f"Steps: 20, Sampler: DPM++ Karras, CFG scale: 7.5, Seed: {7 + index}, Size: 72x104, Model: toy"
        )


def test_metadata_can_be_left_out():
    answer = run(service(inline_store), {"metadata": False})
    assert b"a fox" not in base64.b64decode(answer["image_url"].partition(",")[2])


def test_a_failed_upload_is_one_error_and_nothing_is_made_again(stub, caplog):
    subject = service(s3_store(Bucket(stub.endpoint, BUCKET, KEY, SECRET)))
    stub.script = [403, 403, 403]
    with caplog.at_level(logging.DEBUG, "worker"):
        answer = run(subject, {"num_images": 3})
    assert answer.keys() == {"error"}
    assert "AccessDenied" in answer["error"]
    assert len(cast(Any, subject.engine).made) == 3
    assert not any(secret in answer["error"] + caplog.text for secret in (KEY, SECRET, "Traceback"))


def test_a_jobs_own_bucket_takes_its_pictures(stub, monkeypatch, caplog):
    monkeypatch.setenv("RUNPOD_ALLOW_PRIVATE_DOWNLOAD_URLS", "true")
    with caplog.at_level(logging.DEBUG, "worker"):
        answer = run(service(inline_store), {}, s3Config=s3_config(stub))
    (request,) = stub.requests
    assert request.path == f"/{BUCKET}/{answer['pictures'][0]['key']}"
    assert SECRET not in json.dumps(answer) + caplog.text


def test_a_jobs_own_bucket_is_checked_before_anything_is_made(stub, caplog):
    subject = service(inline_store)
    with caplog.at_level(logging.DEBUG, "worker"):
        answer = run(subject, {}, s3Config=s3_config(stub) | {"bucketName": ""})
    assert answer["error"].startswith("s3Config.bucketName: missing")
    assert not cast(Any, subject.engine).made
    assert SECRET not in answer["error"] + caplog.text


def test_a_local_run_has_files(tmp_path):
    answer = run(service(folder_store(tmp_path)), {"output_format": "webp"})
    assert answer["images"] == [str(tmp_path / "job-1" / "0.webp")]
    with Image.open(answer["image_url"]) as image:
        assert image.size == (72, 104)


def test_an_answer_above_the_cap_is_an_error_that_says_what_helps():
    answer = run(service(inline_store, 20_000), {"num_images": 2})
    assert answer.keys() == {"error"}
    assert "allowed are 20000" in answer["error"]


def test_half_a_bucket_refuses_to_start_before_the_model_is_read(tmp_path):
    with pytest.raises(SettingsError, match="BUCKET_NAME"):
        load_service(Settings(model_dir=tmp_path / "absent", bucket_endpoint_url="https://s3.example.org"), local=False)


@pytest.mark.xdist_group("sd1")
@pytest.mark.parametrize("job", [None, [], "job", {}, {"id": 3}, {"input": None}, {"id": "x", "input": []}])
def test_what_is_no_job_is_answered(toy, job):
    answer = toy("sd1").service.run(job)
    assert list(answer) == ["error"]
    assert answer["error"].startswith("input:")


@pytest.mark.xdist_group("sd1")
@pytest.mark.parametrize(
    "options",
    [
        {"use_karras_sigmas": True, "sigma_min": 5, "sigma_max": 5},
        {"use_lu_lambdas": True, "sigma_min": 5, "sigma_max": 5},
        {"lambda_min_clipped": 10**400},
        {"use_karras_sigmas": [True]},
        {"solver_order": 10**30},
    ],
)
@pytest.mark.parametrize("scheduler", ["DPM++", "UniPC", "DPM++ 2S", "LMS", "DEIS", "DPM++ SDE"])
def test_options_that_give_no_course_are_refused(toy, scheduler, options):
    answer = toy("sd1").service.run(
        {"id": "x", "input": SMALL | {"scheduler": scheduler, "scheduler_options": options}}
    )
    assert "internal error" not in answer["error"]


def test_previews_are_asked_for_and_are_small_pictures():
    seen = []
    control = JobControl(report=lambda _done, preview: seen.append(preview and preview()))
    service(inline_store).run({"id": "job-1", "input": JOB | {"preview": True}}, control)
    assert seen
    for url in seen:
        assert url.startswith("data:image/jpeg;base64,")
        assert Image.open(BytesIO(base64.b64decode(url.partition(",")[2]))).size == (9, 13)
    seen.clear()
    service(inline_store).run({"id": "job-1", "input": JOB}, control)
    assert seen == [None]
