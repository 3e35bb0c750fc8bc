"""Exercises of chapter 2, the derivation."""

import numpy as np

from lnbook.forms import eps_outside_forward
from lnlib.gradcheck import complex_step
from lnlib.layernorm import layer_norm_backward, layer_norm_forward, rms_norm_forward

from . import Exercise
from .expect import expect, expect_array, expect_close
from .gradients import Backward, expect_gradient, of_cache, only_dx, outside
from .run import Call, each

# Tolerance of the checks below. The rows drawn here have |mean| < 10 sigma, so a centred row
# computed in float64 is good to about 20 * 2**-53, and no more than 10 such factors and sums of at
# most 9 terms follow: 20 * 10 * 9 * 2**-53 = 2e-13. The smallest mistake, eps / s^2 at eps = 1e-5,
# is worth 1e-6.
_RTOL = 1e-12


def _row(rng, D=7):
    """A row whose mean is not 0 and whose standard deviation is not 1."""
    x = rng.standard_normal(D)
    return 5 + 3 * (x - x.mean()) / x.std()


def _derivative(forward, x):
    """J of one row, differentiated without any of the chapter's formulas."""
    return np.array([complex_step(forward, x, dy=unit) for unit in np.eye(len(x))])


def _against(title, right, D, eps, judge):
    """A check on a row of D numbers, whose judge is handed ``right`` of its Jacobian."""

    def ask(rng):
        x = _row(rng, D)
        J = _derivative(lambda row: layer_norm_forward(row, np.ones(D), np.zeros(D), eps)[0], x)
        return Call({"x": x, "eps": eps}, expected=right(J))

    return each(title, ask, judge)


def _is_jacobian(found, expected, **_):
    expect_close(found, expected, _RTOL, "J")


def jacobian_matrix_solution(x, eps=1e-5):
    D = len(x)
    c = x - x.mean()
    s = np.sqrt((c * c).mean() + eps)
    xhat = c / s
    return (np.eye(D) - 1 / D - np.outer(xhat, xhat) / D) / s


def eigenvalues_solution(x, eps):
    s = np.sqrt(x.var() + eps)
    return np.array([0.0, eps / s**3] + [1 / s] * (len(x) - 2))


def _eigenvalues_of(D, eps):
    where = f"D = {D}, eps = {eps:g}"

    def judge(found, expected, **_):
        found = expect_array(found, (D,), name=f"the list of eigenvalues for {where}")
        off = np.abs(found - expected)
        wrong = ", ".join(map(str, np.flatnonzero(off > 1e-9 * expected.max()) + 1))
        start = f"for {where} these of your {D} eigenvalues are off"
        expect(not wrong, f"{start}: number {wrong}, by up to {off.max():.1e}")
        expect_close(found, expected, _RTOL, f"the list of eigenvalues for {where}")

    return _against(where, np.linalg.eigvalsh, D, eps, judge)


def _zeros_without_eps(found, x, **_):
    zeros = int((np.abs(expect_array(found, x.shape)) < 1e-12).sum())
    expect(zeros == 2, f"at eps = 0 found {zeros} zeros, expected one for 1 and one for xhat")


def null_direction_solution(x, gamma):
    return (x - x.mean()) / gamma


def _row_and_gamma(rng):
    x, gamma = _row(rng), rng.uniform(0.5, 2, 7) * rng.permutation([1, 1, 1, 1, -1, -1, -1])
    return Call({"x": x, "gamma": gamma})


def _vanishes(dy, x, gamma):
    dy = expect_array(dy, x.shape, name="dy").astype(float)
    expect(dy.any(), "dy = 0 proves nothing; find another one")
    g = gamma * dy
    _, cache = layer_norm_forward(x, gamma, np.zeros(7), eps=0)
    # What comes through is what remains of rstd * g after all of it is subtracted: its roundings.
    left, right = np.linalg.norm(layer_norm_backward(dy, cache)[0]), np.linalg.norm(cache.rstd * g)
    angles = "your gamma * dy is at right angles to 1 and to xhat"
    expect(left < (1 - _RTOL) * right, f"all of gamma * dy / s comes through: {angles}")
    along = [abs(g @ v) / np.linalg.norm(g) / np.linalg.norm(v) for v in (np.ones(7), cache.xhat)]
    through = f"a fraction of {left / right:.3e} of gamma * dy / s comes through"
    where = f"of the length of gamma * dy {along[0]:.3f} is along 1 and {along[1]:.3f} along xhat"
    expect(left <= _RTOL * right, f"dx should vanish, but {through}; {where}")


def _not_constant(dy, x, gamma):
    g = gamma * dy
    # A millionth of another direction would still vanish to _RTOL only if that direction is xhat.
    varies = np.linalg.norm(g - g.mean()) > 1e-6 * np.linalg.norm(g)
    one = "the direction 1, which vanishes for every eps; find the other one"
    expect(varies, f"your gamma * dy is constant, {one}")


def rms_jacobian_solution():
    from sympy import Symbol, sqrt

    from lnlib.symbolic import D, epsilon, i, j, s, x, xhat

    q = Symbol("q")
    normalised = x[i] / sqrt(q + epsilon)
    J = normalised.diff(x[j]) + normalised.diff(q) * 2 * x[j] / D
    return J.subs(q, s**2 - epsilon).subs({x[i]: s * xhat[i], x[j]: s * xhat[j]})


def _symbolic_rms(n):
    def judge(J, x, eps=0.3):
        # Here, so that other chapters' exercises do not load SymPy.
        from lnlib import symbolic as sym

        expect(hasattr(J, "free_symbols"), f"found {type(J).__name__}, expected a SymPy expression")
        allowed = {"D": sym.D, "i": sym.i, "j": sym.j, "s": sym.s}
        for symbol in sorted(J.free_symbols, key=str):
            right = allowed.get(str(symbol), symbol) == symbol
            other = f"your {symbol} is another symbol than lnlib.symbolic's {symbol}"
            expect(right, f"{other}; import that one")
        s = np.sqrt((x * x).mean() + eps)
        values = {sym.D: n, sym.s: s, **{sym.xhat[t]: number / s for t, number in enumerate(x, 1)}}
        indices = range(1, n + 1)
        found = [[J.subs({sym.i: a, sym.j: b}).subs(values) for b in indices] for a in indices]
        # x and every x[1] are free symbols; the name before the bracket is enough. That of a mean
        # is TeX.
        names = {str(symbol) for row in found for entry in row for symbol in entry.free_symbols}
        left = {"a mean" if "overline" in name else name.split("[")[0] for name in names}
        what = ", ".join(sorted(left))
        expect(not left, f"your J still contains {what}; write it in D, i, j, s and xhat")
        expected = _derivative(lambda row: rms_norm_forward(row, np.ones(n), eps)[0], x)
        expect_close(np.array(found, dtype=float), expected, _RTOL, f"J for D = {n}")

    def ask(rng):
        return Call({}, x=1 + rng.standard_normal(n))

    return each(f"equal to the derivative at D = {n}", ask, judge)


def eps_outside_backward_solution(dy, x, gamma, eps):
    c = x - x.mean(axis=-1, keepdims=True)
    sigma = np.sqrt((c * c).mean(axis=-1, keepdims=True))
    s = sigma + eps
    xhat, g = c / s, gamma * dy
    mean_g = g.mean(axis=-1, keepdims=True)
    mean_gx = (g * xhat).mean(axis=-1, keepdims=True)
    return (g - mean_g - xhat * mean_gx * s / sigma) / s


def _eps_outside(eps):
    def ask(rng):
        # Three rows: of two, means over the rows would leave a wrong dx that is zero, and say
        # nothing of its mistake.
        x, dy = np.stack([_row(rng), _row(rng) / 4, 2 * _row(rng)]), rng.standard_normal((3, 7))
        gamma = rng.uniform(0.5, 2, 7)
        expected = complex_step(lambda rows: gamma * eps_outside_forward(rows, eps), x, dy=dy)
        return Call({"dy": dy, "x": x, "gamma": gamma, "eps": eps}, expected=expected)

    return each(
        f"eps = {eps:g}", ask, lambda found, expected, **_: expect_gradient(found, "dx", expected)
    )


_DX = Backward(("dx",), of_cache("dy x gamma eps"), only_dx, outside(with_gamma=True))


MISTAKES = r"""
== jacobian-matrix
np.eye(D) - 1 / D => np.eye(D)
    Nothing in your J stands for the mean. Move the whole row by a constant: does xhat move?
- np.outer(xhat, xhat) / D =>
    Nothing in your J stands for the variance. Stretch the row a little: how much does xhat change?
- np.outer => + np.outer
    One path has the wrong sign. If a deviation grows, do the other entries of xhat grow or shrink?
/ D) / s => / D)
    Your J does not depend on the size of x. If x is in metres, in which unit is J?
(np.eye(D) - 1 / D - np.outer(xhat, xhat) / D) / s => np.eye(D) / s
    Mean and variance are taken for constants. How many routes lead from x[j] to xhat[i]?
np.outer(xhat, xhat) => 2 * np.outer(xhat, xhat)
    The path through the variance counts twice. Differentiate sqrt(v) at v = 4 by hand.
.mean() + eps) => .mean())
    Your s is that of eps = 0. Does it use the caller's eps?
(c * c).mean() => (c * c).sum() / (D - 1)
    Your variance divides by D - 1. Is it an estimate or a definition?
== eigenvalues
eps / s**3 => 0.0
    Two of your eigenvalues are 0 for every eps. With eps > 0, is the length of xhat still the same
    for every row?
eps / s**3 => eps / s**2
    One of the eigenvalues has another unit than the rest.
[0.0, eps / s**3] + [1 / s] * (len(x) - 2) => [eps / s**3] + [1 / s] * (len(x) - 1)
    In your list one direction passes at full size, although J sends it to zero for every eps. Which
    one is that?
[0.0, eps / s**3] + [1 / s] * (len(x) - 2) => [0.0] + [eps / s**3] * (len(x) - 1)
    In all directions but one you let through what eps does. In how many of them is something taken
    away?
[1 / s] * => [1.0] *
    All but one of your eigenvalues are those of a projection. Is J one, or a projection times
    something?
[1 / s] * => [1 / s**2] *
    The largest of your eigenvalues have another unit than J. If x is in metres, which is J's?
x.var() + eps => x.var()
    Your s is that of eps = 0. Does it use the caller's eps?
[0.0, eps / s**3] + [1 / s] * (len(x) - 2) => [1 / s] * (len(x) - 2) + [eps / s**3, 0.0]
    Your eigenvalues are in descending order.
== null-direction
/ gamma =>
    Your dy would do it if gamma were 1. What does J meet: dy, or something made of it?
/ gamma => / np.abs(gamma)
    The signs of gamma have no part in your dy. What is gamma * dy where gamma is negative?
/ gamma => * gamma
    In your dy gamma stands on the wrong side: what is gamma * dy now?
(x - x.mean()) / gamma => x
    Your dy would do it if gamma were 1. What does J meet: dy, or something made of it?
(x - x.mean()) / gamma => 1 + 0 * x
    Your dy is constant. What is gamma * dy then?
(x - x.mean()) => 1
    Your gamma * dy is constant. That vanishes for every eps; J has one more such direction at eps =
    0.
(x - x.mean()) => (x - x.mean())**2
    J does not send your gamma * dy to zero. Along which step does a row change its length alone?
== rms-jacobian
normalised.diff(x[j]) + => 1 / sqrt(q + epsilon) +
    Your direct path leads from every x[j] to every xhat[i]. Which of them does it reach?
return J.subs(q => J -= 1 / (D * s)\n    return J.subs(q
    Your J is layer norm's. Does RMSNorm subtract a mean?
+ normalised.diff(q) * 2 * x[j] / D =>
    Only the direct path is there. Does q not change when x[j] does?
* 2 * x[j] / D => * 2 * x[j]
    The path through q is too large. How much of a mean is due to one of its entries?
* 2 * x[j] / D => * x[j] / D
    The path through q counts half. Differentiate c**2 at c = 3 by hand.
* 2 * x[j] / D => * 4 * x[j] / D
    The path through q counts twice. Differentiate sqrt(v) at v = 4 by hand.
return J.subs(q => return s * J.subs(q
    Your J does not depend on the size of x. If x is in metres, in which unit is J?
x[i]: s * xhat[i] => x[i]: xhat[i]
& x[j]: s * xhat[j] => x[j]: xhat[j]
    Both x became xhat, as if the two were equal. Which factor lies between them?
== eps-outside
x.mean(axis=-1 => x.mean(axis=None
& (c * c).mean(axis=-1 => (c * c).mean(axis=None
& g.mean(axis=-1 => g.mean(axis=None
& (g * xhat).mean(axis=-1 => (g * xhat).mean(axis=None
    Your means run over the whole array. Which numbers does layer norm show to a row?
x.mean(axis=-1 => x.mean(axis=0
& (c * c).mean(axis=-1 => (c * c).mean(axis=0
& g.mean(axis=-1 => g.mean(axis=0
& (g * xhat).mean(axis=-1 => (g * xhat).mean(axis=0
    Your means run over the first axis. Which numbers does layer norm show to a row?
c).mean(axis=-1, keepdims=True => c).sum(axis=-1, keepdims=True) / (x.shape[-1] - 1
c).mean(axis=-1, keepdims=True => c).sum(axis=-1, keepdims=True) / (x.shape[-1] - 1
& ).mean(axis=-1, keepdims=True => ).sum(axis=-1, keepdims=True) / (x.shape[-1] - 1
    Your variance divides by D - 1. Is it an estimate or a definition?
"""

EXERCISES = (
    Exercise("jacobian-matrix", 10, "implement", jacobian_matrix_solution).with_checks(
        *(_against(f"eps = {eps:g}", np.asarray, 7, eps, _is_jacobian) for eps in (0.0, 1e-5, 2.0))
    ),
    Exercise("eigenvalues", 10, "derive", eigenvalues_solution).with_checks(
        _eigenvalues_of(7, 2.0),
        _eigenvalues_of(9, 1e-5),
        _eigenvalues_of(2, 2.0),
        each(
            "two zeros at eps = 0",
            lambda rng: Call({"x": _row(rng), "eps": 0.0}),
            _zeros_without_eps,
        ),
    ),
    Exercise("null-direction", 5, "derive", null_direction_solution, free=True).with_checks(
        each("dx vanishes", _row_and_gamma, _vanishes),
        each("gamma * dy is not constant", _row_and_gamma, _not_constant),
    ),
    Exercise("rms-jacobian", 20, "derive", rms_jacobian_solution).with_checks(
        _symbolic_rms(4), _symbolic_rms(7)
    ),
    Exercise("eps-outside", 20, "derive, implement", eps_outside_backward_solution).with_checks(
        *_DX.layers()[:3],
        _eps_outside(0.0),
        _eps_outside(0.5),
        *_DX.layers()[3:],
        _DX.stress(),
        diagnose=_DX.diagnose,
    ),
)
