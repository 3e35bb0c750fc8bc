"""Exercises of chapter 5, broken backwards."""

import numpy as np

from ..diagnose import diagnose
from ..layernorm import layer_norm_backward, layer_norm_forward, rms_norm_backward, rms_norm_forward
from ..mutants import CHECKS, MUTANTS
from . import Exercise, Mistake, expect, expect_close, expect_parts

_CHECKS = {check.id: check for check in CHECKS}
_MUTANTS = {mutant.name: mutant.backward for mutant in MUTANTS}


def survivor(dy, cache):
    """A backward whose dx is wrong, and which survives three checks:
    sum-dx-zero, dx-orthogonal-xhat and gamma-one.

    dy: (..., D).  cache: what layer_norm_forward returned.
    Returns dx (..., D) and the right dgamma, dbeta (D,).
    """
    raise NotImplementedError("where can gamma stand?")


def survivor_solution(dy, cache):
    dx, _, _ = layer_norm_backward(cache.gamma * dy, cache)
    _, dgamma, dbeta = layer_norm_backward(dy, cache)
    return dx, dgamma, dbeta


def _three(candidate):
    return lambda dy, cache: expect_parts(candidate(dy, cache), 3)


def _survives(id):
    def test(candidate, rng):
        expect(_CHECKS[id].run(_three(candidate)), f"{id} kills it ({_CHECKS[id].title})")
    return f"survives {id}", test


def _is_wrong(candidate, rng):
    expect(not _CHECKS["adjoint"].run(_three(candidate)), "your dx is right; gamma = 1 is not the only gamma")


def _parameters_right(candidate, rng):
    expect(_CHECKS["dgamma-dbeta-only"].run(_three(candidate)), "your dgamma or dbeta is wrong where gamma is not 1")


def _which_mistake(candidate):
    # dx is meant to be wrong.
    return diagnose(lambda dy, cache: (None, *_three(candidate)(dy, cache)[1:]))


def probe(eps):
    """Inputs on which the dx of a backward that drops eps is wrong,
    in norm, by at least a tenth of |r * g|.

    eps: float > 0.
    Returns x (..., D), gamma, beta (D,), dy (..., D), all float64.
    """
    raise NotImplementedError("how large should sigma be?")


def probe_solution(eps):
    x = np.sqrt(eps) * np.array([1.0, -1.0, 1.0, -1.0])
    return x, np.ones(4), np.zeros(4), np.array([1.0, 2.0, 3.0, 5.0])


def _probe_at(eps):
    def test(candidate, rng):
        x, gamma, beta, dy = candidate(eps)
        dtypes = [np.asarray(a).dtype.name for a in (x, gamma, beta, dy)]
        expect(set(dtypes) == {"float64"}, f"found dtypes {', '.join(dtypes)}, expected float64 only")
        expect(np.ptp(x, axis=-1).min() > 0, "x has a constant row; there the mutant divides 0 by 0")
        _, cache = layer_norm_forward(x, gamma, beta, eps)
        size = np.linalg.norm(cache.rstd * gamma * dy)
        expect(size > 0, "gamma * dy is zero, and so are the right and the wrong dx")
        error = np.linalg.norm(_MUTANTS["eps-dropped"](dy, cache)[0] - layer_norm_backward(dy, cache)[0])
        expect(error >= 0.1 * size, f"wrong and right dx differ by {error / size:.1e} |r g|, expected at least 1e-01")
    return f"eps = {eps}", test


def is_right(backward):
    """Whether `backward` is the backward of rms_norm_forward.

    backward: function (dy, cache) -> dx, dgamma.
    Returns True or False, also where shapes are wrong.
    """
    raise NotImplementedError("random numbers, shapes, one direction")


def is_right_solution(backward):
    rng = np.random.default_rng(0)
    x, u, dy = rng.standard_normal((3, 3, 4, 7))
    gamma, v = rng.standard_normal((2, 7))
    x, u = 0.01 * x, 0.01 * u
    dx, dgamma = backward(dy, rms_norm_forward(x, gamma)[1])
    if dx.shape != x.shape or dgamma.shape != gamma.shape:
        return False
    y, _ = rms_norm_forward(x + 1e-30j * u, gamma + 1e-30j * v)
    slope = (dy * y.imag).sum() / 1e-30
    return bool(np.isclose((dx * u).sum() + (dgamma * v).sum(), slope, rtol=1e-9))


def _mean(a):
    return a.mean(axis=-1, keepdims=True)


def _rms_mutant(dx=None, dgamma=None):
    """The right backward of RMSNorm with one output, a function of (dy, g, xhat, r, gamma), replaced."""
    def backward(dy, cache):
        right = rms_norm_backward(dy, cache)
        parts = dy, dy * cache.gamma, cache.xhat, cache.rstd, cache.gamma
        return dx(*parts) if dx else right[0], dgamma(*parts) if dgamma else right[1]
    return backward


def _plain_rms_dx(g, xhat, r):
    return r * (g - xhat * _mean(g * xhat))


def _rms_without_eps(dy, g, xhat, r, gamma):
    x = xhat / r
    r = 1 / np.sqrt(_mean(x * x))
    return _plain_rms_dx(g, x * r, r)


_RMS_RIGHT = {
    "the library's": rms_norm_backward,
    "one with D multiplied in and divided out": _rms_mutant(
        lambda dy, g, xhat, r, gamma: r / g.shape[-1] * (g.shape[-1] * g - xhat * (g * xhat).sum(-1, keepdims=True))),
}

_RMS_WRONG = {
    "a wrong projection": {
        "the projection is left out": _rms_mutant(lambda dy, g, xhat, r, gamma: r * g),
        "the projection is halved": _rms_mutant(lambda dy, g, xhat, r, gamma: r * (g - xhat * _mean(g * xhat) / 2)),
        "the mean is subtracted too, as in layer norm": _rms_mutant(
            lambda dy, g, xhat, r, gamma: r * (g - _mean(g) - xhat * _mean(g * xhat))),
    },
    "a wrong factor": {
        "the division by s is missing": _rms_mutant(lambda dy, g, xhat, r, gamma: _plain_rms_dx(g, xhat, 1)),
        "dx is divided by D": _rms_mutant(lambda dy, g, xhat, r, gamma: _plain_rms_dx(g, xhat, r / g.shape[-1])),
    },
    "gamma in the wrong place": {
        "gamma is forgotten": _rms_mutant(lambda dy, g, xhat, r, gamma: _plain_rms_dx(dy, xhat, r)),
        "gamma is pulled out of the mean": _rms_mutant(lambda dy, g, xhat, r, gamma: gamma * _plain_rms_dx(dy, xhat, r)),
        "dgamma carries gamma": _rms_mutant(
            dgamma=lambda dy, g, xhat, r, gamma: (g * xhat).sum(axis=tuple(range(dy.ndim - 1)))),
    },
    "a wrong axis": {
        "the mean runs over all rows at once": _rms_mutant(
            lambda dy, g, xhat, r, gamma: r * (g - xhat * (g * xhat).mean())),
        "the sum over D is divided by the number of rows": _rms_mutant(
            lambda dy, g, xhat, r, gamma: r * (g - xhat * _mean(g * xhat) * g.shape[-1] ** 2 / g.size)),
        "dgamma is summed over the first axis only": _rms_mutant(
            dgamma=lambda dy, g, xhat, r, gamma: (dy * xhat).sum(axis=0)),
    },
    "a wrong dgamma": {
        "dgamma is averaged over the rows": _rms_mutant(
            dgamma=lambda dy, g, xhat, r, gamma: (dy * xhat).mean(axis=tuple(range(dy.ndim - 1)))),
        "dgamma has shape (1, D)": _rms_mutant(
            dgamma=lambda dy, g, xhat, r, gamma: (dy * xhat).reshape(-1, dy.shape[-1]).sum(axis=0, keepdims=True)),
    },
    "a wrong shape of dx": {
        "dx has an axis too many": _rms_mutant(lambda dy, g, xhat, r, gamma: _plain_rms_dx(g, xhat, r)[None]),
        "dx is one matrix of rows": _rms_mutant(
            lambda dy, g, xhat, r, gamma: _plain_rms_dx(g, xhat, r).reshape(-1, g.shape[-1])),
    },
    "a dropped eps": {"backward computes s again without eps": _rms_mutant(_rms_without_eps)},
}


def _verdict(candidate, backward):
    found = candidate(backward)
    expect(isinstance(found, (bool, np.bool_)), f"found {type(found).__name__}, expected True or False")
    return found


def _accepts_right(candidate, rng):
    for name, backward in _RMS_RIGHT.items():
        expect(_verdict(candidate, backward), f"your test rejects a right backward, {name}")


def _rejects(group):
    def test(candidate, rng):
        for wrong, backward in _RMS_WRONG[group].items():
            expect(not _verdict(candidate, backward), f"a mutant survives your test: {wrong}")
    return f"rejects {group}", test


def coefficients(dx, dy, cache):
    """The numbers a, b, c that come closest to
    dx = r * (a * g + b * mean(g) + c * xhat * mean(g * xhat)).

    dx, dy: (..., D).  cache: what layer_norm_forward returned.
    Returns an array of shape (3,).
    """
    raise NotImplementedError("np.linalg.lstsq with three columns")


def coefficients_solution(dx, dy, cache):
    g, xhat = cache.gamma * dy, cache.xhat
    mean_g = g.mean(axis=-1, keepdims=True) * np.ones_like(g)
    projection = xhat * (g * xhat).mean(axis=-1, keepdims=True)
    columns = [(cache.rstd * term).ravel() for term in (g, mean_g, projection)]
    return np.linalg.lstsq(np.stack(columns, axis=-1), dx.ravel(), rcond=None)[0]


def _fitted(candidate, dx, dy, cache):
    found = candidate(dx.copy(), dy.copy(), cache)
    expect(not isinstance(found, tuple) or len(found) == 3,
           "found a tuple, expected an array of shape (3,); np.linalg.lstsq returns more than the numbers")
    return found


def _coefficients_of(name, *expected):
    def test(candidate, rng):
        x, dy = rng.standard_normal((2, 3, 4, 7))
        gamma, beta = rng.standard_normal((2, 7))
        _, cache = layer_norm_forward(5 + 3 * x, gamma, beta)
        dx = _MUTANTS.get(name, layer_norm_backward)(dy, cache)[0]
        # The columns' condition number is below 100, rounding a few u: 1e-10 has room to spare. The nearest
        # other set of coefficients in the catalogue is 1/6 away.
        found = _fitted(candidate, dx, dy, cache)
        expect_close(found, np.array(expected, float), 1e-10,
                     f"the result for {name} is {found}, right is {expected}; it")
    return name, test


def _closest(candidate, rng):
    x, dy, dx = rng.standard_normal((3, 3, 4, 7))
    _, cache = layer_norm_forward(5 + 3 * np.arange(1, 4)[:, None, None] * x, *rng.standard_normal((2, 7)))
    # As above, 1e-10 for rounding; dx fits badly, so that another measure of closeness gives other numbers.
    expect_close(_fitted(candidate, dx, dy, cache), coefficients_solution(dx, dy, cache), 1e-10,
                 "for a random dx, fitted in least squares over all elements of dx, the result")


EXERCISES = (
    Exercise("survivor", 5, "A wrong backward that survives", survivor, survivor_solution,
             (*map(_survives, ("sum-dx-zero", "dx-orthogonal-xhat", "gamma-one")),
              ("its dx is wrong all the same", _is_wrong),
              ("its dgamma and dbeta are right", _parameters_right)), _which_mistake,
             mistakes=(Mistake("cache.gamma * dy", "dy",
                               "Your dx is right. It must be wrong in a way that shows only where gamma is not 1."),
                       Mistake("_, dgamma, dbeta = layer_norm_backward(dy, cache)",
                               "_, dgamma, dbeta = layer_norm_backward(cache.gamma * dy, cache)",
                               "The mistake has reached dgamma and dbeta, too; only dx may be wrong."),
                       Mistake("return dx,", "return cache.gamma * dx,",
                               "In your dx gamma comes last. Does a row of it still add up to 0?"),
                       Mistake("dx, _, _ = layer_norm_backward(cache.gamma * dy, cache)",
                               "dx = 2 * layer_norm_backward(dy, cache)[0]",
                               "Your dx has a factor too much, and with gamma = 1 that shows."))),
    Exercise("probe-for-eps", 5, "A probe for eps", probe, probe_solution,
             tuple(map(_probe_at, (1e-5, 1e-20, 1.0))),
             mistakes=(Mistake("np.sqrt(eps) * ", "",
                               "The size of your x does not depend on eps. When does adding eps to the variance "
                               "matter?"),
                       Mistake("np.sqrt(eps) * ", "100 * np.sqrt(eps) * ",
                               "Your sigma is much larger than the root of eps. How much does eps add to the "
                               "variance then?"),
                       Mistake("np.array([1.0, 2.0, 3.0, 5.0])", "np.ones(4)",
                               "Your dy is constant, and gamma too: what is dx then, with eps or without?"),
                       Mistake("np.ones(4), np.zeros(4)", "np.zeros(4), np.zeros(4)",
                               "Your gamma is 0, so nothing reaches x."),
                       Mistake("np.array([1.0, -1.0, 1.0, -1.0])", "np.ones(4)",
                               "Your x is constant, so that without eps the backward divides 0 by 0."))),
    Exercise("write-the-test", 5, "Test a backward of RMSNorm", is_right, is_right_solution,
             (("accepts right backwards", _accepts_right), *map(_rejects, _RMS_WRONG)),
             mistakes=(Mistake("    if dx.shape != x.shape or dgamma.shape != gamma.shape:\n        return False\n",
                               "",
                               "Your test multiplies arrays without looking at their shapes. What does "
                               "broadcasting do?"),
                       Mistake("dx.shape != x.shape or dgamma.shape != gamma.shape",
                               "dx.size != x.size or dgamma.size != gamma.size",
                               "Your test multiplies arrays without looking at their shapes. What does "
                               "broadcasting do?"),
                       Mistake("gamma, v = rng.standard_normal((2, 7))",
                               "gamma, v = np.ones(7), rng.standard_normal(7)",
                               "Your test runs with gamma = 1. Which mistakes does that hide?"),
                       Mistake("(3, 3, 4, 7)", "(3, 1, 1, 7)",
                               "Your test has a single row. Which mistakes need two?"),
                       Mistake("(3, 3, 4, 7)", "(3, 4, 7)",
                               "The arrays of your test have one leading axis. What can go wrong with two?"),
                       Mistake("(3, 3, 4, 7)", "(3, 7, 1, 7)",
                               "Your test has as many rows as features. Which mistakes does that hide?"),
                       Mistake("rtol=1e-9", "rtol=0.1", "Your tolerance lets mistakes of some per cent pass."),
                       Mistake("x, u = 0.01 * x, 0.01 * u", "x, u = 1e4 * x, 1e4 * u",
                               "In your test sigma is much larger than the root of eps."),
                       Mistake("dx, dgamma = backward(dy, rms_norm_forward(x, gamma)[1])",
                               "cache = rms_norm_forward(x, gamma)[1]\n    dx = backward(dy, cache)[0]\n"
                               "    dgamma = (dy * cache.xhat).sum(axis=(0, 1))",
                               "Your test does not look at dgamma."))),
    Exercise("read-the-mistake", 5, "Read the mistake off dx", coefficients, coefficients_solution,
             # First numbers of three sizes: of (1, -1, -1), to turn it round and to square it is to move the sign.
             (_coefficients_of("projection-halved", 1, -1, -0.5),
              _coefficients_of("the right backward", 1, -1, -1),
              _coefficients_of("missing-projection", 1, -1, 0),
              _coefficients_of("missing-mean", 1, 0, -1),
              _coefficients_of("sums-for-means", 1, -7, -7),
              # D / N = 7 / 12: no rounding to a tidy number finds it.
              _coefficients_of("rows-for-features", 1, -7 / 12, -7 / 12),
              ("closest where nothing fits", _closest)),
             mistakes=(Mistake("cache.rstd * term", "term",
                               "Your columns lack r. In which unit are they, and in which is dx?"),
                       Mistake("cache.gamma * dy, cache.xhat", "dy, cache.xhat",
                               "Your columns are made from dy. What is g?"),
                       Mistake(" * np.ones_like(g)", "",
                               "One of your columns has one number for each row, the others one for each element."),
                       Mistake("xhat * (g * xhat).mean(axis=-1, keepdims=True)",
                               "xhat * (g * xhat).sum(axis=-1, keepdims=True)",
                               "A sum stands in one of your columns where the formula has a mean."),
                       Mistake("xhat * (g * xhat).mean(axis=-1, keepdims=True)", "g * xhat",
                               "One of your columns has no mean in it."),
                       Mistake("(g, mean_g, projection)", "(g, -mean_g, -projection)",
                               "Some of your columns carry a sign. Where does the formula of the docstring have it?"),
                       Mistake("rcond=None)[0]", "rcond=None)[0].round(1)",
                               "You round the numbers. Must they be tidy?"))),
)
