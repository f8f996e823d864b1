"""A repository of the Hugging Face hub, at one commit, into a folder: the needed files alone."""

import contextlib
import json
import logging
import os
import re
import shutil
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage] -- of the client's own HTTP library, which changed
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import ModelInfo

from builder.published import INDEX, check_layout, family_of, needed_files, read_json
from builder.staging import Staging, check_disk, disk_errors, write_durably
from worker.errors import BuildError, CheckpointError

log = logging.getLogger(__name__)

ORIGIN = "origin.json"
_ATTEMPTS = 5
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Origin:
    """Where a folder came from, kept in it as `origin.json`; `sha256` has the files whose digest the hub states."""

    repository: str
    revision: str
    licence: str | None
    sha256: dict[str, str]


def split_source(source: str) -> tuple[str, str | None]:
    """`owner/name[@revision]` -> repository and revision; raises BuildError if it is neither that nor a folder."""
    repository, _, revision = source.partition("@")
    if not _REPOSITORY.fullmatch(repository):
        if Path(source).is_file():
            raise BuildError(f"{source}: single files are not read; save it with diffusers' `save_pretrained`")
        raise BuildError(f"{source}: no such folder, and not a repository (owner/name or owner/name@revision)")
    return repository, revision or None


def read_origin(folder: Path) -> Origin | None:
    """What `fetch` noted about a folder, or None if the folder is not of its making."""
    if not (folder / ORIGIN).is_file():
        return None
    try:
        return Origin(**read_json(folder / ORIGIN))
    except TypeError:
        raise CheckpointError(f"{folder / ORIGIN}: not as `fetch` writes it; fetch again") from None


class Hub:
    """The hub at `endpoint`, by default the one of HF_ENDPOINT; the token is that of HF_TOKEN."""

    def __init__(self, endpoint: str | None = None):
        self._api = HfApi(endpoint=endpoint)

    def resolve(self, repository: str, revision: str | None) -> ModelInfo:
        """The files of a repository at the commit that a revision (by default the main branch) stands for now."""
        with _explained(repository, revision):
            return self._api.model_info(repository, revision=revision, files_metadata=True, timeout=30)

    def download(self, repository: str, commit: str, name: str, folder: Path) -> None:
        """Download one file; a broken connection is taken up again where it broke."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with _explained(repository, commit, name), disk_errors(folder):
                    self._api.hf_hub_download(repository, name, revision=commit, local_dir=folder)
                return
            except _Broken as error:
                if attempt == _ATTEMPTS:
                    raise BuildError(f"{error}; run the same command to go on") from error
                log.warning("%s; attempt %d of %d", error, attempt + 1, _ATTEMPTS)


def fetch(hub: Hub, info: ModelInfo, folder: Path, *, reserve: float = 0.0) -> None:
    """Download what a bake needs of a resolved repository into `folder`, which is whole or absent.

    A folder that holds the same commit is left as it is; finished files of a run that ended early are kept.
    `reserve` is the room to leave on the disk besides, as a share of the download. Raises BuildError for access,
    network and disk, and CheckpointError for a repository that cannot be baked, before its weights are downloaded.
    """
    repository, commit = info.id, str(info.sha)
    if folder.exists() and any(folder.iterdir()):
        origin = read_origin(folder)
        if origin and (origin.repository, origin.revision) == (repository, commit):
            log.info("%s is fetched already", repository)
            return
        raise BuildError(f"{folder}: holds something else; choose another folder or remove it")
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    check_layout(repository, siblings)
    staging = Staging(folder, f"fetch {repository}@{commit}")
    hub.download(repository, commit, INDEX, staging.folder)
    family, _ = family_of(read_json(staging.folder / INDEX))
    needed = needed_files(family, siblings)
    size = sum(siblings[name].size or 0 for name in needed)
    present = sum(path.stat().st_size for path in staging.folder.rglob("*") if path.is_file())
    check_disk(folder, int(max(0, size - present) + size * reserve), "the download")
    log.info("%s at %s: %d files, %.2f GB", repository, commit, len(needed), size / 1e9)
    for name in needed:
        hub.download(repository, commit, name, staging.folder)
    digests = {name: lfs.sha256 for name in needed if (lfs := siblings[name].lfs)}
    origin = Origin(repository, commit, _licence(info), digests)
    write_durably(staging.folder / ORIGIN, json.dumps(asdict(origin), indent=2).encode())
    _remove_client_files(staging.folder)
    staging.publish()


def _remove_client_files(folder: Path) -> None:
    shutil.rmtree(folder / ".cache", ignore_errors=True)


def _licence(info: ModelInfo) -> str | None:
    return licence_of(info.card_data.to_dict()) if info.card_data else None


def licence_of(card: dict[str, Any]) -> str | None:
    """The licence that a model card states: its name where the kind is only "other"."""
    licence = card.get("license")
    return card.get("license_name", licence) if licence == "other" else licence


class _Broken(BuildError):
    """The connection failed: worth another attempt."""


@contextlib.contextmanager
def _explained(repository: str, revision: str | None, name: str | None = None) -> Generator[None]:
    at = f"{repository}@{revision}" if revision else repository
    subject = f"{at}: {name}" if name else at
    token = "the token in HF_TOKEN has no access" if os.environ.get("HF_TOKEN") else "HF_TOKEN is not set"
    try:
        yield
    except GatedRepoError:
        raise BuildError(f"{at}: gated: accept its licence on the hub and set HF_TOKEN ({token})") from None
    except RevisionNotFoundError:
        raise BuildError(f"{at}: the repository has no such revision") from None
    except RepositoryNotFoundError:
        raise BuildError(f"{at}: no such repository, or a private one ({token})") from None
    except OfflineModeIsEnabled:
        raise BuildError(f"{subject}: not reached, HF_HUB_OFFLINE is set") from None
    except HFValidationError as error:
        raise BuildError(f"{at}: {error}") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        problem = f"{subject}: the hub answered {status}"
        raise (_Broken(problem) if status >= 500 else BuildError(problem)) from error
    except HTTPError as error:
        raise _Broken(f"{subject}: the connection failed ({error or type(error).__name__})") from error
    except EntryNotFoundError as error:
        raise _Broken(f"{subject}: the connection failed ({error.__cause__ or error})") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise _Broken(f"{subject}: {str(error).splitlines()[0]}") from error  # the size is not the stated one
