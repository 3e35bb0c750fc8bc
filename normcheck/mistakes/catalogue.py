r"""Wrong backwards of layer norm: the catalogue.

A *mutant* is a backward pass with one mistake in it. Arguments are not checked: it does what its
author would have written. ``cache`` is that of ``forward_keeping_x``; all but one of them take that
of :mod:`lnlib.layernorm`, too. ``catalogue.csv`` lists them; what is no change of the formula of dx
is written out here.

Notation: g = gamma * dy, r = 1 / sqrt(var + eps), means over the D features. Right is

.. math::

    dx = r\,\bigl(g - \overline{g} - \hat x\, \overline{g \hat x}\bigr), \qquad
    d\gamma = \sum_{rows} dy\, \hat x, \qquad d\beta = \sum_{rows} dy.
"""

import math

import numpy as np

from lnlib.layernorm import LayerNormCache, layer_norm_forward

from .change import Mistake
from .formula import groups_of, layer_norm_formula, leading, row_mean, rows_of

# Groups of gradient tests, so that the column killed_by of catalogue.csv can be read as a sentence.
_UNIT = frozenset({"sum-y", "sum-y2", "gamma-one"})  # gamma = 1, beta = 0
_TWO_D = frozenset({"square", "single-row", "two-rows-2d", "wide-loose"})
_RANDOM = frozenset({"ones-random-gamma", "random", "standardised", "small-sigma"})
_EVERY_GRADIENT = _UNIT | _TWO_D | _RANDOM | {"broadcasting-compare", "one-direction"}
_GROUPS = {
    "UNIT": _UNIT,
    "TWO_D": _TWO_D,
    "EPS": {"small-sigma", "adjoint", "one-direction"},  # sigma comparable with sqrt(eps)
    "DX": _EVERY_GRADIENT | {"adjoint"},  # the tests that compare dx with numbers
    "PARAMETERS": _EVERY_GRADIENT | {"dgamma-dbeta-only"},  # and dgamma, dbeta
}


# ---- The mutants


class CacheAndInput(LayerNormCache):
    """The cache of layer norm with x beside it: the mean is in no other field."""

    x: np.ndarray

    def _replace(self, **fields):
        kept = super()._replace(**fields)
        kept.x = self.x.copy()
        return kept


def forward_keeping_x(x, gamma, beta, eps=1e-5):
    """:func:`~lnlib.layernorm.layer_norm_forward`, for "padded-lanes" with ``cache.x``."""
    y, cache = layer_norm_forward(x, gamma, beta, eps)
    cache = CacheAndInput(*cache)
    cache.x = x
    return y, cache


_backwards = {}


def _register(function, name=None):
    """Put a backward on the list: its row in catalogue.csv says what is wrong."""
    _backwards[name or function.__name__.replace("_", "-")] = function
    return function


def _g_xhat_r(dy, cache):
    return dy * cache.gamma, cache.xhat, cache.rstd


def _less_mean(a):
    return a - row_mean(a)


def _row_sum(a):
    return a.sum(axis=-1, keepdims=True)


def dx_of(g, xhat, r, mean=row_mean, first=1, second=1):
    """dx, with a factor on each of the two means."""
    return r * (g - first * mean(g) - second * xhat * mean(g * xhat))


def _sums(dy, xhat):
    """The right dgamma and dbeta."""
    return (dy * xhat).sum(axis=leading(dy)), dy.sum(axis=leading(dy))


def _dx(dy, cache):
    return dx_of(*_g_xhat_r(dy, cache))


def right_backward(dy, cache):
    """dx, dgamma and dbeta as they should be."""
    return _dx(dy, cache), *_sums(dy, cache.xhat)


def changed(name, formula=layer_norm_formula, norm="layer"):
    """The backward with this change of the formula of dx."""
    (change,) = (group[name] for group in groups_of(norm).values() if name in group)

    def backward(dy, cache):
        right = formula(dy, cache)
        wrong = right.changed(right.fields(change))
        # Who has another s computes xhat again, and sums dgamma from that.
        return wrong.dx(), *_sums(dy, wrong.inner if name in _ANOTHER_S else cache.xhat)

    return backward


_ANOTHER_S = {"eps-dropped", "eps-outside-root", "sample-variance"}
eps_dropped = changed("eps-dropped")


def _in_dx(name, dx):
    """Register, and return, the backward with this ``dx(g, xhat, r, dy, gamma)``."""

    def backward(dy, cache):
        return dx(*_g_xhat_r(dy, cache), dy, cache.gamma), *_sums(dy, cache.xhat)

    return _register(backward, name)


missing_projection = _in_dx("missing-projection", lambda g, xhat, r, *_: r * _less_mean(g))
_in_dx("product-of-means", lambda g, xhat, r, *_: r * _less_mean(g))  # mean(g) mean(xhat) is 0
_in_dx("identity", lambda g, xhat, r, dy, gamma: dy.copy())
# With dy = 1 what is missing, r J 1, is nothing: ones-random-gamma does not see it.
_in_dx("gamma-minus-one", lambda g, xhat, r, dy, gamma: dx_of(g - dy, xhat, r))
_in_dx("diagonal-jacobian", lambda g, xhat, r, *_: r * g * (1 - (1 + xhat * xhat) / g.shape[-1]))
_in_dx(
    "norm-of-gradient",
    lambda g, xhat, r, dy, gamma: (
        gamma * _less_mean(dy) / np.sqrt(row_mean(_less_mean(dy) ** 2) + 1e-5)
    ),
)


def _in_rstd(name, rstd):
    """Register the backward with this 1/s, ``rstd(c, var, eps, cache)``, c being x - mean."""

    def backward(dy, cache):
        g, xhat, r = _g_xhat_r(dy, cache)
        c = xhat / r
        var = row_mean(c * c)
        r = rstd(c, var, 1 / r**2 - var, cache)
        return dx_of(g, c * r, r), *_sums(dy, c * r)

    _register(backward, name)


def padding(D):
    """Lanes beyond the row's end in a block of 2**k lanes, for each feature."""
    D = max(D, 1)
    return ((1 << (D - 1).bit_length()) - D) / D


_in_rstd("rstd-for-variance", lambda c, var, eps, cache: 1 / np.sqrt(cache.rstd + eps))
_in_rstd(
    "padded-lanes",
    lambda c, var, eps, cache: (
        1 / np.sqrt(var + padding(c.shape[-1]) * row_mean(cache.x.astype(c.dtype)) ** 2 + eps)
    ),
)

#: Rows that one block of "last-rows-missing" adds up.
BLOCK = 8


def _of_whole_blocks(dgamma, dbeta, dy, k):
    rows, D = math.prod(dy.shape[:-1]), dy.shape[-1]
    return _sums(*(a.reshape(rows, D)[: rows // BLOCK * BLOCK] for a in (dy, k.xhat)))


#: Name -> dgamma and dbeta, from the right ones, dy and the cache.
_PARAMETERS = {
    "dgamma-averaged": lambda dgamma, dbeta, dy, k: (dgamma * dy.shape[-1] / dy.size, dbeta),
    "dgamma-over-features": lambda dgamma, dbeta, dy, k: (_row_sum(dy * k.xhat), dbeta),
    "parameters-over-first-axis": lambda dgamma, dbeta, dy, k: ((dy * k.xhat).sum(0), dy.sum(0)),
    "parameters-keep-an-axis": lambda dgamma, dbeta, dy, k: (dgamma[None], dbeta[None]),
    "dgamma-from-y": lambda dgamma, dbeta, dy, k: (k.gamma * dgamma, dbeta),
    "dgamma-from-centred": lambda dgamma, dbeta, dy, k: (_sums(dy, k.xhat / k.rstd)[0], dbeta),
    "dbeta-from-g": lambda dgamma, dbeta, dy, k: (dgamma, k.gamma * dbeta),
    "parameters-swapped": lambda dgamma, dbeta, dy, k: (dbeta, dgamma),
    "dgamma-from-dx": lambda dgamma, dbeta, dy, k: (_sums(_dx(dy, k), k.xhat)[0], dbeta),
    "dbeta-from-dx": lambda dgamma, dbeta, dy, k: (dgamma, _sums(_dx(dy, k), k.xhat)[1]),
    "last-rows-missing": _of_whole_blocks,
}


def _in_sums(sums):
    """The backward with these dgamma and dbeta."""

    def backward(dy, cache):
        dx, *right = right_backward(dy, cache)
        return dx, *sums(*right, dy, cache)

    return backward


# Right answers that look different. Each is the formula plus or minus a term that is zero.

_HARMLESS = "no-mean-inside-variance", "scaled-by-d", "projection-first"


@_register
def no_mean_inside_variance(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    c, D = xhat / r, g.shape[-1]
    dvar = -0.5 * r**3 * (g * c).sum(axis=-1, keepdims=True)
    return r * g + dvar * 2 * c / D - r * row_mean(g), *_sums(dy, xhat)


_in_dx("projection-first", lambda g, xhat, r, *_: r * _less_mean(g - xhat * row_mean(g * xhat)))
_in_dx(
    "scaled-by-d",
    lambda g, xhat, r, *_: (
        r / g.shape[-1] * (g.shape[-1] * g - _row_sum(g) - xhat * _row_sum(g * xhat))
    ),
)


# ---- The entries


def _killed_by(text):
    """The set that a cell of catalogue.csv lists: groups and ids of tests, each behind + or -."""
    kills, (first, *more) = set(), text.split() or [""]
    for sign, name in zip(["+", *more[::2]], [first, *more[1::2]]):
        some = _GROUPS.get(name, {name} - {""})
        kills = kills | some if sign == "+" else kills - some
    return frozenset(kills)


def _entry(row):
    name, killed_by = row["name"], _killed_by(row["killed_by"])
    backward = _backwards.get(name)
    if killed_by and not backward:
        backward = _in_sums(_PARAMETERS[name]) if name in _PARAMETERS else changed(name)
    wrong = row["wrong"].format(BLOCK=BLOCK)
    return Mistake(name, wrong, row["question"], backward, killed_by=killed_by)


_ENTRIES = [_entry(row) for row in rows_of("layer")]

#: Wrong backwards, each with one mistake; pairwise different on the probes of the diagnosis.
MUTANTS = tuple(entry for entry in _ENTRIES if entry.killed_by)

#: Right backwards that are written differently. No test may kill them.
HARMLESS = tuple(entry for entry in _ENTRIES if entry.name in _HARMLESS)

#: Every mistake that the numbers of a wrong backward tell: the mutants; one that gives the same
#: numbers; and parts of the combinations of :mod:`~normcheck.mistakes.fit`, without a backward.
ENTRIES = tuple(entry for entry in _ENTRIES if entry.name not in _HARMLESS)
