"""The built site: complete in itself, every figure described, nothing asked of third parties."""

import re
from html import unescape
from html.parser import HTMLParser

import pytest
import yaml
from fontTools.ttLib import TTFont
from pages import CHAPTERS, PAGES, ROOT

pytestmark = pytest.mark.site


class Tags(HTMLParser):
    """All start tags of a page with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    handle_startendtag = handle_starttag


@pytest.fixture(scope="module")
def html(site):
    return {
        path.relative_to(site).as_posix(): path.read_text(encoding="utf-8")
        for path in site.rglob("*.html")
        if "_static" not in path.parts
    }


@pytest.fixture(scope="module")
def tags(html):
    return {name: Tags(text).tags for name, text in html.items()}


def test_the_front_page_offers_what_the_build_has(html, site):
    live = (site / "_static/live").exists()
    front = html["book/index.html"]
    for said in ("Run in the browser", "Try it", 'id="ex-backward-dx"'):
        assert (said in front) == live, said
    assert "Open in Colab" not in front  # no repository is known
    assert (
        front.index("In twenty minutes")
        < front.index("Start with chapter 1")
        < front.index("<figure")
        and front.count("sd-card-title") == 4
    )


def test_pages_describe_themselves(tags):
    said = {
        name: {
            a.get("name") or a.get("property"): a["content"]
            for tag, a in found
            if tag == "meta" and "content" in a
        }
        for name, found in tags.items()
        if name.startswith("book/")
    }
    pages = {name: said[name] for name in (f"book/{path.stem}.html" for path in PAGES)}
    assert len({meta["description"] for meta in pages.values()}) == len(pages)
    for name, meta in pages.items():
        assert (
            40 <= len(meta["description"]) <= 202 and meta["description"] == meta["og:description"]
        ), name
        assert "\\" not in meta["description"], name  # no TeX
        assert meta["og:title"] and "og:image" not in meta  # it needs the site's address


def test_old_addresses_lead_to_the_pages(html):
    """A page that once was chapter 9 is found where it is now, without scripts too."""
    moved = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"][
        "redirects"
    ]
    assert moved and not set(moved) & {f"book/{path.stem}" for path in PAGES}
    for old, new in moved.items():
        assert f"book/{new}" in html and html[f"{old}.html"].count(f'"{new}"') == 2


def test_chapters_show_outputs(html):
    for path in CHAPTERS:
        text = html[f"book/{path.stem}.html"]
        # Twelve cells that print, at least; a page that was not executed has none.
        assert text.count('class="cell_output') >= 12
        assert "glue:text" not in text and "Traceback" not in text


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
        assert not re.search(
            r"url\(['\"]?(https?:)?//|@import\s+['\"]?(url\()?['\"]?https?:", css
        ), style.name


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


def test_images_are_described(tags):
    images = [
        (name, a["src"], a.get("alt") or "")
        for name, found in tags.items()
        if name.startswith("book/")
        for tag, a in found
        if tag == "img"
    ]
    for name, source, alt in images:
        if source.endswith("-colours.svg"):  # lies under the lines, which say what is seen
            assert not alt
            continue
        assert 40 <= len(alt) <= 350 or "_images/" not in source, f"{name}: alt {alt!r}"
        assert alt and not re.search(r"[0-9a-f]{16}|\.(svg|png)$", alt), f"{name}: alt {alt!r}"
    assert sum("_images/" in source for _, source, _ in images) >= 2 * len(CHAPTERS)


def test_no_range_has_equal_ends(html):
    """Numbers of the text are computed; "1.7 to 1.7 times", which says nothing, shows only once
    they are filled in.
    """
    number = r"[-+\u2212]?\d[\d.,]*(?:e[-+]?\d+)?"
    for name, text in html.items():
        text = re.sub(r"<(script|style|pre|head)\b.*?</\1>", " ", text, flags=re.S)
        text = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", text)))
        for found in re.finditer(
            rf"(?<![\w.])({number}) ?%? ?(?:to|\u2013) ({number})|between ({number}) and"
            rf" ({number})",
            text,
        ):
            low, high = (end.rstrip(".,") for end in found.groups() if end)
            assert low != high, f"{name}: {text[max(0, found.start() - 60) : found.end() + 30]}"


def test_ids_are_unique(tags):
    for name, found in tags.items():
        ids = [attributes["id"] for _, attributes in found if attributes.get("id")]
        twice = {i for i in ids if ids.count(i) > 1}
        # The theme repeats the ids of its own search form and header buttons.
        assert not {i for i in twice if not re.match(r"pst-|search|__", i)}, f"{name}: {twice}"


def test_no_buttons_that_lead_nowhere(html, site):
    for name, text in html.items():
        assert "download-notebook" not in text and "launch-buttons" not in text, name
        assert "executablebooks/jupyter-book" not in text, f"{name}: Jupyter Book's own repository"
        assert not re.search(r'class="[^"]*btn-source-(repository|issues|edit)', text), name
    # No copies of the sources: they would hand out the solutions as downloads.
    assert not (site / "_sources").exists()


def test_no_machine_paths(html):
    for name, text in html.items():
        assert str(ROOT) not in text, name


def test_site_is_light(site, record_property):
    chapter = max((site / f"book/{path.stem}.html").stat().st_size for path in CHAPTERS)
    book = sum(p.stat().st_size for p in site.rglob("*") if p.is_file())
    record_property(
        "measured", f"book {book / 1e6:.1f} MB, largest chapter {chapter / 1e3:.0f} KB of HTML"
    )
    assert chapter <= 400_000 and book <= 15_000_000


def test_the_bibliography_is_labelled_as_the_text_cites(html):
    entries = re.findall(
        r'<span class="label">(.*?)</span>\s*<p>(.*?)</p>', html["book/bibliography.html"], re.S
    )
    labels = [re.sub("<[^>]*>", "", label) for label, _ in entries]
    assert "[Ba et al., 2016]" in labels and len(set(labels)) == len(labels) >= 40
    for label, text in entries:
        assert len(re.findall(r'href="https?://(?:www\.)?arxiv', text)) <= 1, label
    assert (
        re.search(r">\d{4}a</a>", html["book/14-gpu-backward.html"]) and "[NVIDIA, 2026a]" in labels
    )


def test_icons_are_in_the_small_font(site, html):
    """No script draws icons: each that a page names has its rule in the style sheet and its glyph
    in a font.
    """
    sheet = (site / "_static/styles/pydata-sphinx-theme.css").read_text(encoding="utf-8")
    rules = {
        name: int(code, 16)
        for names, code in re.findall(r'((?:\.fa-[\w-]+:before,?)+)\{content:"\\(\w+)"', sheet)
        for name in re.findall(r"fa-[\w-]+", names)
    }
    fonts = [*(site / "_static/vendor/fontawesome").rglob("*.woff")]
    glyphs = {code for font in fonts for code in TTFont(font).getBestCmap()}
    icons = {
        name
        for text in html.values()
        for names in re.findall(r'<i class="([^"]*)"', text)
        for name in re.findall(r"fa-[\w-]+", names)
    } - {"fa-solid", "fa-lg"}
    assert len(icons) >= 9 and {rules[name] for name in icons} <= glyphs
    assert set(re.findall(r"vendor/fontawesome/([^)]*)", sheet)) == {
        f"webfonts/{font.name}" for font in fonts
    }
    assert sum(font.stat().st_size for font in fonts) < 10_000 and not [
        *site.rglob("fontawesome.js")
    ]
    assert not any("fontawesome.js" in text for text in html.values())


def test_only_the_search_page_loads_its_index(html):
    assert [name for name, text in html.items() if "searchindex.js" in text] == ["search.html"]


def test_computed_numbers_stand_as_the_text_writes_its_own(html):
    pasted = re.findall('<span class="pasted-text">(.*?)</span>', "".join(html.values()))
    assert sum("<sup>\u2212" in text for text in pasted) > 20
    verdicts = re.findall("<p><strong>Verdict: .*?</p>", html["book/claims-audited.html"])
    assert len(verdicts) == 32
    assert not [
        text
        for text in pasted + verdicts
        if re.search(r"\de[-+\u2011]?\d|^[-\u2011]\d| [-\u2011]\d", text)
    ]


def test_addresses_in_the_bibliography_can_be_divided(html):
    addresses = re.findall(r'>(https?://[^"]*)</a>', html["book/bibliography.html"])
    assert len(addresses) > 10 and not [
        a for a in addresses if max(map(len, a.split("<wbr>"))) > 45
    ]


def test_where_a_line_does_not_break(html):
    """A number stays beside the formula it is equal to, a comma beside its parameter."""
    for name, text in html.items():
        assert not re.search(
            r'(?<!<span class="ln-keep">)<span class="math[^>]*>[^<]*=\\\)</span> <span'
            r' class="pasted-text">',
            text,
        ), name
        assert not re.search(
            r'(?<!<span class="ln-keep">)<code class="[^"]*ln-keep">[^<]*</code>[,.;:)]', text
        ), name
        assert not re.search(r'class="sig-param">[^<]*</em>[,)]', text), name
        assert not re.search(r'<em class="property">[^<]{100}', text), (
            name
        )  # a table's value is no signature
