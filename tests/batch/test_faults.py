"""A batch over a platform that loses, refuses and delays, with clients and workers that are killed."""

import json
import random
import signal
import sqlite3
from collections import Counter
from pathlib import Path

import boto3.session
import pytest

from tests.batch.platform import QUICK, BatchClient, MortalEngine, worker
from tests.platform.endpoint_api import KEY, EndpointApi
from tests.platform.job_api import until
from tests.s3_servers import BUCKET, SECRET, bucket_at, seaweed
from tests.s3_servers import KEY as BUCKET_KEY
from worker.errors import GenerationError
from worker.s3 import s3_store

NIGHT = 2000


def broken(requests: int) -> set[int]:
    """Requests whose pictures cannot be made."""
    return {1, requests // 3, requests // 3 + 1, requests - 1}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory):
    with seaweed(tmp_path_factory.mktemp("s3")) as endpoint:
        yield endpoint


def keys(endpoint: str) -> list[str]:
    session = boto3.session.Session(BUCKET_KEY, SECRET, region_name="us-east-1")
    pages = session.client("s3", endpoint_url=endpoint).get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    return [found["Key"] for page in pages for found in page.get("Contents", ())]


class Luck:
    """Faults of the platform, the same in every run of the test but for the order of events."""

    def __init__(self) -> None:
        self.random = random.Random(7)
        self.had: Counter[str] = Counter()

    def _pick(self, chances: dict[str, float]) -> str | None:
        drawn = self.random.random()
        for fault, chance in chances.items():
            if (drawn := drawn - chance) < 0:
                self.had[fault] += 1
                return fault
        return None

    def call(self, call: str) -> int | str | None:
        chances = {"429": 0.02, "500": 0.02, "503": 0.02, "lost": 0.02} if call != "health" else {}
        found = self._pick(chances)
        return int(found) if found and found.isdecimal() else found

    def dies(self, _made: int) -> bool:
        return self._pick({"died": 0.004}) is not None


@pytest.mark.parametrize("requests", [200, pytest.param(NIGHT, marks=pytest.mark.slow)])
def test_every_request_ends_once_and_nothing_is_doubled(s3, tmp_path, requests):
    luck, folder = Luck(), f"night-{requests}"
    engine = MortalEngine(
        {f"prompt {index}": GenerationError("a picture of it has no finite values") for index in broken(requests)}
    )
    engine.dies = luck.dies
    lines = [
        json.dumps({"prompt": f"prompt {index}", "width": 64 + 8 * (4 * index // requests)})
        for index in range(requests)
    ]
    (tmp_path / "night.jsonl").write_text("\n".join(lines))
    command = ("submit", "night.jsonl", "--endpoint", "ep-test", "--out", f"s3:///{folder}", "--tries", "6", *QUICK)
    with EndpointApi(fault=luck.call) as api:
        client = BatchClient(tmp_path, api.client_environment)

        def after(job_id: str) -> dict[str, str] | None:
            fate = luck._pick({"forgotten": 0.03, "TIMED_OUT": 0.03, "CANCELLED": 0.01, "empty": 0.01})
            if fate == "forgotten":
                del api.states[job_id]
            return {"status": "COMPLETED" if fate == "empty" else fate} if fate else None

        with worker(api, engine, s3_store(bucket_at(s3)), after):
            for share, how in ((0.2, signal.SIGKILL), (0.5, signal.SIGINT), (0.7, signal.SIGKILL)):
                enough, runs = share * requests, api.calls["run"]
                process = client.start(*command)
                until(lambda enough=enough, runs=runs: len(engine.made) >= enough and api.calls["run"] > runs, 600)
                code, said = client.end(process, how)
                assert code == (130 if how == signal.SIGINT else -how), said
            code, said = client.run(*command)
    assert code == 1, said
    assert f"{requests - 4} of {requests} requests are done, 4 failed, 0 are open" in said
    state = tmp_path / f"batch-{folder}"
    check_results(state, [key for key in keys(s3) if key.startswith(f"{folder}/")], requests)
    outcomes = check_journal(state, requests)
    if requests == NIGHT:
        assert luck.had.keys() == {"429", "500", "503", "lost", "died", "forgotten", "TIMED_OUT", "CANCELLED", "empty"}
        assert outcomes >= {"COMPLETED", "FAILED", "TIMED_OUT", "CANCELLED", "lost"}
    doubled = {made: times for made, times in Counter(engine.made).items() if times > 1}
    assert len(doubled) <= luck.had["died"], doubled
    for file in state.iterdir():
        assert KEY.encode() not in file.read_bytes()
    assert KEY not in said


def check_results(state: Path, stored: list[str], requests: int) -> None:
    """A line for each request, in order; what the bucket has, is what they say."""
    results = [json.loads(line) for line in (state / "results.jsonl").read_text().splitlines()]
    assert [one["request"]["prompt"] for one in results] == [f"prompt {index}" for index in range(requests)]
    assert {index for index, one in enumerate(results) if "error" in one} == broken(requests)
    # Their last try may have met a fault of the platform.
    errors = Counter(results[index]["error"] for index in broken(requests))
    assert "a picture of it has no finite values" in errors
    pictures = [picture for one in results for picture in one.get("pictures", ())]
    assert sorted(stored) == sorted(picture["key"] for picture in pictures)
    assert len(set(stored)) == len(stored) == requests - 4
    assert all(len(one["images"]) == 1 and one["images"][0].startswith("http") for one in results if "images" in one)
    assert json.loads((state / "summary.json").read_text())["errors"] == errors


def check_journal(state: Path, requests: int) -> set[str]:
    """Each request has one end, and each job too; returns how jobs have ended."""
    db = sqlite3.connect(state / "journal.sqlite3")
    states = dict(db.execute("SELECT state, count(*) FROM requests GROUP BY state"))
    assert states == {"done": requests - 4, "failed": 4}
    assert db.execute("SELECT count(*) FROM jobs WHERE ended IS NULL").fetchone() == (0,)
    outcomes = {outcome for (outcome,) in db.execute("SELECT DISTINCT outcome FROM jobs")}
    db.close()
    return outcomes
