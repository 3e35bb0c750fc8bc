"""The build itself, on a book of one small chapter: failures stay failures, and lnlib's changes are
noticed.

A build takes four seconds and more. The tests share those that succeed, in the order in which they
stand here.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest
from pages import PACKAGES, ROOT

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
    for name in (*PACKAGES, "tools", "book/_ext", "book/_static", "benchmarks/results/accuracy"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("_config.yml", "requirements.txt", "requirements-mpi.txt", "CITATION.cff"):
        shutil.copy(ROOT / name, root)
    (root / "book/references.bib").write_text("")
    (root / "_toc.yml").write_text(
        "format: jb-book\nroot: book/index\nchapters:\n  - file: book/one\n"
    )
    (root / "book/index.md").write_text(FRONT)
    return root


CODE = """\
from lnbook.figures import figure, table
fig, ax = figure()
ax.plot([0, 1], [0, 1])
table(['D'], [[8e-7]])
print('version', lnlib.__version__)"""
ADDRESS = "https://github.com/owner/book"


def build(root, code=None, more="", **variables):
    if code:
        (root / "book/one.md").write_text(CHAPTER.format(code=code) + EXERCISE + more)
    ours = "LN_REPOSITORY_URL", "LN_LIVE"
    environment = {k: v for k, v in os.environ.items() if k not in ours} | variables
    command = [sys.executable, "tools/build_book.py"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment)


def site_of(root):
    html = root / "_build/html"
    files = (path for path in html.rglob("*") if path.is_file())
    return {path.relative_to(html).as_posix(): path.read_bytes() for path in files}


def built(root, *page, **variables):
    """What a build that succeeds says, and what the site is then."""
    run = build(root, *page, **variables)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr, site_of(root)


def full_build(root):
    """The same of a build from nothing, for a repository with an address, with cells that run."""
    shutil.rmtree(root / "_build", ignore_errors=True)
    return built(root, CODE, LN_REPOSITORY_URL=ADDRESS, LN_LIVE="1")


@pytest.fixture(scope="module")
def full(book):
    return full_build(book)


@pytest.fixture(scope="module")
def plain(book, full):
    """The same of a build after that one, with neither."""
    shutil.rmtree(book / "_build/html")  # which would keep the picture
    return built(book)


@pytest.mark.slow
def test_a_page_says_what_its_build_offers(plain, full):
    """An address brings links, a picture and what to cite; Python brings cells that run."""
    (_, before), (_, after) = plain, full
    front, picture = "book/index.html", "_static/preview.png"
    text = before[front].decode()
    assert "Version 0.1.0" in text and "layernormbackwards" in text and picture not in before
    offers = "Run in place", "Open elsewhere", "Try this"
    assert not any(said in text for said in (*offers, "og:image"))
    assert "ex-easy" not in text.replace("#ex-easy", "")

    text, page = after[front].decode(), after["book/one.html"].decode()
    assert all(said in text for said in offers)
    assert f"{ADDRESS}/edit/main/book/one.md" in page and f"{ADDRESS}/issues/new?title=Page" in text
    assert f"url = {{{ADDRESS}}}" in re.sub("<[^>]*>", "", text)
    assert 'content="https://owner.github.io/book/_static/preview.png"' in text
    assert after[picture][1:4] == b"PNG"
    box = BeautifulSoup(text, "html.parser").select_one(".exercise#ex-easy")
    assert box.select("div.cell .cell_input pre")[1].get_text() == "def easy(): ...\n"


@pytest.mark.slow
def test_a_change_in_lnlib_executes_the_page_again(book, plain, full):
    said, before = plain
    assert b"version 0.1.0" in before["book/one.html"] and "The book is built" in said
    assert "Executing: " in full[0] and "Executing" not in said

    version = book / "lnlib/__init__.py"
    source = version.read_text()
    version.write_text(source.replace('"0.1.0"', '"9.9.9"'))
    assert b"version 9.9.9" in built(book)[1]["book/one.html"]

    version.write_text(source)


def differing(one, other):
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]


@pytest.mark.slow
def test_a_build_over_another_is_byte_equal(book, full):
    """Over one of a page with other words, which fails: nothing of it stays, nor in the search's
    index, and what was executed before lnlib's change is still in the cache. Over a site that has
    Python: its cells still run. To show it builds nothing, nor do a zip and a PDF of what is new.
    """
    (book / "_build/html/lite").mkdir()  # as after make site
    more = "\nOther words, unheard of: {ref}`no-such-label`.\n"
    run = build(book, CODE, more, LN_REPOSITORY_URL=ADDRESS)
    assert run.returncode != 0 and "no-such-label" in run.stdout + run.stderr
    said, after = built(book, CODE, LN_REPOSITORY_URL=ADDRESS)
    assert "Executing" not in said and differing(full[1], after) == []
    for last in ("built", "html/lite/live.json"):
        (book / "_build" / last).touch()
    made = ["make", "-nf", ROOT / "Makefile", "serve", "offline", "pdf"]
    shown = subprocess.check_output(made, cwd=book)
    assert all(tool in shown for tool in (b"http.server", b"build_offline", b"build_pdf"))
    assert not any(tool in shown for tool in (b"build_book", b"build_site", b"make book"))
    assert b"make site" not in shown


@pytest.mark.slow
def test_what_is_wrong_fails_every_build(book):
    """What a cell raised is not kept: the second build fails, too."""
    words = "book/one.md", "planted", "Traceback", "NOT built"
    for _ in range(2):
        run = build(book, "raise RuntimeError('planted')")
        assert run.returncode != 0 and all(word in run.stdout + run.stderr for word in words)


@pytest.mark.slow
def test_two_builds_are_byte_equal(book, full):
    """Nothing depends on the clock, the order of a set or an earlier build."""
    (_, first), (_, second) = full, full_build(book)
    assert differing(first, second) == [] and any(name.endswith(".svg") for name in first)
