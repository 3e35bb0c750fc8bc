"""The book as one PDF: two chapters of it, printed and read."""

import io
import re
import unicodedata

import build_pdf
import pytest
import yaml
from browsing import skip
from chrome import CHROME
from pages import PAGES

pytestmark = [pytest.mark.site, pytest.mark.slow]

pypdf = pytest.importorskip("pypdf", reason="pypdf is not installed; the book's environment has it")


@pytest.fixture(scope="module")
def target(site, tmp_path_factory):
    if not CHROME:
        skip("no Chromium or Chrome on the PATH", "LN_REQUIRE_BROWSER")
    target = tmp_path_factory.mktemp("pdf") / "two.pdf"
    build_pdf.build(site, [("Derive", ["02-derivation", "03-backward-pass"])], target)
    return target


@pytest.fixture(scope="module")
def pdf(target):
    return pypdf.PdfReader(target)


@pytest.fixture(scope="module")
def texts(pdf):
    """Of every sheet; letters that a font joins are two letters again."""
    return [
        re.sub(r"\s+", " ", unicodedata.normalize("NFKC", page.extract_text()))
        for page in pdf.pages
    ]


def entries(outline):
    """(title, what stands below it) of each entry."""
    below = [following if isinstance(following, list) else [] for following in [*outline[1:], []]]
    return [(entry, inside) for entry, inside in zip(outline, below) if not isinstance(entry, list)]


def test_the_outline_leads_to_every_chapter_and_section(pdf, texts):
    ((part, chapters),) = entries(pdf.outline)
    assert part.title == "Derive"
    titles = [chapter.title for chapter, _ in entries(chapters)]
    assert titles == ["2. The derivation", "3. The backward pass"]
    places = []
    for chapter, sections in entries(chapters):
        assert len(sections) > 8
        for entry in (chapter, *sections):
            places.append(pdf.get_destination_page_number(entry))
            assert entry.title in texts[places[-1]]
    assert places == sorted(places)


def test_the_contents_know_the_numbers_of_sheets(pdf, texts):
    ((_, chapters),) = entries(pdf.outline)
    for chapter, sections in entries(chapters):
        for entry in (chapter, *sections):
            assert f"{entry.title} {pdf.get_destination_page_number(entry) + 1}" in texts[1]


def test_the_book_is_printed_without_the_api():
    toc = yaml.safe_load((build_pdf.ROOT / "_toc.yml").read_text(encoding="utf-8"))
    names = [name for _, inside in build_pdf.pages(toc) for name in inside]
    assert sorted(names) == [path.stem for path in PAGES if not path.stem.startswith("api")]


def test_a_link_between_chapters_stays_in_the_pdf(pdf):
    links = [
        annotation.get_object() for page in pdf.pages for annotation in page.get("/Annots", [])
    ]
    inside = {str(link["/Dest"]).removeprefix("/") for link in links if "/Dest" in link}
    assert "02-derivation--equation-eq-dx" in inside and inside <= set(build_pdf.sheets(pdf))
    addresses = [str(link.get("/A", {}).get("/URI", "")) for link in links]
    assert not [address for address in addresses if address.startswith("file:")]


def test_a_screen_reader_is_told_what_is_what(pdf):
    assert pdf.trailer["/Root"]["/MarkInfo"]["/Marked"] and pdf.trailer["/Root"]["/Lang"] == "en"
    assert "/StructTreeRoot" in pdf.trailer["/Root"]


def test_a_blank_sheet_is_refused(target):
    writer = pypdf.PdfWriter()
    writer.append(target, pages=(0, 3))
    writer.add_blank_page()
    printed, again = io.BytesIO(), io.BytesIO()
    writer.write(printed)
    with pytest.raises(ValueError, match=rf"found nothing on \[{len(writer.pages)}\]"):
        build_pdf.finish(printed.getvalue(), [], again)
