"""Rows at the ends of the range: squares that overflow or underflow, and float64 inside
(``precise=True``).
"""

import math

import cases
import numpy as np
import pytest

from lnlib import cpu, gpu, reference, validation
from lnlib import layernorm as ln

every_backend = pytest.mark.parametrize("backend", [ln, cpu, gpu])


def with_backends(names, values):
    """Parametrise ``names``, the first of which is dtype, and backend; the GPU does not take
    float64.
    """
    return pytest.mark.parametrize(
        f"{names}, backend",
        [
            (*value, backend)
            for value in values
            for backend in (ln, cpu, gpu)
            if not (backend is gpu and value[0] == "float64")
        ],
    )


def judged(backend, x, eps, exponent=0, precise=False):
    """Relative errors of y, dx, dgamma and dbeta.

    The judge computes with 400 bits behind the point, too few for 1 / sigma of a float64 row of
    1e200. So it is given x / 2^e and eps / 4^e, whose y is the same, whose dx is 2^e times as
    large.
    """
    rng = np.random.default_rng(9)
    gamma, beta = (rng.standard_normal(x.shape[-1]).astype(x.dtype) for _ in range(2))
    dy = rng.standard_normal(x.shape).astype(x.dtype)
    y, dx, dgamma, dbeta = cases.run(backend, x, gamma, beta, dy, eps, precise=precise)
    exact = reference.layer_norm(
        np.ldexp(x, -exponent), gamma, beta, dy, float(np.ldexp(eps, -2 * exponent))
    )
    return list(cases.errors((y, np.ldexp(dx, exponent), dgamma, dbeta), exact).values())


def rows(sigma, dtype, D=64):
    return (sigma * np.random.default_rng(8).standard_normal((4, D))).astype(dtype)


# sigma, eps, e. Within each range 1/sigma is a normal number, so dx can be held to the bar.
EXTREMES = [
    ("float32", 1e18, 1e-5, 60),
    ("float32", 3e19, 1e-5, 64),
    ("float32", 1e30, 1e-5, 100),
    ("float32", 5e37, 1e-5, 125),
    ("float32", 1e-24, 0.0, -80),
    ("float32", 1e-36, 0.0, -120),
    ("float32", 1e-22, 1e-44, -73),
    ("float32", 1.0, 1e42, 70),
    ("float64", 1e155, 1e-5, 500),
    ("float64", 1e307, 1e-5, 1020),
    ("float64", 1e-170, 0.0, -560),
    ("float64", 1e-300, 0.0, -996),
]


@with_backends("dtype, sigma, eps, exponent", EXTREMES)
def test_squares_out_of_range(dtype, sigma, eps, exponent, backend):
    """Scaling by a power of two rounds nothing, so the bar is the one of ordinary rows.

    Precise, half an ulp of every element is at most u of the tensor; float64 adds nothing that
    shows.
    """
    errors = judged(backend, rows(sigma, dtype), eps, exponent)
    assert max(errors) <= cases.BAR[dtype], errors
    if dtype == "float32":
        errors = judged(backend, rows(sigma, dtype), eps, exponent, precise=True)
        assert max(errors) <= 1.001 * cases.U["float32"], errors


# dtype, largest number of the row in units of its last bit, eps.
NEARLY_CONSTANT = [
    ("float32", 0, 1e-5),
    ("float32", 0, 1e-30),
    ("float32", 5, 1e-5),
    ("float64", 0, 1e-5),
    ("float64", 0, 1e-40),
]


@pytest.mark.parametrize("size", [1e20, 3e38])
@pytest.mark.parametrize("D", [1, 64, pytest.param(2500, marks=pytest.mark.slow)])
@with_backends("dtype, bits, eps", NEARLY_CONSTANT)
def test_rows_far_from_zero_whose_differences_are_small(backend, dtype, bits, eps, D, size):
    """The sum of the row overflows, x - mean does not: neither it nor eps may vanish in a scale
    that suits x.

    Nothing but x - mean counts, so the exact results are those of x - first, which is exact. Of
    long rows the interpreter of the GPU's kernels has one.
    """
    first = np.array(size * (1 if dtype == "float32" else 5e269), dtype)
    rng = np.random.default_rng(3)
    rows = 1 if backend is gpu and D > 300 else 4
    differences = np.spacing(first) * rng.integers(-bits, bits, (rows, D), endpoint=True).astype(
        dtype
    )
    gamma, *dy = rng.standard_normal((1 + rows, D)).astype(dtype)
    beta, dy = np.zeros(D, dtype), np.array(dy)
    exact = reference.layer_norm(differences, gamma, beta, dy, eps)
    found = cases.run(backend, first + differences, gamma, beta, dy, eps)
    cases.check(found, exact, cases.bars(exact, gamma, dy, dtype))


@pytest.mark.parametrize("D", [3, 300])
@pytest.mark.parametrize(
    "mean, eps", [(1e-25, 1e-12), (3e-23, 1e-5), (1e-21, 1e-30), (1e-30, 1e-12)]
)
@every_backend
def test_rows_far_from_zero_whose_squares_vanish(backend, mean, eps, D):
    """mean / sigma is 1e5: with eps alone in the variance, the row must still be recentred."""
    x = mean * (1 + 1e-5 * np.random.default_rng(8).standard_normal((4, D)))
    errors = judged(backend, x.astype("f4"), eps, -80)
    assert max(errors) <= cases.BAR["float32"], errors


@pytest.mark.parametrize("part", [0, 0.5])
@pytest.mark.parametrize("side", [0.999, 1.001])
@with_backends("dtype, end", [("float32", 0), ("float32", 1), ("float64", 0), ("float64", 1)])
def test_both_sides_of_the_limits(dtype, end, backend, side, part):
    """There is one definition of the range: at its edges both ways meet the bar, and the other way
    is taken there.

    ``part`` of variance + eps is eps. That the NumPy backend has scaled a row cannot be seen: no
    bit differs.
    """
    total = side * validation.RANGE[dtype][end]
    x = np.random.default_rng(8).standard_normal((4, 64))
    x = (x * np.sqrt((1 - part) * total) / x.std(axis=1, keepdims=True)).astype(dtype)
    errors = judged(backend, x, part * total, round(np.log2(total) / 2))
    assert max(errors) <= cases.BAR[dtype], errors
    if backend is not ln:
        one = np.ones(64, dtype)
        statistics = backend.layer_norm_forward(x, one, one, part * total)[1].statistics
        again = statistics[2] == 0 if backend is cpu else statistics[:, 3] != 1
        assert (again == ((side < 1) == (end == 0))).all()


def test_the_range_is_derived():
    """tiny / u from below; above there is room for a sum of squares of 10 / u numbers. What the GPU
    scales up or down is in range afterwards.
    """
    for dtype, (smallest, largest) in validation.RANGE.items():
        assert 0.98 <= smallest / (np.finfo(dtype).tiny / cases.U[dtype]) <= 1.02  # to one digit
        assert 10 < np.finfo(dtype).max * cases.U[dtype] / largest < 1000
    smallest, largest = validation.RANGE["float32"]
    assert smallest * gpu.parts.UP**2 < largest and smallest < largest * gpu.parts.DOWN**2
    assert float(np.finfo("f4").max) ** 2 * gpu.parts.DOWN**2 < largest


@every_backend
def test_the_largest_numbers(backend):
    """A row of +-max: its mean overflows as a sum, its differences overflow, y is +-1 times sqrt(D)
    / 2 at most.
    """
    for dtype in ("float32",) if backend is gpu else ("float32", "float64"):
        largest = np.finfo(dtype).max
        x = np.array([[largest, -largest, largest, -largest]])
        y, _ = backend.layer_norm_forward(x, np.ones(4, dtype), np.zeros(4, dtype))
        assert np.abs(y - [[1, -1, 1, -1]]).max() <= 4 * cases.U[dtype]


def dx_error(backend, x, dy, exponent):
    """The relative error of dx, of which exact is that of dy / 2^e, and what it may be: 4 kappa u.
    gamma is 1.
    """
    one, small = np.ones(x.shape[1], x.dtype), np.ldexp(dy, -exponent)
    dx, exact = cases.run(backend, x, one, one, dy)[1], reference.layer_norm(x, one, one, small)
    bar = 4 * cases.U[x.dtype.name] * max(1, reference.kappa(exact, small, one))
    return reference.relative_error(np.ldexp(dx, -exponent), exact.dx), bar


@with_backends("dtype, exponent", [("float32", 100), ("float64", 900)])
@pytest.mark.parametrize("D", [3, 64, 300, 2500])
def test_gradients_that_overflow_on_the_way(backend, D, dtype, exponent):
    """g - mean(g) is nearly twice the largest number, dx = r (...) is not; exact is dx of dy / 2^e.

    Of the longest rows the interpreter of the GPU's kernels has one.
    """
    x, largest = rows(1e10, dtype, D), np.finfo(dtype).max
    x = x[:1] if backend is gpu and D > 300 else x
    dy = np.full(x.shape, -0.9 * largest, dtype)
    dy[:, 0], dy[:, D // 2] = 0, 0.9 * largest
    error, bar = dx_error(backend, x, dy, exponent)
    assert error <= bar


@with_backends("dtype, eps", [("float32", 1e-30), ("float32", 1e-44), ("float64", 1e-300)])
def test_dx_of_a_constant_row_has_all_of_a_tiny_eps(backend, dtype, eps):
    """g has the mean 0, xhat is 0: dx is g / sqrt(eps), to three roundings and what float32 leaves
    of a tiny eps.
    """
    x, one = np.full((1, 4), 2, dtype), np.ones(4, dtype)
    dy = np.array([[1, -1, 2, -2]], dtype) * np.float32(1e-3)
    dx = cases.run(backend, x, one, one, dy, eps)[1]
    assert np.allclose(dx, dy / np.sqrt(eps), rtol=4 * cases.U["float32"], atol=0)


@with_backends("dtype, unit", [("float32", 2.0**-149), ("float64", 2.0**-1074)])
@pytest.mark.parametrize("upstream", [0, 1e-30, 1])
def test_dx_where_rstd_is_beyond_the_largest_number(backend, dtype, unit, upstream):
    """Without eps, rows whose spread is below 1 / largest: dx is 0, a number, or Inf, as it is
    exactly.

    ``unit`` is the smallest number there is, x are a few of it. Exact is dx of x / unit, so many
    times smaller.
    """
    few = np.array([[1, 2, 3, 5], [1, -2, 0, 3]], dtype)
    dy = np.array([[1, -1, 2, 0.5], [3, -1, 2, 0.5]], dtype) * np.array(upstream, dtype)
    one = np.ones(4, dtype)
    y, dx, *_ = cases.run(backend, few * np.array(unit, dtype), one, one, dy, 0.0)
    exact = reference.layer_norm(few, one, one, dy, 0.0)
    assert reference.relative_error(y, exact.y) <= cases.BAR[dtype]
    with np.errstate(over="ignore"):
        expected = np.ldexp(reference.to_float64(exact.dx), round(-math.log2(unit))).astype(dtype)
    assert np.isinf(expected).all() == (upstream == 1) and expected.any() == (upstream != 0)
    # Of rows of four numbers 12 roundings, as below, of the size of what is subtracted: at most 4
    # times dx here.
    assert np.allclose(dx, expected, rtol=48 * cases.U[dtype], atol=0)


def sums_over_rows(backend, x, dy, threads):
    """dgamma and dbeta by one thread or more; gamma is 1, so a constant row of dy has a dx of 0."""
    one = np.ones(x.shape[1], x.dtype)
    with cases.threads(threads):
        _, dx, dgamma, dbeta = cases.run(backend, x, one, one, dy)
    assert not dx.any()
    return dgamma, dbeta


@pytest.mark.parametrize("backend, threads", [(ln, 1), (cpu, 1), (cpu, 3)])
@pytest.mark.parametrize("D", [5, 300, 2500])
@pytest.mark.parametrize("n", [7, 17, 100])
def test_sums_over_rows_that_overflow_on_the_way(n, D, backend, threads):
    """n rows, the same with the other sign, and one row more, which is the sum. 7 * 5e37 is too
    large for float32.

    Terms cancel exactly in float64. What is left is the last row's, with the roundings of xhat and
    of a product.
    """
    half = np.clip(np.random.default_rng(8).standard_normal((n, D)), -3, 3)
    last = np.random.default_rng(9).standard_normal((1, D))
    x = np.concatenate([half, half, last]).astype("f4")
    dy = np.repeat(np.array([5e37] * n + [-5e37] * n + [3e37], "f4"), D).reshape(-1, D)
    dgamma, dbeta = sums_over_rows(backend, x, dy, threads)
    assert (dbeta == dy[-1]).all()
    xhat = reference.to_float64(reference.layer_norm(x[-1:], np.ones(D), np.zeros(D)).y)[0]
    exact = dy[-1] * xhat
    assert np.linalg.norm(dgamma - exact) <= cases.BAR["float32"] * np.linalg.norm(exact)


@pytest.mark.parametrize(
    "backend, threads, precise",
    [
        pytest.param(
            backend, threads, precise, marks=cases.marks_of_threads(threads, "float32", precise)
        )
        for backend, threads in ((ln, 1), (cpu, 1), (cpu, 3))
        for precise in (False, True)
    ],
)
def test_sums_over_rows_in_range_and_out_of_range_that_cancel(backend, threads, precise):
    """What 1000 rows in range add 1000 others take away; the last row is left. Neither part may be
    rounded alone.

    Rounded once, or by 4 u of the root of the sum of squares (see cases.judge).
    """
    factor = np.array([1, np.nan if precise else 1e30], "f4")  # float64 has room for 1e30
    x = rows(1.0, "float32", 7)[:1] * np.repeat(factor, [1000, 1001])[:, None]
    half = np.abs(np.random.default_rng(8).standard_normal((1000, 7))) + 1
    dy = np.concatenate([half, -half[::-1], half[:1]]).astype("f4")
    one = np.ones(7, "f4")
    with cases.threads(threads):
        dbeta = cases.run(backend, x, one, one, dy, precise=precise)[3]
    bound = 0.0 if precise else 4 * cases.U["float32"] * np.linalg.norm(dy, axis=0)
    assert (np.abs(dbeta - dy[-1]) <= bound).all()


@every_backend
def test_precise_halves_are_rounded_once(backend):
    """1 + 2^-11 + 2^-30 lies above the middle of two float16, by less than float32 can tell
    from 1.
    """
    x, one = np.array([[1, -1]] * 3, "f2"), np.ones(2, "f4")
    tiny = np.float32(2.0**-11 + 2.0**-30)
    y = cases.run(backend, x, one, one * tiny, x, 0.0, precise=True)[0]
    assert (y[:, 0] == 1 + 2.0**-10).all()


def test_rms_norm_out_of_range():
    """The same rescue; y of a scaled row is y of the row."""
    x = rows(1.0, "float32")
    (small, _), (large, _) = (
        ln.rms_norm_forward(np.ldexp(x, k), np.ones(64, "f4"), 0.0) for k in (0, 120)
    )
    assert np.array_equal(small, large)


@pytest.mark.parametrize("dtype", ["float32", *cases.HALVES])
def test_the_precise_cache(dtype):
    """float64, and nothing that changes when the caller's arrays do."""
    x, dy = rows(1.0, dtype), rows(2.0, dtype)
    gamma = x[0].copy()
    _, cache = ln.layer_norm_forward(x, gamma, gamma, precise=True)
    expected = ln.layer_norm_backward(dy, cache)
    assert cache.xhat.dtype == cache.rstd.dtype == np.float64 and cache.dtype == dtype
    x *= 0
    gamma *= 0
    found = ln.layer_norm_backward(dy, cache)
    assert cases.bits(found) == cases.bits(expected) and all(a.dtype == dtype for a in found)


@pytest.mark.parametrize("dtype, power", [("float32", 76), ("float32", -70), ("float64", -540)])
def test_double_backward_where_the_square_of_rstd_is_out_of_range(dtype, power):
    """Each gradient has half the power of x and each rstd all of it; without eps nothing else
    changes.
    """
    x, v, dy = np.random.default_rng(5).standard_normal((3, 4, 9)).astype(dtype)
    one, found = np.ones(9, dtype), []
    for k in (0, power):
        _, cache = ln.layer_norm_forward(np.ldexp(x, k), one, one, 0.0)
        grad_x = ln.layer_norm_double_backward(np.ldexp(v, k // 2), np.ldexp(dy, k // 2), cache)[0]
        found.append(np.ldexp(grad_x, k))
    assert np.array_equal(*found)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["ones", "xhat"])
@every_backend
def test_precise_dx_at_kappa_1e6(direction, backend):
    """4 kappa u is 2.4e-1 in float32 and 4e-10 in float64; half an ulp of dx is left."""
    rng = np.random.default_rng(10)
    x = (1e6 + rng.standard_normal((4, 1000))).astype("float32")
    base = np.ones(x.shape) if direction == "ones" else x - 1e6
    dy = (base + 1e-6 * rng.standard_normal(x.shape)).astype("float32")
    gamma = np.ones(1000, "float32")
    eps = 1e-12
    exact = reference.layer_norm(x, gamma, gamma, dy, eps)
    assert 1e5 <= reference.kappa(exact, dy, gamma) <= 1e8
    error = {
        precise: reference.relative_error(
            cases.run(backend, x, gamma, gamma, dy, eps, precise=precise)[1], exact.dx
        )
        for precise in (False, True)
    }
    assert error[True] <= 1.001 * cases.U["float32"] and error[True] < error[False], error
