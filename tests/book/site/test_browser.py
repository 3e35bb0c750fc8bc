"""The built pages in a real browser: maths, phone width, both themes, search, from disk."""

import re
import shutil
import subprocess

import pytest
from browsing import Visit, skip, small_type, violations
from pages import BOOK, CHAPTERS
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

# On a phone, what scrolls: code, tables, formulas, prints but in columns; formulas below 2/3 size.
SIDEWAYS = r"""() => [...document.querySelectorAll(
    'article :is(.highlight pre, .exercise pre, .pst-scrollable-table-container, mjx-container[display], p mjx-math)')]
    .filter(e => e.matches('p *') ? e.getBoundingClientRect().right > innerWidth - 5
        : e.matches('mjx-container') && parseFloat(getComputedStyle(e).fontSize) < 40 / 3
          || e.scrollWidth > e.clientWidth + 2 && e.textContent.split(/\S {2,}\S/).length < 3).map(e => e.textContent)"""  # noqa: E501

# What paper, on which nothing scrolls, would cut off.
CUT = """() => [...document.querySelectorAll('article :is(pre, .ln-cells, mjx-container[display], table)')]
    .filter(e => e.checkVisibility() && (e.scrollWidth > e.clientWidth + 2
                 || e.getBoundingClientRect().right > document.documentElement.clientWidth + 1))
    .map(e => e.textContent.slice(0, 60))"""  # noqa: E501

# Formulas that are made smaller for paper than it is wide.
TOO_SMALL = """() => [...document.querySelectorAll('mjx-container[display]')]
    .filter(e => e.style.fontSize.endsWith('px') && e.querySelector('mjx-math').offsetWidth < 590)
    .map(e => e.textContent)"""

NO_FORMULA_IS_RAW = "!document.querySelector('.math:not(:has(mjx-container)), mjx-merror')"
IMAGES_ARE_THERE = "[...document.images].every(i => i.complete && i.naturalWidth > 0)"


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_page_from_disk(visits, site, name):
    """One visit a page, for loading it takes seconds. Every other page is dark, and axe sees it on
    a phone; the others are light, and axe sees them on a wide screen; of the pages that docstrings
    make, long ones, it sees the first. What is missing or elsewhere fails from disk first.
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
        assert page.evaluate(SIDEWAYS) == []
        elements = page.evaluate("document.querySelectorAll('*').length")
        assert not name.startswith("api") or elements < 10_000
        judged = not name.startswith("api-")
        assert not (dark and judged) or violations(page) == []
        for width in (360, 701, 1024, 1440):  # narrow drawings end at 700, the menu begins by 1024
            page.set_viewport_size({"width": width, "height": 900})
            assert small_type(page, site / "_images") == [], width
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(IMAGES_ARE_THERE)
        assert dark or not judged or violations(page) == []
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(TOO_SMALL) == []
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 703, "height": 1000})  # A4 between margins of 12 mm
        assert page.evaluate(CUT) == []


@pytest.mark.parametrize("name", ["index", CHAPTERS[0].stem])
def test_page_from_a_server(visits, address, name):
    """One page of each kind; those with interactive figures are in test_interactive.py."""
    with Visit(visits, f"{address}/book/{name}.html", width=360, theme="dark") as visit:
        visit.stays_at(address)
        assert visit.page.evaluate(IMAGES_ARE_THERE) and visit.page.evaluate(NO_FORMULA_IS_RAW)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360


ICON_ENDS = "document.querySelector('main .bd-search i').getBoundingClientRect().right"
LETTERS_BEGIN = """(field => field.getBoundingClientRect().left + parseFloat(getComputedStyle(field).paddingLeft))(
    document.querySelector('main .bd-search input'))"""  # noqa: E501

FOUND = {
    "rmsnorm backward": "14-gpu-backward.html#ex-rms-backward",
    "catastrophic cancellation": "07-computing-the-variance.html#subtraction-is-innocent",
    "atomics": "14-gpu-backward.html#stage-two-one-kernel-with-atomic-additions",
    "bf16": "14-gpu-backward.html#what-language-models-run",
    "gradient check tolerance": "04-gradient-checking.html#a-tolerance-you-can-derive",
    "why two reductions": "03-backward-pass.html#two-means-are-enough",
    "Welford": "07-computing-the-variance.html#a-perfect-variance-a-wrong-result",
    "torch.autograd.Function": "#the-same-backward-in-pytorch-jax-triton-and-cuda",
}


def test_search_leads_to_sections(browser, site, address):
    """While one types, also by words that are not the book's. It shows the section's own text."""
    for root in (site.as_uri(), address):
        with Visit(browser, f"{root}/search.html?q=two reductions", theme="dark") as visit:
            page, first = visit.page, "ul.search li:nth-child(-n+3) a"
            page.wait_for_selector("ul.search span.highlighted")
            for words, place in FOUND.items():
                page.fill("main input[name=q]", words)
                page.wait_for_selector(f"{first}[href$='{place}']")
            hidden = "from disk", "import numpy", "Contents"
            assert not any(words in page.inner_text("ul.search") for words in hidden)
            visit.stays_at(root if root == address else "file:")  # axe itself asks for style sheets
            assert violations(page, "main") == []
            assert page.evaluate(ICON_ENDS) <= page.evaluate(LETTERS_BEGIN)
            page.locator(first).first.click()
            page.wait_for_selector("article span.highlighted")


def test_answers_are_folded_and_open_by_keyboard(visits, site):
    with Visit(visits, f"{site.as_uri()}/book/{CHAPTERS[0].stem}.html", maths=False) as visit:
        hidden = "[...document.querySelectorAll('.solution.dropdown')].map(e => e.matches('.toggle-hidden'))"  # noqa: E501
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
    folded = article.select(".ln-answer p, .solution p, .ln-aside > p")
    parts = [s for p in folded for s in re.split(r"[.:;]\s", p.text)]
    sentences = [s for s in parts if "MATHS" not in s and len(s) > 30]
    assert len(sentences) > 10

    def letters(text):
        return re.sub(r"[^a-z0-9]", "", text.lower().replace("ﬁ", "fi").replace("ﬂ", "fl"))

    assert [s for s in sentences if letters(s) not in letters(printed)] == []


def test_the_keyboard_reaches_an_exercise(visits, site):
    """By Tab alone, from the title, in 60 stops: each is seen and marked; a solution opens."""
    stop = """() => { const e = document.activeElement, shown = e.matches('.sd-tab-set > input') ? e.labels[0] : e;
        const box = shown.getBoundingClientRect(), style = getComputedStyle(shown);
        return {key: e.outerHTML.slice(0, 200), solution: !!e.closest('.solution'), exercise: !!e.closest('.exercise'),
                button: e.classList.contains('toggle-button'), seen: box.width > 0 && box.height > 0 && style.opacity > 0,
                marked: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0
                        || style.boxShadow !== 'none' || style.textDecorationThickness !== 'auto'}; }"""  # noqa: E501
    with Visit(visits, (site / f"book/{CHAPTERS[2].stem}.html").as_uri()) as visit:
        page = visit.page
        page.wait_for_selector(".solution button.toggle-button")
        page.evaluate("const h = document.querySelector('article h1'); h.tabIndex = -1; h.focus()")
        stops = []
        while not (stops and stops[-1]["solution"] and stops[-1]["button"]) and len(stops) < 400:
            page.keyboard.press("Tab")
            stops.append(page.evaluate(stop))
        assert stops[-1]["button"] and [s["exercise"] for s in stops].index(True) <= 60
        assert not [s["key"] for s in stops if not s["seen"] or not s["marked"]]
        page.keyboard.press("Enter")
        assert page.evaluate("!document.activeElement.closest('.toggle-hidden')")


def test_a_guess_is_kept_beside_the_result(browser, site):
    with Visit(browser, f"{site.as_uri()}/book/{CHAPTERS[3].stem}.html", maths=False) as visit:
        box, covered = map(visit.page.locator, (".ln-predict", ".ln-covered"))
        assert covered.count() >= 2  # the table, and the sentences on it
        box.get_by_label("Your guess").fill("three")
        visit.page.keyboard.press("Enter")
        for again in (visit.page.reload, lambda: visit.stays_at("file:")):
            assert covered.count() == 0 and box.get_by_text("You guessed: three").is_visible()
            again()


@pytest.mark.parametrize("name", ["eq-moves", "eq-dx", "eq-backward", "eq-twenty"])
def test_a_term_lights_up_with_its_code(visits, site, name):
    (page,) = (path for path in SOURCES if f"$$ ({name})" in path.read_text("utf-8"))
    with Visit(visits, (site / f"book/{page.stem}.html").as_uri()) as visit:
        for colour, (code, *drawn) in visit.page.evaluate(f"LN_TERMS['{name}']").items():
            assert len(drawn) <= 1
            visit.page.locator(f"#equation-{name} .ln-{colour}").first.dispatch_event("pointerover")
            assert visit.page.evaluate(f"CSS.highlights.get('ln-{colour}').size") >= 1, code
            assert visit.page.locator(f"#equation-{name} .ln-lit").count() >= 1
        letters = visit.page.locator("mjx-mi")
        letters.evaluate_all(
            "(all) => all.forEach((letter) => letter.dispatchEvent("
            "new PointerEvent('pointerover', { bubbles: true })))"
        )
        titles = set(letters.evaluate_all("(all) => all.map((letter) => letter.title)"))
        assert "x\u0302: normalised row" in titles
        notation = (BOOK / "notation.md").read_text("utf-8").replace("*", "")
        notation = notation.replace("$\\hat x$", "x\u0302").replace("$\\mathrm u$", "u")
        for meaning in visit.page.evaluate("Object.values(LN_SYMBOLS)"):
            assert meaning.removeprefix("square root of the ") in notation


def test_the_matrix_says_which_two_tests_find_all(visits, site):
    with Visit(visits, f"{site.as_uri()}/book/{CHAPTERS[4].stem}.html", 360, maths=False) as visit:
        box = visit.page.locator(".ln-matrix")
        box.get_by_label("Choose a test").select_option(index=1)
        assert box.locator("[aria-pressed=true]").count() == 1
        box.get_by_text("Which two tests miss least?").click()
        of = box.locator("tbody tr").count()
        assert f"together find all {of}." in box.get_by_role("status").inner_text()
        box.get_by_text("only what the chosen miss").click()
        assert box.locator("tbody tr:visible").count() == 0
        box.locator("[aria-pressed=true]").first.click()
        left, said = box.locator(".ln-left:visible"), box.get_by_role("status").inner_text()
        assert f"leaves {left.count()} of {of}: " in said and left.count() > 0
        box.locator("tbody th").first.focus()
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
