r"""Tests of a backward: losses and invariants, from those that test almost nothing to one that is
enough.

A test *kills* a mistake when it fails on a backward with it; a mistake that survives is one that
the test would not have told you about. Running every mistake through every test gives the kill
matrix of chapter 5.

Tests compare with numeric gradients of the forward, or test an invariant; none of them uses the
backward of :mod:`lnlib.layernorm`.
"""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from lnlib import validation
from lnlib.gradcheck import adjoint_test, central_difference, direction_test
from lnlib.layernorm import layer_norm_forward
from normcheck.mistakes.catalogue import MUTANTS, forward_keeping_x
from normcheck.mistakes.change import Mistake, table


class GradientTest(NamedTuple):
    """One way to test a backward.

    * ``id``: str, kebab-case.
    * ``title``: str, one line: the data, and what is compared with what.
    * ``run``: function (backward) -> bool. True: the check passes, the backward survives. It raises
      what the backward raises (the arrays it gets are read-only), and ValueError for shapes that do
      not broadcast.
    """

    id: str
    title: str
    run: Callable


# ---- The tests
#
# Tolerances. Errors are measured against the size of the terms that are added up (``sizes``),
# not against the result: the right dx may be zero.
#
# TOLERANCE, for central differences. With h = (12 u)**(1/3) lengths of x, 1e-5, truncation and
# rounding are each worth about h**2 = 1e-10, also at sigma = 1e-3: h is a power of two, so that
# x + h and x - h lose nothing. A mistake in the formula, at D = 7, is worth 3e-3 or more (one in
# eps where sigma is 1e-3), and 1e-5 lies between. EXACT, for what has no truncation error
# (invariants, complex step): rounding is D u = 1e-15 times a condition number of at most a hundred
# or so; a factor 100 on top.
TOLERANCE = 1e-5
EXACT = 1e-11


_TITLES = {row["id"]: row["title"] for row in table("gradient_tests.csv")}


def gradient_test(id, run):
    """The test with this id, whose title is in gradient_tests.csv."""
    return GradientTest(id, _TITLES[id].format(EXACT=EXACT), run)


@functools.cache  # the numeric gradients do not depend on the mutant
def problem(shape=(3, 4, 7), loss="random", unit=False, mean=30.0, sigma=10.0, eps=1e-5):
    """A probe of pairwise different dimensions, mean far from 0, s not 1 and gamma of mixed signs.

    ``loss``: the sum of w * y with fixed random weights w, of y ("sum") or of y**2 / 2 ("squares").
    ``unit``: gamma is 1 and beta 0. ``mean`` None: rows have mean 0 and s = 1 already. In the probe
    ``gradients`` is what is right, and ``sizes`` has the norms of the terms of each.
    """
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((2, *shape))
    gamma, beta = rng.standard_normal((2, shape[-1]))
    if mean is None:
        x = (x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True)
    else:
        x = mean + sigma * x
    if unit:
        gamma, beta = np.ones_like(gamma), np.zeros_like(beta)
    y, cache = forward_keeping_x(x, gamma, beta, eps)
    dy, args = {"random": w, "sum": np.ones_like(y), "squares": y}[loss], (x, gamma, beta)

    def forward(*given):
        return layer_norm_forward(*given, eps)[0]

    gradients = tuple(
        central_difference(lambda v: forward(*args[:k], v, *args[k + 1 :]), args[k], dy=dy)
        for k in range(3)
    )
    sizes = tuple(map(np.linalg.norm, (cache.rstd * dy * gamma, dy * cache.xhat, dy)))
    for array in (x, dy, *cache[:3], *gradients):
        array.setflags(write=False)  # shared by all mutants
    return SimpleNamespace(
        args=args, eps=eps, dy=dy, forward=forward, cache=cache, gradients=gradients, sizes=sizes
    )


def _within(tolerance):
    """Whether shapes agree, and numbers in the norm of the whole tensor, to this tolerance."""
    return lambda a, b, size: a.shape == b.shape and np.linalg.norm(a - b) <= tolerance * size


def numeric(id, agree=_within(TOLERANCE), outputs=slice(None), **settings):
    """A test against central differences on one probe: ``agree(found, numeric, size of the
    terms)``.
    """

    def agrees(backward):
        p = problem(**settings)
        compared = zip(backward(p.dy, p.cache), p.gradients, p.sizes)
        return all(agree(*each) for each in list(compared)[outputs])

    return gradient_test(id, agrees)


def _none_along(direction, **settings):
    """A test that no row's dx has a part along this function of a problem."""

    def is_zero(backward):
        p = problem(**settings)
        along = (backward(p.dy, p.cache)[0] * direction(p)).sum(axis=-1)
        return bool(np.abs(along).max() <= EXACT * p.sizes[0])

    return is_zero


def _shapes_and_dtypes(backward):
    x, dy = np.random.default_rng(5).standard_normal((2, 3, 4, 7)).astype(np.float32)
    gamma, beta = np.ones((2, 7), np.float32)
    found = backward(dy, forward_keeping_x(x, gamma, beta)[1])
    return [(a.shape, a.dtype) for a in found] == [(a.shape, a.dtype) for a in (x, gamma, beta)]


def _adjoint(backward):
    p = problem()
    x, *parameters = p.args
    v = np.random.default_rng(6).standard_normal(x.shape)

    def jvp(v):  # the complex step in the direction v: no difference, so no truncation error
        return p.forward(x + 1e-30j * v, *parameters).imag / 1e-30

    return adjoint_test(jvp, lambda dy: backward(dy, p.cache)[0], v, p.dy) <= EXACT


def _one_direction(backward):
    p, rng = problem(), np.random.default_rng(6)
    gradients = backward(p.dy, p.cache)
    if any(a.shape != g.shape for a, g in zip(p.args, gradients)):
        return False  # a product that broadcasts would hide (1, D), and even (T, D)
    return direction_test(p.forward, p.args, p.dy, gradients, rng=rng) <= EXACT


def _rows_are_independent(backward):
    p = problem()
    x, *parameters = p.args
    x, dy = x.copy(), p.dy.copy()
    x[1, 2], dy[1, 2] = x[1, 2] ** 2 / 10, dy[1, 2] + 1
    cache = forward_keeping_x(x, *parameters, p.eps)[1]
    change = backward(dy, cache)[0] - backward(p.dy, p.cache)[0]
    change[1, 2] = 0
    return bool(np.abs(change).max() <= EXACT * p.sizes[0])


#: The tests of chapter 5, from losses that test almost nothing to one that is enough.
TESTS = (
    numeric("sum-y", loss="sum", unit=True),
    numeric("sum-y2", loss="squares", unit=True),
    numeric("ones-random-gamma", loss="sum"),
    numeric("gamma-one", unit=True),
    numeric("random"),
    numeric("square", shape=(7, 7)),
    numeric("single-row", shape=(1, 7)),
    numeric("two-rows-2d", shape=(2, 7)),
    numeric("standardised", mean=None, eps=0.0),
    # 1e-2 is what half precision is often given. The part of a random g along one direction is
    # worth 1 / sqrt(D) = 3.6e-2 of g: leaving it out, or half of it, is just seen. A factor D / (D
    # - 1) on it is not.
    numeric("wide-loose", _within(1e-2), shape=(6, 768)),
    numeric("small-sigma", sigma=1e-3),
    numeric("dgamma-dbeta-only", outputs=slice(1, None)),
    numeric("broadcasting-compare", lambda a, b, size: np.abs(a - b).max() <= TOLERANCE * size),
    gradient_test("sum-dx-zero", _none_along(lambda p: 1)),
    # With eps > 0 the right answer is r eps / s**2 mean(g xhat), not 0.
    gradient_test("dx-orthogonal-xhat", _none_along(lambda p: p.cache.xhat, eps=0.0)),
    gradient_test("shape", _shapes_and_dtypes),
    gradient_test("row-independence", _rows_are_independent),
    gradient_test("adjoint", _adjoint),
    gradient_test("one-direction", _one_direction),
)


def kill_matrix(mutants=MUTANTS, tests=TESTS):
    """Run every mutant through every test: a bool array (mutants, tests), True where it is found.

    ``tests``: ``TESTS``, ``RECIPES`` or your own, of :class:`GradientTest`.
    """
    for mutant in (mutants := validation.require_several("mutants", mutants)):
        validation.require_kind("mutants", mutant, Mistake, "some of the class Mistake")
        validation.require_callable("mutants", mutant.backward)
    for test in (tests := validation.require_several("tests", tests)):
        validation.require_kind("tests", test, GradientTest, "some of the class GradientTest")
    return np.array(
        [[not test.run(mutant.backward) for test in tests] for mutant in mutants], bool
    ).reshape(len(mutants), len(tests))
