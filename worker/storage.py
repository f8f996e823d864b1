"""Where pictures go: a local folder, or into the answer itself as base64."""

import base64
from collections.abc import Callable
from pathlib import Path

from worker.outputs import CONTENT_TYPE, EXTENSION

Store = Callable[[str, int, bytes], str]
"""Takes job id, index and a file's bytes; returns what stands for the picture in the answer."""


def folder_store(folder: Path) -> Store:
    """Store into `folder/job-id/index.png`; a retried job overwrites its own files. The answer holds the path."""

    def store(job_id: str, index: int, data: bytes) -> str:
        # A job id comes from outside: only its own characters may name a folder.
        name = "".join(
            letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "_" for letter in job_id
        )
        path = folder / name[:100] / f"{index}.{EXTENSION}"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(data)
        partial.replace(path)
        return str(path)

    return store


def inline_store(_job_id: str, _index: int, data: bytes) -> str:
    """The picture as a data URL, as worker-sdxl returns it without a bucket."""
    return f"data:{CONTENT_TYPE};base64,{base64.b64encode(data).decode('ascii')}"
