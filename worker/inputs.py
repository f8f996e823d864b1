"""Image fields of a request: base64 text or a URL -> an RGB picture."""

import base64
import binascii
import threading
import time
from collections.abc import Callable
from io import BytesIO

import requests
from PIL import Image, ImageOps
from runpod.serverless.utils import rp_ssrf
from urllib3.exceptions import HTTPError as TransferError

from worker.errors import InvalidRequest

MAX_BYTES = 32 * 1024 * 1024
MAX_PIXELS = 64 * 1024 * 1024
MAX_SECONDS = 30.0
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")

# Pillow's own bound is a warning up to twice its size; ours is checked before any pixel is decoded.
Image.MAX_IMAGE_PIXELS = None

# A picture takes hundreds of megabytes while it is decoded, however small its file.
_decoding = threading.BoundedSemaphore(2)
_CHUNK = 64 * 1024
# Some services refuse a request without the first two; the third keeps the size on the wire the size that is counted.
_HEADERS = {"User-Agent": "worker-jax-diffusion", "Accept": "image/*,*/*;q=0.5", "Accept-Encoding": "identity"}


def read_image(field: str, text: str) -> Image.Image:
    """Decode a job's picture: the first frame, turned as its EXIF says, alpha on white, 8-bit RGB.

    Raises InvalidRequest naming the field. A URL is fetched with the SDK's protection against private addresses.
    """
    text = text.strip()
    data = _fetch(field, text) if text[:8].lower().startswith(("http://", "https://")) else _decode(field, text)
    try:
        with _decoding:
            image = Image.open(BytesIO(data), formats=FORMATS)
            if image.width * image.height > MAX_PIXELS:
                raise InvalidRequest([f"{field}: {image.width}x{image.height} is more than {MAX_PIXELS} pixels"])
            if image.mode == "F":
                raise InvalidRequest([f"{field}: a picture of floating-point numbers; 8 or 16 bits are needed"])
            ImageOps.exif_transpose(image, in_place=True)
            return _rgb(image)
    except InvalidRequest:
        raise
    except Exception as error:
        # On damaged files Pillow's decoders also raise errors of struct, zlib and plain indexing.
        raise InvalidRequest([f"{field}: not a whole picture in one of the formats {', '.join(FORMATS)}"]) from error


def _decode(field: str, text: str) -> bytes:
    payload = text.partition(",")[2] if text[:5].lower() == "data:" else text
    payload = "".join(payload.split())
    if len(payload) // 4 * 3 > MAX_BYTES + 2:
        raise InvalidRequest([f"{field}: {len(payload) // 4 * 3} bytes, allowed are {MAX_BYTES}"])
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest([f"{field}: neither base64 nor an http(s) URL"]) from None


def _fetch(field: str, url: str) -> bytes:
    try:
        return _within(MAX_SECONDS, lambda deadline: _download(url, deadline))
    except rp_ssrf.SSRFError as error:
        raise InvalidRequest([f"{field}: refused: only public http(s) addresses are fetched"]) from error
    except _Refused as error:
        raise InvalidRequest([f"{field}: {error}"]) from None
    except (OSError, ValueError, TransferError) as error:
        # The error's text may quote the URL, which may carry a secret.
        raise InvalidRequest([f"{field}: could not be fetched ({type(error).__name__})"]) from error


class _Refused(Exception):
    """Why a download is not used."""


def _within(seconds: float, work: Callable[[float], bytes]) -> bytes:
    """Run `work(deadline)` for at most `seconds`.

    A server that sends its headers a byte at a time holds a socket for as long as it likes, whatever the timeouts:
    such a thread is left to itself.
    """
    results: list[bytes] = []
    errors: list[Exception] = []
    deadline = time.monotonic() + seconds

    def target() -> None:
        try:
            results.append(work(deadline))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=target, name="fetch", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise _Refused(f"not there after {seconds:g} s")
    return results[0]


def _download(url: str, deadline: float) -> bytes:
    data = bytearray()
    # The size is counted below: what the SDK refuses is then an address.
    response: requests.Response = rp_ssrf.safe_get(url, timeout=10, headers=_HEADERS, max_bytes=2**62)
    with response:
        if response.status_code != 200:
            raise _Refused(f"its server answers HTTP {response.status_code}")
        declared = response.headers.get("Content-Length", "")
        if declared.isdecimal() and int(declared) > MAX_BYTES:
            raise _Refused(f"{declared} bytes, allowed are {MAX_BYTES}")
        # `read1` returns what has come; `iter_content` waits for whole chunks and would not see the deadline.
        while chunk := response.raw.read1(_CHUNK, decode_content=True):
            data += chunk
            if len(data) > MAX_BYTES:
                raise _Refused(f"more bytes than the {MAX_BYTES} that are allowed")
            if time.monotonic() > deadline:
                break
    return bytes(data)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow clips 16-bit grey instead of scaling it.
        image = image.convert("F").point(lambda level: level / 257).convert("L")
    if "A" in image.getbands() or "transparency" in image.info:
        layered = image.convert("RGBA")
        image = Image.new("RGBA", layered.size, "white")
        image.alpha_composite(layered)
    return image if image.mode == "RGB" else image.convert("RGB")
