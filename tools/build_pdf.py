"""Print the built book as one PDF, ``_build/layer-norm-backwards-<version>.pdf``, with contents,
page numbers and an outline: `make pdf`, after `make book`, with Chromium or Chrome on the PATH.

All pages are put behind one another in one page, which Chromium prints: a link between pages is
then one within the PDF. It is printed twice, for only a print tells which part stands on which
sheet. A blank sheet is an error. Two runs on one site give the same bytes, with the same version of
Chromium and the same fonts on the machine.
"""

import datetime
import io
import os
import re
import sys
from html import escape
from pathlib import Path

import yaml
from bs4 import BeautifulSoup
from build_offline import SITE, offer, version
from chrome import CHROME, FLAGS

ROOT = Path(__file__).resolve().parent.parent
SHEET = {
    "format": "A4",
    "scale": 0.8,
    "margin": {"top": "16mm", "bottom": "18mm", "left": "12mm", "right": "12mm"},
    "tagged": True,
    "display_header_footer": True,
    "header_template": "<span></span>",
    "footer_template": '<div style="width: 100%; text-align: center; font: 9px sans-serif"><span'
    ' class="pageNumber"></span></div>',
}
STYLE = (ROOT / "tools/pdf.css").read_text(encoding="utf-8")


def pages(toc):
    """[(name of the part, or None; pages)] in the order of reading, without the API's: half as many
    sheets again, which nobody reads in order.
    """
    parts = [(None, [toc["root"]])]
    parts += [(part.get("caption"), [c["file"] for c in part["chapters"]]) for part in toc["parts"]]
    return [
        (part, [file.split("/")[-1] for file in files if not file.startswith("book/api")])
        for part, files in parts
    ]


def page_of(site, name):
    return BeautifulSoup((site / f"book/{name}.html").read_text(encoding="utf-8"), "html.parser")


def article(site, name, names):
    """The text of a page; its ids and links begin with its name."""
    found = page_of(site, name).article
    for part in found.select("script, .headerlink, .ln-launch, .ln-launch-note"):
        part.decompose()
    for part in found.select("[id]"):
        part["id"] = f"{name}--{part['id']}"
    for part in found.select("details:not(.hide)"):
        part["open"] = ""
    for link in found.select("a[href]"):
        page, _, place = link["href"].partition("#")
        target = page.removesuffix(".html") or name
        if target in names and (not page or page.endswith(".html")):
            link["href"] = f"#{target}" + f"--{place}" * bool(place)
        elif "://" not in link["href"]:
            del link["href"]
    found["id"] = name
    return found


def headings(found):
    """(title, id) of a page and [(title, id)] of its sections."""

    def heading(tag):
        words = re.sub(r"\\[()]", "", tag.get_text())  # a formula of one letter, not yet set
        return re.sub(r"\s+", " ", words).strip(), tag.find_parent("section")["id"]

    return heading(found.h1), [heading(tag) for tag in found.select("h2")]


def contents(parts):
    """The list of parts, pages and sections as HTML."""

    def line(title, place):
        shown = f'<span>{escape(title)}</span><span data-page="{place}">000</span>'
        return f'<a href="#{place}">{shown}</a>'

    def page(found):
        heading, sections = headings(found)
        inside = "".join(f"<li>{line(*section)}</li>" for section in sections)
        return f"<li>{line(*heading)}<ol>{inside}</ol></li>"

    def part(title, found):
        pages = "".join(map(page, found))
        return f"<li>{title}<ol>{pages}</ol></li>" if title else pages

    return "".join(part(*one) for one in parts)


def whole(site, parts):
    """The book as one page of HTML, with style sheets and MathJax."""
    first = page_of(site, parts[-1][1][0]["id"])
    for script in first.head.select("script"):
        if not re.search("mathjax|ln.js", str(script), re.I):
            script.decompose()
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    first.title.string = config["title"]
    lines = config["author"], f"Version {version()}", config["html"]["extra_footer"]
    cover = f"<h1>{config['title']}</h1>" + "".join(f"<p>{line}</p>" for line in lines)
    text = "".join(str(found) for _, articles in parts for found in articles)
    list_of = f'<nav id="contents"><h2>Contents</h2><ol>{contents(parts)}</ol></nav>'
    inside = f'<div id="cover">{cover}</div>{list_of}{text}'
    inside = f'<div class="bd-content"><div class="bd-article-container">{inside}</div></div>'
    body = f'<body><main class="bd-main">{inside}</main></body>'
    start = '<!DOCTYPE html><html lang="en" data-theme="light" data-mode="light">'
    return f"{start}{first.head}<style>{STYLE}</style>{body}</html>"


def sheets(pdf):
    """{id: number of its sheet} of what the print has links to."""
    return {
        name.removeprefix("/"): pdf.get_destination_page_number(place) + 1
        for name, place in pdf.named_destinations.items()
    }


SETTLED = "async () => { await window.MathJax.startup.promise; await document.fonts.ready; }"
FILL_IN = """found => document.querySelectorAll('[data-page]').forEach(
    e => e.textContent = found[e.dataset.page])"""


def print_twice(html, address):
    """The PDF of a page of HTML at an address; its contents filled in."""
    from playwright.sync_api import sync_playwright
    from pypdf import PdfReader

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROME, args=FLAGS)
        page = browser.new_page()
        page.set_default_timeout(300_000)
        page.route(address, lambda route: route.fulfill(body=html, content_type="text/html"))
        page.goto(address)
        page.evaluate(SETTLED)
        found = sheets(PdfReader(io.BytesIO(page.pdf(**SHEET))))
        page.evaluate(FILL_IN, found)
        printed = page.pdf(**SHEET)
        browser.close()
    return printed


def finish(printed, parts, target):
    """Write the print with an outline and a date that is no clock's; refuse a blank sheet."""
    from pypdf import PdfReader, PdfWriter

    pdf = PdfReader(io.BytesIO(printed))
    texts = {number: sheet.extract_text() for number, sheet in enumerate(pdf.pages, 1)}
    if blank := [n for n, text in texts.items() if not re.sub(rf"\b{n}\b|\s", "", text)]:
        raise ValueError(f"sheets: found nothing on {blank}, expected something on every one")
    numbers, writer = sheets(pdf), PdfWriter(clone_from=pdf)

    def line(title, place, above=None, bold=False):
        where = {"page_number": numbers[place] - 1, "parent": above}
        return writer.add_outline_item(title=title, bold=bold, **where)

    for part, articles in parts:
        above = line(part, headings(articles[0])[0][1], bold=True) if part else None
        for heading, sections in map(headings, articles):
            page = line(*heading, above)
            for section in sections:
                line(*section, page)
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", 1767225600))
    stamp = f"D:{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y%m%d%H%M%S}Z"
    writer.add_metadata({"/CreationDate": stamp, "/ModDate": stamp})
    writer.write(target)
    return len(pdf.pages)


def build(site, parts, target):
    """Print these pages of a site, [(part, names)], into ``target``; the number of sheets."""
    names = [name for _, inside in parts for name in inside]
    parts = [(part, [article(site, name, names) for name in inside]) for part, inside in parts]
    # Beside the pages, for their addresses of pictures and style sheets, but in no file.
    address = (site / "book/whole-book.html").as_uri()
    return finish(print_twice(whole(site, parts), address), parts, target)


def main():
    if not CHROME:
        sys.exit("No Chromium or Chrome on the PATH to print the book with.")
    target = SITE.parent / f"layer-norm-backwards-{version()}.pdf"
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    count = build(SITE, pages(toc), target)
    offer(SITE, target, "The book as a PDF")
    print(f"The book as a PDF: {target} ({count} pages, {target.stat().st_size / 1e6:.0f} MB)")


if __name__ == "__main__":
    main()
