"""Where pictures go: an S3 bucket, a local folder, or into the answer itself as base64."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from worker.bucket import Bucket, bucket_of_job, bucket_of_settings
from worker.errors import GenerationError
from worker.outputs import PictureFile, data_url
from worker.places import Found, Place, Store, file_name
from worker.settings import Settings


def operator_store(settings: Settings, *, local: bool) -> Store:
    """The bucket if one is set, else in a local run a folder, else the answer; raises SettingsError."""
    if bucket := bucket_of_settings(settings):
        return _bucket_store(bucket)
    return folder_store(settings.output_dir) if local else inline_store


def job_store(config: object) -> Store:
    """The store of a job's own `s3Config`; raises InvalidRequest."""
    return _bucket_store(bucket_of_job(config))


def _bucket_store(bucket: Bucket) -> Store:
    # A worker without a bucket does not wait for boto3 at its start.
    from worker.s3 import s3_store

    return s3_store(bucket)


def folder_store(folder: Path) -> Store:
    """Store into `folder/job-id/name.extension`; the place is the path. A JSON file beside it has the facts, if any."""

    def put(job_id: str, name: str, file: PictureFile, facts: Mapping[str, str]) -> Place:
        path = folder / file_name(job_id, name, file.extension)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if facts:
                # The digest tells whether picture and facts belong together, wherever a run was cut off.
                digest = hashlib.sha256(file.data).hexdigest()
                described = {"sha256": digest, "content_type": file.content_type, "facts": dict(facts)}
                _replace(_facts_file(path), json.dumps(described).encode("ascii"))
            _replace(path, file.data)
        except OSError as error:
            raise GenerationError(f"picture {name}: cannot be written to {path}: {error.strerror}") from None
        return Place(str(path))

    def find(job_id: str, name: str, extension: str) -> Found | None:
        path = folder / file_name(job_id, name, extension)
        try:
            described = json.loads(_facts_file(path).read_bytes())
            data = path.read_bytes()
        except (OSError, ValueError):
            return None
        if hashlib.sha256(data).hexdigest() != described["sha256"]:
            return None
        return Found(Place(str(path)), described["facts"], len(data), described["content_type"])

    return Store(put, find)


def _put_inline(_job_id: str, _name: str, file: PictureFile, _facts: Mapping[str, str]) -> Place:
    return Place(data_url(file))


def _find_nothing(_job_id: str, _name: str, _extension: str) -> None:
    return None


inline_store = Store(_put_inline, _find_nothing)
"""The picture as a data URL, as worker-sdxl returns it without a bucket; nothing is kept."""


def _facts_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _replace(path: Path, data: bytes) -> None:
    # Another run may write the same picture at the same time.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
