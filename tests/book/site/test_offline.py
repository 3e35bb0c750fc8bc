"""The offline edition: one zip of the built site, readable straight from disk."""

import hashlib
import shutil
import zipfile

import build_offline
import pytest
from browsing import Visit
from pages import CHAPTERS

ln_launch = pytest.importorskip("ln_launch", exc_type=ImportError)  # the environment of the book

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def archive(site, tmp_path_factory):
    return build_offline.pack(site, tmp_path_factory.mktemp("offline"))


@pytest.fixture(scope="module")
def unpacked(archive, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(archive) as zipped:
        zipped.extractall(folder)
    return folder / archive.stem


def test_checksum_and_two_runs_agree(site, archive, unpacked, tmp_path):
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert archive.with_name(archive.name + ".sha256").read_text() == f"{digest}  {archive.name}\n"
    again, version = build_offline.pack(site, tmp_path / "."), build_offline.version()
    assert again.name == archive.name == f"layer-norm-backwards-{version}.zip"
    assert again.read_bytes() == archive.read_bytes()
    readme = (unpacked / "README.txt").read_text()
    assert "Edit and run here" in readme and version in readme
    with pytest.raises(FileNotFoundError, match=r"no index\.html"):
        build_offline.pack(tmp_path, tmp_path)
    # The site offers it, and it does not contain itself.
    home = tmp_path / "home"
    for name in ("index.html", "book/index.html"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(site / name, home / name)
    small = build_offline.pack(home, tmp_path).read_bytes()
    build_offline.offer(home, again, "Zip")
    assert f'href="../{again.name}"' in (home / "book/index.html").read_text("utf-8")
    assert build_offline.pack(home, tmp_path).read_bytes() == small


@pytest.mark.slow
def test_it_reads_from_disk(browser, unpacked):
    page = browser.new_page()
    page.goto((unpacked / "index.html").as_uri(), wait_until="commit")
    page.wait_for_url("**/book/index.html")  # where the first page leads
    page.close()
    page = unpacked / f"book/{CHAPTERS[0].stem}.html"
    with Visit(browser, page.as_uri()) as visit:
        visit.stays_at(unpacked.as_uri())
        assert visit.page.evaluate(
            "[...document.images].every(i => i.complete && i.naturalWidth > 0)"
        )
        assert visit.page.evaluate("document.querySelectorAll('mjx-container').length") > 10


def test_what_needs_a_server_is_hidden_from_disk_and_the_reader_told(browser, unpacked):
    """With live pages in the site; the session's site may be built without."""
    name = CHAPTERS[0].stem
    page = unpacked / f"book/{name}.html"
    found = ln_launch.buttons(name, "", f"main/book/{name}.md", True)
    served = f"<body>{ln_launch.row(found)}"
    live = page.with_name("live.html")
    head = (
        '<link rel="stylesheet" href="../_static/ln.css"><script src="../_static/ln.js"></script>'
    )
    live.write_text(f"{head}{served}")
    with Visit(browser, live.as_uri()) as visit:
        shown = visit.page.is_visible
        assert shown("text=Download notebook") and shown("text=http.server")
        assert not shown("text=Open as a notebook")
        # As from a server:
        visit.page.evaluate("document.documentElement.classList.remove('ln-from-disk')")
        assert shown("text=Open as a notebook") and not shown("text=http.server")
