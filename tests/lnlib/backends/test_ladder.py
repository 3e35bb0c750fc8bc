"""Teaching kernels: each is layer norm and its gradient, leaves its arguments alone, and uses its
buffers.
"""

import importlib.util
import inspect
import sys

import cases
import numpy as np
import pytest

from benchmarks.cpu import assembly
from lnlib import reference
from lnlib.cpu import ladder
from lnlib.summation import sum_rows

PAIRS = {
    name: (getattr(ladder, f"{name}_forward"), getattr(ladder, f"{name}_backward"))
    for name in ("idiomatic", "recomputing", "reused_buffers")
}
COMPILED = {name: pair for name, pair in ladder.STEPS.items() if not name.startswith("numpy")}
EPS = 0.1  # large: a forgotten or misplaced eps shows


def arguments(*shape_and_dtype):
    """x, gamma, beta, dy, none of which may be written to."""
    return map(cases.read_only, cases.arrays(*shape_and_dtype))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, dtype",
    [
        *((name, dtype) for name in (*PAIRS, "fused") for dtype in ("float32", "float64")),
        *(
            pytest.param(name, dtype, marks=pytest.mark.slow if dtype == "float64" else ())
            for name in COMPILED
            if name != "fused"
            for dtype in ("float32", "float64")
        ),
    ],
)
@pytest.mark.parametrize("rows, D", [(1, 8), (7, 64), (50, 5)])
def test_every_step_is_layer_norm(name, dtype, rows, D):
    pair = PAIRS.get(name) or COMPILED[name]
    forward, backward = (kernel or fused for kernel, fused in zip(pair, COMPILED["fused"]))
    x, gamma, beta, dy = arguments((rows, D), dtype)
    lost = 1
    if name in COMPILED:
        pytest.importorskip("numba")
        # From a guess at a distance t from the mean, squares / D - residual^2 loses a factor of 1 +
        # t^2 / (var + eps).
        lost += ((x[:, 0] - x.mean(axis=1)) ** 2 / (x.var(axis=1) + EPS)).max()
    y, cache = forward(x, gamma, beta, EPS)
    results, exact = (y, *backward(dy, cache)), reference.layer_norm(x, gamma, beta, dy, EPS)
    assert {a.dtype for a in results} == {np.dtype(dtype)}
    cases.check(
        results, exact, cases.bars_of_plain_sums(exact, gamma, beta, dy, cases.U[dtype] * lost)
    )


def test_reused_buffers_are_used():
    x, gamma, beta, dy = arguments((6, 10), "float32")
    y, cache = ladder.reused_buffers_forward(x, gamma, beta, EPS)
    gradients = ladder.reused_buffers_backward(dy, cache)
    # What was in them must not matter.
    out, dx, scratch = (np.full_like(x, np.nan) for _ in range(3))
    assert ladder.reused_buffers_forward(x, gamma, beta, EPS, out=out)[0] is out
    assert np.array_equal(out, y)
    again = ladder.reused_buffers_backward(dy, cache, out=dx, scratch=scratch)
    assert again[0] is dx and not np.isnan(scratch).any()
    assert cases.bits(again) == cases.bits(gradients)
    # Without buffers every call has its own.
    results = x, dy, y, gradients[0], ladder.reused_buffers_forward(x, gamma, beta)[0]
    results += ladder.reused_buffers_backward(dy, cache)[:1]
    assert cases.share_nothing(results)


# How they are compiled


def test_without_numba_kernels_run_as_they_stand(monkeypatch):
    """In a browser. The module is run once more, under another name, where Numba is missing."""
    monkeypatch.setitem(sys.modules, "numba", None)
    spec = importlib.util.spec_from_file_location("lnlib.cpu.plain", ladder.__file__)
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    assert inspect.isfunction(plain.row_means)
    x, gamma, beta, _ = arguments((3, 5), "float64")
    y, expected = (
        forward(x, gamma, beta, EPS)[0]
        for forward in (plain.STEPS["separate"][0], ladder.idiomatic_forward)
    )
    np.testing.assert_allclose(y, expected, rtol=1e-13, atol=1e-14)


def test_only_sums_in_any_order_are_vectors():
    """What the chapter reads from the results file holds here too: packed additions come from
    reassociation.
    """
    pytest.importorskip("numba")
    x, mean = np.ones((3, 64), np.float32), np.empty((3, 1), np.float32)
    counts = {}
    for name, fastmath in (("in order", ladder.CONTRACT), ("any order", ladder.ANY_ORDER)):
        kernel = ladder.kernel(fastmath=fastmath)(ladder.row_means.py_func)
        kernel(x, mean)
        assert (mean == 1).all()
        found = assembly.count(*kernel.inspect_asm().values())
        counts[name] = sum(found.get(register, 0) for register in ("zmm", "ymm", "xmm", "v"))
    assert counts["in order"] == 0 < counts["any order"]


# Two stages


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize("padding", [0, 32])
def test_parts_are_added_in_their_order(parts, padding):
    """dbeta bit for bit: the rows of a part one after the other, and then the parts."""
    pytest.importorskip("numba")
    dy, xhat = np.random.default_rng(0).standard_normal((2, 11, 6), np.float32)
    borders = [11 * t // parts for t in range(parts + 1)]
    stage = np.stack([sum_rows(dy[a:b], "sequential") for a, b in zip(borders, borders[1:])])
    dgamma, dbeta = ladder.two_stages(dy, xhat, parts, padding)
    assert np.array_equal(dbeta, sum_rows(stage, "sequential"))
    # Sums of 11 terms, each with a rounding of its own: 12 u of the sum of their sizes.
    assert np.all(
        np.abs(dgamma - (dy * xhat.astype(float)).sum(axis=0))
        <= 12 * 2.0**-24 * np.abs(dy * xhat).sum(axis=0)
    )
