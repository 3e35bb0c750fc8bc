"""The built site: complete in itself, every figure described, nothing asked of third parties."""

import re
from html.parser import HTMLParser

import pytest
from pages import CHAPTERS

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def html(site):
    return {
        path.relative_to(site).as_posix(): path.read_text(encoding="utf-8")
        for path in site.rglob("*.html")
        if "_static" not in path.parts
    }


@pytest.fixture(scope="module")
def tags(html):
    """The start tags of each page, with their attributes."""
    found = {}
    for name, text in html.items():
        parser, found[name] = HTMLParser(), []
        parser.handle_starttag = lambda tag, a, to=found[name]: to.append((tag, dict(a)))
        parser.feed(text)  # a tag that ends itself is handled as one that starts, too
    return found


def test_chapters_show_outputs(html):
    for path in CHAPTERS:
        text = html[f"book/{path.stem}.html"]
        # Twelve cells that print, at least; a page that was not executed has none.
        assert text.count('class="cell_output') >= 12
        assert "glue:text" not in text and "Traceback" not in text
        # Folded code stands below its figure, and says whose it is.
        assert "Show code cell source" not in text
        folded = text.count('class="cell tag_hide-input')
        assert len(re.findall('title">Code (?:of|that) ', text)) == 2 * folded


def test_nothing_is_loaded_from_elsewhere(site, tags):
    for name, found in tags.items():
        for tag, attributes in found:
            for key in ("src", "srcset", "data", "poster") + (("href",) if tag == "link" else ()):
                value = attributes.get(key) or ""
                if attributes.get("rel") == "canonical":
                    continue
                assert not re.match(r"(https?:)?//", value), f"{name}: <{tag} {key}={value}>"
    for name, text in ((p.name, p.read_text(encoding="utf-8")) for p in site.glob("book/*.html")):
        for script in re.findall(r"<script[^>]*>(.*?)</script>", text, re.S):
            assert not re.search(r"https?://", script), f"{name}: {script[:80]}"
    for style in site.rglob("*.css"):
        css = style.read_text(encoding="utf-8")
        loads = r"url\(['\"]?(https?:)?//|@import\s+['\"]?(url\()?['\"]?https?:"
        assert not re.search(loads, css), style.name


def test_links_inside_the_site_resolve(site, tags):
    ids = {
        name: (
            {a["id"] for _, a in found if a.get("id")}
            | {a["name"] for t, a in found if t == "a" and a.get("name")}
        )
        for name, found in tags.items()
    }
    for name, found in tags.items():
        for _tag, attributes in found:
            target = attributes.get("href") or attributes.get("src") or ""
            if not target or re.match(r"[a-z]+:|//", target) or "?" in target:
                continue
            path, _, fragment = target.partition("#")
            resolved = (site / name).parent.joinpath(path).resolve() if path else site / name
            assert resolved.exists(), f"{name}: {target}"
            if fragment and resolved.suffix == ".html" and name.startswith("book/"):
                assert fragment in ids[resolved.relative_to(site).as_posix()], f"{name}: {target}"
