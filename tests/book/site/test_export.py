"""The chapters as notebooks: plain Markdown, the page's words and code, no solutions."""

import hashlib
import json
import re
from urllib.parse import parse_qs, urlparse

import pytest
from pages import CHAPTERS, NOTEBOOKS, ROOT, read

from lnbook.exercises import exercises

pytest.importorskip("jupytext")  # the environment of the book
import build_site  # noqa: E402
import fetch_pyodide  # noqa: E402
import ln_launch  # noqa: E402
import ln_notebook  # noqa: E402
import nbformat  # noqa: E402
from bs4 import BeautifulSoup  # noqa: E402

pytestmark = pytest.mark.site

NAMES = [path.stem for path in NOTEBOOKS]


@pytest.fixture(scope="module")
def notebooks(site):
    return {name: nbformat.read(site / f"notebooks/{name}.ipynb", as_version=4) for name in NAMES}


@pytest.fixture(scope="module")
def articles(site):
    """The pages, parsed."""
    pages = {name: (site / f"book/{name}.html").read_text(encoding="utf-8") for name in NAMES}
    return {name: BeautifulSoup(page, "html.parser").article for name, page in pages.items()}


def markdown(notebook):
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def letters(text):
    return re.sub(r"[^a-z0-9]", "", text.lower())


PAGE_ALONE = "solution", "cell_output", "ln-launch", "ln-launch-note", "admonition-title"


@pytest.mark.slow
def test_the_text_is_the_pages(articles, notebooks):
    """Each paragraph of the page without maths stands in the notebook."""
    for name, notebook in notebooks.items():
        text = letters(re.sub(r"\]\([^)\s]*\)|</?sup>", "", markdown(notebook)))
        paragraphs = [
            p.text
            for p in articles[name].find_all("p")
            if not p.find(class_="math")
            and not any({*PAGE_ALONE} & {*box.get("class", ())} for box in (p, *p.parents))
        ]
        assert len(paragraphs) > 10
        for paragraph in paragraphs:
            plain = letters(paragraph)
            assert plain in text, f"{name}: {paragraph}"


def test_all_visible_code_is_there(notebooks):
    for path in CHAPTERS:
        code = [cell.source for cell in notebooks[path.stem].cells if cell.cell_type == "code"]
        assert "emscripten" in code[0]
        for cell in read(path).cells:
            if "skip-execution" in cell.tags:
                assert any("\n# " + cell.source.replace("\n", "\n# ") in c for c in code)
            elif "remove-cell" not in cell.tags:
                assert ln_notebook.without_glue(cell.source) in code


def test_no_solutions(articles, notebooks):
    every = [cell.source for notebook in notebooks.values() for cell in notebook.cells]
    everything = "\n".join(every)
    for exercise in exercises().values():
        assert f'check("{exercise.id}", ' in everything
        assert f"def {exercise.solution.__name__}(" not in everything, exercise.id
    text, seen = letters(everything), 0
    for path in CHAPTERS:
        for paragraph in articles[path.stem].select(".solution section p"):
            if not paragraph.select(".math"):
                seen += 1
                assert letters(paragraph.text) not in text, paragraph
    assert seen > 10


def test_every_launch_address_leads_to_a_file(site, tmp_path):
    content, repository = tmp_path / "content", "https://github.com/owner/book"
    build_site.collect_contents(site, content)
    for name in NAMES:
        page = (site / f"book/{name}.html").read_text(encoding="utf-8")
        row = re.search(r'<p class="ln-launch">(.*?)</p>', page, re.S)[1]
        assert (site / "book" / re.search(r'href="([^"]+)"', row)[1]).is_file()
        found = dict(ln_launch.buttons(name, repository, f"main/book/{name}.md", True))
        (path,) = parse_qs(urlparse(found["Open as a notebook"]).query)["path"]
        assert (content / path).is_file()
        host, colab = found["Open in Colab"].split("/github/owner/book/blob/notebooks/")
        assert host == "https://colab.research.google.com" and (content / colab).is_file()
        assert (ROOT / found["Edit"].removeprefix(f"{repository}/edit/main/")).is_file()


def test_pyodide_files_are_checked(tmp_path, monkeypatch):
    content, release, fetched = b"the right content", tmp_path / "release", tmp_path / "fetched"
    release.mkdir()
    (release / "a.whl").write_text("something else")
    (release / "not-listed.js").write_text("something else")
    package = {"file_name": "a.whl", "sha256": hashlib.sha256(content).hexdigest()}
    # A distributor may add packages and reorder the lock; what is kept of it is always spelt the
    # same.
    more = {"b": {"file_name": "b.whl", "sha256": "0"}, "a": package}
    (release / "pyodide-lock.json").write_text(json.dumps({"packages": more, "info": 1}))
    spelt = json.dumps({"info": 1, "packages": {"a": package}}, sort_keys=True).encode()
    listed = {"a.whl": package["sha256"], "pyodide-lock.json": hashlib.sha256(spelt).hexdigest()}
    monkeypatch.setattr(fetch_pyodide, "LISTED", listed)
    with pytest.raises(SystemExit, match=r"^1 of .* SHA-256, among them a\.whl"):
        fetch_pyodide.fetch([release], fetched)
    assert [p.name for p in fetched.iterdir()] == ["pyodide-lock.json"]

    (release / "a.whl").write_bytes(content)
    expected = {"a.whl": content, "pyodide-lock.json": spelt}
    for damage in ("nothing", "a file"):
        if damage == "a file":
            (fetched / "a.whl").write_text("damaged")
        assert fetch_pyodide.fetch([release], fetched) == fetched
        assert {p.name: p.read_bytes() for p in fetched.iterdir()} == expected
