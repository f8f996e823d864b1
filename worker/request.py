"""A request for pictures, checked: every field is declared once, with its type, bounds, default and description.

The README's table, the JSON schema and the error messages are made from these declarations. What depends on the model
(its sizes, its schedulers' options, whether it is told the crop) is checked when the request is planned.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from worker.diffusion.names import resolve
from worker.errors import InvalidRequest
from worker.outputs import OutputFormat

SEED_MAX = 2**32 - 1
SIDE_MIN, SIDE_MAX = 64, 4096
SIZE_STEP = 8


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    return value


def _absent_if_minus_one(value: Any) -> Any:
    return None if value in (-1, "-1") else value


def _or_minus_one(schema: dict[str, Any]) -> None:
    schema["anyOf"].append({"const": -1})


# Keywords of JSON schema, for forms.
_PICTURE: dict[str, Any] = {"contentMediaType": "image/*"}
_KEPT_FOR_OTHERS: dict[str, Any] = {"deprecated": True}


def _format(value: Any) -> Any:
    name = value.lower() if isinstance(value, str) else value
    return "jpeg" if name == "jpg" else name


Integer = Annotated[int, BeforeValidator(_no_boolean)]
Number = Annotated[float, BeforeValidator(_no_boolean), Field(allow_inf_nan=False)]
Pair = tuple[Annotated[Integer, Field(ge=0, le=65_536)], Annotated[Integer, Field(ge=0, le=65_536)]]


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
        None,
        ge=0,
        le=SEED_MAX,
        json_schema_extra=_or_minus_one,
        description="Same seed, same picture; absent, null or -1 draws one.",
    )
    scheduler: str | None = Field(
        None, max_length=100, description="A diffusers, worker-sdxl or A1111 name; by default the checkpoint's own."
    )
    scheduler_options: dict[str, Any] | None = Field(
        None,
        description='Options of the scheduler by diffusers\' names, such as {"use_karras_sigmas": true}.',
    )
    num_inference_steps: Integer | None = Field(
        None, ge=1, le=1000, description="Denoising steps; by default the model's."
    )
    guidance_scale: Number | None = Field(
        None, ge=0, le=100, description="How strongly the prompt steers; 1 or less is without guidance."
    )
    true_cfg_scale: Number | None = Field(
        None,
        ge=0,
        le=100,
        description="FLUX.1: how strongly it steers away from `negative_prompt`; above 1 a step costs double.",
    )
    guidance_rescale: Number = Field(0.0, ge=0, le=1, description="Correction of guidance's overexposure.")
    image: str | None = Field(
        None,
        min_length=1,
        json_schema_extra=_PICTURE,
        description="The picture to start from: base64, with or without a data-URL prefix, or a URL.",
    )
    image_url: str | None = Field(
        None, min_length=1, json_schema_extra=_KEPT_FOR_OTHERS, description="Another name of `image`."
    )
    mask: str | None = Field(
        None,
        min_length=1,
        json_schema_extra=_PICTURE,
        description="White where `image` is to be painted anew, black where it is kept; base64 or a URL.",
    )
    strength: Number | None = Field(
        None,
        ge=0,
        le=1,
        description="How much of `image` is redrawn, at least one step; by default 1 with a mask, else the model's.",
    )
    original_size: Pair | None = Field(
        None, description="SDXL: [height, width] the model is told; by default the size."
    )
    crops_coords_top_left: Pair | None = Field(None, description="SDXL: [top, left] of the crop; by default [0, 0].")
    target_size: Pair | None = Field(None, description="SDXL: [height, width] wished for; by default the size.")
    negative_original_size: Pair | None = Field(None, description="SDXL: the same for the negative prompt.")
    negative_crops_coords_top_left: Pair | None = Field(None, description="SDXL: the same for the negative prompt.")
    negative_target_size: Pair | None = Field(None, description="SDXL: the same for the negative prompt.")

    output_format: Annotated[OutputFormat, BeforeValidator(_format)] = Field(
        "png", description="File type of the pictures."
    )
    output_quality: Integer = Field(95, ge=1, le=100, description="Of JPEG and WebP; both lose detail, at 100 too.")
    metadata: bool = Field(True, description="Prompt, seed and settings inside the files, as A1111's tools read them.")
    preview: bool = Field(False, description="A small preview picture with each progress report.")

    refiner_inference_steps: Integer | None = Field(
        None,
        ge=0,
        json_schema_extra=_KEPT_FOR_OTHERS,
        description="Of worker-sdxl's refiner, which is not served: ignored, with a warning.",
    )
    high_noise_frac: Number | None = Field(
        None, ge=0, le=1, json_schema_extra=_KEPT_FOR_OTHERS, description="As `refiner_inference_steps`."
    )

    @field_validator("scheduler_options")
    @classmethod
    def _small_and_finite(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        try:
            size = len(json.dumps(value, allow_nan=False))
        except ValueError:
            raise ValueError("a number in it is not finite") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if size > 4096:
            raise ValueError(f"{size} characters, allowed are 4096")
        return value

    @field_validator("scheduler")
    @classmethod
    def _known_scheduler(cls, value: str | None) -> str | None:
        if value is not None:
            resolve(value)
        return value

    @property
    def source_image(self) -> tuple[str, str] | None:
        """Name and value of the field that holds the picture to start from."""
        given = [(name, value) for name in ("image", "image_url") if (value := getattr(self, name)) is not None]
        return given[0] if given else None

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields that are accepted for worker-sdxl's users and have no effect here."""
        names = ("refiner_inference_steps", "high_noise_frac")
        return tuple(name for name in names if getattr(self, name) is not None)


_PROBLEMS_MAX = 20
_NAME_MAX = 60
_NULL_IS_ABSENT = frozenset(Request.model_fields) - {"prompt"}


def parse_request(raw: object) -> Request:
    """Check one request; raises InvalidRequest with one line per bad field, its value and its bounds."""
    if not isinstance(raw, dict):
        raise InvalidRequest([f"input: an object is needed, not {shown(raw)}"])
    fields = named_fields(cast(dict[Any, Any], raw))
    request, faults = check_fields(fields)
    faults += check_together(fields)
    if request is None or faults:
        raise InvalidRequest(capped(faults, fault_text))
    return request


def named_fields(raw: Mapping[Any, Any]) -> dict[str, Any]:
    """An object's fields under names that can be checked, sent and logged.

    Half a surrogate pair can be neither of the first two, and a line break would forge a line of the log.
    """
    return {_printable(str(name)[:_NAME_MAX]): value for name, value in raw.items()}


def check_fields(fields: Mapping[str, Any]) -> tuple[Request | None, list[ErrorDetails]]:
    """The request, or what is wrong with its fields, each taken by itself."""
    given = {name: value for name, value in fields.items() if value is not None or name not in _NULL_IS_ABSENT}
    try:
        return Request.model_validate(given), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def check_together(fields: Mapping[str, Any]) -> list[ErrorDetails]:
    """What is wrong with fields that need or exclude each other."""
    given = {name for name, value in fields.items() if value is not None}
    faults: list[ErrorDetails] = []
    if {"image", "image_url"} <= given:
        faults.append(fault("image_url", "give either image or image_url, not both"))
    if "mask" in given and given.isdisjoint({"image", "image_url"}):
        faults.append(fault("mask", "an image is needed with it"))
    sizes = {"negative_original_size", "negative_target_size"}
    if not sizes <= given and not given.isdisjoint({*sizes, "negative_crops_coords_top_left"}):
        faults.append(fault("negative_original_size, negative_target_size", "both are needed, or none"))
    return faults


def request_digest(request: Request, model_source: str, model_revision: str | None) -> str:
    """SHA-256, in hexadecimal, of all that decides on a request's pictures but for a seed that is drawn.

    It is taken of canonical JSON: sorted names, defaults included, a picture behind a URL by its URL.
    """
    decisive = request.model_dump(exclude={"preview"})
    model = {"source": model_source, "revision": model_revision}
    text = json.dumps({"request": decisive, "model": model}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def bounds(field: FieldInfo) -> str:
    """What a number may be, in words: "64 to 4096 in steps of 8"; empty for other fields."""
    found = {
        key: getattr(mark, key) for mark in field.metadata for key in ("ge", "le", "multiple_of") if hasattr(mark, key)
    }
    if "ge" not in found:
        return ""
    words = f"{found['ge']} to {found['le']}" if "le" in found else f"at least {found['ge']}"
    return f"{words} in steps of {found['multiple_of']}" if "multiple_of" in found else words


def capped[T](faults: Sequence[T], text: Callable[[T], str]) -> list[str]:
    """Texts of the first faults, and how many more there are; the others' texts are not made."""
    more = len(faults) - _PROBLEMS_MAX
    return [text(one) for one in faults[:_PROBLEMS_MAX]] + ([f"and {more} more"] if more > 0 else [])


def fault(name: str, text: str) -> ErrorDetails:
    """A fault that pydantic does not find, in its form."""
    return {"type": "value_error", "loc": (name,), "msg": text, "input": None}


def fault_text(detail: ErrorDetails) -> str:
    """One line: the field's name, its value and what is allowed."""
    path = [str(part) for part in detail["loc"]]
    name = path[0][:_NAME_MAX] if path else "input"
    field = Request.model_fields.get(name)
    value = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            near = get_close_matches(_COMMON.get(name, name), Request.model_fields, 1)
            hint = f"is {near[0]} meant?" if near else "the README lists those that are known"
            return f"{name}: unknown field; {hint}"
        case "missing" if len(path) == 1:
            return f"{name}: is missing"
        case "value_error":
            return f"{name}: {detail['msg'].removeprefix('Value error, ')}"
        case "string_too_long":
            return f"{name}: {len(str(value))} characters, allowed are {detail.get('ctx', {})['max_length']}"
        case "string_too_short":
            return f"{name}: is empty"
        case "string_type":
            return f"{name}: {shown(value)} is not text"
        case "string_unicode" if field is not None and "str" in str(field.annotation):
            return f"{name}: half of a surrogate pair is in it, which is not text"
        case "literal_error" | "string_unicode" if name == "output_format":
            return f"{name}: {shown(value)} is not one of {', '.join(get_args(OutputFormat))}"
        case "bool_type" | "bool_parsing" | "string_unicode" if field is not None and field.annotation is bool:
            return f"{name}: {shown(value)} is neither true nor false"
        case "dict_type":
            return f"{name}: {shown(value)} is not an object"
        case _ if len(path) > 1 or detail["type"] == "tuple_type":
            return f"{name}: {shown(value)} is not allowed: two integers of 0 to 65536 are needed"
        case _:
            kind = "a number" if field is not None and "float" in str(field.annotation) else "an integer"
            allowed = bounds(field) if field is not None else ""
            also = ", or null or -1" if name == "seed" else ""
            return f"{name}: {shown(value)} is not allowed: {kind}{f' of {allowed}' if allowed else ''}{also} is needed"


# Names that other services use.
_COMMON = {
    "steps": "num_inference_steps",
    "cfg_scale": "guidance_scale",
    "cfg": "guidance_scale",
    "sampler": "scheduler",
}


def shown(value: object) -> str:
    """A value as an error quotes it."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} that is nested too deeply"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _printable(name: str) -> str:
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in name) or "''"
