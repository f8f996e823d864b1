"""The page of the local API, in a real Chromium."""

import json
import os
import shutil
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.platform.test_local_api import Client
from tests.platform.test_local_api import api as api

pytestmark = pytest.mark.xdist_group("platform")
expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no Chromium (Debian's package chromium)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path)
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser, api: Client) -> Generator[Page]:
    """The page, ready; whatever the browser complains of fails the test."""
    with opened(browser, api) as page:
        yield page


@contextmanager
def opened(browser: Browser, api: Client, **options: str) -> Generator[Page]:
    page = browser.new_page(**options)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(f"http://localhost:{api.port}/")
    expect(page.locator("#prompt")).to_be_visible()
    yield page
    page.close()
    assert not complaints


def ask_for(page: Page, **fields: object) -> None:
    for name, value in {"prompt": "a fox", "num_inference_steps": 2, **fields}.items():
        page.fill(f"#{name}", str(value))
    page.click("#make")


def shown_job(page: Page) -> dict:
    return json.loads(page.inner_text("#call"))


def test_a_prompt_becomes_a_picture_that_is_shown_and_listed(page):
    ask_for(page, seed=11)
    expect(page.locator("#caption")).to_contain_text("64x64, seed 11, 2 steps")
    src = page.locator("#pictures img").get_attribute("src")
    assert src.startswith("/output/")
    expect(page.locator("#pictures img")).to_have_js_property("naturalWidth", 64)
    expect(page.locator("#gallery img").first).to_have_attribute("src", src)
    expect(page.locator("#make")).to_be_enabled()


def test_the_job_that_is_shown_makes_the_same_picture(page, api):
    ask_for(page, seed=12, width=72)
    expect(page.locator("#caption")).to_contain_text("72x64")
    job = shown_job(page)
    assert job == {"input": {"prompt": "a fox", "num_inference_steps": 2, "seed": 12, "width": 72}}
    of_page = api.ask(page.locator("#pictures img").get_attribute("src"))[1]
    place = api.json("/runsync", job)["output"]["images"][0]
    assert (api.folder / place).read_bytes() == of_page


@pytest.mark.parametrize(("kind", "address"), [("here", "http://localhost"), ("runpod", "https://api.runpod.ai/v2/")])
def test_it_is_a_call_with_curl_too(page, kind, address):
    page.fill("#prompt", "a fox's den")
    page.check(f"input[value={kind}]")
    text = page.inner_text("#call")
    assert text.startswith(f"curl -s {address}")
    assert r"a fox'\''s den" in text


def test_the_form_has_every_field_with_its_bounds_and_default(page, api):
    fields = {name: field for name, field in api.json("/options")["fields"].items() if not field.get("deprecated")}
    inputs = page.locator("form :is(input, select, textarea)[name]")
    assert set(inputs.evaluate_all("all => all.map(one => one.name)")) == set(fields)
    for name, field in fields.items():
        element, value = page.locator(f"#{name}"), field.get("anyOf", [field])[0]
        for bound, attribute in (("minimum", "min"), ("maximum", "max")):
            assert bound not in value or float(element.get_attribute(attribute)) == value[bound]
        if isinstance(field.get("default"), bool):
            assert element.is_checked() == field["default"]
        elif "default" in field:
            assert element.input_value() == (
                "" if field["default"] is None else f"{field['default']}".removesuffix(".0")
            )
    page.fill("#prompt", "a fox")
    assert shown_job(page) == {"input": {"prompt": "a fox"}}


def test_a_slider_and_its_box_move_together(page):
    slider = page.get_by_role("slider", name="Inference steps")
    slider.fill("7")
    assert page.input_value("#num_inference_steps") == "7"
    page.fill("#num_inference_steps", "9")
    assert slider.input_value() == "9"
    assert shown_job(page)["input"]["num_inference_steps"] == 9
    page.click("button[type=reset]")
    expect(page.locator("#call")).not_to_contain_text("num_inference_steps")


@pytest.mark.parametrize(
    ("fields", "labels"),
    [({"scheduler_options": "[1]"}, ["Scheduler options"]), ({"width": 4096, "height": 4096}, ["Width", "Height"])],
)
def test_an_error_is_shown_at_its_fields(page, fields, labels):
    page.click("summary")
    ask_for(page, **fields)
    expect(page.locator("#error")).to_contain_text(next(iter(fields)))
    expect(page.locator(".field.wrong label")).to_have_text(labels)
    ask_for(page, **dict.fromkeys(fields, ""))
    expect(page.locator("#caption")).to_contain_text("64x64")
    expect(page.locator(".field.wrong")).to_have_count(0)


def test_a_job_shows_previews_and_can_be_cancelled(page):
    ask_for(page)  # The preview is learned from a picture that was made.
    expect(page.locator("#caption")).to_contain_text("64x64")
    ask_for(page, num_inference_steps=1000)
    expect(page.locator("#pictures img")).to_have_attribute("alt", "Picture 1: Preview")
    assert 0 < page.locator("#progress").evaluate("bar => bar.value") < 1
    page.click("#cancel")
    expect(page.locator("#error")).to_have_text("Cancelled.")


def test_an_earlier_picture_gives_its_seed_again(page):
    ask_for(page, seed=77)
    expect(page.locator("#caption")).to_contain_text("seed 77")
    page.fill("#seed", "")
    page.locator("#gallery button").first.click()
    expect(page.locator("#caption")).to_contain_text("a fox")
    page.click("#keep")
    assert page.input_value("#seed") == "77"


def test_it_is_light_or_dark_as_the_system_is(browser, api):
    def brightness(scheme: str) -> float:
        with opened(browser, api, color_scheme=scheme) as page:
            colour = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
            return sum(colour[:3]) / 3

    assert brightness("dark") < 60 < 200 < brightness("light")


def test_a_page_from_elsewhere_cannot_drive_it(browser, api):
    before = api.json("/health")["jobs"]
    with elsewhere() as address:
        page = browser.new_page()
        page.goto(address)
        body = {"url": f"http://localhost:{api.port}", "job": '{"input": {"prompt": "a fox"}}'}
        assert page.evaluate(
            """async ({url, job}) => {
                const post = {method: "POST", body: job};
                const sent = [
                    fetch(`${url}/run`, {...post, headers: {"Content-Type": "application/json"}}),
                    fetch(`${url}/run`, {...post, mode: "no-cors"}),
                    fetch(`${url}/output`),
                ];
                return (await Promise.allSettled(sent)).map(one => one.status);
            }""",
            body,
        ) == ["rejected", "fulfilled", "rejected"]  # What comes of the second is hidden from the page.
        page.set_content(
            f'<form method="post" action="{body["url"]}/run" enctype="text/plain"><button>Go</button></form>'
        )
        with page.expect_response("**/run") as answer:
            page.click("button")
        assert answer.value.status == 403
        page.close()
    assert api.json("/health")["jobs"] == before


def test_a_page_from_elsewhere_cannot_frame_it(browser, api):
    with elsewhere() as address:
        page = browser.new_page()
        page.goto(address)
        page.set_content(f'<iframe src="http://localhost:{api.port}/"></iframe>')
        page.wait_for_load_state("networkidle")
        assert page.frames[1].locator("#prompt").count() == 0
        page.close()


@contextmanager
def elsewhere() -> Generator[str]:
    """The address of another site."""

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
