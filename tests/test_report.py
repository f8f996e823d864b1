"""The worker's account of itself: through the service, on a warmed engine, and in the worst case."""

import dataclasses
import json
import logging
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.fake_engine import FakeEngine
from tests.jobs import JOB, run
from worker.answer import surroundings
from worker.engine.engine import Engine
from worker.engine.loading import load_engine
from worker.engine.warm_up import WarmUp
from worker.errors import GenerationError
from worker.report import VERSION, Tally, report
from worker.service import Service
from worker.settings import Settings
from worker.storage import inline_store
from worker.weights.manifest import read_manifest

pytestmark = pytest.mark.xdist_group("sd1")


def health(service: Service) -> dict[str, Any]:
    answer = service.run({"id": "h", "input": {"health": True}})
    assert len(json.dumps(answer, allow_nan=False)) < 4096
    return answer["health"]


def test_a_started_worker_tells_what_it_is(toy, caplog):
    model_dir = toy("sd1").model_dir
    settings = Settings(model_dir=model_dir, sizes=((72, 104),), max_slots=1, start_budget_s=300)
    service = Service(load_engine(settings), inline_store, 50_000_000)
    with caplog.at_level(logging.INFO, "worker"):
        service.open(settings)
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("started: ")]
    told = health(service)
    assert json.loads(line.removeprefix("started: ")).keys() == told.keys()
    assert told["versions"]["jax"] == "0.12.0.1"
    assert set(told["versions"]) == {"worker", "jax", "jaxlib", "cuda", "cudnn", "runpod", "driver", "python"}
    assert told["device"]["platform"] == "cpu"
    manifest = read_manifest(model_dir)
    files = [model_dir / part.file for part in manifest.parts.values()]
    assert told["model"]["weights_bytes"] == sum(file.stat().st_size for file in files)
    assert told["model"]["source"] == manifest.source
    assert told["programs"]["compiled"]["count"] == len(service.engine.programs.compiled) > 0
    assert told["programs"]["failed"]["count"] == 0
    assert told["sizes"] == {"ready": 1, "served": 1, "passes": {"72x104": [1]}, "failed": {}}
    assert {"weights_s", "programs_s", "warm_up_s", "total_s"} <= told["start"].keys()
    assert told["start"]["total_s"] <= told["uptime_s"]
    assert told["jobs"] == {"served": 0, "failed": 0, "in_hand": 0}
    run(service, JOB)
    assert health(service)["jobs"] == {"served": 1, "failed": 0, "in_hand": 0}


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["version"] == VERSION


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"health": False}, "health: False is not allowed: only true is"),
        ({"health": 1}, "health: 1 is not allowed: only true is"),
        ({"health": None}, "health: None is not allowed: only true is"),
        ({"health": True, "prompt": "x"}, "prompt: cannot stand beside health"),
        ({"prompt": "x", "health": "y", "\ud800\n": 1}, "prompt: cannot stand beside health; \\ud800\\n: cannot"),
    ],
)
def test_what_is_no_health_job_says_so(raw, text):
    service = Service(FakeEngine().as_engine, inline_store, 1000)
    answer = service.run({"id": "h", "input": raw})
    assert list(answer) == ["error"]
    assert answer["error"].startswith(text)


def test_jobs_are_counted_by_what_became_of_them():
    engine = FakeEngine({"bad": GenerationError("no picture"), "worse": KeyError("bug")})
    service = Service(engine.as_engine, inline_store, 9_000_000)
    for raw in ({"prompt": "good"}, {"prompt": "bad"}, {"prompt": "worse"}, {"prompt": 3}, {"health": False}):
        service.run({"id": "x", "input": {"seed": 1} | raw if "prompt" in raw else raw})
    service.run({"id": "x", "input": {"requests": [{"prompt": "bad", "seed": 1}]}})
    service.run("no job at all")
    assert service.tally.jobs() == {"served": 1, "failed": 5, "in_hand": 0}
    seen = []
    service.tally.count(lambda: seen.append(service.tally.jobs()) or {})
    assert seen[0]["in_hand"] == 1


def test_a_report_stays_small_whatever_there_is(toy):
    engine = toy("sd1").service.engine
    keys = [("advance", slots, side, side, True) for slots in (1, 2, 4, 8) for side in range(100, 160)]
    store = SimpleNamespace(loaded=dict.fromkeys(keys, 1.23), faults=dict.fromkeys(keys, "x" * 500))
    sizes = tuple((8 * side, 4096) for side in range(100, 160))
    programs = dataclasses.replace(
        engine.programs,
        store=cast(Any, store),
        compiled=dict.fromkeys(keys, 99.9),
        failed=dict.fromkeys(keys, "y" * 500),
    )
    planner = dataclasses.replace(
        engine.planner, settings=dataclasses.replace(engine.planner.settings, sizes=sizes, max_slots=8)
    )
    manifest = engine.manifest.model_copy(update={"source": "s" * 500, "revision": "0" * 40})
    engine = dataclasses.replace(engine, programs=programs, planner=planner, manifest=manifest)
    warm_up = WarmUp(cast(Engine, engine))
    warm_up.failed = dict.fromkeys(sizes, "z" * 500)
    text = json.dumps(report(engine, warm_up, Tally()), allow_nan=False)
    assert len(text) < 4000
    assert json.loads(text)["programs"]["loaded"]["count"] == len(keys)


def test_the_peak_of_memory_is_told_where_it_is_known(toy):
    manifest = toy("sd1").service.engine.manifest
    assert surroundings(manifest, {}, 123)["peak_memory_bytes"] == 123
    assert "peak_memory_bytes" not in surroundings(manifest, {}, None)


def test_memory_is_read_off_the_backend_s_statistics(monkeypatch):
    from worker.engine import memory

    statistics = {"bytes_limit": 5, "bytes_in_use": 3, "peak_bytes_in_use": 4, "num_allocs": 9}
    for told, expected in (
        (statistics, {"limit_bytes": 5, "used_bytes": 3, "peak_bytes": 4}),
        ({"bytes_in_use": 3}, {"used_bytes": 3}),
        (None, {}),
    ):
        device = SimpleNamespace(memory_stats=lambda told=told: told)
        monkeypatch.setattr(memory, "default_device", lambda device=device: device)
        assert memory.device_memory() == expected
