"""Results as a Markdown page."""

from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """One section for each part, with a table of its rows."""
    best = ceiling(results)
    sections = [f"# GPU check\n\n{_ceiling_line(best)}"]
    for result in results:
        rows = [_with_share(row, best) for row in result["rows"]]
        sections.append(f"## {result['title']}\n\n{result['state']}, {result['seconds']} s\n\n{table(rows)}".rstrip())
    return "\n\n".join(sections) + "\n"


def ceiling(results: Sequence[Mapping[str, Any]]) -> float | None:
    """The best TFLOP/s of a matrix product, if it was measured."""
    found = [row["tflops"] for result in results if result["name"] == "ceiling" for row in result["rows"]]
    return max(found, default=None)


def table(rows: Rows) -> str:
    """Rows with their keys as columns; a column stands where a row has it first."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if not columns:
        return ""
    lines = [columns, ["---"] * len(columns), *([_cell(row.get(column)) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ceiling_line(best: float | None) -> str:
    return "No ceiling was measured." if best is None else f"Ceiling: {best:.4g} TFLOP/s, which shares refer to."


def _with_share(row: Mapping[str, Any], best: float | None) -> Mapping[str, Any]:
    return row if best is None or "tflops" not in row else {**row, "of_ceiling": row["tflops"] / best}


def _cell(value: Any) -> str:
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "/").replace("\n", " ")
