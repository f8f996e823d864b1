"""Programs from a cache and into it, with programs of one line: faults cost time and a line in the log."""

import errno
import logging
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worker.engine import blobs, store, trial
from worker.engine.blobs import Cache, Record
from worker.engine.executable import pack, unpack
from worker.engine.identity import default_device, machine_of
from worker.engine.store import ProgramStore, cache_folder, record_of
from worker.engine.trial import Outcome, compare, run_trials
from worker.errors import ProgramFault

KEYS = [("double", 4), ("double", 8), ("nan", 4)]
MODEL = "0" * 64


def double(x: Any) -> Any:
    return {"twice": 2 * x, "sum": jnp.sum(x)}


def nan(x: Any) -> Any:
    return {"ratio": x * 0 / 0}


def compiled(key: tuple[Any, ...]) -> jax.stages.Compiled:
    function: Callable[..., Any] = {"double": double, "nan": nan}[key[0]]
    return jax.jit(function).lower(jax.ShapeDtypeStruct((key[1],), np.float32)).compile()


def store_in(root: Path, **changes: Any) -> ProgramStore:
    device = default_device()
    machine = machine_of(device, "")
    return ProgramStore(machine, MODEL, device, cache=Cache(root, machine, MODEL), **{"tries": False} | changes)


def doubles(program: Any, size: int) -> bool:
    found = program(np.arange(size, dtype=np.float32))
    return bool(np.array_equal(found["twice"], 2 * np.arange(size))) and float(found["sum"]) == sum(range(size))


@pytest.fixture
def filled(tmp_path) -> Path:
    ours = store_in(tmp_path)
    for key in KEYS[:2]:
        ours.offer(key, compiled(key), 1.5)
    return tmp_path


def test_what_one_store_was_offered_another_one_loads(filled):
    other = store_in(filled)
    assert sorted(other.keys()) == sorted(KEYS[:2])
    programs = other.load(KEYS)
    assert set(programs) == set(KEYS[:2])
    assert all(doubles(programs[key], key[1]) for key in programs)
    assert set(other.loaded) == set(KEYS[:2])
    assert other.faults == {}


@pytest.mark.parametrize("damage", ["changed", "cut", "absent", "other"])
def test_a_damaged_blob_is_not_opened_and_is_mended_by_the_next_offer(filled, damage, caplog):
    cache = store_in(filled).cache
    assert cache is not None
    record = cache.record(KEYS[0])
    assert record is not None
    path = cache.folder / record.blob
    content = path.read_bytes()
    if damage == "absent":
        path.unlink()
    else:
        path.write_bytes({"changed": b"x" + content[1:], "cut": content[:50], "other": pickle.dumps(os.getcwd)}[damage])
    ours = store_in(filled)
    assert set(ours.load(KEYS)) == {KEYS[1]}
    assert set(ours.faults) == {KEYS[0]}
    assert sum(entry.levelno == logging.WARNING for entry in caplog.records) == 1
    ours.offer(KEYS[0], compiled(KEYS[0]), 0.1)
    assert set(store_in(filled).load(KEYS)) == set(KEYS[:2])


@pytest.mark.parametrize(
    "change",
    [
        lambda _: b"",
        lambda _: b"{",
        lambda _: b"[]",
        lambda record: record.model_copy(update={"fingerprint": "1" * 64}).model_dump_json().encode(),
        lambda record: record.model_copy(update={"program": KEYS[1]}).model_dump_json().encode(),
        lambda record: record.model_copy(update={"blob": "../../../etc/passwd"}).model_dump_json().encode(),
        lambda record: (
            record.model_copy(update={"machine": record.machine.model_copy(update={"card": "other"})})
            .model_dump_json()
            .encode()
        ),
    ],
)
def test_a_foreign_record_counts_as_absent(filled, change):
    cache = store_in(filled).cache
    assert cache is not None
    path = cache.folder / "double-4.json"
    path.write_bytes(change(Record.model_validate_json(path.read_bytes())))
    ours = store_in(filled)
    assert set(ours.load(KEYS)) == {KEYS[1]}
    assert ours.keys() == [KEYS[1]]


def test_another_machine_or_model_has_another_folder(filled):
    device = default_device()
    machine = machine_of(device, "")
    for other, model in ((machine_of(device, "--xla_other=1"), MODEL), (machine, "1" * 64)):
        assert Cache(filled, other, model).keys() == []


def test_a_cache_that_cannot_be_made_costs_one_line(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    ours = store_in(tmp_path / "file")
    for key in KEYS[:2]:
        assert ours.load([key]) == {}
        ours.offer(key, compiled(key), 0.1)
    assert [entry.getMessage().partition(": ")[2] for entry in caplog.records if entry.levelno == logging.WARNING] == [
        "cannot be written (Not a directory)"
    ]


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch, caplog):
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(blobs.os, "fsync", full)
    ours = store_in(tmp_path)
    ours.offer(KEYS[0], compiled(KEYS[0]), 0.1)
    ours.offer(KEYS[1], compiled(KEYS[1]), 0.1)
    assert caplog.text.count("No space left on device") == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_cache_to_read_only_is_read(filled, monkeypatch, caplog):
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(blobs, "write_whole", refuse)
    monkeypatch.setattr(store, "run_trials", lambda paths: [Outcome()] * len(paths))
    ours = store_in(filled, tries=True)
    assert set(ours.load(KEYS)) == set(KEYS[:2])
    ours.offer(KEYS[2], compiled(KEYS[2]), 0.1)
    assert caplog.text.count("cannot be written (Read-only file system)") == 1


def test_two_workers_write_one_cache_at_once(tmp_path):
    program, together = compiled(KEYS[0]), Barrier(4)

    def work() -> None:
        ours = store_in(tmp_path)
        together.wait()
        for _ in range(5):
            ours.offer(KEYS[0], program, 0.1)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    programs = store_in(tmp_path).load(KEYS)
    assert doubles(programs[KEYS[0]], 4)
    assert not [path for path in tmp_path.rglob(".*")]


def test_a_fault_is_remembered_in_the_process(filled, monkeypatch):
    ours = store_in(filled, tries=True)
    asked: list[int] = []

    def fail(paths: list[Path]) -> list[Outcome]:
        asked.append(len(paths))
        return [Outcome(fault="its trial ended with -6")] * len(paths)

    monkeypatch.setattr(store, "run_trials", fail)
    monkeypatch.setattr(Cache, "judge", lambda *_: None)
    assert ours.load(KEYS) == {}
    assert ours.load(KEYS) == {}
    assert asked == [2]


def test_verdicts_are_kept_by_driver(filled, monkeypatch):
    driver = ["1.0"]
    monkeypatch.setattr(store, "driver_version", lambda: driver[0])
    outcomes = {"1.0": Outcome(fault="its results are not finite"), "2.0": Outcome()}
    asked: list[str] = []

    def judge(paths: list[Path]) -> list[Outcome]:
        asked.append(driver[0])
        return [outcomes[driver[0]]] * len(paths)

    monkeypatch.setattr(store, "run_trials", judge)
    for version, expected in (("1.0", 0), ("1.0", 0), ("2.0", 2), ("2.0", 2), ("1.0", 0)):
        driver[0] = version
        assert len(store_in(filled, tries=True).load(KEYS)) == expected
    assert asked == ["1.0", "2.0"]


def test_no_trial_is_no_verdict(filled, monkeypatch, caplog):
    monkeypatch.setattr(store, "run_trials", lambda paths: [Outcome(untried="no memory")] * len(paths))
    assert len(store_in(filled, tries=True).load(KEYS)) == 2
    assert "used untried: no memory" in caplog.text
    assert not list(filled.rglob("*.verdict"))


def write(folder: Path, content: bytes) -> Path:
    return folder / blobs.write_blob(folder, content)


class Ends:
    """Ends the process that unpickles it, as a library does that aborts."""

    def __reduce__(self) -> Any:
        return os._exit, (7,)


def test_trials_tell_good_programs_from_bad_ones(tmp_path):
    good, not_finite = (pack(compiled(key)) for key in (KEYS[0], KEYS[2]))
    corrupt = write(tmp_path, good + b"x")
    corrupt.write_bytes(good)
    paths = [
        write(tmp_path, good),
        write(tmp_path, not_finite),
        write(tmp_path, pickle.dumps(Ends())),
        write(tmp_path, pickle.dumps("no program")),
        corrupt,
        write(tmp_path, pack(compiled(KEYS[1]))),
    ]
    outcomes = run_trials(paths)
    assert [outcome.fault and outcome.fault.partition(" (")[0] for outcome in outcomes] == [
        None,
        "its results are not finite",
        "its trial ended with 7",
        "does not load",
        "differs from its sha256",
        None,
    ]
    again = run_trials(paths[:1])
    assert compare(again[0].samples, outcomes[0].samples) is None
    assert compare(outcomes[0].samples, outcomes[5].samples) is not None


def test_a_trial_that_takes_too_long(tmp_path):
    outcomes = run_trials([write(tmp_path, pack(compiled(KEYS[0])))], timeout_s=0.0)
    assert outcomes == [Outcome(untried="the trial took too long")]


def test_a_trial_process_that_does_not_start(tmp_path, monkeypatch):
    monkeypatch.setattr(trial.sys, "executable", str(tmp_path / "absent"))
    assert run_trials([tmp_path / "blob"])[0].untried == "the trial ended with 127"


@pytest.mark.parametrize(
    ("found", "right"),
    [
        (((1.0, 2.0), (0.0,)), True),
        (((1.0, 2.01), (0.0,)), True),
        (((1.0, 2.1), (0.0,)), False),
        (((1.0, 2.0), (0.5,)), False),
        (((1.0,), (0.0,)), False),
        (((1.0, 2.0),), False),
    ],
)
def test_results_within_the_tolerance(found, right):
    assert (compare(found, ((1.0, 2.0), (0.0,))) is None) == right


def test_results_are_compared_with_those_stored(filled, monkeypatch, caplog):
    ours = store_in(filled, tries=True)
    assert ours.cache is not None
    record = record_of(ours, KEYS[0], pack(compiled(KEYS[0])), 1.0)
    stored = store.Stored(record.model_copy(update={"expected": ((1.0,),)}), filled)
    monkeypatch.setattr(store, "run_trials", lambda paths: [Outcome(samples=((1.5,),))] * len(paths))
    monkeypatch.setattr(blobs, "read_blob", lambda *_: b"")
    ours.baked[KEYS[0]] = [stored]
    ours.cache = None
    assert ours.load([KEYS[0]]) == {}
    assert "its results differ from those stored with it by 0.5" in caplog.text


def test_bytes_that_are_no_program():
    with pytest.raises(ProgramFault, match="does not load"):
        unpack(b"nonsense", default_device())


def test_the_cache_s_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    volume = tmp_path / "volume"
    assert cache_folder("none", volume) is None
    assert cache_folder("auto", volume) is None
    assert cache_folder("~/programs", volume) == tmp_path / "programs"
    volume.mkdir()
    assert cache_folder("auto", volume) == volume / "worker-programs"
    assert cache_folder("/somewhere", volume) == Path("/somewhere")


def test_without_a_home_there_is_no_cache_in_it(monkeypatch, tmp_path, caplog):
    def no_home(_path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    assert cache_folder("~/programs", tmp_path) is None
    assert "no home" in caplog.text
