"""``import lnlib`` loads NumPy and changes nothing. Each claim is tested in a fresh interpreter."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

def fresh(code):
    """What ``code`` prints, as JSON, run from the root of the repository; warnings are errors."""
    command = [sys.executable, "-W", "error", "-c", code]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_nothing_but_numpy_is_loaded():
    """Not even a module of lnlib that its public names do not need."""
    new = fresh("""
import json, sys
import numpy, numpy.random
before = set(sys.modules)
import lnlib
print(json.dumps(sorted(set(sys.modules) - before)))
""")
    assert {name.split(".")[0] for name in new} - set(sys.stdlib_module_names) == {"lnlib"}
    assert {name for name in new if name.startswith("lnlib")} == {"lnlib", "lnlib.contract", "lnlib.layernorm"}


@pytest.mark.parametrize("package", ["sympy", "matplotlib", "numba", "ml_dtypes", "scipy", "IPython"])
def test_it_is_not_loaded(package):
    assert fresh(f"import json, sys, lnlib; print(json.dumps({package!r} in sys.modules))") is False


def test_no_side_effects():
    """Warnings filters, floating-point settings, print options, both random states, environment, locale."""
    state = """
import json, locale, os, random, sys, warnings
import numpy as np
def state():
    return repr([warnings.filters, np.geterr(), np.geterrcall(), np.get_printoptions(), np.random.get_state(),
                 random.getstate(), sorted(os.environ.items()), os.getcwd(), sys.path, sys.getrecursionlimit(),
                 locale.setlocale(locale.LC_ALL), sys.get_int_max_str_digits()])
np.set_printoptions(threshold=10**6)  # so that repr shows a random state in full
before = state()
import lnlib
after = state()
print(json.dumps([before == after, len(before) > 500]))
"""
    assert fresh(state) == [True, True]


def test_no_output():
    run = subprocess.run([sys.executable, "-c", "import lnlib"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == run.stderr == ""


def test_import_time():
    """Less than 0.15 s on top of NumPy: the median of 5 fresh interpreters, each timing both imports itself."""
    code = """
import json, time
start = time.perf_counter()
import numpy
middle = time.perf_counter()
import lnlib
print(json.dumps([middle - start, time.perf_counter() - middle]))
"""
    assert statistics.median(fresh(code)[1] for _ in range(5)) < 0.15


def test_all_names_exist():
    import lnlib

    assert lnlib.__all__ == sorted(lnlib.__all__)
    assert all(callable(getattr(lnlib, name)) for name in lnlib.__all__)
