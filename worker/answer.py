"""What an answer says: pictures and where they are, what was used, how long it took. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from worker.diffusion.names import title_of
from worker.engine.engine import Picture
from worker.engine.plan import Plan
from worker.errors import GenerationError
from worker.outputs import PictureFile, encode_picture, parameters_text
from worker.places import Found, Place
from worker.request import Request
from worker.weights.manifest import Manifest


class Kept(NamedTuple):
    """A stored picture: where it is, and the facts that are told of it."""

    place: Place
    facts: Mapping[str, Any]


def picture_file(request: Request, plan: Plan, picture: Picture, model: str) -> PictureFile:
    """The file that the request asks for, with how it was made inside."""
    facts = {
        "Steps": plan.steps,
        "Sampler": title_of(plan.scheduler, plan.scheduler_options),
        "CFG scale": f"{plan.guidance_scale:g}",
        "Seed": picture.seed,
        "Size": f"{plan.width}x{plan.height}",
        "Model": model,
        "Denoising strength": plan.strength,
    }
    text = parameters_text(request.prompt, request.negative_prompt, facts) if request.metadata else None
    return encode_picture(picture.pixels, request.output_format, request.output_quality, text)


def made_now(plan: Plan, index: int, file: PictureFile, place: Place) -> Kept:
    """Picture `index` of the plan, just stored."""
    return Kept(place, _facts(plan, index, file.content_type, len(file.data), sha256_of(file)))


def made_before(plan: Plan, index: int, found: Found | None, digest: str) -> Kept | None:
    """Picture `index` of the plan, if what was found was stored for the same request."""
    if found is None or found.facts.get("request") != digest or "sha256" not in found.facts:
        return None
    facts = _facts(plan, index, found.content_type, found.size_bytes, found.facts["sha256"])
    return Kept(found.place, facts)


def stored_facts(plan: Plan, index: int, file: PictureFile, digest: str) -> dict[str, str]:
    """What is stored with a picture, for `made_before` and for people."""
    return {"request": digest, "sha256": sha256_of(file), "seed": str(plan.seeds[index])}


def sha256_of(file: PictureFile) -> str:
    """In hexadecimal."""
    return hashlib.sha256(file.data).hexdigest()


def _facts(plan: Plan, index: int, content_type: str, size_bytes: int, sha256: str) -> dict[str, Any]:
    return {
        "seed": plan.seeds[index],
        "width": plan.width,
        "height": plan.height,
        "content_type": content_type,
        "size_bytes": size_bytes,
        "sha256": sha256,
    }


def result(request: Request, plan: Plan, kept: Sequence[Kept]) -> dict[str, Any]:
    """One request's; `images`, `image_url` and `seed` stand where worker-sdxl puts them."""
    return {
        "images": [one.place.url for one in kept],
        "image_url": kept[0].place.url,
        "seed": plan.seeds[0],
        "pictures": [{**one.facts, **_where(one.place)} for one in kept],
        "used": {
            "width": plan.width,
            "height": plan.height,
            "num_inference_steps": plan.steps,
            "guidance_scale": plan.guidance_scale,
            **({} if plan.true_cfg_scale is None else {"true_cfg_scale": plan.true_cfg_scale}),
            "guidance_rescale": request.guidance_rescale,
            "scheduler": plan.scheduler,
            "scheduler_options": plan.scheduler_options,
            "strength": plan.strength,
        },
        "warnings": list(plan.warnings),
    }


def _where(place: Place) -> dict[str, Any]:
    # A picture that is in the answer itself stands there once.
    return {"url": place.url, "key": place.key, "expires_at": place.expires_at} if place.key else {}


def results(outcomes: Sequence[dict[str, Any] | GenerationError]) -> dict[str, Any]:
    """Many requests', in their order, each its result or its error; the job fails only if none was made."""
    listed = [{"error": str(outcome)} if isinstance(outcome, GenerationError) else outcome for outcome in outcomes]
    errors = [str(outcome) for outcome in outcomes if isinstance(outcome, GenerationError)]
    if len(errors) < len(outcomes):
        return {"results": listed}
    return {"error": f"none of the {len(outcomes)} requests could be made; the first: {errors[0]}", "results": listed}


def surroundings(manifest: Manifest, seconds: Mapping[str, float], peak_memory_bytes: int | None) -> dict[str, Any]:
    """What the whole job shares: the model, the seconds by stage, the worker's peak where the device tells it."""
    peak = {} if peak_memory_bytes is None else {"peak_memory_bytes": peak_memory_bytes}
    return {
        "model": {"source": manifest.source, "revision": manifest.revision, "family": manifest.family},
        "timings": {name: round(value, 4) for name, value in seconds.items()},
        **peak,
    }
