"""The journal keeps what is done through everything."""

import time
from pathlib import Path

import pytest

from worker.batch.journal import Journal, Outcome
from worker.batch.rows import Row
from worker.errors import BatchError


def rows(*prompts: str, **fields: object) -> list[Row]:
    return [Row(index, index + 1, {"prompt": prompt, **fields}) for index, prompt in enumerate(prompts)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


@pytest.fixture
def journal(path: Path):
    made = Journal(path)
    yield made
    made.close()


def take(journal: Journal, most: int = 10, size: int = 10**9) -> list[str]:
    return [task.fields["prompt"] for task in journal.take(lambda _shape: most, size)]


def test_rows_of_one_shape_are_taken_in_order_and_only_once(journal):
    mixed = [Row(i, i, {"prompt": str(i), "width": 64 if i % 2 else 128}) for i in range(7)]
    journal.load(mixed)
    assert take(journal, 3) == ["0", "2", "4"]
    assert take(journal) == ["1", "3", "5"]
    assert take(journal) == ["6"]
    assert take(journal) == []
    assert journal.counts()["sending"] == 7


def test_a_job_is_bounded_in_bytes_unless_one_row_alone_is_larger(journal):
    journal.load(rows("a" * 100, "b", "c"))
    assert [prompt[0] for prompt in take(journal, size=50)] == ["a"]
    assert take(journal, size=50) == ["b", "c"]


def test_what_failed_waits_for_its_time_comes_last_and_alone(journal):
    journal.load(rows("a", "b", "c", "d"))
    tasks = journal.take(lambda _shape: 2, 10**9)
    journal.sent("job", tasks)
    journal.settle("job", "FAILED", [Outcome(tasks[0], None, time.time() + 0.2, alone=True), Outcome(tasks[1], None)])
    assert take(journal) == ["b", "c", "d"]
    assert take(journal) == []
    assert 0 < journal.next_due() - time.time() < 0.2
    time.sleep(0.25)
    (task,) = journal.take(lambda _shape: 9, 10**9)
    assert (task.fields["prompt"], task.tries) == ("a", 1)


def test_after_a_crash_what_was_sent_is_asked_for_and_what_was_being_sent_waits(path):
    before = Journal(path)
    before.load(rows("a", "b", "c"))
    sent = before.take(lambda _shape: 1, 10**9)
    before.sent("job-1", sent)
    assert take(before, 1) == ["b"]
    before.close()
    after = Journal(path)
    after.load(rows("a", "b", "c"))
    assert [(job, tasks) for job, tasks in after.jobs_sent()] == [("job-1", sent)]
    assert take(after) == ["b", "c"]
    after.settle("job-1", "COMPLETED", [Outcome(sent[0], {"images": ["x"]})])
    assert after.jobs_sent() == []
    assert next(after.entries()).answer == {"images": ["x"]}
    assert after.jobs_ended() == {"COMPLETED": 1}
    after.close()


def test_one_client_at_a_time(path, journal):  # noqa: ARG001
    with pytest.raises(BatchError, match="another client"):
        Journal(path)


def test_lines_may_change_until_they_are_sent(journal):
    journal.load(rows("a", "b"))
    (task,) = journal.take(lambda _shape: 1, 10**9)
    journal.settle(None, "COMPLETED", [Outcome(task, {"images": []})])
    journal.load(rows("a", "B", "c"))
    assert [entry.fields["prompt"] for entry in journal.entries()] == ["a", "B", "c"]
    journal.load(rows("a"))
    assert journal.counts()["waiting"] == 0
    for changed in (rows("x"), []):
        with pytest.raises(BatchError, match=r"1 requests have changed.*line 1"):
            journal.load(changed)
    assert journal.counts()["done"] == 1


def test_a_file_with_a_fault_changes_nothing(journal):
    def faulty():
        yield from rows("a", "b")
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        journal.load(faulty())
    assert sum(journal.counts().values()) == 0


def test_failed_rows_are_told_and_tried_again(journal):
    journal.load(rows("a", "b", "c"))
    tasks = journal.take(lambda _shape: 9, 10**9)
    journal.settle(None, "FAILED", [Outcome(task, {"error": "broken"}) for task in tasks])
    assert journal.errors() == {"broken": 3}
    journal.reset_failed()
    assert take(journal) == ["a", "b", "c"]
