"""The README says what the code says."""

import json
import re

from docs.generate import README, render
from worker.request import parse_request


def test_tables_are_those_of_the_code():
    text = README.read_text("utf-8")
    assert render(text) == text, "run `uv run python -m docs.generate`"


def test_the_example_job_is_valid():
    text = README.read_text("utf-8")
    jobs = [json.loads(block) for block in re.findall(r"```json\n(\{\"input\".*?)\n```", text)]
    assert jobs
    for job in jobs:
        assert parse_request(job["input"])


def test_every_linked_page_exists():
    for target in re.findall(r"\]\((docs/[^)#]+)", README.read_text("utf-8")):
        assert (README.parent / target).is_file(), target
