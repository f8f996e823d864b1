"""A job's dictionary in, a result's dictionary out; the only place where exceptions become answers."""

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, cast

from worker.answer import Kept, made_before, made_now, picture_file, result, results, stored_facts, surroundings
from worker.control import JobControl
from worker.engine.clock import Clock
from worker.engine.engine import Engine, Picture, Preview
from worker.engine.loading import load_engine
from worker.engine.memory import device_memory
from worker.engine.plan import Plan
from worker.engine.warm_up import WarmUp
from worker.errors import DeviceError, GenerationError, InvalidRequest, JobStopped
from worker.inputs import read_image
from worker.job import ParsedJob, check_health, mentions_health, parse_job
from worker.outputs import EXTENSIONS, data_url, encode_picture
from worker.places import Store, picture_name
from worker.report import Tally, report
from worker.request import Request, request_digest
from worker.settings import Settings
from worker.storage import job_store, operator_store

log = logging.getLogger(__name__)

_THREADS = 8
_PREVIEW_QUALITY = 80


@dataclass(frozen=True)
class Service:
    """Everything around the engine: checking, reading images, storing pictures, answering.

    `platform`: job ids name one job for good, however often it comes.
    """

    engine: Engine
    store: Store
    max_answer_bytes: int
    platform: bool = False
    tally: Tally = field(default_factory=Tally)
    warm_up: WarmUp = field(init=False, repr=False)

    def __post_init__(self):
        # Frozen for everyone else.
        object.__setattr__(self, "warm_up", WarmUp(self.engine))

    def open(self, settings: Settings) -> None:
        """Make the first jobs quick, as far as the start's budget goes, and log the report; raises StartupError."""
        start = self.engine.start
        if settings.warm_up:
            with start.stage("warm_up_s"):
                self.warm_up.run(settings.start_budget_s - start.age_s)
        start.add("total_s", start.age_s)
        log.info("started: %s", json.dumps(self.report()))

    def report(self) -> dict[str, Any]:
        """See `worker.report`."""
        return report(self.engine, self.warm_up, self.tally)

    def run(self, job: object, control: JobControl | None = None) -> dict[str, Any]:
        """Answer one job: a result, or `{"error": text}`; never an exception, never a traceback.

        May be called from several threads at once. `control` may end the job early. A health job is answered at once,
        and is not counted.
        """
        fields = cast(dict[str, Any], job if isinstance(job, dict) else {})
        work = partial(self._try, fields, control or JobControl())
        answer = work() if mentions_health(fields.get("input")) else self.tally.count(work)
        if "error" in answer:
            # Half a surrogate pair, quoted from the job, would keep the SDK from sending the answer.
            answer["error"] = answer["error"].encode("utf-8", "backslashreplace").decode()
        return answer

    def _try(self, job: dict[str, Any], control: JobControl) -> dict[str, Any]:
        job_id, raw = str(job.get("id", "job")), job.get("input")
        try:
            if mentions_health(raw):
                check_health(raw)
                return {"health": self.report()}
            return self._run(job_id, raw, job.get("s3Config"), control)
        except InvalidRequest as error:
            # Values stay out of the log: they may be a prompt or a picture.
            fields = ", ".join(problem.partition(":")[0] for problem in error.problems)
            log.info("job %s: refused for its %s", job_id, fields)
            return {"error": str(error)}
        except DeviceError as error:
            log.error("job %s: %s", job_id, error)
            return {"error": str(error), "refresh_worker": True}
        except JobStopped as error:
            log.info("job %s: %s", job_id, error)
            return {"error": str(error)}
        except GenerationError as error:
            log.error("job %s: %s", job_id, error)
            return {"error": str(error)}
        except Exception:
            error_id = secrets.token_hex(6)
            log.exception("job %s: internal error %s", job_id, error_id)
            return {"error": f"internal error {error_id}; the worker's log has its cause"}

    def _run(self, job_id: str, raw: object, own_bucket: object, control: JobControl) -> dict[str, Any]:
        began, clock = time.perf_counter(), Clock()
        with _threads() as pool:
            with clock.stage("prepare_s"):
                job = parse_job(raw)
                store = self.store if own_bucket is None else job_store(own_bucket)
                orders = self._orders(job_id, job, pool, control)
                control.wait(
                    [pool.submit(order.find, store, job_id, control) for order in orders if self._finds(order)]
                )
            outcomes = self._make(orders, partial(self._keep, store, job_id), pool, control, clock)
        clock.add("total_s", time.perf_counter() - began)
        if not job.many and isinstance(outcomes[0], GenerationError):
            raise outcomes[0]
        answer = results(outcomes) if job.many else {**cast(dict[str, Any], outcomes[0])}
        answer |= surroundings(self.engine.manifest, clock.seconds, device_memory().get("peak_bytes"))
        if any(isinstance(outcome, DeviceError) for outcome in outcomes):
            answer["refresh_worker"] = True
        if failed := sum(isinstance(outcome, GenerationError) for outcome in outcomes):
            log.error("job %s: %d of %d requests failed", job_id, failed, len(outcomes))
        size = len(json.dumps(answer, allow_nan=False))
        if size > self.max_answer_bytes:
            raise GenerationError(
                f"the answer has {size} bytes, allowed are {self.max_answer_bytes}: ask for fewer or smaller pictures"
            )
        return answer

    def _orders(self, job_id: str, job: ParsedJob, pool: Executor, control: JobControl) -> list["Order"]:
        """Read and plan all requests; raises InvalidRequest with the faults of all of them."""
        # Requests may share a picture and a mask; more than these are not held, since they are of full size.
        read = lru_cache(2)(read_image)

        def order(index: int, request: Request) -> Order | InvalidRequest:
            control.check()
            if request.seed is None and self.platform:
                # A job that comes a second time draws the same seeds, so that what is stored is what it asks for.
                request = request.model_copy(update={"seed": _drawn(job_id, index)})
            try:
                image = read(*request.source_image) if request.source_image else None
                mask = read("mask", request.mask) if request.mask else None
                plan = self.engine.plan(request, image, mask)
            except InvalidRequest as error:
                return error
            model = self.engine.manifest
            digest = request_digest(request, model.source, model.revision)
            return Order(index if job.many else None, request, plan, digest)

        futures = [pool.submit(order, index, request) for index, request in enumerate(job.requests)]
        control.wait(futures)
        orders = [future.result() for future in futures]
        refused = {index: found.problems for index, found in enumerate(orders) if isinstance(found, InvalidRequest)}
        if refused:
            raise job.refusal(refused)
        return [found for found in orders if isinstance(found, Order)]

    def _finds(self, order: "Order") -> bool:
        """Whether stored pictures are looked for: that costs a round trip, which pays for jobs of many requests."""
        return self.platform and order.number is not None

    def _make(
        self, orders: list["Order"], keep: "Keep", pool: Executor, control: JobControl, clock: Clock
    ) -> list[dict[str, Any] | GenerationError]:
        """Make what is not kept yet, and store each picture as soon as it is done; one outcome for each order."""
        wanted = [(order, order.missing()) for order in orders]
        wanted = [(order, plan, indices) for order, (plan, indices) in wanted if indices]
        wants_preview = any(order.request.preview for order in orders)

        def watch(done: float, preview: Preview) -> None:
            control.checkpoint(done, partial(_preview_url, preview) if wants_preview else None)

        with closing(self.engine.run([plan for _, plan, _ in wanted], watch, clock)) as run:
            for made in run if wanted else ():
                control.check()
                order, _, indices = wanted[made.plan]
                index = indices[made.picture]
                if isinstance(made.outcome, GenerationError):
                    if order.number is None:
                        raise made.outcome
                    order.error = made.outcome
                else:
                    order.keeping[index] = pool.submit(keep, order, index, made.outcome)
        with clock.stage("store_s"):
            control.wait(future for order in orders for future in order.keeping.values())
            return [order.outcome() for order in orders]

    def _keep(self, store: Store, job_id: str, order: "Order", index: int, picture: Picture) -> Kept:
        file = picture_file(order.request, order.plan, picture, self.engine.manifest.source)
        facts = stored_facts(order.plan, index, file, order.digest) if self._finds(order) else {}
        return made_now(order.plan, index, file, store.put(job_id, picture_name(order.number, index), file, facts))


Keep = Callable[["Order", int, Picture], Kept]


@dataclass
class Order:
    """A request on its way through the service. `number`: its place among many, None if it is the only one."""

    number: int | None
    request: Request
    plan: Plan
    digest: str
    kept: dict[int, Kept] = field(default_factory=dict[int, Kept])
    keeping: dict[int, Future[Kept]] = field(default_factory=dict[int, Future[Kept]])
    error: GenerationError | None = None

    def find(self, store: Store, job_id: str, control: JobControl) -> None:
        """Look for the pictures that an earlier run of the job has stored for the same request."""
        extension = EXTENSIONS[self.request.output_format]
        for index in range(len(self.plan.seeds)):
            control.check()
            found = store.find(job_id, picture_name(self.number, index), extension)
            if kept := made_before(self.plan, index, found, self.digest):
                self.kept[index] = kept

    def missing(self) -> tuple[Plan, list[int]]:
        """A plan for the pictures that are still to be made, and their numbers."""
        indices = [index for index in range(len(self.plan.seeds)) if index not in self.kept]
        return replace(self.plan, seeds=tuple(self.plan.seeds[index] for index in indices)), indices

    def outcome(self) -> dict[str, Any] | GenerationError:
        """The result, once all is stored."""
        try:
            self.kept |= {index: future.result() for index, future in self.keeping.items()}
        except GenerationError as error:
            return self.error or error
        return self.error or result(self.request, self.plan, [self.kept[index] for index in sorted(self.kept)])


@contextmanager
def _threads() -> Generator[Executor]:
    """For what goes through a network. A job that ends early does not wait for what hangs there."""
    pool = ThreadPoolExecutor(_THREADS, "files")
    try:
        yield pool
    finally:
        pool.shutdown(wait=False)


def _preview_url(preview: Preview) -> str | None:
    pixels = preview()
    return None if pixels is None else data_url(encode_picture(pixels, "jpeg", _PREVIEW_QUALITY, None))


def _drawn(job_id: str, index: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{job_id}/{index}".encode()).digest()[:4])


def load_service(settings: Settings, *, local: bool, start: Clock | None = None) -> Service:
    """Load the model and connect what is around it; `start` gets the seconds of its parts.

    Pictures go to the bucket if one is set, else in a local run to a folder, else into the answer.
    Raises StartupError when the worker cannot serve.
    """
    store = operator_store(settings, local=local)
    return Service(load_engine(settings, start), store, settings.max_inline_bytes, platform=not local)
