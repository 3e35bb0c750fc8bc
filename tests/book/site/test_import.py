"""``import lnlib`` loads NumPy and changes nothing, in a fresh interpreter."""

import os
import subprocess
import sys

from pages import ROOT

FRESH = """
import json, locale, os, random, sys, warnings
import numpy as np
import numpy.random

def state():
    return repr([warnings.filters, np.geterr(), np.get_printoptions(), numpy.random.get_state(),
                 random.getstate(), sorted(os.environ.items()), os.getcwd(), sys.path,
                 sys.getrecursionlimit(), locale.setlocale(locale.LC_ALL)])

np.set_printoptions(threshold=10**6)  # so that repr shows a random state in full
before, loaded = state(), set(sys.modules)
import lnlib
assert state() == before
print(*sorted(set(sys.modules) - loaded))
"""


def test_it_loads_numpy_and_changes_nothing():
    """No module of lnlib is loaded that its public names do not need; warnings are errors."""
    command = [sys.executable, "-W", "error", "-c", FRESH]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert not run.returncode and not run.stderr, run
    new = {name for name in run.stdout.split() if name.split(".")[0] not in sys.stdlib_module_names}
    assert new == {"lnlib", "lnlib.norms", "lnlib.validation", "lnlib.layernorm"}
