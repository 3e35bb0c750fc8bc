"""One Hypothesis profile for all tests, and the site, built strictly and once."""

import shutil
import subprocess
import sys

import pytest
from hypothesis import settings
from pages import ROOT

# The same examples on every run, and no database of past failures.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def site():
    """The folder of the built site. Everything is read and written anew, so that every warning shows."""
    shutil.rmtree(ROOT / "_build" / "html", ignore_errors=True)
    shutil.rmtree(ROOT / "_build" / ".doctrees", ignore_errors=True)
    run = subprocess.run([sys.executable, "tools/build_book.py"], cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        pytest.fail(f"the book does not build:\n{run.stdout}\n{run.stderr}", pytrace=False)
    return ROOT / "_build" / "html"
