"""``import lnlib`` loads NumPy and changes nothing. Each claim is tested in a fresh interpreter (fresh_import.py)."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

import lnlib


@pytest.fixture(scope="module")
def found():
    """What five fresh interpreters say; warnings are errors, and lnlib prints nothing of its own."""
    command = [sys.executable, "-W", "error", Path(__file__).with_name("fresh_import.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    runs = [subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True) for _ in range(5)]
    assert not any(run.returncode or run.stderr for run in runs), runs
    return [json.loads(run.stdout) for run in runs]


def test_nothing_but_numpy_is_loaded(found):
    """Not even a module of lnlib that its public names do not need."""
    new = found[0]["loaded"]
    assert {name.split(".")[0] for name in new} - set(sys.stdlib_module_names) == {"lnlib"}
    assert {name for name in new if name.startswith("lnlib")} == {"lnlib", "lnlib.contract", "lnlib.layernorm"}


def test_no_side_effects(found):
    assert found[0]["unchanged"] and found[0]["state"] > 500


def test_import_time(found):
    """Less than 0.15 s on top of NumPy: the median of five."""
    assert statistics.median(run["seconds"] for run in found) < 0.15


def test_all_names_exist():
    assert lnlib.__all__ == sorted(lnlib.__all__)
    assert all(callable(getattr(lnlib, name)) for name in lnlib.__all__)
