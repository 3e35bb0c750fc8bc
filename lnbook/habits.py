"""Tests as people write them: one test of a layer norm that leaves little to chance, the same with
one thing changed, and tests that libraries, tutorials and courses have published.

A bug of :mod:`normcheck.mistakes.wild` that the first finds and a habit lets pass is hidden by
what was changed. Arguments are not checked: habits and bugs are written by authors.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from normcheck.mistakes.catalogue import forward_keeping_x
from normcheck.mistakes.change import table
from normcheck.mistakes.formula import compiled
from normcheck.mistakes.wild import compare

from .gradient_tests import gradient_test, numeric

_OUTPUTS = "y", "dx", "dgamma", "dbeta"


def within(found, right, tolerance=1e-3):
    """Whether two arrays of one shape differ by at most ``tolerance`` in norm; NaN differs.

    What is right may be 0, and then rounding is all there is: 1e-9 an element of order 1 is let
    pass.
    """
    room = tolerance * np.linalg.norm(right) + 1e-9 * right.size**0.5
    return found.shape == right.shape and bool(np.linalg.norm(found - right) <= room)


_normal, _uniform = np.random.Generator.standard_normal, np.random.Generator.random


def _ones(rng, shape):
    return np.ones(shape)


class Habit(NamedTuple):
    """How a test of y, dx, dgamma and dbeta draws its input and compares; what is not said is the
    careful choice.

    * ``name``: a few words.
    * ``shape``, ``mean``, ``sigma``, ``eps``: of x, of its elements, and what is added to the
      variance.
    * ``dy``, ``gamma``: functions (rng, shape); where gamma is 1 throughout, beta is 0.
    * ``outputs``: which of y, dx, dgamma and dbeta are compared.
    * ``agree``: function (found, right) -> bool.
    """

    name: str
    shape: tuple = (3, 5, 97)
    mean: float = 3.0
    sigma: float = 2.0
    eps: float = 1e-5
    dy: Callable = _normal
    gamma: Callable = _normal
    outputs: tuple = _OUTPUTS
    agree: Callable = within


def passes(bug, habit, seed=7):
    """Whether a test with this habit lets the bug pass."""
    rng, D = np.random.default_rng(seed), habit.shape[-1]
    x = habit.mean + habit.sigma * rng.standard_normal(habit.shape)
    dy, (gamma, beta) = habit.dy(rng, habit.shape), habit.gamma(rng, (2, D))
    beta = np.zeros(D) if habit.gamma is _ones else beta
    found, right = compare(bug, x, gamma, beta, dy, habit.eps)
    with np.errstate(all="ignore"):
        return all(
            habit.agree(a, b) for name, a, b in zip(_OUTPUTS, found, right) if name in habit.outputs
        )


def _after_linear(rng, shape):
    """dy where the loss is the sum of the outputs of a linear layer."""
    return np.ones((*shape[:-1], 16)) @ (0.02 * rng.standard_normal((16, shape[-1])))


_NAMES = {
    "ones": _ones,
    "normal": _normal,
    "uniform": _uniform,
    "tenth": lambda rng, shape: 0.1 * rng.standard_normal(shape),
    "after_linear": _after_linear,
    "off_by_half": lambda found, right: (np.abs(found - right) <= 0.5).all(),
    "cosine": lambda found, right: (
        found.ravel() @ right.ravel() >= 0.99 * np.linalg.norm(found) * np.linalg.norm(right)
    ),
}


def _listed(name, made):
    """What is ``made`` of the rows of one list of habits.csv."""
    rows = [row for row in table("habits.csv", __file__) if row["list"] == name]
    return tuple(made(row["name"], **eval(compiled(row["how"]), _NAMES)) for row in rows)


#: One thing changed, or two; and last the careful test, from which each habit departs.
HABITS = _listed("HABITS", Habit)
CAREFUL = HABITS[-1]

#: What the careful test needs beside it.
MORE = _listed("MORE", Habit)


# ---- Tests of a backward as they were published
#
# Rebuilt are their shapes, distributions, losses and tolerances. Four changes. Arithmetic is
# float64, and equality is 1e-12: the question is what the tolerance lets through, not what rounding
# does. Where thousands of rows are used, there are fewer (said in the description). The reduced
# rows give the verdicts of the full number (tried; for one-large-shape many mistakes are within a
# factor 2 of its tolerance, on either side). And elements-sum was written for batch norm.


def _recipe(id, shape, atol, rtol=0.0, mean=0.0, sigma=1.0, gamma=_ones, **how):
    """The gradients compared elementwise and broadcasting, as ``allclose`` functions do."""

    def close(found, right):
        return (np.abs(found - right) <= atol + rtol * np.abs(right)).all()

    how = {"outputs": _OUTPUTS[1:], "agree": close} | how
    habit = Habit(id, shape, mean, sigma, gamma=gamma, **how)

    def run(backward):
        pair = SimpleNamespace(kind="layer_norm", forward=forward_keeping_x, backward=backward)
        return passes(pair, habit, seed=5)

    return gradient_test(id, run)


def _relative_error(a, b, size):
    return np.max(np.abs(a - b) / np.maximum(1e-8, np.abs(a) + np.abs(b))) < 1e-6


_MADE = _listed("RECIPES", _recipe)

#: Test recipes as published, weakest idea first.
RECIPES = (
    *_MADE[:-1],
    numeric("broadcasting-relative-error", _relative_error, shape=(4, 5), mean=12.0, sigma=5.0),
    _MADE[-1],
)
