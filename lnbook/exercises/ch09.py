"""Exercises of chapter 9, where the backward pass fails."""

from functools import partial

import numpy as np

from lnbook import forms
from lnlib import regimes
from lnlib.layernorm import layer_norm_backward, layer_norm_forward
from lnlib.summation import sum_rows

from . import Exercise
from .expect import expect, expect_array, expect_close, expect_number
from .gradients import Backward, only_dx, outside
from .run import Call, cases, each, quietly

_U = 2.0**-24


def digits_of_dx_solution(dy, cache, u):
    dx, _, _ = layer_norm_backward(dy, cache)
    size = np.linalg.norm(dx)
    if size == 0:
        return 0.0
    kappa = np.linalg.norm(cache.rstd * cache.gamma * dy) / size
    return max(0.0, -np.log10(kappa * u))


def _digits(title, ask):
    def judge(found, dy, cache, u, what):
        found, expected = expect_number(found), digits_of_dx_solution(dy, cache, u)
        # A few roundings of float64 are magnified by at most 1e6, in either: far below 1e-6 digits.
        both = f"found {found:.6g} digits, expected {expected:.6g}"
        expect(abs(found - expected) < 1e-6, f"{what}: {both}")

    return each(title, ask, judge, call=quietly, unchanged=True)


def _rows_of_all_sizes(rng):
    x = rng.standard_normal((5, 3)) * [[0.01], [0.1], [1], [10], [100]]
    gamma, dy = rng.uniform(0.1, 10, 3), 2 + rng.standard_normal((5, 3))
    _, cache = layer_norm_forward(x, gamma, gamma)
    return Call({"dy": dy, "cache": cache, "u": _U}, what="rows of sizes from 0.01 to 100")


def _ordinary_cache(rng):
    return layer_norm_forward(rng.standard_normal((4, 16)), np.ones(16), np.zeros(16))[1]


def _few_digits(rng):
    cache = _ordinary_cache(rng)
    g = regimes.upstream(rng, cache.xhat, **regimes.parts(1e5, 1e5, "ones"), dtype="float64")
    return [
        Call({"dy": g, "cache": cache, "u": u}, what=f"kappa 1e5, u = {u:.0e}")
        for u in (_U, 2.0**-8)
    ]


def _no_digits(rng):
    cache = _ordinary_cache(rng)
    return [
        Call({"dy": dy, "cache": cache, "u": _U}, what=f"{what} has dx = 0")
        for dy, what in ((np.full((4, 16), 0.1), "a constant g"), (np.zeros((4, 16)), "dy = 0"))
    ]


def safe_backward_solution(g, x, eps):
    c = x - x.mean(axis=-1, keepdims=True)
    sigma = np.sqrt((c * c).mean(axis=-1, keepdims=True))
    s = sigma + eps
    direction = c / np.where(sigma > 0, sigma, 1)
    along = (g * c / s).mean(axis=-1, keepdims=True)
    return (g - g.mean(axis=-1, keepdims=True) - direction * along) / s


def _varied_rows(rng):
    g, x = rng.standard_normal((2, 2, 3, 8))
    return Call(
        {"g": g, "x": x * [[[3.0], [0.1], [1e-3]]], "eps": 0.01}, which="rows that are not constant"
    )


def _constant_among_others(rng):
    g, x = rng.standard_normal((2, 4, 8))
    x[1], x[2] = 0.5, 1e-170 * x[2]  # the squares of the third row are zero
    constant = (1, "a constant row"), (2, "a row that is constant but for 1e-170")
    which = "the rows beside a constant one"
    return Call({"g": g, "x": x, "eps": 0.01}, which=which, constant=constant)


def _right_dx(dx, g, x, eps, which, constant=()):
    dx = expect_array(dx, x.shape, name="dx")
    for i, what in constant:
        zero = "dx is 0, which is no NaN, but y does change when x does: y = c / eps"
        expect(np.any(dx[i] != 0), f"{what}: {zero}")
        # Nothing is rounded but g - mean, its mean and the quotient.
        expect_close(dx[i], (g[i] - g[i].mean()) / eps, 1e-13, f"dx of {what}")
    dx, g, x = (np.delete(a, [i for i, _ in constant], axis=0) for a in (dx, g, x))
    # A dozen roundings of numbers of the size of g / s, kappa below 100: 1e-13 at worst.
    expect_close(dx, forms.eps_outside_backward(g, x, eps), 1e-12, f"dx of {which}")


_safe = partial(each, judge=_right_dx, call=quietly, unchanged=True)

# eps > 0 is promised. Where a layer takes 0, this changes no sigma, and what is divided by it does
# not overflow.
_DX = Backward(
    ("dx",),
    lambda g, cache: {"g": g, "x": cache.x, "eps": cache.eps or 1e-300},
    only_dx,
    outside(with_gamma=False),
)


def sum_in_pairs_solution(terms):
    while len(terms) > 1:
        half = len(terms) // 2
        pairs = terms[:half] + terms[half : 2 * half]
        terms = np.concatenate([pairs, terms[2 * half :]])
    return terms[0]


def _sums(title, ask, judge):
    """A check of float32 sums of rows, which leaves the rows as they are."""

    def judge_sum(found, terms):
        judge(expect_array(found, terms.shape[1:], "float32", "the sum"), terms)

    return each(title, ask, judge_sum, unchanged=True)


def _whole_numbers(rng):
    # They are small: no sum is rounded.
    return [
        Call({"terms": rng.integers(-9, 10, (n, 3)).astype(np.float32)})
        for n in (1, 2, 3, 6, 7, 8, 101)
    ]


def _every_row_counts(found, terms):
    right = terms.sum(axis=0)
    # A number that is no power of two is odd in some round.
    partner = "; is there a row without a partner?" if len(terms) & (len(terms) - 1) else ""
    both = f"found {found}, expected {right}{partner}"
    expect(np.array_equal(found, right), f"{len(terms)} rows of whole numbers: {both}")


_FOUR = np.array([[2**24], [1], [1], [1]], np.float32)


def _in_pairs(found, terms):
    # 2**24 + 1 is no float32. In pairs, whichever they are: 2**24 + 1 is 2**24 and 1 + 1 is 2.
    both = f"found {found[0]:.0f}, in pairs it is {2**24 + 2}"
    expect(found[0] == 2**24 + 2, f"2**24 + 1 + 1 + 1: {both}")


def _no_growth(found, terms):
    # All are positive, so the worst case of log2(n) levels bounds the sum itself: 17 u. A running
    # sum is typically off by 0.42 u sqrt(n / 3) = 88 u.
    right, rtol = terms.sum(axis=0, dtype=float), _U * np.ceil(np.log2(len(terms)))
    expect_close(found, right, rtol, f"the sum of {len(terms)} rows")


def rows_until_solution(tolerance, u, in_pairs):
    roundings = (tolerance / (0.42 * u)) ** 2
    return np.exp2(roundings) if in_pairs else 2 * roundings


def _by_theory(found, tolerance, u, in_pairs):
    n, how = expect_number(found), "in pairs" if in_pairs else "in sequence"
    expect(n > 1, f"{how}: found {n:g} rows, expected more than 1")
    # t = 0.42 is given to two digits: lnlib's, 0.425, makes 1.1 %. A whole number n adds 0.06 % or
    # less. One level too few or too many in pairs would be 2.7 % or more in one of the cases.
    error = 0.42 * u * np.sqrt(np.log2(n) if in_pairs else n / 2)
    where = f"tolerance {tolerance:.0e}, u = {u:.0e}, {how}"
    said = f"after your {n:.3g} rows theory says {error:.1e}"
    expect(abs(error / tolerance - 1) < 0.02, f"{where}: {said}")


def _measured(found, tolerance, in_pairs, rng, **_):
    how = f"tolerance {tolerance:.1%} in bfloat16, {'in pairs' if in_pairs else 'in sequence'}"
    n = round(expect_number(found))
    expect(0 < n < 10**5, f"{how}: found {n} rows, which the check does not wait for")
    terms = rng.standard_normal((n, 64)).astype(np.float32)
    exact = sum_rows(terms, "wide", "bfloat16").astype(float)
    sums = sum_rows(terms, "pairwise" if in_pairs else "sequential", "bfloat16")
    error = np.linalg.norm(sums - exact) / np.linalg.norm(exact)
    # 64 sums: the L2 error is within about sqrt(2 / 64), a fifth, of what it is on average; theory
    # is as good.
    expect(0.5 < error / tolerance < 2, f"{how}: after {n} rows the measured error is {error:.1%}")


MISTAKES = r"""
== digits-of-dx
rstd * cache.gamma => rstd
    Your numerator has dy where g belongs. What reaches the normalisation on the way back?
np.linalg.norm(cache.rstd * cache.gamma * dy) / size
=> (np.linalg.norm(cache.rstd * cache.gamma * dy) / size) ** 2
    Your kappa is a quotient of squares. Which root does a norm have?
\n    if size == 0:\n        return 0.0 =>
& max(0.0, => np.maximum(0.0,
    Your digits are no number where dx is zero. What does the docstring return there?
np.linalg.norm(cache.rstd * cache.gamma * dy) / size
=> size / np.linalg.norm(cache.rstd * cache.gamma * dy)
    Your kappa is upside down: it is largest where nothing cancels.
log10(kappa * u) => log(kappa * u)
    Your logarithm is the natural one. What is the base of decimal digits?
log10(kappa * u) => log10(kappa * 2**-24)
    The u of float32 is used, whatever u is given.
max(0.0, -np.log10(kappa * u)) => -np.log10(kappa * u)
    The number of digits may come out negative. How many are left where all are lost?
== constant-rows
np.where(sigma > 0, sigma, 1) => sigma
    You divide a constant row by its sigma, which is 0. Which factor of the third term is 0 as well?
np.where(sigma > 0, sigma, 1) => np.where((sigma > 0).all(), sigma, np.inf)
    One constant row removes the third term from all rows. For which rows is there no quotient?
np.where(sigma > 0, sigma, 1) => np.where(sigma > eps, sigma, np.inf)
    Rows of sigma below eps are treated as constant ones. For which sigma is there no quotient?
np.where(sigma > 0, sigma, 1) => (sigma + 1e-12)
    You add a number to every sigma, which changes dx of all rows a little. Which rows need another
    sigma?
along) / s => along) / s * (sigma > 0)
    Your dx of a constant row is 0. Move one element of such a row a little: does y stay?
s = sigma + eps => s = np.where(sigma > 0, sigma + eps, 1)
    A constant row is divided by 1. What does the forward pass divide it by?
c).mean(axis=-1, keepdims=True => c).sum(axis=-1, keepdims=True) / (x.shape[-1] - 1
    Your sigma divides by D - 1. Is it an estimate or a definition?
x.mean(axis=-1, keepdims=True) => x.mean()
& (c * c).mean(axis=-1, keepdims=True) => (c * c).mean()
& (g * c / s).mean(axis=-1, keepdims=True) => (g * c / s).mean()
& g.mean(axis=-1, keepdims=True) => g.mean()
    Your means are taken over all rows together. Which numbers has the mean of a row?
== sum-in-pairs
np.concatenate([pairs, terms[2 * half :]]) => pairs
    Where the number of rows is odd, the last one is lost.
while len(terms) > 1 => if len(terms) > 1
    Rows are paired once. What becomes of the other pairs?
while len(terms) > 1: => terms = terms.T\n    while len(terms) > 1:
    The numbers of each row are added to each other. Along which axis do the rows lie?
terms[:half] + terms[half : 2 * half] => (terms[:half] + terms[half:2 * half]) / 2
    Pairs are averaged. What is asked for is their sum.
while len(terms) > 1: => return terms.sum(axis=0)\n    while len(terms) > 1:
    This is NumPy's sum along axis 0: one running sum, in which every row waits its turn.
while => return np.ascontiguousarray(terms.T).sum(axis=1)\n    while
    Rows are added in running sums of blocks, as NumPy does along a contiguous axis. How many rows
    are in a block?
pairs = terms[:half] + terms[half : 2 * half => terms[:half] += terms[half:2 * half]\n\
        pairs = terms[:half
    The sums are written into terms, which belongs to the caller.
terms[half : 2 * half] => terms[half:]
& np.concatenate([pairs, terms[2 * half :]]) => pairs
    NumPy adds one row to each of two, so that it counts twice. Which row has no partner?
== rows-until
else 2 * roundings => else roundings
    You count every rounding of the running sum as if the sum already had its full size.
np.exp2(roundings) if in_pairs else 2 * roundings => 2 * roundings
    The running sum's line is solved in both cases. What does in_pairs change?
np.exp2(roundings) if in_pairs else 2 * roundings => tolerance / u
    Neither line is solved: you return how many worst-case roundings add up to the tolerance.
(tolerance / (0.42 * u)) ** 2 => tolerance / (0.42 * u)
    The root of the line is not undone. What does that leave of N on the other side?
0.42 * u => u
    Every rounding is counted at its worst, u. What is a typical one?
0.42 * u => 0.42 * 2**-24
    The u of float32 is used, whatever u is given.
np.exp2(roundings) => roundings
    These are the levels of a tree. How many rows do so many levels add?
if in_pairs => if not in_pairs
    The tree and the running sum have changed places.
"""

EXERCISES = (
    Exercise("digits-of-dx", 10, "measure", digits_of_dx_solution).with_checks(
        _digits("rows of all sizes", _rows_of_all_sizes),
        _digits("few digits, or none", _few_digits),
        _digits("dx is zero", _no_digits),
    ),
    Exercise("constant-rows", 15, "derive, implement", safe_backward_solution).with_checks(
        *_DX.layers()[:3],
        _safe("rows that vary", _varied_rows),
        _safe("constant rows among others", _constant_among_others),
        *_DX.layers()[3:],
        _DX.stress(),
        diagnose=_DX.diagnose,
    ),
    Exercise("sum-in-pairs", 10, "implement", sum_in_pairs_solution).with_checks(
        _sums("every row counts", _whole_numbers, _every_row_counts),
        # Before the short sum, on which running sums along either axis are alike.
        _sums(
            "131069 rows",
            lambda rng: Call({"terms": rng.uniform(1, 2, (2**17 - 3, 4)).astype(np.float32)}),
            _no_growth,
        ),
        _sums("pairs, in float32", cases("terms", (_FOUR,)), _in_pairs),
    ),
    Exercise("rows-until", 10, "derive", rows_until_solution).with_checks(
        # The first is small enough for 2**n, should the two sums have changed places.
        each(
            "by theory",
            cases(
                "tolerance u in_pairs",
                (0.01, 2.0**-8, False),
                (1e-5, _U, False),
                (0.05, 2.0**-8, False),
                (1e-12, 2.0**-53, False),
                (1e-7, _U, True),
                (0.01, 2.0**-8, True),
                (2e-16, 2.0**-53, True),
            ),
            _by_theory,
        ),
        each(
            "measured in bfloat16",
            lambda rng: [
                Call({"tolerance": tolerance, "u": 2.0**-8, "in_pairs": in_pairs}, rng=rng)
                for tolerance, in_pairs in ((0.05, False), (0.006, True))
            ],
            _measured,
        ),
    ),
)
