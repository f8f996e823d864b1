"""Compiled programs as files: a baked folder's, listed in an index that its manifest names by sha256, and a cache's.

A blob is opened only when its sha256 stands in a record: it is a pickle, and whoever can write it can run code here.
Files are written beside their place under a name of their own and renamed, so that any number of workers may share a
folder and none sees half a file.
"""

import os
import secrets
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from worker.engine.identity import Machine, digest
from worker.errors import ProgramFault
from worker.weights.manifest import Manifest, Sha256, SizeBytes

FOLDER = "programs"
"""Where a baked folder has its programs."""

Key = tuple[str | int | bool, ...]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Record(_Frozen):
    """What is known of a stored program.

    `expected`: some values of each result when the program runs on the arguments that `trial.py` makes; None where it
    was compiled without a device. `device`: the card's name, for people.
    """

    program: Key
    machine: Machine
    fingerprint: Sha256
    device: str
    blob: Sha256
    size_bytes: SizeBytes
    expected: tuple[tuple[float, ...], ...] | None
    compile_s: float


class Verdict(_Frozen):
    """What came of a program's trial with a driver; no fault if it may be used."""

    driver: str
    fault: str | None


_RECORDS = TypeAdapter(tuple[Record, ...])


def title(key: Key) -> str:
    """A program's key for people."""
    return " ".join(map(str, key))


def digest_of(content: bytes) -> str:
    """The name of a blob: the sha256 of its content."""
    return sha256(content).hexdigest()


def read_blob(folder: Path, record: Record) -> bytes:
    """The bytes of a record's blob; raises ProgramFault when they are absent or not those."""
    try:
        content = (folder / record.blob).read_bytes()
    except OSError as error:
        raise ProgramFault(f"cannot be read ({error.strerror})") from None
    if digest_of(content) != record.blob:
        raise ProgramFault("differs from its sha256")
    return content


def write_blob(folder: Path, content: bytes) -> str:
    """Write content under its sha256, which is returned; raises OSError."""
    name = digest_of(content)
    write_whole(folder / name, content)
    return name


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is whole or absent for every reader; raises OSError and leaves nothing behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name[:40]}.{secrets.token_hex(6)}")
    try:
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def read_index(model_dir: Path, manifest: Manifest) -> tuple[Record, ...]:
    """All records of a baked folder; raises ProgramFault when the index is not the manifest's."""
    if manifest.programs is None:
        return ()
    try:
        content = (model_dir / FOLDER / manifest.programs).read_bytes()
    except OSError as error:
        raise ProgramFault(f"the index cannot be read ({error.strerror})") from None
    if digest_of(content) != manifest.programs:
        raise ProgramFault("the index differs from its sha256 in the manifest")
    try:
        return _RECORDS.validate_json(content)
    except ValidationError:
        raise ProgramFault("the index was written by another version") from None


def write_index(model_dir: Path, records: tuple[Record, ...]) -> str:
    """Write the index of a baked folder; returns its sha256, which the manifest has to name."""
    return write_blob(model_dir / FOLDER, _RECORDS.dump_json(records, indent=1))


class Cache:
    """A folder for the programs of one machine and model among others in `root`; every method may raise OSError.

    The folder's own files are its index: `<program>.json` names a blob by its sha256.
    """

    def __init__(self, root: Path, machine: Machine, fingerprint: str):
        self._machine, self._fingerprint = machine, fingerprint
        self.folder = root / digest([machine.model_dump(mode="json"), fingerprint])[:32]

    def keys(self) -> list[Key]:
        """Programs that have a record that can be read."""
        records = (self._read(path) for path in sorted(self.folder.glob("*.json")))
        return [record.program for record in records if record]

    def record(self, key: Key) -> Record | None:
        """The record of a program; None without one, or with one that is not for this machine and model."""
        return self._read(self._path(key))

    def add(self, record: Record, blob: bytes) -> None:
        """Store a program: its blob first, so that a record never names what is not there."""
        write_blob(self.folder, blob)
        write_whole(self._path(record.program), record.model_dump_json(indent=1).encode())

    def verdict(self, blob: str, driver: str) -> Verdict | None:
        """What came of a trial with this driver."""
        try:
            verdict = Verdict.model_validate_json(self._verdict(blob, driver).read_bytes())
        except (OSError, ValidationError):
            return None
        return verdict if verdict.driver == driver else None

    def judge(self, blob: str, verdict: Verdict) -> None:
        """Remember a verdict."""
        write_whole(self._verdict(blob, verdict.driver), verdict.model_dump_json().encode())

    def _path(self, key: Key) -> Path:
        return self.folder / f"{'-'.join(map(str, key))}.json"

    def _verdict(self, blob: str, driver: str) -> Path:
        return self.folder / f"{blob}.{digest(driver)[:8]}.verdict"

    def _read(self, path: Path) -> Record | None:
        try:
            record = Record.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return None
        ours = record.machine == self._machine and record.fingerprint == self._fingerprint
        return record if ours and path == self._path(record.program) else None
