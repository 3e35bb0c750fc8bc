"""Compiled kernels, executed without a GPU: the tests that need a GPU, over the driver that stands
in for NVIDIA's.

Numba compiles for two architectures and launches; what runs is PTX, in an interpreter. See
ptx/__init__.py.
"""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from pages import ROOT

import simt
from ptx import driver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python():
    """Run this Python with the tests' folder on its path. Where the compiler is promised, a skip
    would be a hole.
    """
    if why := driver.missing():
        pytest.fail(why) if os.environ.get("LN_REQUIRE_CUDA_COMPILER") else pytest.skip(why)

    def run(*arguments, **variables):
        path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={**os.environ, **variables, "PYTHONPATH": path},
        )

    return run


def on_the_driver(python, capability, *arguments):
    """(what pytest said, launches, compiled kernels) of tests that find the driver."""
    plugins = "-p", "ptx.plugin", "-p", "no:cacheprovider"
    done = python("-m", "pytest", *plugins, *arguments, LN_CAPABILITY=capability)
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 0, said
    counted = rf"(\d+) launches of (\d+) compiled kernels, sm_{capability}, interpreted"
    return said, *map(int, re.search(counted, said).groups())


@pytest.mark.parametrize("capability", ["75", "80", "90"])
def test_what_needs_a_gpu_passes(python, capability):
    """Skipped is only what needs an array library for GPUs that is not there, or has no GPU."""
    files = (f"tests/lnlib/backends/test_{name}.py" for name in ("gpu", "gpu_ladder"))
    chosen = "-k", "on_the_gpu or on_a_gpu"
    said, launches, kernels = on_the_driver(python, capability, *files, *chosen)
    assert int(re.search(r"(\d+) passed", said)[1]) > 50, said
    allowed = "'(torch|cupy)'|no current stream|no CUDA"
    reasons = re.findall(r"^SKIPPED \[\d+\] \S+ (.*)", said, re.M)
    assert all(re.search(allowed, reason) for reason in reasons), reasons
    assert launches > 100 and kernels > 30


def test_launch_and_the_survey(python):
    """What the chapters launch, and what their last cells do."""
    said, launches, _ = on_the_driver(python, "80", "tests/lnlib/backends/test_launching.py")
    assert "skipped" not in said, said
    assert launches > 500 and int(re.search(r"(\d+) passed", said)[1]) >= 6, said


def test_the_interpreter_takes_and_refuses_what_the_compiler_does(python, monkeypatch):
    """Of every kernel of the corpus, less what is listed as a limit; and what both compute is the
    same.
    """
    monkeypatch.syspath_prepend(ROOT / "tests" / "simt")
    import corpus

    done = python("-m", "ptx.verdicts")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    refused = {*corpus.REFUSED, *corpus.LAXER}
    assert {name for name, (error, _) in found.items() if error} == refused
    computed = {name: results for name, (_, results) in found.items() if results}
    computed = {name: computed[name] for name in corpus.TAKEN if name in computed}
    assert len(found) > 80 and len(computed) > 40
    for name, results in computed.items():
        x, y, z, n = corpus.arguments()
        simt.launch(corpus.kernel(corpus.TAKEN[name]), 1, 32, x, y, z, n)
        assert z.tolist() == results[1], name
        # exp and the fusing of products and sums differ in the last bits; no kernel has more than a
        # few of them.
        assert np.abs(y - np.float32(results[0])).max() <= 2.0**-21 * np.abs(y).max(), name
