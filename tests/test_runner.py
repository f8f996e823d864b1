"""Jobs beside each other: what is stopped, what is late, and what is reported."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from worker.control import JobControl
from worker.errors import GenerationError, JobStopped
from worker.runner import JobRunner, Progress
from worker.settings import Settings


def test_a_stopped_job_ends_at_its_next_checkpoint_and_a_queued_one_never_starts():
    device, started, ended = ThreadPoolExecutor(1), [], threading.Event()

    def run(job, control):
        def work():
            started.append(job["id"])
            while True:
                control.checkpoint(0.5)
                time.sleep(0.005)

        try:
            return control.run_on(device, work)
        except JobStopped:
            if job["id"] == "running":
                ended.set()
            raise

    async def main():
        runner = JobRunner(run, Settings())
        running = asyncio.create_task(runner.handle({"id": "running"}))
        while not started:
            await asyncio.sleep(0.005)
        queued = asyncio.create_task(runner.handle({"id": "queued"}))
        await asyncio.sleep(0.05)
        for task in (queued, running):
            task.cancel()
        return await asyncio.gather(running, queued, return_exceptions=True)

    assert all(isinstance(found, asyncio.CancelledError) for found in asyncio.run(main()))
    assert ended.wait(5)
    device.shutdown()
    assert started == ["running"]


def test_the_event_loop_stays_free_and_jobs_overlap():
    barrier = threading.Barrier(3)

    def run(_job, _control):
        barrier.wait(5)
        return {}

    async def main():
        runner = JobRunner(run, Settings(max_concurrency=3))
        assert runner.concurrency(1) == 3
        return await asyncio.gather(*(runner.handle({"id": name}) for name in "abc"))

    assert asyncio.run(main()) == [{}, {}, {}]


def test_the_deadline_ends_what_runs_and_what_waits():
    with ThreadPoolExecutor(1) as device:

        def work(control):
            while True:
                control.checkpoint(0.0)
                time.sleep(0.005)

        running = JobControl(timeout_s=0.2)
        with pytest.raises(GenerationError, match=r"within its 0\.2 s"):
            running.run_on(device, lambda: work(running))
        release = threading.Event()
        device.submit(release.wait, 5)
        with pytest.raises(GenerationError, match="JOB_TIMEOUT_S"):
            JobControl(timeout_s=0.1).run_on(device, lambda: pytest.fail("it has started"))
        release.set()


def test_without_a_deadline_or_a_stop_the_work_is_done():
    with ThreadPoolExecutor(1) as device:
        assert JobControl().run_on(device, lambda: 3) == 3


@pytest.mark.parametrize(("every_s", "reports"), [(0.0, 0), (0.1, 3), (100.0, 0)])
def test_progress_is_sparse_and_none_is_under_way_after_the_answer(every_s, reports):
    sent = []

    def send(_job, payload):
        def post():
            time.sleep(0.2)
            sent.append(payload["progress"])

        threading.Thread(target=post, daemon=True).start()

    def run(_job, control):
        for done in range(8):
            control.checkpoint(done / 8)
            time.sleep(0.05)
        return {"answer": 1}

    async def main():
        return await JobRunner(run, Settings(progress_every_s=every_s), send).handle({"id": "x"})

    assert asyncio.run(main()) == {"answer": 1}
    found = len(sent)
    time.sleep(0.3)
    assert len(sent) == found
    assert found <= 4
    assert (found > 0) == (reports > 0)
    assert sent == sorted(sent)


def test_start_and_end_are_not_progress():
    sent = []
    progress = Progress({"id": "x"}, lambda _job, payload: sent.append(payload), 0.001)
    time.sleep(0.01)
    progress(0.0)
    progress(1.0)
    assert not sent
    progress(0.5)
    assert sent == [{"progress": 0.5}]
