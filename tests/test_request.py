"""Every bad field gets one clear line with its value and its bounds."""

import json
import math
import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker.errors import InvalidRequest
from worker.request import Request, parse_request, request_digest


def problems(raw: object) -> list[str]:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(raw)
    return caught.value.problems


def nested(levels: int) -> Any:
    return reduce(lambda inner, _: [inner], range(levels), [])


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
        ("preview", "perhaps", "neither true nor false"),
        ("scheduler_options", 3, "3 is not an object"),
        ("prompt", "a cat\ud83d", "half of a surrogate pair"),
        ("image", "\ud800", "half of a surrogate pair"),
        ("width", "\ud800", "64 to 4096 in steps of 8"),
        ("metadata", "\ud800", "neither true nor false"),
        ("output_format", "\ud800", "png, jpeg, webp"),
        ("width", nested(5_000), "a list that is nested too deeply"),
        ("scheduler_options", {"a": nested(5_000)}, "nested too deeply"),
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


@pytest.mark.parametrize(
    ("name", "said"),
    [("\ud800x", "\\ud800x"), ("steps\nERROR", "steps\\nERROR"), ("größe", "größe"), ("", "''"), ("\udc00" * 99, "")],
)
def test_the_name_of_an_unknown_field_can_be_sent_and_logged(name, said):
    (line,) = problems({"prompt": "a cat", name: 1})
    assert line.startswith(said)
    assert line.endswith(": unknown field; the README lists those that are known")
    assert line.isprintable()


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


def test_fields_that_need_each_other_are_named_with_all_other_faults():
    found = problems({"width": 0, "mask": "AAAA"})
    assert [line.partition(":")[0] for line in found] == ["prompt", "width", "mask"]


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


OTHER_VALUES = {
    "prompt": "a dog", "negative_prompt": "b", "width": 64, "height": 64, "num_images": 2, "seed": 1,
    "scheduler": "DDIM", "scheduler_options": {"eta": 1.0}, "num_inference_steps": 3, "guidance_scale": 2,
    "true_cfg_scale": 2, "guidance_rescale": 0.5, "image": "AAAA", "image_url": "https://example.org/a.png",
    "mask": "AAAA", "strength": 0.5,
    "original_size": [64, 64], "crops_coords_top_left": [1, 1], "target_size": [64, 64],
    "negative_original_size": [64, 64], "negative_crops_coords_top_left": [1, 1], "negative_target_size": [64, 64],
    "output_format": "webp", "output_quality": 50, "metadata": False,
}  # fmt: skip


def digest(fields: dict[str, Any], source: str = "toy", revision: str | None = None) -> str:
    return request_digest(Request.model_validate({"prompt": "a cat"} | fields), source, revision)


def test_what_makes_another_picture_makes_another_digest():
    given = [digest({name: value}) for name, value in OTHER_VALUES.items()]
    all_digests = [digest({}), digest({}, "other"), digest({}, revision="1"), *given]
    assert len(set(all_digests)) == len(all_digests)
    assert all(re.fullmatch("[0-9a-f]{64}", one) for one in all_digests)


def test_every_field_that_decides_on_a_picture_is_in_that_test():
    without = {"preview", "refiner_inference_steps", "high_noise_frac"}
    assert OTHER_VALUES.keys() == Request.model_fields.keys() - without


def test_one_request_said_in_several_ways_has_one_digest():
    first = {"width": 64, "scheduler_options": {"a": 1, "b": 2}, "output_format": "jpg", "seed": -1, "preview": True}
    second = {"scheduler_options": {"b": 2, "a": 1}, "width": "64", "output_format": "jpeg", "num_images": 1}
    assert digest(first) == digest(second)


def test_a_digest_takes_every_text_that_a_request_may_hold():
    assert digest({"prompt": "größe 🦊", "scheduler_options": {"\ud800": "\ud800"}}) != digest({})


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
