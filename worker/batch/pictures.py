"""Where a batch's pictures are kept: in a folder here, or where the worker has put them."""

import base64
import binascii
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import requests

from worker.errors import BatchError, GenerationError
from worker.outputs import EXTENSIONS

FOLDER = "images"
_FETCH_TIMEOUT_S = 30
_FETCH_TRIES = 4
_OF_A_BUCKET = ("url", "key", "expires_at")


class Keep(Protocol):
    """Keeps a result's pictures under a request's name, and returns the result with their places.

    Raises GenerationError if they cannot be had, BatchError if none ever can.
    """

    def __call__(self, name: str, result: Mapping[str, Any]) -> dict[str, Any]: ...


def keep_in_bucket(name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """The worker has put them there."""
    if not all(picture.get("key") for picture in result["pictures"]):
        raise BatchError(f"{name}: the answer carries its pictures: the endpoint has no bucket; --out DIR keeps them")
    return dict(result)


def keep_in_folder(folder: Path, pause: Callable[[float], None] = time.sleep) -> Keep:
    """Save them as `folder/images/NAME-0.png`, each whole or not at all; what has been saved before is replaced."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)

    def keep(name: str, result: Mapping[str, Any]) -> dict[str, Any]:
        places = list[str]()
        for index, (image, picture) in enumerate(zip(result["images"], result["pictures"], strict=True)):
            data = _data(image) if image.startswith("data:") else _fetch(image, pause)
            if hashlib.sha256(data).hexdigest() != picture.get("sha256"):
                raise GenerationError("a picture came damaged: its digest is another")
            place = f"{FOLDER}/{name}-{index}.{_extension(picture)}"
            write_whole(folder / place, data)
            places.append(place)
        told = [{key: value for key, value in one.items() if key not in _OF_A_BUCKET} for one in result["pictures"]]
        return {**result, "images": places, "pictures": told}

    return keep


def write_whole(path: Path, data: bytes) -> None:
    """Put a file in place of an earlier one, whole after a crash and after a loss of power too."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def status_of(error: requests.HTTPError) -> int:
    """The HTTP status; 0 if there was none."""
    return 0 if error.response is None else error.response.status_code


def _extension(picture: Mapping[str, Any]) -> str:
    kind = str(picture.get("content_type", "")).removeprefix("image/")
    return next((extension for name, extension in EXTENSIONS.items() if name == kind), "png")


def _data(url: str) -> bytes:
    try:
        return base64.b64decode(url.partition(",")[2], validate=True)
    except binascii.Error:
        raise GenerationError("a picture came damaged: it is not base64") from None


def _fetch(url: str, pause: Callable[[float], None]) -> bytes:
    """A link is signed: it stays out of the error."""
    said = "it is no link"
    for attempt in range(_FETCH_TRIES if url.startswith(("https://", "http://")) else 0):
        if attempt:
            pause(2.0**attempt)
        try:
            reply = requests.get(url, timeout=_FETCH_TIMEOUT_S)
            reply.raise_for_status()
            return reply.content
        except requests.HTTPError as error:
            said = f"status {status_of(error)}"
        except requests.RequestException as error:
            said = type(error).__name__
    raise GenerationError(f"a picture could not be fetched: {said}")
