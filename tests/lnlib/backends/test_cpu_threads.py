"""lnlib.cpu where several Python threads call it, and in children made by fork."""

import os

import pytest
from cases import child

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
LAYERS = pytest.mark.parametrize("layer", ["workqueue", "omp"])

# 240,000 numbers: two threads. One call's arguments for each caller, and the bits that it should
# get.
ARGUMENTS = """
import json, multiprocessing, os, threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import cases, numba
import numpy as np
from lnlib import cpu
CALLERS = [(*rng.standard_normal((2, 600, 400)).astype("f4"), *rng.standard_normal((2, 400)).astype("f4"))
           for rng in map(np.random.default_rng, range(2))]
def forked():
    return ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
def results(k):
    x, dy, gamma, beta = CALLERS[k]
    return [a.tobytes().hex() for a in cases.run(cpu, x, gamma, beta, dy)]
"""  # noqa: E501


def run(layer, code, cache_folder=None):
    """What a program prints that begins with ARGUMENTS."""
    try:
        return child(
            ARGUMENTS + code, cache_folder, NUMBA_THREADING_LAYER=layer, NUMBA_NUM_THREADS="2"
        )
    except AssertionError as error:
        if "No threading layer could be loaded" in str(error):
            pytest.skip(f"Numba has no layer {layer} here")
        raise


@pytest.mark.slow
@LAYERS
def test_two_threads_may_call_at_once(layer, tmp_path):
    """From the first call on; with the layer that is always there this one compiles."""
    found, expected, used = run(
        layer,
        """
with ThreadPoolExecutor(2) as pool:
    found = list(pool.map(lambda k: [results(k) for _ in range(30)], range(2)))
expected = [results(k) for k in range(2)]
print(json.dumps([[all(a == expected[k] for a in found[k]) for k in range(2)], [len(f) for f in found],
                  numba.threading_layer()]))
""",  # noqa: E501
        tmp_path if layer == "workqueue" else None,
    )
    assert (found, expected, used) == ([True, True], [30, 30], layer)


@pytest.mark.slow
@needs_fork
@LAYERS
def test_children_made_by_fork(layer):
    """They use one thread, and have its bits; y and dx are anyhow the same."""
    same, rows_same = run(
        layer,
        """
numba.set_num_threads(1)
single = results(0)
numba.set_num_threads(2)
both = results(0)
with forked() as pool:
    found = list(pool.map(results, [0] * 6))
    print(json.dumps([[f == single for f in found], both[:2] == single[:2]]))
""",  # noqa: E501
    )
    assert same == [True] * 6 and rows_same
