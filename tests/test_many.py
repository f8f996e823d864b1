"""Many requests in one job: in order, each on its own, stored as it is done and found again."""

import json
import logging
import threading
from typing import Any, cast

import pytest

from tests.fake_engine import FakeEngine
from tests.platform.job_api import until
from tests.s3_servers import BUCKET, KEY, SECRET, StubS3
from worker.bucket import Bucket
from worker.control import JobControl, Preview
from worker.errors import DeviceError, GenerationError, JobStopped
from worker.places import Store
from worker.s3 import s3_store
from worker.service import Service
from worker.storage import folder_store, inline_store

DEFAULTS = {"negative_prompt": "blurry", "num_inference_steps": 20, "num_images": 2}


def service(store: Store, faults: dict[str, Exception] | None = None, *, platform: bool = True) -> Service:
    return Service(FakeEngine(faults).as_engine, store, 9_000_000, platform)


def made(subject: Service) -> list[tuple[str, int]]:
    return cast(FakeEngine, subject.engine).made


def job(*requests: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    return {"id": "job-1", "input": {"requests": list(requests), "defaults": DEFAULTS | defaults}}


def named(*prompts: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"prompt": prompt, "seed": 10 * index} | fields for index, prompt in enumerate(prompts)]


@pytest.fixture
def stub():
    server = StubS3()
    yield server
    server.close()


def test_results_come_in_order_each_like_a_single_answer(tmp_path):
    subject = service(folder_store(tmp_path))
    answer = subject.run(job(*named("a", "b", "c")))
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert answer.keys() == {"results", "model", "timings"}
    for index, result in enumerate(answer["results"]):
        assert [picture["seed"] for picture in result["pictures"]] == [10 * index, 10 * index + 1]
        assert result["images"] == [str(tmp_path / "job-1" / f"{index}-{picture}.png") for picture in range(2)]
    single = subject.run({"id": "job-2", "input": DEFAULTS | named("a")[0]})
    assert single["pictures"] == answer["results"][0]["pictures"]
    assert single.keys() == answer["results"][0].keys() | {"model", "timings"}


def test_a_fault_in_one_request_refuses_the_job_before_anything_is_made(stub):
    subject = service(s3_store(Bucket(stub.endpoint, BUCKET, KEY, SECRET)))
    answer = subject.run(job(*named("a", "b", "c"), {"prompt": "d", "width": 3}, {"prompt": "e", "image": "no!"}))
    assert answer.keys() == {"error"}
    assert answer["error"].startswith("requests[3].width: 3")
    assert not made(subject)
    answer = subject.run(job(*named("a", "b"), {"prompt": "e", "image": "no!"}))
    assert answer["error"].startswith("requests[2].image:")
    assert not made(subject)
    assert not stub.requests


def test_each_picture_is_stored_before_the_next_one_is_made(stub):
    subject = service(s3_store(Bucket(stub.endpoint, BUCKET, KEY, SECRET)))
    stored: list[int] = []

    class Watching(JobControl):
        def checkpoint(self, done: float, preview: Preview | None = None) -> None:
            super().checkpoint(done, preview)
            threading.Event().wait(0.3)
            stored.append(len(stub.requests))

    subject.run(job(*named("a", "b", "c")), Watching())
    assert stored == [0, 1, 2, 3, 4, 5]


def test_a_repeated_job_finds_what_is_stored_and_makes_the_rest(stub):
    store = s3_store(Bucket(stub.endpoint, BUCKET, KEY, SECRET))
    requests = named("a", "b", "c")
    broken = service(store, {"b": JobStopped("the worker was taken away")})
    assert "error" in broken.run(job(*requests))
    assert made(broken) == [("a", 1), ("a", 0)]
    until(lambda: len(stub.requests) == 2, 10)
    again = service(store)
    answer = again.run(job(*requests))
    assert {prompt for prompt, _ in made(again)} == {"b", "c"}
    whole = service(inline_store).run(job(*requests))
    for found, expected in zip(answer["results"], whole["results"], strict=True):
        for picture, other in zip(found["pictures"], expected["pictures"], strict=True):
            assert {name: picture[name] for name in other} == other
    third = service(store)
    assert third.run(job(*requests))["results"] != []
    assert not made(third)


def test_a_picture_of_another_request_is_not_taken_for_ones_own(tmp_path):
    store = folder_store(tmp_path)
    service(store).run(job(*named("a", "b")))
    subject = service(store)
    subject.run(job(*named("a", "other")))
    assert {prompt for prompt, _ in made(subject)} == {"other"}
    subject = service(store)
    subject.run(job(*named("a", "other"), num_inference_steps=21))
    assert len(made(subject)) == 4


def test_some_pictures_of_a_request_can_be_found(tmp_path):
    store = folder_store(tmp_path)
    service(store).run(job(*named("a", "b")))
    (tmp_path / "job-1" / "1-0.png").unlink()
    subject = service(store)
    answer = subject.run(job(*named("a", "b")))
    assert made(subject) == [("b", 10)]
    assert [picture["seed"] for picture in answer["results"][1]["pictures"]] == [10, 11]


def test_a_seed_that_is_drawn_is_drawn_again_for_the_same_job_alone(tmp_path):
    requests = [{"prompt": "a"}, {"prompt": "b"}]
    store = folder_store(tmp_path)
    first = service(store).run(job(*requests))
    subject = service(store)
    assert subject.run(job(*requests)) | {"timings": 0} == first | {"timings": 0}
    assert not made(subject)
    seeds = [result["seed"] for result in first["results"]]
    assert len(set(seeds)) == 2
    other = service(store).run(job(*requests) | {"id": "job-2"})
    assert not set(seeds) & {result["seed"] for result in other["results"]}


def test_a_local_run_makes_everything_again(tmp_path):
    store = folder_store(tmp_path)
    service(store, platform=False).run(job(*named("a")))
    subject = service(store, platform=False)
    subject.run(job(*named("a")))
    assert len(made(subject)) == 2
    assert sorted(path.name for path in (tmp_path / "job-1").iterdir()) == ["0-0.png", "0-1.png"]


def test_a_request_that_fails_fails_alone(caplog):
    subject = service(inline_store, {"b": GenerationError("the picture of seed 10 is not finite")})
    with caplog.at_level(logging.INFO, "worker"):
        answer = subject.run(job(*named("a", "b", "c")))
    assert answer["results"][1] == {"error": "the picture of seed 10 is not finite"}
    assert all("images" in answer["results"][index] for index in (0, 2))
    assert "refresh_worker" not in answer
    assert "1 of 3 requests failed" in caplog.text


def test_a_device_that_fails_is_told_to_the_platform():
    answer = service(inline_store, {"b": DeviceError("the device failed")}).run(job(*named("a", "b")))
    assert answer["refresh_worker"] is True
    assert answer["results"][1] == {"error": "the device failed"}


def test_a_job_of_which_nothing_could_be_made_has_failed():
    fault = GenerationError("no")
    answer = service(inline_store, {"a": fault, "b": fault}).run(job(*named("a", "b")))
    assert answer["error"] == "none of the 2 requests could be made; the first: no"


def test_an_upload_that_fails_fails_its_request_alone(stub):
    subject = service(s3_store(Bucket(stub.endpoint, BUCKET, KEY, SECRET)), platform=False)
    stub.script = [403]
    answer = subject.run(job(*named("a", "b"), num_images=1))
    failed = [result for result in answer["results"] if "error" in result]
    assert len(failed) == 1
    assert "AccessDenied" in failed[0]["error"]
