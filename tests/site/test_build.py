"""The build itself, on a book of one small chapter: failures stay failures, and lnlib's changes are noticed."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from pages import ROOT

pytest.importorskip("bs4")  # the environment of the book
from bs4 import BeautifulSoup  # noqa: E402

pytestmark = pytest.mark.site

CHAPTER = """\
---
jupytext:
  text_representation: {{extension: .md, format_name: myst, format_version: 0.13}}
kernelspec: {{display_name: Python 3, language: python, name: python3}}
---

# One

## Two

```{{code-cell}} ipython3
import lnlib
{code}
```
"""

#: What a front page says of its build
FRONT = """\
# Home

{.ln-launch}
[Start](one.md)

```{only} live
Run in place.
```

```{only} repository
Open elsewhere.
```

```{try-exercise} easy
Try this.
```

```{cite-this}
```
"""
EXERCISE = """
```{exercise-start} An easy one
:label: ex-easy
```
```{code-cell} ipython3
:tags: [exercise]
def easy(): ...
```
```{exercise-end}
```
"""


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    root = tmp_path_factory.mktemp("book")
    for name in ("lnlib", "tools", "book/_ext", "book/_static", "benchmarks/results/accuracy"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("_config.yml", "requirements.txt", "CITATION.cff"):
        shutil.copy(ROOT / name, root)
    (root / "book/references.bib").write_text("")
    (root / "_toc.yml").write_text("format: jb-book\nroot: book/index\nchapters:\n  - file: book/one\n")
    (root / "book/index.md").write_text(FRONT)
    return root


def build(root, code=None, more="", **variables):
    if code:
        (root / "book/one.md").write_text(CHAPTER.format(code=code) + EXERCISE + more)
    environment = {k: v for k, v in os.environ.items() if k not in ("LN_REPOSITORY_URL", "LN_LIVE")} | variables
    return subprocess.run([sys.executable, "tools/build_book.py"], cwd=root, capture_output=True, text=True,
                          env=environment)


def output(root):
    return (root / "_build/html/book/one.html").read_text()


def test_a_change_in_lnlib_executes_the_page_again(book):
    version = book / "lnlib/__init__.py"
    before = version.read_text()
    run = build(book, "print('version', lnlib.__version__)")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "version 0.1.0" in output(book)
    assert "book/one" in run.stdout and "Executing notebook" in run.stdout
    assert "index.html" in run.stdout.rsplit("The book is built", 1)[1]

    run = build(book)
    assert run.returncode == 0 and "Executing" not in run.stdout

    version.write_text(before.replace('"0.1.0"', '"9.9.9"'))
    run = build(book)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "version 9.9.9" in output(book)

    version.write_text(before)
    run = build(book)
    assert run.returncode == 0 and "Executing" not in run.stdout, "the first result should still be cached"
    assert "version 0.1.0" in output(book)


def test_a_change_in_an_extension_writes_the_notebooks_again(book):
    extension, notebook = book / "book/_ext/ln_notebook.py", book / "_build/html/notebooks/one.ipynb"
    before = extension.read_text()
    build(book, "print(1)")
    assert "In the browser, what you change" in notebook.read_text()
    extension.write_text(before.replace("In the browser, what you change", "What you change here"))
    run = build(book)
    assert run.returncode == 0 and "Executing" not in run.stdout
    assert "What you change here" in notebook.read_text()
    extension.write_text(before)


@pytest.mark.parametrize("code, more, words", [
    ("raise RuntimeError('planted')", "", ("book/one.md", "planted", "Traceback", "NOT built")),
    ("print(1)", "\n{ref}`no-such-label`\n", ("no-such-label",)),
])
def test_what_is_wrong_fails_every_build(book, code, more, words):
    for _ in range(2):
        run = build(book, code, more)
        assert run.returncode != 0 and all(word in run.stdout + run.stderr for word in words)


def test_a_page_says_what_its_build_offers(book):
    """A repository's address brings links, a preview picture and the address to cite; Python brings cells that run."""
    front, picture = book / "_build/html/book/index.html", book / "_build/html/_static/preview.png"
    build(book, "print(1)")
    plain = front.read_text()
    assert "Version 0.1.0" in plain and "layernormbackwards" in plain and not picture.exists()
    assert not [said for said in ("Run in place", "Open elsewhere", "Try this", "og:image") if said in plain]

    address = "https://github.com/owner/book"
    run = build(book, LN_REPOSITORY_URL=address, LN_LIVE="1")
    assert run.returncode == 0, run.stdout + run.stderr
    full = front.read_text()
    assert f"{address}/edit/main/book/one.md" in output(book) and f"{address}/edit/main/book/index.md" in full
    assert f"{address}/issues/new?title=Page" in full and f"url = {{{address}}}" in re.sub("<[^>]*>", "", full)
    assert all(said in full for said in ("Run in place", "Open elsewhere", "Try this"))
    assert 'content="https://owner.github.io/book/_static/preview.png"' in full and picture.read_bytes()[1:4] == b"PNG"
    box = BeautifulSoup(full, "html.parser").select_one(".exercise#ex-easy")
    assert [cell.get_text() for cell in box.select("div.cell .cell_input pre")][1] == "def easy(): ...\n"
    assert "ex-easy" not in plain.replace("#ex-easy", "")


def test_two_builds_are_byte_equal(book):
    """With live cells, a figure and a table: nothing depends on the clock, the order of a set or an earlier build."""
    code = "from lnlib.figures import figure, table\nfig, ax = figure()\nax.plot([0, 1], [0, 1])\ntable(['D'], [[8e-7]])"
    found = []
    for _ in range(2):
        shutil.rmtree(book / "_build", ignore_errors=True)
        run = build(book, code, LN_REPOSITORY_URL="https://github.com/owner/book", LN_LIVE="1")
        assert run.returncode == 0, run.stdout + run.stderr
        html = book / "_build/html"
        found.append({path.relative_to(html).as_posix(): path.read_bytes() for path in html.rglob("*") if path.is_file()})
    first, second = found
    assert first.keys() == second.keys() and any(name.endswith(".svg") for name in first)
    assert [name for name in first if first[name] != second[name]] == []
