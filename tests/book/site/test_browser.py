"""The built pages in a real browser: maths, phone width, both themes, search, from disk and from a
server.
"""

import re
import shutil
import subprocess

import pytest
from browsing import Visit, contrast, skip, small_type, violations
from pages import CHAPTERS
from pages import PAGES as SOURCES

pytestmark = pytest.mark.site

PAGES = [path.stem for path in SOURCES]


# Elements of the article that stick out on the right with no scrolling box around them.
TOO_WIDE = """() => [...document.querySelectorAll('article *')].filter(e => {
    if (e.getBoundingClientRect().right <= innerWidth + 1 || e.closest('mjx-assistive-mml')) return false;
    for (let box = e; box.tagName !== 'ARTICLE'; box = box.parentElement)
        if (box.getBoundingClientRect().right <= innerWidth + 1 && getComputedStyle(box).overflowX !== 'visible')
            return false;
    return true;
}).map(e => e.tagName + '.' + e.className)"""  # noqa: E501


# What scrolls sideways without a shadow that says so.
NO_CUE = """() => [...document.querySelectorAll('article *')].filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 2
    && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX) && !getComputedStyle(e).backgroundImage.includes('gradient'))
    .map(e => e.tagName + '.' + e.className)"""  # noqa: E501


# What paper, on which nothing scrolls, would cut off.
CUT = """() => [...document.querySelectorAll('article :is(pre, .ln-cells, mjx-container[display], table)')]
    .filter(e => e.checkVisibility() && (e.scrollWidth > e.clientWidth + 2
                 || e.getBoundingClientRect().right > document.documentElement.clientWidth + 1))
    .map(e => e.textContent.slice(0, 60))"""  # noqa: E501


NO_FORMULA_IS_RAW = (
    "document.querySelectorAll('.math:not(:has(mjx-container)), mjx-merror').length === 0"
)
IMAGES_ARE_THERE = "[...document.images].every(i => i.complete && i.naturalWidth > 0)"


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_page_from_disk(visits, site, name):
    """One visit a page, for loading it takes seconds. Every other page is dark, and axe sees it on
    a phone; the others are light, and axe sees them on a wide screen. What is missing or elsewhere
    fails from disk first.
    """
    dark = PAGES.index(name) % 2 == 0
    with Visit(
        visits, (site / f"book/{name}.html").as_uri(), width=360, theme="dark" if dark else "light"
    ) as visit:
        page = visit.page
        visit.stays_at("file:")
        assert page.evaluate(IMAGES_ARE_THERE) and page.evaluate(NO_FORMULA_IS_RAW)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        # What is wider than the phone scrolls in its own box.
        assert page.evaluate(TOO_WIDE) == []
        assert page.evaluate(NO_CUE) == []
        assert (
            not name.startswith("api")
            or page.evaluate("document.querySelectorAll('*').length") < 10_000
        )
        assert not dark or violations(page) == []
        for width in (360, 480, 700, 701, 820, 1024, 1440):  # the narrow drawings end at 700
            page.set_viewport_size({"width": width, "height": 900})
            assert small_type(page, site / "_images") == [], width
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(IMAGES_ARE_THERE)
        page.set_viewport_size({"width": 1200, "height": 900})
        assert dark or violations(page) == []
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 703, "height": 1000})  # A4 between margins of 12 mm
        assert page.evaluate(CUT) == []


@pytest.mark.parametrize(
    "name", ["index", CHAPTERS[0].stem, "11-fused-on-the-cpu", "api-numerics", "for-instructors"]
)
def test_page_from_a_server(visits, address, name):
    """One page of each kind; those with interactive figures are in test_interactive.py."""
    with Visit(visits, f"{address}/book/{name}.html", width=360, theme="dark") as visit:
        visit.stays_at(address)
        assert visit.page.evaluate(IMAGES_ARE_THERE) and visit.page.evaluate(NO_FORMULA_IS_RAW)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360


# Work of about a second on the machine where two seconds were a slow page.
PIECES = """() => {
    const box = document.body.appendChild(document.createElement('div'));
    for (let i = 0; i < 20000; i++) {
        const piece = Object.assign(document.createElement('span'), {textContent: 'x' + i});
        piece.style.padding = i % 7 + 'px';
        box.append(piece);
    }
    return box.offsetHeight;
}"""


def test_the_page_with_most_formulas_is_quick(browser, site, address, record_property):
    """The browser's own work, formulas included, is below twice what 20,000 pieces of text are on
    the same machine.
    """
    name = max(
        PAGES,
        key=lambda name: (
            (site / f"book/{name}.html").read_text(encoding="utf-8").count('class="math')
        ),
    )
    page = browser.new_page()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def work():
        return {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}[
            "TaskDuration"
        ]

    page.goto(f"{address}/book/{name}.html")
    page.evaluate("async () => { await window.MathJax.startup.promise; }")
    loaded = work()
    page.evaluate(PIECES)
    pieces = work() - loaded
    page.close()
    record_property(
        "measured",
        f"{name}: {loaded:.2f} s of work in the browser, {loaded / pieces:.2f} times the pieces",
    )
    assert loaded < 2 * pieces


def test_search_works_from_disk_and_from_a_server(browser, site, address):
    for root in (site.as_uri(), address):
        with Visit(browser, f"{root}/search.html?q=variance") as visit:
            visit.page.wait_for_selector("ul.search li a", timeout=10_000)
            links = visit.page.evaluate(
                "[...document.querySelectorAll('ul.search li a')].map(a => a.getAttribute('href'))"
            )
            assert any("01-forward-pass" in link for link in links)


def test_search_finds_words_in_the_text(browser, address):
    """A term of the field is found, and what is shown of a page is its text, not its list of
    contents.
    """
    with Visit(browser, f"{address}/search.html?q=catastrophic+cancellation") as visit:
        visit.page.wait_for_selector("ul.search li p.context", timeout=10_000)
        visit.page.wait_for_function(
            "document.querySelector('#search-results').textContent.includes('finished')"
        )
        assert "07-computing-the-variance" in visit.page.locator(
            "ul.search li a"
        ).first.get_attribute("href")
        excerpts = visit.page.locator("p.context").all_text_contents()
        assert "catastrophic cancellation" in excerpts[0] and not any(
            "Contents" in text for text in excerpts
        )


def test_search_shows_formulas_as_text(browser, site, address):
    """Of what is found no command; of some formulas all."""
    with Visit(browser, f"{address}/search.html?q=projection") as visit:
        visit.page.wait_for_function(
            "document.querySelector('#search-results').textContent.includes('finished')"
        )
        excerpts = visit.page.locator("p.context").all_text_contents()
        assert excerpts and not re.search(
            r"\\(hat|overline|t?frac|mathrm|sigma|gamma|[()])", "".join(excerpts)
        )
        texts = visit.page.evaluate(
            "sources => sources.map(source => Search.htmlToText(source))",
            [
                f"<div role=main><p class=math>{tex}</p></div>"
                for tex in (
                    r"\(\frac{1}{\sqrt{\sigma^2 + \varepsilon}}\)",
                    r"\(\hat x - \overline g\)",
                    (
                        r"\[\begin{aligned} a &\le \mathrm u \\ \class{ln-blue}{\mu} &="
                        r" 0\end{aligned}\]"
                    ),
                )
            ],
        )
        assert [text.strip() for text in texts] == [
            "1/(√(σ^2 + ε))",
            "x\u0302 − g\u0304",
            "a ≤ u μ = 0",
        ]


# Every kind of word that the style sheets colour in code, put into the page's first cell: its
# class, its colour and what is behind it; hll is a line, not a word. axe says nothing of words on a
# background with a gradient, which code has.
CODE_COLOURS = """() => {
    const pre = document.querySelector('.cell_input .highlight pre'), kinds = new Set(['']);
    for (const sheet of document.styleSheets) for (const rule of sheet.cssRules)
        for (const found of (rule.selectorText || '').matchAll(/\\.highlight \\.(\\w+)/g)) kinds.add(found[1]);
    kinds.delete('hll');
    const behind = getComputedStyle(document.documentElement).getPropertyValue('--pst-color-surface');
    pre.style.setProperty('background', behind, 'important');
    return [...kinds].map(kind => {
        const word = Object.assign(document.createElement('span'), {className: kind, textContent: 'x'});
        pre.append(word);
        const style = getComputedStyle(word), own = style.backgroundColor;
        return [kind, style.color, own === 'rgba(0, 0, 0, 0)' ? getComputedStyle(pre).backgroundColor : own];
    }); }"""  # noqa: E501


@pytest.mark.parametrize("theme", (pytest.param("light", marks=pytest.mark.slow), "dark"))
def test_code_can_be_read(browser, address, theme):
    with Visit(browser, f"{address}/book/{CHAPTERS[2].stem}.html", theme=theme) as visit:
        found = visit.page.evaluate(CODE_COLOURS)
        assert len(found) > 60
        assert [kind for kind in found if contrast(*kind[1:]) < 4.5] == []  # WCAG 2.1, 1.4.3


@pytest.mark.slow
def test_dark_theme_inverts_line_figures_only(browser, site):
    url = (site / f"book/{CHAPTERS[0].stem}.html").as_uri()
    for theme, expected in (("dark", "invert(0.92) hue-rotate(180deg)"), ("light", "none")):
        with Visit(browser, url, theme=theme) as visit:
            filters = visit.page.evaluate(
                "[...document.querySelectorAll('img.ln-invert')].map(i =>"
                " getComputedStyle(i).filter)"
            )
            assert filters and set(filters) == {expected}


def test_answers_are_folded_and_open_by_keyboard(browser, site):
    with Visit(browser, (site / f"book/{CHAPTERS[0].stem}.html").as_uri()) as visit:
        hidden = (
            "[...document.querySelectorAll('.solution.dropdown')].map(e =>"
            " e.classList.contains('toggle-hidden'))"
        )
        visit.page.wait_for_function(f"({hidden}).every(x => x) && ({hidden}).length >= 3")
        visit.page.focus(".solution.dropdown button.toggle-button")
        visit.page.keyboard.press("Enter")
        assert visit.page.evaluate(hidden)[0] is False
        # Answers to questions are native: closed at first, no script.
        answer = visit.page.locator("details.ln-answer").first
        assert not answer.locator("p").first.is_visible()
        answer.locator("summary").focus()
        visit.page.keyboard.press("Enter")
        assert answer.locator("p").first.is_visible()


@pytest.mark.slow
def test_an_aside_is_folded_and_opens_by_keyboard_by_link_and_by_search(browser, site):
    url = (site / f"book/{CHAPTERS[1].stem}.html").as_uri()
    seen = (
        "() => document.querySelector('details.ln-aside >"
        " p').checkVisibility({contentVisibilityAuto: true})"
    )
    with Visit(browser, url) as visit:
        assert not visit.page.evaluate(seen)
        visit.page.locator("details.ln-aside > summary").first.focus()
        visit.page.keyboard.press("Enter")
        assert visit.page.evaluate(seen)
        inside = visit.page.evaluate("document.querySelector('details.ln-aside [id]').id")
        word = visit.page.evaluate(
            "document.querySelector('details.ln-aside > p').textContent.match(/[a-z]{9,}/)[0]"
        )
    with Visit(browser, f"{url}#{inside}") as visit:
        visit.page.wait_for_function(seen)
    with Visit(browser, url) as visit:
        visit.page.evaluate(f"localStorage.setItem('sphinx_highlight_terms', '{word}')")
        visit.page.reload()
        visit.page.wait_for_function(seen)


@pytest.mark.parametrize("javascript", (pytest.param(True, marks=pytest.mark.slow), False))
def test_paper_shows_what_is_folded(browser, site, tmp_path, javascript):
    from bs4 import BeautifulSoup

    if not shutil.which("pdftotext"):
        skip("no pdftotext (poppler-utils) to read what was printed", "LN_REQUIRE_BROWSER")
    path = site / f"book/{CHAPTERS[1].stem}.html"
    page = browser.new_page(java_script_enabled=javascript)
    page.goto(path.as_uri())
    if javascript:
        page.evaluate("async () => { await window.MathJax?.startup?.promise; }")
        page.wait_for_selector(".solution.toggle-hidden")
    page.pdf(path=tmp_path / "page.pdf")
    page.close()
    # Neither way of reading puts letters of formulas in the right place everywhere: at the end of a
    # sheet, or in tables.
    printed = "".join(
        subprocess.run(
            ["pdftotext", *raw, tmp_path / "page.pdf", "-"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for raw in (["-raw"], [])
    )
    article = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").article
    for part in article.select(".math, .headerlink"):
        part.replace_with("MATHS")
    sentences = [
        s
        for p in article.select(".ln-answer p, .solution p, .ln-aside > p")
        for s in re.split(r"[.:;]\s", p.text)
        if "MATHS" not in s and len(s) > 30
    ]
    assert len(sentences) > 10

    def letters(text):
        return re.sub(r"[^a-z0-9]", "", text.lower().replace("ﬁ", "fi").replace("ﬂ", "fl"))

    assert [s for s in sentences if letters(s) not in letters(printed)] == []


def test_paper_shows_folded_output_and_no_folded_code(browser, site):
    path = next(path for path in CHAPTERS if "[hide-output]" in path.read_text(encoding="utf-8"))
    seen = "all => all.map(part => part.checkVisibility({contentVisibilityAuto: true}))"
    with Visit(browser, (site / f"book/{path.stem}.html").as_uri()) as visit:
        for medium, output in (("screen", False), ("print", True)):
            visit.page.emulate_media(media=medium)
            assert set(visit.page.eval_on_selector_all("details.below-input table", seen)) == {
                output
            }
            assert set(visit.page.eval_on_selector_all("details.above-input pre", seen)) == {False}


@pytest.mark.slow
def test_paper_is_light(browser, site):
    """Printed from the dark theme, text is as dark as from the light one; the screen is dark again
    afterwards.
    """
    colour = "getComputedStyle(document.querySelector('article section > p:not([class])')).color"
    with Visit(browser, (site / f"book/{CHAPTERS[1].stem}.html").as_uri(), theme="dark") as visit:
        on_screen = visit.page.evaluate(colour)
        visit.page.evaluate(
            f"addEventListener('beforeprint', () => {{ window.printed = {colour}; }})"
        )
        visit.page.pdf()
        printed, after = visit.page.evaluate("window.printed"), visit.page.evaluate(colour)
    assert (
        max(map(int, re.findall(r"\d+", printed)))
        < 64
        < min(map(int, re.findall(r"\d+", on_screen)))
    )
    assert after == on_screen


def test_long_code_is_divided_between_sheets(browser, site):
    """Chromium keeps whole what scrolls and what is a flex box, and leaves the rest of the sheet
    empty.
    """
    with Visit(browser, (site / "book/validate-your-own.html").as_uri()) as visit:
        visit.page.emulate_media(media="print")
        found = visit.page.evaluate("""() => [...document.querySelectorAll('.ln-long')]
            .flatMap(e => [e, e.parentElement, e.querySelector('pre')]).map(getComputedStyle)
            .map(s => [s.breakInside, s.overflow, s.display].join(' '))""")
    assert found and {*found} == {"auto visible block"}


def test_the_keyboard_reaches_an_exercise(browser, site):
    """From the title, by Tab alone: every stop can be seen and is marked (so none lies in a folded
    answer), and one opens.
    """
    stop = """() => { const e = document.activeElement, box = e.getBoundingClientRect(), style = getComputedStyle(e);
        return {key: e.outerHTML.slice(0, 200), solution: !!e.closest('.solution'),
                button: e.classList.contains('toggle-button'), seen: box.width > 0 && box.height > 0,
                marked: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0
                        || style.boxShadow !== 'none' || style.textDecorationThickness !== 'auto'}; }"""  # noqa: E501
    with Visit(browser, (site / f"book/{CHAPTERS[2].stem}.html").as_uri()) as visit:
        page = visit.page
        page.wait_for_selector(".solution button.toggle-button")
        page.evaluate("const h = document.querySelector('article h1'); h.tabIndex = -1; h.focus()")
        stops = []
        while not (stops and stops[-1]["solution"] and stops[-1]["button"]) and len(stops) < 400:
            page.keyboard.press("Tab")
            stops.append(page.evaluate(stop))
        assert stops[-1]["button"] and all(s["seen"] for s in stops)
        assert not [s["key"] for s in stops if not s["marked"]]
        page.keyboard.press("Enter")
        assert page.evaluate("!document.activeElement.closest('.toggle-hidden')")
