"""Every bad field gets one clear line with its value and its bounds."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker.errors import InvalidRequest
from worker.request import Request, parse_request


def problems(raw: object) -> list[str]:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(raw)
    return caught.value.problems


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("prompt", None, "None"),
        ("prompt", 3, "3"),
        ("width", 0, "64 to 4096 in steps of 8"),
        ("height", -8, "64 to 4096 in steps of 8"),
        ("width", 427, "64 to 4096 in steps of 8"),
        ("width", 8192, "64 to 4096 in steps of 8"),
        ("width", True, "boolean"),
        ("num_inference_steps", 0, "1 to 1000"),
        ("num_inference_steps", 100_000, "1 to 1000"),
        ("num_inference_steps", 2.5, "2.5"),
        ("guidance_scale", math.nan, "nan"),
        ("guidance_scale", math.inf, "inf"),
        ("guidance_scale", "much", "'much'"),
        ("num_images", 99, "1 to 16"),
        ("seed", 2**32, "0 to 4294967295"),
        ("seed", 2**63, "0 to 4294967295"),
        ("seed", -2, "-1"),
        ("seed", True, "boolean"),
        ("scheduler", "no such solver", "no such solver"),
        ("original_size", [1024], "two integers"),
        ("original_size", [-5, 0], "0 to 65536"),
        ("prompts", ["a"], "is prompt meant"),
        ("cfg_scale", 7, "is guidance_scale meant"),
        ("zzz", 7, "unknown field"),
        ("image", "", "is empty"),
        ("output_format", "gif", "png, jpeg, webp"),
        ("output_format", 3, "png, jpeg, webp"),
        ("output_quality", 0, "1 to 100"),
        ("output_quality", 101, "1 to 100"),
        ("metadata", "perhaps", "neither true nor false"),
        ("metadata", [], "neither true nor false"),
    ],
)
def test_one_bad_field_is_named_with_its_value(field, value, words):
    found = problems({"prompt": "a cat", field: value})
    assert len(found) == 1
    assert found[0].startswith(f"{field}")
    assert words in found[0]


def test_all_bad_fields_come_in_one_answer():
    found = problems({"prompt": None, "width": 0, "num_inference_steps": 0, "guidance_scale": math.nan, "what": 1})
    assert [line.partition(":")[0] for line in found] == [
        "prompt", "width", "num_inference_steps", "guidance_scale", "what",
    ]  # fmt: skip


@pytest.mark.parametrize("raw", [None, [], "text", 3])
def test_an_input_that_is_no_object_is_refused(raw):
    assert problems(raw)[0].startswith("input:")


def test_a_prompt_is_needed():
    assert problems({}) == ["prompt: is missing"]


def test_integral_floats_and_digits_are_integers():
    request = parse_request({"prompt": "a cat", "width": 512.0, "height": "768", "seed": "7"})
    assert (request.width, request.height, request.seed) == (512, 768, 7)


@pytest.mark.parametrize("name", ["jpeg", "jpg", "JPEG", "JPG"])
def test_a_file_type_has_several_spellings(name):
    assert parse_request({"prompt": "a cat", "output_format": name}).output_format == "jpeg"


@pytest.mark.parametrize("seed", [None, -1, "-1"])
def test_a_seed_that_is_to_be_drawn(seed):
    assert parse_request({"prompt": "a cat", "seed": seed}).seed is None


def test_null_is_absent_everywhere_but_in_the_prompt():
    names = set(Request.model_fields) - {"prompt"}
    assert parse_request({"prompt": "a cat", **dict.fromkeys(names)}) == parse_request({"prompt": "a cat"})


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"mask": "AAAA"}, "mask"),
        ({"negative_crops_coords_top_left": [0, 0]}, "negative_original_size"),
        ({"image": "AAAA", "image_url": "https://example.org/a.png"}, "image_url"),
        ({"negative_original_size": [64, 64]}, "negative_original_size"),
    ],
)
def test_fields_that_need_each_other(raw, field):
    assert problems({"prompt": "a cat", **raw})[0].startswith(field)


def test_the_local_job_is_valid():
    job = json.loads((Path(__file__).parent.parent / "test_input.json").read_text("utf-8"))
    assert parse_request(job["input"]).prompt


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from([*Request.model_fields, "other"]), JSON, max_size=6))
def test_any_input_is_a_request_or_names_its_faults(raw):
    error = None
    try:
        parse_request(raw)
    except InvalidRequest as caught:
        error = caught
    known = [*Request.model_fields, "other"]
    for line in error.problems if error else ():
        assert line.partition(":")[0].partition(".")[0].partition(",")[0] in known


def test_a_job_of_worker_sdxl_is_a_job():
    job = {
        "prompt": "a cat",
        "negative_prompt": None,
        "height": 1024,
        "width": 1024,
        "num_inference_steps": 25,
        "refiner_inference_steps": 50,
        "guidance_scale": 7.5,
        "strength": 0.3,
        "seed": None,
        "scheduler": "K_EULER_ANCESTRAL",
        "image_url": None,
        "num_images": 2,
        "high_noise_frac": None,
    }
    assert parse_request(job).ignored == ("refiner_inference_steps",)
