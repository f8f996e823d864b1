"""The README says what the code says."""

import json
import re

from docs.generate import README, SCHEMA, render, schema_text
from worker.job import check_health, mentions_health, parse_job
from worker.request import Request


def test_tables_are_those_of_the_code():
    text = README.read_text("utf-8")
    assert render(text) == text, "run `uv run python -m docs.generate`"


def test_the_example_jobs_are_valid():
    text = README.read_text("utf-8")
    inputs = [json.loads(block)["input"] for block in re.findall(r"```json\n(\{\"input\".*?)\n```", text, re.DOTALL)]
    pictures = [raw for raw in inputs if not mentions_health(raw)]
    assert {parse_job(raw).many for raw in pictures} == {False, True}
    (health,) = [raw for raw in inputs if mentions_health(raw)]
    check_health(health)


def test_the_schema_is_that_of_the_code():
    text = SCHEMA.read_text("utf-8")
    assert schema_text() == text, "run `uv run python -m docs.generate`"


def test_the_schema_knows_every_field_with_its_bounds_and_default():
    properties = json.loads(schema_text())["$defs"]["fields"]["properties"]
    assert list(properties) == list(Request.model_fields)
    kinds = {"minimum", "maximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "prefixItems"}
    kinds |= {"type", "enum", "const", "additionalProperties", "pattern"}
    for name, node in properties.items():
        assert {"type": "null"} in node["anyOf"]
        assert all(choice.keys() <= kinds for choice in node["anyOf"])
        assert node["description"] == Request.model_fields[name].description
        assert Request.model_fields[name].is_required() or node["default"] == Request.model_fields[name].default
    assert properties["width"]["anyOf"][0] == {"type": "integer", "minimum": 64, "maximum": 4096, "multipleOf": 8}
    assert {"const": -1} in properties["seed"]["anyOf"]


def test_every_linked_page_exists():
    for target in re.findall(r"\]\((docs/[^)#]+)", README.read_text("utf-8")):
        assert (README.parent / target).is_file(), target
