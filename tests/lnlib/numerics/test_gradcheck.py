"""Numeric gradients are as good as their formula; each checker catches wrong gradients and passes
right ones.
"""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lnlib import gradcheck, layer_norm_backward, layer_norm_forward, layer_norm_jvp, reference
from lnlib.gradcheck import (
    CHANGES,
    METHODS,
    RULES,
    adjoint_test,
    check_gradients,
    direction_test,
    tolerance,
)

U = 2.0**-53
NAMES = ("dx", "dgamma", "dbeta")


def f(x, gamma, beta):
    return layer_norm_forward(x, gamma, beta)[0]


def problem(shape, seed=0, offset=0.0, dtype=np.float64):
    """Arguments, upstream gradient and analytic gradients of a layer norm."""
    rng = np.random.default_rng(seed)
    D = shape[-1]
    args = (
        rng.standard_normal(shape) + offset,
        1 + 0.3 * rng.standard_normal(D),
        rng.standard_normal(D),
    )
    args = tuple(a.astype(dtype) for a in args)
    dy = rng.standard_normal(shape).astype(dtype)
    return args, dy, layer_norm_backward(dy, layer_norm_forward(*args)[1])


def along(args, k):
    return lambda a: f(*args[:k], a, *args[k + 1 :])


# Numeric gradients --------------------------------------------------------------------------------

# Order p balances its two errors at about u^(p/(p+1)): 1.1e-8, 2.3e-11, 1.7e-13. The constants (a
# value of f is off by 4u, a row adds up D of them, l is not exactly the length of f) come to less
# than a factor 10; central is to be below 1e-10. Richardson's sixth order is its truncation at D =
# 8, where rows of small sigma have a short length. The complex step has roundings only: a forward
# of some ten, most of them not in the same direction.
ACCURACY = {
    "one_sided": 1e-7,
    "central": 1e-10,
    "five_point": 1e-11,
    "richardson": 1e-10,
    "complex": 1e-15,
}


@pytest.mark.parametrize(
    "method, shape",
    [
        *((method, shape) for method in METHODS for shape in ((2, 3, 8), (4, 8, 16))),
        *(
            pytest.param(method, (4, 16, 64), marks=pytest.mark.slow)
            for method in ("central", "complex")
        ),
    ],
)
def test_every_gradient_is_as_accurate_as_the_formula_allows(method, shape):
    args, dy, _ = problem(shape)
    exact = reference.layer_norm(*args, dy)
    for k, name in enumerate(NAMES):
        numeric = METHODS[method](along(args, k), args[k], dy=dy)
        assert numeric.shape == args[k].shape and numeric.dtype == np.float64
        assert reference.relative_error(numeric, getattr(exact, name)) <= ACCURACY[method], name


def steps_taken(method, x):
    seen = []

    def loss(z):
        seen.append(np.abs(z - x).max())
        return z.sum()

    METHODS[method](loss, x)
    return max(seen)


@pytest.mark.parametrize(
    "method, constant, order",
    [
        ("one_sided", 16, 1),
        ("central", 12, 2),
        ("five_point", 45, 4),
        ("richardson", 26.4 * 5040 * 64 / 6, 6),
    ],
)
def test_the_default_step_is_the_next_power_of_two_after_the_balance(method, constant, order):
    for x, length in (
        (np.array([1.0, 3.0]) * 5, 5.0),
        (np.array([1.0, 3.0]) + 1e6, 1.0),
        (np.full(3, 0.1), 1.0),
        (np.array(7.0), 1.0),
        (np.array([-3.0, -1]) * 2.0**-600, 2.0**-600),
    ):
        h = steps_taken(method, x) / (2 if method == "five_point" else 1)
        target = length * (constant * U) ** (1 / (order + 1))
        assert target <= h < 2 * target
        assert math.frexp(h)[0] == 0.5
    assert RULES[method].balance(U) == pytest.approx((constant * U) ** (1 / (order + 1)))
    assert RULES["complex"].step(U) == 1e-30


@pytest.mark.parametrize(
    "x, alike", [((1 - 16 * U, 1), True), ((1 - 18 * U, 1), False), ((-1, 16 * U - 1), True)]
)
def test_what_differs_by_rounding_alone_is_constant(x, alike):
    """Up to a standard deviation of 8 u. Of one that is taken for a length, the step is lost beside
    1.
    """
    assert METHODS["central"](np.sum, np.array(x)) == pytest.approx(
        [1.0, 1.0] if alike else [0.0, 0.0]
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (0,), (2, 0), (2, 3, 4)])
def test_shapes_and_what_f_does_to_its_argument(method, shape):
    x = np.asarray(np.random.default_rng(1).standard_normal(shape))
    before = x.copy()
    x.flags.writeable = False

    def square(z):
        z *= z  # in place: f may change its argument
        return z.sum()

    assert METHODS[method](square, x) == pytest.approx(2 * x, rel=1e-6, abs=1e-7)
    # Returns its argument.
    assert METHODS[method](lambda z: z, x, dy=np.ones(shape)) == pytest.approx(np.ones(shape))
    assert (x == before).all()


CASTS = {
    "float()": lambda z: float(z.sum()) * z.sum(),
    ".real": lambda z: (z.real**2).sum(),
    "constant": lambda z: 1.0,
}


@pytest.mark.parametrize("loss", CASTS.values(), ids=CASTS)
def test_complex_step_detects_that_the_imaginary_part_was_dropped(loss):
    said = "f: found a (cast|real result).*cast to float"
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(TypeError, match=said),
    ):  # whatever a caller ignores
        METHODS["complex"](loss, np.arange(3.0))


# Tests without a numeric gradient -----------------------------------------------------------------


def wrong_gradients(args, dy):
    """Name -> (dx, dgamma, dbeta) with one mistake in dx."""
    dx, dgamma, dbeta = layer_norm_backward(dy, layer_norm_forward(*args)[1])
    _, cache = layer_norm_forward(*args)
    g = dy * args[1]
    projection = cache.xhat * (g * cache.xhat).mean(-1, keepdims=True)
    centred = g - g.mean(-1, keepdims=True)
    element = dx.copy()
    element.flat[3] += 1e-6
    wrong = {
        "no projection": cache.rstd * centred,
        "no mean": cache.rstd * (g - projection),
        "sign of projection": cache.rstd * (centred + projection),
        "sign": -dx,
        "one element by 1e-6": element,
    }
    return {name: (bad, dgamma, dbeta) for name, bad in wrong.items()}


@pytest.mark.parametrize("shape", [(3, 8), (4, 16, 64), (8, 512)])
def test_adjoint_test(shape):
    args, dy, _ = problem(shape)
    cache = layer_norm_forward(*args)[1]
    rng = np.random.default_rng(5)

    def jvp(u):
        return layer_norm_jvp(u, cache)

    wide = np.full(shape, 1e30, np.float32)  # whose squares float32 does not hold
    assert adjoint_test(np.copy, np.copy, wide, wide) == 0
    for _ in range(10):
        u, v = rng.standard_normal(shape), rng.standard_normal(shape)
        assert adjoint_test(jvp, lambda d: layer_norm_backward(d, cache)[0], u, v) <= tolerance(
            np.float64, u.size
        )
    for name, (bad, *_) in wrong_gradients(args, dy).items():
        u = rng.standard_normal(shape)
        assert adjoint_test(np.zeros_like, np.zeros_like, u, dy) == 0
        mismatch = adjoint_test(jvp, lambda d: bad, u, dy)
        # One element of 1e-6 among N: 1e-6 / sqrt(N) of the size, times |u| there.
        assert mismatch > (1e-12 if "1e-6" in name else 1e-4), name


def test_the_tolerance_adds_up_its_three_parts():
    """Of x^3 at 1 by one side: truncation, and w / h = 1 / h with R = 2 and values that are off by
    4 u.
    """
    x, cube = np.array(1.0), lambda z: z**3
    numeric, again = (METHODS["one_sided"](cube, x, h) for h in (2.0**-24, 1.5 * 2.0**-24))
    (row,) = check_gradients(cube, (x,), np.array(1.0), (np.array(3.0),), method="one_sided").rows
    noise, change = 2 * 4 * U * 2.0**24 / numeric, abs(again - numeric) / numeric
    assert row.tolerance == pytest.approx(
        tolerance("float64", 1) + noise + CHANGES * change, rel=1e-12, abs=0
    )
    for one in (x, np.ones(0)):  # the complex step of a line has neither of the others
        (row,) = check_gradients(
            lambda z: z, (one,), np.ones_like(one), (np.ones_like(one),), method="complex"
        ).rows
        assert row.tolerance == tolerance("float64", 1)


@pytest.mark.parametrize("shape", [(2, 3, 8), (4, 16, 64), (8, 16, 1024)])
def test_a_direction_passes_the_right_gradients_and_no_others(shape):
    args, dy, grads = problem(shape)
    rng = np.random.default_rng(3)
    for _ in range(5):
        assert direction_test(f, args, dy, grads, rng=rng) <= tolerance(np.float64, dy.size)
        # One direction moves every element by its own length, so (v . grad)^3 brings large third
        # derivatives.
        assert direction_test(f, args, dy, grads, rng=rng, method="central") <= 1e-9
    for name, bad in wrong_gradients(args, dy).items():
        assert direction_test(f, args, dy, bad, rng=rng) > 1e-11, name
        if "1e-6" not in name:
            assert direction_test(f, args, dy, bad, rng=rng, method="central") > 1e-4, name
    assert math.isnan(direction_test(f, args, dy, (grads[0] * math.nan, *grads[1:]), rng=rng))
    for k in (1, 2):  # the other gradients are in the same number
        bad = list(grads)
        bad[k] = bad[k] * 1.001
        assert direction_test(f, args, dy, bad, rng=rng) > 1e-7


# The tolerance ------------------------------------------------------------------------------------


def dx_error_and_kappa(x, gamma, beta, dy, eps=1e-5):
    exact = reference.layer_norm(x, gamma, beta, dy, eps)
    dx = layer_norm_backward(dy, layer_norm_forward(x, gamma, beta, eps)[1])[0]
    return reference.relative_error(dx, exact.dx), reference.kappa(exact, dy, gamma)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("D", [2, 3, 8, 64, 100, 768, 4096, 65536])
def test_the_tolerance_is_neither_too_small_nor_useless(dtype, D):
    ratios = []
    for seed in range(5 if D < 1000 else 1):
        args, dy, _ = problem((max(1, min(8, 4096 // D)), D), seed, dtype=dtype)
        error, kappa = dx_error_and_kappa(*args, dy)
        ratios.append(tolerance(dtype, D, kappa) / error)
    assert min(ratios) >= 1
    assert np.median(ratios) <= 30


def sum_and_chain(a):
    """The sum of a vector in the order of :func:`lnlib.gradcheck.longest_chain`, and its longest
    chain, counted.
    """
    if len(a) > 128:
        half = len(a) // 2 - len(a) // 2 % 8
        (one, p), (two, q) = sum_and_chain(a[:half]), sum_and_chain(a[half:])
        return one + two, 1 + max(p, q)
    sums, rest = [(v, 0) for v in a[:1]], a[1:]
    if len(a) >= 8:
        whole = len(a) // 8 * 8
        sums, rest = [(a[i:whole:8].cumsum()[-1], whole // 8 - 1) for i in range(8)], a[whole:]
        while len(sums) > 1:
            sums = [(one + two, 1 + max(p, q)) for (one, p), (two, q) in zip(sums[::2], sums[1::2])]
    ((total, chain),) = sums
    for v in rest:
        total, chain = total + v, chain + 1
    return total, chain


@pytest.mark.parametrize("D", [*range(1, 33), 64, 127, 128, 129, 256, 257, 500, 1023, 1024, 65536])
def test_the_longest_chain_is_that_of_numpy(D):
    a = np.random.default_rng(D).standard_normal(D).astype(np.float32)
    total, chain = sum_and_chain(a)
    assert total == a.sum() and chain == gradcheck.longest_chain(D)


# The report ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(2, 3, 8), (4, 16)])
def test_check_gradients_passes_the_right_gradients(method, shape):
    args, dy, grads = problem(shape)
    report = check_gradients(f, args, dy, grads, names=NAMES, method=method)
    assert report.passed and [row.name for row in report.rows] == list(NAMES)
    assert [row.shape for row in report.rows] == [a.shape for a in args]
    assert report.max_error == max(row.error for row in report.rows) <= ACCURACY[method]
    # The tolerances are good for something: a few times the accuracy, not a magic 1e-4.
    assert all(row.tolerance <= 200 * ACCURACY[method] for row in report.rows)
    assert all(
        type(number) is float for row in report.rows for number in (row.error, row.tolerance)
    )  # as printed


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_check_gradients_fails_wrong_ones(method):
    """1e-6 in one element is near the error of a one-sided difference."""
    args, dy, grads = problem((2, 3, 8))
    wrong = {0: [bad[0] for bad in wrong_gradients(args, dy).values()]}
    wrong |= {k: [grads[k] + 1e-6 * (np.arange(8) == 5)] for k in (1, 2)}
    if method == "one_sided":
        wrong = {0: wrong[0][:-1]}
    for k, tries in wrong.items():
        for bad in tries:
            report = check_gradients(f, args, dy, (*grads[:k], bad, *grads[k + 1 :]), method=method)
            assert [row.ok for row in report.rows] == [j != k for j in range(3)]
            assert not report.passed and report.rows[k].message == "the gradients differ"


@pytest.mark.parametrize("rtol", [None, 1e9])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_inf_fail(value, rtol):
    args, dy, grads = problem((2, 8))
    bad = grads[1].copy()
    bad[3] = value
    report = check_gradients(f, args, dy, (grads[0], bad, grads[2]), rtol=rtol)
    assert [row.ok for row in report.rows] == [True, False, True]
    assert report.max_error == math.inf
    assert report.rows[1].message == "the gradient has NaN or Inf"
    report = check_gradients(lambda x: x * math.nan, args[:1], dy, grads[:1], rtol=rtol)
    assert not report.passed and report.rows[0].message == "f gives NaN or Inf near args"


@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_that_is_zero(method):
    """dy lies in the null direction of the Jacobian, where numeric gradients are noise."""
    (x, _, beta), _, _ = problem((3, 16))
    gamma, dy = np.ones(16), np.ones((3, 16))
    args, grads = (x, gamma, beta), layer_norm_backward(dy, layer_norm_forward(x, gamma, beta)[1])
    assert abs(grads[0]).max() == 0
    assert check_gradients(f, args, dy, grads, method=method).passed
    wrong = (grads[0] + 1e-3, *grads[1:])
    assert not check_gradients(f, args, dy, wrong, method=method).rows[0].ok

    def still(a):  # nothing moves at all: no division by zero
        return 0 * a

    assert check_gradients(still, (x,), dy, (np.zeros_like(x),), method=method).max_error == 0
    assert check_gradients(still, (x,), dy, (np.ones_like(x),), method=method).max_error == math.inf
    one = x[:, :1], gamma[:1], beta[:1]
    grads = layer_norm_backward(dy[:, :1], layer_norm_forward(*one)[1])
    assert check_gradients(f, one, dy[:, :1], grads, method=method).passed


@pytest.mark.slow
@settings(derandomize=True, max_examples=80, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.integers(3, 12),
    st.sampled_from([0.0, 10.0, 1e3, 1e5]),
    st.integers(-3, 3),
    st.sampled_from(["ones", "near ones", "random"]),
    st.sampled_from(["central", "complex"]),
)
def test_no_false_alarm(seed, rows, D, offset, exponent, kind, method):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, D)) + offset) * 10.0**exponent
    gamma = rng.choice([0, 1]) + 0.1 * rng.standard_normal(D)
    beta = rng.choice([0, 1]) * rng.standard_normal(D)
    noise = {"ones": 0, "near ones": 1e-4, "random": 1}[kind] * rng.standard_normal((rows, D))
    dy = noise if kind == "random" else 1 + noise
    grads = layer_norm_backward(dy, layer_norm_forward(x, gamma, beta)[1])
    report = check_gradients(f, (x, gamma, beta), dy, grads, method=method)
    assert report.passed or {row.message for row in report.rows if not row.ok} == {
        "the numeric gradient is too inaccurate to tell"
    }, report


def test_float32_needs_a_tolerance_that_hides_bugs():
    args, dy, grads = problem((2, 3, 8), dtype=np.float32)
    report = check_gradients(f, args, dy, grads)
    assert report.passed and all(row.tolerance > 1e-5 for row in report.rows)
    with pytest.raises(TypeError, match=r"args\[0\]: found dtype float32, expected one of float64"):
        check_gradients(f, args, dy, grads, method="complex")


def test_the_table_and_rtol():
    args, dy, grads = problem((2, 8))
    wrong = -grads[0], grads[1], grads[2][None]
    report = check_gradients(f, args, dy, wrong, names=NAMES, rtol=1e-8)
    head, dx, dgamma, dbeta = str(report).splitlines()
    assert repr(report) == str(report)
    assert head.split() == ["gradient", "error", "tolerance", "shape"]
    assert "FAILED" in dx and dx.endswith("(2, 8): the gradients differ")
    assert " ok " in dgamma and dbeta.endswith("(1, 8): expected shape (8,)")
    for rtol in (1e-8, None):  # nothing is compared with a default tolerance there
        row = check_gradients(f, args, dy, wrong, rtol=rtol).rows[2]
        assert (row.error, row.tolerance) == (math.inf, rtol or 0.0)
    assert check_gradients(f, args, dy, (-grads[0], *grads[1:]), rtol=3.0).passed
    assert not check_gradients(f, args, dy, grads, rtol=0.0).passed
    # An exact gradient has no error, which 0 allows: doubling rounds nothing, and neither does a
    # complex step in it.
    twice, two = (lambda x: 2 * x), np.full_like(args[0], 2)
    ones = np.ones_like(dy)
    assert check_gradients(twice, args[:1], ones, (two,), method="complex", rtol=0.0).passed
    assert str(check_gradients(f, args, dy, grads)).splitlines()[3].startswith("grads[2]")
