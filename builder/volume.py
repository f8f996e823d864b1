"""A model on the network volume: baked there by the worker that comes first, served from there by all.

    VOLUME/baked-models/NAME/              the baked folder
    VOLUME/baked-models/.NAME.queue        held while it is baked; the system lets go of it when its holder dies
    VOLUME/huggingface-cache/hub/          Runpod's cache of published models: read, where it has the model

What a bake that was killed has finished is taken up by the next one. A volume that is absent, or cannot be written, is
replaced by the container's own disk.
"""

import contextlib
import fcntl
import logging
import re
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub.file_download import repo_folder_name

from builder.bake import TOY, bake
from builder.convert import CONVERTER_VERSION, convert, existing, licence_in
from builder.fetch import Hub, Origin, split_source
from builder.published import CARD
from worker.errors import BuildError, CheckpointError
from worker.weights.manifest import Dtype

log = logging.getLogger(__name__)

_MODELS = "baked-models"
_HUB_CACHE = Path("huggingface-cache") / "hub"


@dataclass(frozen=True)
class Model:
    """A published model as an operator names it; `revision` is empty for the main branch, folders and toys."""

    source: str
    revision: str
    dtype: Dtype

    @property
    def folder(self) -> str:
        """Name of its baked folder: another one for each revision, dtype and version of the converter."""
        named = f"{self.source}@{self.revision}" if self.revision else self.source
        return f"{re.sub(r'[^\w.@-]+', '--', named)}.{self.dtype}.v{CONVERTER_VERSION}"


def model_on_volume(model: Model, volume: Path, hub: Hub) -> Path:
    """The baked folder of a model, baked now if it is not there yet; waits while another worker bakes it.

    Raises BuildError and CheckpointError as `bake` does.
    """
    ready = volume / _MODELS / model.folder
    try:
        if _is_baked(ready):
            return ready
        out = _place(volume) / model.folder
        with _alone(out.with_name(f".{out.name}.queue")):
            if not _is_baked(out):
                began = time.monotonic()
                log.info("%s: baking to %s", model.source, out)
                _bake(model, out, volume, hub)
                log.info("%s: baked in %.0f s", model.source, time.monotonic() - began)
    except OSError as error:
        raise BuildError(f"{model.source}: cannot be baked: {error}") from error
    return out


def find_snapshot(hub_cache: Path, repository: str, revision: str) -> Path | None:
    """Folder of a repository in a cache of the hub's client, named by its commit; None if that revision is not there.

    Without a revision it is that of the main branch, or the only one where the cache does not name branches.
    """
    folder = hub_cache / repo_folder_name(repo_id=repository, repo_type="model")
    named = folder / "refs" / (revision or "main")
    commit = named.read_text("utf-8").strip() if named.is_file() else revision
    snapshots = [path for path in folder.glob("snapshots/*") if path.is_dir()]
    found = [path for path in snapshots if path.name == commit] if commit else snapshots
    return found[0] if len(found) == 1 else None


def _is_baked(out: Path) -> bool:
    # What is damaged counts as absent, and is replaced.
    return existing(out, force=True) is not None


def _bake(model: Model, out: Path, volume: Path, hub: Hub) -> None:
    if not Path(model.source).is_dir() and not model.source.startswith(TOY):
        repository, _ = split_source(model.source)
        snapshot = find_snapshot(volume / _HUB_CACHE, repository, model.revision)
        if snapshot is not None and _bake_snapshot(model, out, snapshot, repository):
            return
    named = f"{model.source}@{model.revision}" if model.revision else model.source
    bake(named, out, model.dtype, force=True, hub=hub)


def _bake_snapshot(model: Model, out: Path, snapshot: Path, repository: str) -> bool:
    log.info("%s: from Runpod's cache, %s", repository, snapshot)
    origin = Origin(repository, snapshot.name, licence_in(snapshot / CARD), {})
    try:
        convert(snapshot, out, model.dtype, force=True, origin=origin)
    except CheckpointError as error:
        log.warning("Runpod's cache is not used: %s", error)
        return False
    return True


def _place(volume: Path) -> Path:
    """Where models are kept: the volume, or the container's disk if the volume is not to be written."""
    folder = volume / _MODELS
    try:
        # Not its parents: a volume that is not mounted is not to be made on the container's disk.
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        folder = Path(tempfile.gettempdir()) / _MODELS
        folder.mkdir(exist_ok=True)
        log.warning(
            "%s: no volume that can be written (%s); the model is baked to %s, and again at every start",
            volume,
            error.strerror,
            folder,
        )
    return folder


@contextlib.contextmanager
def _alone(lock: Path) -> Generator[None]:
    """Hold a lock file, which stays: removed, it would be another file for the next holder than for those who wait."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("%s: another worker is baking; waiting for it", lock)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
