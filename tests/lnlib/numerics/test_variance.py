"""Mean and variance of a row: each algorithm against exact arithmetic, and where its theory says
that it fails.
"""

import functools
import itertools

import cases
import numpy as np
import pytest
from cases import U

from lnlib import reference
from lnlib import variance as va
from lnlib.variance import ALGORITHMS, ORDERS

DTYPES = ("float64", "float32", *cases.HALVES)
SHORT = va.Algorithm(va.recentred_short, 2)
EVERY = {**ALGORITHMS, "short": SHORT}

every_algorithm = pytest.mark.parametrize("id", EVERY)
every_order = pytest.mark.parametrize("order", ORDERS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def exact_mean_and_var(x):
    """Exact in units of 2**-BITS, as float64 of shape (..., 1)."""
    X = reference.to_fixed(x)
    D = x.shape[-1]
    c = X - X.sum(axis=-1, keepdims=True) // D
    var = (c * c >> reference.BITS).sum(axis=-1, keepdims=True) // D
    return reference.to_float64(X.sum(axis=-1, keepdims=True) // D), reference.to_float64(var)


def exact_y(x):
    D = x.shape[-1]
    return reference.layer_norm(x, np.ones(D), np.zeros(D)).y


@functools.cache
def rows(n, D, dtype="float32", offset=0.0, spread=False):
    """n normal rows of standard deviation 1 about ``offset``, and their exact y.

    ``spread``: about means from offset to twice that, so that nothing depends on where round
    numbers lie.
    """
    rng = np.random.default_rng(6)
    x = rng.standard_normal((n, D)) + offset * (1 + spread * rng.random((n, 1)))
    x = x.astype(dtype)
    x.setflags(write=False)
    return x, exact_y(x)


def y_errors(y, exact):
    return np.array([reference.relative_error(a, b) for a, b in zip(y, exact)])


def y_error(x, exact, id, **options):
    """Median over the rows."""
    return np.median(y_errors(va.normalise(x, EVERY[id], **options), exact))


def var_error(x, id, order="pairwise"):
    """Median over the rows of the relative error of the variance."""
    var = exact_mean_and_var(x)[1]
    return np.median(np.abs(EVERY[id].function(x, order)[2] - var) / var)


def near(value, theory):
    """The theory gives an order of magnitude, not a constant: it must hold within a factor 5."""
    return theory / 5 <= value <= 5 * theory


# Sums


def running_sum(terms):
    """The plain loop: NumPy scalars of every dtype round each addition."""
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def summed_by_loops(row, order):
    if order == "sequential":
        return running_sum(row)
    if order == "accumulators":
        return running_sum([running_sum(row[i::8]) for i in range(min(8, len(row)))])
    while len(row) > 1:
        row = [row[i] + row[i + 1] for i in range(0, len(row) - 1, 2)] + row[len(row) // 2 * 2 :]
    return row[0]


@every_order
def test_total_is_the_loop(order):
    """Bit for bit, so every partial sum is rounded to the dtype and the order is the one that was
    promised.
    """
    for dtype, D in itertools.product(DTYPES, [1, 5, 128, 129, 300]):
        x = (np.random.default_rng(D).standard_normal((3, D)) + 1).astype(dtype)
        found = va.total(x, order)
        assert found.shape == (3, 1) and found.dtype == x.dtype
        assert [found[i, 0] for i in range(3)] == [
            summed_by_loops(list(row), order) for row in x
        ], (dtype, D)


@every_dtype
def test_mean_divides_by_the_whole_number(dtype):
    """259 is 260 in bfloat16 and 2049 is 2048 in float16, 65537 is inf; the quotient is rounded
    once.
    """
    for D in (259, 2049, 65537):
        x = np.zeros((1, D), dtype)
        x[0, -1] = 1
        assert va.mean(x).item() == np.float64(1 / D).astype(dtype)
        if D < 10000:
            assert va.welford(x)[0].item() == np.float64(1 / D).astype(dtype)


def test_compensated_total():
    """Kahan's sum loses both ones of the first row; the second has a plain error of sqrt(D) u =
    1.5e-5.
    """
    assert va.compensated_total(np.array([1.0, 1e100, 1.0, -1e100])).item() == 2
    x = np.random.default_rng(0).random((8, 65536)).astype(np.float32)
    exact = x.astype(np.float64).sum(axis=-1, keepdims=True)  # exact to 2**-36
    assert (np.abs(va.compensated_total(x) - exact) <= U["float32"] * exact * (1 + 1e-3)).all()


def test_merge_takes_groups_of_any_size():
    """Small whole numbers, so nothing is rounded: {0, 3} and {1, 2, 3, 6, 8} have n, m, S = 7,
    23/7, ...
    """
    a, b = np.array([[0.0, 3.0]]), np.array([[1.0, 2.0, 3.0, 6.0, 8.0]])

    def group(x):
        m = x.mean(axis=-1, keepdims=True)
        return np.array([float(x.shape[-1])]), m, ((x - m) ** 2).sum(axis=-1, keepdims=True)

    for found, expected in zip(
        va.merge(group(a), group(b)), group(np.concatenate([a, b], axis=-1))
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-15)  # a few u


# Every algorithm


@every_algorithm
def test_easy_rows(id):
    """E is at most 63, errors are like its root: 8 u for the mean, relative to mean(|x|), 8 kappa^2
    u for var.

    kappa is measured, for rows of two or three may have a small variance. ``shifted`` sums x - x0
    and adds x0.
    """
    for dtype, D in itertools.product(["float64", "float32"], [1, 2, 3, 7, 64]):
        x, _ = rows(32, D, dtype, 0.25)
        mu, var = exact_mean_and_var(x)
        shift = x[:, :1] - mu if id == "shifted" else 0
        size = var + mu**2 + shift**2  # kappa^2 times var
        scale = np.abs(x).mean(axis=-1, keepdims=True) + (
            np.abs(x[:, :1]) if id == "shifted" else 0
        )
        for order in ORDERS:
            m, c, v = EVERY[id].function(x, order)
            assert (np.abs(v - var) <= 8 * U[dtype] * size).all(), (dtype, D, order)
            assert (np.abs(m + c - mu) <= 8 * U[dtype] * scale).all(), (dtype, D, order)


@every_algorithm
def test_loops_agree_with_formulas_in_half_precision(id):
    """64 elements near 1: u**0.5 is enough to tell right from wrong."""
    for dtype in cases.HALVES:
        x, _ = rows(8, 64, dtype, 0.25)
        mu, var = exact_mean_and_var(x)
        m, c, v = (a.astype(np.float64) for a in EVERY[id].function(x))
        assert np.abs(m + c - mu).max() < U[dtype] ** 0.5
        assert (np.abs(v - var) / var).max() < 2 * U[dtype] ** 0.5


@every_algorithm
def test_shapes_and_dtypes(id):
    for shape, dtype, order in itertools.product([(2, 3, 7), (0, 8), (2, 1)], DTYPES, ORDERS):
        x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
        x.setflags(write=False)
        for a in EVERY[id].function(x, order):
            assert a.shape == (*shape[:-1], 1) and a.dtype == x.dtype
            assert not np.shares_memory(a, x)
        y = va.normalise(x, EVERY[id], order=order)
        assert y.shape == shape and y.dtype == x.dtype
        assert shape[-1] > 1 or (y == 0).all()


@every_algorithm
def test_nan_and_inf_stay_in_their_row(id):
    """And no warning: warnings are errors here. The bad element is NaN."""
    for dtype, order in itertools.product(DTYPES, ORDERS):
        x = np.random.default_rng(0).standard_normal((5, 9)).astype(dtype)
        clean = va.normalise(x, EVERY[id], order=order)
        x[1, 0], x[2, 4], x[3, 8] = np.nan, np.inf, -np.inf
        y = va.normalise(x, EVERY[id], order=order)
        assert y[[0, 4]].tobytes() == clean[[0, 4]].tobytes()
        assert np.isnan(y[[1, 2, 3], [0, 4, 8]]).all()
        for a in EVERY[id].function(x, order)[::2]:
            assert not np.isfinite(a[1:4].astype(np.float64)).any()


@pytest.mark.parametrize(
    "id", ["naive", "clipped", "two-pass", "corrected", "shifted", "recentred", "short"]
)
def test_other_orders_are_not(id):
    """Both sums follow the order. In z the sum of the elements is exact, so that only the squares
    show it.
    """
    x, _ = rows(4, 1024, offset=100)
    if id != "shifted":  # its mean is x0 plus little, which hides the order
        assert len({EVERY[id].function(x, order)[0].tobytes() for order in ORDERS}) == 3
    # 13 bits; 1024 of them need 23.
    z = np.random.default_rng(0).integers(2**12, 2**13, (4, 512)) / 2.0**12
    z = np.concatenate([z, -z], axis=-1).astype(np.float32)
    assert len({EVERY[id].function(z, order)[0].tobytes() for order in ORDERS}) == 1
    assert len({EVERY[id].function(z, order)[2].tobytes() for order in ORDERS}) == 3


# Where each fails


@pytest.mark.parametrize("offset", [1e4, 1e5, 1e6])
def test_two_pass_adds_the_square_of_the_error_of_the_mean(offset):
    """mean((x - m)^2) = var + (mu - m)^2, exactly; the sum itself costs a few u. The correction
    takes it out.
    """
    x, _ = rows(32, 256, offset=offset, spread=True)
    mu, var = exact_mean_and_var(x)
    m, _, v = va.two_pass(x)
    excess = (m - mu) ** 2
    assert (np.abs(v - var - excess) <= 4 * U["float32"] * (var + excess)).all()
    # So there is something to take out.
    assert np.max(excess / var) > 0.1 * (U["float32"] * offset) ** 2
    assert (np.abs(va.corrected_two_pass(x)[2] - var) <= 4 * U["float32"] * (var + excess)).all()


@pytest.mark.parametrize("D", [64, 1024, pytest.param(16384, marks=pytest.mark.slow)])
def test_shifted_is_lost_when_the_first_element_is_the_outlier(D):
    """x0 - mu = sigma sqrt(D - 1), so kappa^2 = D; unshifted, kappa is near 1, and no algorithm
    loses anything.
    """
    x = np.array(rows(8, D)[0])
    x[:, 0] = 1e6 * (1 + np.random.default_rng(0).random(8))
    assert near(var_error(x, "shifted"), U["float32"] * D)
    assert var_error(x, "naive") <= 4 * U["float32"]


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="longdouble is no wider here")
@pytest.mark.parametrize(
    "id, roundings, dtype, D, offset",
    [("wide", 1, "float64", 64, 1e9), ("wide", 1, "float32", 64, 1e5)]
    + [("neumaier", 2, "float32", 4096, 0.0)],
)
def test_the_best_sums_give_the_best_variance(id, roundings, dtype, D, offset):
    """At 1e9 a mean in float64 alone would add 1e-14 to a variance of 1; a running sum of 4096
    squares loses 20 u.
    """
    x, _ = rows(4, D, dtype, offset=offset)
    var = exact_mean_and_var(x)[1]
    assert (np.abs(EVERY[id].function(x)[2] - var) <= 1.01 * roundings * U[dtype] * var).all()


# The cure


@pytest.mark.parametrize(
    "id, dtype, n, D, bar, offsets",
    [
        *(
            ("recentred", "float32", n, D, bar, (0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7))
            for n, D, bar in ((64, 3, 3e-7), (32, 64, 1e-7), (8, 1024, 1e-7))
        ),
        *(
            ("recentred", "float64", n, D, 1e-15, (0, 1e4, 1e8, 1e12))
            for n, D in ((64, 3), (32, 64), (8, 1024))
        ),
        ("short", "float32", 8, 1024, 1e-7, (0, 1e2, 1e4, 1e6)),
    ],
)
def test_no_offset_costs_a_digit(id, dtype, n, D, bar, offsets):
    """u is 6e-8. Elementwise: two subtractions, a quotient; for the whole row: sum, root.
    Independent, 1.5 u = 9e-8.

    Rows of three have no averages: each of five roundings may be u, 3e-7. In float64, 1e-15 is 9 u.
    """
    for offset in offsets:
        assert y_error(*rows(n, D, dtype, offset), id) <= bar, offset


@pytest.mark.slow
def test_recentred_needs_short_sums():
    """What is left of the mean is delta = E u (1 + E u mu / sigma); E u = |r| / mu, so delta = r^2
    / (mu sigma).
    """
    x, exact = rows(3, 65536, offset=1e7)
    _, r, _ = va.recentred(x, "sequential")
    delta = np.median(np.abs(r)) ** 2 / 1e7
    assert delta > 1e-3 and near(y_error(x, exact, "recentred", order="sequential"), delta)


CONSTANTS = [
    ("float32", 33333334, 768),
    ("float32", 0.1, 65536),
    ("float32", 1e-30, 1000),
    ("float64", 1e15 / 3, 1000),
    ("float16", 3.3, 100),
    ("bfloat16", 3.3, 64),
]


@pytest.mark.parametrize("dtype, k, D", [c for c in CONSTANTS if c[0] in DTYPES])
def test_constant_rows_are_exact_zeros(dtype, k, D):
    """x - m is j units in the last place in every column, and j D < 1/u: its sums need no
    rounding.
    """
    x = np.full((2, D), k, dtype)
    assert (va.recentred(x)[2] == 0).all()
    assert (va.normalise(x) == 0).all()


# normalise and its arguments


def test_normalise():
    """The formula, by name and by entry, with recentred as the default."""
    x, exact = rows(4, 64)
    for id, entry in ALGORITHMS.items():
        m, c, v = entry.function(x, "sequential")
        expected = ((x - m) - c) / np.sqrt(v + np.float32(0.5))
        for named in (id, entry):
            y = va.normalise(x, named, eps=0.5, order="sequential")
            assert np.array_equal(y, expected)
    assert np.array_equal(va.normalise(x), va.normalise(x, "recentred", 1e-5, "pairwise"))
    assert (y_errors(va.normalise(x), exact) <= 4 * U["float32"]).all()
    assert va.normalise(x, var=x.var(axis=1, keepdims=True, dtype=float)).dtype == np.float32
