"""Chapters run in the reader's browser: top to bottom, with nothing from elsewhere, and print what
the page prints.

Needs a Chromium and what `make pyodide` brings, in _build/pyodide. LN_LIVE_CHAPTERS=all runs every
chapter that offers to.
"""

import os
import re

import pytest
from browsing import served
from pages import NOTEBOOKS, read

pytest.importorskip("jupytext")  # the environment of the book
from bs4 import BeautifulSoup  # noqa: E402

pytestmark = pytest.mark.site

ALL = [path.stem for path in NOTEBOOKS if "needs_machine" not in read(path).front]
NAMES = (
    ALL if os.environ.get("LN_LIVE_CHAPTERS") == "all" else ["01-forward-pass", "13-gpu-forward"]
)
#: Numbers below this are roundings, which depend on the order in which a processor adds.
NOISE = 1e-12

PICTURES = "image/", "text/html", "text/latex", "text/markdown"
OPEN = "window.jupyterapp?.shell?.currentWidget"
RUN = """() => { window.jupyterapp.commands.execute('notebook:run-all-cells')
         .then(() => window.lnDone = true, () => window.lnDone = true) }"""


@pytest.fixture(scope="module")
def address(lite):
    with served(lite) as address:
        yield address


def printed_on_page(path):
    """What each visible cell of the built page prints or shows as text."""
    page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
    outputs = ".cell_output .stream pre, .cell_output .text_plain pre"
    return [
        "\n".join(output.text.rstrip("\n") for output in cell.select(outputs))
        for cell in page.select("div.cell")
    ]


def printed(cell):
    """The same of a notebook's cell."""
    found = []
    for output in cell["outputs"]:
        data = output.get("data", {})
        if output["output_type"] == "stream":
            found.append("".join(output["text"]))
        elif not any(kind.startswith(PICTURES) for kind in data):
            found.append("".join(data.get("text/plain", "")))
    return "\n".join(text.rstrip("\n") for text in found)


def same(here, there):
    """Whether two texts agree in words and in the digits printed, roundings of zero apart."""
    here, there = here.split(), there.split()
    number = re.compile(r"[\[(]*([-+]?\d+\.?\d*(?:e[-+]?\d+)?)[\]),;]*$")

    def agree(a, b):
        numbers = [float(m[1]) for m in map(number.match, (a, b)) if m]
        return a == b or (len(numbers) == 2 and max(map(abs, numbers)) < NOISE)

    return len(here) == len(there) and all(map(agree, here, there))


@pytest.mark.parametrize("name", NAMES)
def test_chapter_runs_in_the_browser(site, address, visits, name):
    requests = []
    visits.on("request", lambda request: requests.append(request.url))
    page = visits.new_page()
    page.goto(f"{address}/some/where/lite/notebooks/index.html?path=book/{name}.ipynb")
    page.wait_for_function(
        f"() => {OPEN}?.sessionContext?.session?.kernel?.status === 'idle'", timeout=120_000
    )
    page.evaluate(RUN)
    page.wait_for_function("() => window.lnDone", timeout=240_000)
    model = page.evaluate(f"() => {OPEN}.content.model.toJSON()")
    cells = [c for c in model["cells"] if c["cell_type"] == "code"]
    page.close()

    errors = [o["evalue"] for c in cells for o in c["outputs"] if o["output_type"] == "error"]
    assert not errors and all(c["execution_count"] for c in cells)
    assert all(url.startswith((address, "data:", "blob:")) for url in requests)
    shown = [c for c in cells[1:] if not c["metadata"].get("jupyter", {}).get("source_hidden")]
    expected = printed_on_page(site / f"book/{name}.html")
    assert len(shown) == len(expected)
    for cell, text in zip(shown, expected):
        if "launch.missing()" in "".join(cell["source"]):
            continue  # runs under MPI where the page was built, which no browser can
        assert same(printed(cell), text), (cell["source"], printed(cell), text)
