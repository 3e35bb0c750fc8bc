"""Exercises of chapter 2, the derivation."""

import numpy as np

from ..gradcheck import complex_step
from ..layernorm import layer_norm_backward, layer_norm_forward, rms_norm_forward
from . import Exercise, expect, expect_close

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

    x: one row, shape (D,).  Returns an array of shape (D, D).
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
        s = np.sqrt(x.var() + eps)
        xhat = (x - x.mean()) / s
        for wrong, mistake in (
                (expected * s, "a factor 1/s is missing"),
                (np.diag(np.diag(expected)), "only the diagonal is there, but every x[j] moves every xhat[i]"),
                (expected + 1 / (len(x) * s), "the path through the mean is missing"),
                (expected + np.outer(xhat, xhat) / (len(x) * s), "the path through the variance is missing"),
                (expected - np.outer(xhat, xhat) / (len(x) * s), "the path through the variance counts twice")):
            expect(not _close(found, wrong), f"your J is nearly right: {mistake}")
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
    raise NotImplementedError("which directions does J send to zero?")


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
    Returns a SymPy expression in lnlib.symbolic's D, i, j, s, xhat.
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


def _symbolic_rms(candidate, rng):
    from .. import symbolic as sym  # here, so that other chapters' exercises do not load SymPy

    J = candidate()
    expect(hasattr(J, "free_symbols"), f"found {type(J).__name__}, expected a SymPy expression")
    n, eps = 4, 0.3
    x = 1 + rng.standard_normal(n)
    s = np.sqrt((x * x).mean() + eps)
    expected = np.array([complex_step(lambda row: rms_norm_forward(row, np.ones(n), eps)[0], x, dy=unit)
                         for unit in np.eye(n)])
    values = {sym.D: n, sym.s: s, sym.epsilon: eps}
    values.update({array[t + 1]: number for array, row in ((sym.x, x), (sym.xhat, x / s)) for t, number in enumerate(row)})
    found = [[J.subs({sym.i: a, sym.j: b}).subs(values) for b in range(1, n + 1)] for a in range(1, n + 1)]
    left = {str(symbol) for row in found for entry in row for symbol in entry.free_symbols}
    expect(not left, f"your J still contains {', '.join(sorted(left))}; write it in D, i, j, s and xhat")
    found = np.array(found, dtype=float)
    expect(not _close(found, expected - 1 / (n * s)), "your J is layer norm's; RMSNorm subtracts no mean")
    expect_close(found, expected, _RTOL, "J for D = 4")


def eps_outside_backward(dy, x, gamma, eps):
    """dx of y = gamma * (x - mean) / (sigma + eps), eps outside the root.

    dy, x: (..., D), no constant rows.  gamma: (D,).  Returns (..., D).
    """
    raise NotImplementedError("which step of the graph is another one?")


def eps_outside_backward_solution(dy, x, gamma, eps):
    c = x - x.mean(axis=-1, keepdims=True)
    sigma = np.sqrt((c * c).mean(axis=-1, keepdims=True))
    s = sigma + eps
    xhat, g = c / s, gamma * dy
    mean_g = g.mean(axis=-1, keepdims=True)
    mean_gx = (g * xhat).mean(axis=-1, keepdims=True)
    return (g - mean_g - xhat * mean_gx * s / sigma) / s


def _eps_outside(eps):
    def test(candidate, rng):
        x, dy = np.stack([_row(rng), _row(rng) / 4]), rng.standard_normal((2, 7))
        gamma = rng.uniform(0.5, 2, 7)

        def forward(rows):
            c = rows - rows.mean(axis=-1, keepdims=True)
            return gamma * c / (np.sqrt((c * c).mean(axis=-1, keepdims=True)) + eps)

        found = candidate(dy.copy(), x.copy(), gamma.copy(), eps)
        if eps:
            sigma = x.std(axis=-1, keepdims=True)
            for s, mistake in ((sigma + eps, "of layer norm with s = sigma + eps put in; ds/dx changes as well"),
                               (np.sqrt(sigma**2 + eps), "for eps inside the root")):
                xhat, g = (x - x.mean(axis=-1, keepdims=True)) / s, gamma * dy
                wrong = g - g.mean(-1, keepdims=True) - xhat * (g * xhat).mean(-1, keepdims=True)
                expect(not _close(found, wrong / s), f"your dx is the formula {mistake}")
        expect_close(found, complex_step(forward, x, dy=dy), _RTOL, "dx")
    return f"eps = {eps:g}", test


EXERCISES = (
    Exercise("jacobian-matrix", 2, "The Jacobian of a row, as a matrix", jacobian_matrix, jacobian_matrix_solution,
             (_matrix(0.0), _matrix(1e-5), _matrix(2.0))),
    Exercise("eigenvalues", 2, "Eigenvalues without a matrix", eigenvalues, eigenvalues_solution,
             (_eigenvalues_of(7, 2.0), _eigenvalues_of(9, 1e-5), _eigenvalues_of(2, 2.0),
              ("two zeros at eps = 0", _zeros_without_eps))),
    Exercise("null-direction", 2, "A gradient that does not get through", null_direction, null_direction_solution,
             (("dx vanishes", _vanishes),
              ("gamma * dy is not constant", _not_constant))),
    Exercise("rms-jacobian", 2, "RMSNorm in SymPy", rms_jacobian, rms_jacobian_solution,
             (("equal to the derivative at D = 4", _symbolic_rms),)),
    Exercise("eps-outside", 2, "Move eps out of the root", eps_outside_backward, eps_outside_backward_solution,
             (_eps_outside(0.0), _eps_outside(0.5))),
)
