"""The judge is judged: by integers, and by 400 bits of mpmath."""

import math
from fractions import Fraction

import cases
import mpmath
import numpy as np
import pytest

from lnlib import reference, rounding
from lnlib.reference import BITS, to_fixed, to_float64

ONE = 1 << 400


def fraction(fixed):
    return Fraction(int(fixed), ONE)


# Fixed point


@pytest.mark.parametrize(
    "value", [0.0, -1.0, 0.1, -1 / 3, 2.0**-347, 1e300, -1e300, 2**53 - 1.0, 1.5 * 2.0**-340]
)
def test_float64_is_fixed_point_without_loss(value):
    assert fraction(to_fixed(value)[()]) == Fraction(value)
    assert to_float64(to_fixed(value))[()] == value
    assert to_fixed([3 * 2.0**-401, -3 * 2.0**-401, 5e-324]).tolist() == [1, -2, 0]


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_every_dtype_down_to_its_smallest_number(dtype):
    """float32 and the half-precision types lose nothing, subnormals included; float64 from 2**-347
    up.
    """
    tiny = 2.0**-347 if dtype == "float64" else np.spacing(np.zeros((), dtype))
    values = np.array([1, -1, 0.1, 1000, 1 / 3], dtype)
    values = np.append(values, np.asarray(tiny, dtype))
    assert [fraction(n) for n in to_fixed(values)] == [Fraction(float(v)) for v in values]


def test_to_float64_rounds_correctly():
    """To nearest, ties to even: of 1 + 2**-53 (a tie) to 1, of anything above it up."""
    half_ulp = ONE >> 53
    found = to_float64([ONE + half_ulp, ONE + half_ulp + 1, ONE + 3 * half_ulp])
    assert found.tolist() == [1.0, 1 + 2**-52, 1 + 2**-51]


# Layer norm


def test_constant_row_with_eps_zero():
    with pytest.raises(ZeroDivisionError):
        reference.layer_norm([1.0, 1.0], [1.0, 1.0], [0.0, 0.0], eps=0.0)
    zero = [0.0, 0.0]  # in float64, which x + residual is rounded to
    assert not reference.layer_norm(zero, [1.0, 1.0], zero, residual=zero).y.any()


@pytest.mark.parametrize(
    "D, offset, scale, eps, bits",
    [
        (2, 0, 1, 1e-5, 370),
        (8, 1e8, 1e-3, 1e-5, 370),
        (64, 3, 1e6, 1e-12, 370),
        (5, 1e3, 1e-6, 1e-5, 370),
        (33, 0, 1e-20, 0.0, 250),
        (7, 0, 1e100, 1e-5, 60),
    ],
)
def test_against_mpmath(D, offset, scale, eps, bits):
    """Random float64 rows, in 400-bit floating point, dx by the Jacobian and not by the compact
    formula.

    Fixed point has 400 bits for a number of size 1. r is 2**-332 for scale 1e100, which leaves 68
    bits; var is 2**-133 for scale 1e-20, which leaves 267; r is 2**-20 for scale 1e6, which leaves
    380.
    """
    rng = np.random.default_rng(D)
    x, dy = (rng.standard_normal((2, D)) + offset) * scale, rng.standard_normal((2, D))
    gamma, beta = rng.standard_normal((2, D))
    exact = reference.layer_norm(x, gamma, beta, dy, eps)
    with mpmath.workprec(BITS):
        mpf = np.vectorize(mpmath.mpf, otypes=[object])
        X, G, B, dY = mpf(x), mpf(gamma), mpf(beta), mpf(dy)
        c = X - X.sum(axis=1, keepdims=True) / D
        var = (c * c).sum(axis=1, keepdims=True) / D + mpmath.mpf(eps)
        s = np.vectorize(mpmath.sqrt, otypes=[object])(var)
        xhat = c / s
        J = (np.eye(D, dtype=int) - (1 + xhat[:, :, None] * xhat[:, None, :]) / mpmath.mpf(D)) / s[
            :, :, None
        ]
        dx = ((G * dY)[:, :, None] * J).sum(axis=1)
        for found, expected in (
            (exact.y, xhat * G + B),
            (exact.xhat, xhat),
            (exact.dx, dx),
            (exact.rstd, 1 / s),
            (exact.dgamma, (dY * xhat).sum(axis=0)),
            (exact.dbeta, dY.sum(axis=0)),
        ):
            difference = found.ravel() * mpmath.mpf(2) ** -BITS - expected.ravel()
            norm = mpmath.sqrt((expected.ravel() ** 2).sum())
            assert mpmath.sqrt((difference**2).sum()) <= norm * mpmath.mpf(2) ** -bits


def rational_dx(x, g, eps, mean):
    """dx over r, in fractions."""
    D, x, g = len(x), [Fraction(v) for v in x], [Fraction(v) for v in g]
    c, k = ([a - (sum(v) / D if mean else 0) for a in v] for v in (x, g))
    share = sum(a * b for a, b in zip(k, c)) / (sum(a * a for a in c) + D * Fraction(eps))
    return [a - b * share for a, b in zip(k, c)]


@pytest.mark.parametrize("D", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_what_is_zero_is_zero(D, eps):
    """Where g is a sum of 1 and xhat, and eps = 0, or of 1 alone: of two features always. Judged in
    fractions.
    """
    rng, zeros = np.random.default_rng(D), 0
    for scale in (1e-8, 1.0, 3e4):
        x = scale * rng.integers(-4, 5, (6, D)) + np.arange(D)
        x[1:3] = 1e3 + rng.standard_normal((2, D))
        gamma, one = rng.standard_normal(D), np.ones(D)
        for dy in (rng.standard_normal((6, D)), np.full((6, D), 0.1), x):
            for g in (gamma, one):
                for norm in ("layer", "rms"):
                    if eps == 0 and (D == 1 if norm == "layer" else not x.any(axis=1).all()):
                        continue  # constant rows, or rows of zeros: not defined
                    exact = (
                        reference.layer_norm(x, g, 0 * one, dy, eps)
                        if norm == "layer"
                        else reference.rms_norm(x, g, dy, eps)
                    )
                    for row, upstream, found in zip(x, dy, exact.dx):
                        products = [Fraction(a) * Fraction(b) for a, b in zip(upstream, g)]
                        wanted = rational_dx(row, products, eps, norm == "layer")
                        assert [n == 0 for n in found] == [v == 0 for v in wanted]
                        zeros += wanted.count(0)
    assert zeros > 10


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_what_nearly_cancels_is_exact(norm):
    """dx is at most 2**-50 of r g, and eps decides how much: of layer norm g is 1 and a few u more,
    of RMS norm it is x.
    """
    rng, one = np.random.default_rng(0), np.ones(7)
    x = rng.standard_normal((5, 7))
    if norm == "layer":
        dy, eps = 1 + 2.0**-52 * rng.integers(0, 4, x.shape), 1.0
        exact = reference.layer_norm(x, one, 0 * one, dy, eps)
    else:
        dy, eps = x, 2.0**-55
        exact = reference.rms_norm(x, one, dy, eps)
    for row, g, rstd, found in zip(x, dy, exact.rstd.ravel(), exact.dx):
        for n, over_r in zip(found, rational_dx(row, g, eps, norm == "layer")):
            wanted = over_r * fraction(rstd)
            assert n and abs(fraction(n) - wanted) <= abs(wanted) / 2**300


def test_group_norm_is_layer_norm_of_its_rows():
    """To the last bit, with gammas that are powers of two; dh is added to dx."""
    rng = np.random.default_rng(0)
    x, dy, dh = rng.standard_normal((3, 2, 6, 5))
    gamma, beta, one = 2.0 ** np.arange(6), rng.standard_normal(6), np.ones(10)
    group = reference.group_norm(x, gamma, beta, 3, dy, dh=dh)
    g = (dy * gamma[:, None]).reshape(6, 10)
    layer = reference.layer_norm(x.reshape(6, 10), one, 0 * one, g)
    xhat, dx = (a.reshape(x.shape) for a in (layer.xhat, layer.dx))
    fixed = [to_fixed(a[:, None]) for a in (gamma, beta)]
    assert np.array_equal(group.xhat, xhat) and np.array_equal(group.dx, dx + to_fixed(dh))
    assert np.array_equal(group.y, (xhat * fixed[0] >> BITS) + fixed[1])
    assert np.array_equal(group.rstd, layer.rstd.reshape(2, 3))
    assert np.array_equal(group.dbeta, to_fixed(dy).sum(axis=(0, 2)))
    sums = (to_fixed(dy) * xhat).sum(axis=(0, 2))
    assert all(abs(a - Fraction(int(b), ONE)) < 1 for a, b in zip(group.dgamma, sums))
    assert reference.kappa(group, dy, gamma) == pytest.approx(
        np.linalg.norm(to_float64(layer.rstd) * g) / np.linalg.norm(to_float64(group.dx))
    )


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_what_the_contract_rounds(dtype):
    """h as the dtype's own addition has it, ties and subnormal numbers too; xhat as round_to."""
    rng, one = np.random.default_rng(1), np.ones(50)
    x, residual = (rng.choice([-1, 1], (2, 4, 50)) * 2.0 ** rng.integers(-9, 2, (2, 4, 50))).astype(
        dtype
    ) * rng.integers(0, 257, (2, 4, 50)).astype(dtype)
    h, tiny = x + residual, np.array(2.0**-14).astype(dtype)
    assert (h.astype(float) != x.astype(float) + residual.astype(float)).any() == (x.itemsize == 2)
    for scale in (np.ones((), dtype), tiny):
        found = reference.rms_norm(x * scale, one, residual=residual * scale, eps=0.0)
        exact = reference.rms_norm(x * scale + residual * scale, one, eps=0.0)
        assert all(map(np.array_equal, found[:3], exact[:3]))
    if x.itemsize == 2:
        twice = reference.rms_norm(h, 3 * one, round_twice=True, eps=0.0)
        rounded = 3 * rounding.round_to(to_float64(exact.xhat), dtype)
        assert np.array_equal(to_float64(twice.y), rounded)


# Distances


def test_relative_error():
    error, exact = reference.relative_error, to_fixed([3.0, 4.0])
    assert error([3.0, 4.0], exact) == error(np.zeros((0, 3)), np.zeros((0, 3))) == 0.0
    assert error([3.0, 4.0 + 2.0**-20], exact) == pytest.approx(2.0**-20 / 5, rel=1e-15, abs=0)
    assert error([0.0, 0.0], exact) == 1.0
    assert error([1e300], [1e-100]) == math.inf  # larger than any float
    assert error([0.0, 0.0], [0.0, 0.0]) == 0.0
    assert error([0.0, 1e-100], [0.0, 0.0]) == math.inf
    assert error(exact, [3.0, 5.0]) == pytest.approx(1 / math.sqrt(34), rel=1e-15, abs=0)
    four, three = (np.array(n, object) for n in (4, 3))  # units of 2**-400, of no axis
    assert error(four, three) == pytest.approx(1 / 3, rel=1e-15, abs=0)


def test_relative_error_sees_what_float64_rounding_hides():
    """The exact 1/3 and the nearest float64 differ by 2**-54 of it; compared in float64 they would
    not.
    """
    third = np.array(ONE // 3, object)
    assert to_float64(third) == 1 / 3
    found = reference.relative_error(np.array(1 / 3), third)
    assert found == pytest.approx(2.0**-54, rel=1e-12, abs=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_nan_is_infinitely_wrong(dtype, bad):
    value = np.array([1.0, bad], dtype)
    assert reference.relative_error(value, [1.0, 2.0]) == math.inf
    assert reference.correct_digits(value, [1.0, 2.0]) == 0.0


@pytest.mark.parametrize(
    "error, digits",
    [(0.0, 17.0), (1e-18, 17.0), (1e-7, 7.0), (0.5, math.log10(2)), (1.0, 0.0), (50.0, 0.0)],
)
def test_correct_digits(error, digits):
    """Of the exact value 1 with that error added in fixed point; clipped to 0..17."""
    value = np.array([ONE + int(Fraction(error) * ONE)], object)
    found = reference.correct_digits(value, [1.0])
    assert type(found) is float and found == pytest.approx(digits, abs=1e-12)


def test_kappa():
    """||r g|| / ||dx||: 1 for g in the part of space that the Jacobian only scales, larger with
    a part along 1.
    """
    x, gamma = np.array([[-1.0, 1.0, -1.0, 1.0]]), np.ones(4)
    free, along = np.array([[1.0, 1.0, -1.0, -1.0]]), np.ones((1, 4))

    def kappa(dy):
        return reference.kappa(reference.layer_norm(x, gamma, np.zeros(4), dy), dy, gamma)

    assert kappa(free) == pytest.approx(1, rel=1e-15, abs=0)
    # dx as before, g longer.
    assert kappa(free + 3 * along) == pytest.approx(math.sqrt(1 + 9), rel=1e-15, abs=0)
    # Along xhat the eigenvalue is eps / s^3 instead of 1 / s: kappa = s^2 / eps, here (1 + eps) /
    # eps.
    assert kappa(x) == pytest.approx((1 + 1e-5) / 1e-5, rel=1e-10, abs=0)
    assert kappa(along) == math.inf  # dx = 0
    assert kappa(0 * along) == 0.0  # nothing to be wrong about
    row = reference.layer_norm(x[0], gamma, np.zeros(4), free[0])  # of one axis
    assert reference.kappa(row, free[0], gamma) == kappa(free)


def test_rms_norm_of_rows_one_can_check_by_hand():
    """Rows (3, 3, 3, 5) and (1, -1, 1, -1), eps = 3 and gamma = 4: s = 4 and 2."""
    x, dy = np.array([[3.0, 3, 3, 5], [1, -1, 1, -1]]), np.array([[4.0, 0, 0, 0], [0, 4, 0, 0]])
    exact = reference.rms_norm(x, np.full(4, 4.0), dy, eps=3.0)
    assert exact.y.tolist() == to_fixed([[3, 3, 3, 5], [2, -2, 2, -2]]).tolist()
    # Without dy.
    assert all(map(np.array_equal, reference.rms_norm(x, np.full(4, 4.0), eps=3.0)[:3], exact[:3]))
    one = np.ones(4)
    assert (
        reference.rms_norm(x, one).rstd.tolist()
        == reference.rms_norm(x, one, eps=1e-5).rstd.tolist()
    )
    # r (g - xhat mean(g xhat)): g = (16, 0, 0, 0), xhat = x / 4, mean 3; then g = (0, 16, 0, 0),
    # xhat = x / 2, mean -2.
    assert to_float64(exact.dx).tolist() == [
        [4 - 9 / 16, -9 / 16, -9 / 16, -15 / 16],
        [0.5, 7.5, 0.5, -0.5],
    ]
    assert to_float64(exact.dgamma).tolist() == [3, -2, 0, 0]
