"""Exercises of chapter 8, where the backward pass fails."""

import numpy as np

from .. import forms, reference, regimes
from ..layernorm import layer_norm_backward, layer_norm_forward
from ..summation import row_sum_bound, sum_rows
from . import Exercise, Mistake, call_unchanged, expect, expect_close
from .backward import Backward, outside


def _number(found):
    expect(found is not None, "the result is None; is a return missing?")
    found = np.asarray(found)
    expect(found.shape == () and found.dtype.kind in "iuf" and np.isfinite(found),
           f"found shape {found.shape} and dtype {found.dtype}, expected one finite number")
    return float(found)


def digits_of_dx(dy, cache, u):
    """Decimal digits of dx to expect: -log10(kappa u), at least 0.

    kappa: size of r g over size of dx, both of the whole tensor.
    dy: (..., D), float64.  cache: from layer_norm_forward; it
    has xhat, rstd and gamma.  u: unit roundoff of the backward.
    Returns a float; 0 where dx is zero.
    """
    raise NotImplementedError("how large is r g, how large is dx?")


def digits_of_dx_solution(dy, cache, u):
    dx, _, _ = layer_norm_backward(dy, cache)
    size = np.linalg.norm(dx)
    if size == 0:
        return 0.0
    kappa = np.linalg.norm(cache.rstd * cache.gamma * dy) / size
    return max(0.0, -np.log10(kappa * u))


_U = 2.0**-24


def _digits(candidate, dy, cache, u=_U):
    return _number(call_unchanged(candidate, dy=dy, cache=cache, u=u))


def _rows_of_all_sizes(candidate, rng):
    x = rng.standard_normal((5, 3)) * [[0.01], [0.1], [1], [10], [100]]
    gamma, dy = rng.uniform(0.1, 10, 3), 2 + rng.standard_normal((5, 3))
    _, cache = layer_norm_forward(x, gamma, gamma)
    exact = reference.layer_norm(x, gamma, gamma, dy)
    found = _digits(candidate, dy, cache)
    g, dx = gamma * dy, reference.to_float64(exact.dx)

    def digits(of, size):
        return -np.log10(_U * np.linalg.norm(of) / np.linalg.norm(size))

    by_row = np.linalg.norm(cache.rstd * g, axis=-1) / np.linalg.norm(dx, axis=-1)
    for wrong, mistake in ((digits(cache.rstd * dy, dx), "leaves out gamma"), (digits(g, dx), "leaves out r = rstd"),
                           (digits(cache.rstd * g * gamma, dx), "has gamma twice"),
                           (np.mean(-np.log10(_U * by_row)), "is a mean over rows; take norms of whole tensors"),
                           (-np.log10(_U * by_row.mean()), "is a mean over rows; take norms of whole tensors"),
                           (-np.log10(_U * by_row.max()), "is that of the worst row; take norms of whole tensors")):
        expect(abs(found - wrong) > 1e-9, f"{found:.3f} digits: your kappa {mistake}")
    # A few roundings of float64, magnified by kappa (below 1e6 in every row that counts): 1e-9 of kappa.
    right = -np.log10(_U * reference.kappa(exact, dy, gamma))
    expect(abs(found - right) < 1e-6, f"found {found:.3f} digits, expected {right:.3f}")


def _few_digits(candidate, rng):
    _, cache = layer_norm_forward(rng.standard_normal((4, 16)), np.ones(16), np.zeros(16))
    g = regimes.upstream(rng, cache.xhat, **regimes.parts(1e5, 1e5, "ones"), dtype="float64")
    # kappa is 1e5 by construction; float64 rounds g, seen in dx as 1e5 * 2**-53: far below 1e-6 digits.
    for u, right in ((_U, 24 * np.log10(2) - 5), (2.0**-8, 0.0)):
        found = _digits(candidate, g, cache, u)
        expect(abs(found - right) < 1e-6, f"kappa 1e5, u = {u:.0e}: found {found:.3f} digits, expected {right:.3f}")


def _no_digits(candidate, rng):
    _, cache = layer_norm_forward(rng.standard_normal((4, 16)), np.ones(16), np.zeros(16))
    for dy, what in ((np.full((4, 16), 0.1), "a constant g"), (np.zeros((4, 16)), "dy = 0")):
        with np.errstate(all="ignore"):
            found = _digits(candidate, dy, cache)
        expect(found == 0, f"{what} has dx = 0: found {found:.3f} digits, expected 0")


def safe_backward(g, x, eps):
    """dx of y = (x - mean) / (sigma + eps), constant rows included.

    g, x: (..., D), float64.  eps: float > 0.
    Returns dx, of shape (..., D), never NaN.
    """
    raise NotImplementedError("what is c / sigma multiplied by?")


def safe_backward_solution(g, x, eps):
    c = x - x.mean(axis=-1, keepdims=True)
    sigma = np.sqrt((c * c).mean(axis=-1, keepdims=True))
    s = sigma + eps
    direction = c / np.where(sigma > 0, sigma, 1)
    along = (g * c / s).mean(axis=-1, keepdims=True)
    return (g - g.mean(axis=-1, keepdims=True) - direction * along) / s


def _safe(candidate, g, x, eps):
    with np.errstate(all="ignore"):  # dividing first and choosing later is no mistake
        found = call_unchanged(candidate, g=g, x=x, eps=eps)
    expect(found is not None, "dx is None; is a return missing?")
    return np.asarray(found, float)


def _varied_rows(candidate, rng):
    g, x = rng.standard_normal((2, 2, 3, 8))
    x *= [[[3.0], [0.1], [1e-3]]]
    eps = 0.01
    found = _safe(candidate, g, x, eps)
    _, cache = layer_norm_forward(x, np.ones(8), np.zeros(8), eps)
    inside, _, _ = layer_norm_backward(g, cache)
    expect(found.shape != x.shape or not np.allclose(found, inside), "this is dx for eps inside the root")
    # A dozen roundings of numbers of the size of g / s, kappa below 100: 1e-13 at worst.
    expect_close(found, forms.eps_outside_backward(g, x, eps), 1e-12, "dx of rows that are not constant")


def _constant_among_others(candidate, rng):
    g, x = rng.standard_normal((2, 4, 8))
    x[1], x[2] = 0.5, 1e-170 * x[2]  # the squares of the third row are zero
    eps = 0.01
    found = _safe(candidate, g, x, eps)
    expect(found.shape == x.shape, f"dx has shape {found.shape}, expected {x.shape}")
    expect(np.isfinite(found).all(), "dx contains NaN or Inf")
    for i, what in ((1, "a constant row"), (2, "a row that is constant but for 1e-170")):
        right = (g[i] - g[i].mean()) / eps
        expect(np.any(found[i] != 0), f"{what}: dx is 0, which is no NaN, but y does change when x does: y = c / eps")
        # Nothing is rounded but g - mean, its mean and the quotient.
        expect_close(found[i], right, 1e-13, f"dx of {what}")
    varied = [0, 3]
    expect_close(found[varied], forms.eps_outside_backward(g[varied], x[varied], eps), 1e-12,
                 "dx of the rows beside a constant one")


# eps > 0 is promised. Where a layer takes 0, this changes no sigma, and what is divided by it does not overflow.
_DX = Backward(("dx",), lambda g, cache: {"g": g, "x": cache.x, "eps": cache.eps or 1e-300},
               lambda found, given: (found, None, None), outside(with_gamma=False))


def sum_in_pairs(terms):
    """Sum over axis 0 in pairs, then pairs of pairs, and so on.

    terms: (n, D), float32, n >= 1; must stay as it is.
    Returns (D,), float32; every partial sum is float32.
    """
    raise NotImplementedError("add one half of the rows to the other")


def sum_in_pairs_solution(terms):
    while len(terms) > 1:
        half = len(terms) // 2
        pairs = terms[:half] + terms[half:2 * half]
        terms = np.concatenate([pairs, terms[2 * half:]])
    return terms[0]


def sum_of_rows(candidate, terms):
    """The candidate's float32 sum of the rows ``terms``, looked at from the outside."""
    found = call_unchanged(candidate, terms=terms)
    expect(found is not None, "the sum is None; is a return missing?")
    found = np.asarray(found)
    expect(found.shape == terms.shape[1:], f"the sum has shape {found.shape}, expected {terms.shape[1:]}")
    expect(found.dtype == np.float32, f"the sum has dtype {found.dtype}, expected float32")
    return found


def _every_row_counts(candidate, rng):
    for n in (1, 2, 3, 6, 7, 8, 101):
        terms = rng.integers(-9, 10, (n, 3)).astype(np.float32)  # small whole numbers: no sum is rounded
        found = sum_of_rows(candidate, terms)
        expect(np.array_equal(found, terms.sum(axis=0)), f"{n} rows of whole numbers: found {found}, expected "
                                                         f"{terms.sum(axis=0)}; is there a row without a partner?")


def _in_pairs(candidate, rng):
    # 2**24 + 1 is no float32. In pairs, whichever they are: 2**24 + 1 is 2**24 and 1 + 1 is 2.
    terms = np.float32([[2**24], [1], [1], [1]])
    found = sum_of_rows(candidate, terms)[0]
    expect(found != 2**24, "2**24 + 1 + 1 + 1 comes out as 2**24: this is one running sum, as is sum(axis=0), "
                             "or blocks of four rows and more, as is NumPy's sum along a contiguous axis")
    expect(found != 2**24 + 4, "2**24 + 1 + 1 + 1 comes out as 2**24 + 4: the exact sum, rounded; add in float32")
    expect(found == 2**24 + 2, f"2**24 + 1 + 1 + 1: found {found:.0f}, in pairs it is {2**24 + 2}")


def _no_growth(candidate, rng):
    n = 2**17 - 3
    terms = rng.uniform(1, 2, (n, 4)).astype(np.float32)
    # All are positive, so the worst case of log2(n) levels bounds the sum itself: 17 u. A running sum is
    # typically off by 0.42 u sqrt(n / 3) = 88 u.
    expect_close(sum_of_rows(candidate, terms), terms.sum(axis=0, dtype=float), float(row_sum_bound(n, "pairwise")),
                 f"the sum of {n} rows")


def rows_until(tolerance, u, in_pairs):
    """Rows after which their sum is typically off by tolerance.

    The rows have random signs, and t is 0.42.
    tolerance: relative error, float.  u: unit roundoff.
    in_pairs: True for a tree of pairs, False for a running sum.
    Returns n, a number.
    """
    raise NotImplementedError("solve the two theory lines for n")


def rows_until_solution(tolerance, u, in_pairs):
    roundings = (tolerance / (0.42 * u)) ** 2
    return np.exp2(roundings) if in_pairs else 2 * roundings


def _by_theory(candidate, rng):
    # The first is small enough for 2**n, should the two sums have changed places.
    cases = ((0.01, 2.0**-8, False), (1e-5, _U, False), (0.05, 2.0**-8, False), (1e-12, 2.0**-53, False),
             (1e-7, _U, True), (0.01, 2.0**-8, True), (2e-16, 2.0**-53, True))
    for tolerance, u, in_pairs in cases:
        n = _number(candidate(tolerance, u, in_pairs))
        how = "in pairs" if in_pairs else "in sequence"
        expect(n > 1, f"{how}: found {n:g} rows, expected more than 1")
        # t = 0.42 is given to two digits: lnlib's, 0.425, makes 1.1 %. A whole number n adds 0.06 % or less.
        # One level too few or too many in pairs would be 2.7 % or more in one of the cases.
        error = 0.42 * u * np.sqrt(np.log2(n) if in_pairs else n / 2)
        expect(abs(error / tolerance - 1) < 0.02, f"tolerance {tolerance:.0e}, u = {u:.0e}, {how}: after your "
                                                  f"{n:.3g} rows theory says {error:.1e}")


def _measured(candidate, rng):
    for tolerance, in_pairs in ((0.05, False), (0.006, True)):
        how = f"tolerance {tolerance:.1%} in bfloat16, {'in pairs' if in_pairs else 'in sequence'}"
        n = round(_number(candidate(tolerance, 2.0**-8, in_pairs)))
        expect(0 < n < 10**5, f"{how}: found {n} rows, which the check does not wait for")
        terms = rng.standard_normal((n, 64)).astype(np.float32)
        exact = sum_rows(terms, "wide", "bfloat16").astype(float)
        found = sum_rows(terms, "pairwise" if in_pairs else "sequential", "bfloat16")
        error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
        # 64 sums: the L2 error is within about sqrt(2 / 64), a fifth, of what it is on average; theory is as good.
        expect(0.5 < error / tolerance < 2, f"{how}: after {n} rows the measured error is {error:.1%}")


EXERCISES = (
    Exercise("digits-of-dx", 8, "How many digits to expect", digits_of_dx, digits_of_dx_solution,
             (("rows of all sizes", _rows_of_all_sizes),
              ("few digits, or none", _few_digits),
              ("dx is zero", _no_digits)),
             mistakes=(Mistake("cache.rstd * cache.gamma * dy", "cache.rstd * dy",
                               "The numerator is made of dy. What reaches the normalisation on the way back?"),
                       Mistake("cache.rstd * cache.gamma * dy", "cache.gamma * dy",
                               "The numerator is not in the units of dx. Multiply x by 10: should kappa change?"),
                       Mistake("np.linalg.norm(cache.rstd * cache.gamma * dy) / size",
                               "size / np.linalg.norm(cache.rstd * cache.gamma * dy)",
                               "Your kappa is upside down: it is largest where nothing cancels."),
                       Mistake("np.log10(kappa * u)", "np.log(kappa * u)",
                               "Your logarithm is the natural one. What is the base of decimal digits?"),
                       Mistake("np.log10(kappa * u)", "np.log10(kappa)",
                               "Cancellation costs digits, and your count of them begins at none. How many were there "
                               "before?"),
                       Mistake("max(0.0, -np.log10(kappa * u))", "-np.log10(kappa * u)",
                               "The number of digits may come out negative. How many are left where all are "
                               "lost?"))),
    Exercise("constant-rows", 8, "A gradient for constant rows", safe_backward, safe_backward_solution,
             (*_DX.layers()[:3],
              ("rows that vary", _varied_rows),
              ("constant rows among others", _constant_among_others),
              *_DX.layers()[3:], _DX.stress()), _DX.diagnose,
             mistakes=(Mistake("np.where(sigma > 0, sigma, 1)", "sigma",
                               "A constant row is divided by its sigma of 0. Which factor beside that quotient "
                               "is 0 as well?"),
                       Mistake("along) / s", "along) / s * (sigma > 0)",
                               "Your dx of a constant row is 0. Move one element of such a row a little: does y "
                               "stay?"),
                       Mistake("s = sigma + eps", "s = np.where(sigma > 0, sigma + eps, 1)",
                               "A constant row is divided by 1. What does the forward pass divide it by?"))),
    Exercise("sum-in-pairs", 8, "Rows in pairs", sum_in_pairs, sum_in_pairs_solution,
             (("every row counts", _every_row_counts),
              ("pairs, in float32", _in_pairs),
              ("131069 rows", _no_growth)),
             mistakes=(Mistake("np.concatenate([pairs, terms[2 * half:]])", "pairs",
                               "Where the number of rows is odd, the last one is lost."),
                       Mistake("while len(terms) > 1", "if len(terms) > 1",
                               "Rows are paired once. What becomes of the other pairs?"),
                       Mistake("while len(terms) > 1:",
                               "return terms[:len(terms) // 2].sum(axis=0) + terms[len(terms) // 2:].sum(axis=0)\n"
                               "    while len(terms) > 1:",
                               "Two running sums, of half the rows each, are your only pair. How long are they?"),
                       Mistake("while len(terms) > 1:", "return terms.sum(axis=0)\n    while len(terms) > 1:",
                               "This is NumPy's sum along axis 0: one running sum, in which every row waits its "
                               "turn."),
                       Mistake("while len(terms) > 1:",
                               "return terms.sum(axis=0, dtype=float).astype(np.float32)\n"
                               "    while len(terms) > 1:",
                               "The rows are added in float64 and rounded once. The exercise asks for partial "
                               "sums in float32."),
                       Mistake("pairs = terms[:half] + terms[half:2 * half]",
                               "terms[:half] += terms[half:2 * half]\n        pairs = terms[:half]",
                               "The sums are written into terms, which belongs to the caller."))),
    Exercise("rows-until", 8, "How many rows a sum survives", rows_until, rows_until_solution,
             (("by theory", _by_theory),
              ("measured in bfloat16", _measured)),
             mistakes=(Mistake("else 2 * roundings", "else roundings",
                               "Every rounding of the running sum is counted as if the sum were already at its "
                               "full size."),
                       Mistake("else 2 * roundings", "else roundings / 2",
                               "The 2 of the running sum's line is on the wrong side. Put your n into the line: what "
                               "error comes out?"),
                       Mistake("np.exp2(roundings) if in_pairs else 2 * roundings", "2 * roundings",
                               "The running sum's line is solved in both cases. What does in_pairs change?"),
                       Mistake("(tolerance / (0.42 * u)) ** 2", "tolerance / (0.42 * u)",
                               "The errors of the roundings are added as if all had one sign. How do errors of "
                               "random signs grow?"),
                       Mistake("0.42 * u", "u",
                               "Every rounding is counted at its worst, u. What is a typical one?"),
                       Mistake("np.exp2(", "np.exp(",
                               "From levels to rows it goes by powers of e. By what does the number of rows "
                               "grow from level to level?"),
                       Mistake("if in_pairs", "if not in_pairs",
                               "The tree and the running sum have changed places."))),
)
