import hashlib
import json

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from worker.errors import CheckpointError
from worker.weights.tensors import open_tensors, write_tensors


def spec(*shape, dtype=np.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def with_header(header, data: bytes) -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data


ONE = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
PICKLE = b"PK\x03\x04" + bytes(200)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 3438167540\n"


def test_every_bfloat16_is_read_bit_by_bit(tmp_path):
    patterns = np.arange(2**16, dtype=np.uint16)
    tensor = torch.from_numpy(patterns.view(np.int16)).view(torch.bfloat16)
    safetensors.torch.save_file({"all": tensor.reshape(256, 256)}, tmp_path / "a.safetensors")
    read = open_tensors(tmp_path / "a.safetensors").read("all")
    assert read.dtype == ml_dtypes.bfloat16
    assert read.shape == (256, 256)
    np.testing.assert_array_equal(read.reshape(-1).view(np.uint16), patterns)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_])
def test_dtypes_are_read_as_the_library_wrote_them(tmp_path, dtype):
    values = {
        "matrix": np.arange(15).reshape(3, 5).astype(dtype),
        "scalar": np.array(1, dtype),
        "empty": np.zeros((0, 4), dtype),
    }
    safetensors.numpy.save_file(values, tmp_path / "a.safetensors", metadata={"format": "np"})
    file = open_tensors(tmp_path / "a.safetensors")
    assert file.tensors.keys() == values.keys()
    for name, value in values.items():
        read = file.read(name)
        assert read.dtype == dtype
        np.testing.assert_array_equal(read, value)


def test_the_library_reads_what_is_written(tmp_path):
    specs = {"b": spec(2, 3), "a": spec(4, dtype=ml_dtypes.bfloat16), "c": spec()}
    tensors = [
        np.arange(6, dtype=np.float32).reshape(3, 2).T,
        np.ones(4, ml_dtypes.bfloat16),
        np.float32(7).reshape(()),
    ]
    digest = write_tensors(tmp_path / "a.safetensors", specs, tensors, metadata={"format": "pt"})
    content = (tmp_path / "a.safetensors").read_bytes()
    assert digest == (hashlib.sha256(content).hexdigest(), len(content))
    read = safetensors.torch.load_file(tmp_path / "a.safetensors")
    assert read["a"].dtype == torch.bfloat16
    for name, tensor in zip(specs, tensors, strict=True):
        np.testing.assert_array_equal(read[name].float().numpy(), tensor.astype(np.float32))


def test_tensors_are_taken_one_at_a_time(tmp_path):
    """The second is not asked for before the first is written: no copy of a whole model in memory."""
    path = tmp_path / "a.safetensors"
    size_before_second = []

    def tensors():
        yield np.zeros(2**20, np.float32)
        size_before_second.append(path.stat().st_size)
        yield np.zeros(2**20, np.float32)

    write_tensors(path, {"a": spec(2**20), "b": spec(2**20)}, tensors())
    assert size_before_second[0] >= 2**22


@pytest.mark.parametrize(
    "tensors",
    [
        [np.zeros((3, 2), np.float32)],
        [np.zeros((2, 3), np.float16)],
        [],
        [np.zeros((2, 3), np.float32)] * 2,
    ],
    ids=["shape", "dtype", "too few", "too many"],
)
def test_other_tensors_than_declared_are_refused(tmp_path, tensors):
    with pytest.raises(ValueError):  # noqa: PT011 -- zip's own text for the counts
        write_tensors(tmp_path / "a.safetensors", {"a": spec(2, 3)}, tensors)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cut off, only 0 bytes"),
        (b"12345", "cut off, only 5 bytes"),
        (POINTER, "Git LFS pointer"),
        (PICKLE, "not a safetensors file"),
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "not a safetensors file"),
        (with_header(ONE, b"")[:20], "cut off within its header"),
        (with_header(ONE, bytes(7)), "cut off: 77 bytes are described, 76 are there"),
        (with_header(ONE, bytes(9)), "1 bytes follow after the last tensor"),
        (with_header(b"{" * 50, bytes(8)), "header is not readable"),
        (with_header(b"[1]", bytes(8)), "not a safetensors file"),
        (with_header(b'{"a": 1}', bytes(8)), "header is not readable"),
        (with_header(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}', bytes(8)), "not readable"),
        (with_header({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, bytes(8)), "contradicts its shape"),
        (with_header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, bytes(12)), "contradicts"),
        (with_header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}}, bytes(8)), "contradicts"),
        (
            with_header({n: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for n in "ab"}, bytes(8)),
            "contradicts its shape",
        ),
    ],
)
def test_what_is_not_a_whole_file_is_named(tmp_path, content, message):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_tensors(path)
    assert str(path) in str(caught.value)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"none.safetensors: no such file"):
        open_tensors(tmp_path / "none.safetensors")


def test_a_file_cut_after_it_was_opened(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file({"a": np.zeros(100, np.float32)}, path)
    file = open_tensors(path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="cut off within a"):
        file.read("a")


def test_a_dtype_that_is_not_read(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(4).to(torch.float8_e5m2)}, path)
    file = open_tensors(path)
    with pytest.raises(CheckpointError, match="a has the dtype F8_E5M2"):
        file.read("a")
