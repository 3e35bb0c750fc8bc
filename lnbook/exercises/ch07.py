"""Exercises of chapter 7, computing the variance."""

import numpy as np

from lnlib import reference
from lnlib.variance import naive, normalise, recentred_short, wide

from . import Exercise
from .expect import expect, expect_array, expect_parts
from .run import Call, cases, each

_U = 2.0**-24


def _exact(x, eps=1e-5):
    D = x.shape[-1]
    return reference.layer_norm(x, np.ones(D), np.zeros(D), eps=eps).y


def negative_row_solution(centre):
    rng = np.random.default_rng(0)
    while True:
        row = np.float32(centre + rng.uniform(-0.9, 0.9, 3))
        if naive(row)[2] < 0 and np.ptp(row) > 0:
            return row


def _is_negative(found, centre):
    row = expect_array(found, (3,), "float32", "the row")
    # In float64, where the distance of a float32 from centre is exact.
    expect(np.abs(row.astype(float) - centre).max() <= 1, f"{row} is not within 1 of {centre}")
    expect(np.ptp(row) > 0, f"the numbers of {row} are all equal")
    v = naive(row)[2].item()
    draw = "about one random row in three has one, so draw until you find one"
    expect(v < 0, f"for {row} the naive variance is {v}, expected a negative number; {draw}")


def _negative_at(centre):
    # Several, up to 1.5 times as far: numbers from too wide an interval may come near one centre by
    # chance.
    ask = cases("centre", *((centre * (1 + k / 8),) for k in range(5)))
    return each(f"near {centre:.0f}", ask, _is_negative)


def digits_left_solution(x):
    ratio = abs(x.mean(dtype=float)) / x.std(dtype=float)
    u = 2.0**-24
    losses = np.clip([u * ratio**2, u * ratio], u, 1)
    return tuple(-np.log10(losses))


def _rows(rng, offset, sigma=1.0, n=16, D=256):
    """Normal rows; the shift keeps their means from lying on round numbers."""
    return (sigma * (offset + rng.standard_normal((n, D)) + rng.random((n, 1)))).astype(np.float32)


def _digits_at(offset, sigma=1.0):
    def ask(rng):
        rows = _rows(rng, offset, sigma)
        return Call({"x": rows[0]}, rows=rows)

    return each(f"offset {offset:g}, sigma {sigma:g}", ask, _as_measured)


def _as_measured(found, rows, **_):
    exact = _exact(rows)
    found = [float(digits) for digits in _two_numbers(found)]
    both = [
        reference.correct_digits(normalise(rows, name), exact) for name in ("naive", "two-pass")
    ]
    for name, digits, measured in zip(("naive", "two-pass"), found, both):
        # An answer in float32 may round its logarithm, and u inside it, up: a few u of 7 digits.
        most = -np.log10(_U)
        expected = f"expected 0 to {most:.1f}"
        expect(0 <= digits <= most + 1e-5, f"{name}: predicted {digits:.1f} digits, {expected}")
        # The loss is a bound up to small factors: 16 rows measured within 0.3 and 3 times it, half
        # a digit.
        said = f"{name}: predicted {digits:.1f} digits, measured {measured:.1f}"
        two = f"{found[0]:.1f} and {found[1]:.1f} against {both[0]:.1f} and {both[1]:.1f}"
        expect(abs(digits - measured) <= 0.8, f"{said}; for naive and two-pass {two}")


def _two_numbers(found):
    return expect_parts(tuple(found) if isinstance(found, np.ndarray) else found, 2, "numbers")


_MEAN_0 = np.array([-3, -1, 1, 3], np.float32)


def _all_digits(found, **_):
    # 7 digits will do for 7.2. One bit, by which another u would differ, is 0.3 digits.
    for digits in _two_numbers(found):
        both = f"found {digits:.3f} digits, expected all {-np.log10(_U):.3f}"
        expect(abs(digits + np.log10(_U)) <= 0.25, f"for a row with mean 0 {both}")


def repaired_solution(x, eps=1e-5):
    m, _, var = wide(x)
    d = x - m
    c = d - d.mean(axis=-1, keepdims=True)
    return c / np.sqrt(var + np.float32(eps))


def _repaired(title, *offsets, sigma=1.0, eps=1e-5, shape=(16, 256)):
    """A check on rows around these offsets, as many around each."""

    def ask(rng):
        n = 16 if len(offsets) == 1 else 1
        x = np.concatenate([_rows(rng, offset, sigma, n) for offset in offsets])
        return Call({"x": x.reshape(shape), "eps": eps})

    return each(title, ask, _to_a_few_u, unchanged=True)


def _to_a_few_u(found, x, eps):
    found = expect_array(found, x.shape, "float32")
    m, _, var = wide(x)
    plain = (x - m) / np.sqrt(var + np.float32(eps))
    error, unrepaired = (reference.relative_error(a, _exact(x, eps)) for a in (found, plain))
    # Six roundings (d, its mean, c, var + eps, the root, the quotient) of at most u each; a sum
    # adds a few.
    before = f"what (x - m) / sqrt(var + eps) gives is off by {unrepaired:.1e}"
    few = f"the result is off by {error:.1e}, expected a few u = {_U:.0e}"
    expect(error <= 8 * _U, f"{few}; {before}")


def short_form_is_safe_solution(x, order):
    _, residual, var = recentred_short(x, order)
    return bool(residual[0] ** 2 < var[0])


def _safe_or_not(order, offset, D, sigma=1.0):
    def ask(rng):
        return Call({"x": _rows(rng, offset, sigma, 1, D)[0], "order": order})

    def judge(found, x, order):
        one = np.asarray(found).dtype == bool and np.size(found) == 1
        expect(one, f"found {type(found).__name__}, expected True or False")
        ratio = recentred_short(x, order)[1].item() / x.std(dtype=float)
        both = f"here the residual is {ratio:.2g} sigma, and you say {bool(found)}"
        expect(bool(found) == (abs(ratio) < 1), both)

    return each(f"{order}, D = {D}, offset {offset:g} sigma, sigma {sigma:g}", ask, judge)


MISTAKES = r"""
== negative-variance
if naive(row)[2] < 0 and np.ptp(row) > 0 => if np.ptp(row) > 0
    You return a row without searching for it. Which of the numbers that naive returns has to be
    below 0?
uniform(-0.9, 0.9, 3) => uniform(-9, 9, 3)
    The numbers are drawn from too wide an interval. How far from centre may they be?
return row => return row.astype(float)
    Your row is float64. In which dtype does the variance turn negative?
== digits-left
[u * ratio**2, u * ratio] => [u * ratio, u * ratio**2]
    The two predictions have changed places. Which algorithm subtracts squares?
[u * ratio**2, u * ratio] => [u * ratio**2, u * ratio**2]
    Both algorithms get the loss of the naive one. What does two-pass subtract before it squares?
tuple(-np.log10(losses)) => tuple(losses)
    You return errors. How many digits does an error of 1e-3 leave?
-np.log10(losses) => -np.log(losses)
    Your logarithm is the natural one. What is the base of decimal digits?
, u, 1) => , 0, 1)
    Near a mean of 0 more digits are promised than float32 has. What does every result lose?
abs(x.mean(dtype=float)) => x.mean(dtype=float)
    The ratio keeps the sign of the mean: a row far below 0 counts as one near 0.
/ x.std(dtype=float) =>
    The mean is not divided by sigma. Multiply the row by 10: should the digits change?
u = 2.0**-24 => u = 2.0**-23
    Your u is the distance from 1 to the next float32. How large is half of it?
== repair-the-mean
d - d.mean(axis=-1, keepdims=True) => d
    You subtract the mean once only, or the second number that you subtract is 0 or was added to m.
    What is the mean of x - m?
d.mean(axis=-1, keepdims=True) => d.mean()
    One mean over all rows is taken off. Does every row have the same left over?
var + => (d * d).mean(axis=-1, keepdims=True) +
    Your variance includes the square of the mean's residual. Which of the two variances was already
    right?
np.sqrt(var + np.float32(eps)) => (np.sqrt(var) + np.float32(eps))
    Your eps is added to sigma. Does layer norm add it before or after the root?
np.sqrt(var + np.float32(eps)) => np.sqrt(var)
    Your numbers are those of eps = 0. Do you use the caller's eps?
return c / np.sqrt(var + np.float32(eps)) => return c
    You divide nothing by s, or only the mean's residual. Where do your brackets close?
(var + => (var * x.shape[-1] / (x.shape[-1] - 1) +
    Your variance divides by D - 1. Is it an estimate or a definition?
d = x - m => d = x.astype(float) - m
    The digits are there, in a float64 result. Which dtype does the exercise ask for?
== short-form
return bool(residual[0] ** 2 < var[0]) => return True
    Every row is trusted. How large may the residual become?
return bool(residual[0] ** 2 < var[0]) => return False
    No row is trusted. How large is the residual of a row near 0?
residual[0] ** 2 < var[0] => not abs(residual[0]) >= np.sqrt(var[0])
    The root of a negative variance is NaN, and every comparison with a NaN is false. Is that row
    safe?
recentred_short(x, order) => recentred_short(x)
    Your answer ignores the order of summation. Which sum loses more?
residual[0] ** 2 < var[0] => residual[0] ** 2 >= var[0]
    True and False have changed places in your answer.
residual[0] ** 2 < var[0] => abs(residual[0]) < var[0]
    A length is compared with a square. Multiply the row by 10: does the answer stay?
residual[0] ** 2 < var[0] => residual[0] * abs(residual[0]) < var[0]
    The residual keeps its sign: a large negative one counts as small.
residual[0] ** 2 < var[0] => var[0] > 0
    Your answer looks at the sign of the variance only. Can a wrong variance be positive?
"""

EXERCISES = (
    Exercise("negative-variance", 10, "measure", negative_row_solution, free=True).with_checks(
        *map(_negative_at, (1e4, 123456.0, 6e5))
    ),
    Exercise("digits-left", 15, "measure", digits_left_solution).with_checks(
        *(_digits_at(*row) for row in ((0,), (1e2,), (1e3, 50.0), (-1e3,), (1e5,))),
        each("a row with mean 0", cases("x", (_MEAN_0,)), _all_digits),
    ),
    Exercise("repair-the-mean", 10, "implement", repaired_solution).with_checks(
        *(_repaired(f"offset {offset:g}", offset) for offset in (0, 1e4, 1e7)),
        _repaired("each row has its own mean", 1e4, -1e5, 0, 1e6, shape=(2, 2, -1)),
        _repaired("eps is used", 1e3, sigma=1e-2, eps=1e-3),
    ),
    Exercise("short-form", 10, "test", short_form_is_safe_solution).with_checks(
        # The residual r, in sigma: far below 1, below 1; 17 with a positive variance v, and 190: an
        # answer that forgets the sign is right here, as no other mistake is; -900; -17 with a
        # positive v; the rest in other units, two with |r| = 3 sigma below v and |r| = 0.03 to 0.3
        # sigma above it; one with a negative v; a row near 0, which any order sums well enough; -61
        # beside a v far below any eps.
        _safe_or_not("pairwise", 1e2, 1024),
        _safe_or_not("pairwise", 1e7, 65536),
        _safe_or_not("sequential", 3e4, 65536),
        _safe_or_not("accumulators", 1e7, 65536),
        _safe_or_not("sequential", 1e7, 65536),
        _safe_or_not("sequential", -3e4, 65536),
        _safe_or_not("sequential", 1e3, 65536, 1e3),
        _safe_or_not("sequential", 1e7, 65536, 1e-3),
        _safe_or_not("sequential", 1e4, 65536, 10),
        _safe_or_not("accumulators", 1e4, 65536, 1e-3),
        _safe_or_not("accumulators", 6e7, 16384),
        _safe_or_not("sequential", 0, 1024),
        _safe_or_not("sequential", 1e5, 65536, 1e-6),
    ),
)
