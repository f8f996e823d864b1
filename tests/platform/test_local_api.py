"""The API of a local run: Runpod's, and a page beside it."""

import json
import urllib.error
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from tests.platform.conftest import free_port
from tests.platform.job_api import JobApi, until
from tests.platform.stub_worker import NOT_FINITE
from worker.request import Request

pytestmark = pytest.mark.xdist_group("platform")


@dataclass
class Client:
    port: int
    folder: Path

    def ask(self, path: str, body: object = None, method: str | None = None) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def json(self, path: str, body: object = None, method: str | None = None):
        return json.loads(self.ask(path, body, method)[1])

    def run(self, steps: int = 2, **fields: object) -> str:
        return self.json("/run", {"input": {"prompt": "a fox", "num_inference_steps": steps, "seed": 1, **fields}})[
            "id"
        ]


@pytest.fixture(scope="module")
def api(start) -> Generator[Client]:
    port = free_port()
    worker = start("--rp_serve_api", "--rp_api_host", "127.0.0.1", "--rp_api_port", str(port))
    until(lambda: "running on" in worker.said, 60)
    yield Client(port, worker.log.parent)


def test_a_job_runs_behind_and_its_status_tells_how_far_it_is(api):
    job = api.run(steps=150, preview=True)
    seen = []
    until(lambda: seen.append(api.json(f"/status/{job}")) or seen[-1]["status"] != "IN_PROGRESS", 20)
    *under_way, done = seen
    assert done["status"] == "COMPLETED"
    progress = [status["output"]["progress"] for status in under_way if "output" in status]
    assert progress
    assert progress == sorted(progress)
    assert all(0 < part < 1 for part in progress)
    assert done["output"]["used"]["num_inference_steps"] == 150
    assert api.json(f"/status/{job}") == done


def test_jobs_run_beside_each_other_and_the_sdks_status_waits(api):
    jobs = [api.run(steps=40, seed=seed) for seed in (1, 2, 3)]
    assert [api.json(f"/status/{job}", {})["output"]["seed"] for job in jobs] == [1, 2, 3]


def test_a_job_that_fails_says_why(api):
    for job, text in ((api.run(width=3), "width: 3"), (api.run(height=NOT_FINITE), "not finite")):
        status = api.json(f"/status/{job}", {})
        assert status["status"] == "FAILED"
        assert text in status["error"]


def test_a_cancelled_job_ends(api):
    job = api.run(steps=1000)
    assert api.json(f"/cancel/{job}", {})["status"] == "CANCELLED"
    assert api.json(f"/status/{job}")["status"] == "CANCELLED"


def test_the_devices_time_is_free_after_a_cancelled_job(api):
    api.json(f"/cancel/{api.run(steps=1000)}", {})
    report = {"input": {"health": True}}
    until(lambda: api.json("/runsync", report)["output"]["health"]["jobs"]["in_hand"] == 0, 5)


@pytest.mark.parametrize("path", ["/status/absent", "/output/absent/0.png"])
def test_what_is_not_there_is_not_found(api, path):
    assert api.ask(path)[0] == 404


def test_the_options_are_those_of_the_service(api):
    options = api.json("/options")
    assert list(options["fields"]) == list(Request.model_fields)
    assert options["defaults"]["width"] == 64
    assert "DPM++ 2M Karras" in options["schedulers"]
    assert api.json("/schema")["title"] == "A job's input"


def test_pictures_are_listed_and_served_the_newest_first(api):
    for seed in (5, 6):
        api.json(f"/status/{api.run(seed=seed)}", {})
    newest, before = api.json("/output")[:2]
    assert "Seed: 6" in newest["parameters"]
    assert "Seed: 5" in before["parameters"]
    assert Image.open(BytesIO(api.ask(newest["url"])[1])).size == (64, 64)


@pytest.mark.parametrize(
    "path", ["/output/%2e%2e/0.png", "/output/a/..%2f0.png", "/output/a/0.json", "/output/a/x.png"]
)
def test_nothing_but_pictures_of_the_folder_is_served(api, path):
    (api.folder / "0.png").write_bytes(b"")
    assert api.ask(path)[0] in (404, 422)


def test_the_page_and_the_docs_are_served(api):
    status, page = api.ask("/")
    assert status == 200
    assert b"<!doctype html>" in page[:20].lower()
    assert b"http://" not in page.replace(b"http://localhost", b"").replace(b"http://www.w3.org/2000/svg", b"")
    assert b"/openapi.json" in api.ask("/docs")[1]
    assert {"/run", "/runsync", "/status/{job_id}", "/options"} <= api.json("/openapi.json")["paths"].keys()


def test_on_runpod_there_is_no_page(start, unused_port):
    with JobApi() as platform:
        environment = platform.environment | {"ALLOW_CPU": "true"}
        worker = start("--rp_serve_api", "--rp_api_host", "127.0.0.1", "--rp_api_port", str(unused_port), **environment)
        until(lambda: "running on" in worker.said, 60)
        client = Client(unused_port, worker.log.parent)
        assert client.ask("/options")[0] == 404
        assert b"sliders" not in client.ask("/")[1]
