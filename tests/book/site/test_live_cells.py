"""Exercises solved on their page: Python in the page, its buttons, its reports, and what a browser
keeps.

Needs what test_live.py needs. LN_LIVE_CHAPTERS=all tries every exercise of the book.
"""

import json
import os
import re
import shutil

import build_offline
import pytest
from browsing import Visit, served, violations
from pages import BOOK, CHAPTERS, NOTEBOOKS, read

from lnbook.exercises import exercises

ln_launch = pytest.importorskip("ln_launch", exc_type=ImportError)  # the environment of the book
pytestmark = pytest.mark.site

EVERY = CHAPTERS if os.environ.get("LN_LIVE_CHAPTERS") == "all" else []
CELL, MOST_MS = "#ex-backward-dx", 240_000  # only to end a hang
WRONG = """\
def backward_dx(dy, xhat, rstd, gamma):
    g = gamma * dy
    return rstd * (g - xhat * (g * xhat).mean(axis=-1, keepdims=True))

check("backward-dx", backward_dx)"""
RIGHT = WRONG.replace("(g - xhat", "(g - g.mean(axis=-1, keepdims=True) - xhat")


@pytest.fixture(scope="module")
def home(site, lite):
    """The book with live cells, as `make site` writes it."""
    home = lite / "some/where"
    shutil.copytree(site, home, dirs_exist_ok=True)
    shutil.copytree(ln_launch.STATIC, home / "_static/live", dirs_exist_ok=True)
    for path in (home / "book").glob("*.html"):
        text = path.read_text(encoding="utf-8")
        if "live/live.js" not in text:  # a site built without Python
            source = BOOK / f"{path.stem}.md"
            whole = source in NOTEBOOKS and "needs_machine" not in read(source).front
            path.write_text(
                text.replace("</head>", ln_launch.tags("../", whole) + "</head>", 1),
                encoding="utf-8",
            )
    return home


@pytest.fixture(scope="module")
def address(home):
    with served(home) as address:
        yield address


@pytest.fixture(scope="module")
def visit(browser, address):
    """Chapter 3 with its first exercise open."""
    with Visit(browser, f"{address}/book/03-backward-pass.html") as visit:
        before = sum(
            len(visit.page.request.get(url).body()) for url in visit.requests if "/live/" in url
        )
        assert 0 < before <= 12_000  # bytes, until a button is pressed
        visit.page.click(f"{CELL} >> text=Edit and run here")
        visit.page.wait_for_selector(f"{CELL} .cm-content:focus")
        yield visit


def bar(cell):
    return f"{cell} .ln-live-bar"


def put(page, cell, code):
    page.focus(f"{cell} .cm-content")
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(code)


def run(page, cell, code, key="Shift+Enter"):
    """Type the code, run it, and return what the status says at its end and what stands below."""
    put(page, cell, code)
    page.keyboard.press(key)
    page.wait_for_function(
        """bar => [...document.querySelectorAll(bar + ' button')].some(
        b => b.textContent === 'Stop' && b.hidden)""",
        arg=bar(cell),
        timeout=MOST_MS,
    )
    return page.inner_text(f"{cell} [role=status]"), page.inner_text(f"{cell} .ln-live-output")


def test_wrong_answer_gets_its_diagnosis(visit):
    status, output = run(visit.page, CELL, WRONG)
    assert status == "Check 4 of 10 failed."
    assert "the path through the mean is left out" in output and "Not run after that: 6" in output
    assert visit.page.locator(".ln-live-mark").count() == 0
    assert visit.page.locator(f"{CELL} [data-passed=false]").is_visible()


def test_right_answer_passes_and_is_marked(visit):
    status, output = run(visit.page, CELL, f"{RIGHT}\nprint('below')", key="Control+Enter")
    assert status == "10 of 10 checks passed." and "Failed" not in output and "below" in output
    assert visit.page.locator(f"{CELL} [data-passed=true]").is_visible()
    assert "Next: Exercise 3.2" in visit.page.inner_text(f"{CELL} .ln-live-next")
    visit.page.click(f"{CELL} >> text=Compare with the solution")
    assert visit.page.locator(".solution pre").first.is_visible()
    marks = [mark.get_attribute("aria-label") for mark in visit.page.locator(".ln-live-mark").all()]
    assert f"1 of {len(exercises_of('03'))} exercises passed" in marks and "passed" in marks


def test_an_error_marks_the_readers_line(visit):
    status, output = run(
        visit.page, CELL, "import warnings\nwarnings.warn('careful')\nprint('so far')\n[][1]"
    )
    assert (
        "error" in status and "so far" in output and "IndexError" in output and "careful" in output
    )
    assert "[][1]" in visit.page.inner_text(f"{CELL} mark")
    assert visit.page.inner_text(f"{CELL} .ln-live-blamed") == "[][1]"
    status, output = run(visit.page, CELL, "def f(:")
    assert "SyntaxError" in output and visit.page.inner_text(f"{CELL} .ln-live-blamed") == "def f(:"


def test_a_figure_and_what_it_needs_from_above(visit):
    visit.page.click(".ln-launch >> text=Edit and run here")
    visit.page.wait_for_selector(".cm-content:focus")
    assert "cells of this page can be edited" in visit.page.inner_text(".ln-launch")
    first = ".bd-article .cell:has(figure)"
    visit.page.locator(first).first.evaluate(
        "cell => { cell.id = 'figure'; cell.querySelector('details').open = true; }"
    )
    with visit.page.expect_response(re.compile("matplotlib")):
        visit.page.locator("#figure button:text-is('Run')").click()
    visit.page.wait_for_selector("#figure .ln-live-output img", timeout=MOST_MS)
    size = visit.page.evaluate("document.querySelector('#figure .ln-live-output img').naturalWidth")
    assert size > 100 and visit.page.inner_text("#figure [role=status]") == "Done."
    # Next to the button; and no line is marked of the run that only found what was missing.
    assert visit.page.locator("#figure .ln-live-bar + .ln-live-output").count() == 1
    assert visit.page.locator("#figure .ln-live-blamed").count() == 0


def test_nothing_is_asked_of_others(visit, address):
    assert any("pyodide" in url for url in visit.requests)
    visit.stays_at(address)


def test_the_next_page_starts_from_what_was_kept(visit):
    """And draws other random numbers."""
    page, draw = visit.page, "import random\nprint(random.random())"
    before = float(run(page, CELL, draw)[1])
    kept = """async () => (await (await caches.open("layer-norm-backwards")).keys())
        .map(request => request.url.split("/").pop()).sort()"""
    page.wait_for_function(f"async () => (await ({kept})()).length === 2")
    assert page.evaluate(kept) == ["compiled", "started"]
    page.reload()
    page.click(f"{CELL} >> text=Go on")
    page.wait_for_selector(f"{CELL} .cm-content:focus")
    assert float(run(page, CELL, draw)[1]) != before
    assert run(page, CELL, RIGHT)[0] == "10 of 10 checks passed."


def test_axe_finds_nothing(visit):
    run(visit.page, CELL, WRONG)
    assert not violations(visit.page, CELL)


def test_an_endless_loop_is_stopped_and_a_reload_keeps_the_answer(visit):
    page = visit.page
    put(page, CELL, "print('in the loop')\nwhile True:\n    pass")
    page.keyboard.press("Shift+Enter")
    page.wait_for_selector(f"{CELL} .ln-live-output >> text=in the loop", timeout=MOST_MS)
    page.wait_for_selector(f"{CELL} [role=status] >> text=Still running", timeout=MOST_MS)
    page.click(f"{CELL} >> text=Stop")
    assert "Stopped" in page.inner_text(f"{CELL} [role=status]")
    put(page, CELL, RIGHT)
    page.reload()
    assert page.text_content(f"{CELL} .cell_input pre").strip() == RIGHT
    assert "earlier visit" in page.inner_text(bar(CELL))
    with page.expect_download() as download:
        page.click("text=My answers")
        page.click("text=Download my answers")
    cells = json.loads(download.value.path().read_text())["cells"]
    assert "Exercise 3.1" in cells[0]["source"][0] and "".join(cells[1]["source"]).endswith(RIGHT)
    page.click(f"{CELL} >> text=Go on")
    page.click(f"{CELL} >> text=Start again")
    assert "raise NotImplementedError" in page.inner_text(f"{CELL} .cm-content")
    page.click(f"{CELL} >> text=Undo")
    assert stored(page) == RIGHT
    page.on("dialog", lambda dialog: dialog.accept())
    with page.expect_navigation():
        page.click("text=Forget my answers")
    assert page.locator(".ln-live-mark").count() == 0
    assert page.evaluate("localStorage.length") <= 2  # the theme's


# ---- Without Python: what several pages keep, buttons, and what cannot be loaded

NO_PYTHON = """window.Worker = class {
    postMessage({ start, id }) {
        setTimeout(() => this.onmessage({ data: start ? { told: "ready" } : { told: "done", id, data: { ok: true } } }));
    }
    terminate() {}
}"""  # noqa: E501


@pytest.fixture
def tabs(browser, home, address):
    """Opens pages that share a browser's store: "03-backward-pass", and a copy, "other"."""
    shutil.copy(home / "book/03-backward-pass.html", home / "book/other.html")
    context = browser.new_context()
    context.add_init_script(NO_PYTHON)
    context.set_default_timeout(15_000)

    def tab(name="03-backward-pass", opened=False):
        page = context.new_page()
        page.goto(f"{address}/book/{name}.html")
        if opened:
            open_cell(page)
        return page

    yield tab
    context.close()


def open_cell(page):
    page.click(f"{CELL} .ln-live-bar button")
    page.wait_for_selector(f"{CELL} .cm-content:focus")


def stored(page):
    return page.evaluate(
        "JSON.parse(localStorage.getItem('layer-norm-backwards:ex-backward-dx'))?.text"
    )


def editor(page):
    return page.inner_text(f"{CELL} .cm-content").strip()


def wait_for(page, text):
    page.wait_for_function(
        "([cell, text]) => document.querySelector(cell).innerText.includes(text)", arg=[CELL, text]
    )


def test_no_page_overwrites_the_newer_answer_of_another(tabs):
    closed, opened, writing = tabs("other"), tabs(opened=True), tabs(opened=True)
    put(opened, CELL, "older = 1")
    put(writing, CELL, "newer = 2")
    wait_for(closed, "newer = 2")
    assert "Go on" in closed.inner_text(bar(CELL))
    assert "earlier visit" in closed.inner_text(bar(CELL))
    wait_for(opened, "newer = 2")
    assert "Changed on another page" in opened.inner_text(bar(CELL))
    for page in opened, closed:
        if page is closed:
            open_cell(page)
        page.focus(f"{CELL} .cm-content")
        page.keyboard.press("Control+End")
        page.keyboard.type("/3")
        assert stored(page).startswith("newer = 2/3") and editor(page) == stored(page)
    writing.click(f"{CELL} >> text=Start again")
    wait_for(opened, "raise NotImplementedError")


def test_typing_styles_the_editor_and_not_the_page(tabs):
    """A paste took four seconds: a selector with :has() had the whole page styled at every line."""
    page = tabs(opened=True)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    seconds = []
    for code in RIGHT, WRONG:
        put(page, CELL, code)
        counts = session.send("Performance.getMetrics")["metrics"]
        seconds += [c["value"] for c in counts if c["name"] == "RecalcStyleDuration"]
    assert seconds[1] - seconds[0] < 0.5  # 0.04 on an idle machine
    # A line that is too long goes on further in than it began.
    assert "text-indent: -" in page.get_attribute(f"{CELL} .cm-line", "style")


def test_a_check_that_is_lost_is_put_back(tabs):
    page = tabs(opened=True)
    status, _ = run(page, CELL, RIGHT.partition("check(")[0])
    assert status == 'Nothing was checked: the line check("backward-dx", backward_dx) was not run.'
    page.click(f"{CELL} >> text=Put the check back")
    assert stored(page) == RIGHT


# ---- The rest of the book, and from disk


@pytest.mark.skipif(not EVERY, reason="LN_LIVE_CHAPTERS is not all")
def test_the_offline_edition_runs_from_disk(browser, home, tmp_path):
    archive = build_offline.pack(home, tmp_path)
    assert archive.stat().st_size < 60_000_000
    shutil.unpack_archive(archive, tmp_path)
    page = tmp_path / archive.stem / "book/03-backward-pass.html"
    assert "data-ln-served" not in page.read_text(encoding="utf-8")
    with Visit(browser, page.as_uri()) as visit:
        visit.page.click(f"{CELL} >> text=Edit and run here")
        visit.page.wait_for_selector(f"{CELL} .cm-content:focus")
        assert run(visit.page, CELL, RIGHT)[0] == "10 of 10 checks passed."
        visit.stays_at("file:")


def exercises_of(number):
    return {id: e for id, e in exercises().items() if f"{e.chapter:02}" == number}


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_every_exercise_on_its_page(browser, address, path):
    """The solution passes; of its known mistakes the first gets its sentence."""
    with Visit(browser, f"{address}/book/{path.stem}.html") as visit:
        for id, exercise in exercises_of(path.stem[:2]).items():
            cell = f"#ex-{id}"
            visit.page.click(f"{cell} >> text=Edit and run here")
            visit.page.wait_for_selector(f"{cell} .cm-content")
            head = f"from lnbook.exercises import exercises\nexercise = exercises()[{id!r}]\n"
            status, output = run(visit.page, cell, f"{head}check({id!r}, exercise.solution)")
            assert re.fullmatch(r"(\d+) of \1 checks passed\.", status), (id, status, output)
            for mistake in exercise.mistakes[:1]:
                wrong = f"check({id!r}, exercise.mistakes[0].of(exercise.solution))"
                status, output = run(visit.page, cell, head + wrong)
                said = exercise.diagnose or mistake.says in output
                assert "Diagnosis." in output and said, (id, status, output)
        visit.stays_at(address)


def test_a_link_holds_an_answer(tabs, browser):
    page = tabs(opened=True)
    put(page, CELL, RIGHT + "  # γ")
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(); }")  # or it asks
    page.click(f"{CELL} >> text=Copy a link")
    wait_for(page, "now holds this answer")
    with Visit(browser, page.url) as other:  # a browser that keeps nothing yet
        assert other.page.text_content(f"{CELL} .cell_input pre").strip() == RIGHT + "  # γ"
        assert "came with the link" in other.page.inner_text(bar(CELL))
    linked = page.url
    put(page, CELL, "own = 1")
    page.goto("about:blank")
    page.goto(linked)
    assert page.text_content(f"{CELL} .cell_input pre").strip() == "own = 1"
    page.click(f"{CELL} >> text=Take the link's answer")
    assert page.text_content(f"{CELL} .cell_input pre").strip() == RIGHT + "  # γ"
    page.goto(linked.split("=")[0] + "=A")  # a link that was cut is no answer
    page.reload()
    assert (
        page.locator(f"{bar(CELL)} button").count() and page.evaluate("typeof lnLive") == "object"
    )
