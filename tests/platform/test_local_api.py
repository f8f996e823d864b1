"""The API of a local run: Runpod's, and a page beside it."""

import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from functools import reduce
from io import BytesIO
from operator import getitem
from pathlib import Path

import pytest
from PIL import Image

from tests.platform.conftest import free_port
from tests.platform.job_api import JobApi, until
from tests.platform.stub_worker import NOT_FINITE
from worker.form import offered_fields
from worker.request import Request

START_S = 180
pytestmark = pytest.mark.xdist_group("platform")


@dataclass
class Client:
    port: int
    folder: Path

    def ask(self, path: str, body: object = None, **headers: str) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json", **named})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def json(self, path: str, body: object = None):
        return json.loads(self.ask(path, body)[1])

    def run(self, steps: int = 2, **fields: object) -> str:
        given = {"prompt": "a fox", "num_inference_steps": steps, "seed": 1, **fields}
        return self.json("/run", {"input": given})["id"]


@pytest.fixture(scope="module")
def api(start) -> Client:
    port = free_port()
    worker = start("--rp_serve_api", "--rp_api_port", str(port))
    until(lambda: "running on" in worker.said, START_S)
    return Client(port, worker.log.parent)


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


def test_the_options_are_the_fields_of_a_request_as_the_model_takes_them(api):
    fields = api.json("/options")["fields"]
    refused = {name for name in Request.model_fields if name.endswith(("_size", "_top_left"))} | {"true_cfg_scale"}
    assert fields.keys() == Request.model_fields.keys() - refused
    assert fields["width"]["default"] == 64
    assert "DPM++ 2M Karras" in fields["scheduler"]["examples"]
    assert fields["scheduler"]["default"] in fields["scheduler"]["examples"]


def test_sizes_that_alone_are_served_are_the_choices(toy):
    planner = toy("sd1").service.engine.planner
    settings = replace(planner.settings, sizes=((64, 96), (128, 64)))
    fields = offered_fields(replace(planner, settings=settings))
    assert [fields["width"]["enum"], fields["height"]["enum"]] == [[64, 128], [64, 96]]


def test_runsync_answers_with_the_status_when_its_wait_is_over(api):
    job = {"input": {"prompt": "a fox", "num_inference_steps": 1000}}
    state = api.json("/runsync?wait=1000", job)
    assert state["status"] == "IN_PROGRESS"
    assert api.json(f"/cancel/{state['id']}", {})["status"] == "CANCELLED"


def test_health_counts_as_runpods_does(api):
    before = api.json("/health")["jobs"]["completed"]
    api.json(f"/status/{api.run()}", {})
    after = api.json("/health")
    assert after["jobs"]["completed"] == before + 1
    assert after["workers"]["ready"] == 1


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


def test_the_page_needs_nothing_from_elsewhere(api):
    for path, begin in (("/", b"<!doctype html>"), ("/page.css", b":root"), ("/page.js", b"//")):
        status, text = api.ask(path)
        assert status == 200
        assert text.startswith(begin)
        assert not re.search(rb"(src|href)=.?(https?:)?//|import .*//", text)


def test_the_description_of_the_api_has_the_fields_of_a_job(api):
    document = api.json("/openapi.json")
    assert {"/run", "/runsync", "/status/{job_id}", "/cancel/{job_id}", "/health"} <= document["paths"].keys()
    schemas = document["components"]["schemas"]
    assert list(schemas["fields"]["properties"]) == list(Request.model_fields)
    for target in re.findall(r'"#/([^"]+)"', json.dumps(document)):
        reduce(getitem, target.split("/"), document)
    assert b"/openapi.json" in api.ask("/docs")[1]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://example.com"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors"},
    ],
)
def test_what_another_sites_page_posts_is_refused(api, headers):
    before = api.json("/health")["jobs"]
    assert api.ask("/run", {"input": {"prompt": "a fox"}}, **headers)[0] == 403
    assert api.json("/health")["jobs"] == before


def test_a_name_that_was_made_to_point_here_is_refused(api):
    assert api.ask("/options", Host="example.com")[0] == 400
    assert api.ask("/options", Host=f"localhost:{api.port}")[0] == 200


def test_on_runpod_there_is_no_page(start, unused_port):
    with JobApi() as platform:
        environment = platform.environment | {"ALLOW_CPU": "true"}
        worker = start("--rp_serve_api", "--rp_api_host", "127.0.0.1", "--rp_api_port", str(unused_port), **environment)
        until(lambda: "running on" in worker.said, START_S)
        client = Client(unused_port, worker.log.parent)
        assert client.ask("/options")[0] == 404
        assert client.ask("/page.js")[0] == 404
