"""One Hypothesis profile for all tests, and the site, built strictly and once."""

import functools
import gc
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections import defaultdict
from pathlib import Path

import build_site
import fetch_pyodide
import pytest
from browsing import served, skip
from chrome import CHROME, FLAGS
from hypothesis import settings
from pages import ROOT

# The same examples on every run, and no database of past failures.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def site():
    """The folder of the built site. Everything is read and written anew, so that every warning
    shows.

    Where several processes share the tests, the first that needs the site builds it, and the others
    wait for its word.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"process-{os.getpid()}")
    word = ROOT / "_build" / f"site-of-{run}"
    try:
        word.mkdir(parents=True)
    except FileExistsError:
        while not (word / "said").is_file():
            time.sleep(0.5)
    else:
        shutil.rmtree(ROOT / "_build" / "html", ignore_errors=True)
        command = [sys.executable, "tools/build_book.py"]
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        failed = f"the book does not build:\n{built.stdout}\n{built.stderr}"
        said = failed if built.returncode else ""
        (word / "part").write_text(said, encoding="utf-8")
        (word / "part").replace(word / "said")
    if said := (word / "said").read_text(encoding="utf-8"):
        pytest.fail(said, pytrace=False)
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def lite(site, tmp_path_factory):
    """A folder with the JupyterLite site of the built book in its sub-folder some/where/lite."""
    needed = {
        "Chromium or Chrome on the PATH": CHROME,
        "JupyterLite (requirements.txt)": importlib.util.find_spec("jupyterlite_core"),
        "Pyodide's files (make pyodide)": (fetch_pyodide.TARGET / fetch_pyodide.LOCK).is_file(),
    }
    if missing := [what for what, there in needed.items() if not there]:
        skip(f"not here: {'; '.join(missing)}", "LN_REQUIRE_LIVE")
    root = tmp_path_factory.mktemp("live")
    lite = root / "served/some/where/lite"
    build_site.build_lite(fetch_pyodide.fetch(), site, root / "work", lite)
    return root / "served"


@pytest.fixture(scope="module")
def browser():
    """Chromium. Playwright allows one of its kind at a time, and no other event loop beside it."""
    if not CHROME:
        skip("no Chromium or Chrome on the PATH", "LN_REQUIRE_BROWSER")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROME, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def visits(browser):
    """A context of it, for visits that leave nothing behind."""
    context = browser.new_context()
    yield context
    context.close()


@pytest.fixture(scope="module")
def address(site):
    """Where a server on this machine shows the site."""
    with served(site) as address:
        yield address


@pytest.fixture
def ctrl_c():
    """Ctrl-C is heard by processes that the test starts. A shell starts what runs in the
    background, these tests perhaps, with Ctrl-C ignored.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


#: What takes long and files of tests share: the compiled functions of lnlib.cpu, interpreted
#: kernels, cases of normcheck, the notebooks that run in a browser, and the built site.
SHARED = {
    "cpu": r"^from lnlib(\.cpu)? import .*\b(cpu|kernels)\b|^import differential|skip..lnlib\.cpu",
    "gpu": r"^from lnlib import (\w+, )*gpu\b",
    "normcheck": r"^from normcheck import ",
    "lite": r"^def \w+\((.*\b)?lite\b",
    "site": r"^def (test_\w+\(.*\b|\w+\()(site|address|book)\b",
}


@functools.cache
def shared(path):
    """What a file of tests shares with others, or None."""
    text = Path(ROOT, path).read_text(encoding="utf-8")
    return next((name for name, sign in SHARED.items() if re.search(sign, text, re.M)), None)


def pytest_ignore_collect(collection_path, config):
    """Files about the site alone, whose imports take seconds, are not read where the site is left
    out.
    """
    if "not site" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    return True if re.search(r"^pytestmark = \[?pytest\.mark\.site", text, re.M) else None


def pytest_collection_finish():
    """What is loaded by now stays: to look through it for garbage, again and again, takes a
    twentieth of the time.
    """
    gc.collect()
    gc.freeze()


#: Of a test with more cases make check tries so many, and tools/mutants.py more at first.
CASES = int(os.environ.get("LN_CASES", 4))


def left_out(names):
    """Of the names of tests those that make check leaves out: all but a few cases of each table.

    Which they are is seen in a case's own name alone: every process leaves out the same.
    """
    tables = defaultdict(list)
    for name in names:
        tables[name.partition("[")[0]].append(name)
    return {
        name
        for table in tables.values()
        for name in sorted(table, key=lambda name: zlib.crc32(name.encode()))[CASES:]
    }


def pytest_collection_modifyitems(items):
    """Marks what reads the site, and what make check leaves out. What takes long comes first.

    The first file that reads the site builds it, in one process. Others are meanwhile busy with
    lnlib.cpu and kernels.
    """
    for item in items:
        if {"site", "browser", "lite"} & {*item.fixturenames}:
            item.add_marker(pytest.mark.site)
    marks = ("slow", "site")
    quick = [item for item in items if not any(map(item.get_closest_marker, marks))]
    slow = left_out(item.nodeid for item in quick)
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)
    builder = next((item.path for item in items if shared(item.path) == "site"), None)
    order = [*SHARED, None]
    items.sort(key=lambda item: -1 if item.path == builder else order.index(shared(item.path)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Processes share the tests file by file, for a file's fixtures. All that compile lnlib.cpu go
    to one of them, and so do those with normcheck's cases, or with the notebooks for a browser.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            path = nodeid.partition("::")[0]
            return shared(path) if shared(path) in ("cpu", "normcheck", "lite") else path

    config.option.loadscopereorder = False
    return ByGroup(config, log)
