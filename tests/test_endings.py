"""A job that is stopped, or late, ends in whatever phase it is, also in one that hangs."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.fake_engine import FakeEngine
from worker import service
from worker.control import JobControl
from worker.errors import JobStopped
from worker.places import Place, Store
from worker.service import Service
from worker.storage import inline_store


class Hang:
    """Something that does not return before it is released, and tells that it is entered."""

    def __init__(self):
        self.entered, self.released = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> Any:
        self.entered.set()
        self.released.wait(20)
        return Place("late")


@pytest.fixture
def hang():
    made = Hang()
    yield made
    made.released.set()


def request(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "seed": 1} | fields


PHASES: dict[str, tuple[Callable[[Hang], Store], dict[str, Any]]] = {
    "reading": (lambda _: inline_store, request("a", image="https://example.org/a.png")),
    "looking up": (lambda hang: replace(inline_store, find=hang), {"requests": [request("a"), request("b")]}),
    "uploading": (lambda hang: replace(inline_store, put=hang), request("a", num_images=2)),
    "uploading many": (lambda hang: replace(inline_store, put=hang), {"requests": [request("a"), request("b")]}),
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("late", [True, False], ids=["late", "stopped"])
def test_a_job_ends_in_a_phase_that_hangs(phase, late, hang, monkeypatch):
    monkeypatch.setattr(service, "read_image", hang)
    store, job = PHASES[phase]
    subject = Service(FakeEngine().as_engine, store(hang), 9_000_000, platform=True)
    control = JobControl(timeout_s=0.2 if late else 0)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(subject.run, {"id": "x", "input": job}, control)
        assert hang.entered.wait(5)
        if not late:
            control.stop()
        error = answer.result(10)["error"]
    assert not hang.released.is_set(), "it was not waited for"
    assert ("JOB_TIMEOUT_S" if late else "stopped") in error


def test_a_job_ends_between_two_pictures_that_are_done():
    engine, control = FakeEngine(), JobControl()
    real = engine._picture

    def picture(*arguments: Any) -> Any:
        control.stop()
        return real(*arguments)

    engine._picture = picture
    engine.run = lambda plans, _checkpoint, clock: FakeEngine.run(engine, plans, lambda *_: None, clock)
    subject = Service(engine.as_engine, inline_store, 9_000_000)
    assert "stopped" in subject.run({"id": "x", "input": request("a", num_images=9)}, control)["error"]
    assert len(engine.made) == 1


def test_what_is_queued_for_a_job_that_has_ended_is_not_begun(hang, monkeypatch):
    read: list[str] = []

    def read_image(_field: str, text: str) -> Any:
        read.append(text)
        return hang()

    monkeypatch.setattr(service, "read_image", read_image)
    control = JobControl()
    requests = [request("a", image=f"https://example.org/{index}.png") for index in range(40)]
    subject = Service(FakeEngine().as_engine, inline_store, 9_000_000)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(subject.run, {"id": "x", "input": {"requests": requests}}, control)
        assert hang.entered.wait(5)
        control.stop()
        assert "stopped" in answer.result(10)["error"]
    hang.released.set()
    for thread in threading.enumerate():
        if thread.name.startswith("files"):
            thread.join(10)
    assert len(read) <= service._THREADS


@pytest.mark.xdist_group("sd1")
def test_between_two_sizes_that_are_compiled_a_job_can_end(toy):
    prepared: list[int] = []

    class Programs:
        devices = 1
        pipeline = toy("sd1").service.engine.planner.pipeline

        def prepare(self, height: int, *_: Any, **__: Any) -> None:
            prepared.append(height)

    def checkpoint(_done: float, _preview: object) -> None:
        if prepared:
            raise JobStopped("the job was stopped")

    engine = replace(toy("sd1").service.engine, programs=Programs())
    jobs = [service.parse_job(request("a", width=64, height=height)).requests[0] for height in (64, 72, 80)]
    with pytest.raises(JobStopped):
        list(engine.run([engine.plan(job, None, None) for job in jobs], checkpoint))
    assert len(prepared) == 1
