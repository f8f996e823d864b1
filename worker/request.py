"""A job's `input`, checked: every field is declared once, with its type, bounds, default and description.

The README's table and the error messages are made from these declarations. What depends on the model (its sizes,
its schedulers' options, whether it is told the crop) is checked when the request is planned.
"""

from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from worker.diffusion.names import resolve
from worker.errors import InvalidRequest

SEED_MAX = 2**32 - 1
STEPS_MAX = 1000
SIZE_STEP = 8


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    return value


def _absent_if_minus_one(value: Any) -> Any:
    return None if value in (-1, "-1") else value


Integer = Annotated[int, BeforeValidator(_no_boolean)]
Number = Annotated[float, BeforeValidator(_no_boolean), Field(allow_inf_nan=False)]
Pair = Annotated[tuple[Integer, Integer], Field(description="two integers")]


class Request(BaseModel):
    """One request for pictures. A field that is null counts as absent, but for `prompt`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: str = Field(max_length=20_000, description="What the picture shows.")
    negative_prompt: str | None = Field(
        None, max_length=20_000, description="What it must not show; used when guidance is above 1."
    )
    width: Integer | None = Field(
        None,
        ge=64,
        le=4096,
        multiple_of=SIZE_STEP,
        description="Pixels; by default the model's, or the image's.",
    )
    height: Integer | None = Field(
        None,
        ge=64,
        le=4096,
        multiple_of=SIZE_STEP,
        description="Pixels; by default the model's, or the image's.",
    )
    num_images: Integer = Field(1, ge=1, le=16, description="Pictures to make; picture i uses the seed plus i.")
    seed: Annotated[Integer | None, BeforeValidator(_absent_if_minus_one)] = Field(
        None, ge=0, le=SEED_MAX, description="Same seed, same picture; absent, null or -1 draws one."
    )
    scheduler: str | None = Field(
        None, description="A diffusers, worker-sdxl or A1111 name; by default the checkpoint's own."
    )
    scheduler_options: dict[str, Any] | None = Field(
        None,
        description='Options of the scheduler by diffusers\' names, such as {"use_karras_sigmas": true}.',
    )
    num_inference_steps: Integer | None = Field(
        None, ge=1, le=STEPS_MAX, description="Denoising steps; by default the model's."
    )
    guidance_scale: Number | None = Field(
        None, ge=0, le=100, description="How strongly the prompt steers; 1 or less is without guidance."
    )
    guidance_rescale: Number = Field(0.0, ge=0, le=1, description="Correction of guidance's overexposure.")
    image: str | None = Field(
        None, description="The picture to start from: base64, with or without a data-URL prefix, or a URL."
    )
    image_url: str | None = Field(None, description="The picture to start from, as a URL; the same as `image`.")
    mask: str | None = Field(
        None,
        description="White where `image` is to be painted anew, black where it is kept; base64 or a URL.",
    )
    strength: Number | None = Field(
        None,
        ge=0,
        le=1,
        description="How much of `image` is redrawn; always at least one step. In-painting: 1.",
    )
    original_size: Pair | None = Field(
        None, description="SDXL: [height, width] the model is told; by default the size."
    )
    crops_coords_top_left: Pair | None = Field(None, description="SDXL: [top, left] of the crop; by default [0, 0].")
    target_size: Pair | None = Field(None, description="SDXL: [height, width] wished for; by default the size.")
    negative_original_size: Pair | None = Field(None, description="SDXL: the same for the negative prompt.")
    negative_crops_coords_top_left: Pair | None = Field(None, description="SDXL: the same for the negative prompt.")
    negative_target_size: Pair | None = Field(None, description="SDXL: the same for the negative prompt.")

    @field_validator("scheduler")
    @classmethod
    def _known_scheduler(cls, value: str | None) -> str | None:
        if value is not None:
            resolve(value)
        return value


_NULL_IS_ABSENT = frozenset(Request.model_fields) - {"prompt"}


def parse_request(raw: object) -> Request:
    """Check a job's `input`; raises InvalidRequest with one line per bad field, its value and its bounds."""
    if not isinstance(raw, dict):
        raise InvalidRequest([f"input: an object is needed, not {_shown(raw)}"])
    given: dict[Any, Any] = {
        name: value
        for name, value in cast(dict[Any, Any], raw).items()
        if value is not None or name not in _NULL_IS_ABSENT
    }
    try:
        request = Request.model_validate(given)
    except ValidationError as error:
        raise InvalidRequest([_problem(detail) for detail in error.errors(include_url=False)]) from None
    problems: list[str] = []
    if request.image is not None and request.image_url is not None:
        problems.append("image_url: give either image or image_url, not both")
    source = request.image or request.image_url
    if request.mask is not None and source is None:
        problems.append("mask: an image is needed with it")
    if request.strength is not None and source is None:
        problems.append("strength: has a meaning only with an image")
    negatives = (request.negative_original_size, request.negative_target_size)
    if any(negatives) and not all(negatives):
        problems.append("negative_original_size, negative_target_size: one is of no use without the other")
    if problems:
        raise InvalidRequest(problems)
    return request


_BOUNDS = {"ge": "at least", "le": "at most", "multiple_of": "a multiple of", "max_length": "at most"}


def _problem(detail: ErrorDetails) -> str:
    name = ".".join(str(part) for part in detail["loc"]) or "input"
    match detail["type"]:
        case "extra_forbidden":
            return f"{name}: unknown field; known are {', '.join(Request.model_fields)}"
        case "missing":
            return f"{name}: is missing"
        case "value_error":
            return f"{name}: {detail['msg'].removeprefix('Value error, ')}"
        case "string_too_long":
            return f"{name}: {len(detail['input'])} characters, allowed are {detail['ctx']['max_length']}"  # pyright: ignore[reportTypedDictNotRequiredAccess]
        case _:
            return f"{name}: {_shown(detail['input'])} is not allowed; {_wanted(detail)}"


def _wanted(detail: ErrorDetails) -> str:
    """The bounds of the field where it has some, else pydantic's own words."""
    field = Request.model_fields.get(str(detail["loc"][0])) if detail["loc"] else None
    bounds = [
        f"{words} {getattr(mark, key)}"
        for mark in (field.metadata if field else ())
        for key, words in _BOUNDS.items()
        if getattr(mark, key, None) is not None
    ]
    message = detail["msg"][0].lower() + detail["msg"][1:]
    return f"{message} ({', '.join(bounds)})" if bounds and len(detail["loc"]) == 1 else message


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
