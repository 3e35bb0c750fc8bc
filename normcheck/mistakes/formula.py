"""dx as a formula, and the table of mistakes, ``catalogue.csv``.

Layer norm, RMS norm and layer norm with eps outside the root have one formula. A row of the table
is a mistake in all of them, or in those of its column ``of``: its name, what is ``wrong``, a
``question`` that leads on, the gradient tests by which a mutant is ``killed_by``, and the
``change`` of some fields of the right :class:`Formula`, as text in which the names of
:meth:`Formula.names` stand. Changes come in groups, of which a backward makes one at most, so that
those of two groups may be made together. What is in no group changes gradients as a whole, or is
written out in :mod:`~normcheck.mistakes.catalogue` or :mod:`~normcheck.mistakes.fit`.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .change import table


def row_mean(a):
    """The mean over the features, which broadcasts against ``a``."""
    return a.mean(axis=-1, keepdims=True)


def leading(a):
    """The axes before the last: those of the rows."""
    return tuple(range(a.ndim - 1))


_NAMES = {
    "sqrt": np.sqrt,
    # What means may run over. Each keeps what broadcasts against its argument.
    "batch_axis": lambda a: a.mean(axis=leading(a), keepdims=True),
    "first_axis": lambda a: a.mean(axis=0, keepdims=True),
    "whole_tile": lambda a: a.sum() / a.shape[-1],
    "no_axis": lambda a: a.mean(),
    "two_d_assumed": lambda a: a.mean(axis=tuple(range(1, a.ndim)), keepdims=True),
    # Of group norms, whose arrays are (N, L, C).
    "by_example": lambda a: a.mean(axis=(1, 2), keepdims=True),
    "by_channel": lambda a: a.mean(axis=1, keepdims=True),
    "leading": leading,
    "repeat": np.repeat,
    "tile": np.tile,
    **{place: place for place in ("inside", "outside", "both", "nowhere")},
}
#: Fields that multiply where two changes have them.
_FACTORS = {"whole", "first", "of_mean", "of_projection"}


class Formula(NamedTuple):
    """dx = whole r**power (first g - mean of_mean mean1(g) - of_projection outer mean2(g inner)).

    ``xhat`` is what dgamma is summed from; where nothing is wrong, ``inner`` is xhat, too.
    ``gamma`` is None where there is none, ``mean`` is 0 in RMS norm. ``places`` says of each of the
    three terms where gamma stands: "inside" with dy, "outside" its mean, on "both" sides, or
    "nowhere". ``groups`` is 0 where there are none.
    """

    dy: np.ndarray
    gamma: np.ndarray | None
    r: np.ndarray
    outer: np.ndarray
    inner: np.ndarray
    xhat: np.ndarray
    mean: int = 1
    mean1: Callable = row_mean
    mean2: Callable = row_mean
    places: tuple = ("inside", "inside", "inside")
    power: int = 1
    whole: float | np.ndarray = 1
    first: float = 1
    of_mean: float = 1
    of_projection: float = 1
    groups: int = 0

    def dx(self):
        """The numbers."""
        gamma = 1 if self.gamma is None else self.gamma

        def term(place, average):
            given = gamma * self.dy if place in ("inside", "both") else self.dy
            return average(given) * (gamma if place in ("outside", "both") else 1)

        direct = term(self.places[0], lambda a: a)
        mean = term(self.places[1], self.mean1)
        projection = term(self.places[2], lambda a: self.outer * self.mean2(a * self.inner))
        terms = self.first * direct - self.mean * self.of_mean * mean
        return self.whole * self.r**self.power * (terms - self.of_projection * projection)

    def names(self):
        """What changes are made of: the right parts; c = x - mean, its mean square var, its root
        sigma, and eps; D and the number of rows; ``over``, a quotient in the dtype of dy.
        """
        c, mean = self.xhat / self.r, self.mean1
        D = math.prod(self.dy.shape[1:]) // self.groups if self.groups else self.dy.shape[-1]
        var = mean(c * c)

        def over(a, b):
            return np.divide(a, b, dtype=self.dy.dtype)

        named = {
            "mean": mean,
            "c": c,
            "var": var,
            "sigma": np.sqrt(var),
            "eps": 1 / self.r**2 - var,
        }
        rows = math.prod(self.dy.shape[:-1])
        named |= {"D": D, "rows": rows, "over": over, "ddof": over(D, D - 1)}
        if self.groups:
            C = self.dy.shape[-1]
            named |= {"groups": self.groups, "by_swapped": group_mean(C // self.groups)}
            named |= {"by_interleaved": group_mean(self.groups, neighbours=False)}
        parts = {"dy": self.dy, "gamma": self.gamma, "r": self.r, "xhat": self.xhat}
        return _NAMES | named | parts | {"outer": self.outer, "dx": self.dx}

    def fields(self, change, **more):
        """What a change sets, of this right formula; ``more`` are names that stand in it, too."""
        return eval(compiled(change), self.names() | more)

    def changed(self, *settings):
        """The formula with these fields; factors multiply."""
        fields = {}
        for key, value in itertools.chain(*(setting.items() for setting in settings)):
            fields[key] = value * fields.get(key, 1) if key in _FACTORS else value
        return self._replace(**fields)


@functools.cache
def compiled(change):
    return compile(f"dict({change})", change, "eval")


def layer_norm_formula(dy, cache):
    """That of layer norm, of what its forward keeps."""
    return Formula(dy, cache.gamma, cache.rstd, *[cache.xhat] * 3)


def group_mean(groups, neighbours=True):
    """The mean over each group of channels of an example (N, L, C), which broadcasts against it."""

    def mean(a):
        C = a.shape[-1]
        split = (groups, C // groups) if neighbours else (C // groups, groups)
        means = a.reshape(len(a), -1, *split).mean(axis=(1, 2 + neighbours), keepdims=True)
        return np.broadcast_to(means, (len(a), 1, *split)).reshape(len(a), 1, C)

    return mean


def group_formula(dy, cache):
    """That of group norm, of arrays with the channels last."""
    means = dict.fromkeys(("mean1", "mean2"), group_mean(cache.groups))
    return layer_norm_formula(dy, cache)._replace(groups=cache.groups, **means)


#: Rows that one block of "last-rows-missing" adds up.
BLOCK = 8
_ROWS = [row | {"wrong": row["wrong"].format(BLOCK=BLOCK)} for row in table("catalogue.csv")]


def rows_of(norm):
    """The rows for "layer", "rms" or "group" norm, or layer norm with eps "outside" the root."""
    return [row for row in _ROWS if not row["of"] or norm in row["of"].split()]


def groups_of(norm):
    """Its groups: dicts, name -> change."""
    groups = {}
    for row in rows_of(norm):
        if row["group"]:
            groups.setdefault(row["group"], {})[row["name"]] = row["change"]
    return groups
