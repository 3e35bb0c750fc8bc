"""The log of an interpreted kernel: sectors, requests, bank conflicts and events, as by hand."""

import gc
import pickle

import numpy as np
import pytest
from test_simt import atomics, f32, line_of, written

import simt
from simt.cuda_access import FULL, cuda


def sectors(body, *arguments, block=32):
    """The sectors of a block that runs this text, or this kernel."""
    kernel = written(body, "x", *["n"] * (len(arguments) - 1)) if isinstance(body, str) else body
    return simt.sectors(simt.launch(kernel, 1, block, *arguments, log=True))


def test_sectors():
    strided, four = "a = x[cuda.threadIdx.x * n]", "a, b, c, d = load4(x, 4 * cuda.threadIdx.x)"
    add = written("cuda.atomic.add(x, 0, float32(1))", "x")
    x = np.zeros(1024, f32)
    for stride, expected in (
        (1, (1, 4, 128, 4.0, 1.0)),
        (32, (1, 32, 128, 32.0, 0.125)),
        (0, (1, 1, 4, 1.0, 0.125)),
    ):
        assert sectors(strided, x, stride) == {("x", "load"): expected}
    assert sectors(strided, x, 2)["x", "load"].efficiency == 0.5
    assert sectors(strided, x[1:], 1)["x", "load"].sectors == 5  # 128 bytes, not aligned to 32
    assert sectors(four, x) == {("x", "load"): (1, 16, 512, 16.0, 1.0)}
    # Four float64 are two accesses of 16 bytes, each of which uses half of 32 sectors.
    assert sectors(four, x.astype(float)) == {("x", "load"): (2, 64, 1024, 32.0, 0.5)}
    ran = simt.launch(written(four, "x"), 1, 2, x.astype(float), log=True)
    assert len(ran.accesses) == 4 and [a.address for a in ran.accesses] == [0, 16, 32, 48]
    assert sectors(strided, x, 1, block=64)["x", "load"][:2] == (2, 8)
    ran = simt.launch(add, 1, 32, x, log=True)
    assert simt.sectors(ran)["x", "atomic"][:2] == (1, 1)
    assert simt.compulsory(ran) == {("x", "load"): 32, ("x", "store"): 32}


def test_requests_in_loops():
    """x is read twice from end to end: 2 * 8 requests of 4 sectors, and 1024 compulsory bytes; y is
    written once.
    """

    def kernel(x, y):
        for _ in range(2):
            for i in range(cuda.threadIdx.x, 256, 32):
                y[i] = x[i]

    run = simt.launch(kernel, 1, 32, np.zeros(256, f32), np.zeros(256, f32), log=True)
    assert simt.sectors(run)["x", "load"] == (16, 64, 2048, 4.0, 1.0)
    assert simt.compulsory(run) == {("x", "load"): 1024, ("y", "store"): 1024}
    assert {access.repeat for access in run.accesses} == {(0, n) for n in range(1, 17)}
    x = np.zeros(256, f32)  # given twice, it goes by its first name
    assert {a.array for a in simt.launch(kernel, 1, 32, x, x, log=True).accesses} == {"x"}
    twice = written("x[cuda.threadIdx.x]\ncuda.syncthreads()\nx[cuda.threadIdx.x]", "x")
    run = simt.launch(twice, 1, 32, np.zeros(32, f32), log=True)
    assert {access.repeat for access in run.accesses} == {(0, 1), (1, 1)}


CONFLICTS = {
    f"stride {n}": (
        f"s = cuda.shared.array(1056, float32)\ns[cuda.threadIdx.x * {n}] = float32(0)  # HERE",
        wavefronts,
    )
    for n, wavefronts in ((1, 1), (2, 2), (32, 32), (33, 1))
}
FOUR = "s, a = cuda.shared.array(128, float32), float32(0)\nstore4(s, 4 * cuda.laneid, a, a, a, a)"
# 32 lanes with 16 bytes each are 4 wavefronts at best.
CONFLICTS["vectors"] = f"{FOUR}  # HERE", 4


@pytest.mark.parametrize("body, wavefronts", CONFLICTS.values(), ids=CONFLICTS)
def test_bank_conflicts(body, wavefronts):
    kernel = written(body)
    found = simt.bank_conflicts(simt.launch(kernel, 1, 32, log=True))
    assert found == {(line_of(kernel, "# HERE"), "store"): (1, wavefronts)}


def test_events():
    def kernel():
        a = cuda.shfl_xor_sync(FULL, cuda.threadIdx.x, 1)  # SHUFFLE
        cuda.syncthreads()  # BARRIER
        a += 1

    run = simt.launch(kernel, 1, 32, log=True)
    first, last = line_of(kernel, "# SHUFFLE"), line_of(kernel, "# BARRIER")
    assert run.events[:32] == [(0, t, "shfl_xor_sync", first, (t, t ^ 1)) for t in range(32)]
    assert run.events[32:] == [(0, t, "syncthreads", last, None) for t in range(32)]


def test_it_is_deterministic():
    """The sum in an order that rounding shows, and the log."""
    x = np.random.default_rng(0).normal(size=256).astype(f32)
    results = []
    for _ in range(2):
        total = np.zeros(1, f32)
        results.append((simt.launch(atomics, 2, 64, x, total, log=True), total.tobytes()))
    assert results[0] == results[1]
    (run, _), _ = results
    assert (run.grid, run.block, run.lanes) == (2, 64, 32) and gc.isenabled()
    assert pickle.loads(pickle.dumps(run)) == run != run._replace(accesses=None)
