"""One request or many over the same defaults, with every fault of each in one answer."""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker.errors import InvalidRequest
from worker.job import MANY_FIELDS, REQUESTS_MAX, ParsedJob, parse_job
from worker.request import Request, parse_request

CAT = {"prompt": "a cat"}


def problems(raw: object) -> list[str]:
    with pytest.raises(InvalidRequest) as caught:
        parse_job(raw)
    return caught.value.problems


def test_one_request_is_a_job():
    assert parse_job(CAT) == ParsedJob((parse_request(CAT),), many=False)


@pytest.mark.parametrize("raw", [None, [], {}, {"prompt": 3, "width": 0}])
def test_one_bad_request_has_the_faults_that_it_has_alone(raw):
    with pytest.raises(InvalidRequest) as alone:
        parse_request(raw)
    assert problems(raw) == alone.value.problems


@pytest.mark.parametrize("count", [1, REQUESTS_MAX])
def test_many_requests_keep_their_order(count):
    raw = [{"prompt": f"cat {index}"} for index in range(count)]
    assert parse_job({"requests": raw}) == ParsedJob(tuple(map(parse_request, raw)), many=True)


def test_defaults_hold_where_a_request_gives_nothing():
    defaults = {"prompt": "a dog", "width": 512, "seed": 5, "negative_prompt": None}
    requests = [{}, {"prompt": None, "width": None, "seed": None}, {"width": 64, "seed": -1}, {"prompt": "a cat"}]
    assert parse_job({"requests": requests, "defaults": defaults}).requests == (
        Request(prompt="a dog", width=512, seed=5),
        Request(prompt="a dog", width=512, seed=5),
        Request(prompt="a dog", width=64),
        Request(prompt="a cat", width=512, seed=5),
    )
    assert parse_job({"requests": [CAT], "defaults": None}).requests == (parse_request(CAT),)


def test_faults_of_all_requests_come_in_one_answer():
    raw = [CAT, CAT | {"width": 0, "what": 1}, 3, {"prompt": None, "mask": "AAAA"}, {}]
    found = problems({"requests": raw, "defaults": {"height": 8}, "seed": 7, "default": {}, "other": 3})
    assert [line.partition(":")[0] for line in found] == [
        "seed", "default", "other", "defaults.height", "requests[1].width", "requests[1].what", "requests[2]",
        "requests[3].prompt", "requests[3].mask", "requests[4].prompt",
    ]  # fmt: skip
    assert problems(CAT | {"width": 0}) == [found[4].removeprefix("requests[1].")]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"defaults": CAT}, "requests: a list of 1 to 100 requests is needed, not None"),
        ({"requests": CAT}, "requests: a list of 1 to 100 requests is needed, not {'prompt': 'a cat'}"),
        ({"requests": []}, "requests: 0 in one job, allowed are 1 to 100"),
        ({"requests": [CAT] * 101}, "requests: 101 in one job, allowed are 1 to 100"),
        ({"requests": [CAT], "defaults": [1]}, "defaults: an object is needed, not [1]"),
        ({"requests": [None]}, "requests[0]: an object is needed, not None"),
        ({"requests": [CAT], "width": 64}, "width: unknown field beside requests; it belongs into defaults"),
        ({"requests": [CAT], "what": 64}, "what: unknown field beside requests; only defaults may stand there"),
        ({"requests": [CAT], "Default": {}}, "Default: unknown field; is defaults meant?"),
        ({"requests": [{}], "defaults": {"prompt": None}}, "requests[0].prompt: is missing"),
        ({"requests": [{"prompt": None}]}, "requests[0].prompt: None is not text"),
    ],
)
def test_what_is_not_of_this_form_is_named(raw, words):
    assert problems(raw) == [words]


@pytest.mark.parametrize(
    ("defaults", "name"),
    [
        ({"width": 0}, "width"),
        ({"prompt": 3}, "prompt"),
        ({"what": 1}, "what"),
        ({"\ud800": None}, "\\ud800"),
        ({"scheduler": "no such solver"}, "scheduler"),
        ({"image": "AAAA", "image_url": "https://example.org"}, "image_url"),
        ({"mask": "AAAA"}, "mask"),
    ],
)
def test_a_fault_of_the_defaults_is_named_once(defaults, name):
    own = {} if "prompt" in defaults else CAT
    (line,) = problems({"requests": [own] * 50, "defaults": defaults})
    assert line.startswith(f"defaults.{name}: ")


def test_a_fault_of_the_defaults_counts_also_where_every_request_has_its_own_value():
    assert len(problems({"requests": [CAT | {"width": 64}], "defaults": {"width": 0}})) == 1


def test_what_the_defaults_lack_may_stand_in_a_request():
    job = {"requests": [CAT | {"image": "AAAA"}, CAT], "defaults": {"mask": "AAAA"}}
    assert problems(job) == ["requests[1].mask: an image is needed with it"]
    assert parse_job(job | {"requests": job["requests"][:1]}).requests[0].mask == "AAAA"


def test_of_many_faults_the_first_are_told_and_the_others_counted():
    found = problems({"requests": [{"width": 0}] * 30})
    assert len(found) == 21
    assert found[-1] == "and 40 more"


@pytest.mark.parametrize(
    ("many", "expected"), [(True, ["requests[0].a: 1", "requests[2].b: 2", "requests[2].c: 3"]), (False, ["a: 1"])]
)
def test_what_is_found_wrong_later_is_named_likewise(many, expected):
    job = ParsedJob((parse_request(CAT),) * 3, many)
    found = {0: ["a: 1"], 1: [], 2: ["b: 2", "c: 3"]} if many else {0: ["a: 1"]}
    assert job.refusal(found).problems == expected
    assert job.refusal({0: ["x: y"] * 25}).problems[20:] == ["and 5 more"]


TEXT = st.text(st.characters(), max_size=10)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=5
)
KNOWN = [*Request.model_fields, "other", "\ud800"]
FIELDS = st.dictionaries(st.sampled_from(KNOWN), JSON | st.just("a cat"), max_size=4) | st.just(CAT)
ITEMS = FIELDS | SCALARS | st.lists(SCALARS, max_size=2)
MANY = st.fixed_dictionaries(
    {"requests": st.lists(ITEMS, max_size=4) | ITEMS}, optional={"defaults": ITEMS, "width": JSON, "other": JSON}
)


def error_of(raw: Any) -> InvalidRequest | None:
    try:
        job = parse_job(raw)
    except InvalidRequest as error:
        return error
    assert job.many == (not raw.keys().isdisjoint(MANY_FIELDS))
    assert len(job.requests) == (len(raw["requests"]) if job.many else 1)
    return None


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(TEXT | st.sampled_from([*KNOWN, *MANY_FIELDS]), JSON, max_size=5) | JSON)
def test_any_json_is_a_job_or_refused_in_text(raw):
    error = error_of(raw)
    assert error is None or str(error).encode("utf-8")


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(MANY)
def test_every_line_of_a_refusal_names_a_place(raw):
    error = error_of(raw)
    field = "|".join(map(re.escape, [*Request.model_fields, "other", "\\ud800"]))
    inside = rf"({field})(\.[^:]*|, negative_target_size)?"
    line_of = re.compile(
        rf"(requests|defaults|width|other|defaults\.{inside}|requests\[[0-3]\](\.{inside})?): .+|and [0-9]+ more"
    )
    for line in error.problems if error else ():
        assert line_of.fullmatch(line), line
