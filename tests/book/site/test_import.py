"""``import lnlib`` loads NumPy and changes nothing, in a fresh interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

import lnlib


@pytest.fixture(scope="module")
def found():
    """What a fresh interpreter says; warnings are errors, and lnlib prints nothing of its own."""
    command = [sys.executable, "-W", "error", Path(__file__).with_name("fresh_import.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert not run.returncode and not run.stderr, run
    return json.loads(run.stdout)


def test_nothing_but_numpy_is_loaded(found):
    """Not even a module of lnlib that its public names do not need."""
    new = found["loaded"]
    assert {name.split(".")[0] for name in new} - set(sys.stdlib_module_names) == {"lnlib"}
    assert {name for name in new if name.startswith("lnlib")} == {
        "lnlib",
        "lnlib.validation",
        "lnlib.layernorm",
    }


def test_no_side_effects(found):
    assert found["unchanged"] and found["state"] > 500


def test_all_names_exist():
    assert lnlib.__all__ == sorted(lnlib.__all__)
    assert all(callable(getattr(lnlib, name)) for name in lnlib.__all__)
