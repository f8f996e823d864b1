"""What Runpod's Hub reads is of its schema (its publishing guide), and says what the code says."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from docs.generate import HUB
from docs.hub import with_settings
from worker.job import parse_job
from worker.settings import load_settings

ROOT = Path(__file__).parent.parent
POOLS = {
    "AMPERE_16", "AMPERE_24", "ADA_24", "AMPERE_48", "ADA_48_PRO", "AMPERE_80", "ADA_80_PRO", "HOPPER_141"
}  # fmt: skip
CudaVersions = list[Annotated[str, Field(pattern=r"^1[123]\.\d$")]]


class _Node(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class Option(_Node):
    label: str
    value: str


class Input(_Node):
    name: str
    type: Literal["string", "number", "boolean", "huggingface"]
    description: str
    default: str | int | float | bool
    required: bool = False
    advanced: bool = False
    options: list[Option] | None = None
    true_value: str | None = None
    false_value: str | None = None


class Variable(_Node):
    key: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
    value: str | None = None
    input: Input | None = None


class Preset(_Node):
    name: str
    defaults: dict[str, str | int | float | bool]


class Config(_Node):
    runs_on: Literal["GPU"]
    container_disk_in_gb: int
    gpu_count: int
    gpu_ids: str
    allowed_cuda_versions: CudaVersions
    env: list[Variable]
    presets: list[Preset]


class Hub(_Node):
    title: str
    description: str
    type: Literal["serverless"]
    category: Literal["audio", "embedding", "language", "video", "image"]
    config: Config


class Case(_Node):
    name: str
    input: dict[str, Any]
    timeout: int


class CaseConfig(_Node):
    gpu_type_id: str
    gpu_count: int
    env: list[Variable]
    allowed_cuda_versions: CudaVersions


class Cases(_Node):
    tests: list[Case]
    config: CaseConfig


@pytest.fixture(scope="module")
def hub() -> Hub:
    return Hub.model_validate_json(HUB.read_bytes())


@pytest.fixture(scope="module")
def cases() -> Cases:
    return Cases.model_validate_json((ROOT / ".runpod" / "tests.json").read_bytes())


def test_the_inputs_are_the_settings():
    text = HUB.read_text("utf-8")
    assert with_settings(text) == text, "run `uv run python -m docs.generate`"


def test_every_variable_is_asked_for_once_or_set(hub):
    keys = [variable.key for variable in hub.config.env]
    assert len(keys) == len(set(keys))
    assert all((variable.value is None) != (variable.input is None) for variable in hub.config.env)


def test_what_the_hub_fills_in_can_be_read(hub):
    filled = {
        variable.key: {True: "true", False: "false"}.get(variable.input.default, str(variable.input.default))
        if variable.input.type == "boolean"
        else str(variable.input.default)
        for variable in hub.config.env
        if variable.input
    }
    assert load_settings(filled) == load_settings({})


def test_presets_set_what_there_is(hub):
    keys = {variable.key for variable in hub.config.env if variable.input}
    for preset in hub.config.presets:
        assert preset.defaults.keys() <= keys
        settings = load_settings({name: str(value) for name, value in preset.defaults.items()})
        assert settings.model_id == preset.defaults["MODEL_ID"]


def test_cards_are_pools_of_the_hub(hub):
    assert set(hub.config.gpu_ids.split(",")) <= POOLS


def test_the_hubs_jobs_are_valid(hub, cases):
    for test in cases.tests:
        assert not parse_job(test.input).many
    assert load_settings({variable.key: variable.value or "" for variable in cases.config.env}).model_id == "toy:sd1"
    assert cases.config.allowed_cuda_versions == hub.config.allowed_cuda_versions


def test_image_and_hub_give_a_start_the_same_time(hub):
    (said,) = re.findall(r"RUNPOD_INIT_TIMEOUT=(\d+)", (ROOT / "Dockerfile").read_text("utf-8"))
    assert {variable.key: variable.value for variable in hub.config.env}["RUNPOD_INIT_TIMEOUT"] == said
