"""How the worker's process starts, ends and serves locally."""

import json
import signal
import sys
import time
import urllib.request

import pytest

from tests.platform.conftest import ROOT
from tests.platform.job_api import JobApi, until

pytestmark = pytest.mark.xdist_group("platform")
HANDLER = (sys.executable, str(ROOT / "handler.py"))


def job(job_id: str, steps: int = 2) -> dict:
    return {"id": job_id, "input": {"prompt": "a fox", "num_inference_steps": steps, "seed": 1}}


@pytest.mark.parametrize(
    "busy", [pytest.param(False, marks=pytest.mark.slow, id="idle"), pytest.param(True, id="busy")]
)
def test_a_terminated_worker_answers_what_it_has_and_ends_with_0(start, busy):
    with JobApi() as api:
        worker = start(**api.environment, ALLOW_CPU="true")
        until(lambda: bool(api.takes), 60)
        if busy:
            api.submit(job("last", 200))
            until(lambda: any(take["job_in_progress"] == "1" for take in api.takes), 10)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert len(api.answers("last")) == int(busy)
        assert all("error" not in body for body in api.answers("last"))


def test_a_job_that_arrives_while_the_worker_ends_is_answered(start):
    with JobApi() as api:
        worker = start(**api.environment, ALLOW_CPU="true")
        until(lambda: bool(api.takes), 60)
        worker.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        api.submit(job("late"))
        assert worker.wait() == 0
        taken = "late" in api.taken
        assert len(api.answers("late")) == int(taken)
        assert taken, "the poll that was under way has taken it"


def test_without_a_gpu_the_worker_ends_at_once_and_the_platform_is_told_why(start):
    with JobApi() as api:
        worker = start(**api.environment, command=HANDLER)
        assert worker.wait(30) == 1
        assert not api.takes
        (said,) = [line for line in worker.said.splitlines() if "no device" in line]
        for fact in ("GPU and driver", "jaxlib", "ALLOW_CPU"):
            assert fact in said
        assert "Traceback" not in worker.said
        ((_, report),) = api.pings
        assert report["status"] == "unhealthy"
        assert "no device" in report["reason"]


@pytest.mark.slow
def test_a_model_that_is_not_there_ends_the_start(start, tmp_path):
    with JobApi() as api:
        worker = start(**api.environment, command=HANDLER, ALLOW_CPU="true", MODEL_DIR=str(tmp_path / "absent"))
        assert worker.wait(30) == 1
        assert not api.takes
        assert "absent" in worker.said
        assert "Traceback" not in worker.said
        assert "absent" in api.pings[0][1]["reason"]


def post(port: int, path: str, body: object = None) -> dict:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_the_local_api_answers(start, unused_port):
    worker = start("--rp_serve_api", "--rp_api_host", "127.0.0.1", "--rp_api_port", str(unused_port))
    until(lambda: "running on" in worker.said, 60)
    good, bad = job("x"), {"input": {"prompt": "a fox", "width": 3}}
    answer = post(unused_port, "/runsync", good)
    assert answer["status"] == "COMPLETED"
    assert answer["output"]["seed"] == 1
    failed = post(unused_port, "/runsync", bad)
    assert failed["status"] == "FAILED"
    assert failed["error"].startswith("width: 3")
    queued = post(unused_port, "/run", good)
    assert post(unused_port, f"/status/{queued['id']}")["status"] == "COMPLETED"
    queued = post(unused_port, "/run", bad)
    assert post(unused_port, f"/status/{queued['id']}")["status"] == "FAILED"
    worker.process.send_signal(signal.SIGTERM)
    worker.wait(20)
