"""What the Runpod SDK is given so that no job is lost."""

import json
import math
import threading

import pytest

from worker.sdk import ANSWER_ATTEMPTS, DEPTH_MAX, _retries, read_json


@pytest.mark.parametrize(
    "text", ['{"a": [1, -2.5e3, "[{\\"", null, {"b": "\\ud800"}]}', "[]", "3", f"[{10**300}, NaN]"]
)
def test_json_is_read_as_ever(text):
    assert str(read_json(text)) == str(json.loads(text))


@pytest.mark.parametrize(("sign", "value"), [("", math.inf), ("-", -math.inf)])
def test_an_integer_of_too_many_digits_is_infinite(sign, value):
    assert read_json(f'[{{"seed": {sign}1{"0" * 5_000}}}, 7]') == [{"seed": value}, 7]


@pytest.mark.parametrize("deep", ["[" * 99_999 + "]" * 99_999, '{"[\\"a":' * 99_999 + "1" + "}" * 99_999])
def test_what_lies_too_deep_is_null_and_leaves_the_rest(deep):
    first, second, third = read_json(f'[{{"id": "a\\"[", "input": {deep}}}, "}}", {{"id": "b", "input": {{}}}}]')
    assert (first["id"], second, third) == ('a"[', "}", {"id": "b", "input": {}})
    inner, levels = first["input"], 2
    while isinstance(inner, dict | list) and inner:
        inner, levels = (inner if isinstance(inner, list) else list(inner.values()))[0], levels + 1
    assert (inner, levels) == (None, DEPTH_MAX)


def test_an_answer_is_posted_again_for_a_minute_and_progress_never():
    answers, progress = _retries(3), []
    assert answers.attempts == ANSWER_ATTEMPTS
    assert sum(answers.get_timeout(attempt) for attempt in range(ANSWER_ATTEMPTS - 1)) > 50
    thread = threading.Thread(target=lambda: progress.append(_retries(3)))
    thread.start()
    thread.join()
    assert progress[0].attempts == 1
