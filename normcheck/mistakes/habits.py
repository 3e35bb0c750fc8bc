"""Habits of tests: one test of a layer norm that leaves little to chance, the same with one thing
changed, and more.

A bug of :mod:`~normcheck.mistakes.wild` that the first finds and a habit lets pass is hidden by
what was changed. Arguments are not checked: habits and bugs are written by authors.
"""

from typing import NamedTuple

import numpy as np

from .wild import compare


class Habit(NamedTuple):
    """How a test of y, dx, dgamma and dbeta draws its input and compares; what is not said is the
    careful choice.

    * ``name``: a few words.
    * ``shape``, ``mean``, ``sigma``, ``eps``: of x, of its elements, and what is added to the
      variance.
    * ``ones``: names among "gamma" (then beta is 0) and "dy" of what is 1 throughout, not random.
    * ``outputs``: which of y, dx, dgamma and dbeta are compared.
    * ``agree``: function (found, right) -> bool; by default the difference is below 1e-3 in norm.
    """

    name: str
    shape: tuple = (3, 5, 97)
    mean: float = 3.0
    sigma: float = 2.0
    eps: float = 1e-5
    ones: tuple = ()
    outputs: tuple = ("y", "dx", "dgamma", "dbeta")
    agree: object = None


def within(found, right, tolerance=1e-3):
    """Whether two arrays of one shape differ by at most ``tolerance`` in norm; NaN differs.

    What is right may be 0, and then rounding is all there is: 1e-9 an element of order 1 is let
    pass.
    """
    room = tolerance * np.linalg.norm(right) + 1e-9 * right.size**0.5
    return found.shape == right.shape and bool(np.linalg.norm(found - right) <= room)


def inputs(habit):
    """x, gamma, beta and dy, float64, as a test with this habit draws them."""
    rng = np.random.default_rng(7)
    x, dy = rng.standard_normal((2, *habit.shape))
    gamma, beta = rng.standard_normal((2, habit.shape[-1]))
    if "gamma" in habit.ones:
        gamma, beta = np.ones_like(gamma), np.zeros_like(beta)
    return habit.mean + habit.sigma * x, gamma, beta, np.ones_like(dy) if "dy" in habit.ones else dy


def passes(bug, habit):
    """Whether a test with this habit lets the bug pass."""
    found, right = compare(bug, *inputs(habit), habit.eps)
    names = ("y", "dx", "dgamma", "dbeta")
    with np.errstate(all="ignore"):
        return all(
            (habit.agree or within)(a, b)
            for name, a, b in zip(names, found, right)
            if name in habit.outputs
        )


#: The careful test, from which each habit departs.
CAREFUL = Habit("all random, (3, 5, 97)")

#: One thing changed, or two.
HABITS = (
    Habit("the loss is sum(y), gamma = 1", ones=("gamma", "dy")),
    Habit("gamma = 1, beta = 0", ones=("gamma",)),
    Habit("dy = 1", ones=("dy",)),
    Habit("2-D", shape=(15, 97)),
    Habit("D = 64", shape=(3, 5, 64)),
    Habit("D = 7", shape=(3, 5, 7)),
    Habit("16 rows", shape=(4, 4, 97)),
    Habit("mean 0, sigma 1", mean=0.0, sigma=1.0),
    Habit("off by 0.5 at most", agree=lambda found, right: (np.abs(found - right) <= 0.5).all()),
    Habit(
        "cosine of 0.99",
        agree=lambda found, right: (
            found.ravel() @ right.ravel() >= 0.99 * np.linalg.norm(found) * np.linalg.norm(right)
        ),
    ),
    Habit("dx only", outputs=("dx",)),
    Habit("dgamma and dbeta only", outputs=("dgamma", "dbeta")),
    CAREFUL,
)

#: What the careful test needs beside it.
MORE = (
    Habit("eps near the variance", eps=4.0),
    Habit("one row", shape=(1, 97)),
    Habit("1031 rows", shape=(1031, 7)),
    Habit("D = 4099", shape=(2, 4099)),
)
