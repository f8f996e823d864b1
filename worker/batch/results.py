"""What is left of a batch: `results.jsonl`, a line a request, and `summary.json`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.batch.journal import Entry, Journal
from worker.batch.pictures import write_whole

RESULTS, SUMMARY = "results.jsonl", "summary.json"
_PICTURES = ("image", "image_url", "mask")
_SHOWN_MAX = 2000


def write_results(journal: Journal, folder: Path) -> None:
    """Write `folder/results.jsonl` anew, in the order of the requests, without holding them."""
    partial = folder / f"{RESULTS}.partial"
    with partial.open("w", encoding="utf-8", newline="\n") as file:
        for entry in journal.entries():
            file.write(json.dumps(result_line(entry), ensure_ascii=False) + "\n")
    partial.replace(folder / RESULTS)


def result_line(entry: Entry) -> dict[str, Any]:
    """A request with its pictures, their seeds and all that was used, or with its error."""
    answer = {"error": "not done yet"} if entry.answer is None else entry.answer
    asked = {name: _shown(name, value) for name, value in entry.fields.items()}
    return {"line": entry.line, "name": entry.name, "request": asked, **answer, "job": entry.job, "tries": entry.tries}


def write_summary(folder: Path, told: Mapping[str, Any]) -> None:
    """Write `folder/summary.json`."""
    write_whole(folder / SUMMARY, (json.dumps(told, indent=2) + "\n").encode("utf-8"))


def _shown(name: str, value: Any) -> Any:
    """A picture that came in a request is not repeated."""
    if name in _PICTURES and len(value) > _SHOWN_MAX:
        return f"{value[:40]}... ({len(value)} characters)"
    return value
