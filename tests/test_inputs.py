"""Pictures of a job, as base64 or behind a URL: what is shown is what the model gets, or one clear error."""

import base64
import struct
import threading
import time
import tracemalloc
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image, ImageCms

from tests.jobs import encode_picture, photograph
from worker import inputs
from worker.errors import InvalidRequest
from worker.inputs import read_image

RED, GREEN, WHITE = (255, 0, 0), (0, 255, 0), (255, 255, 255)
PHOTO = photograph(24, 16)


def encoded(image: Image.Image, file_type: str = "PNG", **options) -> str:
    buffer = BytesIO()
    image.save(buffer, file_type, **options)
    return base64.b64encode(buffer.getvalue()).decode()


def problem(text: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_image("image", text)
    (line,) = caught.value.problems
    assert line.startswith("image: ")
    return line


def same(found: Image.Image, expected: Image.Image, tolerance: int = 0) -> None:
    assert found.mode == "RGB"
    assert found.size == expected.size
    assert np.abs(np.asarray(found).astype(int) - np.asarray(expected).astype(int)).max() <= tolerance


# Text.


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,", "data:image/jpeg;base64,", "DATA:image/webp;base64,"])
def test_a_data_urls_prefix_changes_nothing(prefix):
    same(read_image("image", prefix + encode_picture(PHOTO)), PHOTO)


def test_line_breaks_within_base64_are_ignored():
    text = encode_picture(PHOTO)
    same(read_image("image", "\n " + "\r\n".join(text[start : start + 76] for start in range(0, len(text), 76))), PHOTO)


@pytest.mark.parametrize(
    "text", ["not base64!", "AAA", "file:///etc/passwd", "ftp://example.org/a.png", "data:image/png,%89PNG", "ä"]
)
def test_other_text_is_refused(text):
    assert "neither base64 nor an http(s) URL" in problem(text)


@pytest.mark.parametrize("text", ["", "data:image/png;base64,", "AAAA", base64.b64encode(b"<svg></svg>").decode()])
def test_what_is_no_picture_is_refused(text):
    assert "not a whole picture" in problem(text)


def test_a_text_above_the_cap_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(inputs, "MAX_BYTES", 999)
    assert len(base64.b64decode(problem_text := "A" * 1332)) == 999
    assert "not a whole picture" in problem(problem_text)
    assert "allowed are 999" in problem("A" * 1340)


# Files.


@pytest.mark.parametrize(
    ("file_type", "options", "tolerance"),
    [
        ("PNG", {}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("BMP", {}, 0),
        ("TIFF", {}, 0),
        ("JPEG", {"quality": 100, "subsampling": 0}, 4),
        ("AVIF", {"quality": 100, "subsampling": "4:4:4"}, 6),
    ],
)
def test_every_format_gives_its_pixels(file_type, options, tolerance):
    same(read_image("image", encoded(PHOTO, file_type, **options)), PHOTO, tolerance)


@pytest.mark.parametrize("file_type", ["PPM", "PDF", "EPS", "ICO", "TGA"])
def test_other_formats_are_refused(file_type):
    assert "PNG, JPEG, WEBP" in problem(encoded(PHOTO, file_type))


# Where the pixel that a viewer shows in the top left corner of 4x2 is stored: (column, row) of the file.
STORED = {1: (0, 0), 2: (3, 0), 3: (3, 1), 4: (0, 1), 5: (0, 0), 6: (0, 3), 7: (1, 3), 8: (1, 0)}


@pytest.mark.parametrize("orientation", STORED)
def test_a_picture_is_turned_as_a_viewer_shows_it(orientation):
    stored = Image.new("RGB", (4, 2) if orientation < 5 else (2, 4), GREEN)
    stored.putpixel(STORED[orientation], RED)
    exif = Image.Exif()
    exif[0x0112] = orientation
    expected = Image.new("RGB", (4, 2), GREEN)
    expected.putpixel((0, 0), RED)
    same(read_image("image", encoded(stored, exif=exif)), expected)


def half_transparent(mode: str) -> Image.Image:
    image = Image.new("RGBA", (4, 2), (*RED, 255))
    image.paste((0, 0, 0, 0), (2, 0, 4, 2))
    if mode == "LA":
        return image.convert("LA")
    if mode == "P":
        palette = Image.new("P", (4, 2), 0)
        palette.putpalette([*RED, 0, 0, 0])
        palette.paste(1, (2, 0, 4, 2))
        palette.info["transparency"] = 1
        return palette
    if mode == "RGB":
        keyed = image.convert("RGB")
        keyed.info["transparency"] = (0, 0, 0)
        return keyed
    return image


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB"])
def test_what_is_transparent_becomes_white(mode):
    image = half_transparent(mode)
    options = {"transparency": image.info["transparency"]} if "transparency" in image.info else {}
    found = read_image("image", encoded(image, **options))
    shown = (76, 76, 76) if mode == "LA" else RED
    assert [found.getpixel((column, 0)) for column in range(4)] == [shown, shown, WHITE, WHITE]


def test_half_a_transparency_is_half_white():
    found = read_image("image", encoded(Image.new("RGBA", (2, 2), (0, 0, 0, 128))))
    assert found.getpixel((0, 0)) == (127, 127, 127)


def test_sixteen_bits_of_grey_are_scaled():
    levels = np.linspace(0, 65_535, 256).astype(np.uint16).reshape(16, 16)
    found = np.asarray(read_image("image", encoded(Image.fromarray(levels))))
    assert np.array_equal(found[..., 0].reshape(-1), np.arange(256))


def test_floating_point_is_refused():
    image = Image.fromarray(np.linspace(0, 1, 4, dtype=np.float32).reshape(2, 2))
    assert "8 or 16 bits" in problem(encoded(image, "TIFF"))


def png(width: int, height: int, rows: bytes, depth: int, colour: int) -> str:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()


def test_sixteen_bits_of_colour_are_scaled():
    found = read_image("image", png(1, 1, b"\0" + struct.pack(">HHH", 65_535, 257 * 100, 0), 16, 2))
    assert found.getpixel((0, 0)) == (255, 100, 0)


@pytest.mark.parametrize("mode", ["1", "L"])
def test_grey_and_bilevel_pictures_become_colour(mode):
    image = photograph(24, 16).convert(mode)
    same(read_image("image", encoded(image)), image.convert("RGB"))


def test_cmyk_has_its_colours():
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    same(read_image("image", encoded(image, "JPEG", quality=100)), Image.new("RGB", (16, 16), RED), 2)


def test_a_colour_profile_is_no_obstacle():
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    same(read_image("image", encoded(PHOTO, icc_profile=profile)), PHOTO)


@pytest.mark.parametrize("file_type", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_taken(file_type):
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN)]
    options = {"lossless": True} if file_type == "WEBP" else {}
    text = encoded(frames[0], file_type, save_all=True, append_images=frames[1:], **options)
    same(read_image("image", text), frames[0])


@pytest.mark.parametrize("file_type", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "AVIF"])
def test_a_truncated_file_is_refused(file_type):
    whole = base64.b64decode(encoded(photograph(64, 64), file_type))
    for size in (len(whole) // 10, len(whole) // 2, len(whole) * 9 // 10):
        assert "not a whole picture" in problem(base64.b64encode(whole[:size]).decode())


@pytest.mark.parametrize("side", [8_193, 19_000, 60_000])
def test_a_bomb_is_refused_from_its_header(side):
    text = png(side, side, bytes(1 + side // 8 + 1) * 100, 1, 0)
    assert len(text) < 100_000
    tracemalloc.start()
    assert f"{side}x{side} is more than" in problem(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


# URLs.


class Pages(BaseHTTPRequestHandler):
    """What a server can do to who fetches a picture, by path."""

    picture = base64.b64decode(encode_picture(PHOTO))
    requests: list[str]

    def do_GET(self) -> None:
        self.server.requests.append(self.path)  # type: ignore[attr-defined]
        getattr(self, urlsplit(self.path).path.strip("/").replace("-", "_"))()

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content_length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def good(self) -> None:
        self.answer(200, self.picture)

    def needs_headers(self) -> None:
        agent, accept = self.headers.get("User-Agent", ""), self.headers.get("Accept", "")
        polite = agent.startswith("worker-jax-diffusion") and "image/" in accept
        self.answer(200 if polite else 403, self.picture)

    def moved(self) -> None:
        self.answer(302, location="/good")

    def moved_to_metadata(self) -> None:
        self.answer(302, location="http://169.254.169.254/latest/meta-data")

    def moved_to_file(self) -> None:
        self.answer(302, location="file:///etc/passwd")

    def moved_around(self) -> None:
        self.answer(302, location="/moved-around")

    def absent(self) -> None:
        self.answer(404, b"nothing here")

    def broken(self) -> None:
        self.answer(500)

    def page(self) -> None:
        self.answer(200, b"<html>hello</html>")

    def says_too_much(self) -> None:
        self.answer(200, b"", content_length=str(2**40))

    def cut_off(self) -> None:
        self.answer(200, self.picture[:100], content_length=str(len(self.picture)))

    def endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.dribble(bytes(1_000_000), 0)

    def slow_body(self) -> None:
        self.answer(200, b"", content_length=str(2**20))
        self.dribble(b"x", 0.05)

    def slow_headers(self) -> None:
        self.dribble(b"x", 0.05)

    def dribble(self, piece: bytes, pause: float) -> None:
        deadline = time.monotonic() + 3
        try:
            while time.monotonic() < deadline:
                self.wfile.write(piece)
                time.sleep(pause)
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pages(monkeypatch):
    """A server on loopback, whose address is allowed for once."""
    monkeypatch.setenv("RUNPOD_ALLOW_PRIVATE_DOWNLOAD_URLS", "true")
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        server.daemon_threads = True
        server.requests = []
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def at(server: ThreadingHTTPServer, page: str) -> str:
    return f"http://127.0.0.1:{server.server_port}/{page}"


@pytest.mark.parametrize("page", ["good", "needs-headers", "moved", "good?token=a%20b"])
def test_a_picture_behind_a_url(pages, page):
    same(read_image("image", at(pages, page)), PHOTO)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("absent", "HTTP 404"),
        ("broken", "HTTP 500"),
        ("page", "not a whole picture"),
        ("cut-off", "could not be fetched"),
        ("moved-to-file", "refused"),
        ("moved-around", "refused"),
        ("says-too-much", f"{2**40} bytes"),
    ],
)
def test_what_a_url_does_not_give_is_said(pages, page, words):
    assert words in problem(at(pages, f"{page}?token=secret"))
    if page != "moved-around":
        assert len(pages.requests) == 1, "a failed fetch is not repeated"


def test_an_error_does_not_quote_the_url(pages):
    assert "secret" not in problem(at(pages, "absent?token=secret"))
    assert "secret" not in problem("http://127.0.0.1:9/a.png?token=secret")


def test_an_endless_body_ends_at_the_cap(pages, monkeypatch):
    monkeypatch.setattr(inputs, "MAX_BYTES", 3_000_000)
    began = time.monotonic()
    assert "more bytes than the 3000000" in problem(at(pages, "endless"))
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("page", ["slow-body", "slow-headers"])
def test_slowness_ends_at_the_time_limit(pages, page, monkeypatch):
    monkeypatch.setattr(inputs, "MAX_SECONDS", 0.5)
    began = time.monotonic()
    assert "not there after 0.5 s" in problem(at(pages, page))
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/good",
        "http://localhost:{port}/good",
        "HTTP://LOCALHOST:{port}/good",
        "http://[::1]:{port}/good",
        "http://[::ffff:127.0.0.1]:{port}/good",
        "http://0.0.0.0:{port}/good",
        "http://2130706433:{port}/good",
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/a.png",
        "http://100.64.0.1/a.png",
        "http:///a.png",
    ],
)
def test_private_addresses_are_refused(pages, url, monkeypatch):
    monkeypatch.delenv("RUNPOD_ALLOW_PRIVATE_DOWNLOAD_URLS")
    assert "refused" in problem(url.format(port=pages.server_port))
    assert not pages.requests


def test_each_hop_is_checked(pages, monkeypatch):
    """The first address passes, as a public one would; the one that it sends to does not."""
    monkeypatch.delenv("RUNPOD_ALLOW_PRIVATE_DOWNLOAD_URLS")
    safe = inputs.rp_ssrf.is_safe_address
    monkeypatch.setattr(inputs.rp_ssrf, "is_safe_address", lambda ip: ip == "127.0.0.1" or safe(ip))
    assert "refused" in problem(at(pages, "moved-to-metadata"))
    assert pages.requests == ["/moved-to-metadata"]
