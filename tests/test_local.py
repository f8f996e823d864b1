"""What a local run shows of its jobs."""

import io
import json
import logging

import pytest

from worker import local
from worker.local import Console, summary

USED = {"num_inference_steps": 20, "guidance_scale": 3.0, "strength": None, "scheduler": "DDIMScheduler"}
MODEL = {"source": "emoji"}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def result(place: str, **used: object) -> dict:
    picture = {"width": 64, "height": 72, "seed": 7}
    return {"images": [place], "pictures": [picture], "used": {**USED, **used}, "warnings": ["seed: odd"]}


def answer(compile_s: float = 0.0) -> dict:
    return {**result("output/a/0.png"), "model": MODEL, "timings": {"compile_s": compile_s, "total_s": 12.34}}


def test_a_terminal_has_a_bar_for_each_job_that_is_whole_at_its_end(capsys):
    out = Terminal()
    console = Console(out)
    for job, done in (("a", 0.25), ("b", 0.5), ("a", 0.75)):
        console.progress({"id": job}, {"progress": done})
    console.finish({"id": "a"}, answer())
    console.finish({"id": "b"}, {"error": "no"})
    shown = out.getvalue()
    assert "a  25%" in shown
    assert "b  50%" in shown
    assert "a 100%" in shown
    assert "b 100%" not in shown
    assert capsys.readouterr().out.startswith("output/a/0.png")


@pytest.mark.parametrize(("every_s", "lines"), [(0.0, 2), (60.0, 0)])
def test_elsewhere_there_are_lines_from_time_to_time_and_no_bar(monkeypatch, caplog, every_s, lines):
    monkeypatch.setattr(local, "_LINE_EVERY_S", every_s)
    out = io.StringIO()
    console = Console(out)
    with caplog.at_level(logging.INFO):
        for done in (0.25, 0.5):
            console.progress({"id": "a"}, {"progress": done})
    assert out.getvalue() == ""
    assert [record.getMessage() for record in caplog.records] == ["job a: 25 %", "job a: 50 %"][:lines]


def test_a_summary_tells_where_and_with_what():
    assert summary(answer(compile_s=10.0)) == [
        "output/a/0.png  64x72, seed 7",
        "20 steps, guidance 3, DDIMScheduler",
        "warning: seed: odd",
        "model emoji, 12.3 s, 10.0 s of them to compile",
    ]


def test_a_summary_of_many_has_each_and_its_error():
    many = {**answer(), "results": [result("output/a/0-0.png", strength=0.5), {"error": "lost"}]}
    lines = summary(many)
    assert lines[0].startswith("output/a/0-0.png")
    assert "strength 0.5" in lines[1]
    assert "error: lost" in lines


def test_a_report_is_shown_whole():
    report = {"health": {"versions": {"worker": "1"}}}
    assert json.loads("\n".join(summary(report))) == report
