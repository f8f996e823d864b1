"""The process that compiles one target: a job as JSON on its input, records as the last line of its output."""

import json
import logging
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from builder.targets import CARDS, target_config
from worker.engine import blobs
from worker.engine.blobs import Record, title
from worker.engine.device import check_device
from worker.engine.executable import pack, reason
from worker.engine.identity import default_device, machine_of
from worker.engine.loading import load_planner, operations, program_fingerprint
from worker.engine.operations import Bucket, Operations, Program
from worker.engine.selection import select_kernels, sound_kernels
from worker.engine.trial import run_trials
from worker.errors import BuildError, WorkerError
from worker.nn.kernels import Kernels
from worker.settings import Settings
from worker.weights.manifest import Manifest, read_manifest
from worker.weights.mapping import stored_dtype

log = logging.getLogger(__name__)

_THREADS = 2
"""Compilations at once: XLA uses further threads of its own, and each takes memory."""


@dataclass(frozen=True)
class Target:
    """What is compiled for: a device, live or not; where it is not, the sharding that puts arguments on it."""

    device: Any
    kernels: Kernels
    sharding: NamedSharding | None


def open_target(name: str) -> Target:
    """A card without having it, the CPU, or the default device; raises BuildError, or StartupError if none computes."""
    if name not in CARDS:
        platform = check_device(allow_cpu=True)
        log.info("%s: this machine's %s", name, default_device().device_kind)
        return Target(default_device(), sound_kernels(select_kernels(Settings(), platform)), None)
    try:
        topology = topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=target_config(name))
    except (RuntimeError, NotImplementedError) as error:
        raise BuildError(f"JAX cannot compile for CUDA here ({reason(error)}): install the extra cuda12") from None
    device = cast(Any, topology.devices[0])
    mesh = Mesh(np.array([device]), ("device",))
    kernels = Kernels(attention="cudnn", convolution="xla", loop="device")
    return Target(device, kernels, NamedSharding(mesh, PartitionSpec()))


def compile_target(
    model_dir: Path, name: str, shapes: list[tuple[int, int]], slots: list[int], xla_flags: str
) -> list[Record]:
    """Compile all programs for one target; their blobs are written into the baked folder."""
    target, manifest = open_target(name), read_manifest(model_dir)
    planner = load_planner(model_dir, manifest, Settings(), target.kernels)
    ours = operations(planner, _params(manifest, planner.pipeline.parts))
    side = planner.pipeline.sample_size
    programs = _programs(ours, shapes or [(side, side)], slots)
    machine, known = machine_of(target.device, xla_flags), program_fingerprint(planner, manifest)

    def make(program: Program) -> Record:
        began = time.perf_counter()
        compiled = program.compile(target.sharding)
        seconds = time.perf_counter() - began
        if target.sharding:
            check_plans(program.key, compiled.as_text() or "")
        content = pack(compiled)
        blob = blobs.write_blob(model_dir / blobs.FOLDER, content)
        memory = compiled.memory_analysis()
        works = f", works in {memory.temp_size_in_bytes / 1e9:.2f} GB" if memory else ""
        log.info("%s: %s in %.1f s, %d bytes%s", name, title(program.key), seconds, len(content), works)
        return Record(
            program=program.key,
            machine=machine,
            fingerprint=known,
            device=str(target.device.device_kind),
            blob=blob,
            size_bytes=len(content),
            expected=None,
            compile_s=seconds,
        )

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="compile") as pool:
        records = list(pool.map(make, programs))
    return records if target.sharding else _tried(model_dir, records)


def check_plans(key: blobs.Key, text: str) -> None:
    """Raise BuildError if the convolutions of a compiled program are not cuDNN's; it would run, many times slower."""
    # A transformer has none. The names of JAX's operations stay in the text, whatever they were compiled to.
    if "conv_general_dilated" in text and "__cudnn$fusion" not in text:
        raise BuildError(f"{title(key)}: no convolution became a plan of cuDNN; its version must be that of uv.lock")


def _tried(model_dir: Path, records: list[Record]) -> list[Record]:
    """The records with what their programs give here; raises BuildError if one does not run."""
    outcomes = run_trials([model_dir / blobs.FOLDER / record.blob for record in records], timeout_s=3600)
    for record, outcome in zip(records, outcomes, strict=True):
        if outcome.fault:
            raise BuildError(f"{title(record.program)} does not run where it was compiled: {outcome.fault}")
    return [
        record.model_copy(update={"expected": outcome.samples or None})
        for record, outcome in zip(records, outcomes, strict=True)
    ]


def _params(manifest: Manifest, parts: Any) -> dict[str, dict[str, Any]]:
    """The shapes of all parameters in the dtypes of the manifest; no weight is read."""
    return {
        part: {
            name: jax.ShapeDtypeStruct(spec.shape, stored_dtype(manifest.parts[part].dtype, name, functional.shapes))
            for name, spec in functional.shapes.items()
        }
        for part, functional in parts.items()
    }


def _programs(ours: Operations, shapes: list[tuple[int, int]], slots: list[int]) -> list[Program]:
    """Each program once, the slow ones first."""
    found: dict[blobs.Key, Program] = {}
    for width, height in shapes:
        for count in slots:
            bucket = Bucket(count, height // ours.pipeline.scale_factor, width // ours.pipeline.scale_factor)
            found |= {program.key: program for program in ours.all(bucket, image=True)}
    return sorted(found.values(), key=lambda program: program.key[0] != "advance")


def main() -> None:
    """Read the job, compile, print its records and what it took, or `{"error": ...}`."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    job, began = json.load(sys.stdin), time.perf_counter()
    shapes = [(width, height) for width, height in job["shapes"]]
    try:
        records = compile_target(Path(job["model_dir"]), job["target"], shapes, job["slots"], job["xla_flags"])
    except (WorkerError, RuntimeError) as error:
        print(json.dumps({"error": str(error)[:2000]}))
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    answer = {
        "records": [record.model_dump(mode="json") for record in records],
        "seconds": time.perf_counter() - began,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_memory_bytes": usage.ru_maxrss * 1024,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
