"""Image fields of a request: base64 text or a URL -> an RGB picture."""

import base64
import binascii
import time
import warnings
from io import BytesIO

from PIL import Image, ImageOps, UnidentifiedImageError
from runpod.serverless.utils import rp_ssrf

from worker.errors import InvalidRequest

MAX_BYTES = 32 * 1024 * 1024
MAX_PIXELS = 64 * 1024 * 1024
MAX_SECONDS = 30.0


def read_image(field: str, text: str) -> Image.Image:
    """Decode a job's picture: turned as its EXIF says, alpha on white, 8-bit RGB.

    Raises InvalidRequest naming the field. A URL is fetched with the SDK's protection against private addresses.
    """
    data = _fetch(field, text) if text.startswith(("http://", "https://")) else _decode(field, text)
    try:
        with warnings.catch_warnings():
            # The header is checked below, before any pixel is decoded, with a bound of our own.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(BytesIO(data))
            if image.width * image.height > MAX_PIXELS:
                raise InvalidRequest([f"{field}: {image.width}x{image.height} is more than {MAX_PIXELS} pixels"])
            return _rgb(ImageOps.exif_transpose(image))
    except (Image.DecompressionBombError, UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        reason = "too many pixels" if isinstance(error, Image.DecompressionBombError) else "not a readable picture"
        raise InvalidRequest([f"{field}: {reason}"]) from error


def _decode(field: str, text: str) -> bytes:
    payload = text.partition(",")[2] if text.startswith("data:") else text
    try:
        data = base64.b64decode("".join(payload.split()), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest([f"{field}: neither base64 nor an http(s) URL"]) from None
    if len(data) > MAX_BYTES:
        raise InvalidRequest([f"{field}: {len(data)} bytes, allowed are {MAX_BYTES}"])
    return data


def _fetch(field: str, url: str) -> bytes:
    headers = {"User-Agent": "worker-jax-diffusion", "Accept": "image/*"}
    deadline = time.monotonic() + MAX_SECONDS
    data = bytearray()
    try:
        response = rp_ssrf.safe_get(url, timeout=10, headers=headers, max_bytes=MAX_BYTES)
        with response:
            response.raise_for_status()
            for chunk in response.iter_content(64 * 1024):
                data += chunk
                if len(data) > MAX_BYTES:
                    raise InvalidRequest([f"{field}: more than {MAX_BYTES} bytes"])
                if time.monotonic() > deadline:
                    raise InvalidRequest([f"{field}: not there after {MAX_SECONDS:.0f} s"])
    except rp_ssrf.SSRFError as error:
        raise InvalidRequest([f"{field}: refused: only public http(s) addresses, and {MAX_BYTES} bytes"]) from error
    except (OSError, ValueError) as error:
        # The error's text may quote the URL, which may carry a secret.
        raise InvalidRequest([f"{field}: could not be fetched ({type(error).__name__})"]) from error
    return bytes(data)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        # Pillow clips 16-bit grey instead of scaling it.
        image = image.convert("F").point(lambda level: level / 257).convert("L")
    if "A" in image.getbands() or "transparency" in image.info:
        layered = image.convert("RGBA")
        image = Image.new("RGBA", layered.size, "white")
        image.alpha_composite(layered)
    return image.convert("RGB")
