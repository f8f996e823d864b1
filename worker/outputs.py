"""8-bit pictures -> files."""

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CONTENT_TYPE = "image/png"
EXTENSION = "png"


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """RGB [H, W, 3] -> a PNG file."""
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()
