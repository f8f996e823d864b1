"""Draws `docs/page.png`: the local page after a few jobs, in a real Chromium. `python -m docs.page`."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).parents[1]
PORT = 8137
PROMPTS = ("blue apple", "green heart", "wolf", "taco", "violin", "red heart")
WAIT_MS = 120_000


def draw(page: Page) -> None:
    """Ask for each prompt, and take the picture of the page with the last one's answer."""
    page.goto(f"http://localhost:{PORT}/")
    for count, prompt in enumerate(PROMPTS, 1):
        page.fill("#prompt", prompt)
        page.fill("#seed", "42")
        page.click("#make")
        expect(page.locator("#gallery img")).to_have_count(count, timeout=WAIT_MS)
        expect(page.locator("#make")).to_be_enabled(timeout=WAIT_MS)
    page.screenshot(path=ROOT / "docs" / "page.png")


def main() -> None:
    """Start the local API, wait for it, draw."""
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "handler.py", "--rp_serve_api", "--rp_api_port", str(PORT)]
        server = subprocess.Popen(["env", f"OUTPUT_DIR={output}", *command], cwd=ROOT)
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
                page = browser.new_page(viewport={"width": 1200, "height": 927})
                subprocess.run(
                    ["curl", "-s", "--retry", "60", "--retry-connrefused", f"localhost:{PORT}/health"], check=True
                )
                draw(page)
                browser.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
