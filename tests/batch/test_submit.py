"""What a user of the command sees: refusals, results, retries, time-outs, where pictures are."""

import base64
import hashlib
import io
import json
import time
from pathlib import Path

import pytest
import runpod
from PIL import Image

from tests.batch.platform import QUICK, MortalEngine, worker
from tests.platform.endpoint_api import KEY, EndpointApi
from tests.s3_servers import BUCKET, SECRET, StubS3, bucket_at
from tests.s3_servers import KEY as BUCKET_KEY
from worker.batch.__main__ import main
from worker.batch.client import Limits
from worker.batch.options import parse_options
from worker.errors import GenerationError, InvalidRequest
from worker.s3 import s3_store
from worker.storage import inline_store


@pytest.fixture
def api(monkeypatch):
    with EndpointApi() as made:
        monkeypatch.setattr(runpod, "endpoint_url_base", made.client_environment["RUNPOD_ENDPOINT_BASE_URL"])
        monkeypatch.setenv("RUNPOD_API_KEY", KEY)
        yield made


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submit(*arguments: str, lines: list[dict] | None = None, out: str = "out") -> int:
    if lines is not None:
        Path("night.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return main(["submit", "night.jsonl", "--endpoint", "ep-test", "--out", out, *QUICK, *arguments])


def results(folder: str = "out") -> list[dict]:
    return [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]


def prompts(*names: str, **fields: object) -> list[dict]:
    return [{"prompt": name, **fields} for name in names]


def nothing(_job_id: str) -> None:
    return None


def test_pictures_come_into_the_folder_in_order_with_seed_and_settings(api):
    engine = MortalEngine()
    with worker(api, engine, inline_store, nothing):
        assert submit("--num-images", "2", lines=prompts("a", "b", seed=7) + prompts("c")) == 0
    found = results()
    assert [(one["line"], one["request"]["prompt"], one["seed"]) for one in found[:2]] == [(1, "a", 7), (2, "b", 7)]
    assert found[0]["used"]["num_inference_steps"] == 20
    assert found[0]["request"]["num_images"] == 2
    for one in found:
        for place, picture in zip(one["images"], one["pictures"], strict=True):
            data = (Path("out") / place).read_bytes()
            assert hashlib.sha256(data).hexdigest() == picture["sha256"]
            assert Image.open(io.BytesIO(data)).size == (72, 104)
    assert len(list(Path("out/images").iterdir())) == 6
    summary = json.loads(Path("out/summary.json").read_text())
    assert (summary["requests"], summary["done"], summary["failed"], summary["open"]) == (3, 3, 0, 0)


def test_a_second_call_makes_nothing_but_what_is_gone(api):
    engine = MortalEngine()
    with worker(api, engine, inline_store, nothing):
        assert submit(lines=prompts("a", "b", "c")) == 0
        before = results()
        assert submit() == 0
        assert len(engine.made) == 3
        (Path("out") / before[1]["images"][0]).unlink()
        assert submit() == 0
    made = [prompt for prompt, _ in engine.made]
    assert (sorted(made[:3]), made[3:]) == (["a", "b", "c"], ["b"])
    assert [one["pictures"] for one in results()] == [one["pictures"] for one in before]


def test_no_line_is_sent_while_one_is_not_valid(api, capsys):
    assert submit(lines=[{"prompt": "a"}, {"prompt": "b", "width": 3}, {}]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in said] == ["night.jsonl:2", "night.jsonl:3", "batch"]
    assert "2 of 3 requests are not valid" in said[-1]
    assert not api.sent


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--num-inference-steps", "x"], "--num-inference-steps: 'x' is not allowed"), (["--width", "3"], "--width: ")],
)
def test_a_default_that_is_not_valid(api, capsys, arguments, said):
    assert submit(*arguments, lines=prompts("a")) == 2
    assert capsys.readouterr().err.startswith(f"batch: {said}")
    assert not api.sent


def test_what_failed_stays_failed_until_it_is_retried(api, capsys):
    engine = MortalEngine({"bad": GenerationError("it has no finite values")})
    with worker(api, engine, inline_store, nothing):
        assert submit("--tries", "2", lines=prompts("a", "bad", "b")) == 1
        assert "1 x it has no finite values" in capsys.readouterr().out
        assert [one.get("error") for one in results()] == [None, "it has no finite values", None]
        assert submit() == 1
        engine.faults = {}
        assert submit("--retry-failed") == 0
    assert sorted(prompt for prompt, _ in engine.made) == ["a", "b", "bad"]
    assert ["error" in one for one in results()] == [False] * 3


def test_a_request_that_the_model_cannot_serve_fails_alone_and_at_once(api):
    with worker(api, MortalEngine(), inline_store, nothing) as service:
        plain = service.engine.plan
        calls = []

        def plan(request, *rest):
            calls.append(request.prompt)
            if request.prompt in "bc":
                raise InvalidRequest(["width: 64 is not served"])
            return plain(request, *rest)

        service.engine.plan = plan
        assert submit(lines=prompts("a", "b", "c", "d")) == 1
    found = results()
    assert [one.get("error") for one in found] == [None, "width: 64 is not served", "width: 64 is not served", None]
    assert [one["tries"] for one in found] == [1, 1, 1, 1]
    assert sorted(calls) == ["a", "a", "b", "c", "d", "d"]


def test_a_job_that_runs_for_too_long_is_cancelled_and_sent_again(api, monkeypatch):
    monkeypatch.setattr("worker.batch.client._LATE_S", 0.2)
    stuck: list[str] = []
    real = api.take

    def take() -> dict | None:
        job = real()
        if job is None or stuck:
            return job
        stuck.append(job["id"])
        return None

    monkeypatch.setattr(api, "take", take)
    with worker(api, MortalEngine(), inline_store, nothing):
        assert submit("--timeout", "0.3", lines=prompts("a")) == 0
    assert api.states[stuck[0]]["status"] == "CANCELLED"
    assert {job["policy"]["executionTimeout"] for job in api.sent.values()} == {300}
    assert results()[0]["tries"] == 2


def test_a_wait_that_the_platform_asks_for_is_kept(api):
    refused = []

    def fault(call: str) -> int | None:
        if call == "run" and not refused:
            refused.append(time.monotonic())
            return 429
        return None

    api.fault, api.retry_after = fault, "1"
    with worker(api, MortalEngine(), inline_store, nothing):
        assert submit(lines=prompts("a")) == 0
    assert api.calls["run"] == 2
    assert time.monotonic() - refused[0] >= 1


@pytest.mark.usefixtures("api")
def test_a_key_that_is_not_accepted_ends_it_at_once(monkeypatch, capsys):
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_WRONG")
    assert submit(lines=prompts("a")) == 3
    assert "401" in capsys.readouterr().err
    assert [one["error"] for one in results()] == ["not done yet"]


def test_an_endpoint_that_fails_everything_is_not_paid_for_all_night(api, capsys):
    with worker(api, MortalEngine({"a": GenerationError("no")}), inline_store, nothing):
        assert submit("--stop-after", "3", "--per-job", "1", "--jobs", "1", lines=prompts(*"a" * 50)) == 3
    assert "3 jobs in a row have failed, the last one so: no" in capsys.readouterr().err
    assert len(api.sent) == 3


def test_another_endpoint_forgets_the_first_ones_jobs(api):
    api.fault = lambda call: 401 if call == "status" else None
    assert submit(lines=prompts("a")) == 3
    assert len(api.sent) == 1
    api.fault = lambda _call: None
    with worker(api, MortalEngine(), inline_store, nothing):
        assert submit() == 0
    assert len(api.sent) == 1, "the job of the first client was asked for"


def test_left_jobs_can_be_cancelled(api, capsys):
    api.fault = lambda call: 401 if call == "status" else None
    assert submit(lines=prompts("a", "b"), out="o") == 3
    api.fault = lambda _call: None
    assert main(["cancel", "--endpoint", "ep-test", "--out", "o"]) == 0
    assert "1 jobs are cancelled" in capsys.readouterr().out
    assert [state["status"] for state in api.states.values()] == ["CANCELLED"]


def test_a_bucket_goes_along_and_its_keys_stay_where_they_are(api, monkeypatch, folder, capsys):
    out = f"s3://{BUCKET}/night"
    assert submit(lines=prompts("a"), out=out) == 2
    assert "BUCKET_ENDPOINT_URL, BUCKET_ACCESS_KEY_ID" in capsys.readouterr().err
    stub = StubS3()
    for name, value in (("ENDPOINT_URL", stub.endpoint), ("ACCESS_KEY_ID", BUCKET_KEY), ("SECRET_ACCESS_KEY", SECRET)):
        monkeypatch.setenv(f"BUCKET_{name}", value)
    monkeypatch.setattr("worker.service.job_store", lambda _config: s3_store(bucket_at(stub.endpoint)))
    with worker(api, MortalEngine(), inline_store, nothing):
        assert submit(out=out) == 0
    stub.close()
    ((job),) = api.sent.values()
    assert job["s3Config"] == {
        "endpointUrl": stub.endpoint, "accessId": BUCKET_KEY, "accessSecret": SECRET, "bucketName": BUCKET
    }  # fmt: skip
    (found,) = results("batch-night")
    assert found["pictures"][0]["key"] == f"night/{found['name']}-0.png"
    for file in (folder / "batch-night").iterdir():
        assert SECRET.encode() not in file.read_bytes()


def test_pictures_of_an_endpoint_with_a_bucket_are_fetched_into_a_folder(api):
    stub = StubS3()
    engine = MortalEngine()
    pictures = {}
    with worker(api, engine, s3_store(bucket_at(stub.endpoint)), nothing):

        class Reply:
            def __init__(self, url: str):
                path = url.removeprefix(stub.endpoint).partition("?")[0]
                self.content = next(one.body for one in stub.requests if one.path == path)
                pictures[path] = self.content

            def raise_for_status(self) -> None:
                return

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("worker.batch.pictures.requests.get", lambda url, timeout: Reply(url))  # noqa: ARG005
            assert submit(lines=prompts("a", "b")) == 0
    stub.close()
    saved = [(Path("out") / one["images"][0]).read_bytes() for one in results()]
    assert sorted(saved) == sorted(pictures.values())
    assert all("url" not in one["pictures"][0] for one in results())


def test_an_endpoint_without_a_bucket_does_not_serve_one(api, capsys):
    with worker(api, MortalEngine(), inline_store, nothing):
        assert submit(lines=prompts("a"), out="s3:///night") == 3
    assert "the endpoint has no bucket" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["image", "digest", "results"])
def test_a_damaged_answer_is_asked_for_again(api, damage):
    broken: list[str] = []

    def after(job_id: str) -> dict | None:
        if broken:
            return None
        broken.append(job_id)
        picture = {"sha256": "0" * 64, "content_type": "image/png", "seed": 1}
        image = "data:image/png;base64," + ("?" if damage == "image" else base64.b64encode(b"x").decode())
        result = {"images": [image], "pictures": [picture]}
        return {"status": "COMPLETED", "output": {"results": [] if damage == "results" else [result]}}

    with worker(api, MortalEngine(), inline_store, after):
        assert submit(lines=prompts("a")) == 0
    assert results()[0]["tries"] == 2


def test_one_job_never_outgrows_an_answer():
    limits = Limits(requests_per_job=8)
    assert limits.most("[1024, 1024, null, 20, false, false, false, true, null]") == 2
    assert limits.most("[512, 512, null, 20, false, false, false, true, null]") == 8
    assert limits.most('[1024, 1024, 4, 20, false, false, false, true, "jpeg"]') == 1
    assert Limits(inline=False).most("[4096, 4096, 16, 20, false, false, false, true, null]") == 8


@pytest.mark.parametrize(
    "wrong",
    [
        ["--out", "s3://bucket"],
        ["--out", "s3://b/x/y"],
        ["--out", "o", "--jobs", "0"],
        ["--out", "o", "--per-job", "101"],
    ],
)
def test_an_argument_that_is_not_allowed_is_named(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_options(["submit", "a.csv", "--endpoint", "e", *wrong])
    assert ended.value.code == 2
    assert wrong[-2] in capsys.readouterr().err
