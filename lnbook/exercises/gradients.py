"""What the exercises that ask for a backward have in common: checks in layers, from shapes to rows
that are hard.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lnbook.forms import eps_outside_forward
from lnlib import reference
from lnlib.layernorm import layer_norm_forward, rms_norm_backward, rms_norm_forward
from normcheck.mistakes import LAYER_NORM, RMS_NORM, Family, diagnose, outside_family
from normcheck.mistakes.fit import OutsideCache

from .expect import expect, expect_close, of_small_error, one_array
from .run import Call, Check, each, plainly, reply, unchanged

# Tolerance of the gradients below. Of the rows drawn here g keeps more than a hundredth in dx
# (kappa < 100), sums have at most 7 terms, and about ten roundings meet: a right answer is within
# 100 * 7 * 10 * 2**-53 = 8e-13, or 100 * 7 * 10 * 2**-24 = 4e-4 where it was computed in float32.
# The smallest known mistake is worth more than 1e-7 on ordinary rows, and a good part of dx on the
# stress rows, where float32 shows it too.
_RTOL = {8: 1e-12, 4: 5e-4}
_NAMES = ("dx", "dgamma", "dbeta")


def _draw(rng, shape, dtype=np.float64):
    """x, dy and gamma: rows whose mean is not 0 and whose s is not 1, gamma of mixed signs."""
    x, dy = 5 + 3 * rng.standard_normal(shape), rng.standard_normal(shape)
    gamma = rng.uniform(0.5, 2, shape[-1]) * rng.choice([-1, 1], shape[-1])
    return [a.astype(dtype) for a in (x, dy, gamma)]


def _exact(x, gamma, dy):
    exact = reference.layer_norm(x, gamma, gamma, dy)
    return [reference.to_float64(a) for a in (exact.dx, exact.dgamma, exact.dbeta)]


def _rtol(*arrays):
    return _RTOL[8 if all(np.asarray(a).dtype.itemsize >= 8 for a in arrays) else 4]


def expect_gradient(found, name, expected):
    """:func:`lnbook.exercises.expect_close`, to the digits of the dtype that ``found`` has."""
    expect_close(found, expected, _rtol(found), name)


class Norm(NamedTuple):
    """What a backward may be the backward of.

    forward : function (x, gamma, beta, eps=1e-5) -> (y, cache); takes complex numbers, for the
    complex step. right : function (x, gamma, dy) -> (dx, dgamma, dbeta), as far as they are asked
    for, at the eps of ``forward``. family : its mistakes. centred : whether a mean is subtracted,
    so that a shift of a row changes no y. hard : (description, change of x) of rows on which
    mistakes show that others hide.
    """

    forward: Callable
    right: Callable
    family: Family
    centred: bool
    hard: tuple


def of_cache(names: str) -> Callable:
    """What has, of (dy, cache), dy and these fields of the cache as an answer's arguments."""
    return lambda dy, cache: {
        name: dy if name == "dy" else getattr(cache, name) for name in names.split()
    }


def only_dx(found):
    """The outputs of an answer that returns dx alone."""
    return found, None, None


class Backward(NamedTuple):
    """How the answers to an exercise are called as a backward.

    names : which of dx, dgamma and dbeta they return. arguments : function (dy, cache) -> dict of
    their arguments, in order. outputs : function (result of a call) -> (dx, dgamma, dbeta), None
    for what is not there; raises Mismatch. norm : what it is the backward of. shapes : of x, in the
    first check; the first one in all the others. call : as in :class:`lnbook.exercises.run.Check`.
    """

    names: tuple
    arguments: Callable
    outputs: Callable
    norm: Norm
    shapes: tuple = ((2, 3, 7), (7,))
    call: Callable = plainly

    def diagnose(self, answer):
        """Which mistake the answer is, or None."""

        def backward(dy, cache):
            return self.outputs(reply(self.call, answer, self.arguments(dy, cache))[0])

        return diagnose(backward, self.norm.family)

    def layers(self):
        """Checks from the outside in: shapes, dtypes, arguments, one direction, invariants."""
        shape, centred = self.shapes[0], self.norm.centred

        def ordinary(rng):
            return self._call(rng, shape, rng=rng)

        def of_each_shape(rng):
            return [self._call(rng, shape) for shape in self.shapes]

        def of_each_dtype(rng):
            return [self._call(rng, shape, dtype) for dtype in (np.float64, np.float32)]

        def at_eps_of_0(rng):
            return self._call(rng, shape, eps=0)

        checks = [
            self._each("it runs, and shapes fit", of_each_shape, self._shapes),
            self._each("numbers of the right kind", of_each_dtype, self._dtypes),
            unchanged("no argument is changed", ordinary)._replace(call=self.call),
            self._each("the derivative in one direction", ordinary, self._direction),
        ]
        if "dx" in self.names:
            if centred:
                invariant = self._each("dx adds up to 0 along a row", ordinary, self._sum)
            else:
                title = "dx has no part along x, at eps = 0"
                invariant = self._each(title, at_eps_of_0, self._orthogonal)
            title = "with gamma = 1, dx is its own adjoint"
            checks += [invariant, Check(title, self._two_upstreams, self._adjoint, self.call)]
        title = "rows shifted and scaled" if centred else "rows scaled"
        return *checks, Check(title, self._two_scales, self._scaled, self.call)

    def stress(self):
        """The last check: rows on which eps, a large mean or a large scale counts; and dx is not 0
        where gamma or dy is.
        """

        def ask(rng):
            for what, change in self.norm.hard:
                yield self._call(rng, (4, 7), change=change, what=what)
            for zero, name in ((1, "dy"), (2, "gamma")):
                yield self._call(rng, (4, 7), zero=zero, what=f"with a {name} of 0")

        return self._each("rows that are hard", ask, self._stress)

    def exactly(self, title, shape):
        """A check against the right gradients of ordinary rows; no argument may change."""
        return self._each(
            title, lambda rng: self._call(rng, shape, what=f"x of shape {shape}"), self._stress
        )._replace(unchanged=True)

    def _each(self, title, ask, judge):
        return each(title, ask, judge, call=self.call)

    def _gradients(self, result):
        return {name: a for name, a in zip(_NAMES, self.outputs(result)) if name in self.names}

    def _call(
        self, rng, shape, dtype=np.float64, /, change=lambda x: x, zero=None, eps=1e-5, **about
    ):
        x, dy, gamma = drawn = _draw(rng, shape, dtype)
        if zero is not None:
            drawn[zero][..., 2] = 0
        x = change(x)
        _, cache = self.norm.forward(x, gamma, gamma, eps)
        return Call(self.arguments(dy, cache), dy=dy, x=x, gamma=gamma, **about)

    def _shapes(self, result, x, **_):
        for name, a in self._gradients(result).items():
            expect(a is not None, f"{name} is None; is a return missing?")
            right = x.shape if name == "dx" else x.shape[-1:]
            found = one_array(a, f"your {name}").shape
            both = f"your {name} has shape {found}, expected {right}"
            expect(found == right, f"for dy of shape {x.shape} {both}")

    def _dtypes(self, result, x, **_):
        for name, a in self._gradients(result).items():
            found = np.asarray(a).dtype
            both = f"for dy of dtype {x.dtype} your {name} has dtype {found}"
            expect(found in (np.float32, np.float64), f"{both}, expected float32 or float64")
            expect(np.isfinite(a).all(), f"your {name} contains NaN or Inf, on ordinary rows")

    def _direction(self, result, x, dy, gamma, rng, **_):
        found, args = self._gradients(result), {"dx": x, "dgamma": gamma, "dbeta": gamma}
        step = {name: rng.standard_normal(a.shape) * (name in found) for name, a in args.items()}
        # The complex step: no difference is taken, so nothing is truncated.
        moved = self.norm.forward(*(a + 1e-30j * step[name] for name, a in args.items()))[0]
        slope = (dy * moved.imag).sum() / 1e-30
        terms = [np.asarray(a) * step[name] for name, a in found.items()]
        predicted = sum(term.sum() for term in terms)
        # A sum may cancel; its error is that of its terms.
        size = max(abs(slope), *map(np.linalg.norm, terms))
        gap = abs(predicted - slope)
        moved, yours = " and ".join(name[1:] for name in found), " and ".join(found)
        said = f"moving {moved} a little changes the loss at a rate of {slope:.6g}; your {yours}"
        said = f"{said} predict{'s' if len(found) == 1 else ''} {predicted:.6g}"
        small = of_small_error(gap / size, *found.values())
        expect(gap <= _rtol(*found.values()) * size, said + small)

    def _sum(self, result, **_):
        dx = np.asarray(self._gradients(result)["dx"])
        total, size = np.abs(dx.sum(axis=-1)).max(), np.linalg.norm(dx)
        shift = "a shift of a whole row changes no y"
        expect(total <= _rtol(dx) * size, f"a row of your dx adds up to {total:.1e}, but {shift}")

    def _orthogonal(self, result, x, **_):
        dx = np.asarray(self._gradients(result)["dx"])
        along = np.abs((dx * x).sum(axis=-1)).max() / np.linalg.norm(x)
        same = "a row times a positive number has the same y"
        small = along <= _rtol(dx) * np.linalg.norm(dx)
        expect(small, f"at eps = 0 your dx has a part along x, but {same}")

    def _two_upstreams(self, rng):
        x, a, _ = _draw(rng, self.shapes[0])
        b, D = rng.standard_normal(a.shape), x.shape[-1]
        _, cache = self.norm.forward(x, np.ones(D), np.zeros(D))
        return [Call(self.arguments(dy, cache), dy=dy) for dy in (a, b)]

    def _adjoint(self, found, asked):
        of_a, of_b = (np.asarray(self._gradients(result)["dx"]) for result in found)
        left, right = asked[1].about["dy"] * of_a, asked[0].about["dy"] * of_b
        same = abs(left.sum() - right.sum()) <= _rtol(of_a, of_b) * np.linalg.norm(left)
        symmetric = "with gamma = 1 the Jacobian is symmetric"
        expect(same, f"{symmetric}, but a . dx(b) and b . dx(a) differ")

    def _two_scales(self, rng):
        x, dy, gamma = _draw(rng, self.shapes[0])
        return [
            Call(self.arguments(dy, self.norm.forward(rows, gamma, gamma, 0)[1]))
            for rows in (x, 4 * x + 3 * self.norm.centred)
        ]

    def _scaled(self, found, asked):
        before, after = map(self._gradients, found)
        for name, a in before.items():
            factor, what = (4, "fall to a quarter") if name == "dx" else (1, "stay the same")
            error = np.linalg.norm(np.asarray(a) - factor * np.asarray(after[name]))
            rows = "4 x + 3" if self.norm.centred else "4 x"
            said = f"with {rows} in the place of x, and eps = 0, {name} should {what}"
            expect(error <= _rtol(a) * np.linalg.norm(a), f"{said}; yours does not")

    def _stress(self, result, x, dy, gamma, what, **_):
        found = self._gradients(result)
        for name, expected in zip(_NAMES, self.norm.right(x, gamma, dy)):
            if name in self.names:
                expect_gradient(found[name], f"{name} ({what})", expected)


# ---- What backwards are backwards of


def _one_row(value):
    """Rows of which the second is constant."""
    return lambda x: np.where(np.arange(len(x))[:, None] == 1, value, x)


def _million(x):
    return 1e6 * x


_HARD = (
    ("sigma comparable with sqrt(eps)", lambda x: 1 + 1e-3 * x),
    ("rows a million sigma from 0", lambda x: x + 3e6),
    ("sigma a million", _million),
    ("a constant row among others", _one_row(5.0)),
)
LAYER = Norm(layer_norm_forward, _exact, LAYER_NORM, True, _HARD)

RMS = Norm(
    lambda x, gamma, beta, eps=1e-5: rms_norm_forward(x, gamma, eps),
    lambda x, gamma, dy: rms_norm_backward(dy, rms_norm_forward(x, gamma)[1]),
    RMS_NORM,
    False,
    (
        ("s comparable with sqrt(eps)", lambda x: 1e-3 * x),
        ("numbers of a million", _million),
        ("a row of zeros among others", _one_row(0.0)),
    ),
)


def outside(with_gamma):
    """eps added outside the root, with gamma or without. Where the mean is large, x - mean is what
    errs, and which dx is right depends on it; so there is no such row here.
    """

    known = outside_family(with_gamma)

    def forward(x, gamma, beta, eps=1e-5):
        y, cache = eps_outside_forward(x, eps), OutsideCache(x, gamma if with_gamma else None, eps)
        return gamma * y if with_gamma else y, cache

    def right(x, gamma, dy):
        return known.right(dy, forward(x, gamma, gamma)[1])

    hard = ("sigma comparable with eps", lambda x: 1e-5 * x), ("sigma a million", _million)
    return Norm(forward, right, known, True, hard)
