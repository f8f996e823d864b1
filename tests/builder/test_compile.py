"""Targets, the stub of the driver, and what a baked folder holds after compiling; no program is compiled here."""

import ctypes
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from builder import compile as compile_module
from builder.__main__ import main
from builder.compile import DEVICELESS_FLAGS, build_stub, compile_programs
from builder.compile_target import check_plans
from builder.convert import convert
from builder.targets import CARDS, with_versions
from worker.engine.blobs import FOLDER, Record, digest_of, read_index
from worker.engine.identity import Machine
from worker.errors import BuildError
from worker.weights.manifest import read_manifest

TARGETS = Path(__file__).parents[2] / "builder" / "targets"
WANTED = {
    "a100_40", "a100_80", "h100_sxm", "h100_pcie", "h200", "l40s", "l4", "a40", "a6000", "rtx_3090", "a5000",
    "rtx_4090", "rtx_5090", "b200",
}  # fmt: skip


def fields(name: str) -> dict[str, str]:
    text = "\n".join(line for line in (TARGETS / f"{name}.txtpb").read_text().splitlines() if not line.startswith("#"))
    return dict(re.findall(r'([a-z_]+): ("[^"]*"|[^\s}]+)', text))


def test_every_card_is_described_in_full():
    assert set(CARDS) >= WANTED
    names = fields("h200").keys()
    for card in CARDS:
        assert fields(card).keys() == names


@pytest.mark.parametrize("card", CARDS)
def test_numbers_of_a_card_agree_with_each_other(card):
    """Within a kind of chip; a slip of a digit shows."""
    found = fields(card)
    number = {name: float(value) for name, value in found.items() if re.fullmatch(r"[\d.]+", value)}
    assert number["shared_memory_per_core"] - number["shared_memory_per_block_optin"] == 1024
    # Bytes of a clock of the memory: the bus, twice.
    bus_bits = number["memory_bandwidth"] / (number["mem_clock_ghz"] * 1e9) / 2 * 8
    assert 128 <= bus_bits <= 8192
    assert bus_bits % 64 < 1 or bus_bits % 64 > 63 or card == "h200"
    assert 1 < number["clock_rate_ghz"] < 3
    assert 20e9 < number["device_memory_size"] < 200e9
    accelerated = found["feature_extension"] == "ACCELERATED_FEATURES"
    assert accelerated == (int(number["major"]) in (9, 10))
    assert found["name"] == found["device_description_str"]


def test_versions_are_those_of_the_libraries():
    text = with_versions((TARGETS / "l4.txtpb").read_text(), (12, 9, 0), (9, 26, 1))
    assert text.count("gpu_device_info {") == 1
    assert 'runtime_version: "12.9.0"' in text
    assert 'dnn_version: "9.26.1"' in text
    assert "dnn_version_info { major: 9 minor: 26 patch: 1 }" in text
    assert text.count("{") == text.count("}")


def test_the_stub_is_a_driver_that_says_there_is_no_device(tmp_path):
    build_stub(tmp_path)
    driver = ctypes.CDLL(str(tmp_path / "libcuda.so.1"))
    version, handle = ctypes.c_int(), ctypes.c_void_p()
    assert driver.cuDriverGetVersion(ctypes.byref(version)) == 0
    assert version.value == 13000
    assert driver.cuDeviceGetCount(ctypes.byref(version)) == 100
    assert driver.cuLibraryLoadData(ctypes.byref(handle), None) == 0
    assert handle.value


def test_a_machine_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_module.shutil, "which", lambda _: None)
    with pytest.raises(BuildError, match="C compiler"):
        build_stub(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "h200,gtx_9"], "gtx_9: no such target; there are a100_40"),
        (["--target", "h200"], "not a baked model"),
    ],
)
def test_one_line_and_a_failure(arguments, message, tmp_path, capsys):
    assert main(["compile", "--model", str(tmp_path), *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--shapes", "1024"], ["--shapes", "100x64"], ["--shapes", "x"], ["--slots", "0"]])
def test_options_that_cannot_be_read(option, capsys):
    with pytest.raises(SystemExit):
        main(["compile", "--model", "x", "--target", "cpu", *option])
    assert option[1] in capsys.readouterr().err


def record(card: str, device: str, program: tuple[Any, ...], content: bytes) -> Record:
    machine = Machine(card=card, libraries={"jaxlib": "1"}, flags=())
    return Record(
        program=program,
        machine=machine,
        fingerprint="0" * 64,
        device=device,
        blob=digest_of(content),
        size_bytes=len(content),
        expected=None,
        compile_s=1.0,
    )


class Compiler:
    """Stands for the process that compiles a target: writes blobs and tells of them."""

    def __init__(self, programs: dict[str, list[tuple[Record, bytes]]]):
        self.programs = programs
        self.environments: dict[str, dict[str, str]] = {}

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "input" not in options:
            return subprocess.CompletedProcess(command, 0, "", "")
        job = json.loads(options["input"])
        self.environments[job["target"]] = options["env"]
        made = self.programs[job["target"]]
        folder = Path(job["model_dir"]) / FOLDER
        folder.mkdir(exist_ok=True)
        for entry, content in made:
            (folder / entry.blob).write_bytes(content)
        answer = {
            "records": [entry.model_dump(mode="json") for entry, _ in made],
            "seconds": 3.0,
            "cpu_seconds": 2.5,
            "peak_memory_bytes": 5,
        }
        return subprocess.CompletedProcess(command, 0, f"something else\n{json.dumps(answer)}\n", "")


@pytest.fixture
def model(published, tmp_path) -> Path:
    convert(published(), tmp_path / "baked", dtype="float32")
    return tmp_path / "baked"


def test_targets_add_up_and_a_second_run_replaces(model, monkeypatch):
    one = record("gpu 9.0", "NVIDIA H200", ("decode", 8, 8), b"one")
    other = record("gpu 9.0", "NVIDIA H100", ("decode", 8, 8), b"other")
    again = record("gpu 9.0", "NVIDIA H200", ("decode", 8, 8), b"again")
    compiler = Compiler({"h200": [(one, b"one")], "h100_sxm": [(other, b"other")]})
    monkeypatch.setattr(compile_module.subprocess, "run", compiler)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/there")
    measured = compile_programs(model, ("h200", "h100_sxm"), (), (1,), "--xla_mine=1")
    assert [(entry.programs, entry.size_bytes, entry.seconds) for entry in measured] == [(1, 3, 3.0), (1, 5, 3.0)]
    assert read_index(model, read_manifest(model)) == (one, other)
    environment = compiler.environments["h200"]
    assert environment["XLA_FLAGS"].split() == ["--xla_mine=1", *DEVICELESS_FLAGS]
    assert environment["LD_LIBRARY_PATH"].endswith(":/there")
    assert environment["JAX_PLATFORMS"] == "cpu"

    compiler.programs = {"h200": [(again, b"again")]}
    compile_programs(model, ("h200",), (), (1,), "")
    manifest = read_manifest(model)
    assert read_index(model, manifest) == (other, again)
    assert {path.name for path in (model / FOLDER).iterdir()} == {manifest.programs, other.blob, again.blob}


def test_a_damaged_index_is_replaced(model, monkeypatch, caplog):
    one = record("gpu 9.0", "NVIDIA H200", ("decode", 8, 8), b"one")
    monkeypatch.setattr(compile_module.subprocess, "run", Compiler({"cpu": [(one, b"one")]}))
    compile_programs(model, ("cpu",), (), (1,), "")
    (model / FOLDER / str(read_manifest(model).programs)).write_bytes(b"{")
    with caplog.at_level(logging.WARNING):
        compile_programs(model, ("cpu",), (), (1,), "")
    assert "earlier programs are dropped" in caplog.text
    assert read_index(model, read_manifest(model)) == (one,)


@pytest.mark.parametrize(
    ("output", "code", "message"),
    [
        ('{"error": "no memory"}\n', 0, "h200: no memory"),
        ("", -9, "h200: the compiling process ended with -9"),
        ("{", 1, "h200: the compiling process ended with 1"),
    ],
)
def test_a_compiling_process_that_fails(model, output, code, message, monkeypatch):
    before = read_manifest(model)

    def run(command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code if "builder.compile_target" in command else 0, output, "")

    monkeypatch.setattr(compile_module.subprocess, "run", run)
    with pytest.raises(BuildError, match=message):
        compile_programs(model, ("h200",), (), (1,), "")
    assert read_manifest(model) == before


@pytest.mark.slow
def test_a_toy_s_text_encoder_is_compiled_for_a_card_that_is_not_here(model):
    """Needs CUDA's libraries (the extra cuda12), which most machines without a card lack."""
    pytest.importorskip("jax_cuda12_plugin")
    shutil.rmtree(model / FOLDER, ignore_errors=True)
    measured = compile_programs(model, ("h200",), ((64, 64),), (1,), "")
    records = read_index(model, read_manifest(model))
    assert len(records) == measured[0].programs == 6
    assert {entry.machine.card for entry in records} == {"gpu 9.0 with 132 multiprocessors"}


@pytest.mark.slow
def test_a_card_s_description_is_what_xla_says_of_the_card():
    """`builder target`, asked about a card that is only compiled for. Needs the extra cuda12."""
    pytest.importorskip("jax_cuda12_plugin")
    code = (
        "from builder.compile_target import open_target; from builder.targets import config_of; "
        "print(config_of(open_target('h200').device))"
    )
    with tempfile.TemporaryDirectory() as folder:
        build_stub(Path(folder))
        environment = os.environ | {"LD_LIBRARY_PATH": folder, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=TARGETS.parents[1], env=environment, stdout=subprocess.PIPE, check=True
        )
    found = dict(re.findall(r'([a-z_]+): ("[^"]*"|[^\s}]+)', done.stdout.decode()))
    assert {name: found.get(name) for name in fields("h200")} == fields("h200")


CONVOLUTION = 'metadata={op_name="jit(decode)/conv_in/conv_general_dilated"}'


@pytest.mark.parametrize(
    ("text", "sound"),
    [(f"__cudnn$fusion {CONVOLUTION}", True), ("a transformer's text", True), (f"fusion {CONVOLUTION}", False)],
)
def test_convolutions_that_are_not_cudnn_s_end_the_build(text, sound):
    with nullcontext() if sound else pytest.raises(BuildError, match="decode 8 8: no convolution"):
        check_plans(("decode", 8, 8), text)
