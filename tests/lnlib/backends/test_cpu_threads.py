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


@pytest.mark.slow
def test_reshaping_an_array_that_a_call_uses_corrupts_nothing():
    """NumPy frees the old shape, which compiled code must not read then. A call sees one shape, or
    says what is wrong.

    It crashed within 0.1 s, mostly, and always within 1 s.
    """
    assert run(
        "workqueue",
        """
import sys, time
x, dy, gamma, beta = CALLERS[0]
x, one, stop = x[:200].copy(), [np.ones(n, "f4") for n in (400, 200)], threading.Event()
expected = []
for x.shape, g in zip(((200, 400), (400, 200)), one):
    y, cache = cpu.layer_norm_forward(x, g, g)
    expected.append((y.shape, y.tobytes(), [a.tobytes() for a in cpu.layer_norm_backward(x.copy(), cache)]))
def reshape():
    while not stop.is_set():
        x.shape = 400, 200
        x.shape = 200, 400
worker = threading.Thread(target=reshape)
worker.start()
sys.setswitchinterval(1e-5)
end, right, refused = time.monotonic() + 2, 0, 0
while time.monotonic() < end:
    for g in one:
        try:
            y, cache = cpu.layer_norm_forward(x, g, g)
            dx, *parameters = cpu.layer_norm_backward(x, cache)
            right += 1
        except (ValueError, RuntimeError):
            refused += 1
            continue
        assert (y.shape, y.tobytes()) in [e[:2] for e in expected]
stop.set()
worker.join()
print(json.dumps([right > 0, refused > 0]))
""",  # noqa: E501
    ) == [True, True]
