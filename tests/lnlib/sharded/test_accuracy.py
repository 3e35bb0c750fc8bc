"""Cut among ranks, layer norm is as exact as in one process, judged by exact arithmetic."""

import functools
import itertools

import numpy as np
import pytest
from ranks import numbers, run, single

from lnlib import layernorm, reference
from lnlib.sharded import cut, features, rows, simulate, widths

NAMES = "y", "xhat", "dx", "dgamma", "dbeta"

#: Of what one process loses. Both round the same tensors once, at random: that is most of it.
BAR = 1.5

#: Rows of 8 features: 12 for each of 8 ranks, so that the mean square of the roundings of dgamma, a
#: sum of 96 in one process and of 12 in each rank, is near enough to what it is on average.
SHAPES = {8: 96, 1000: 12, 65536: 2}


@functools.cache
def judged(rows, D, ratio, norm="layer"):
    """float32 arrays, the exact results rounded to float64, and the errors of one process.

    Rounded, they are right to 1e-16, a hundred-millionth of the errors, and many cuts are judged in
    no time.
    """
    arrays = numbers(rows, D, ratio)
    x, gamma, beta, dy = arrays
    exact = (
        reference.layer_norm(x, gamma, beta, dy)
        if norm == "layer"
        else reference.rms_norm(x, gamma, dy)
    )
    rounded = {name: reference.to_float64(getattr(exact, name)) for name in NAMES}
    return arrays, rounded, distances(single(*arrays, norm=norm), rounded)


def distances(results, rounded):
    """Relative L2 errors; of a tensor that is exactly right, 0."""
    return {
        name: np.linalg.norm(value - rounded[name]) / np.linalg.norm(rounded[name])
        for name, value in zip(NAMES, results)
    }


def cuts(count, ranks):
    """Even; uneven, most on one rank; and with empty ranks at either end and between."""
    yield cut(count, ranks)
    some = [max(1, count // 3**k // 2) if count > ranks else 0 for k in range(1, ranks)]
    yield widths(*some, count - sum(some))
    yield widths(0, *(s.stop - s.start for s in cut(count, ranks)), 0)


def hold(how, rows, D, ratio, ranks, norm="layer", block=None):
    arrays, rounded, owed = judged(rows, D, ratio, norm)
    length = rows if how == "rows" else D
    for parts in [cut(length, ranks, block)] if block else cuts(length, ranks):
        found = distances(run(how, parts, *arrays, norm=norm, block=block), rounded)
        assert all(found[name] <= BAR * owed[name] for name in found), (parts, found, owed)


@pytest.mark.parametrize("how", ["rows", "features"])
@pytest.mark.parametrize("ratio", [0, 1e3, 1e6])
@pytest.mark.parametrize("D, ranks", [(8, 3), (8, 8), (1000, 4)])
def test_as_exact_as_one_process(how, ratio, D, ranks):
    hold(how, SHAPES[D], D, ratio, ranks)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("how, block", [("rows", 5), ("features", 128)])
def test_fixed_blocks_are_as_exact(how, block, norm):
    for ranks in (1, 3, 12):
        hold(how, 12, 1000, 10, ranks, norm, block)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("ranks", [1, 3, 7])
def test_constant_rows_and_constant_upstream_give_exact_zeros(dtype, ranks):
    """Of equal numbers the rounded means of two parts may differ, and their residuals make up for
    it, exactly.
    """
    x, gamma, beta, dy = numbers(5, 700, 1.0, dtype)
    x[:] = np.array([0.1, 33333334.0, -1 / 3, 1e-8, 1e8], dtype)[:, None]
    one, zero = np.ones_like(gamma), np.zeros_like(beta)
    y, *_ = run("features", ranks, x, gamma, zero, dy)
    assert not y.any()
    assert np.isnan(run("features", ranks, x, gamma, zero, dy, eps=0.0)[0]).all()
    x, dy = numbers(5, 700, 1.0, dtype)[0], np.full_like(dy, 0.1)
    _, _, dx, *_ = run("features", ranks, x, one, zero, dy)
    assert not dx.any()


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_rows_whose_squares_leave_the_range_are_done_again(norm, eps):
    """Scaled by 2**k, with eps scaled by 2**2k, a row has the same xhat, and dx is 2**-k times as
    large.

    In other rows all is as before, to the bit, and NaN stays in its own. A power of two rounds
    nothing; statistics are rounded as they are in range, a few u; of eps is left nothing.
    """
    x, gamma, beta, dy = numbers(6, 40, 3.0, "float64")
    x[[1, 3], :13] = 0  # nothing but zeros on the first rank
    wanted = run("features", 3, x, gamma, beta, dy, norm=norm, eps=0.0)
    wide = x.copy()
    k = np.array([0, 700, 1020, -800, 0, 0] if eps == 0 else [0, 700, 1020, 600, 0, 0])[:, None]
    wide = np.ldexp(wide, k)
    wide[5, 7] = np.nan
    y, xhat, dx, *_ = run("features", 3, wide, gamma, beta, dy, norm=norm, eps=eps)
    plain = run("features", 3, x, gamma, beta, dy, norm=norm, eps=eps)
    assert np.isnan(y[5]).all() and np.isnan(dx[5]).all()
    assert [a[[0, 4]].tobytes() for a in (y, xhat, dx)] == [a[[0, 4]].tobytes() for a in plain[:3]]
    for found, exact in zip((xhat, np.ldexp(dx, k)), (wanted[1], wanted[2])):
        assert np.allclose(found[1:4], exact[1:4], rtol=1e-14, atol=1e-15)
    big = np.full((2, 40), 1.7e308)
    found = run("features", 3, big, gamma, beta, dy[:2], norm=norm, eps=1e-5)
    # Constant rows.
    for value, one in zip(found, single(big, gamma, beta, dy[:2], norm=norm, eps=1e-5)):
        assert np.allclose(value, one, rtol=1e-12, atol=1e-320)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("upstream", [0, 1e-30, 1])
def test_dx_where_rstd_is_beyond_the_largest_number(norm, upstream):
    """Rows of the smallest numbers, eps = 0: dx is 0, a number or Inf, as one process has it; the
    other row is as ever.

    A few roundings of each way, of the size of what is subtracted, which here is at most 4 times
    dx.
    """
    few = np.array([[1, 2, 3, 5], [1, -2, 0, 3], [1, -2, 0, 3]], "f8")
    dy, one = np.array([[1, -1, 2, 0.5], [3, -1, 2, 0.5], [3, -1, 2, 0.5]]) * upstream, np.ones(4)
    x = few * np.array([[5e-324], [5e-324], [1.0]])
    found, wanted = (
        f(x, one, 0 * one, dy, norm=norm, eps=0.0)
        for f in (functools.partial(run, "features", 3), single)
    )
    assert np.isinf(found[2][:2]).all() == (upstream == 1) and np.isfinite(found[2][2]).all()
    for value, right in zip(found, wanted):
        assert np.allclose(value, right, rtol=1e-14, atol=1e-15 * abs(upstream))


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("k, eps", [(560, 1e-5), (900, 1e-5), (700, 1000.0), (100, 1e295)])
def test_rows_whose_squares_vanish_beside_eps(norm, k, eps, monkeypatch):
    """Their sum is 0, like that of a constant row; their xhat is not: a few roundings, as of any
    other row.

    The squares are below 2**-1074 times eps, and fixed point must not lose what float64 keeps of x:
    3000 bits.
    """
    monkeypatch.setattr(reference, "BITS", 3000)
    x, gamma, beta, dy = numbers(3, 8, 0.5, "float64")
    x, zero = np.ldexp(x, -k), np.zeros_like(beta)
    exact = (
        reference.layer_norm(x, gamma, zero, dy, eps)
        if norm == "layer"
        else reference.rms_norm(x, gamma, dy, eps)
    )
    for how, ranks in itertools.product(("rows", "features"), (1, 3)):
        results = run(how, ranks, x, gamma, zero, dy, norm=norm, eps=eps)
        for name, value in zip(NAMES, results):
            error = reference.relative_error(value, getattr(exact, name))
            assert error < 10 * 2.0**-53, (how, ranks, name)


def test_any_leading_shape():
    x, gamma, beta, dy = numbers(12, 40)
    flat = run("features", 4, x, gamma, beta, dy)
    deep = run(
        "features",
        cut(40, 4),
        *(a.reshape(2, 3, 2, 40) if a.ndim > 1 else a for a in (x, gamma, beta, dy)),
    )
    assert deep[0].shape == (2, 3, 2, 40)
    assert [a.tobytes() for a in deep] == [a.tobytes() for a in flat]


@pytest.mark.parametrize("module", [rows, features])
def test_dh_is_added_and_statistics_have_one_number_a_row(module):
    """One rank has what one process has, but for roundings: of the sum of dx and dh one."""
    x, *parameters, dy = numbers(12, 40, 0, "float64")
    x, dy = x.reshape(3, 4, 40), dy.reshape(3, 4, 40)
    whole = layernorm.layer_norm_forward(x, *parameters, residual=dy)
    here = simulate([module.layer_norm_forward(x, *parameters, residual=dy)])[0]
    assert here[2].rstd.shape == (3, 4, 1) and here[1].tobytes() == whole[1].tobytes()
    wanted = layernorm.layer_norm_backward(dy, whole[2], x)
    found = simulate([module.layer_norm_backward(dy, here[2], x)])[0]
    for one, other in zip((here[0], *found), (whole[0], *wanted)):
        assert np.allclose(one, other, rtol=1e-13, atol=1e-13)
    narrow = x.astype("f4"), *(a.astype("f4") for a in parameters)
    for precise, dtype in ((False, np.float32), (True, np.float64)):
        _, cache = simulate([module.layer_norm_forward(*narrow, precise=precise)])[0]
        assert cache.xhat.dtype == dtype
