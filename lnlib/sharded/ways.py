r"""Six ways to mean and variance of a row whose features lie on several ranks, in x's dtype.

Teaching programs: ``m, r, v = yield from way(x, D)``. x is (rows, width), this rank's features, D
the number of features of the whole row; the mean is m + r, v the variance, each of shape (rows, 1).
What each sends and loses is the subject of the chapter; :mod:`lnlib.sharded.features` sends what
:func:`recentred` does, in float64. Arguments are not checked: what is shown is the messages.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .. import variance
from ..variance import Moments
from .groups import merge, quadruples, tree
from .messages import GATHER, SUM, Program


def sums(x: np.ndarray, D: int) -> Program[Moments]:
    r"""One sum of :math:`(\sum x, \sum x^2)`, as :func:`lnlib.variance.naive`."""
    total = yield SUM, np.stack([x.sum(1), (x * x).sum(1)], 1)
    m, square = np.split(total / x.dtype.type(D), 2, 1)
    return m, np.zeros_like(m), square - m * m


def wide_sums(x: np.ndarray, D: int) -> Program[Moments]:
    """:func:`sums` in float64; the mean comes back as a number of x's dtype and the rest."""
    mean, _, v = yield from sums(x.astype(np.float64), D)
    m = mean.astype(x.dtype)
    return m, (mean - m).astype(x.dtype), v.astype(x.dtype)


def two_rounds(x: np.ndarray, D: int) -> Program[Moments]:
    """The definition: a sum for the mean, another one for the squares of x - m."""
    m = (yield SUM, x.sum(1, keepdims=True)) / x.dtype.type(D)
    d = x - m
    v = (yield SUM, (d * d).sum(1, keepdims=True)) / x.dtype.type(D)
    return m, np.zeros_like(m), v


def recentred_two_rounds(x: np.ndarray, D: int) -> Program[Moments]:
    """:func:`two_rounds`, and the second sum brings the mean of what is left, too."""
    m = (yield SUM, x.sum(1, keepdims=True)) / x.dtype.type(D)
    r, _, v = yield from sums(x - m, D)
    return m, r, v


def merge_chan(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Two groups (n, m, S) taken together, the mean in one number: :func:`lnlib.variance.merge`."""
    return np.stack(variance.merge([*np.moveaxis(a, -1, 0)], [*np.moveaxis(b, -1, 0)]), -1)


def chan(x: np.ndarray, D: int) -> Program[Moments]:
    """One gather of (n, m, S), merged in a tree. The mean is rounded in every merge."""
    parts = yield GATHER, quadruples(x)[..., [0, 1, 3]]
    n, m, S = np.split(tree(merge_chan, parts), 3, 1)
    return m, np.zeros_like(m), S / n


def recentred(x: np.ndarray, D: int) -> Program[Moments]:
    """One gather of (n, m, r, S), merged with a pivot: :func:`lnlib.sharded.groups.merge`."""
    parts = yield GATHER, quadruples(x)
    n, m, r, S = np.split(tree(merge, parts), 4, 1)
    return m, r, S / n


class Way(NamedTuple):
    """One way to mean and variance."""

    name: str  #: for tables and legends
    program: Callable[[np.ndarray, int], Program[Moments]]


#: By a short id, in teaching order.
WAYS = {
    "sums": Way("sums", sums),
    "wide": Way("sums in float64", wide_sums),
    "rounds": Way("mean, then squares", two_rounds),
    "recentred-rounds": Way("recentred, two rounds", recentred_two_rounds),
    "chan": Way("Chan's merge", chan),
    "recentred": Way("recentred, one message", recentred),
}


def normalise(
    x: np.ndarray, D: int, way: str = "recentred", eps: float = 1e-5
) -> Program[np.ndarray]:
    """This rank's features of xhat, in x's dtype, with mean and variance from a key of WAYS."""
    m, r, v = yield from WAYS[way].program(x, D)
    with np.errstate(all="ignore"):
        return ((x - m) - r) / np.sqrt(v + x.dtype.type(eps))
