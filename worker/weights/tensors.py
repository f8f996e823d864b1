"""safetensors files without torch: headers checked first, tensors read and written one at a time.

The format: eight bytes with the header's length (little-endian), the header as JSON, then the tensors' bytes
without gaps. bfloat16 is read as `ml_dtypes.bfloat16`, bit by bit.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from worker.errors import CheckpointError

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_TAGS = {dtype.name: tag for tag, dtype in DTYPES.items()}
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
_LFS_POINTER = b"version https://git-lfs"


class TensorInfo(NamedTuple):
    """One tensor of a file: its dtype by the format's name, its shape, and where its bytes lie."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Digest(NamedTuple):
    """What a written file is known by."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file whose header was found to be sound; its tensors are read when asked for."""

    path: Path
    tensors: dict[str, TensorInfo]

    def read(self, name: str) -> NDArray[Any]:
        """Read one tensor into memory of its own; safe to call from several threads at once.

        Raises CheckpointError for a dtype that NumPy does not hold, and for a file cut since it was opened.
        """
        info = self.tensors[name]
        if info.dtype not in DTYPES:
            raise CheckpointError(f"{self.path}: {name} has the dtype {info.dtype}, which is not read")
        buffer = np.empty(info.end - info.begin, np.uint8)
        view, done = memoryview(buffer), 0
        with self.path.open("rb", buffering=0) as file:
            file.seek(info.begin)
            while done < len(view):
                count = file.readinto(view[done:])
                if not count:
                    raise CheckpointError(f"{self.path}: cut off within {name}")
                done += count
        return buffer.view(DTYPES[info.dtype]).reshape(info.shape)

    def map(self, name: str) -> NDArray[Any]:
        """One tensor as a part of the file, which the system reads when it is used and may drop when it is not."""
        info = self.tensors[name]
        mapped = np.memmap(self.path, np.uint8, "r", info.begin, info.end - info.begin)
        return np.asarray(mapped).view(DTYPES[info.dtype]).reshape(info.shape)


def open_tensors(path: Path) -> TensorFile:
    """Read and check the header.

    Raises CheckpointError, naming the file, if it is missing, cut, a Git LFS pointer or of another format.
    """
    try:
        with path.open("rb") as file:
            return TensorFile(path, _read_header(file, path.stat().st_size))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _read_header(file: BinaryIO, file_size: int) -> dict[str, TensorInfo]:
    start = file.read(len(_LFS_POINTER))
    if start.startswith(_LFS_POINTER):
        raise CheckpointError("a Git LFS pointer, not the file itself; fetch it with `git lfs pull`")
    if len(start) < 8:
        raise CheckpointError(f"cut off, only {file_size} bytes long")
    length = int.from_bytes(start[:8], "little")
    if length > _MAX_HEADER_BYTES or start[8:9] not in (b"{", b""):
        raise CheckpointError("not a safetensors file")
    if 8 + length > file_size:
        raise CheckpointError(f"cut off within its header, only {file_size} bytes long")
    file.seek(8)
    try:
        header: dict[str, Any] = json.loads(file.read(length))
        infos = {
            str(name): TensorInfo(
                str(entry["dtype"]),
                tuple(int(size) for size in entry["shape"]),
                *(8 + length + int(offset) for offset in entry["data_offsets"]),
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError("not a safetensors file (its header is not readable)") from None
    _check_extents(infos, 8 + length, file_size)
    return infos


def _check_extents(infos: Mapping[str, TensorInfo], begin: int, file_size: int) -> None:
    end = begin
    for name, info in sorted(infos.items(), key=lambda item: item[1].begin):
        itemsize = DTYPES[info.dtype].itemsize if info.dtype in DTYPES else None
        size = info.end - info.begin
        if info.begin != end or size < 0 or (itemsize and size != itemsize * math.prod(info.shape)):
            raise CheckpointError(f"not a safetensors file (the place of {name} contradicts its shape)")
        end = info.end
    if end > file_size:
        raise CheckpointError(f"cut off: {end} bytes are described, {file_size} are there")
    if end < file_size:
        raise CheckpointError(f"{file_size - end} bytes follow after the last tensor")


def write_tensors(
    path: Path,
    specs: Mapping[str, jax.ShapeDtypeStruct],
    tensors: Iterable[NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
) -> Digest:
    """Write `tensors`, given in the order of `specs`, one at a time; the bytes are on the disk on return.

    Raises ValueError when a tensor is not what its spec says, OSError when the disk cannot take it.
    """
    digest, size = sha256(), 0
    with path.open("wb") as file:
        for piece in chain([_encode_header(specs, metadata)], _checked_bytes(specs, tensors)):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return Digest(digest.hexdigest(), size)


def _encode_header(specs: Mapping[str, jax.ShapeDtypeStruct], metadata: Mapping[str, str] | None) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, spec in specs.items():
        tag = _TAGS[str(spec.dtype)]
        shape: tuple[int, ...] = spec.shape
        end = offset + math.prod(shape) * DTYPES[tag].itemsize
        header[name] = {"dtype": tag, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the tensors begin at a multiple of eight
    return len(encoded).to_bytes(8, "little") + encoded


def _checked_bytes(specs: Mapping[str, jax.ShapeDtypeStruct], tensors: Iterable[NDArray[Any]]) -> Iterator[memoryview]:
    for (name, spec), tensor in zip(specs.items(), tensors, strict=True):
        if tensor.shape != spec.shape or tensor.dtype != spec.dtype:
            raise ValueError(f"{name}: {tensor.dtype}{list(tensor.shape)} is not {spec.dtype}{list(spec.shape)}")
        yield memoryview(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8))
