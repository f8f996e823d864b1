"""The training set: Noto Color Emoji rendered by Pillow, named by Unicode's CLDR annotations.

Both come from Debian packages: those installed, else downloaded through apt and unpacked beside the work.
"""

import json
import logging
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from builder.embedded.recipe import SIDE
from worker.errors import BuildError

log = logging.getLogger(__name__)

PACKAGES = ("fonts-noto-color-emoji", "unicode-cldr-core")
FONT = Path("usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
ANNOTATIONS = Path("usr/share/unicode/cldr/common/annotations/en.xml")
FONT_SIZE = 109
"""The one size of the font's bitmaps."""
GLYPH = (136, 128)

COLOURS = {"red": 0, "orange": 24, "yellow": 48, "green": 120, "blue": 212, "purple": 275, "pink": 330}
"""Hue in degrees."""
OTHER_COLOURS = ("black", "white", "brown", "grey", "gray", "golden")


@dataclass(frozen=True)
class Emoji:
    """A name, its keywords, and the picture, RGB [SIDE, SIDE, 3]."""

    name: str
    keywords: tuple[str, ...]
    picture: NDArray[np.uint8]


@dataclass(frozen=True)
class DataSet:
    """Emoji i has the pictures and names whose `owner` is i; the first is its own, the others are recoloured.

    `pictures`: uint8 [N, SIDE, SIDE, 3].
    """

    pictures: NDArray[np.uint8]
    names: tuple[str, ...]
    owner: NDArray[np.int32]
    keywords: tuple[tuple[str, ...], ...]

    @property
    def emoji(self) -> NDArray[np.int32]:
        """Indices of the pictures that are not recoloured."""
        return np.unique(self.owner, return_index=True)[1].astype(np.int32)

    @property
    def own_names(self) -> list[str]:
        """The names of these."""
        return [self.names[i] for i in self.emoji.tolist()]

    def write(self, folder: Path) -> None:
        """Write two files; `load_data` reads them."""
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folder / "pictures.npz", pictures=self.pictures, owner=self.owner)
        texts = {"names": self.names, "keywords": self.keywords}
        (folder / "texts.json").write_text(json.dumps(texts, ensure_ascii=False), encoding="utf-8")


def make_data(folder: Path) -> DataSet:
    """Render and write the training set; raises BuildError where the packages cannot be had."""
    root = _packages(folder / "packages")
    found = read_emoji(root / FONT, root / ANNOTATIONS)
    versions = [(i, name, picture) for i, one in enumerate(found) for name, picture in colour_versions(one)]
    data = DataSet(
        np.stack([picture for _, _, picture in versions]),
        tuple(name for _, name, _ in versions),
        np.array([i for i, _, _ in versions], np.int32),
        tuple(one.keywords for one in found),
    )
    data.write(folder)
    log.info("%d emoji, %d pictures with those of other colours", len(found), len(versions))
    return data


def load_data(folder: Path) -> DataSet:
    """Read what `make_data` wrote, or make it."""
    if not (folder / "texts.json").is_file():
        return make_data(folder)
    texts = json.loads((folder / "texts.json").read_text("utf-8"))
    with np.load(folder / "pictures.npz") as arrays:
        return DataSet(
            arrays["pictures"],
            tuple(texts["names"]),
            arrays["owner"],
            tuple(map(tuple, texts["keywords"])),
        )


def _packages(folder: Path) -> Path:
    """The root that holds the font and the annotations."""
    for root in (Path("/"), folder):
        if all((root / path).is_file() for path in (FONT, ANNOTATIONS)):
            return root
    folder.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder, check=True, capture_output=True)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package.name, "."], cwd=folder, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"Debian packages {', '.join(PACKAGES)}: neither installed nor to be had: {error}") from error
    return folder


def read_emoji(font_path: Path, annotations_path: Path) -> list[Emoji]:
    """Every code point that has an English name and a glyph, in the order of code points."""
    font = ImageFont.truetype(font_path, FONT_SIZE)
    names: dict[str, str] = {}
    keywords: dict[str, tuple[str, ...]] = {}
    for annotation in ElementTree.parse(annotations_path).iter("annotation"):
        character, text = annotation.attrib["cp"], annotation.text or ""
        if len(character) != 1:
            continue
        if annotation.get("type") == "tts":
            names[character] = text
        else:
            keywords[character] = tuple(word.strip() for word in text.split("|"))
    rendered = ((character, render(character, font)) for character in sorted(names))
    return [
        Emoji(names[character], keywords.get(character, ()), picture)
        for character, picture in rendered
        if picture is not None
    ]


def render(character: str, font: ImageFont.FreeTypeFont) -> NDArray[np.uint8] | None:
    """The glyph on white, RGB [SIDE, SIDE, 3]; None where the font has none."""
    canvas = Image.new("RGBA", (2 * GLYPH[0], 2 * GLYPH[0]), (255, 255, 255, 0))
    ImageDraw.Draw(canvas).text((GLYPH[0] // 2, GLYPH[0] // 2), character, font=font, embedded_color=True)
    box = canvas.getbbox()
    if box is None:
        return None
    # The glyph's middle comes to the middle of the picture.
    left, top = ((box[i] + box[i + 2] - GLYPH[0]) // 2 for i in (0, 1))
    glyph = canvas.crop((left, top, left + GLYPH[0], top + GLYPH[0]))
    white = Image.new("RGBA", glyph.size, (255, 255, 255, 255))
    return np.asarray(Image.alpha_composite(white, glyph).convert("RGB").resize((SIDE, SIDE), Image.Resampling.LANCZOS))


def colour_versions(emoji: Emoji) -> list[tuple[str, NDArray[np.uint8]]]:
    """The emoji, then the same in other colours where one hue prevails: "apple" as "blue apple"."""
    own = (emoji.name, emoji.picture)
    hue = prevailing_hue(emoji.picture)
    words = emoji.name.split()
    if hue is None or set(words) & set(OTHER_COLOURS):
        return [own]
    bare = [word for word in words if word not in COLOURS]
    targets = {
        colour: target for colour, target in COLOURS.items() if abs((target - hue + 180) % 360 - 180) > 20 and bare
    }
    return [own] + [
        (" ".join([colour, *bare]), shift_hue(emoji.picture, target - hue)) for colour, target in targets.items()
    ]


def prevailing_hue(picture: NDArray[np.uint8]) -> float | None:
    """The hue in degrees that most of the coloured pixels share; None where none does or few are coloured."""
    hue, saturation, value = np.moveaxis(np.asarray(Image.fromarray(picture).convert("HSV"), np.float32), -1, 0)
    weight: NDArray[np.float32] = saturation * value * (saturation > 90)
    if np.count_nonzero(weight) < 0.12 * weight.size:
        return None
    angle: NDArray[np.float32] = hue * np.float32(2 * np.pi / 256)
    mean = np.arctan2(float(np.sum(weight * np.sin(angle))), float(np.sum(weight * np.cos(angle))))
    near: NDArray[np.bool_] = np.cos(angle - np.float32(mean)) > np.cos(np.radians(25))
    share = float(np.sum(weight * near)) / float(np.sum(weight))
    return float(np.degrees(mean)) % 360 if share > 0.85 else None


def shift_hue(picture: NDArray[np.uint8], degrees: float) -> NDArray[np.uint8]:
    """Turn all hues."""
    pixels = np.array(Image.fromarray(picture).convert("HSV"))
    pixels[..., 0] = (pixels[..., 0].astype(np.int32) + round(degrees * 256 / 360)) % 256
    return np.asarray(Image.fromarray(pixels, "HSV").convert("RGB"))
