"""Folders that are either whole or absent: written beside their place, then moved there by one rename.

`<folder>.partial` keeps its finished pieces when a run ends early, and the next run of the same work goes on from them.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

from worker.errors import BuildError

_MARKER = ".staging.json"
_RESERVE_BYTES = 64 << 20  # for the small files and the file system's own


class Staging:
    """`<folder>.partial` while it is filled; `notes` are kept on the disk from run to run."""

    def __init__(self, target: Path, work: str):
        """Open the folder for `work`; what was left there by other work is cleared away.

        Raises BuildError if the folder is there but was not made by the builder.
        """
        self.target = target
        self.folder = target.with_name(f"{target.name}.partial")
        self._state: dict[str, Any] = {"work": work, "notes": {}}
        marker = self.folder / _MARKER
        if self.folder.exists() and any(self.folder.iterdir()):
            if not marker.is_file():
                raise BuildError(f"{self.folder}: is in the way, and was not left by the builder")
            state = _read_state(marker)
            if state and state["work"] == work:
                self._state = state
                return
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_durably(marker, json.dumps(self._state).encode())

    def note(self, name: str) -> Any:
        """What was remembered under `name`, or None."""
        return self._state["notes"].get(name)

    def remember(self, name: str, value: Any) -> None:
        """Keep a JSON value under `name` for a later run of the same work."""
        self._state["notes"][name] = value
        write_durably(self.folder / _MARKER, json.dumps(self._state).encode())

    def publish(self) -> None:
        """Move the folder to its place; what is there already is replaced.

        The marker goes last: without it a folder that was not moved would be taken for one of somebody else.
        """
        _sync_folder(self.folder)
        old = self.target.with_name(f".{self.target.name}.replaced")
        shutil.rmtree(old, ignore_errors=True)
        if self.target.exists():
            self.target.replace(old)
        self.folder.replace(self.target)
        (self.target / _MARKER).unlink()
        _sync_folder(self.target.parent)
        shutil.rmtree(old, ignore_errors=True)


def _read_state(marker: Path) -> dict[str, Any] | None:
    try:
        return json.loads(marker.read_bytes())
    except ValueError:
        return None


def write_durably(path: Path, content: bytes) -> None:
    """Write a file so that it is whole or absent, and on the disk on return."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_disk(folder: Path, needed_bytes: int, purpose: str) -> None:
    """Raise BuildError if the disk of `folder` has no room for that many bytes more."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed_bytes + _RESERVE_BYTES:
        raise BuildError(
            f"{folder}: {purpose} needs {_gigabytes(needed_bytes + _RESERVE_BYTES)} of disk, "
            f"{_gigabytes(free)} are free"
        )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


@contextlib.contextmanager
def exclusive(target: Path) -> Generator[None]:
    """Hold the place of `target` alone; raises BuildError if it cannot be written or another process holds it."""
    if target.is_mount():
        raise BuildError(f"{target}: is a mount point, which cannot be replaced as a whole; name a folder in it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BuildError(f"{target}: {target.parent} is not a folder") from None
    lock = target.with_name(f".{target.name}.lock")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BuildError(f"{target}: another bake is writing it") from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


@contextlib.contextmanager
def disk_errors(folder: Path) -> Generator[None]:
    """Turn a full disk into a BuildError; what is finished stays for the next run."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise BuildError(f"{folder}: the disk is full; make room and run the same command to go on") from error
