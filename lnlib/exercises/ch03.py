"""Exercises of chapter 3, the backward pass."""

import numpy as np

from .. import reference
from ..layernorm import layer_norm_backward, layer_norm_forward
from . import Exercise, Mistake, call_unchanged, expect, expect_close, expect_parts
from .backward import LAYER, Backward, judge, problem

# A right answer in float64, see the tolerances of .backward; here for sums and the residual add.
_RTOL = 1e-12


def _same(a, b):
    return a.shape == b.shape and a.dtype.kind == "f" and np.allclose(a, b, rtol=1e-9, atol=1e-9)


def backward_dx(dy, xhat, rstd, gamma):
    """Gradient of the loss with respect to x.

    dy, xhat: (..., D).  rstd: (..., 1).  gamma: (D,).
    Returns dx, of shape (..., D).
    """
    raise NotImplementedError("two means over the last axis")


def backward_dx_solution(dy, xhat, rstd, gamma):
    g = gamma * dy
    mean_g = g.mean(axis=-1, keepdims=True)
    mean_gx = (g * xhat).mean(axis=-1, keepdims=True)
    return rstd * (g - mean_g - xhat * mean_gx)


def _dx_for(shape):
    def test(candidate, rng):
        dy, cache, (dx, _, _) = problem(rng, shape)
        found = call_unchanged(candidate, dy=dy, xhat=cache.xhat, rstd=cache.rstd, gamma=cache.gamma)
        judge(found, "dx", dx)
    return test


_DX = Backward(("dx",), lambda dy, cache: {"dy": dy, "xhat": cache.xhat, "rstd": cache.rstd, "gamma": cache.gamma},
               lambda found, given: (found, None, None), LAYER)


def backward_parameters(dy, xhat):
    """Gradients with respect to gamma and beta.

    dy, xhat: (..., D) with any number of leading axes, also none.
    Returns dgamma, dbeta, each of shape (D,).
    """
    raise NotImplementedError("sum over every axis but the last")


def backward_parameters_solution(dy, xhat):
    leading = tuple(range(dy.ndim - 1))
    return (dy * xhat).sum(axis=leading), dy.sum(axis=leading)


def _parameters_for(shape):
    def test(candidate, rng):
        dy, cache, (_, dgamma, dbeta) = problem(rng, shape)
        found = expect_parts(call_unchanged(candidate, dy=dy, xhat=cache.xhat), 2)
        judge(found[0], "dgamma", dgamma)
        judge(found[1], "dbeta", dbeta)
    return test


_PARAMETERS = Backward(("dgamma", "dbeta"), lambda dy, cache: {"dy": dy, "xhat": cache.xhat},
                       lambda found, given: (None, *expect_parts(found, 2)), LAYER)


def _no_rows(candidate, rng):
    for found in expect_parts(candidate(np.zeros((0, 7)), np.zeros((0, 7))), 2):
        expect_close(found, np.zeros(7), _RTOL, "the sum over no rows")


def dy_with_kappa(kappa, xhat, gamma):
    """An upstream gradient of one row with a given kappa.

    kappa: float >= 1.  xhat, gamma: (D,), no zeros in gamma,
    at least three different numbers in xhat.
    Returns dy, of shape (D,).
    """
    raise NotImplementedError("build g from its parts")


def dy_with_kappa_solution(kappa, xhat, gamma):
    rest = xhat**2 - (xhat**2).mean()
    rest -= xhat * (rest @ xhat) / (xhat @ xhat)
    g = rest / np.sqrt((rest**2).mean()) + np.sqrt(kappa**2 - 1)
    return g / gamma


# A right answer: the entries of g are rounded, which dx feels as kappa roundings, a few times 1e4 * 2**-53 = 1e-12
# at kappa = 1e4. There the part along xhat that eps lets through, 1e4 * eps / s^2, changes kappa by 1e-5 and more.
_KAPPA_RTOL = 1e-8


def _kappa_of(kappa):
    def test(candidate, rng):
        x = 5 + 3 * rng.standard_normal(7)
        gamma = rng.uniform(0.5, 2, 7) * rng.choice([-1, 1], 7)
        _, cache = layer_norm_forward(x, gamma, gamma)
        dy = call_unchanged(candidate, kappa=kappa, xhat=cache.xhat, gamma=cache.gamma)
        expect(dy is not None, "dy is None; is a return missing?")
        dy = np.asarray(dy)
        expect(dy.shape == x.shape and dy.dtype.kind == "f" and np.isfinite(dy).all(),
               f"found dy of shape {dy.shape} and dtype {dy.dtype}, expected finite floats of shape {x.shape}")

        found, if_g = (reference.kappa(reference.layer_norm(x, gamma, gamma, a), a, gamma) for a in (dy, dy / gamma))
        if abs(found - kappa) > _KAPPA_RTOL * kappa:
            expect(abs(if_g - kappa) > _KAPPA_RTOL * kappa, "what you return is a good g; which dy has this g?")
            at_zero = reference.kappa(reference.layer_norm(x, gamma, gamma, dy, eps=0), dy, gamma)
            through = abs(at_zero - kappa) <= _KAPPA_RTOL * kappa
            expect(False, f"kappa is {found:.6g}, not {kappa:g}" + (
                "; with eps = 0 it would be, but eps > 0 lets a little of xhat through" if through else ""))
    return test


def lost_in_y(gamma, beta, tolerance, u=2.0**-24):
    """Features whose xhat cannot be had from y well enough.

    gamma, beta: (D,).  tolerance: relative error that is allowed.
    u: unit roundoff of y.
    Returns a bool array of shape (D,): True where xhat is lost.
    """
    raise NotImplementedError("read the table of y once more")


def lost_in_y_solution(gamma, beta, tolerance, u=2.0**-24):
    inaccurate = u * np.abs(beta) > tolerance * np.abs(gamma)
    return inaccurate | (gamma == 0)


# u * |beta / gamma| is a factor 6 or more away from the tolerance. The error over 64 rows is at least a third of it
# (up to 1, where nothing of xhat is left), at most twice it, and a few u more, so rule and measurement agree.
_GAMMA = np.array([1, 0.01, -1e-4, 1e-6, 1e-8, 1e-6, 0, 0])
_BETA = np.array([-1.0, 1, 1, -1, 1, 0, 1, 0])


def _lost_for(dtype, tolerance):
    def test(candidate, rng):
        order = rng.permutation(8)
        gamma, beta = _GAMMA[order].astype(dtype), _BETA[order].astype(dtype)
        xhat = rng.standard_normal((64, 8)).astype(dtype)
        y = gamma * xhat + beta
        with np.errstate(divide="ignore", invalid="ignore"):
            again = (y - beta) / gamma
        # 0 / 0 gives NaN, which no comparison accepts.
        error = np.linalg.norm(again - xhat, axis=0) / np.linalg.norm(xhat, axis=0)
        found = call_unchanged(candidate, gamma=gamma, beta=beta, tolerance=tolerance, u=np.finfo(dtype).eps / 2)
        expect(found is not None, "the result is None; is a return missing?")
        found = np.asarray(found)
        expect(found.shape == (8,) and found.dtype == bool,
               f"found shape {found.shape} and dtype {found.dtype}, expected (8,) and bool")
        wrong = np.flatnonzero(found == (error <= tolerance))
        for i in wrong:
            expect(False, f"wrong are {len(wrong)} of 8 features; for one, gamma = {gamma[i]:g}, beta = {beta[i]:g}: "
                          f"the error is {error[i]:.0e}, allowed is {tolerance:.0e}, and you say "
                          f"{'lost' if found[i] else 'not lost'}")
    return test


def residual_backward(dy, dz_other, cache):
    """Gradients of z = a + b followed by y = layer norm of z.

    dy: gradient with respect to y, (..., D).
    dz_other: gradient that z receives from its other uses alone.
    cache: what layer_norm_forward returned for z.
    Returns da, db (..., D), dgamma, dbeta (D,).
    """
    raise NotImplementedError("z is used twice: gradients add up")


def residual_backward_solution(dy, dz_other, cache):
    dx, dgamma, dbeta = layer_norm_backward(dy, cache)
    return dx + dz_other, dx + dz_other, dgamma, dbeta


def _residual(scale):
    def test(candidate, rng):
        dy, cache, (dx, dgamma, dbeta) = problem(rng)
        dz_other = scale * rng.standard_normal(dy.shape)
        found = call_unchanged(candidate, dy=dy, dz_other=dz_other, cache=cache)
        da, db, *parameters = expect_parts(found, 4)
        for found, name in ((da, "da"), (db, "db")):
            expect(found is not None, f"{name} is None")
            for wrong, mistake in ((dx, "lacks what reaches z by its other uses"),
                                   (dz_other, "lacks what reaches z through the norm")):
                expect(not scale or not _same(np.asarray(found), wrong), f"{name} {mistake}")
            judge(found, name, dx + dz_other)
        for found, expected, name in zip(parameters, (dgamma, dbeta), ("dgamma", "dbeta")):
            judge(found, name, expected)
    return test


def _three_of_four(found, given):
    da, db, dgamma, dbeta = expect_parts(found, 4)
    expect(np.array_equal(da, db), "da and db differ, though z = a + b treats a and b alike")
    return da, dgamma, dbeta


_RESIDUAL = Backward(("dx", "dgamma", "dbeta"),
                     lambda dy, cache: {"dy": dy, "dz_other": np.zeros_like(dy), "cache": cache},
                     _three_of_four, LAYER)

EXERCISES = (
    Exercise("backward-dx", 3, "dx from memory", backward_dx, backward_dx_solution,
             (*_DX.layers(),
              ("shape (2, 3, 7)", _dx_for((2, 3, 7))),
              ("a single row, shape (7,)", _dx_for((7,))),
              _DX.stress()), _DX.diagnose),
    Exercise("backward-parameters", 3, "dgamma and dbeta for any leading shape",
             backward_parameters, backward_parameters_solution,
             (*_PARAMETERS.layers(),
              ("shape (4, 7)", _parameters_for((4, 7))),
              ("shape (2, 3, 7)", _parameters_for((2, 3, 7))),
              ("a single row, shape (7,)", _parameters_for((7,))),
              ("no rows, shape (0, 7)", _no_rows),
              _PARAMETERS.stress()), _PARAMETERS.diagnose),
    Exercise("dy-with-kappa", 3, "A gradient with a given kappa", dy_with_kappa, dy_with_kappa_solution,
             (("kappa = 3", _kappa_of(3.0)),
              ("kappa = 1", _kappa_of(1.0)),
              ("kappa = 10000", _kappa_of(1e4))),
             mistakes=(Mistake("return g / gamma", "return g",
                               "This is the g that you planned. What must dy be, so that the layer's g is this "
                               "one?"),
                       Mistake("return g / gamma", "return g * gamma",
                               "From g to dy, gamma is applied the wrong way round."),
                       Mistake("np.sqrt(kappa**2 - 1)", "kappa",
                               "What you add to the part that survives has size kappa. Is kappa a ratio of two "
                               "parts, or of the whole to a part?"),
                       Mistake("np.sqrt(kappa**2 - 1)", "(kappa - 1)",
                               "You add the sizes of two parts that are orthogonal. How long is their sum?"),
                       Mistake("    rest -= xhat * (rest @ xhat) / (xhat @ xhat)\n", "",
                               "The part that should come through whole still has some of xhat in it."),
                       Mistake(" - (xhat**2).mean()", "",
                               "The part that should come through whole still has a constant in it."),
                       Mistake("rest / np.sqrt((rest**2).mean())", "rest / np.linalg.norm(rest)",
                               "One part has length 1, the other has entries of a given size. Measure both in the "
                               "same way."))),
    Exercise("lost-in-y", 3, "What y cannot give back", lost_in_y, lost_in_y_solution,
             (("float32, tolerance 1e-4", _lost_for(np.float32, 1e-4)),
              ("float64, tolerance 1e-9", _lost_for(np.float64, 1e-9))),
             mistakes=(Mistake(" | (gamma == 0)", "",
                               "Where gamma and beta are both 0, you say that xhat can be had. From which number?"),
                       Mistake("inaccurate | (gamma == 0)", "gamma == 0",
                               "You call xhat lost only where gamma is exactly 0. What does rounding do to y "
                               "where beta is much larger than gamma?"),
                       Mistake("np.abs(beta)", "beta",
                               "A large negative beta does not count in your answer. Does rounding care for "
                               "signs?"),
                       Mistake("np.abs(gamma)", "gamma",
                               "A negative gamma always counts as lost in your answer. Does rounding care for "
                               "signs?"),
                       Mistake("np.abs(beta) > tolerance", "beta * np.sign(gamma) > tolerance",
                               "Where the signs of gamma and beta differ, nothing counts as lost in your answer. "
                               "Does rounding care for signs?"),
                       Mistake("u * np.abs(beta)", "np.abs(beta)",
                               "The unit roundoff has no part in your answer. How large is the rounding error of "
                               "y?"),
                       Mistake("u * np.abs(beta) > tolerance * np.abs(gamma)", "u > tolerance * np.abs(gamma)",
                               "The size of beta has no part in your answer. How large is the rounding error of "
                               "y?"))),
    Exercise("residual-backward", 3, "Layer norm after a residual add", residual_backward, residual_backward_solution,
             (*_RESIDUAL.layers(),
              ("z has no other use", _residual(0)),
              ("z is used elsewhere too", _residual(1)),
              _RESIDUAL.stress()), _RESIDUAL.diagnose,
             # What the family cannot say: it lets z have no other use.
             mistakes=(Mistake("return dx + dz_other, dx + dz_other", "return dx * dz_other, dx * dz_other",
                               "Where z has no other use, your da is 0. What reaches z all the same?"),
                       Mistake("dy, cache)\n    return dx + dz_other, dx + dz_other",
                               "dy + dz_other, cache)\n    return dx, dx",
                               "Both gradients go through the norm in your answer. Do the other uses see z before "
                               "or after it?"))),
)
