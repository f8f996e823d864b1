"""Carries a batch's requests to the platform and its answers home: a bounded number of jobs at once, a thread each."""

import json
import logging
import random
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from threading import Event
from typing import Any, NamedTuple, Protocol

from worker.batch.answers import FINAL, Trouble, Verdict, job_input, verdicts
from worker.batch.journal import Journal, Outcome, Task
from worker.batch.pictures import Keep
from worker.batch.progress import Progress
from worker.batch.rows import ROW_BYTES_MAX
from worker.errors import BatchError, GenerationError, JobStopped

log = logging.getLogger(__name__)

_LATE_S = 60.0
"""How much later than the platform the client gives up on a job."""
_LOOK_S = 10.0
"""Between two looks at how many workers there are."""
_RETRY_MAX_S = 300.0
_TICK_S = 0.2
_MODEL_SIDE = 1024
"""Of a picture whose size is the model's own, which is not known here."""
_BYTES_PER_PIXEL = {"jpeg": 1.0, "webp": 1.0}
_PNG_BYTES_PER_PIXEL = 3.0
"""No PNG has more; a photograph has half of it."""
_INLINE_BYTES = 9_000_000


class Platform(Protocol):
    """What jobs are given to; may be called by several threads."""

    def run(self, job: Mapping[str, Any]) -> str | None:
        """The job's id; None if this job, unlike others, is refused."""
        ...

    def status(self, job_id: str) -> Mapping[str, Any] | None:
        """Runpod's reply (`status`, then `output` or `error`); None if the job is not known."""
        ...

    def cancel(self, job_id: str) -> None:
        """Stop it, if it can be."""
        ...

    def workers(self) -> int | None:
        """How many are paid for at the moment, None if it is not known."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Limits:
    """What the client keeps to; seconds where a name ends in `_s`.

    `inline`: pictures come inside the answers, whose size Runpod bounds. `tries`: how often a request is carried before
    it counts as failed. After `failures_in_a_row` jobs without a picture the client stops: something else than the
    requests is wrong.
    """

    jobs: int = 32
    requests_per_job: int = 8
    inline: bool = True
    tries: int = 5
    timeout_s: float = 600.0
    poll_s: float = 2.0
    backoff_s: float = 1.0
    failures_in_a_row: int = 50

    def most(self, shape: str) -> int:
        """Requests of a shape (`Row.shape`) that fit into a job."""
        width, height, pictures, *_, output_format = json.loads(shape)
        pixels = (width or _MODEL_SIDE) * (height or _MODEL_SIDE) * (pictures or 1)
        size = pixels * _BYTES_PER_PIXEL.get(output_format, _PNG_BYTES_PER_PIXEL) * 4 / 3
        return max(1, min(self.requests_per_job, int(_INLINE_BYTES / size))) if self.inline else self.requests_per_job


class Carried(NamedTuple):
    """What came of a job: requests that are done and failed for good, and whether it was of any use."""

    done: int
    failed: int
    useful: bool
    text: str


@dataclass
class Client:
    """`run` returns when no request is open any more; what it raises leaves a journal with which another goes on.

    `folder` and `job_fields` (such as `s3Config`) go along with each job.
    """

    journal: Journal
    platform: Platform
    keep: Keep
    limits: Limits
    folder: str
    progress: Progress
    stop: Event
    job_fields: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)

    def run(self) -> None:
        """Raises BatchError when it cannot go on, and KeyboardInterrupt."""
        pool = ThreadPoolExecutor(self.limits.jobs + 1, "jobs")
        try:
            self._run(pool)
        finally:
            # Threads that wait see it within a moment; a call that is under way ends by its own time-out.
            self.stop.set()
            pool.shutdown(cancel_futures=True)
            self.progress.close()

    def _run(self, pool: ThreadPoolExecutor) -> None:
        flying = {pool.submit(self._carry, tasks, job_id) for job_id, tasks in self.journal.jobs_sent()}
        looking: Future[int | None] | None = None
        looked, useless = -_LOOK_S, 0
        while True:
            while len(flying) < self.limits.jobs and (tasks := self.journal.take(self.limits.most, ROW_BYTES_MAX)):
                flying.add(pool.submit(self._carry, tasks, None))
            if not flying:
                due = self.journal.next_due()
                if due is None:
                    return
                self.stop.wait(min(_TICK_S, max(0.0, due - time.time())))
            if looking is None and time.monotonic() - looked >= _LOOK_S:
                looked, looking = time.monotonic(), pool.submit(self.platform.workers)
            if looking is not None and looking.done():
                self.progress.workers(looking.result())
                self.journal.set_facts({"worker_s": str(self.progress.worker_s)})
                looking = None
            finished, flying = wait(flying, _TICK_S, FIRST_COMPLETED)
            for carried in [future.result() for future in finished]:
                self.progress.add(carried.done, carried.failed)
                useless = 0 if carried.useful else useless + 1
                if useless == self.limits.failures_in_a_row:
                    raise BatchError(f"{useless} jobs in a row have failed, the last one so: {carried.text}")
            self.progress.show(len(flying))

    def pause(self, seconds: float) -> None:
        """Wait; raises JobStopped as soon as the client ends."""
        if self.stop.wait(seconds):
            raise JobStopped("the client ends")

    def _carry(self, tasks: list[Task], job_id: str | None) -> Carried:
        """A job from its sending to its pictures; `job_id` if it has been sent before."""
        if job_id is None:
            job_id = self.platform.run(self._job(tasks))
            if job_id is not None:
                self.journal.sent(job_id, tasks)
        if job_id is None:
            state = "refused"
            found: list[Verdict] = [Trouble("failed", "the platform does not take its job (status 400)")] * len(tasks)
        else:
            reply = self._await(job_id)
            state = "lost" if reply is None else str(reply["status"])
            found = verdicts(reply, len(tasks))
        outcomes = [self._outcome(task, self._kept(task, verdict)) for task, verdict in zip(tasks, found, strict=True)]
        self.journal.settle(job_id, state, outcomes)
        return _carried(outcomes, found)

    def _job(self, tasks: list[Task]) -> dict[str, Any]:
        return {
            "input": job_input(self.folder, [(task.name, task.fields) for task in tasks]),
            "policy": {"executionTimeout": int(1000 * self.limits.timeout_s)},
            **self.job_fields,
        }

    def _await(self, job_id: str) -> Mapping[str, Any] | None:
        """The platform's last word on a job; one that runs for too long is cancelled."""
        running_since: float | None = None
        while True:
            reply = self.platform.status(job_id)
            if reply is None or reply.get("status") in FINAL:
                return reply
            if reply.get("status") == "IN_PROGRESS":
                running_since = running_since or time.monotonic()
                if time.monotonic() - running_since > self.limits.timeout_s + _LATE_S:
                    self.platform.cancel(job_id)
                    return {"status": "TIMED_OUT"}
            self.pause(self.limits.poll_s)

    def _kept(self, task: Task, verdict: Verdict) -> Verdict:
        if isinstance(verdict, Trouble):
            return verdict
        try:
            return self.keep(task.name, verdict)
        except GenerationError as error:
            return Trouble("failed", str(error))

    def _outcome(self, task: Task, verdict: Verdict) -> Outcome:
        if not isinstance(verdict, Trouble):
            return Outcome(task, verdict)
        if verdict.kind == "spared":
            return Outcome(task, None, counts=False)
        if verdict.kind == "refused" or task.tries + 1 >= self.limits.tries:
            return Outcome(task, {"error": verdict.text})
        delay_s = min(_RETRY_MAX_S, self.limits.backoff_s * 2**task.tries) * random.uniform(0.5, 1)
        # A job that failed may have failed for one of its requests.
        return Outcome(task, None, time.time() + delay_s, alone=verdict.kind == "failed")


def _carried(outcomes: list[Outcome], found: list[Verdict]) -> Carried:
    answers = [one.answer for one in outcomes if one.answer is not None]
    failed = sum("error" in answer for answer in answers)
    troubles = [one for one in found if isinstance(one, Trouble)]
    # A refusal is an answer: the endpoint works.
    useful = len(troubles) < len(found) or any(one.kind == "refused" for one in troubles)
    return Carried(len(answers) - failed, failed, useful, troubles[0].text if troubles else "")
