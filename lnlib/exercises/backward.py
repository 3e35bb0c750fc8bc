"""What the exercises that ask for a backward have in common: checks in layers, and families of mistakes."""

import itertools
from typing import Callable, NamedTuple

import numpy as np

from .. import reference
from ..diagnose import LAYER_NORM, Base, Family, Known, diagnose
from ..layernorm import layer_norm_forward, rms_norm_backward, rms_norm_forward
from . import call_unchanged, expect, expect_close, of_small_error

# Tolerance of the gradients below. Of the rows drawn here g keeps more than a hundredth in dx (kappa < 100),
# sums have at most 7 terms, and about ten roundings meet: a right answer is within 100 * 7 * 10 * 2**-53 = 8e-13,
# or 100 * 7 * 10 * 2**-24 = 4e-4 where it was computed in float32. The smallest known mistake is worth more than 1e-7
# on ordinary rows, and a good part of dx on the stress rows, where float32 shows it too.
_RTOL = {8: 1e-12, 4: 5e-4}
_NAMES = ("dx", "dgamma", "dbeta")


def _draw(rng, shape, dtype=np.float64):
    """x, dy and gamma: rows whose mean is not 0 and whose s is not 1, gamma of mixed signs."""
    x, dy = 5 + 3 * rng.standard_normal(shape), rng.standard_normal(shape)
    gamma = rng.uniform(0.5, 2, shape[-1]) * rng.choice([-1, 1], shape[-1])
    return [a.astype(dtype) for a in (x, dy, gamma)]


def _exact(x, gamma, dy, eps):
    exact = reference.layer_norm(x, gamma, gamma, dy, eps=eps)
    return [reference.to_float64(a) for a in (exact.dx, exact.dgamma, exact.dbeta)]


def problem(rng, shape=(2, 3, 7)):
    """dy, cache and the exact (dx, dgamma, dbeta) of ordinary rows of layer norm."""
    x, dy, gamma = _draw(rng, shape)
    return dy, layer_norm_forward(x, gamma, gamma)[1], _exact(x, gamma, dy, 1e-5)


def _rtol(*arrays):
    return _RTOL[8 if all(np.asarray(a).dtype.itemsize >= 8 for a in arrays) else 4]


def judge(found, name, expected):
    """expect_close, to the digits of the dtype that ``found`` has."""
    expect_close(found, expected, _rtol(found), name)


class Norm(NamedTuple):
    """What a backward may be the backward of.

    forward : function (x, gamma, beta, eps=1e-5) -> (y, cache); takes complex numbers, for the complex step.
    right : function (x, gamma, dy, eps) -> (dx, dgamma, dbeta), as far as they are asked for.
    family : its mistakes.
    centred : whether a mean is subtracted, so that a shift of a row changes no y.
    hard : (description, change of x) of rows on which mistakes show that others hide.
    """

    forward: Callable
    right: Callable
    family: Family
    centred: bool
    hard: tuple


class Backward(NamedTuple):
    """How the candidates of an exercise are called as a backward.

    names : which of dx, dgamma and dbeta they return.
    arguments : function (dy, cache) -> dict of their arguments, in order.
    outputs : function (what was returned, the arguments) -> (dx, dgamma, dbeta), None for what is not there;
        raises Mismatch.
    norm : what it is the backward of.
    shapes : of x, in the first check; the first one in all the others.
    """

    names: tuple
    arguments: Callable
    outputs: Callable
    norm: Norm
    shapes: tuple = ((2, 3, 7), (7,))

    def of(self, candidate):
        """The candidate as a function (dy, cache) -> (dx, dgamma, dbeta)."""
        def backward(dy, cache):
            given = self.arguments(dy, cache)
            return self.outputs(candidate(*given.values()), given)
        return backward

    def diagnose(self, candidate):
        """Which mistake the candidate is, or None."""
        return diagnose(self.of(candidate), self.norm.family)

    def layers(self):
        """Checks from the outside in: shapes, dtypes, arguments, one direction, invariants."""
        invariant = (("dx adds up to 0 along a row", self._sum) if self.norm.centred
                     else ("dx has no part along x, at eps = 0", self._orthogonal))
        dx_only = invariant, ("with gamma = 1, dx is its own adjoint", self._adjoint)
        scaled = "rows shifted and scaled" if self.norm.centred else "rows scaled"
        return (("it runs, and shapes fit", self._shapes), ("numbers of the right kind", self._dtypes),
                ("no argument is changed", self._unchanged), ("the derivative in one direction", self._direction),
                *(dx_only if "dx" in self.names else ()), (scaled, self._scaled))

    def stress(self):
        """The last check: rows on which eps, a large mean or a large scale counts."""
        return "rows that are hard", self._stress

    def _given(self, candidate, dy, cache):
        found = self.of(candidate)(dy, cache)
        return {name: a for name, a in zip(_NAMES, found) if name in self.names}

    def _shapes(self, candidate, rng):
        for shape in self.shapes:
            x, dy, gamma = _draw(rng, shape)
            _, cache = self.norm.forward(x, gamma, gamma)
            for name, a in self._given(candidate, dy, cache).items():
                expect(a is not None, f"{name} is None; is a return missing?")
                right = shape if name == "dx" else shape[-1:]
                expect(np.shape(a) == right,
                       f"for dy of shape {shape} your {name} has shape {np.shape(a)}, expected {right}")

    def _dtypes(self, candidate, rng):
        for dtype in (np.float64, np.float32):
            x, dy, gamma = _draw(rng, self.shapes[0], dtype)
            _, cache = self.norm.forward(x, gamma, gamma)
            for name, a in self._given(candidate, dy, cache).items():
                found = np.asarray(a).dtype
                expect(found in (np.float32, np.float64),
                       f"for dy of dtype {np.dtype(dtype)} your {name} has dtype {found}, "
                       "expected float32 or float64")
                expect(np.isfinite(a).all(), f"your {name} contains NaN or Inf, on ordinary rows")

    def _unchanged(self, candidate, rng):
        x, dy, gamma = _draw(rng, self.shapes[0])
        call_unchanged(candidate, **self.arguments(dy, self.norm.forward(x, gamma, gamma)[1]))

    def _direction(self, candidate, rng):
        x, dy, gamma = _draw(rng, self.shapes[0])
        _, cache = self.norm.forward(x, gamma, gamma)
        found = self._given(candidate, dy, cache)
        args = {"dx": x, "dgamma": gamma, "dbeta": gamma}
        step = {name: rng.standard_normal(a.shape) * (name in found) for name, a in args.items()}
        # The complex step: no difference is taken, so nothing is truncated.
        moved = self.norm.forward(*(a + 1e-30j * step[name] for name, a in args.items()))[0]
        slope = (dy * moved.imag).sum() / 1e-30
        terms = [np.asarray(a) * step[name] for name, a in found.items()]
        predicted = sum(term.sum() for term in terms)
        # A sum may cancel; its error is that of its terms.
        size = max(abs(slope), *map(np.linalg.norm, terms))
        expect(abs(predicted - slope) <= _rtol(*found.values()) * size,
               f"moving {' and '.join(name[1:] for name in found)} a little changes the loss at a rate of "
               f"{slope:.6g}; your {' and '.join(found)} predict{'s' if len(found) == 1 else ''} {predicted:.6g}"
               + of_small_error(abs(predicted - slope) / size, *found.values()))

    def _sum(self, candidate, rng):
        x, dy, gamma = _draw(rng, self.shapes[0])
        dx = np.asarray(self._given(candidate, dy, self.norm.forward(x, gamma, gamma)[1])["dx"])
        total, size = np.abs(dx.sum(axis=-1)).max(), np.linalg.norm(dx)
        expect(total <= _rtol(dx) * size, f"a row of your dx adds up to {total:.1e}, but a shift of a whole row "
                                          "changes no y")

    def _orthogonal(self, candidate, rng):
        x, dy, gamma = _draw(rng, self.shapes[0])
        dx = np.asarray(self._given(candidate, dy, self.norm.forward(x, gamma, gamma, 0)[1])["dx"])
        along = np.abs((dx * x).sum(axis=-1)).max() / np.linalg.norm(x)
        expect(along <= _rtol(dx) * np.linalg.norm(dx), "at eps = 0 your dx has a part along x, but a row times a "
                                                        "number has the same y")

    def _adjoint(self, candidate, rng):
        x, a, _ = _draw(rng, self.shapes[0])
        b = rng.standard_normal(a.shape)
        _, cache = self.norm.forward(x, np.ones(x.shape[-1]), np.zeros(x.shape[-1]))
        of_a, of_b = (np.asarray(self._given(candidate, dy, cache)["dx"]) for dy in (a, b))
        left, right = b * of_a, a * of_b
        expect(abs(left.sum() - right.sum()) <= _rtol(of_a, of_b) * np.linalg.norm(left),
               "with gamma = 1 the Jacobian is symmetric, but a . dx(b) and b . dx(a) differ")

    def _scaled(self, candidate, rng):
        x, dy, gamma = _draw(rng, self.shapes[0])
        before, after = (self._given(candidate, dy, self.norm.forward(rows, gamma, gamma, 0)[1])
                         for rows in (x, 4 * x + 3 * self.norm.centred))
        for name, a in before.items():
            factor, what = (4, "fall to a quarter") if name == "dx" else (1, "stay the same")
            error = np.linalg.norm(np.asarray(a) - factor * np.asarray(after[name]))
            expect(error <= _rtol(a) * np.linalg.norm(a),
                   f"with {'4 x + 3' if self.norm.centred else '4 x'} in the place of x, and eps = 0, {name} should "
                   f"{what}; yours does not")

    def _stress(self, candidate, rng):
        for what, change in self.norm.hard:
            x, dy, gamma = _draw(rng, (4, 7))
            _, cache = self.norm.forward(change(x), gamma, gamma)
            right = self.norm.right(change(x), gamma, dy, 1e-5)
            for name, expected in zip(_NAMES, right):
                if name in self.names:
                    with np.errstate(all="ignore"):  # 0 / 0 in a constant row is seen in the result
                        found = self._given(candidate, dy, cache)[name]
                    judge(found, f"{name} ({what})", expected)


# ---- Families of mistakes beside layer norm's ---------------------------------------------------------

def _mean(a):
    return a.mean(axis=-1, keepdims=True)


def _over_rows(a):
    return a.mean(axis=tuple(range(a.ndim - 1)), keepdims=True)


def _over_all(a):
    return a.sum() / a.shape[-1]


def _pairs(base, groups):
    """The right base, every single replacement, and every pair from different groups."""
    yield (), base
    for names, parts in itertools.chain(*groups):
        yield names, base._replace(**parts)
    for one, other in itertools.combinations(groups, 2):
        for (names, parts), (more_names, more) in itertools.product(one, other):
            yield names + more_names, base._replace(**{**parts, **more})


_TEXTS = {known.name: known for known in LAYER_NORM.known}
_AXES = [(("batch-axis",), {"mean1": _over_rows, "mean2": _over_rows}),
         (("whole-tile",), {"mean1": _over_all, "mean2": _over_all}),
         (("no-axis",), {"mean1": np.mean, "mean2": np.mean})]


def _table(**texts):
    """Layer norm's mistakes, without their backwards, with other words for some of them and some more."""
    words = {name.replace("_", "-"): wrong for name, wrong in texts.items()}
    known = {name: k._replace(wrong=words.get(name, k.wrong), backward=None) for name, k in _TEXTS.items()}
    return tuple((known | {name: Known(name, wrong) for name, wrong in words.items() if name not in known}).values())


def _rms_bases(dy, cache):
    xhat, r, gamma = cache.xhat, cache.rstd, cache.gamma
    x = xhat / r
    without_eps = 1 / np.sqrt(_mean(x * x))
    yield from _pairs(Base(dy, gamma, r, xhat, xhat, _mean, _mean), [
        [(("eps-dropped",), {"r": without_eps, "outer": x * without_eps, "inner": x * without_eps}),
         (("centred-for-xhat",), {"outer": x, "inner": x}), (("centred-once",), {"inner": x}),
         (("extra-rstd-in-projection",), {"outer": r * xhat}), (("y-for-xhat",), {"outer": gamma * xhat})],
        [(("missing-rstd",), {"r": np.ones_like(r)}), (("variance-for-std",), {"r": r * r})],
        [(("gamma-twice",), {"dy": gamma * dy}), (("gamma-missing",), {"gamma": np.ones_like(gamma)})],
        _AXES])


def _rms_probe(seed, shape, sigma):
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((2, *shape))
    return dy, rms_norm_forward(sigma * x, rng.uniform(0.5, 2, shape[-1]))[1]


#: Candidates (dy, cache) -> (dx, dgamma), as :func:`lnlib.layernorm.rms_norm_backward`, of matrices.
RMS_NORM = Family(("dx", "dgamma"), (_rms_probe(1, (5, 7), 3.0), _rms_probe(2, (3, 11), 3e-3)), rms_norm_backward,
                  _table(frozen_statistics="the mean square is treated as a constant",
                         missing_projection="the path through the mean square is left out",
                         centred_for_xhat="x is used as xhat in the projection, both times",
                         centred_once="x is used as xhat in the projection, once",
                         dgamma_from_centred="dgamma is summed from dy * x"),
                  _rms_bases, mean=0)


def _rms_right(x, gamma, dy, eps):
    return *rms_norm_backward(dy, rms_norm_forward(x, gamma, eps)[1]), None


class OutsideCache(NamedTuple):
    """What a backward with eps outside the root is given; gamma is None where there is none."""

    x: np.ndarray
    gamma: np.ndarray | None
    eps: float


def _outside_parts(cache):
    c = cache.x - _mean(cache.x)
    sigma = np.sqrt(_mean(c * c))
    return c, sigma, sigma + cache.eps


def _outside_right(dy, cache):
    c, sigma, s = _outside_parts(cache)
    g = dy if cache.gamma is None else cache.gamma * dy
    return (g - _mean(g) - c / sigma * _mean(g * c / s)) / s,


def _outside_bases(dy, cache):
    c, sigma, s = _outside_parts(cache)
    inside = np.sqrt(sigma**2 + cache.eps)
    gamma = [] if cache.gamma is None else [[(("gamma-twice",), {"dy": cache.gamma * dy})]]
    yield from _pairs(Base(dy, cache.gamma, 1 / s, c / sigma, c / s, _mean, _mean), [
        [(("only-s-replaced",), {"outer": c / s}),
         (("eps-inside",), {"r": 1 / inside, "outer": c / inside, "inner": c / inside}),
         (("eps-dropped",), {"r": 1 / sigma, "outer": c / sigma, "inner": c / sigma}),
         (("upside-down",), {"outer": c * sigma / s**2}), (("centred-for-xhat",), {"outer": c, "inner": c}),
         (("centred-once",), {"outer": c})],
        [(("missing-rstd",), {"r": np.ones_like(s)}), (("variance-for-std",), {"r": 1 / s**2})], *gamma, _AXES])


def outside_family(with_gamma):
    """Candidates (dy, OutsideCache) -> (dx,), eps added outside the root, with gamma or without."""
    probes = []
    for seed, shape, sigma in ((1, (3, 4, 7), 3.0), (2, (2, 3, 11), 0.1)):
        rng = np.random.default_rng(seed)
        x, dy = rng.standard_normal((2, *shape))
        gamma = rng.uniform(0.5, 2, shape[-1]) if with_gamma else None
        probes.append((dy, OutsideCache(5 + sigma * x, gamma, 0.3)))
    return Family(("dx",), tuple(probes), _outside_right,
                  _table(only_s_replaced="layer norm's formula with another s put in; ds/dx changes as well",
                         eps_inside="it is the one for eps inside the root",
                         upside_down="the new factor is upside down"),
                  _outside_bases)


# ---- What backwards are backwards of -----------------------------------------------------------------

def _one_row(value):
    """Rows of which the second is constant."""
    return lambda x: np.where(np.arange(len(x))[:, None] == 1, value, x)


LAYER = Norm(layer_norm_forward, _exact, LAYER_NORM, True, (
    ("sigma comparable with sqrt(eps)", lambda x: 1 + 1e-3 * x), ("rows a million sigma from 0", lambda x: x + 3e6),
    ("sigma a million", lambda x: 1e6 * x), ("a constant row among others", _one_row(5.0))))

RMS = Norm(lambda x, gamma, beta, eps=1e-5: rms_norm_forward(x, gamma, eps), _rms_right, RMS_NORM, False, (
    ("s comparable with sqrt(eps)", lambda x: 1e-3 * x), ("numbers of a million", lambda x: 1e6 * x),
    ("a row of zeros among others", _one_row(0.0))))


def outside(with_gamma):
    """eps added outside the root, with gamma or without. Where the mean is large, x - mean is what errs, and which
    dx is right depends on it; so there is no such row here."""
    def forward(x, gamma, beta, eps=1e-5):
        scale = gamma if with_gamma else None
        c, _, s = _outside_parts(OutsideCache(x, scale, eps))
        return (gamma if with_gamma else 1) * c / s, OutsideCache(x, scale, eps)

    def right(x, gamma, dy, eps):
        return *_outside_right(dy, OutsideCache(x, gamma if with_gamma else None, eps)), None, None

    return Norm(forward, right, outside_family(with_gamma), True, (
        ("sigma comparable with eps", lambda x: 1e-5 * x), ("sigma a million", lambda x: 1e6 * x)))
