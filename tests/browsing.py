"""A real browser for the tests of the built site."""

import contextlib
import functools
import http.server
import importlib.util
import os
import threading
from pathlib import Path

import pytest


def skip(message, required):
    """Skip the test, or let it fail where the variable ``required`` says that nothing may be missing."""
    pytest.fail(message) if os.environ.get(required) else pytest.skip(message)


@contextlib.contextmanager
def served(folder):
    """The address at which a server on this machine shows the folder."""
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *args: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


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

    def stays_at(self, address):
        """Nothing went wrong, and nothing was asked of anybody else."""
        assert not self.problems
        assert all(url.startswith((address, "data:", "blob:")) for url in self.requests)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.context.close()


# Everything unfolded, nothing moving: axe sees the colours of the moment.
UNFOLD = """() => {
    document.head.append(Object.assign(document.createElement('style'),
        {textContent: '* { transition: none !important; animation: none !important; }'}));
    document.querySelectorAll('.toggle-hidden').forEach(e => e.classList.remove('toggle-hidden'));
    document.querySelectorAll('details').forEach(e => e.open = true);
    dispatchEvent(new Event('resize'));
}"""
# The theme's navigation stands outside of landmarks.
RUN_AXE = "async (part) => (await axe.run(part, {rules: {region: {enabled: false}}})).violations"


def violations(page, part="html"):
    """What axe-core finds, all answers unfolded, on the page or a part: rule, number of places, the first of them."""
    axe = Path(importlib.util.find_spec("axe_playwright_python").origin).parent / "axe.min.js"
    page.evaluate(UNFOLD)
    page.evaluate(axe.read_text(encoding="utf-8"))
    page.wait_for_timeout(400)  # the theme looks for boxes that scroll 0.3 s after a change
    return [(v["id"], len(v["nodes"]), v["nodes"][0]["html"][:200]) for v in page.evaluate(RUN_AXE, part)]
