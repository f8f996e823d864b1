"""What a batch has to do and has done, on disk.

SQLite rather than lines appended to a file: a change is whole or not there after a crash, the state of a row is one
lookup, and 100,000 rows are read in order without being held.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

from worker.batch.rows import Row
from worker.errors import BatchError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, requests INTEGER NOT NULL, sent REAL NOT NULL, ended REAL, outcome TEXT
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests (
    position INTEGER PRIMARY KEY, line INTEGER NOT NULL, name TEXT NOT NULL, fields TEXT NOT NULL, shape TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'sending', 'sent', 'done', 'failed')),
    tries INTEGER NOT NULL DEFAULT 0, alone INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL DEFAULT 0,
    job TEXT, answer TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS next ON requests (due, position) WHERE state = 'waiting';
CREATE INDEX IF NOT EXISTS alike ON requests (shape, position) WHERE state = 'waiting';
CREATE INDEX IF NOT EXISTS sent ON requests (job, position) WHERE state = 'sent';
CREATE INDEX IF NOT EXISTS failed ON requests (position) WHERE state = 'failed';
"""
_RESET = "state = 'waiting', tries = 0, alone = 0, due = 0, job = NULL, answer = NULL"


@dataclass(frozen=True)
class Task:
    """A request as the client carries it; `tries` that it has had."""

    position: int
    name: str
    fields: Mapping[str, Any]
    tries: int


@dataclass(frozen=True)
class Outcome:
    """What came of a task: an answer that is an error only if the task is given up, or None to try again at `due`.

    `due` is in seconds since the epoch; a task that goes on `alone` shares no job any more; the try `counts` if it had
    a fair one.
    """

    task: Task
    answer: Mapping[str, Any] | None
    due: float = 0.0
    alone: bool = False
    counts: bool = True


@dataclass(frozen=True)
class Entry:
    """A request at the end, as the results tell it; `answer` is None while it is open."""

    line: int
    name: str
    fields: Mapping[str, Any]
    tries: int
    job: str | None
    answer: Mapping[str, Any] | None


class Journal:
    """One client's at a time; its methods may be called by several threads.

    A row is waiting, sending (a job with it is being sent), sent (the platform has it), done or failed.
    """

    def __init__(self, path: Path):
        self._lock = RLock()
        try:
            self._db = sqlite3.connect(path, timeout=0, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_SCHEMA)
            # Whether the platform has them is not known; if it does, their pictures are found under their names.
            self._db.execute("UPDATE requests SET state = 'waiting' WHERE state = 'sending'")
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise BatchError(f"{path}: another client is at work with this journal") from None
            raise BatchError(f"{path}: {error}") from None

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _change(self) -> Generator[sqlite3.Connection]:
        """All of it or nothing."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def facts(self) -> dict[str, str]:
        """What is kept of the batch as a whole."""
        with self._lock:
            return dict(self._db.execute("SELECT name, value FROM facts").fetchall())

    def set_facts(self, facts: Mapping[str, str]) -> None:
        with self._change() as db:
            db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())

    def load(self, rows: Iterable[Row]) -> None:
        """Take the file's rows in; those that are known keep their state.

        A row that waits or has failed may have changed. Raises BatchError, and takes nothing, if one has that is done
        or sent. What `rows` raises goes through, and nothing is taken either.
        """
        with self._change() as db:
            changed, count = list[int](), 0
            for row in rows:
                count = row.position + 1
                before = db.execute("SELECT name, state FROM requests WHERE position = ?", (row.position,)).fetchone()
                if before and before[0] == row.name:
                    continue
                if before and before[1] not in ("waiting", "failed"):
                    changed.append(row.line)
                else:
                    _insert(db, row)
            gone = "position >= ? AND state IN ('done', 'sent')"
            changed += [one for (one,) in db.execute(f"SELECT line FROM requests WHERE {gone}", (count,))]
            if changed:
                raise BatchError(
                    f"{len(changed)} requests have changed since their pictures were asked for, the first in line "
                    f"{min(changed)}: put file and options back, or begin another batch with another --out"
                )
            db.execute("DELETE FROM requests WHERE position >= ?", (count,))

    def counts(self) -> dict[str, int]:
        """How many rows are in which state; a scan."""
        with self._lock:
            found = dict(self._db.execute("SELECT state, count(*) FROM requests GROUP BY state").fetchall())
        return {state: found.get(state, 0) for state in ("waiting", "sending", "sent", "done", "failed")}

    def reset_failed(self) -> None:
        """Failed rows are tried from the beginning."""
        with self._change() as db:
            db.execute(f"UPDATE requests SET {_RESET} WHERE state = 'failed'")

    def reset(self, positions: Iterable[int]) -> None:
        """These rows are made from the beginning."""
        with self._change() as db:
            db.executemany(f"UPDATE requests SET {_RESET} WHERE position = ?", ((one,) for one in positions))

    def recall(self) -> None:
        """Jobs that were sent are not waited for any more."""
        with self._change() as db:
            db.execute("UPDATE jobs SET ended = ?, outcome = 'left' WHERE ended IS NULL", (time.time(),))
            db.execute("UPDATE requests SET state = 'waiting', job = NULL WHERE state = 'sent'")

    def next_due(self) -> float | None:
        """When the next waiting row may be sent, in seconds since the epoch; None if none waits."""
        with self._lock:
            return self._db.execute("SELECT min(due) FROM requests WHERE state = 'waiting'").fetchone()[0]

    def take(self, most: Callable[[str], int], bytes_max: int) -> list[Task]:
        """Rows of one shape for a job, from now on `sending`; new ones before those that have failed before.

        `most(shape)` rows at most, and `bytes_max` of fields unless one alone has more.
        """
        now = time.time()
        waiting = "FROM requests WHERE state = 'waiting'"
        with self._change() as db:
            first = db.execute(f"SELECT position, shape, alone {waiting} ORDER BY due, position LIMIT 1").fetchone()
            if first is None:
                return []
            columns = f"SELECT position, name, fields, tries {waiting} AND due <= ?"
            if first[2]:
                found = db.execute(f"{columns} AND position = ?", (now, first[0]))
            else:
                alike = f"{columns} AND shape = ? AND alone = 0 ORDER BY position LIMIT ?"
                found = db.execute(alike, (now, first[1], most(first[1])))
            tasks, size = list[Task](), 0
            for position, name, fields, tries in found:
                size += len(fields)
                if tasks and size > bytes_max:
                    break
                tasks.append(Task(position, name, json.loads(fields), tries))
            _mark(db, "sending", tasks)
            return tasks

    def sent(self, job_id: str, tasks: Sequence[Task]) -> None:
        """The platform has them, as this job."""
        with self._change() as db:
            db.execute("INSERT INTO jobs (id, requests, sent) VALUES (?, ?, ?)", (job_id, len(tasks), time.time()))
            _mark(db, "sent", tasks, job_id)

    def jobs_sent(self) -> list[tuple[str, list[Task]]]:
        """Jobs of an earlier client that nobody has seen the end of, each with its rows in order."""
        columns = (
            "SELECT position, name, fields, tries FROM requests WHERE state = 'sent' AND job = ? ORDER BY position"
        )
        with self._lock:
            ids = [one for (one,) in self._db.execute("SELECT DISTINCT job FROM requests WHERE state = 'sent'")]
            return [
                (
                    job,
                    [
                        Task(p, name, json.loads(fields), tries)
                        for p, name, fields, tries in self._db.execute(columns, (job,))
                    ],
                )
                for job in ids
            ]

    def settle(self, job_id: str | None, ended: str, outcomes: Sequence[Outcome]) -> None:
        """A job's end, and what came of each of its rows."""
        with self._change() as db:
            if job_id is not None:
                db.execute("UPDATE jobs SET ended = ?, outcome = ? WHERE id = ?", (time.time(), ended, job_id))
            for one in outcomes:
                answer = None if one.answer is None else json.dumps(one.answer)
                state = "waiting" if one.answer is None else "failed" if "error" in one.answer else "done"
                db.execute(
                    "UPDATE requests SET state = ?, tries = tries + ?, alone = max(alone, ?), due = ?, answer = ? "
                    "WHERE position = ?",
                    (state, one.counts, one.alone, one.due, answer, one.task.position),
                )

    def jobs_ended(self) -> dict[str, int]:
        """How many jobs ended how."""
        with self._lock:
            return dict(self._db.execute("SELECT coalesce(outcome, 'open'), count(*) FROM jobs GROUP BY 1").fetchall())

    def errors(self) -> dict[str, int]:
        """The errors of failed rows, the most frequent ten, with how often they came."""
        counted = "SELECT json_extract(answer, '$.error') AS error, count(*) AS number FROM requests"
        with self._lock:
            found = self._db.execute(f"{counted} WHERE state = 'failed' GROUP BY error ORDER BY number DESC LIMIT 10")
            return dict(found.fetchall())

    def entries(self) -> Iterator[Entry]:
        """All rows in order, read as they are asked for."""
        columns = "SELECT position, line, name, fields, tries, job, answer FROM requests"
        position = -1
        while True:
            with self._lock:
                page = self._db.execute(
                    f"{columns} WHERE position > ? ORDER BY position LIMIT 500", (position,)
                ).fetchall()
            if not page:
                return
            for position, line, name, fields, tries, job, answer in page:  # noqa: B007
                yield Entry(line, name, json.loads(fields), tries, job, None if answer is None else json.loads(answer))


def _insert(db: sqlite3.Connection, row: Row) -> None:
    db.execute(
        "INSERT OR REPLACE INTO requests (position, line, name, fields, shape) VALUES (?, ?, ?, ?, ?)",
        (row.position, row.line, row.name, json.dumps(row.fields), row.shape),
    )


def _mark(db: sqlite3.Connection, state: str, tasks: Sequence[Task], job_id: str | None = None) -> None:
    values = [(state, job_id, task.position) for task in tasks]
    db.executemany("UPDATE requests SET state = ?, job = ? WHERE position = ?", values)
