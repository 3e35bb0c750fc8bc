"""Exercises of chapter 7, where the forward pass loses digits."""

import numpy as np

from .. import reference, regimes
from ..rounding import FORMATS, round_to
from ..variance import normalise, total
from . import Exercise, Mistake, call_unchanged, expect, expect_close, expect_parts


def survivors(row, digits, eps=1e-5):
    """Algorithms predicted to keep `digits` digits of y in float32.

    row: shape (D,), float32, not constant.  digits: a number.
    Returns a list of those among "naive", "two-pass", "recentred"
    whose predicted relative error is at most 10**-digits.
    Sums are pairwise. The recentred error is u, and none is below.
    """
    raise NotImplementedError("ratio, energy, then the lines")


def survivors_solution(row, digits, eps=1e-5):
    wide = row.astype(np.float64)
    D, var = len(row), wide.var()
    ratio = wide.mean() / np.sqrt(var)
    mean = regimes.mean_loss(ratio, D, "pairwise")
    naive = regimes.naive_loss(ratio, var / eps, D, "pairwise")
    losses = {"naive": max(naive, mean), "two-pass": mean, "recentred": 0}
    return [name for name, loss in losses.items() if max(loss, 2**-24) <= 10.0**-digits]


# (ratio, energy, digits, D, survivors). Every predicted loss is at least 3 times above or below 10**-digits.
_PLACES = {
    "an ordinary row": ((1.0, 1e5, 6, 256, ["naive", "two-pass", "recentred"]),
                        (1.0, 1e5, 8, 256, [])),
    "no error is below u": ((0.01, 1e5, 8, 256, []),),
    "rows far from zero": ((100.0, 1e5, 4.8, 1024, ["two-pass", "recentred"]),
                           (-1e4, 1e3, 6, 256, ["recentred"]),
                           (-2e3, 1e3, 3, 64, ["two-pass", "recentred"])),
    "eps hides a wrong variance": ((1e3, 1e-4, 3.5, 256, ["naive", "two-pass", "recentred"]),),
    "the naive formula subtracts a rounded mean as well": ((1e4, 1e-7, 5, 256, ["recentred"]),),
}


def _names(found):
    expect(found is not None, "the result is None; is a return missing?")
    expect(isinstance(found, (list, tuple, set)), f"found {found!r}, expected a list of names")
    return sorted(found)


def _survives(description):
    def test(candidate, rng):
        for ratio, energy, digits, D, expected in _PLACES[description]:
            row = regimes.rows(rng, 1, D, ratio, np.sqrt(energy * 1e-5))[0]
            found = _names(call_unchanged(lambda row: candidate(row, digits), row=row))
            expect(found == sorted(expected), f"at ratio {ratio:g}, energy {energy:g} and D = {D}, "
                   f"{digits} digits: found {found}, expected {sorted(expected)}")
    return description, test


def _passes_eps_on(candidate, rng):
    row = regimes.rows(rng, 1, 256, 1e3, 1e-3)[0]
    found = _names(candidate(row, 3.5, 1e-2))
    expect(found == ["naive", "recentred", "two-pass"],
           f"at sigma 1e-3 and eps = 1e-2 found {found}, expected all three: the energy is 1e-4")


def safe_eps(dtype, gain):
    """The smallest eps for a layer norm done in `dtype`.

    dtype: "float16", "bfloat16" or "float32".
    gain: float, the most by which any row may be magnified.
    Returns eps: no smaller than the smallest normal number of the
    dtype, below which digits are lost, and 1/sqrt(eps) <= gain.
    """
    raise NotImplementedError("two lower bounds on eps")


def safe_eps_solution(dtype, gain):
    return max(FORMATS[dtype].smallest_normal, gain**-2)


def _eps(candidate, dtype, gain):
    eps = candidate(dtype, gain)
    expect(eps is not None, "the result is None; is a return missing?")
    return float(eps)  # in float16 the root of a float16 would hide that the gain is exceeded


def _eps_is_normal(candidate, rng):
    for dtype in ("float16", "bfloat16", "float32"):
        eps = _eps(candidate, dtype, 1e6)
        expect(eps >= FORMATS[dtype].smallest_normal,
               f"in {dtype}, eps = {eps:g} becomes {float(round_to(np.float64(eps), dtype)):g}; the smallest number "
               f"with all its digits is {FORMATS[dtype].smallest_normal:g}")


def _gain_is_limited(candidate, rng):
    for dtype in ("float16", "bfloat16", "float32"):
        for gain in (30.0, 1e3):
            eps = _eps(candidate, dtype, gain)
            # A few roundings of float64 in eps, half of them in its root.
            expect(eps**-0.5 <= gain * (1 + 1e-14),
                   f"in {dtype}, eps = {eps:g} magnifies by up to {eps**-0.5:g}, expected at most {gain:g}")


def _no_larger_than_needed(candidate, rng):
    for dtype, gain in (("float16", 30.0), ("float16", 1e4), ("bfloat16", 1e3), ("float32", 1e5)):
        eps, least = _eps(candidate, dtype, gain), safe_eps_solution(dtype, gain)
        # The next number of the format is at most 2 u away.
        expect(eps <= least * (1 + 2 * FORMATS[dtype].u), f"for {dtype} and gain {gain:g} found {eps:g}; {least:g} is enough")


def largest_sigmas(D, largest=65504.0):
    """The sigma at which the mean of D equal squares overflows.

    The row is sigma times +1 and -1 about its mean, so all squares
    are sigma**2.  largest: the largest number of the format.
    Returns two floats: for squares added first and divided by D at
    the end, and for squares divided by D before they are added.
    """
    raise NotImplementedError("which number is the largest?")


def largest_sigmas_solution(D, largest=65504.0):
    return np.sqrt(largest / D), np.sqrt(largest)


def _sum_of_squares(divide_first):
    def test(candidate, rng):
        for D in (64, 256, 1024):
            sigma = float(expect_parts(candidate(D), 2, "numbers")[int(divide_first)])
            # Squares and their pairwise sum err by a few u = 0.05 % each: 3 % in sigma is clear of it.
            for factor, overflows in ((0.97, False), (1.03, True)):
                with np.errstate(over="ignore"):
                    squares = np.full(D, factor * sigma, np.float16) ** 2
                    found = total(squares / np.float16(D) if divide_first else squares)[0]
                expect(np.isinf(found) == overflows, f"D = {D}: at {factor} times your {sigma:.4g} the mean of "
                       f"squares {'is still finite' if overflows else 'has overflowed already'}")
    return "squares divided first" if divide_first else "squares added first", test


def _other_formats(candidate, rng):
    largest = FORMATS["float32"].largest
    for found, expected, name in zip(expect_parts(candidate(768, largest), 2, "numbers"),
                                     largest_sigmas_solution(768, largest), ("first", "second")):
        expect_close(found, expected, 1e-12, f"for float32 the {name} number")  # a quotient and a root


def rescued(row, eps=1e-5):
    """xhat of one finite row, however large.

    Scale a row whose squares may overflow down by a power of two,
    and eps to match, but not to 0: a constant row would be 0 / 0.
    Then call normalise(scaled, eps=...).
    row: shape (D,), float32 or float64.  Returns the same.
    """
    raise NotImplementedError("np.frexp gives the power of two")


def rescued_solution(row, eps=1e-5):
    exponent = max(int(np.frexp(np.abs(row).max())[1]), 0)
    scale = 2.0**-exponent
    tiny = float(np.finfo(row.dtype).tiny)
    scaled = row * row.dtype.type(scale)
    return normalise(scaled, eps=max(eps * scale**2, tiny))


def _right(candidate, row, what, eps=1e-5, scaled=None):
    with np.errstate(all="ignore"):
        found = call_unchanged(lambda row: candidate(row, eps), row=row)
    expect(found is not None, "the result is None; is a return missing?")
    found = np.asarray(found)
    expect(found.shape == row.shape and found.dtype == row.dtype,
           f"{what}: found shape {found.shape} and dtype {found.dtype}, expected {row.shape} and {row.dtype}")
    # With eps = 0, xhat does not change when a row is multiplied: ``scaled`` then stands in for a row too large for
    # the fixed-point reference.
    exact = reference.layer_norm(row if scaled is None else scaled, np.ones(len(row)), np.zeros(len(row)), eps=eps).y
    error = reference.relative_error(found, exact)
    # Recentred layer norm errs by about u, 6e-8 in float32; its bar in this library is 2e-7 (D of 100, no cancellation
    # left). The 4 u of float64 are the same multiple of u.
    bar = 2e-7 if row.dtype == np.float32 else 4 * 2.0**-53
    expect(error <= bar, f"{what}: the relative error is {error:.1e}, expected at most {bar:.0e}")


def _large_rows(candidate, rng):
    for sigma in (1e18, 1e25, 1e37):
        _right(candidate, regimes.rows(rng, 1, 100, 0.5, sigma)[0], f"sigma {sigma:g} with eps = 0", 0.0)


def _scaling_rounds_nothing(candidate, rng):
    # x / max(x) is rounded: at ratio 1e5 that alone costs 1e5 u = 6e-3.
    _right(candidate, regimes.rows(rng, 1, 100, 1e5, 1.0)[0], "a row at ratio 1e5 with eps = 0", 0.0)


def _eps_is_scaled(candidate, rng):
    for sigma, eps in ((30.0, 1e3), (1e20, 1e40), (1e-3, 1e-5), (1e-25, 1e-5)):
        _right(candidate, regimes.rows(rng, 1, 100, 0.1, sigma)[0], f"sigma {sigma:g} with eps = {eps:g}", eps)


def _large_float64_rows(candidate, rng):
    # Nothing wider is at hand to hide in.
    row = regimes.rows(rng, 1, 100, 0.5, dtype="float64")[0]
    for power in (600, 1000):
        _right(candidate, np.ldexp(row, power), f"float64, sigma 2**{power} with eps = 0", 0.0, scaled=row)


def _constant_rows(candidate, rng):
    for value in (0.0, 7.0, 1e30):
        with np.errstate(all="ignore"):
            found = np.asarray(candidate(np.full(8, value, np.float32)))
        expect(np.array_equal(found, np.zeros(8)), f"a constant row of {value:g} gives {found[0]}, expected 0")


EXERCISES = (
    Exercise("survivors", 7, "Who survives?", survivors, survivors_solution, tuple(_survives(d) for d in _PLACES)
             + (("eps is used", _passes_eps_on),),
             mistakes=(Mistake("max(naive, mean)", "naive",
                               "The naive algorithm pays for its variance only. Which mean does it subtract "
                               "from the row?"),
                       Mistake("max(loss, 2**-24)", "(loss or 2**-24)",
                               "An error below u is predicted. Can a float32 result be that good?"),
                       Mistake("max(loss, 2**-24)", "loss",
                               "An algorithm is promised an error of 0, and another one less than u. What does every "
                               "float32 result lose?"),
                       Mistake("var / eps", "eps / var",
                               "Your energy is upside down. Is it large where eps hides the variance, or where it "
                               "does not?"),
                       Mistake("var / eps", "var / 1e-30",
                               "The naive variance is judged as if eps were 0. What does a wrong variance do "
                               "where eps is much larger?"),
                       Mistake("var / eps", "var / 1e-5",
                               "The energy is computed with the default eps, whatever eps is given."),
                       Mistake("np.sqrt(var)", "var",
                               "The ratio is mean over variance. Multiply the row by 10: should it change?"))),
    Exercise("safe-eps", 7, "An eps for float16", safe_eps, safe_eps_solution,
             (("eps is a normal number", _eps_is_normal),
              ("the gain is limited", _gain_is_limited),
              ("no larger than needed", _no_larger_than_needed)),
             mistakes=(Mistake("return max(", "return min(",
                               "The smaller of two lower bounds is returned. Which eps satisfies both?"),
                       Mistake("max(FORMATS[dtype].smallest_normal, gain**-2)", "FORMATS[dtype].smallest_normal",
                               "Only the format is looked at. By how much is a row of tiny sigma magnified?"),
                       Mistake("gain**-2", "1 / gain",
                               "Your eps is the reciprocal of the gain. Is sigma divided by eps, or by what "
                               "comes of it?"),
                       Mistake("FORMATS[dtype].smallest_normal", "0.0",
                               "Only the gain is looked at. Is the eps it asks for a number of the format, with "
                               "all its digits?"),
                       Mistake("FORMATS[dtype].smallest_normal", "FORMATS[dtype].smallest_subnormal",
                               "The bound is the smallest number above 0. How many digits has it?"),
                       Mistake("FORMATS[dtype].smallest_normal", "FORMATS[dtype].u",
                               "The bound is the unit roundoff: the spacing near 1, and not where numbers near "
                               "0 lose digits."))),
    Exercise("largest-sigma", 7, "Where squares overflow", largest_sigmas, largest_sigmas_solution,
             (_sum_of_squares(False), _sum_of_squares(True), ("another format", _other_formats)),
             mistakes=(Mistake("np.sqrt(largest / D), np.sqrt(largest)", "np.sqrt(largest), np.sqrt(largest / D)",
                               "The two numbers have changed places. Which order of work makes the larger "
                               "intermediate number?"),
                       Mistake("np.sqrt(largest / D), np.sqrt(largest)", "largest / D, largest",
                               "These are the largest squares. What was asked for is sigma."),
                       Mistake("np.sqrt(largest / D)", "np.sqrt(largest) / D",
                               "D divides sigma itself. Of which sum is the largest number the limit?"),
                       Mistake("np.sqrt(largest / D)", "np.sqrt(largest)",
                               "Your first number does not depend on D. How many squares are in the sum before it is "
                               "divided?"),
                       Mistake(", np.sqrt(largest)", ", np.sqrt(largest / D)",
                               "Your second number is the first again. How large does the sum become where each "
                               "square is divided first?"),
                       Mistake(", np.sqrt(largest)", ", np.sqrt(largest * D)",
                               "The second number is judged by the quotient. Which number is there before "
                               "anything is divided?"),
                       Mistake("np.sqrt(largest / D), np.sqrt(largest)", "np.sqrt(65504.0 / D), np.sqrt(65504.0)",
                               "The largest number of float16 is used, whatever largest is given."))),
    Exercise("rescue", 7, "Redo the row, scaled", rescued, rescued_solution,
             (("rows whose squares overflow", _large_rows),
              ("scaling rounds nothing", _scaling_rounds_nothing),
              ("eps is scaled with the row", _eps_is_scaled),
              ("constant rows are zero", _constant_rows),
              ("float64 rows whose squares overflow", _large_float64_rows)),
             mistakes=(Mistake("scale = 2.0**-exponent", "scale = 1.0",
                               "The row is not scaled: its squares overflow as before."),
                       Mistake("scale = 2.0**-exponent", "scale = 1 / max(float(np.abs(row).max()), 1.0)",
                               "The row is divided by its largest number. Which scales change no digit of an "
                               "element?"),
                       Mistake("eps * scale**2", "eps",
                               "The row is scaled, and eps is not: beside smaller squares it weighs more than "
                               "it did."),
                       Mistake("eps * scale**2", "eps * scale",
                               "Your eps is scaled as the row is. To what is it added?"),
                       Mistake("max(eps * scale**2, tiny)", "eps * scale**2",
                               "The scaled eps is allowed to become 0. What is then the result for a constant "
                               "row?"))),
)
