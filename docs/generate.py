"""Rewrite the README's tables from the declarations in the code: `uv run python -m docs.generate`."""

import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from worker.diffusion.names import markdown_table
from worker.request import Request
from worker.settings import Settings

README = Path(__file__).parent.parent / "README.md"


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
    properties: dict[str, Any] = Request.model_json_schema()["properties"]
    rows = [
        (
            f"`{name}`",
            _type(properties[name]),
            "needed" if field.is_required() else "" if field.default is None else f"`{field.default}`",
            field.description or "",
        )
        for name, field in Request.model_fields.items()
    ]
    return _table(("field", "type", "default", "meaning"), rows)


def settings_table() -> str:
    """Environment variables."""
    rows: list[tuple[str, ...]] = []
    for item in fields(Settings):
        default = item.default
        shown = "" if default == () else str(default).lower() if isinstance(default, bool) else str(default)
        rows.append((f"`{item.name.upper()}`", f"`{shown}`" if shown else "", item.metadata["description"]))
    return _table(("variable", "default", "meaning"), rows)


def _type(schema: dict[str, Any]) -> str:
    options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    option = options[0]
    low, high = option.get("minimum"), option.get("maximum")
    kind = {"object": "object", "array": "[int, int]", "string": "text"}.get(option["type"], option["type"])
    bounds = f" {low:g} to {high:g}" if low is not None and high is not None and high < 2**31 else ""
    bounds = f" {low} to {high}" if high is not None and high >= 2**31 else bounds
    step = f", in steps of {option['multipleOf']}" if "multipleOf" in option else ""
    return f"{kind}{bounds}{step}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    README.write_text(render(README.read_text("utf-8")), "utf-8")
