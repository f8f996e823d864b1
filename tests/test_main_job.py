"""The first five minutes: `python handler.py` with the job and the model that come along."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builder.embedded.data import DataSet, make_data
from builder.embedded.evaluate import BEST, ranks_of_named
from docs.generate import README
from tests.handler_process import ROOT, handler
from worker.engine.clock import Clock
from worker.errors import BuildError
from worker.service import load_service
from worker.settings import Settings

MODEL = ROOT / "models" / "emoji" / "baked"
JOB: dict[str, Any] = json.loads((ROOT / "test_input.json").read_text("utf-8"))
VARYING = {"sha256", "size_bytes", "peak_memory_bytes"}

pytestmark = pytest.mark.xdist_group("emoji")


@pytest.fixture(scope="module")
def emoji(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    try:
        return make_data(tmp_path_factory.mktemp("emoji"))
    except BuildError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `python handler.py` has run."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "test_input.json").write_text(json.dumps(JOB), "utf-8")
    done = handler(MODEL, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_its_picture_is_nearer_to_the_emoji_it_names_than_to_nearly_all_others(folder, emoji):
    made = np.asarray(Image.open(folder / "output" / "local_test" / "0.png").convert("RGB"))
    named = emoji.names.index(JOB["input"]["prompt"])
    other = emoji.names.index("green apple")
    ranks = ranks_of_named(np.stack([made, made]), [named, other], emoji)
    assert ranks[0] < BEST <= ranks[1]


def test_the_answer_in_the_readme_is_the_answer_to_it(folder, monkeypatch):
    monkeypatch.chdir(folder)
    cache = folder / "caches" / "worker-jax-diffusion" / "programs"
    settings = replace(Settings(), model_dir=MODEL, program_cache=str(cache))
    answer = load_service(settings, local=True, start=Clock()).run({"id": "local_test", **JOB})
    (example,) = re.findall(r"```json\n(\{\n  \"images\".*?)\n```", README.read_text("utf-8"), re.DOTALL)
    assert stable(json.loads(example)) == stable(json.loads(json.dumps(answer)))


def stable(answer: dict[str, Any]) -> dict[str, Any]:
    """What is the same in every run; of timings, what they are."""
    known = {name: value for name, value in answer.items() if name not in VARYING}
    pictures = [{name: value for name, value in one.items() if name not in VARYING} for one in answer["pictures"]]
    return {**known, "pictures": pictures, "timings": sorted(answer["timings"])}
