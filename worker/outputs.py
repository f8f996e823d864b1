"""8-bit pictures -> PNG, JPEG or WebP files that carry how they were made."""

import base64
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

OutputFormat = Literal["png", "jpeg", "webp"]

EXTENSIONS: Mapping[OutputFormat, str] = {"png": "png", "jpeg": "jpg", "webp": "webp"}
"""File names' ends, without the dot."""
_EXIF_IFD, _USER_COMMENT = 0x8769, 0x9286
# A TIFF header, and two directories of one entry each.
_HEADER_BYTES, _DIRECTORY_BYTES = 8, 18
_EXIF_OFFSET = _HEADER_BYTES + _DIRECTORY_BYTES
_COMMENT_OFFSET = _EXIF_OFFSET + _DIRECTORY_BYTES
# A JPEG segment ends at 65,533 bytes, the header of the EXIF block included.
_JPEG_COMMENT_MAX = 65_000


@dataclass(frozen=True)
class PictureFile:
    """A picture as it is stored; `extension` is without a dot."""

    data: bytes = field(repr=False)
    content_type: str
    extension: str


def encode_picture(
    pixels: NDArray[np.uint8], output_format: OutputFormat, quality: int, parameters: str | None
) -> PictureFile:
    """RGB [H, W, 3] -> a file; the same arguments give the same bytes.

    `quality` (1 to 100) is that of JPEG and WebP. `parameters` is carried where AUTOMATIC1111's web UI puts it: in a
    PNG's `parameters` text, in the EXIF UserComment of the others. A text too long for a JPEG is left out.
    """
    image = Image.fromarray(pixels)
    buffer = BytesIO()
    match output_format:
        case "png":
            chunks = PngInfo()
            if parameters is not None:
                chunks.add_text("parameters", parameters)
            image.save(buffer, "PNG", compress_level=6, pnginfo=chunks)
        case "jpeg":
            exif = _exif(parameters, _JPEG_COMMENT_MAX)
            # Colour at full resolution where quality matters more than size.
            subsampling = "4:4:4" if quality >= 90 else "4:2:0"
            image.save(buffer, "JPEG", quality=quality, subsampling=subsampling, optimize=True, exif=exif)
        case "webp":
            image.save(buffer, "WEBP", quality=quality, method=4, exif=_exif(parameters))
    return PictureFile(buffer.getvalue(), f"image/{output_format}", EXTENSIONS[output_format])


def data_url(file: PictureFile) -> str:
    """The whole file in a URL."""
    return f"data:{file.content_type};base64,{base64.b64encode(file.data).decode('ascii')}"


def parameters_text(prompt: str, negative_prompt: str | None, facts: Mapping[str, Any]) -> str:
    """How a picture was made, in the form that AUTOMATIC1111's web UI writes and its users' tools read.

    `facts` in its order makes the last line, such as `Steps: 20, Sampler: Euler a, Seed: 7`; what is None is left out.
    """
    lines = [prompt]
    if negative_prompt:
        lines.append(f"Negative prompt: {negative_prompt}")
    lines.append(", ".join(f"{name}: {_quoted(str(value))}" for name, value in facts.items() if value is not None))
    return "\n".join(lines)


def _quoted(value: str) -> str:
    # The line is read by splitting at commas and colons; a value that has one stands as a JSON string.
    return json.dumps(value, ensure_ascii=False) if any(mark in value for mark in ",:\n") else value


def _exif(parameters: str | None, size_max: int | None = None) -> bytes:
    if parameters is None:
        return b""
    # EXIF 2.32, table 9: an 8-byte character code, then the text; big-endian is what readers expect of UNICODE.
    comment = b"UNICODE\0" + parameters.encode("utf-16-be")
    if size_max is not None and len(comment) > size_max:
        return b""
    # Pillow would write the comment as plain bytes (type 1), which piexif does not read: it is of type 7, undefined.
    first = struct.pack(">HHHIII", 1, _EXIF_IFD, 4, 1, _EXIF_OFFSET, 0)
    second = struct.pack(">HHHIII", 1, _USER_COMMENT, 7, len(comment), _COMMENT_OFFSET, 0)
    return b"Exif\0\0" + b"MM\0*" + struct.pack(">I", _HEADER_BYTES) + first + second + comment
