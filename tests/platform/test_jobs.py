"""One worker over the real SDK and a fake job API: jobs, faults of jobs, faults of the API."""

import json
import time
from collections import deque
from itertools import pairwise
from typing import Any

import pytest

from tests.platform.conftest import EVERY_S
from tests.platform.job_api import until
from tests.platform.stub_worker import BROKEN, COMPILED, NO_MEMORY, NOT_FINITE, ROW_S, SMALL_MEMORY

pytestmark = pytest.mark.xdist_group("platform")


def job(job_id: str, **fields: Any) -> dict[str, Any]:
    return {"id": job_id, "input": {"prompt": "a fox", "num_inference_steps": 2, "seed": 1} | fields}


TOO_LONG, TOO_DEEP = "too long", "too deep"
RAW = {TOO_LONG: "9" * 5_000, TOO_DEEP: "[" * 20_000 + "]" * 20_000}
"""What `json` does not write, by the text that stands for it."""
BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "input"),
    ({"input": None}, "input"),
    ({"input": ["a fox"]}, "input"),
    ({"input": {}}, "prompt"),
    ({"input": {"prompt": 3}}, "prompt"),
    ({"input": {"prompt": "\ud800"}}, "prompt"),
    ({"input": {"prompt": "a fox", "\ud800": 1}}, "unknown field"),
    ({"input": {"prompt": "a fox", "scheduler_options": {"\ud800": 1}}}, "not an option"),
    ({"input": {"prompt": "a fox", "width": "\ud800"}}, "width"),
    ({"input": {"prompt": "a fox", "width": 3, "seed": -7}}, "width"),
    ({"input": {"prompt": "a fox", "guidance_scale": float("nan")}}, "guidance_scale"),
    ({"input": {"prompt": "a fox", "num_images": 10**30}}, "num_images"),
    ({"input": {"prompt": "a fox", "seed": TOO_LONG}}, "seed"),
    ({"input": {"prompt": "a fox", "width": TOO_DEEP}}, "width"),
    ({"input": {"prompt": "a fox", "image": "not base64!"}}, "image"),
    ({"input": {"prompt": "a fox", "scheduler": "no such"}}, "scheduler"),
    ({"input": {"prompt": "a fox", "height": BROKEN}}, "internal error"),
    ({"input": {"prompt": "a fox", "height": NO_MEMORY}}, "memory does not suffice"),
    ({"input": {"prompt": "a fox", "height": NOT_FINITE, "num_inference_steps": 1}}, "not finite"),
]


def test_every_one_of_many_jobs_is_answered_once_and_rightly(api, worker):
    api.raw = RAW
    jobs, expected = [], {}
    for number in range(500):
        name = f"many-{number}"
        if number % 10 == 3:
            fields, text = BAD[number // 10 % len(BAD)]
            jobs.append({"id": name} | fields)
            expected[name] = text
        else:
            jobs.append(job(name, seed=number % 7, num_images=1 + number % 2))
    api.submit(*jobs)
    api.wait(*(entry["id"] for entry in jobs), timeout_s=150)
    pictures: dict[int, set[str]] = {}
    for entry in jobs:
        name = entry["id"]
        assert len(api.answers(name)) == 1
        answer = api.answers(name)[0]
        if name in expected:
            assert isinstance(answer["error"], str)
            assert expected[name] in answer["error"]
            assert set(answer) <= {"error", "stopPod"}
        else:
            output, seed = answer["output"], entry["input"]["seed"]
            assert output["seed"] == seed
            assert [picture["seed"] for picture in output["pictures"]] == [
                seed + index for index in range(entry["input"]["num_images"])
            ]
            for picture in output["pictures"]:
                pictures.setdefault(picture["seed"], set()).add(picture["sha256"])
    assert all(len(found) == 1 for found in pictures.values()), "same seed, same picture"
    assert len(set.union(*pictures.values())) == len(pictures)
    posted = json.dumps(api.posts)
    for secret in ("Traceback", "pod-abc-host", "rpa_SECRET", 'File \\"'):
        assert secret not in posted
    assert worker.process.poll() is None
    assert any(int(take.get("batch_size", 1)) > 1 for take in api.takes)


def test_a_picture_too_many_for_the_memory_is_made_in_smaller_passes(api, worker):  # noqa: ARG001
    api.submit(job("small", height=SMALL_MEMORY, num_images=2), job("none", height=NO_MEMORY), job("after"))
    small, none, after = api.wait("small", "none", "after")
    assert len(small["output"]["pictures"]) == 2
    assert none["stopPod"] is True
    assert isinstance(none["error"], str)
    assert "error" not in after
    assert "stopPod" not in after


def test_a_stopped_job_ends_soon_is_not_answered_and_leaves_the_others_untouched(api, worker):
    steps = 1000
    api.submit(job("long", num_inference_steps=steps), job("other", num_inference_steps=steps), job("next"))
    until(lambda: api.posts["long"] and api.posts["other"], 10)
    api.stop("long")
    api.stop("other")
    (answer,) = api.wait("next", timeout_s=0.4 * steps * ROW_S)
    assert "error" not in answer
    time.sleep(1.0)
    before = len(api.posts["long"]), len(api.posts["other"])
    time.sleep(1.0)
    assert (len(api.posts["long"]), len(api.posts["other"])) == before, "what is stopped is not carried on"
    api.submit(job("later"))
    api.wait("later", timeout_s=3)
    assert not api.answers("long")
    assert not api.answers("other")
    assert worker.process.poll() is None


def test_a_short_job_does_not_wait_for_long_ones(api, worker):  # noqa: ARG001
    long = [job(f"long-{number}", num_inference_steps=900, num_images=8, seed=number) for number in range(3)]
    api.submit(*long)
    until(lambda: any(api.posts[entry["id"]] for entry in long), 10)
    api.submit(job("short", num_inference_steps=20), job("wide", width=128, num_inference_steps=20))
    api.wait("short", "wide", timeout_s=10)
    assert not any(api.answers(entry["id"]) for entry in long)
    for entry in long:
        api.stop(entry["id"])


def test_progress_is_sparse_grows_and_comes_before_the_answer(api, worker):  # noqa: ARG001
    api.post_delay_s = 0.7
    began = time.monotonic()
    api.submit(job("reported", num_inference_steps=250), job("quick"))
    api.wait("reported", "quick")
    elapsed_s = time.monotonic() - began
    time.sleep(1.0)
    api.post_delay_s = 0.0
    *progress, last = api.posts["reported"]
    assert "output" in last
    assert last.get("status") is None
    assert 2 <= len(progress) <= elapsed_s / EVERY_S
    parts = [body["output"]["progress"] for body in progress]
    assert all(body["status"] == "IN_PROGRESS" for body in progress)
    assert parts == sorted(parts)
    assert 0 <= parts[0] < parts[-1] < 1
    assert len(api.posts["quick"]) == 1


def test_a_health_job_is_answered_while_long_ones_run(api, worker):  # noqa: ARG001
    api.submit(*(job(f"busy-{index}", num_inference_steps=300) for index in range(3)))
    until(lambda: any(take["job_in_progress"] == "1" for take in api.takes[-2:]), 10)
    began = time.monotonic()
    api.submit({"id": "health", "input": {"health": True}}, {"id": "unsound", "input": {"health": True, "prompt": "x"}})
    (healthy, unsound) = api.wait("health", "unsound", timeout_s=10)
    assert time.monotonic() - began < 300 * ROW_S
    assert not any(api.answers(f"busy-{index}") for index in range(3))
    assert healthy["output"]["health"]["jobs"]["in_hand"] == 3
    assert unsound["error"] == "prompt: cannot stand beside health"
    api.wait(*(f"busy-{index}" for index in range(3)))


def test_finished_results_are_posted_while_others_compute(api, worker):  # noqa: ARG001
    api.submit(job("first"), job("slow", num_inference_steps=300), job("refused", width=3))
    api.wait("first", "refused", timeout_s=300 * ROW_S)
    assert not api.answers("slow")
    api.wait("slow")


@pytest.mark.parametrize("fault", [500, 401, 400, 404, "lost", pytest.param(429, marks=pytest.mark.slow)])
def test_a_take_that_fails_is_tried_again(api, worker, fault):
    api.take_faults.extend([fault, fault])
    until(lambda: not api.take_faults, 20)
    api.submit(job(f"take-{fault}"))
    (answer,) = api.wait(f"take-{fault}")
    assert "error" not in answer
    assert worker.process.poll() is None


@pytest.mark.parametrize("fault", [503, 429, "lost"])
def test_a_result_that_is_not_taken_is_posted_again(api, worker, fault):  # noqa: ARG001
    name = f"post-{fault}"
    api.post_faults[name] = deque([fault])
    api.submit(job(name))
    api.wait(name)
    time.sleep(0.2)
    assert len(api.answers(name)) == 1


def test_heartbeats_name_the_job_while_a_program_compiles_and_nothing_is_forked(api, worker):
    until(lambda: bool(api.pings), 20)
    api.submit(job("compiled", height=COMPILED))
    (answer,) = api.wait("compiled")
    compile_s = answer["output"]["timings"]["compile_s"]
    pings = [seconds for seconds, query in api.pings if "compiled" in query.get("job_id", "")]
    assert len(pings) >= 2 <= compile_s
    assert all(later - earlier < 2.5 for earlier, later in pairwise(pings))
    assert "fork" not in worker.said


def test_the_log_has_no_answers_and_no_secrets(worker):
    for text in ("base64", "rpa_SECRET ", "Handler output", "a fox"):
        assert text not in worker.said
