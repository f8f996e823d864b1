"""Where programs come from before they are compiled: the baked folder, then the cache; and where compiled ones go.

Nothing here raises: a store that is corrupt, foreign, read-only or full costs time and a line in the log.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import jax

from worker.engine import blobs
from worker.engine.blobs import Cache, Key, Record, Verdict, title
from worker.engine.executable import pack, reason, unpack
from worker.engine.identity import Machine, default_device, devices, driver_version, machine_of
from worker.engine.trial import Outcome, compare, run_trials
from worker.errors import ProgramFault
from worker.settings import Settings
from worker.weights.manifest import Manifest

log = logging.getLogger(__name__)

_READERS = 8


class Stored(NamedTuple):
    """A record, and the folder of its blob."""

    record: Record
    folder: Path

    @property
    def path(self) -> Path:
        """Its blob."""
        return self.folder / self.record.blob


@dataclass
class ProgramStore:
    """The stored programs of one machine and model; safe to use from several threads.

    `tries`: whether a program is tried in a process of its own before its first use with this driver. `loaded` holds
    the seconds that each program took to load, `faults` why one was not used.
    """

    machine: Machine
    fingerprint: str
    device: Any
    baked: dict[Key, list[Stored]] = field(default_factory=dict[Key, list[Stored]])
    cache: Cache | None = None
    tries: bool = True
    loaded: dict[Key, float] = field(default_factory=dict[Key, float])
    faults: dict[Key, str] = field(default_factory=dict[Key, str])
    _rejected: set[Path] = field(default_factory=set[Path])
    _writable: bool = True
    _lock: Lock = field(default_factory=Lock)

    def keys(self) -> list[Key]:
        """Programs that are stored."""
        cached: list[Key] = []
        if self.cache:
            try:
                cached = self.cache.keys()
            except OSError as error:
                log.warning("program cache %s: cannot be read (%s)", self.cache.folder, error.strerror)
        return [*self.baked, *(key for key in cached if key not in self.baked)]

    def load(self, keys: Iterable[Key]) -> dict[Key, jax.stages.Compiled]:
        """The programs among `keys` that are stored and can be used, read with several threads."""
        began = time.perf_counter()
        pending = {key: places for key in keys if (places := self._places(key))}
        programs: dict[Key, jax.stages.Compiled] = {}
        while pending:
            # What the baked folder cannot give may be in the cache.
            found = self._load_first({key: places[0] for key, places in pending.items()})
            programs |= found
            pending = {key: places[1:] for key, places in pending.items() if key not in found and places[1:]}
        if programs:
            log.info("loaded %d stored programs in %.2f s", len(programs), time.perf_counter() - began)
        return programs

    def offer(self, key: Key, compiled: jax.stages.Compiled, compile_s: float) -> None:
        """Keep a program that had to be compiled for the next worker."""
        if self.cache is None or not self._writable:
            return
        try:
            content = pack(compiled)
            record = record_of(self, key, content, compile_s)
            self.cache.add(record, content)
        except OSError as error:
            self._cannot_write(error)
        except Exception as error:  # whatever the runtime raises for a program that has no form as bytes
            log.warning("program %s is not stored: %s", title(key), reason(error))

    def _places(self, key: Key) -> list[Stored]:
        places = list(self.baked.get(key, ()))
        if self.cache and (record := self.cache.record(key)):
            places.append(Stored(record, self.cache.folder))
        return [stored for stored in places if stored.path not in self._rejected]

    def _load_first(self, places: dict[Key, Stored]) -> dict[Key, jax.stages.Compiled]:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="programs") as pool:
            contents, faults = _outcomes(pool.map(_read, places.values()), places)
            if self.tries:
                faults |= self._trial_faults({key: places[key] for key in contents})
            sound = {key: content for key, content in contents.items() if key not in faults}
            programs, unloadable = _outcomes(pool.map(self._unpack, sound, sound.values()), sound)
        self._reject(places, faults | unloadable)
        return programs

    def _unpack(self, key: Key, content: bytes) -> jax.stages.Compiled | ProgramFault:
        began = time.perf_counter()
        try:
            program = unpack(content, devices())
        except ProgramFault as fault:
            return fault
        self.loaded[key] = time.perf_counter() - began
        return program

    def _trial_faults(self, places: dict[Key, Stored]) -> dict[Key, str]:
        """Why programs are not to be used: what is remembered, else what a trial says."""
        verdicts = {key: self._verdict(stored.record.blob) for key, stored in places.items()}
        untried = [key for key, verdict in verdicts.items() if verdict is None]
        faults = {key: verdict.fault for key, verdict in verdicts.items() if verdict and verdict.fault}
        if untried:
            began = time.perf_counter()
            outcomes = run_trials([places[key].path for key in untried])
            log.info("tried %d stored programs in %.1f s", len(untried), time.perf_counter() - began)
            for key, outcome in zip(untried, outcomes, strict=True):
                if fault := self._judge(places[key].record, outcome):
                    faults[key] = fault
        return faults

    def _judge(self, record: Record, outcome: Outcome) -> str | None:
        if outcome.untried:
            log.warning("program %s is used untried: %s", title(record.program), outcome.untried)
            return None
        fault = outcome.fault
        if fault is None and record.expected is not None:
            fault = compare(outcome.samples, record.expected)
        if self.cache and self._writable:
            try:
                self.cache.judge(record.blob, Verdict(driver=driver_version(), fault=fault))
            except OSError as error:
                self._cannot_write(error)
        return fault

    def _verdict(self, blob: str) -> Verdict | None:
        return self.cache.verdict(blob, driver_version()) if self.cache else None

    def _reject(self, places: dict[Key, Stored], faults: dict[Key, str]) -> None:
        by_reason = defaultdict[str, list[str]](list)
        for key, fault in faults.items():
            self.faults[key] = fault
            self._rejected.add(places[key].path)
            by_reason[f"{places[key].folder}: {fault}"].append(title(key))
        for text, titles in by_reason.items():
            log.warning("stored programs not used (%s): %s", ", ".join(titles), text)

    def _cannot_write(self, error: OSError) -> None:
        with self._lock:
            if self._writable and self.cache:
                log.warning("program cache %s: cannot be written (%s)", self.cache.folder, error.strerror)
            self._writable = False


def _read(stored: Stored) -> bytes | ProgramFault:
    try:
        return blobs.read_blob(stored.folder, stored.record)
    except ProgramFault as fault:
        return fault


def _outcomes[T](results: Iterable[T | ProgramFault], keys: Iterable[Key]) -> tuple[dict[Key, T], dict[Key, str]]:
    """Results and faults by key."""
    pairs = list(zip(keys, results, strict=True))
    good = {key: result for key, result in pairs if not isinstance(result, ProgramFault)}
    return good, {key: str(result) for key, result in pairs if isinstance(result, ProgramFault)}


def record_of(store: ProgramStore, key: Key, content: bytes, compile_s: float) -> Record:
    """The record of a program that was compiled for the store's machine and model."""
    return Record(
        program=key,
        machine=store.machine,
        fingerprint=store.fingerprint,
        device=str(store.device.device_kind),
        blob=blobs.digest_of(content),
        size_bytes=len(content),
        expected=None,
        compile_s=compile_s,
    )


def open_store(settings: Settings, manifest: Manifest, fingerprint: str) -> ProgramStore:
    """The store of a baked folder and of the cache that the settings name, for the default device."""
    device = default_device()
    machine = machine_of(device, settings.xla_flags)
    root = cache_folder(settings.program_cache, settings.volume_dir)
    return ProgramStore(
        machine,
        fingerprint,
        device,
        baked=_baked(settings.model_dir, manifest, machine, fingerprint, str(device.device_kind)),
        cache=None if root is None else Cache(root, machine, fingerprint),
        tries=not settings.trust_programs,
    )


def cache_folder(setting: str, volume: Path) -> Path | None:
    """The folder that a setting means: a path, "none", or "auto" for one on the network volume where there is one."""
    if setting == "auto":
        return volume / "worker-programs" if volume.is_dir() else None
    if setting == "none":
        return None
    try:
        return Path(setting).expanduser()
    except RuntimeError:
        log.warning("program cache %s: the user has no home", setting)
        return None


def _baked(
    model_dir: Path, manifest: Manifest, machine: Machine, fingerprint: str, device: str
) -> dict[Key, list[Stored]]:
    """Baked programs for this machine; those made for a card of just this name come first."""
    try:
        records = blobs.read_index(model_dir, manifest)
    except ProgramFault as fault:
        log.warning("baked programs not used: %s", fault)
        return {}
    ours = [record for record in records if record.machine == machine and record.fingerprint == fingerprint]
    if records and not ours:
        log.warning("baked programs not used: %s", _why_none(records, machine, fingerprint))
    found: dict[Key, list[Stored]] = {}
    for record in sorted(ours, key=lambda record: record.device != device):
        found.setdefault(record.program, []).append(Stored(record, model_dir / blobs.FOLDER))
    return found


def _why_none(records: tuple[Record, ...], machine: Machine, fingerprint: str) -> str:
    same_card = [record for record in records if record.machine.card == machine.card]
    if not same_card:
        return f"they are for {', '.join(sorted({record.device for record in records}))}; this is {machine.card}"
    same_model = [record for record in same_card if record.fingerprint == fingerprint]
    return machine.difference(same_model[0].machine) if same_model else "made from another model or version of the code"
