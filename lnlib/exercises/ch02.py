"""Exercises of chapter 2, the derivation."""

import numpy as np

from ..gradcheck import complex_step
from ..layernorm import layer_norm_backward, layer_norm_forward, rms_norm_forward
from . import Exercise, Mistake, expect, expect_close
from .backward import Backward, judge, outside

# Tolerance of the checks below. The rows drawn here have |mean| < 10 sigma, so a centred row computed in float64
# is good to about 20 * 2**-53, and no more than 10 such factors and sums of at most 9 terms follow:
# 20 * 10 * 9 * 2**-53 = 2e-13. The smallest mistake, eps / s^2 at eps = 1e-5, is worth 1e-6.
_RTOL = 1e-12


def _row(rng, D=7):
    """A row whose mean is not 0 and whose standard deviation is not 1."""
    x = rng.standard_normal(D)
    return 5 + 3 * (x - x.mean()) / x.std()


def _jacobian(x, eps):
    """J of one row, differentiated without any of the chapter's formulas."""
    def xhat(row):
        return layer_norm_forward(row, np.ones(len(x)), np.zeros(len(x)), eps)[0]

    return np.array([complex_step(xhat, x, dy=unit) for unit in np.eye(len(x))])


def _close(a, b):
    return np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=1e-9, atol=1e-9)


def jacobian_matrix(x, eps=1e-5):
    """The Jacobian J[i, j] of xhat[i] with respect to x[j].

    x: one row, shape (D,).  Returns an array (D, D), exact up to
    rounding: a difference quotient is not good enough.
    """
    raise NotImplementedError("np.outer makes products")


def jacobian_matrix_solution(x, eps=1e-5):
    D = len(x)
    c = x - x.mean()
    s = np.sqrt((c * c).mean() + eps)
    xhat = c / s
    return (np.eye(D) - 1 / D - np.outer(xhat, xhat) / D) / s


def _matrix(eps):
    def test(candidate, rng):
        x = _row(rng)
        found, expected = candidate(x.copy(), eps), _jacobian(x, eps)
        expect_close(found, expected, _RTOL, "J")
    return f"eps = {eps:g}", test


def eigenvalues(x, eps):
    """The D eigenvalues of J for one row, in ascending order.

    x: shape (D,), D >= 2, not constant.  Returns an array (D,).
    No matrix is needed.
    """
    raise NotImplementedError("1, xhat, and the rest")


def eigenvalues_solution(x, eps):
    s = np.sqrt(x.var() + eps)
    return np.array([0.0, eps / s**3] + [1 / s] * (len(x) - 2))


def _eigenvalues_of(D, eps):
    def test(candidate, rng):
        x = _row(rng, D)
        found, expected = candidate(x.copy(), eps), np.linalg.eigvalsh(_jacobian(x, eps))
        shuffled = np.shape(found) == (D,) and np.isrealobj(found) and _close(np.sort(found), expected)
        expect(not shuffled or _close(found, expected), "these are the eigenvalues, but not in ascending order")
        expect_close(found, expected, _RTOL, f"the list of eigenvalues for D = {D}, eps = {eps:g}")
    return f"D = {D}, eps = {eps:g}", test


def _zeros_without_eps(candidate, rng):
    x = _row(rng)
    found = np.asarray(candidate(x, 0.0))
    expect(found.shape == x.shape, f"found shape {found.shape}, expected {x.shape}")
    zeros = int((np.abs(found) < 1e-12).sum())
    expect(zeros == 2, f"at eps = 0 found {zeros} zeros, expected one for 1 and one for xhat")


def null_direction(x, gamma):
    """An upstream gradient dy for which dx = 0 at eps = 0.

    x, gamma: shape (D,), x not constant, no zeros in gamma.
    Returns an array (D,), such that gamma * dy is not constant.
    """
    raise NotImplementedError("what does J send to zero?")


def null_direction_solution(x, gamma):
    return (x - x.mean()) / gamma


def _null_problem(candidate, rng):
    x, gamma = _row(rng), rng.uniform(0.5, 2, 7)
    dy = np.asarray(candidate(x.copy(), gamma.copy()))
    expect(dy.shape == x.shape, f"dy has shape {dy.shape}, expected {x.shape}")
    expect(dy.dtype.kind in "iuf" and np.isfinite(dy).all(), "dy must contain finite real numbers")
    dy = dy.astype(float)
    expect(dy.any(), "dy = 0 proves nothing; find another one")
    _, cache = layer_norm_forward(x, gamma, np.zeros(7), eps=0)
    return dy, gamma * dy, cache


def _vanishes(candidate, rng):
    dy, g, cache = _null_problem(candidate, rng)
    # What comes through is what remains of rstd * g after all of it is subtracted: its roundings.
    left, right = np.linalg.norm(layer_norm_backward(dy, cache)[0]), np.linalg.norm(cache.rstd * g)
    swallowed = layer_norm_backward(dy, cache._replace(gamma=np.ones(7)))[0]
    hint = "; it would with gamma = 1, but J meets gamma * dy" if np.linalg.norm(swallowed) < 1e-9 * left else ""
    expect(left <= _RTOL * right, f"a fraction of {left / right:.1e} of gamma * dy / s comes through{hint}")


def _not_constant(candidate, rng):
    _, g, _ = _null_problem(candidate, rng)
    # A millionth of another direction would still vanish to _RTOL only if that direction is xhat.
    expect(np.linalg.norm(g - g.mean()) > 1e-6 * np.linalg.norm(g),
           "your gamma * dy is constant, the direction 1, which vanishes for every eps; find the other one")


def rms_jacobian():
    """The Jacobian J_ij of RMSNorm's xhat, for every D.

    xhat_i = x_i / s with s = sqrt(q + epsilon), q the mean square.
    Returns an expression in lnlib.symbolic's D, i, j, s and xhat.
    """
    raise NotImplementedError("which path does RMSNorm not have?")


def rms_jacobian_solution():
    from sympy import Symbol, sqrt
    from lnlib.symbolic import D, epsilon, i, j, s, x, xhat

    q = Symbol("q")
    normalised = x[i] / sqrt(q + epsilon)
    J = normalised.diff(x[j]) + normalised.diff(q) * 2 * x[j] / D
    return J.subs(q, s**2 - epsilon).subs({x[i]: s * xhat[i],
                                           x[j]: s * xhat[j]})


def _symbolic_rms(n):
    def test(candidate, rng):
        from .. import symbolic as sym  # here, so that other chapters' exercises do not load SymPy

        J, eps = candidate(), 0.3
        expect(hasattr(J, "free_symbols"), f"found {type(J).__name__}, expected a SymPy expression")
        allowed = {"D": sym.D, "i": sym.i, "j": sym.j, "s": sym.s}
        for symbol in sorted(J.free_symbols, key=str):
            expect(allowed.get(str(symbol), symbol) == symbol,
                   f"your {symbol} is another symbol than lnlib.symbolic's {symbol}; import that one")
        x = 1 + rng.standard_normal(n)
        s = np.sqrt((x * x).mean() + eps)
        expected = np.array([complex_step(lambda row: rms_norm_forward(row, np.ones(n), eps)[0], x, dy=unit)
                             for unit in np.eye(n)])
        values = {sym.D: n, sym.s: s, **{sym.xhat[t]: number / s for t, number in enumerate(x, 1)}}
        found = [[J.subs({sym.i: a, sym.j: b}).subs(values) for b in range(1, n + 1)] for a in range(1, n + 1)]
        # x and every x[1] are free symbols; the name before the bracket is enough.
        left = {str(symbol).split("[")[0] for row in found for entry in row for symbol in entry.free_symbols}
        expect(not left, f"your J still contains {', '.join(sorted(left))}; write it in D, i, j, s and xhat")
        found = np.array(found, dtype=float)
        expect(not _close(found, expected - 1 / (n * s)), "your J is layer norm's; RMSNorm subtracts no mean")
        expect_close(found, expected, _RTOL, f"J for D = {n}")
    return f"equal to the derivative at D = {n}", test


def eps_outside_backward(dy, x, gamma, eps):
    """dx of y = gamma * (x - mean) / (sigma + eps).

    dy, x: (..., D), no constant rows.  gamma: (D,).
    Returns an array (..., D).
    """
    raise NotImplementedError("which step of the graph changes?")


def eps_outside_backward_solution(dy, x, gamma, eps):
    c = x - x.mean(axis=-1, keepdims=True)
    sigma = np.sqrt((c * c).mean(axis=-1, keepdims=True))
    s = sigma + eps
    xhat, g = c / s, gamma * dy
    mean_g = g.mean(axis=-1, keepdims=True)
    mean_gx = (g * xhat).mean(axis=-1, keepdims=True)
    return (g - mean_g - xhat * mean_gx * s / sigma) / s


def _two_means(g, x, s, factor=1.0, axis=-1):
    """The chapter's dx with this s, and a factor on its last term."""
    xhat = (x - x.mean(axis=axis, keepdims=True)) / s
    mean_gx = (g * xhat).mean(axis=axis, keepdims=True)
    return (g - g.mean(axis=axis, keepdims=True) - factor * xhat * mean_gx) / s


def _eps_outside(eps):
    def test(candidate, rng):
        x, dy = np.stack([_row(rng), _row(rng) / 4]), rng.standard_normal((2, 7))
        gamma = rng.uniform(0.5, 2, 7)

        def forward(rows):
            c = rows - rows.mean(axis=-1, keepdims=True)
            return gamma * c / (np.sqrt((c * c).mean(axis=-1, keepdims=True)) + eps)

        found = candidate(dy.copy(), x.copy(), gamma.copy(), eps)
        g, sigma, whole = gamma * dy, x.std(axis=-1, keepdims=True), x.std()
        s = sigma + eps
        wrongs = [(gamma * _two_means(dy, x, s, s / sigma), "has gamma last; what does J meet first?"),
                  (_two_means(g, x, whole + eps, (whole + eps) / whole, axis=None),
                   "takes its means over the whole array; take them row by row")]
        if eps:  # without it these three are right
            wrongs += [(_two_means(g, x, s), "is layer norm's with s = sigma + eps put in; ds/dx changes as well"),
                       (_two_means(g, x, np.sqrt(sigma**2 + eps)), "is the one for eps inside the root"),
                       (_two_means(g, x, s, sigma / s), "has the new factor upside down")]
        for wrong, mistake in wrongs:
            expect(not _close(found, wrong), f"your dx {mistake}")
        judge(found, "dx", complex_step(forward, x, dy=dy))
    return f"eps = {eps:g}", test


_DX = Backward(("dx",), lambda dy, cache: {"dy": dy, "x": cache.x, "gamma": cache.gamma, "eps": cache.eps},
               lambda found, given: (found, None, None), outside(with_gamma=True))

EXERCISES = (
    Exercise("jacobian-matrix", 2, "The Jacobian of a row, as a matrix", jacobian_matrix, jacobian_matrix_solution,
             (_matrix(0.0), _matrix(1e-5), _matrix(2.0)),
             mistakes=(Mistake("np.eye(D) - 1 / D", "np.eye(D)",
                               "Nothing in your J stands for the mean. Move the whole row by a constant: does "
                               "xhat move?"),
                       Mistake(" - np.outer(xhat, xhat) / D", "",
                               "Nothing in your J stands for the variance. Stretch the row a little: how much "
                               "does xhat change?"),
                       Mistake("- np.outer", "+ np.outer",
                               "One path has the wrong sign. If a deviation grows, do the other entries of xhat "
                               "grow or shrink?"),
                       Mistake("/ D) / s", "/ D)",
                               "Your J does not depend on the size of x. If x is in metres, in which unit is J?"),
                       Mistake("return (np.eye(D) - 1 / D", "return np.eye(D) * (np.eye(D) - 1 / D",
                               "Only the diagonal is there. Does x[j] move no other xhat[i]?"),
                       Mistake("1 / D -", "1 -",
                               "The path through the mean is too strong. How much of a mean is due to one entry?"),
                       Mistake("np.outer(xhat, xhat)", "2 * np.outer(xhat, xhat)",
                               "The path through the variance counts twice. Differentiate sqrt(v) at v = 4 by hand."),
                       Mistake("np.outer(xhat, xhat)", "xhat @ xhat",
                               "A term of your J is one number. Is it the same for every pair of i and j?"),
                       Mistake(".mean() + eps)", ".mean())", "Your s has no eps in it."),
                       Mistake("xhat = c / s", "xhat = c",
                               "The centred row stands where xhat belongs. Check the units of your terms."),
                       Mistake("np.outer(xhat, xhat) / D) / s", "np.outer(xhat, xhat)) / s",
                               "One path lacks a factor: how much of the variance is due to one entry of the row?"))),
    Exercise("eigenvalues", 2, "Eigenvalues without a matrix", eigenvalues, eigenvalues_solution,
             (_eigenvalues_of(7, 2.0), _eigenvalues_of(9, 1e-5), _eigenvalues_of(2, 2.0),
              ("two zeros at eps = 0", _zeros_without_eps)),
             mistakes=(Mistake("eps / s**3", "0.0",
                               "Two of your eigenvalues are 0 for every eps. With eps > 0, is the length of xhat "
                               "still the same for every row?"),
                       Mistake("eps / s**3", "eps / s**2", "One of the eigenvalues has another unit than the rest."),
                       Mistake("eps / s**3", "eps / s",
                               "One of the eigenvalues has another unit than the rest. Multiply J by xhat and "
                               "collect what remains."),
                       Mistake("[1 / s] *", "[1.0] *",
                               "Your eigenvalues are those of a projection. Is J one, or a projection times "
                               "something?"),
                       Mistake("x.var() + eps", "x.var()", "Your s has no eps in it."),
                       Mistake("x.var()", "x.var(ddof=1)",
                               "Your variance divides by D - 1. Is it an estimate or a definition?"),
                       Mistake("[0.0, eps / s**3] + [1 / s] * (len(x) - 2)",
                               "[1 / s] * (len(x) - 2) + [eps / s**3, 0.0]",
                               "Your eigenvalues are in descending order."))),
    Exercise("null-direction", 2, "A gradient that does not get through", null_direction, null_direction_solution,
             (("dx vanishes", _vanishes),
              ("gamma * dy is not constant", _not_constant)),
             mistakes=(Mistake(" / gamma", "",
                               "Your dy would do it if gamma were 1. What does J meet: dy, or something made of "
                               "it?"),
                       Mistake("/ gamma", "* gamma",
                               "In your dy gamma stands on the wrong side: what is gamma * dy now?"),
                       Mistake("(x - x.mean()) / gamma", "x * gamma",
                               "In your dy gamma stands on the wrong side: what is gamma * dy now?"),
                       Mistake("(x - x.mean())", "1",
                               "Your gamma * dy is constant. That vanishes for every eps; J has one more such "
                               "direction at eps = 0."),
                       Mistake("(x - x.mean())", "(x - x.mean())**2",
                               "What your dy makes of x is no direction that J sends to zero. Which rows changed "
                               "in size only?"))),
    Exercise("rms-jacobian", 2, "RMSNorm in SymPy", rms_jacobian, rms_jacobian_solution,
             (_symbolic_rms(4), _symbolic_rms(7)),
             mistakes=(Mistake(" + normalised.diff(q) * 2 * x[j] / D", "",
                               "Only the direct path is there. Does q not change when x[j] does?"),
                       Mistake("* 2 * x[j] / D", "* 2 * x[j]",
                               "The path through q is too large. How much of a mean is due to one of its entries?"),
                       Mistake("* 2 * x[j] / D", "* x[j] / D",
                               "The path through q counts half. Differentiate c**2 at c = 3 by hand."),
                       Mistake("* 2 * x[j] / D", "* 4 * x[j] / D",
                               "The path through q counts twice. Differentiate sqrt(v) at v = 4 by hand."),
                       Mistake("+ normalised.diff(q)", "- normalised.diff(q)",
                               "The path through q has the wrong sign. If x[j] grows, do the other entries of xhat "
                               "grow or shrink?"),
                       Mistake("return J.subs(q", "return s * J.subs(q",
                               "Your J does not depend on the size of x. If x is in metres, in which unit is J?"),
                       Mistake("* 2 * x[j] / D", "* 2 * x[i] / D",
                               "The path through q is differentiated by the wrong entry of x."),
                       Mistake("x[j]: s * xhat[j]", "x[j]: xhat[j]",
                               "An x became an xhat as if they were equal. What stands between them?"))),
    Exercise("eps-outside", 2, "Move eps out of the root", eps_outside_backward, eps_outside_backward_solution,
             (*_DX.layers()[:3], _eps_outside(0.0), _eps_outside(0.5), *_DX.layers()[3:], _DX.stress()),
             _DX.diagnose),
)
