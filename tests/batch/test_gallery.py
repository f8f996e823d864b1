"""The page of a batch's results, in a browser without a window."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image

from worker.batch.__main__ import main
from worker.batch.gallery import write_gallery
from worker.errors import BatchError

USED = {"num_inference_steps": 20, "guidance_scale": 7.5, "scheduler": "PNDMScheduler", "strength": None}
EVIL = '<script>document.title = "taken"</script> & "fox"'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    lines = []
    for index, (prompt, colour) in enumerate([("red heart", "red"), ("blue heart", "blue"), (EVIL, "green")]):
        Image.new("RGB", (640, 320), colour).save(tmp_path / "images" / f"{index} #.png")
        picture = {"seed": 70 + index, "width": 640, "height": 320}
        made = {"images": [f"images/{index} #.png"], "pictures": [picture], "used": USED}
        lines.append({"line": index + 1, "name": str(index), "request": {"prompt": prompt}, **made})
    away = {"images": ["https://127.0.0.1:1/a.png?X=1&Y=2"], "pictures": [picture], "used": USED | {"strength": 0.5}}
    lines.append({"line": 4, "name": "3", "request": {"prompt": "far", "negative_prompt": "blurry"}, **away})
    lines.append({"line": 5, "name": "4", "request": {"prompt": "lost heart"}, "error": "it ran out of time"})
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def browse(page: Path, words: str, profile: Path) -> str:
    """The document after its script has run, as HTML."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
    if browser is None:
        pytest.skip("no Chromium")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu",
        f"--user-data-dir={profile}", "--virtual-time-budget=3000",
        "--dump-dom", f"file://{quote(str(page))}#filter={quote(words)}",
    ]  # fmt: skip
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def cards(html: str) -> list[tuple[bool, str]]:
    """Whether each card is shown, and its text."""
    found = re.findall(r"<figure([^>]*)>(.*?)</figure>", html, re.DOTALL)
    return [("hidden" not in marks, unescape(re.sub(r"<[^>]+>", " ", text))) for marks, text in found]


@pytest.mark.parametrize(
    ("words", "shown"),
    [("", [True] * 5), ("HEART", [True, True, False, False, True]), ("heart 71", [False, True, False, False, False]),
     ("strength 0.5", [False, False, False, True, False]), ("script & fox", [False, False, True, False, False]),
     ("time", [False, False, False, False, True])],
)  # fmt: skip
def test_a_browser_shows_what_the_filter_finds(folder, tmp_path_factory, words, shown):
    page = write_gallery(folder, None)
    html = browse(page, words, tmp_path_factory.mktemp("profile"))
    found = cards(html)
    assert [one for one, _ in found] == shown
    assert f"{sum(shown)} of 5" in html
    assert "<title>taken" not in html


def test_a_card_tells_prompt_seed_and_settings(folder):
    page = write_gallery(folder, None)
    text = [card for _, card in cards(page.read_text())]
    assert EVIL in text[2]
    for told in ("red heart", "line 1", "seed 70, 640x320", "20 steps, guidance 7.5, PNDMScheduler"):
        assert told in text[0]
    assert "without blurry" in text[3]
    assert "it ran out of time" in text[4]


def test_pictures_of_the_folder_are_small_in_the_page_and_linked_from_wherever_it_is(folder):
    (folder / "pages").mkdir()
    page = write_gallery(folder, folder / "pages" / "a.html")
    text = page.read_text()
    assert [unescape(link) for link in re.findall(r'<a href="([^"]*)"', text)] == [
        *(f"../images/{index}%20%23.png" for index in range(3)), "https://127.0.0.1:1/a.png?X=1&Y=2"
    ]  # fmt: skip
    assert text.count('src="data:image/webp;base64,') == 3
    assert len(text) < 30_000


def test_without_results_there_is_no_gallery(tmp_path, capsys):
    with pytest.raises(BatchError, match="is not there"):
        write_gallery(tmp_path, None)
    assert main(["gallery", str(tmp_path)]) == 2
    assert "results.jsonl" in capsys.readouterr().err
