"""A real browser for the tests of the built site."""

import contextlib
import functools
import http.server
import importlib.util
import os
import re
import threading
from pathlib import Path

import pytest


def skip(message, required):
    """Skip the test, or fail where the variable ``required`` says that nothing may be missing."""
    pytest.fail(message) if os.environ.get(required) else pytest.skip(message)


@contextlib.contextmanager
def served(folder):
    """The address at which a server on this machine shows the folder."""
    quiet = {"log_message": lambda *args: None}
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), quiet)
    of_folder = functools.partial(handler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), of_folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


class Visit:
    """One page, loaded; what it asked for and what went wrong.

    ``browser`` may be a context of one: visits in it share what is loaded, which saves most of a
    second each. Without ``maths`` formulas stay TeX, which saves most of the time.
    """

    def __init__(self, browser, url, width=1200, theme="light", maths=True):
        self.page = browser.new_page()
        if not maths:
            self.page.route("**/tex-chtml.js", lambda r: r.fulfill(body="MathJax.startup = {}"))
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=theme)
        self.requests, self.problems = [], []
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.on("pageerror", lambda e: self.problems.append(str(e)))
        self.page.on(
            "console", lambda m: self.problems.append(m.text) if m.type == "error" else None
        )
        self.page.on("requestfailed", lambda r: self.problems.append(f"failed: {r.url}"))
        self.page.goto(url)
        self.page.evaluate("async () => { await window.MathJax?.startup?.promise; }")

    def stays_at(self, address):
        """Nothing went wrong, and nothing was asked of anybody else."""
        assert not self.problems
        assert all(url.startswith((address, "data:", "blob:")) for url in self.requests)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.page.close()  # and its context, if it was made for it


# Everything unfolded, nothing moving, and no shadows of boxes that scroll: axe sees the colours of
# the moment, and judges no text on a gradient.
UNFOLD = """() => {
    document.head.append(Object.assign(document.createElement('style'),
        {textContent: `*:not(#x) { transition: none !important; animation: none !important;
                                   background-image: none !important; }`}));
    document.querySelectorAll('.toggle-hidden').forEach(e => e.classList.remove('toggle-hidden'));
    document.querySelectorAll('details').forEach(e => e.open = true);
    dispatchEvent(new Event('resize'));
}"""
# Most of axe's time goes to contrast, which depends on colours and letters alone. One text of each
# kind is marked for it. Further words of code, half of a page's elements, become plain text.
ONE_OF_A_KIND = """(part) => {
    const grounds = new Map(), first = new Map(), later = [];
    document.querySelectorAll(`${part}, ${part} *`).forEach(e => {
        const { color, fontSize, fontWeight, backgroundColor, opacity } = getComputedStyle(e);
        const own = opacity === '1' && backgroundColor === 'rgba(0, 0, 0, 0)' ? '' : backgroundColor + opacity;
        grounds.set(e, grounds.get(e.parentElement) + own);
        const kind = [grounds.get(e), color, fontSize, fontWeight].join();
        if (![...e.childNodes].some(n => n.nodeType === Node.TEXT_NODE && n.data.trim())) return;
        if (!first.has(kind) && e.checkVisibility()) first.set(kind, e);
        else if (e.matches('.highlight pre span')) later.push(e);
    });
    first.forEach(e => e.toggleAttribute('data-judged', true));
    later.forEach(e => e.replaceWith(...e.childNodes)); }"""  # noqa: E501
# Places where a rule holds are not written down, which takes a quarter of the time. Formulas in a
# line have no colour of their own and cannot scroll: a letter stands for each.
RUN_AXE = """async (part) => {
    const formulas = [...document.querySelectorAll('mjx-container:not([display=true])')];
    const letters = formulas.map(e => { const x = document.createTextNode('x'); e.replaceWith(x); return x; });
    const run = async (part, options) => (await axe.run(part, {resultTypes: ['violations'], ...options})).violations;
    const found = [...await run(part, {rules: {'color-contrast': {enabled: false}}}),
        ...await run(`${part} [data-judged]`, {runOnly: 'color-contrast'})];
    formulas.forEach((e, i) => letters[i].replaceWith(e));
    return found; }"""  # noqa: E501


# Figures as they are shown: drawings, and by how much each is enlarged; text of live figures, with
# its size in pixels.
FIGURES = """() => {
    document.querySelectorAll('details').forEach(e => e.open = true);
    return [...document.querySelectorAll('article figure img')].filter(e => e.checkVisibility()).map(e => {
        const { paddingLeft, paddingRight } = getComputedStyle(e), room = e.getBoundingClientRect().width;
        return [e.currentSrc.split('/').pop(), (room - parseFloat(paddingLeft) - parseFloat(paddingRight)) / e.naturalWidth];
    }); }"""  # noqa: E501
# A window that has changed its size has the drawings for it: those that a <picture> now names, all
# of them read.
DRAWINGS_ARE_THERE = """() => [...document.querySelectorAll('article figure img')].every(e => {
    const other = [...(e.closest('picture') || e).querySelectorAll('source')].find(s => matchMedia(s.media).matches);
    return e.complete && e.naturalWidth && e.currentSrc === (other ? new URL(other.srcset, document.baseURI).href : e.src);
})"""  # noqa: E501
LIVE_TEXT = """() => [...document.querySelectorAll('article :is(figure svg text, .ln-matrix th)')].filter(e => e.checkVisibility()).map(e =>
    [e.textContent.trim(), parseFloat(getComputedStyle(e).fontSize) * (e.getScreenCTM?.().a ?? 1)])"""  # noqa: E501


@functools.cache
def smallest_type(path):
    """Pixels of the smallest letter in one of Matplotlib's drawings, where letters are outlines in
    a scaled group.

    Signs that grow with what stands in them (roots) are left out.
    """
    letters = re.compile(r'<g [^>]*scale\(([\d.]+) -[\d.]+\)">(.*?)</g>', re.S)
    raised = re.compile(r"<use (?![^>]*Size\w+Sym)[^>]*scale\(([\d.]+)\)")
    sizes = [
        float(scale) * min([1.0, *map(float, raised.findall(inside))])
        for scale, inside in letters.findall(path.read_text(encoding="utf-8"))
    ]
    return min(sizes, default=1) * 100 * 4 / 3


def small_type(page, images):
    """Texts of a page's figures and matrix that are shown with less than 11 pixels, also those that
    are raised or lowered.
    """
    page.wait_for_function(DRAWINGS_ARE_THERE)
    found = [
        (name, round(enlarged * smallest_type(images / name), 2))
        for name, enlarged in page.evaluate(FIGURES)
    ]
    return [text for text in [*found, *page.evaluate(LIVE_TEXT)] if text[1] < 11 - 1e-3]


def violations(page, part="html"):
    """What axe-core finds, all answers unfolded, on the page or a part: rule, number of places, the
    first of them.
    """
    axe = Path(importlib.util.find_spec("axe_playwright_python").origin).parent / "axe.min.js"
    page.evaluate(UNFOLD)
    page.evaluate(ONE_OF_A_KIND, part)
    page.evaluate(axe.read_text(encoding="utf-8"))
    page.wait_for_timeout(400)  # the theme looks for boxes that scroll 0.3 s after a change
    found = page.evaluate(RUN_AXE, part)
    return [(v["id"], len(v["nodes"]), v["nodes"][0]["html"][:200]) for v in found]
