"""Fetch and convert in one: from a repository, a folder or a toy's name to a baked folder."""

import logging
import re
import shutil
import tempfile
from pathlib import Path

from builder.convert import convert, existing, is_bake_of, occupied
from builder.fetch import Hub, fetch, split_source
from builder.toy import write_toy
from worker.weights.manifest import Dtype

log = logging.getLogger(__name__)

TOY = "toy:"
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Room for the converted weights beside the download, as a share of it: fp16 files double in float32.
_CONVERTED = {"bfloat16": 1.0, "float32": 2.0, "float8_e4m3": 0.7}


def bake(source: str, out: Path, dtype: Dtype, *, force: bool, hub: Hub) -> None:
    """Fetch a repository, unless `source` is a folder or a toy, and convert it.

    See `fetch`, `write_toy` and `convert` for the errors.
    """
    out = out.resolve()
    if Path(source).is_dir():
        convert(Path(source), out, dtype, force=force)
        return
    if source.startswith(TOY):
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / source.replace(":", "-")
            write_toy(source.removeprefix(TOY), made)
            convert(made, out, dtype, force=force)
        return
    repository, revision = split_source(source)
    baked = existing(out, force=force)

    def is_baked(commit: str | None) -> bool:
        return baked is not None and is_bake_of(baked, repository, commit, dtype)

    if revision and _COMMIT.fullmatch(revision) and is_baked(revision):
        log.info("%s: baked already", out)
        return
    info = hub.resolve(repository, revision)
    if is_baked(info.sha):
        log.info("%s: baked already", out)
        return
    if baked and not force:
        raise occupied(out, baked)
    fetched = out.with_name(f"{out.name}.source")
    fetch(hub, info, fetched, reserve=_CONVERTED[dtype])
    convert(fetched, out, dtype, force=force)
    shutil.rmtree(fetched)
