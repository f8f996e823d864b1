"""Compiled in one process, served in another: the whole way, on the CPU, and with all that can be broken on it."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.jobs import JOB, decode_picture, run
from worker.engine.blobs import FOLDER, read_index, write_index
from worker.engine.loading import load_planner, program_fingerprint
from worker.engine.selection import select_kernels
from worker.engine.store import ProgramStore, open_store
from worker.settings import Settings
from worker.weights.manifest import read_manifest, write_manifest

ROOT = Path(__file__).parents[2]
XLA_FLAGS = os.environ.get("XLA_FLAGS", "")

pytestmark = pytest.mark.xdist_group("sd1")


def process(*arguments: str, **environment: str) -> str:
    """Run a module of this repository; its output."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def served(model_dir: Path, cache: Path) -> dict[str, Any]:
    """A worker's account of one job; see `served.py`."""
    return json.loads(process("tests.engine.served", MODEL_DIR=str(model_dir), PROGRAM_CACHE=str(cache)))


@pytest.fixture(scope="module")
def compiled(toy, tmp_path_factory) -> Path:
    """A baked folder with programs for this machine."""
    folder = tmp_path_factory.mktemp("compiled") / "baked"
    shutil.copytree(toy("sd1").model_dir, folder)
    size = f"{JOB['width']}x{JOB['height']}"
    process("builder", "compile", "--model", str(folder), "--target", "cpu", "--shapes", size, "--slots", "1")
    return folder


@pytest.fixture
def baked(compiled, tmp_path) -> Path:
    """A copy of it, to be broken."""
    return Path(shutil.copytree(compiled, tmp_path / "baked"))


def store_of(model_dir: Path, **changes: Any) -> ProgramStore:
    settings = Settings(
        **{"model_dir": model_dir, "program_cache": "none", "trust_programs": True, "xla_flags": XLA_FLAGS} | changes
    )
    manifest = read_manifest(model_dir)
    planner = load_planner(model_dir, manifest, settings, select_kernels(settings, "cpu"))
    return open_store(settings, manifest, program_fingerprint(planner, manifest))


def change_records(model_dir: Path, change) -> None:
    manifest = read_manifest(model_dir)
    index = write_index(model_dir, tuple(change(record) for record in read_index(model_dir, manifest)))
    write_manifest(model_dir, manifest.model_copy(update={"programs": index}))


def test_a_process_serves_what_another_compiled_and_compiles_nothing(toy, compiled, tmp_path):
    told = served(compiled, tmp_path / "cache")
    assert told["compiled"] == []
    assert told["programs_compiled"] == []
    assert {key[0] for key in told["programs_loaded"]} == {"encode_text", "encode_image", "advance", "decode"}
    assert told["faults"] == []
    # What is not needed by then must not be waited for.
    assert not {"flax", "torch", "diffusers", "transformers", "scipy", "boto3"} & set(told["imported"])
    expected = run(toy("sd1").service, JOB)
    found = decode_picture(told["answer"]["images"][0])
    assert np.array_equal(found, decode_picture(expected["images"][0]))


@pytest.mark.slow
def test_what_a_worker_compiled_the_next_one_loads(toy, tmp_path):
    """The first compiles all; the cache is all that the two share."""
    first = served(toy("sd1").model_dir, tmp_path / "cache")
    second = served(toy("sd1").model_dir, tmp_path / "cache")
    assert first["programs_loaded"] == []
    assert second["programs_compiled"] == []
    assert sorted(second["programs_loaded"], key=str) == sorted(first["programs_compiled"], key=str)
    assert second["answer"]["images"] == first["answer"]["images"]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["encode_text", "advance", "decode"])
def test_a_worker_compiles_what_is_damaged_and_no_more(toy, baked, tmp_path, part):
    damaged = [record for record in read_index(baked, read_manifest(baked)) if record.program[0] == part]
    for record in damaged:
        (baked / FOLDER / record.blob).write_bytes(b"x")
    told = served(baked, tmp_path / "cache")
    keys = {record.program for record in damaged}
    assert {tuple(key): fault for key, fault in told["faults"]} == dict.fromkeys(keys, "differs from its sha256")
    # What the job does not ask for stays uncompiled.
    compiled = {tuple(key) for key in told["programs_compiled"]}
    assert compiled
    assert compiled <= keys
    expected = run(toy("sd1").service, JOB)
    assert np.array_equal(*(decode_picture(answer["images"][0]) for answer in (told["answer"], expected)))


def test_each_blob_is_missed_alone(baked, caplog):
    keys = store_of(baked).keys()
    for record in read_index(baked, read_manifest(baked)):
        path = baked / FOLDER / record.blob
        content = path.read_bytes()
        for damaged, words in ((content[:-1] + b"x", "sha256"), (None, "cannot be read")):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            caplog.clear()
            store = store_of(baked)
            assert store.load([record.program]) == {}
            assert words in store.faults[record.program]
            assert len([entry for entry in caplog.records if entry.levelno == logging.WARNING]) == 1
    store = store_of(baked)
    assert store.load(keys) == {}
    assert set(store.faults) == set(keys)
    path.write_bytes(content)
    assert set(store_of(baked).load(keys)) == {record.program}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.model_copy(update={"libraries": m.libraries | {"jaxlib": "0.9.9"}}), "made with jaxlib 0.9.9"),
        (lambda m: m.model_copy(update={"flags": ("--xla_a=1",)}), "made with XLA_FLAGS '--xla_a=1'"),
        (lambda m: m.model_copy(update={"card": "gpu 9.0 with 132 multiprocessors"}), "they are for"),
    ],
)
def test_programs_for_another_machine_are_not_used(baked, change, words, caplog):
    change_records(baked, lambda record: record.model_copy(update={"machine": change(record.machine)}))
    store = store_of(baked)
    assert store.keys() == []
    assert words in caplog.text


def test_programs_of_another_model_are_not_used(baked, caplog):
    manifest = read_manifest(baked)
    unet = manifest.parts["unet"]
    other = unet.model_copy(update={"config": unet.config | {"norm_eps": 1e-4}})
    write_manifest(baked, manifest.model_copy(update={"parts": manifest.parts | {"unet": other}}))
    assert store_of(baked).keys() == []
    assert "another model" in caplog.text


@pytest.mark.parametrize("broken", [b"", b"[]", b"[{}]", None])
def test_an_index_that_is_not_the_manifest_s(baked, broken, caplog):
    manifest = read_manifest(baked)
    path = baked / FOLDER / str(manifest.programs)
    if broken is None:
        path.unlink()
    else:
        path.write_bytes(broken)
    assert store_of(baked).keys() == []
    assert "baked programs not used" in caplog.text
