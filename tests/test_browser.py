"""The built pages in a real browser: maths, phone width, both themes, search, from disk and from a server."""

import functools
import http.server
import os
import shutil
import threading

import pytest
from pages import CHAPTERS

pytestmark = pytest.mark.site

CHROME = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser", "chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
PAGES = ["index", "notation", "api", *(path.stem for path in CHAPTERS)]


@pytest.fixture(scope="module")
def browser():
    if not CHROME:
        message = "no Chromium or Chrome on the PATH"
        pytest.fail(message) if os.environ.get("LN_REQUIRE_BROWSER") else pytest.skip(message)
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROME, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(site):
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *args: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


# Elements of the article that stick out on the right with no scrolling box around them.
TOO_WIDE = """() => [...document.querySelectorAll('article *')].filter(e => {
    if (e.getBoundingClientRect().right <= innerWidth + 1 || e.closest('mjx-assistive-mml')) return false;
    for (let box = e; box.tagName !== 'ARTICLE'; box = box.parentElement)
        if (box.getBoundingClientRect().right <= innerWidth + 1 && getComputedStyle(box).overflowX !== 'visible')
            return false;
    return true;
}).map(e => e.tagName + '.' + e.className)"""


class Visit:
    """One page, loaded; what it asked for and what went wrong."""

    def __init__(self, browser, url, width=1200, theme="light"):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        self.page = self.context.new_page()
        self.requests, self.problems = [], []
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.on("pageerror", lambda e: self.problems.append(str(e)))
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type == "error" else None)
        self.page.on("requestfailed", lambda r: self.problems.append(f"failed: {r.url}"))
        self.page.goto(url)
        self.page.evaluate("async () => { await window.MathJax?.startup?.promise; }")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.context.close()


@pytest.mark.parametrize("name", PAGES)
def test_page_on_a_phone_from_a_server(browser, address, name):
    with Visit(browser, f"{address}/book/{name}.html", width=360, theme="dark") as visit:
        page = visit.page
        assert not visit.problems
        assert all(url.startswith((address, "data:", "blob:")) for url in visit.requests)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        # What is wider than the phone scrolls in its own box.
        assert page.evaluate(TOO_WIDE) == []
        if name not in ("api",):
            assert page.evaluate("document.querySelectorAll('mjx-container').length") > 0
        assert page.evaluate("document.querySelectorAll('mjx-merror, .MathJax_Error').length") == 0


@pytest.mark.parametrize("name", PAGES)
def test_page_from_disk(browser, site, name):
    with Visit(browser, (site / f"book/{name}.html").as_uri()) as visit:
        assert not visit.problems
        assert all(url.startswith(("file:", "data:", "blob:")) for url in visit.requests)
        assert visit.page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")


def test_search_works_from_disk_and_from_a_server(browser, site, address):
    for root in (site.as_uri(), address):
        with Visit(browser, f"{root}/search.html?q=variance") as visit:
            visit.page.wait_for_selector("ul.search li a", timeout=10_000)
            links = visit.page.evaluate("[...document.querySelectorAll('ul.search li a')].map(a => a.getAttribute('href'))")
            assert any("01-forward-pass" in link for link in links)


def test_dark_theme_inverts_line_figures_only(browser, site):
    url = (site / f"book/{CHAPTERS[0].stem}.html").as_uri()
    for theme, expected in (("dark", "invert(0.92) hue-rotate(180deg)"), ("light", "none")):
        with Visit(browser, url, theme=theme) as visit:
            filters = visit.page.evaluate("[...document.querySelectorAll('img.ln-invert')].map(i => getComputedStyle(i).filter)")
            assert filters and set(filters) == {expected}


def test_answers_are_folded_and_open_by_keyboard(browser, site):
    with Visit(browser, (site / f"book/{CHAPTERS[0].stem}.html").as_uri()) as visit:
        hidden = "[...document.querySelectorAll('.solution.dropdown')].map(e => e.classList.contains('toggle-hidden'))"
        visit.page.wait_for_function(f"({hidden}).every(x => x) && ({hidden}).length >= 3")
        visit.page.focus(".solution.dropdown button.toggle-button")
        visit.page.keyboard.press("Enter")
        assert visit.page.evaluate(hidden)[0] is False
