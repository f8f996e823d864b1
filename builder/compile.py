"""Programs of a baked model for named cards, compiled on a machine that need not have one, into the baked folder.

Each target is compiled in a process of its own (`builder.compile_target`): XLA's flags and the library path must be set
before JAX starts, and what one target takes in memory is free for the next.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from builder.staging import disk_errors
from builder.targets import CARDS
from worker.engine import blobs
from worker.engine.blobs import Record
from worker.errors import BuildError, ProgramFault
from worker.weights.manifest import read_manifest, write_manifest

log = logging.getLogger(__name__)

LIVE_TARGETS = ("cpu", "auto")
"""Compiled for what is here: the CPU, or JAX's default device."""

DEVICELESS_FLAGS = (
    # Convolutions and attention become cuDNN's execution plans; without these, nothing that a card would run.
    "--xla_gpu_experimental_enable_conv_fusion=true",
    "--xla_gpu_cudnn_deviceless_compilation_mode=CUDNN_DEVICELESS_COMPILATION_AUTO",
    # Nothing is tuned without a card, and the first of Triton's tiles is a slow one: cuBLAS chooses at run time.
    "--xla_gpu_enable_triton_gemm=false",
)
_STUB = Path(__file__).with_name("stub_libcuda.c")
_RECORDS = TypeAdapter(tuple[Record, ...])


class Measured(NamedTuple):
    """What a target took."""

    target: str
    programs: int
    size_bytes: int
    seconds: float
    cpu_seconds: float
    peak_memory_bytes: int


def compile_programs(
    model_dir: Path,
    targets: tuple[str, ...],
    shapes: tuple[tuple[int, int], ...],
    slots: tuple[int, ...],
    xla_flags: str,
) -> list[Measured]:
    """Compile for every target and add the programs to the baked folder, where they replace those of equal keys.

    `shapes` are widths and heights in pixels; none stands for the model's own size. Raises BuildError for what cannot
    be compiled; targets that were done before it are kept.
    """
    unknown = [target for target in targets if target not in (*CARDS, *LIVE_TARGETS)]
    if unknown:
        raise BuildError(f"{', '.join(unknown)}: no such target; there are {', '.join((*CARDS, *LIVE_TARGETS))}")
    read_manifest(model_dir)
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder, disk_errors(model_dir):
        if any(target in CARDS for target in targets):
            build_stub(Path(folder))
        for target in targets:
            log.info("%s: compiling", target)
            job = {
                "model_dir": str(model_dir.resolve()),
                "target": target,
                "shapes": shapes,
                "slots": slots,
                "xla_flags": xla_flags,
            }
            answer = _run_target(target, job, Path(folder), xla_flags)
            _publish(model_dir, _RECORDS.validate_json(json.dumps(answer["records"])))
            measured.append(_measured(target, answer))
            log.info("%s", describe(measured[-1]))
    return measured


def describe(measured: Measured) -> str:
    """One line."""
    return (
        f"{measured.target}: {measured.programs} programs, {measured.size_bytes / 1e6:.1f} MB, "
        f"{measured.seconds:.0f} s ({measured.cpu_seconds:.0f} s of CPU), "
        f"{measured.peak_memory_bytes / 1e9:.1f} GB of memory"
    )


def build_stub(folder: Path) -> None:
    """Compile the stand-in for the driver into a folder; raises BuildError without a C compiler."""
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None:
        raise BuildError("compiling for a GPU needs a C compiler: install gcc")
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so.1"), str(_STUB)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{compiler} failed: {done.stderr.strip()}")


def _run_target(target: str, job: Mapping[str, Any], stub: Path, xla_flags: str) -> dict[str, Any]:
    environment = _environment(target, stub, xla_flags)
    command = [sys.executable, "-m", "builder.compile_target"]
    done = subprocess.run(
        command,
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
        env=environment,
    )
    if done.returncode:
        raise BuildError(f"{target}: the compiling process ended with {done.returncode}; its last lines say why")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise BuildError(f"{target}: {answer['error']}")
    return answer


def _environment(target: str, stub: Path, xla_flags: str) -> dict[str, str]:
    environment = dict(os.environ) | {"XLA_FLAGS": xla_flags}
    if target in CARDS:
        libraries = [str(stub), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
        environment |= {
            "XLA_FLAGS": " ".join((*xla_flags.split(), *DEVICELESS_FLAGS)),
            "LD_LIBRARY_PATH": ":".join(libraries),
        }
    if target != "auto":
        environment["JAX_PLATFORMS"] = "cpu"
    return environment


def _publish(model_dir: Path, records: tuple[Record, ...]) -> None:
    """Add records; blobs are there already, then comes the index, then the manifest that names it."""
    manifest = read_manifest(model_dir)
    try:
        old = blobs.read_index(model_dir, manifest)
    except ProgramFault as fault:
        log.warning("%s: earlier programs are dropped: %s", model_dir, fault)
        old = ()
    new = {_place(record) for record in records}
    kept = tuple(record for record in old if _place(record) not in new)
    index = blobs.write_index(model_dir, kept + records)
    write_manifest(model_dir, manifest.model_copy(update={"programs": index}))
    needed = {index, *(record.blob for record in kept + records)}
    for path in (model_dir / blobs.FOLDER).iterdir():
        if path.name not in needed:
            path.unlink()


def _place(record: Record) -> tuple[object, ...]:
    """What a record replaces another one of: the same program of the same card."""
    return record.machine.card, record.device, record.program


def _measured(target: str, answer: Mapping[str, Any]) -> Measured:
    sizes = [record["size_bytes"] for record in answer["records"]]
    taken = (answer[name] for name in ("seconds", "cpu_seconds", "peak_memory_bytes"))
    return Measured(target, len(sizes), sum(sizes), *taken)
