"""A job's dictionary in, a result's dictionary out; the only place where exceptions become answers."""

import hashlib
import json
import logging
import secrets
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from worker.control import JobControl
from worker.diffusion.names import title_of
from worker.engine.clock import Clock
from worker.engine.engine import Engine, Picture
from worker.engine.loading import load_engine
from worker.engine.plan import Plan
from worker.errors import DeviceError, GenerationError, InvalidRequest, JobStopped
from worker.inputs import read_image
from worker.outputs import PictureFile, encode_picture, parameters_text
from worker.request import Request, parse_request
from worker.settings import Settings
from worker.storage import (
    Place,
    Store,
    bucket_of_settings,
    folder_store,
    inline_store,
    job_store,
    s3_store,
)

log = logging.getLogger(__name__)


class Kept(NamedTuple):
    """A picture that has been stored."""

    picture: Picture
    file: PictureFile
    place: Place


@dataclass(frozen=True)
class Service:
    """Everything around the engine: checking, reading images, storing pictures, answering."""

    engine: Engine
    store: Store
    max_answer_bytes: int

    def run(self, job: object, control: JobControl | None = None) -> dict[str, Any]:
        """Answer one job: a result, or `{"error": text}`; never an exception, never a traceback.

        May be called from several threads at once. `control` may end the job early.
        """
        answer = self._try(job, control or JobControl())
        if "error" in answer:
            # Half a surrogate pair, quoted from the job, would keep the SDK from sending the answer.
            answer["error"] = answer["error"].encode("utf-8", "backslashreplace").decode()
        return answer

    def _try(self, job: object, control: JobControl) -> dict[str, Any]:
        fields = cast(dict[str, Any], job if isinstance(job, dict) else {})
        job_id = str(fields.get("id", "job"))
        try:
            return self._run(job_id, fields.get("input"), fields.get("s3Config"), control)
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
        with clock.stage("prepare_s"):
            request = parse_request(raw)
            store = self.store if own_bucket is None else job_store(own_bucket)
            image = read_image(*request.source_image) if request.source_image else None
            mask = read_image("mask", request.mask) if request.mask else None
            plan = self.engine.plan(request, image, mask)

        def keep(index: int, picture: Picture) -> Kept:
            file = self._file(request, plan, picture)
            return Kept(picture, file, store(job_id, index, file))

        with ThreadPoolExecutor(8, "store") as pool:
            keeping: dict[int, Future[Kept]] = {}
            for made in self.engine.run([plan], control.checkpoint, clock):
                if isinstance(made.outcome, GenerationError):
                    raise made.outcome
                keeping[made.picture] = pool.submit(keep, made.picture, made.outcome)
            with clock.stage("store_s"):
                kept = [keeping[index].result() for index in sorted(keeping)]
        clock.add("total_s", time.perf_counter() - began)
        answer = self._answer(request, plan, kept, clock.seconds)
        size = len(json.dumps(answer, allow_nan=False))
        if size > self.max_answer_bytes:
            raise GenerationError(
                f"the answer has {size} bytes, allowed are {self.max_answer_bytes}: ask for fewer or smaller pictures"
            )
        return answer

    def _file(self, request: Request, plan: Plan, picture: Picture) -> PictureFile:
        facts = {
            "Steps": plan.steps,
            "Sampler": title_of(plan.scheduler, plan.scheduler_options),
            "CFG scale": f"{plan.guidance_scale:g}",
            "Seed": picture.seed,
            "Size": f"{plan.width}x{plan.height}",
            "Model": self.engine.manifest.source,
            "Denoising strength": plan.strength,
        }
        text = parameters_text(request.prompt, request.negative_prompt, facts) if request.metadata else None
        return encode_picture(picture.pixels, request.output_format, request.output_quality, text)

    def _answer(
        self,
        request: Request,
        plan: Plan,
        kept: list[Kept],
        timings: dict[str, float],
    ) -> dict[str, Any]:
        """`images`, `image_url` and `seed` stand where worker-sdxl puts them; `pictures` has the details of each."""
        manifest = self.engine.manifest
        return {
            "images": [one.place.url for one in kept],
            "image_url": kept[0].place.url,
            "seed": plan.seeds[0],
            "pictures": [_describe(*one) for one in kept],
            "used": {
                "width": plan.width,
                "height": plan.height,
                "num_inference_steps": plan.steps,
                "guidance_scale": plan.guidance_scale,
                "guidance_rescale": request.guidance_rescale,
                "scheduler": plan.scheduler,
                "scheduler_options": plan.scheduler_options,
                "strength": plan.strength,
            },
            "model": {"source": manifest.source, "revision": manifest.revision, "family": manifest.family},
            "timings": {name: round(seconds, 4) for name, seconds in timings.items()},
            "warnings": list(plan.warnings),
        }


def _describe(picture: Picture, file: PictureFile, place: Place) -> dict[str, Any]:
    height, width, _ = picture.pixels.shape
    # A picture that is in the answer itself stands there once.
    stored = {"url": place.url, "key": place.key, "expires_at": place.expires_at} if place.key else {}
    return {
        "seed": picture.seed,
        "width": width,
        "height": height,
        "content_type": file.content_type,
        "size_bytes": len(file.data),
        "sha256": hashlib.sha256(file.data).hexdigest(),
        **stored,
    }


def load_service(settings: Settings, *, local: bool) -> Service:
    """Load the model and connect what is around it.

    Pictures go to the bucket if one is set, else in a local run to a folder, else into the answer.
    Raises StartupError when the worker cannot serve.
    """
    bucket = bucket_of_settings(settings)
    store = s3_store(bucket) if bucket else folder_store(settings.output_dir) if local else inline_store
    return Service(load_engine(settings), store, settings.max_inline_bytes)
