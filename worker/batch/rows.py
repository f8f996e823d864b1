"""A file of requests, CSV or JSONL: a row of it is a request, checked as the worker checks it. Pure but for reading."""

import csv
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic_core import ErrorDetails

from worker.errors import BatchError
from worker.request import Request, check_fields, check_together, fault, fault_text, named_fields

ROW_BYTES_MAX = 9_000_000
"""Runpod takes 10 MB in a job; what stands around the requests has room in the rest."""
_BY_LINE = "is not for a batch, which names pictures after their lines"
_PARSED = ("dict[", "tuple[")


@dataclass(frozen=True)
class Row:
    """A checked request. `position` counts from 0, `line` (where it begins in the file) from 1.

    `fields`: what the row and the defaults say, in the schema's types, without what says nothing new.
    """

    position: int
    line: int
    fields: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Position and content: the same wherever and whenever the row is read."""
        text = json.dumps(self.fields, sort_keys=True, separators=(",", ":"))
        return f"{self.position:06d}-{hashlib.sha256(text.encode('ascii')).hexdigest()[:12]}"

    @property
    def shape(self) -> str:
        """Requests that are alike in this cost alike, and share the worker's passes."""
        guidance = self.fields.get("guidance_scale")
        alike = {name: self.fields.get(name) for name in ("width", "height", "num_images", "num_inference_steps")}
        alike |= {name: name in self.fields for name in ("image", "image_url", "mask")}
        alike |= {"guided": None if guidance is None else guidance > 1}
        return json.dumps([*alike.values(), self.fields.get("output_format")])


def read_rows(path: Path, defaults: Mapping[str, Any], ignored: frozenset[str]) -> Iterator[Row | str]:
    """The file's rows in their order, or in the place of one its fault: "prompts.jsonl:17: width: ...".

    It is read as it is asked for, and never held. Columns of `ignored` names are left out. Raises BatchError if the
    file cannot be read at all.
    """
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl, ".ndjson": _read_jsonl}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise BatchError(f"{path}: a file whose name ends in {', '.join(readers)} is needed")
    position = 0
    try:
        for line, found in reader(path, ignored):
            checked = found if isinstance(found, str) else _check(found, defaults)
            if isinstance(checked, str):
                yield f"{path.name}:{line}: {checked}"
            else:
                yield Row(position, line, checked)
            position += 1
    except OSError as error:
        raise BatchError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BatchError(f"{path}: is not UTF-8") from None


def check_defaults(defaults: Mapping[str, Any]) -> list[str]:
    """What is wrong with defaults by themselves, a line each."""
    return [fault_text(detail) for detail in check_fields({"prompt": "", **defaults})[1]]


def from_text(name: str, text: str) -> Any:
    """The value of a field that a table or a command line gives as text; what is no JSON stays text, for the check."""
    kind = str(Request.model_fields[name].annotation) if name in Request.model_fields else ""
    if not any(mark in kind for mark in _PARSED):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


Line = tuple[int, dict[str, Any] | str]
"""A line's number, and its fields or what is wrong with it."""


def _read_jsonl(path: Path, ignored: frozenset[str]) -> Iterator[Line]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if text.strip():
                yield number, _json_object(text, ignored)


def _json_object(text: bytes, ignored: frozenset[str]) -> dict[str, Any] | str:
    try:
        value: object = json.loads(text.decode("utf-8"))
    except UnicodeDecodeError:
        return "is not UTF-8"
    except json.JSONDecodeError as error:
        return f"is not JSON: {error.msg} at column {error.colno}"
    except RecursionError:
        return "is not JSON of a request: it is too deep"
    if not isinstance(value, dict):
        return 'is not an object such as {"prompt": "a red fox"}'
    fields = named_fields(cast(dict[Any, Any], value))
    return {name: value for name, value in fields.items() if name not in ignored}


def _read_csv(path: Path, ignored: frozenset[str]) -> Iterator[Line]:
    # A cell may be a picture in base64.
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader, list[str]())
            if wrong := _header_faults(header, ignored):
                yield 1, wrong
                return
            line = reader.line_num + 1
            for cells in reader:
                if cells:
                    yield line, _cells(header, cells, ignored)
                line = reader.line_num + 1
        except csv.Error as error:
            yield reader.line_num, f"is not CSV: {error}; the rest is not read"


def _header_faults(header: list[str], ignored: frozenset[str]) -> str:
    names = [name for name in header if name not in ignored]
    if not names:
        return "the first line has to name the columns, prompt among them"
    doubled = sorted({name for name in names if names.count(name) > 1})
    unknown = named_fields({name: None for name in names if name not in Request.model_fields})
    faults = [f"{name}: two columns have this name" for name in doubled]
    faults += [
        f"{fault_text(detail)} (--ignore NAME leaves it out)" for detail in check_fields({"prompt": "", **unknown})[1]
    ]
    return "; ".join(faults)


def _cells(header: list[str], cells: list[str], ignored: frozenset[str]) -> dict[str, Any] | str:
    if len(cells) != len(header):
        return f"has {len(cells)} cells, and the first line {len(header)}"
    given = {name: text for name, text in zip(header, cells, strict=True) if text and name not in ignored}
    return {name: from_text(name, text) for name, text in given.items()}


def _check(own: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any] | str:
    """The request in normal form, or all its faults in one text."""
    told = {name: value for name, value in own.items() if value is not None or name not in Request.model_fields}
    fields = {**defaults, **told}
    request, faults = check_fields(fields)
    faults: list[ErrorDetails] = [*faults, *check_together(fields)]
    if "name" in told:
        faults.append(fault("name", _BY_LINE))
    if request is None or faults:
        return "; ".join(fault_text(detail) for detail in faults)
    normal = request.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    size = len(json.dumps(normal))
    if size > ROW_BYTES_MAX:
        return f"has {size} bytes, allowed are {ROW_BYTES_MAX}: give pictures as URLs"
    return normal
