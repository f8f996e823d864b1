"""Pictures as files: type, pixels, metadata where tools look for it, and the same bytes each time."""

import json
import re
from io import BytesIO

import numpy as np
import pytest
from PIL import ExifTags, Image

from tests.jobs import photograph
from worker.diffusion.names import NAMES, SUFFIXES, resolve, title_of
from worker.diffusion.solvers import SOLVERS
from worker.outputs import encode_picture, parameters_text

PIXELS = np.asarray(photograph(72, 104))
TEXT = parameters_text("a fox, 狐 \U0001f98a\nin the snow", "blurry", {"Steps": 20, "Sampler": "Euler a", "Seed": 7})
FORMATS = ["png", "jpeg", "webp"]


def opened(data: bytes) -> Image.Image:
    return Image.open(BytesIO(data))


def read_parameters(data: bytes) -> str | None:
    """As the web UI reads it: `parameters` of a PNG, else the EXIF UserComment with its 8-byte character code."""
    image = opened(data)
    comment = image.getexif().get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.UserComment)
    if comment is None:
        return image.info.get("parameters")
    assert comment[:8] == b"UNICODE\0"
    return comment[8:].decode("utf-16-be")


@pytest.mark.parametrize(("output_format", "tolerance"), [("png", 0), ("jpeg", 12), ("webp", 12)])
@pytest.mark.parametrize("parameters", [TEXT, None])
def test_the_file_holds_the_picture_and_its_parameters(output_format, tolerance, parameters):
    file = encode_picture(PIXELS, output_format, 95, parameters)
    image = opened(file.data)
    assert (image.format or "").lower() == output_format
    assert image.get_format_mimetype() == file.content_type
    assert Image.registered_extensions()[f".{file.extension}"] == image.format
    assert np.abs(np.asarray(image).astype(int) - PIXELS).max() <= tolerance
    assert read_parameters(file.data) == parameters


@pytest.mark.parametrize("output_format", FORMATS)
def test_the_same_picture_gives_the_same_bytes(output_format):
    first, second = (encode_picture(PIXELS.copy(), output_format, 80, TEXT) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("output_format", ["jpeg", "webp"])
def test_a_lower_quality_gives_a_smaller_file(output_format):
    sizes = [len(encode_picture(PIXELS, output_format, quality, None).data) for quality in (100, 95, 50, 1)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


@pytest.mark.parametrize("output_format", FORMATS)
def test_the_longest_prompts_make_no_broken_file(output_format):
    text = parameters_text("狐" * 20_000, "犬" * 20_000, {"Steps": 20})
    data = encode_picture(PIXELS, output_format, 95, text).data
    assert np.asarray(opened(data)).shape == PIXELS.shape
    # An EXIF block of a JPEG is too small for it.
    assert read_parameters(data) == (None if output_format == "jpeg" else text)


def test_the_comment_of_exif_has_the_type_that_the_standard_gives_it():
    data = encode_picture(PIXELS, "jpeg", 95, "x").data
    # Tag, type 7 (undefined), count.
    entry = bytes.fromhex("9286 0007 0000000a")
    assert entry in data


def test_parameters_are_read_back_by_the_web_uis_rules():
    facts = {"Steps": 20, "Sampler": "DPM++ 2M Karras", "Seed": 7, "Model": "a, b: c", "Denoising strength": None}
    prompt, negative, last = parameters_text("a fox", "blurry: no", facts).split("\n")
    assert (prompt, negative) == ("a fox", "Negative prompt: blurry: no")
    found = re.findall(r'\s*(\w[\w \-/]+):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)', last)
    values = {name: json.loads(value) if value.startswith('"') else value for name, value in found}
    assert values == {"Steps": "20", "Sampler": "DPM++ 2M Karras", "Seed": "7", "Model": "a, b: c"}


@pytest.mark.parametrize("negative", [None, ""])
def test_without_a_negative_prompt_there_is_no_line_for_it(negative):
    assert parameters_text("a fox", negative, {"Seed": 1}) == "a fox\nSeed: 1"


@pytest.mark.parametrize("entry", NAMES, ids=lambda entry: entry.title)
def test_a_solver_is_named_as_users_ask_for_it(entry):
    class_name = SOLVERS[entry.solver].class_name
    title = title_of(class_name, entry.options)
    assert resolve(title) == resolve(entry.title)
    for suffix, option in SUFFIXES.items():
        if option in SOLVERS[entry.solver].defaults:
            assert title_of(class_name, {**entry.options, option: True}) == f"{title} {suffix}"
