"""Rewrite what is made from declarations in the code: `uv run python -m docs.generate`.

That is the README's tables, the JSON schema of a job's input and the settings on Runpod's Hub.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from docs.hub import with_settings
from worker.diffusion.names import markdown_table
from worker.job import HEALTH_FIELD, REQUESTS_MAX
from worker.request import Request, bounds
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
    """JSON schema of a job's `input`: one request, many with their defaults, or the question for a report."""
    given = _keywords(Request.model_json_schema()["properties"])
    fields = {name: _nullable(node) for name, node in given.items()}
    needed = {name: given[name] for name, field in Request.model_fields.items() if field.is_required()}
    many = {
        "type": "object",
        "properties": {
            "requests": {
                "description": "What a request leaves out, or has as null, is that of the defaults.",
                "type": "array",
                "items": {"$ref": "#/$defs/fields"},
                "minItems": 1,
                "maxItems": REQUESTS_MAX,
            },
            "defaults": {"anyOf": [{"$ref": "#/$defs/fields"}, {"type": "null"}]},
        },
        "required": ["requests"],
        "additionalProperties": False,
    }
    health = {
        "type": "object",
        "properties": {HEALTH_FIELD: {"const": True}},
        "required": [HEALTH_FIELD],
        "additionalProperties": False,
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A job's input",
        "anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in ("request", "requests", "health")],
        "$defs": {
            "fields": {"type": "object", "properties": fields, "additionalProperties": False},
            "request": {"$ref": "#/$defs/fields", "properties": needed, "required": list(needed)},
            "requests": many,
            "health": health,
        },
    }
    return json.dumps(schema, indent=2) + "\n"


def _keywords(node: Any) -> Any:
    """The node without titles; bounds of what may be null have pydantic's names in its schema, here JSON schema's."""
    names = {"ge": "minimum", "le": "maximum", "multiple_of": "multipleOf"}
    if isinstance(node, dict):
        return {names.get(key, key): _keywords(value) for key, value in node.items() if key != "title"}
    return [_keywords(value) for value in node] if isinstance(node, list) else node


def _nullable(node: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in node:
        return node
    about = {key: node[key] for key in ("default", "description") if key in node}
    value = {key: item for key, item in node.items() if key not in about}
    return {"anyOf": [value, {"type": "null"}], **about}


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
