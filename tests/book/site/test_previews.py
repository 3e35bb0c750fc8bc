"""Links to terms, formulas, figures and works show what they lead to, from a disk too."""

import json
import re

import pytest
from browsing import Visit
from bs4 import BeautifulSoup

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def previews(site):
    text = (site / "_static/ln_previews.js").read_text(encoding="utf-8")
    return json.loads(text.removeprefix("LN_PREVIEWS = ").rstrip(";\n"))


def test_every_kind_of_target_has_a_preview(site, previews):
    glossary = BeautifulSoup(
        (site / "book/notation.html").read_text(encoding="utf-8"), "html.parser"
    )
    terms = {f"book/notation.html#{term['id']}" for term in glossary.select("dl.glossary dt")}
    assert len(terms) >= 12 and len(terms & previews.keys()) >= 8  # those that a page links to
    for kind in ("#equation-", "#fig-", "book/bibliography.html#"):
        assert any(kind in address for address in previews), kind
    for address, shown in previews.items():
        for path in re.findall(r'(?:src|href)="(?!https?:)([^"#]+)', shown):
            assert (site / path).is_file(), (address, path)


def test_a_link_shows_its_target(visits, site, previews):
    root = site.as_uri()
    with Visit(visits, f"{root}/book/04-gradient-checking.html") as visit:
        page = visit.page
        tip = page.locator("#ln-preview")
        for kind in (
            "a.ln-term",
            "a[href*='#equation-']",
            "a[href*='#fig-']",
            "a[href*='bibliography']",
        ):
            link = page.locator(f"article p {kind}:visible").first
            link.scroll_into_view_if_needed()
            link.hover()
            tip.wait_for(state="visible")
            key = link.evaluate("a => a.href").removeprefix(f"{root}/")
            words = BeautifulSoup(previews[key], "html.parser").get_text().split()
            assert words[-1] in tip.inner_text() or "\\" in words[-1], kind
            assert "\\" not in tip.inner_text(), kind
            box = tip.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= 1200
            page.keyboard.press("Escape")
            assert not tip.is_visible()
        visit.stays_at("file:")


def test_the_keyboard_shows_a_preview_and_its_pictures(visits, site):
    with Visit(visits, f"{site.as_uri()}/book/04-gradient-checking.html", maths=False) as visit:
        page = visit.page
        link = page.locator("article p > a[href*='#fig-']").first
        link.evaluate("a => a.previousSibling && a.closest('p').setAttribute('tabindex', -1)")
        link.evaluate("a => a.closest('p').focus()")
        while not link.evaluate("a => a === document.activeElement"):
            page.keyboard.press("Tab")
        page.locator("#ln-preview").wait_for(state="visible")
        assert link.get_attribute("aria-describedby") == "ln-preview"
        assert page.evaluate(
            "[...document.querySelectorAll('#ln-preview img')].every(i => i.complete)"
        )
        page.keyboard.press("Tab")
        page.wait_for_function("document.querySelector('#ln-preview').hidden")
