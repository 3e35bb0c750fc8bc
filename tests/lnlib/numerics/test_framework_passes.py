"""The recreated layer norms: right where all is well, and broken where, and only where, the
frameworks are.
"""

import math
import warnings
from itertools import islice

import numpy as np
import pytest
from cases import U, arrays

from benchmarks import accuracy
from lnbook import frameworks
from lnlib import reference

BY_NAME = {r.name: r for r in frameworks.RECREATIONS}
WITH_BACKWARD = [r.name for r in frameworks.RECREATIONS if r.backward]


def run(name, x, gamma, beta, dy):
    y, cache = BY_NAME[name].forward(x, gamma, beta)
    return y, *BY_NAME[name].backward(dy, cache)


# Without a framework


# Well-conditioned rows: a mean, a variance, a root, a product and a sum over 16 or 32 terms, about
# ten roundings one after the other; the longest sums (D / 16 terms in a lane) add less than ten
# more. 20 u at the worst.
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("D", [37, 64, 600])
@pytest.mark.parametrize("name", [r.name for r in frameworks.RECREATIONS])
def test_right_without_offset(name, D, dtype):
    x, gamma, beta, dy = arrays((32, D), dtype)
    exact = reference.layer_norm(x, gamma, beta, dy)
    if BY_NAME[name].backward:
        found = run(name, x, gamma, beta, dy)
    else:
        found = (BY_NAME[name].forward(x, gamma, beta)[0],)
    for tensor, value in zip(("y", "dx", "dgamma", "dbeta"), found):
        assert value.dtype == x.dtype
        assert reference.relative_error(value, getattr(exact, tensor)) < 20 * U[dtype], tensor


@pytest.mark.parametrize("D", [1, 3, 15, 16, 17, 255, 256, 257, 1000])
def test_merged_moments_are_the_moments(D):
    """Float64 Welford in chunks against exact sums: about log2(D) + 16 roundings each, 30 u."""
    x = arrays((32, D), "float64", offset=3.0)[0]
    mean, var = frameworks.pytorch_moments(x)
    fixed = reference.to_fixed(x)
    exact_mean = fixed.sum(axis=1, keepdims=True) // D
    exact_var = reference.to_float64(
        ((fixed - exact_mean) ** 2 >> reference.BITS).sum(axis=1, keepdims=True) // D
    )
    np.testing.assert_allclose(mean, reference.to_float64(exact_mean), rtol=30 * U["float64"] * 10)
    np.testing.assert_allclose(
        var, exact_var, rtol=30 * U["float64"] * 10, atol=0 if D > 1 else 1e-300
    )


@pytest.mark.parametrize(
    "name, power", [("pytorch", 1), ("flax", 2), ("flax-two-pass", 1), ("keras", 1)]
)
def test_digits_lost_to_the_offset(name, power):
    """At mean / sigma = 1000 the loss is u times 1000 (a rounded mean) or times 1000**2 (the
    variance), within 8.
    """
    x, gamma, _, _ = arrays((32, 1024), offset=1e3)
    beta = np.zeros_like(gamma)
    error = reference.relative_error(
        BY_NAME[name].forward(x, gamma, beta)[0], reference.layer_norm(x, gamma, beta).y
    )
    assert 1 / 8 < error / (U["float32"] * 1e3**power) < 8


def test_squares_that_overflow():
    one = np.ones(4, np.float32)
    row = np.array([[3e20, 1e20, -2e20, 5e20]], np.float32)
    assert np.isnan(frameworks.pytorch_forward(row, one, 0 * one)[0]).all()
    assert np.isnan(frameworks.flax_forward(row, one, 0 * one)[0]).all()
    assert not frameworks.flax_forward(row, one, 0 * one, fast=False)[0].any()
    x, gamma, beta, _ = arrays((32, 1024))
    assert not frameworks.pytorch_forward(x * np.float32(3e19), gamma, 0 * beta)[0].any()
    assert np.isnan(frameworks.pytorch_forward(x * np.float32(1e30), gamma, beta)[0]).all()


# With the framework


@pytest.fixture(scope="module")
def contestants():
    """The frameworks that are installed, by the name they have in the results file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, at import
        found, _ = accuracy.peers()
    return {peer.name: peer for peer in found}


def error_of(tensor, value, exact):
    """Relative L2 error: of dgamma as a whole, of y and dx the geometric mean over rows; inf for
    NaN and Inf.

    Where the sign of a rounding error decides whether a row is 300 times too large, a median is a
    coin toss; where one row in hundreds is nearly constant, a sum over rows is that row. The
    geometric mean is neither.
    """
    exact = reference.to_float64(exact) if exact.dtype == object else exact
    wide = value.astype(np.float64)
    if not np.isfinite(wide).all():
        return math.inf
    if tensor == "dgamma":
        wide, exact = wide[None], exact[None]
    size = np.linalg.norm(exact, axis=1)
    some = size > 0  # a constant row has no relative error
    errors = np.linalg.norm(wide - exact, axis=1)[some] / size[some]
    return float(np.exp(np.log(np.maximum(errors, 1e-20)).mean()))


def compare(peer, recreation, case):
    """Both lose the same digits within a factor 5; where one has none left the other has not one
    either.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = peer.run(case)
    ours = run(recreation, case.x, case.gamma, case.beta, case.dy)
    exact, _ = accuracy.judge(case)
    for tensor, a, b in zip(("y", *accuracy.GRADIENTS), theirs, ours):
        # dbeta is a plain sum over rows, as is dgamma.
        if tensor not in case.tensors or tensor == "dbeta":
            continue
        e, f = error_of(tensor, a, exact[tensor]), error_of(tensor, b, exact[tensor])
        where = (
            f"{tensor} at {case.regime} {case.coordinates}: framework {e:.1e}, recreation {f:.1e}"
        )
        assert (e == math.inf) == (f == math.inf), where
        assert a.any() == b.any(), where
        if e == math.inf:
            continue
        floor = 4 * U[case.x.dtype.name]  # below it both are as good as right
        e, f = max(e, floor), max(f, floor)
        if max(e, f) < 1:
            assert 1 / 5 < e / f < 5, where
        else:
            assert min(e, f) > 0.1, where


def offset_cases():
    for D, rows in ((4, 400), (37, 64), (1024, 16)):
        # dgamma is one row's where one is nearly constant.
        tensors = ("y", "dx") if D == 4 else ("y", "dx", "dgamma")
        for offset in accuracy.OFFSETS:
            yield accuracy.normal_case(
                "offset", {"offset": offset}, tensors, rows, D, offset=offset
            )


def kappa_cases():
    for along in ("ones", "xhat", "both"):
        yield accuracy.kappa_case(along, 1e4, rows=32)


REGIMES = {
    "offset": offset_cases,
    "kappa": kappa_cases,
    "sigma": accuracy.scale_cases,
    "half": accuracy.half_cases,
    "rows": lambda: islice(accuracy.rows_cases(), 2),
    "float64": lambda: islice(accuracy.float64_cases(), 0, None, 6),
}


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("name", WITH_BACKWARD)
def test_agrees_with_the_framework(contestants, name, regime):
    if name not in contestants:
        pytest.skip(f"{BY_NAME[name].framework} is not installed")
    for case in REGIMES[regime]():
        compare(contestants[name], name, case)
