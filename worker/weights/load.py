"""A baked folder onto the device: everything checked, then read in parallel."""

import logging
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from worker.errors import CheckpointError
from worker.weights.manifest import BakedPart, Manifest
from worker.weights.mapping import raise_differences, stored_dtype
from worker.weights.tensors import DTYPES, TensorFile, open_tensors

log = logging.getLogger(__name__)

_READERS = 8

Shapes = Mapping[str, Mapping[str, jax.ShapeDtypeStruct]]
"""Part -> parameter -> shape; dtypes are the manifest's to say."""
Elsewhere = Literal["host", "disk"]


def load(
    model_dir: Path,
    manifest: Manifest,
    shapes: Shapes,
    *,
    sharding: Sharding | None = None,
    verify: bool = False,
    elsewhere: Mapping[str, Elsewhere] | None = None,
) -> dict[str, dict[str, jax.Array]]:
    """Read the parameters of every part, in the dtypes of the manifest, straight to the device.

    `shapes` are those of the model. Names, shapes, dtypes and sizes of files are always checked;
    `verify` also compares each file with its sha256, which reads it a second time. `sharding` says where the
    arrays go, by default to the first device; `elsewhere`, by part, that they stay off it as NumPy's arrays, which a
    program takes as well and has on the device only while it runs. Raises one CheckpointError with all that is wrong.
    Tensors are read eagerly, but for `disk`: the faults of a memory map are served one after the other.
    """
    began = time.perf_counter()
    files = _open(model_dir, manifest, shapes)

    def place(part: str, name: str) -> Any:
        match (elsewhere or {}).get(part):
            case "host":
                return files[part].read(name)
            case "disk":
                return files[part].map(name)
            case None:
                # Waiting here bounds the host's memory to one tensor per reader.
                return jax.device_put(files[part].read(name), sharding).block_until_ready()

    with ThreadPoolExecutor(_READERS, thread_name_prefix="weights") as pool:
        digests = {part: pool.submit(_sha256, file.path) for part, file in files.items() if verify}
        pending = {
            part: {name: pool.submit(place, part, name) for name in file.tensors} for part, file in files.items()
        }
        changed = [
            files[part].path.name for part, digest in digests.items() if digest.result() != manifest.parts[part].sha256
        ]
        if changed:
            pool.shutdown(wait=False, cancel_futures=True)
            raise CheckpointError(
                f"{model_dir}: {', '.join(changed)} differ from the sha256 in the manifest; bake again"
            )
        params = {part: {name: future.result() for name, future in found.items()} for part, found in pending.items()}
    seconds = time.perf_counter() - began
    size = sum(manifest.parts[part].size_bytes for part in files)
    log.info("weights: %d bytes in %.2f s (%.2f GB/s)", size, seconds, size / seconds / 1e9)
    return params


def replicas(params: Mapping[str, jax.Array], mesh: Mesh) -> dict[str, jax.Array]:
    """Parameters on every device of the mesh, whose first one has them: it takes no memory there."""
    others = mesh.devices.flat[1:]
    whole = NamedSharding(mesh, PartitionSpec())
    copies = [params, *(jax.device_put(dict(params), device) for device in others)]
    return {
        name: jax.make_array_from_single_device_arrays(array.shape, whole, [copy[name] for copy in copies])
        for name, array in params.items()
    }


def baked_shapes(model_dir: Path, manifest: Manifest) -> Shapes:
    """What the files of a baked folder hold; raises CheckpointError for a file whose header is not sound."""
    files = {part: open_tensors(model_dir / entry.file) for part, entry in manifest.parts.items()}
    return {
        part: {name: jax.ShapeDtypeStruct(info.shape, np.float32) for name, info in file.tensors.items()}
        for part, file in files.items()
    }


def _open(model_dir: Path, manifest: Manifest, shapes: Shapes) -> dict[str, TensorFile]:
    problems = folder_problems(model_dir, manifest)
    if manifest.parts.keys() != shapes.keys():
        problems.append(f"its parts are {sorted(manifest.parts)}, those of the model are {sorted(shapes)}")
    files: dict[str, TensorFile] = {}
    if not problems:
        for part, entry in manifest.parts.items():
            try:
                files[part] = open_tensors(model_dir / entry.file)
                _check_tensors(part, entry, files[part], shapes[part])
            except CheckpointError as error:
                problems.append(str(error))
    if problems:
        raise CheckpointError(f"{model_dir}: {'; '.join(problems)}; bake the model again")
    return files


def folder_problems(model_dir: Path, manifest: Manifest) -> list[str]:
    """One line per file of the manifest that is missing or has another size, or for tokenisers another content."""
    sizes = {entry.file: entry.size_bytes for entry in manifest.parts.values()}
    for folder, files in manifest.tokenizers.items():
        sizes |= {f"{folder}/{name}": file.size_bytes for name, file in files.items()}
    found = {name: path.stat().st_size for name in sizes if (path := model_dir / name).is_file()}
    problems = [
        f"{name} has {found[name]} bytes, the manifest says {size}" if name in found else f"{name} is missing"
        for name, size in sizes.items()
        if found.get(name) != size
    ]
    changed = [
        f"{folder}/{name} differs from its sha256 in the manifest"
        for folder, files in manifest.tokenizers.items()
        for name, file in files.items()
        if found.get(f"{folder}/{name}") == file.size_bytes and _sha256(model_dir / folder / name) != file.sha256
    ]
    return problems + changed


def _check_tensors(part: str, entry: BakedPart, file: TensorFile, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    differences: dict[str, list[str]] = defaultdict(list)
    differences["unknown"] = [name for name in file.tensors if name not in shapes]
    differences["missing"] = [name for name in shapes if name not in file.tensors]
    for name, info in file.tensors.items():
        if name in shapes and info.shape != shapes[name].shape:
            differences["shape"].append(f"{name} is {list(info.shape)}, {list(shapes[name].shape)} is expected")
        expected = stored_dtype(entry.dtype, name, shapes)
        if DTYPES.get(info.dtype) != expected:
            differences["dtype"].append(f"{name} is {info.dtype}, {expected} is expected")
    raise_differences(part, differences)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
