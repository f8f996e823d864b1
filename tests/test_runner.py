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


def test_a_job_that_the_sdk_cancels_ends_at_its_next_checkpoint():
    started, ended = threading.Event(), threading.Event()

    def run(_job, control):
        started.set()
        try:
            while True:
                control.checkpoint(0.5)
                time.sleep(0.005)
        except JobStopped:
            ended.set()
            raise

    async def main():
        running = asyncio.create_task(JobRunner(run, Settings()).handle({"id": "running"}))
        while not started.is_set():
            await asyncio.sleep(0.005)
        running.cancel()
        return await asyncio.gather(running, return_exceptions=True)

    assert isinstance(asyncio.run(main())[0], asyncio.CancelledError)
    assert ended.wait(5)


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


def test_the_deadline_ends_a_job():
    control = JobControl(timeout_s=0.05)
    control.checkpoint(0.0)
    time.sleep(0.06)
    with pytest.raises(GenerationError, match=r"within its 0\.05 s \(JOB_TIMEOUT_S\)"):
        control.checkpoint(0.5)


@pytest.mark.parametrize(("every_s", "reports"), [(0.0, 0), (0.1, 3), (100.0, 0)])
def test_progress_is_sparse_and_none_is_under_way_after_the_answer(every_s, reports):
    sent = []

    def send(_job, payload):
        def post():
            time.sleep(0.2)
            sent.append(payload["progress"])

        thread = threading.Thread(target=post)
        thread.start()
        return thread

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


def test_a_report_that_is_being_made_when_the_job_ends_comes_before_the_answer():
    """A picture that fails ends its job, while the device's thread still reports the others."""
    sent, making, ending = [], threading.Event(), threading.Event()
    progress = Progress({"id": "x"}, lambda _job, payload: sent.append(payload), 0.001)
    time.sleep(0.01)

    def preview():
        making.set()
        ending.wait(5)
        time.sleep(0.1)
        return

    with ThreadPoolExecutor(2) as threads:
        threads.submit(progress, 0.5, preview)
        making.wait(5)
        finishing = threads.submit(progress.finish)
        ending.set()
        finishing.result(5)
        assert len(sent) == 1
        time.sleep(0.01)
        progress(0.6)
    assert len(sent) == 1


def test_no_report_overtakes_one_that_is_under_way():
    sent, posted = [], threading.Event()

    def send(_job, payload):
        sent.append(payload["progress"])
        thread = threading.Thread(target=posted.wait, args=(5,))
        thread.start()
        return thread

    progress = Progress({"id": "x"}, send, 0.001)
    for done in (0.1, 0.2, 0.3):
        time.sleep(0.01)
        progress(done)
    assert sent == [0.1]
    posted.set()
    progress.finish()


def test_start_and_end_are_not_progress():
    sent = []
    progress = Progress({"id": "x"}, lambda _job, payload: sent.append(payload), 0.001)
    time.sleep(0.01)
    progress(0.0)
    progress(1.0)
    assert not sent
    progress(0.5)
    assert sent == [{"progress": 0.5}]
    time.sleep(0.01)
    progress(0.4)
    assert len(sent) == 1, "a job that begins again does not go back"


def test_a_preview_is_made_only_for_a_report():
    sent, made = [], []

    def preview():
        made.append(1)
        return None if len(made) == 1 else "data:image/jpeg;base64,AA"

    progress = Progress({"id": "x"}, lambda _job, payload: sent.append(payload), 0.05)
    for done in range(1, 6):
        progress(done / 1000, preview)
    assert not made
    time.sleep(0.06)
    progress(0.5, preview)
    time.sleep(0.06)
    progress(0.6, preview)
    assert sent == [{"progress": 0.5}, {"progress": 0.6, "preview": "data:image/jpeg;base64,AA"}]
