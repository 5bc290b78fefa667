"""The site of `make docs` in Chromium: no empty page, dead link, missing picture, or page cut off.

It reads build/site, which `make docs` has made, from a server on loopback. Screenshots of six pages
stay in build/site-screenshots. The browser says what a reader sees, so nothing here knows how
mkdocs works.
"""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urldefrag

import make_site
import matplotlib.image
import namespaces
import numpy as np
import pytest

pytestmark = pytest.mark.long

SHOTS = make_site.ROOT / "build" / "site-screenshots"
SIX = (
    *("", "TUTORIAL/", "guides/TORCH/", "reference/python/", "reference/c/"),
    "internals/ARCHITECTURE/",
)
WORDS_MIN = 80
# The least share of pixels in the middle of a page that are not background.
INK_MIN = 0.01
# Asks a page for its words, links and pictures, for code that is cut off and cannot be scrolled,
# and for its width beyond that of the window.
LOOK = """() => {
    const shown = document.querySelector("article");
    const hides = element => {
        const style = getComputedStyle(element);
        return (style.overflowX === "hidden" && element.scrollWidth > element.clientWidth + 1)
            || (style.overflowY === "hidden" && element.scrollHeight > element.clientHeight + 1);
    };
    const cut = [...shown.querySelectorAll("pre > code")].filter(code => {
        for (let each = code; each !== shown; each = each.parentElement)
            if (hides(each)) return true;
        return false;
    });
    return {
        words: shown.innerText.split(/\\s+/).length,
        links: [...document.querySelectorAll("a[href]")].map(link => link.href),
        ids: [...document.querySelectorAll("[id]")].map(element => element.id),
        blank: [...shown.querySelectorAll("img")].filter(image => !image.naturalWidth)
            .map(image => image.src),
        cut: cut.map(code => code.innerText.slice(0, 60)),
        overflow: document.documentElement.scrollWidth - window.innerWidth,
    };
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that logs no request."""

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    folder = make_site.SITE / make_site.VERSION
    assert (folder / "index.html").exists(), "run `make docs` first"
    handler = functools.partial(Quiet, directory=str(make_site.SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/{make_site.VERSION}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        namespaces.skip("Chromium is missing: apt install chromium")
    with sync_playwright() as playwright:
        # Root has no sandbox, and the pages are ours.
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    made = browser.new_page(viewport={"width": 1280, "height": 900})
    made.set_default_timeout(120_000)  # on a busy machine
    yield made
    made.close()


def pages() -> list[str]:
    site = make_site.SITE / make_site.VERSION
    found = [path.parent.relative_to(site).as_posix() for path in site.rglob("index.html")]
    return sorted("" if path == "." else f"{path}/" for path in found)


def test_no_page_is_empty_or_cut_off_and_no_link_is_dead(page: Any, address: str) -> None:
    wrong: list[str] = []

    def answered(got: Any) -> None:
        if got.status >= 400 or not got.url.startswith(
            address.removesuffix(f"{make_site.VERSION}/")
        ):
            wrong.append(f"{got.status} {got.url}")

    def failed(asked: Any) -> None:
        # The next page cuts short what this one still asks for, such as its icon.
        if asked.failure != "net::ERR_ABORTED":
            wrong.append(f"{asked.failure} {asked.url}")

    page.on("response", answered)
    page.on("requestfailed", failed)
    page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
    seen: dict[str, Any] = {}
    for path in pages():
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(address + path)
        seen[address + path] = look = page.evaluate(LOOK)
        page.set_viewport_size({"width": 400, "height": 800})
        narrow = page.evaluate(LOOK)
        for width, found in ((1280, look), (400, narrow)):
            wrong += [f"{path} at {width}: cut code: {text}" for text in found["cut"]]
            if found["overflow"] > 0:
                wrong.append(f"{path} at {width}: {found['overflow']} pixels wider than the window")
        wrong += [f"{path}: no picture {source}" for source in look["blank"]]
        if look["words"] < WORDS_MIN:
            wrong.append(f"{path}: {look['words']} words")
    assert len(seen) > 30
    for source, look in seen.items():
        for link in look["links"]:
            target, anchor = urldefrag(link)
            if not target.startswith(address):
                continue
            if target not in seen:
                wrong.append(f"{source}: no page {target}")
            elif anchor and anchor not in seen[target]["ids"]:
                wrong.append(f"{source}: no place {link}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", SIX)
def test_a_page_shows_something_from_its_head_to_its_foot(
    page: Any, address: str, path: str
) -> None:
    page.goto(address + path)
    SHOTS.mkdir(parents=True, exist_ok=True)
    file = SHOTS / f"{path.strip('/').replace('/', '-') or 'index'}.png"
    page.screenshot(path=str(file))
    shot = np.round(matplotlib.image.imread(file)[:, :, :3] * 255).astype(int)
    article = shot[100:, 320:960]
    background = article[-1, -1]
    for third in np.array_split(article, 3):
        ink = (np.abs(third - background).sum(axis=2) > 60).mean()
        assert ink > INK_MIN, f"{file}: {ink:.4f} of the pixels"


def test_the_search_finds_and_the_version_is_that_of_the_wheel(page: Any, address: str) -> None:
    page.goto(address)
    page.wait_for_selector(".md-version__current")
    assert page.inner_text(".md-version__current").strip() == make_site.VERSION
    page.click(".md-search__input")
    # Before that the search has not read its index, and misses what is typed.
    page.wait_for_selector(".md-search-result__meta:has-text('Type to start')")
    page.keyboard.type("error_feedback")
    page.wait_for_selector(".md-search-result__link")
    assert "error_feedback" in page.inner_text(".md-search-result__list")


def test_the_root_leads_to_the_newest_version(page: Any, address: str) -> None:
    page.goto(address.removesuffix(f"{make_site.VERSION}/"))
    page.wait_for_url(lambda url: url.rstrip("/") != address.rsplit("/", 2)[0])
    newest = json.loads((make_site.SITE / "versions.json").read_text("utf-8"))[0]["version"]
    assert page.url.rstrip("/").endswith(newest)
