"""A machine's own devices as the platform."""

import json
import os
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.batch.platform import BatchClient
from tests.platform.job_api import until
from worker.batch.local import Devices, visible_devices
from worker.errors import BatchError

ROOT = Path(__file__).parent.parent.parent
MODEL = ROOT / "models" / "emoji" / "baked"

PROCESS = """
    import json, os, sys
    for line in sys.stdin:
        job = json.loads(line)
        what = job["input"]["requests"][0]["prompt"]
        if what == "die":
            os._exit(3)
        answer = {"error": "no"} if what == "bad" else {"results": [os.environ.get("CUDA_VISIBLE_DEVICES")]}
        print(json.dumps({"id": job["id"], "answer": answer}), flush=True)
"""


@pytest.fixture
def devices():
    made = Devices(["0", "1"], os.environ, (sys.executable, "-c", textwrap.dedent(PROCESS)))
    yield made
    made.close()


def job(prompt: str) -> dict:
    return {"input": {"requests": [{"prompt": prompt}]}}


def end(devices: Devices, job_id: str) -> dict | None:
    deadline = time.monotonic() + 30
    while (state := devices.status(job_id)) and state["status"] in ("IN_QUEUE", "IN_PROGRESS"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return dict(state) if state else None


def test_devices_share_the_jobs_and_each_sees_its_own(devices):
    ends = [end(devices, job_id) for job_id in [devices.run(job("a")) for _ in range(40)]]
    assert {state["status"] for state in ends} == {"COMPLETED"}
    assert {state["output"]["results"][0] for state in ends} <= {"0", "1"}
    assert end(devices, devices.run(job("bad")))["error"] == "no"


def test_jobs_of_a_process_that_dies_are_lost_and_the_next_ones_served(devices):
    assert end(devices, devices.run(job("die"))) is None
    assert end(devices, devices.run(job("a")))["status"] == "COMPLETED"


def test_devices_that_always_die_are_given_up():
    broken = Devices([None], os.environ, (sys.executable, "-c", "import sys; sys.exit(5)"))
    until(lambda: not broken.workers(), 60)
    with pytest.raises(BatchError, match="no device can serve: its process ended with code 5"):
        broken.run(job("a"))
    broken.close()


@pytest.mark.parametrize(
    ("named", "most", "seen"),
    [("0,1,2", None, ["0", "1", "2"]), ("3,5", 1, ["3"]), ("GPU-abc", None, ["GPU-abc"])],
)
def test_gpus_that_are_named_are_used(named, most, seen):
    assert visible_devices({"CUDA_VISIBLE_DEVICES": named}, most) == seen


@pytest.mark.slow
def test_the_same_file_runs_on_this_machine(tmp_path):
    lines = [
        {"prompt": "red heart", "seed": 7},
        {"prompt": "blue star"},
        {"prompt": "red heart", "seed": 7, "width": 72},
    ]
    (tmp_path / "night.jsonl").write_text("\n".join(map(json.dumps, lines)))
    client = BatchClient(
        tmp_path, {"MODEL_DIR": str(MODEL), "XDG_CACHE_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    )
    command = ("submit", "night.jsonl", "--local", "--out", "out", "--num-inference-steps", "2", "--devices", "2")
    code, said = client.run(*command)
    assert code == 0, said
    results = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [one["pictures"][0]["width"] for one in results] == [64, 64, 72]
    assert all((tmp_path / "out" / one["images"][0]).is_file() for one in results)
    assert results[0]["model"]["family"] == "stable-diffusion"
    code, said = client.run(*command)
    assert (code, "3 of 3 requests are done" in said) == (0, True)
