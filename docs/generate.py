"""Rewrite what is made from declarations in the code: `uv run python -m docs.generate`.

That is the README's tables, the JSON schema of a job's input and the settings on Runpod's Hub.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from docs.hub import with_settings
from worker.diffusion.names import markdown_table
from worker.request import Request, bounds
from worker.schema import input_schema
from worker.settings import Settings

README = Path(__file__).parent.parent / "README.md"
SCHEMA = Path(__file__).parent / "request.schema.json"
HUB = Path(__file__).parent.parent / ".runpod" / "hub.json"


def render(text: str) -> str:
    """The text with the table between each pair of markers made anew."""
    tables = {"request": request_table(), "schedulers": markdown_table(), "settings": settings_table()}
    for name, table in tables.items():
        block = f"<!-- {name} -->\n{table}\n<!-- /{name} -->"
        place = re.compile(rf"<!-- {name} -->.*<!-- /{name} -->", re.DOTALL)
        text, count = place.subn(lambda _, block=block: block, text)
        if count != 1:
            raise ValueError(f"README.md has {count} tables named {name}")
    return text


def request_table() -> str:
    """Fields of a job's input."""
    rows = [
        (
            f"`{name}`",
            _type(field),
            "needed" if field.is_required() else "" if field.default is None else f"`{_shown(field.default)}`",
            field.description or "",
        )
        for name, field in Request.model_fields.items()
    ]
    return _table(("field", "type", "default", "meaning"), rows)


def schema_text() -> str:
    """See `worker.schema`."""
    return json.dumps(input_schema(), indent=2) + "\n"


def settings_table() -> str:
    """Environment variables."""
    rows: list[tuple[str, ...]] = []
    for item in fields(Settings):
        default = item.default
        shown = "" if default == () else _shown(default)
        rows.append((f"`{item.name.upper()}`", f"`{shown}`" if shown else "", item.metadata["description"]))
    return _table(("variable", "default", "meaning"), rows)


def _shown(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _type(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return " / ".join(f"`{choice}`" for choice in get_args(field.annotation))
    if field.annotation is bool:
        return "true or false"
    text = str(field.annotation)
    kinds = {"dict": "object", "tuple": "[int, int]", "int": "integer", "float": "number", "str": "text"}
    kind = next(word for part, word in kinds.items() if part in text)
    return kind if kind == "[int, int]" else f"{kind} {bounds(field)}".strip()


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    README.write_text(render(README.read_text("utf-8")), "utf-8")
    SCHEMA.write_text(schema_text(), "utf-8")
    HUB.write_text(with_settings(HUB.read_text("utf-8")), "utf-8")
