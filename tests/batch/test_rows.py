"""A file of requests is read as the worker would read each of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from worker.batch.rows import ROW_BYTES_MAX, Row, read_rows
from worker.errors import BatchError


def read(
    folder: Path, name: str, text: str | bytes, ignored: tuple[str, ...] = (), **defaults: object
) -> list[Row | str]:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_rows(path, defaults, frozenset(ignored)))


def test_a_table_and_lines_of_json_say_the_same(tmp_path):
    table = (
        "\ufeffprompt,seed,width,scheduler_options,metadata,target_size\n"
        '"a ""red"" fox\nin snow",7,64,"{""eta"": 1}",false,"[64, 64]"\n'
        "b,-1,,,,\n"
    )
    lines = [
        {"prompt": 'a "red" fox\nin snow', "seed": 7, "width": 64, "scheduler_options": {"eta": 1}, "metadata": False,
         "target_size": [64, 64]},
        {"prompt": "b", "seed": None, "num_images": 1},
    ]  # fmt: skip
    first = read(tmp_path, "a.csv", table)
    second = read(tmp_path, "a.jsonl", "\n\n".join(map(json.dumps, lines)))
    assert [row.fields for row in first] == [row.fields for row in second]
    assert [row.name for row in first] == [row.name for row in second]
    assert [row.line for row in first] == [2, 4]
    assert [row.line for row in second] == [1, 3]
    assert second[1].fields == {"prompt": "b"}


def test_defaults_hold_where_a_line_is_silent(tmp_path):
    text = '{"prompt": "a", "width": 64}\n{"prompt": "b", "width": null}\n{}\n'
    rows = read(tmp_path, "a.jsonl", text, width="128", prompt="c")
    assert [row.fields for row in rows] == [
        {"prompt": "a", "width": 64}, {"prompt": "b", "width": 128}, {"prompt": "c", "width": 128}
    ]  # fmt: skip


def test_all_faults_are_listed_each_with_its_line(tmp_path):
    lines = [
        '{"prompt": "a", "width": 100, "steps": 3}',
        '{"prompt": "a"}',
        "{",
        '"a"',
        '{"prompt": "a", "mask": "AAAA"}',
        '{"prompt": "a", "name": "x/y"}',
        b"\xff".decode("latin1"),
        json.dumps({"prompt": "a", "image": "A" * ROW_BYTES_MAX}),
    ]
    found = read(tmp_path, "a.jsonl", "\n".join(lines).encode("latin1"))
    faults = [row for row in found if isinstance(row, str)]
    assert len(faults) == 7
    for fault, (line, word) in zip(
        faults,
        [(1, "num_inference_steps meant?"), (3, "not JSON"), (4, "not an object"), (5, "mask: an image is needed"),
         (6, "name: "), (7, "not UTF-8"), (8, "URLs")],
        strict=True,
    ):  # fmt: skip
        assert fault.startswith(f"a.jsonl:{line}: ")
        assert word in fault
    assert "width: 100" in faults[0]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Prompt,seed\na,1\n", "a.csv:1: Prompt: unknown field; is prompt meant?"),
        ("prompt,prompt\na,b\n", "a.csv:1: prompt: two columns"),
        ("", "a.csv:1: the first line has to name the columns"),
        ("prompt,seed\na\n", "a.csv:2: has 1 cells, and the first line 2"),
        ('prompt\n"a', "a.csv:2: is not CSV"),
        ("prompt,seed\na,x\n", "a.csv:2: seed: 'x' is not allowed"),
        ('prompt,scheduler_options\na,"{"\n', "a.csv:2: scheduler_options: '{' is not an object"),
    ],
)
def test_a_table_that_is_not_sound(tmp_path, text, fault):
    (found,) = read(tmp_path, "a.csv", text)
    assert str(found).startswith(fault)


def test_other_columns_can_be_left_out(tmp_path):
    (row,) = read(tmp_path, "a.csv", "id,prompt\n3,a\n", ("id",))
    assert row.fields == {"prompt": "a"}


@pytest.mark.parametrize(
    ("name", "said"), [("a.txt", "ends in .csv, .jsonl"), ("b.csv", "is not UTF-8"), ("none.csv", "No such file")]
)
def test_a_file_that_cannot_be_read(tmp_path, name, said):
    for written in ("a.txt", "b.csv"):
        (tmp_path / written).write_bytes(b"prompt\n\xff\n")
    with pytest.raises(BatchError, match=f"{name}: .*{said}"):
        list(read_rows(tmp_path / name, {}, frozenset()))


def test_a_name_is_of_place_and_content(tmp_path):
    rows = read(tmp_path, "a.jsonl", '{"prompt": "a"}\n{"prompt": "a"}\n')
    again = read(tmp_path, "a.jsonl", '{"prompt": "a", "preview": false}\n{"prompt": "b"}\n')
    names = [row.name for row in [*rows, *again]]
    assert names[0] == names[2]
    assert len(set(names)) == 3


def test_the_client_needs_neither_jax_nor_the_engine():
    code = (
        "import sys, worker.batch.__main__, worker.batch.endpoint, worker.batch.gallery, worker.batch.local\n"
        "found = [m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxlib', 'flax', 'torch') "
        "or m.startswith('worker.engine')]\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
