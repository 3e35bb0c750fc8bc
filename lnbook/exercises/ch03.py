"""Exercises of chapter 3, the backward pass."""

import numpy as np

from lnlib import reference
from lnlib.layernorm import layer_norm_backward, layer_norm_forward

from . import Exercise
from .expect import expect, expect_array, expect_parts
from .gradients import LAYER, Backward, expect_gradient, of_cache, only_dx
from .run import Call, each


def backward_dx_solution(dy, xhat, rstd, gamma):
    g = gamma * dy
    mean_g = g.mean(axis=-1, keepdims=True)
    mean_gx = (g * xhat).mean(axis=-1, keepdims=True)
    return rstd * (g - mean_g - xhat * mean_gx)


_DX = Backward(("dx",), of_cache("dy xhat rstd gamma"), only_dx, LAYER)


def backward_parameters_solution(dy, xhat):
    leading = tuple(range(dy.ndim - 1))
    return (dy * xhat).sum(axis=leading), dy.sum(axis=leading)


_PARAMETERS = Backward(
    ("dgamma", "dbeta"),
    of_cache("dy xhat"),
    lambda found: (None, *expect_parts(found, 2)),
    LAYER,
    ((2, 3, 7), (7,), (3, 1)),
)


def _no_rows(result, **_):
    for found in expect_parts(result, 2):
        expect_gradient(found, "the sum over no rows", np.zeros(7))


def dy_with_kappa_solution(kappa, xhat, gamma):
    rest = xhat**2 - (xhat**2).mean()
    rest -= xhat * (rest @ xhat) / (xhat @ xhat)
    g = rest / np.sqrt((rest**2).mean()) + np.sqrt(kappa**2 - 1)
    return g / gamma


# A right answer: the entries of g are rounded, which dx feels as kappa roundings, a few times 1e4 *
# 2**-53 = 1e-12 at kappa = 1e4. There the part along xhat that eps lets through, 1e4 * eps / s^2,
# changes kappa by 1e-5 and more.
_KAPPA_RTOL = 1e-8


def _in_parts(g, xhat):
    """What g is made of, in words."""
    one = np.ones(len(g))
    along = [g @ v / (v @ v) * v for v in (one, xhat)]
    rest, a, b = (np.linalg.norm(v) for v in (g - sum(along), *along))
    have = f"your g has {a / rest:.3f} along 1 and {b / rest:.3f} along xhat"
    return f"; next to 1 in other directions {have}"


def _kappa_of(kappa):
    def ask(rng):
        """Of x = (a, b, c) with b in the middle, xhat**3 lies along xhat: as few numbers as can
        be.
        """
        for x in 5 + 3 * rng.standard_normal(7), np.array([2.0, 5.0, 8.0]):
            gamma = rng.uniform(0.5, 2, len(x)) * rng.choice([-1, 1], len(x))
            xhat = layer_norm_forward(x, gamma, gamma)[1].xhat
            yield Call({"kappa": kappa, "xhat": xhat, "gamma": gamma}, x=x)

    def judge(dy, x, xhat, gamma, **_):
        def found(dy, eps=1e-5):
            return reference.kappa(reference.layer_norm(x, gamma, gamma, dy, eps=eps), dy, gamma)

        def right(dy, eps=1e-5):
            return abs(found(dy, eps) - kappa) <= _KAPPA_RTOL * kappa

        dy = expect_array(dy, x.shape, name="dy")
        question = "is the part that should come through 0 here?"
        expect(dy.any(), f"your dy is 0, of which no kappa can be taken; {question}")
        is_g = right(dy / gamma) and not right(dy)
        expect(not is_g, "what you return is a good g; which dy has this g?")
        nothing = f"kappa is {found(dy):.0e}: next to nothing of your g comes through"
        expect(found(dy) < 1e5 * kappa, f"{nothing}. Which part of it should?")
        why = "; with eps = 0 it would be, but eps > 0 lets a little of xhat through"
        why = why if right(dy, 0) else _in_parts(gamma * dy, xhat)
        digits = 6 if abs(found(dy) / kappa - 1) > 1e-5 else 12
        expect(right(dy), f"kappa is {found(dy):.{digits}g}, not {kappa:g}{why}")

    return each(f"kappa = {kappa:.0f}", ask, judge, unchanged=True)


def lost_in_y_solution(gamma, beta, tolerance, u=2.0**-24):
    inaccurate = u * np.abs(beta) > tolerance * np.abs(gamma)
    return inaccurate | (gamma == 0)


# Enough of them to tell one rule from another: ratios of many sizes, and the same ratio of large
# and of small numbers. u * |beta / gamma| is a factor 6 or more away from the tolerance. The error
# over 64 rows is at least a third of it (up to 1, where nothing of xhat is left), at most twice it,
# and a few u more, so rule and measurement agree.
_GAMMA = np.array([1, 0.01, -1e-4, 1e-6, 1e-8, -1e-8, 1e-6, 1, 0, 0, 1, 1, 1e-9, 3e-8, 100, 1e-6])
_BETA = np.array([-1.0, 1, 1, -1, 1, 1, 0, 1e5, 1, 0, 0.01, 1e-7, 1e-9, 3e-8, 1e10, 1e6])


def _lost_for(dtype, tolerance):
    def ask(rng):
        order = rng.permutation(len(_GAMMA))
        gamma, beta = _GAMMA[order].astype(dtype), _BETA[order].astype(dtype)
        xhat = rng.standard_normal((64, len(_GAMMA))).astype(dtype)
        y = gamma * xhat + beta
        with np.errstate(divide="ignore", invalid="ignore"):
            again = (y - beta) / gamma
        # 0 / 0 gives NaN, which no comparison accepts.
        error = np.linalg.norm(again - xhat, axis=0) / np.linalg.norm(xhat, axis=0)
        given = {"gamma": gamma, "beta": beta, "tolerance": tolerance}
        return Call(given | {"u": np.finfo(dtype).eps / 2}, error=error)

    def judge(found, gamma, beta, error, **_):
        found = expect_array(found, gamma.shape, "bool")
        wrong = [
            f"gamma = {gamma[i]:g}, beta = {beta[i]:g}: the error is {error[i]:.0e}, and your"
            f" answer is {'lost' if found[i] else 'not lost'}"
            for i in np.flatnonzero(found == (error <= tolerance))
        ]
        # All of them: two answers of which the same is said have the same features wrong.
        head = f"your answer is wrong for {len(wrong)} of {len(found)} features"
        allowed = f"(an error of {tolerance:.0e} is allowed)"
        expect(not wrong, f"{head} {allowed}: {'; '.join(wrong)}")

    title = f"{dtype}, tolerance {tolerance:.0e}".replace("e-0", "e-")
    return each(title, ask, judge, unchanged=True)


def residual_backward_solution(dy, dz_other, cache):
    dx, dgamma, dbeta = layer_norm_backward(dy, cache)
    return dx + dz_other, dx + dz_other, dgamma, dbeta


def _used_elsewhere(rng):
    (x, dy, dz_other), gamma = rng.standard_normal((3, 2, 3, 7)), rng.uniform(0.5, 2, 7)
    return Call({"dy": dy, "dz_other": dz_other, "cache": layer_norm_forward(x, gamma, gamma)[1]})


def _all_four(result, dy, dz_other, cache):
    dx, *parameters = layer_norm_backward(dy, cache)
    right = dz_other + dx, dz_other + dx, *parameters
    found = zip(expect_parts(result, 4), ("da", "db", "dgamma", "dbeta"), right)
    for part, name, expected in found:
        expect_gradient(part, name, expected)


def _three_of_four(found):
    da, db, dgamma, dbeta = expect_parts(found, 4)
    expect(np.array_equal(da, db), "da and db differ, though z = a + b treats a and b alike")
    return da, dgamma, dbeta


_RESIDUAL = Backward(
    ("dx", "dgamma", "dbeta"),
    lambda dy, cache: {"dy": dy, "dz_other": np.zeros_like(dy), "cache": cache},
    _three_of_four,
    LAYER,
)

MISTAKES = r"""
== backward-dx
rstd * => (gamma != 0) * rstd *
    Your dx is 0 where gamma is 0. Which other features of y does such an x move?
rstd * => (dy != 0) * rstd *
    Your dx is 0 where dy is 0. Which other features of y does such an x move?
== backward-parameters
leading = tuple(range(dy.ndim - 1)) => leading = None
    Your sums run over every axis, and leave one number. How many gammas has the layer?
return (dy * xhat).sum(axis=leading), dy.sum(axis=leading) => return dy * xhat, dy
    Nothing is summed in your answer. How many numbers of y does one gamma move?
(dy * xhat).sum(axis=leading), dy.sum(axis=leading)
=> tuple(a.reshape(-1, dy.shape[-1])[0] for a in (dy * xhat, dy))
    Only your first row counts.
(dy * xhat).sum(axis=leading) => dy.sum(axis=leading) * xhat.sum(axis=leading)
    Your dgamma is a product of two sums. Is it the sum of the products?
(dy * xhat).sum(axis=leading) => xhat.sum(axis=leading)
    Your dgamma is the same for every dy. What if dy is 0?
, dy.sum(axis=leading) => , np.ones_like(dy).sum(axis=leading)
    Your dbeta is the same for every dy. What if dy is 0?
== dy-with-kappa
return g / gamma => return g * gamma
    Your step from g to dy applies gamma the wrong way round.
np.sqrt(kappa**2 - 1) => kappa
    What you add to the part that survives has size kappa. Is kappa a ratio of two parts, or of the
    whole to a part?
np.sqrt(kappa**2 - 1) => (kappa - 1)
    You add the sizes of two parts that are orthogonal. How long is their sum?
np.sqrt(kappa**2 - 1) => np.sqrt(kappa**2 + 1)
    You add 1 where you should subtract it. Which of the three sides has length kappa?
- (xhat**2).mean()\n    rest -= xhat * (rest @ xhat) / (xhat @ xhat) =>
    You start from xhat**2 itself. Which two parts of it does J send to zero?
rest / np.sqrt((rest**2).mean()) => rest / np.linalg.norm(rest)
    One part has length 1, the other has entries of a given size. Measure both in the same way.
rest / np.sqrt((rest**2).mean()) => rest
    One part has the size that xhat**2 gave it. What you add must be kappa's share of that size.
+ np.sqrt(kappa**2 - 1) =>
& g / gamma => g / gamma + np.sqrt(kappa**2 - 1)
    You add a constant to dy. Which constant vector does J not see: one in dy, or one in gamma * dy?
== lost-in-y
| (gamma == 0) =>
    Where gamma and beta are both 0, your answer says that xhat can be recovered. From which number?
inaccurate | (gamma == 0) => ~(inaccurate | (gamma == 0))
    True and False have changed places in your answer.
np.abs(beta) => beta
    Your answer ignores a large negative beta. Does a rounding error depend on the sign?
np.abs(gamma) => gamma
    Your answer always counts a negative gamma as lost. Does a rounding error depend on the sign?
np.abs(beta) > tolerance => beta * np.sign(gamma) > tolerance
    Where the signs of gamma and beta differ, your answer counts nothing as lost. Does a rounding
    error depend on the sign?
u * np.abs(beta) => np.abs(beta)
    Your answer does not use the unit roundoff. How large is the rounding error of y?
beta) > tolerance * np.abs(gamma => gamma) > tolerance * np.abs(beta
    Gamma and beta have changed places in your comparison. Which of them makes y inaccurate?
u * np.abs(beta) > tolerance * np.abs(gamma) => np.abs(gamma) < tolerance
    Your answer compares gamma with the tolerance, whatever beta is. How large is the rounding error
    of y?
== residual-backward
return dx + dz_other, dx + dz_other => return dx, dx
    In your answer the gradient from z's other uses reaches neither a nor b.
return dx + dz_other, dx + dz_other => return dx * dz_other, dx * dz_other
    Where z has no other use, your da is 0. What reaches z all the same?
return dx + dz_other, dx + dz_other => return dx + dy + dz_other, dx + dy + dz_other
    In your answer dy reaches z twice, through the norm and past it. By which of these ways does z
    lead to y?
return dx + dz_other, dx + dz_other => return dx + 2 * dz_other, dx + 2 * dz_other
    Your answer counts the gradient from z's other uses twice. Does a get the whole of it, or b, or
    both?
return dx => _, dgamma, dbeta = layer_norm_backward(dy + dz_other, cache)\n    return dx
    Your dgamma or dbeta includes dz_other. Do the other uses of z pass through gamma and beta?
return dx => dz_other = layer_norm_backward(dz_other, cache)[0]\n    return dx
    Both gradients go through the norm in your answer. Do the other uses see z before or after it?
return dx + dz_other, => return dx,
    In your answer the gradient from z's other uses does not reach a.
dx + dz_other, dgamma => dx, dgamma
    In your answer the gradient from z's other uses does not reach b.
"""

# The mistakes of residual-backward are what its family cannot say: it lets z have no other use.
EXERCISES = (
    Exercise("backward-dx", 10, "implement", backward_dx_solution).with_checks(
        *_DX.layers(),
        _DX.exactly("shape (2, 3, 7)", (2, 3, 7)),
        _DX.exactly("a single row, shape (7,)", (7,)),
        _DX.stress(),
        diagnose=_DX.diagnose,
    ),
    Exercise("backward-parameters", 5, "implement", backward_parameters_solution).with_checks(
        *_PARAMETERS.layers(),
        *(_PARAMETERS.exactly(f"shape {shape}", shape) for shape in ((4, 7), (2, 3, 7))),
        # No block of up to 128 rows divides them. In any order, 131 terms and their sum of
        # random signs err by 131 u sqrt(131) at most, 2e-13 of it.
        _PARAMETERS.exactly("131 rows", (131, 7)),
        _PARAMETERS.exactly("a single row, shape (7,)", (7,)),
        each(
            "no rows, shape (0, 7)",
            lambda rng: Call({"dy": np.zeros((0, 7)), "xhat": np.zeros((0, 7))}),
            _no_rows,
        ),
        _PARAMETERS.stress(),
        diagnose=_PARAMETERS.diagnose,
    ),
    Exercise("dy-with-kappa", 20, "derive", dy_with_kappa_solution).with_checks(
        *map(_kappa_of, (3.0, 1.0, 1e4))
    ),
    Exercise("lost-in-y", 10, "derive", lost_in_y_solution).with_checks(
        _lost_for("float32", 1e-4), _lost_for("float64", 1e-9)
    ),
    Exercise("residual-backward", 5, "implement", residual_backward_solution).with_checks(
        *_RESIDUAL.layers(),
        _RESIDUAL.exactly("z has no other use", (2, 3, 7)),
        each("z is used elsewhere too", _used_elsewhere, _all_four, unchanged=True),
        _RESIDUAL.stress(),
        diagnose=_RESIDUAL.diagnose,
    ),
)
