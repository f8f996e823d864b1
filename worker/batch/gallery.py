"""A batch's results as one page of HTML: thumbnails, prompts, seeds and settings, with a filter."""

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image

from worker.batch.results import RESULTS
from worker.errors import BatchError

_TEMPLATE = Path(__file__).with_name("gallery.html")
_THUMBNAIL, _QUALITY = 224, 60
_CARDS = "<!-- cards -->\n"


def write_gallery(folder: Path, page: Path | None) -> Path:
    """Write the page of `folder/results.jsonl`; returns where it is, by default `folder/gallery.html`.

    Pictures that lie in the folder are in the page as thumbnails and linked; those of a bucket are loaded from there.
    Nothing is held but one result. Raises BatchError without results.
    """
    results, page = folder / RESULTS, page or folder / "gallery.html"
    if not results.is_file():
        raise BatchError(f"{results}: is not there; submit writes it when it ends")
    before, after = _frame(results.resolve().parent.name).split(_CARDS)
    partial = page.with_name(f"{page.name}.partial")
    with partial.open("w", encoding="utf-8") as file, results.open(encoding="utf-8") as lines:
        file.write(before)
        for line in lines:
            file.writelines(_cards(json.loads(line), folder, page.parent))
        file.write(after)
    partial.replace(page)
    return page


def _frame(title: str) -> str:
    template = _TEMPLATE.read_text("utf-8")
    script = re.search(r"<script>(.*?)</script>", template, re.DOTALL)
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode("utf-8")).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data: file: https: http:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )
    return template.replace("@policy@", policy).replace("@title@", escape(title))


def _cards(result: Mapping[str, Any], folder: Path, base: Path) -> Iterator[str]:
    """A card for each picture of a result, or one for its error."""
    asked: Mapping[str, Any] = result["request"]
    prompt = f"{escape(str(asked.get('prompt', '')))}<small>line {result['line']}</small>"
    if "error" in result:
        yield f'<figure class="error"><figcaption>{prompt}<p>{escape(result["error"])}</p></figcaption></figure>\n'
        return
    for place, picture in zip(result["images"], result["pictures"], strict=True):
        link, source = _sources(place, folder, base)
        image = f'<img src="{escape(source)}" alt="" loading="lazy" decoding="async">'
        settings = "".join(f"<small>{escape(line)}</small>" for line in _settings(asked, result["used"], picture))
        figure = f'<a href="{escape(link)}">{image}</a><figcaption>{prompt}{settings}</figcaption>'
        yield f"<figure>{figure}</figure>\n"


def _sources(place: str, folder: Path, base: Path) -> tuple[str, str]:
    """Where a picture's link leads, and what is shown of it."""
    if place.startswith(("https://", "http://")):
        return place, place
    link = quote(Path(os.path.relpath((folder / place).resolve(), base.resolve())).as_posix())
    try:
        with Image.open(folder / place) as image:
            image.draft("RGB", (_THUMBNAIL, _THUMBNAIL))
            image.thumbnail((_THUMBNAIL, _THUMBNAIL))
            buffer = BytesIO()
            image.convert("RGB").save(buffer, "WEBP", quality=_QUALITY)
    except OSError:
        return link, link
    return link, f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _settings(asked: Mapping[str, Any], used: Mapping[str, Any], picture: Mapping[str, Any]) -> Sequence[str]:
    strength = "" if used.get("strength") is None else f", strength {used['strength']:g}"
    negative = asked.get("negative_prompt")
    return [
        *([f"without {negative}"] if negative else []),
        f"seed {picture['seed']}, {picture['width']}x{picture['height']}",
        f"{used['num_inference_steps']} steps, guidance {used['guidance_scale']:g}{strength}, {used['scheduler']}",
    ]
