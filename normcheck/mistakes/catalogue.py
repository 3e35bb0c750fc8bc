r"""Wrong backwards of layer norm: the catalogue.

A *mutant* is a backward pass with one mistake in it. Arguments are not checked: it does what its
author would have written. ``cache`` is that of ``forward_keeping_x``; all but one of them take that
of :mod:`lnlib.layernorm`, too.

Notation: g = gamma * dy, r = 1 / sqrt(var + eps), means over the D features. Right is

.. math::

    dx = r\,\bigl(g - \overline{g} - \hat x\, \overline{g \hat x}\bigr), \qquad
    d\gamma = \sum_{rows} dy\, \hat x, \qquad d\beta = \sum_{rows} dy.
"""

import csv
import math
from pathlib import Path

import numpy as np

from lnlib.layernorm import LayerNormCache, layer_norm_forward

from .entry import Mistake

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

with Path(__file__).with_name("catalogue.csv").open(encoding="utf-8", newline="") as _file:
    _ROWS = {row["name"]: row for row in csv.DictReader(_file)}


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


def row_mean(a):
    """The mean over the features, which broadcasts against ``a``."""
    return a.mean(axis=-1, keepdims=True)


def _row_sum(a):
    return a.sum(axis=-1, keepdims=True)


def _less_mean(a):
    return a - row_mean(a)


def _g_xhat_r(dy, cache):
    return dy * cache.gamma, cache.xhat, cache.rstd


def _dx(g, xhat, r, mean=row_mean, first=1, second=1):
    """dx, with a factor on each of the two means."""
    return r * (g - first * mean(g) - second * xhat * mean(g * xhat))


def leading(a):
    """The axes before the last: those of the rows."""
    return tuple(range(a.ndim - 1))


def _sums(dy, xhat):
    """The right dgamma and dbeta."""
    return (dy * xhat).sum(axis=leading(dy)), dy.sum(axis=leading(dy))


def right_backward(dy, cache):
    """dx, dgamma and dbeta as they should be."""
    return _dx(*_g_xhat_r(dy, cache)), *_sums(dy, cache.xhat)


#: What the means may run over. Each keeps what broadcasts against its argument.
AXES = {
    "batch-axis": lambda a: a.mean(axis=leading(a), keepdims=True),
    "first-axis": lambda a: a.mean(axis=0, keepdims=True),
    "whole-tile": lambda a: a.sum() / a.shape[-1],
    "no-axis": lambda a: a.mean(),
    "two-d-assumed": lambda a: a.mean(axis=tuple(range(1, a.ndim)), keepdims=True),
}


def _in_dx(name, dx):
    """Register, and return, the backward with this ``dx(g, xhat, r, dy, gamma)``."""

    def backward(dy, cache):
        return dx(*_g_xhat_r(dy, cache), dy, cache.gamma), *_sums(dy, cache.xhat)

    return _register(backward, name)


def _in_sums(name, sums):
    """Register the backward with these ``sums(dgamma, dbeta, dy, cache)``, of the right ones."""

    def backward(dy, cache):
        dx, dgamma, dbeta = right_backward(dy, cache)
        return dx, *sums(dgamma, dbeta, dy, cache)

    _register(backward, name)


def _centred(xhat, r):
    """x - mean, its mean square (the variance), and eps."""
    c = xhat / r
    var = row_mean(c * c)
    return c, var, 1 / r**2 - var


def _normalised_again(xhat, eps):
    r = 1 / np.sqrt(row_mean(xhat * xhat) + eps)
    return xhat * r, r


def _in_rstd(name, rstd):
    """Register, and return, the backward with this 1/s, ``rstd(c, var, eps, cache)``."""

    def backward(dy, cache):
        c, var, eps = _centred(cache.xhat, cache.rstd)
        r = rstd(c, var, eps, cache)
        return _dx(dy * cache.gamma, c * r, r), *_sums(dy, c * r)

    return _register(backward, name)


_in_dx("identity", lambda g, xhat, r, dy, gamma: dy.copy())
_in_dx("frozen-statistics", lambda g, xhat, r, *_: r * g)

missing_projection = _in_dx("missing-projection", lambda g, xhat, r, *_: r * _less_mean(g))
_in_dx("missing-mean", lambda g, xhat, r, *_: _dx(g, xhat, r, first=0))
_in_dx("gamma-outside", lambda g, xhat, r, dy, gamma: gamma * _dx(dy, xhat, r))
_in_dx("gamma-twice-in-projection", lambda g, xhat, r, dy, gamma: _dx(g, xhat, r, second=gamma))
_in_dx("gamma-missing", lambda g, xhat, r, dy, gamma: _dx(dy, xhat, r))
_in_dx("gamma-twice", lambda g, xhat, r, dy, gamma: _dx(gamma * g, xhat, r))
_in_dx("gamma-missing-first", lambda g, xhat, r, dy, gamma: _dx(g, xhat, r) + r * (dy - g))
# With dy = 1 what is missing, r J 1, is nothing: ones-random-gamma does not see it.
_in_dx("gamma-minus-one", lambda g, xhat, r, dy, gamma: _dx(g - dy, xhat, r))
_in_dx("y-for-xhat", lambda g, xhat, r, dy, gamma: _dx(g, gamma * xhat, r))
_in_dx("centred-for-xhat", lambda g, xhat, r, *_: _dx(g, xhat / r, r))
_in_dx("centred-once", lambda g, xhat, r, *_: _dx(g, xhat, r, second=1 / r))
_in_dx("extra-rstd-in-projection", lambda g, xhat, r, *_: _dx(g, xhat, r, second=r))
_in_dx("missing-rstd", lambda g, xhat, r, *_: _dx(g, xhat, 1))
_in_dx("variance-for-std", lambda g, xhat, r, *_: _dx(g, xhat, r * r))
_in_dx(
    "statistics-of-xhat",
    lambda g, xhat, r, *_: _dx(g, *_normalised_again(xhat, _centred(xhat, r)[2])),
)
_in_dx("projection-times-two", lambda g, xhat, r, *_: _dx(g, xhat, r, second=2))
_in_dx("mean-twice", lambda g, xhat, r, *_: _dx(g, xhat, r, first=2))
_in_dx("projection-halved", lambda g, xhat, r, *_: _dx(g, xhat, r, second=1 / 2))
_in_dx("projection-added", lambda g, xhat, r, *_: _dx(g, xhat, r, second=-1))
_in_dx(
    "means-over-d-again",
    lambda g, xhat, r, *_: _dx(g, xhat, r, lambda a: row_mean(a) / a.shape[-1]),
)
_in_dx("dx-over-d", lambda g, xhat, r, *_: _dx(g, xhat, r) / g.shape[-1])
_in_dx("sums-for-means", lambda g, xhat, r, *_: _dx(g, xhat, r, _row_sum))
_in_dx(
    "rows-for-features",
    lambda g, xhat, r, *_: _dx(g, xhat, r, lambda a: _row_sum(a) * a.shape[-1] / a.size),
)
_in_dx("batch-axis", lambda g, xhat, r, *_: _dx(g, xhat, r, AXES["batch-axis"]))
_in_dx("whole-tile", lambda g, xhat, r, *_: _dx(g, xhat, r, AXES["whole-tile"]))
_in_dx("two-d-assumed", lambda g, xhat, r, *_: _dx(g, xhat, r, AXES["two-d-assumed"]))
_in_dx("diagonal-jacobian", lambda g, xhat, r, *_: r * g * (1 - (1 + xhat * xhat) / g.shape[-1]))
_in_dx(
    "norm-of-gradient",
    lambda g, xhat, r, dy, gamma: (
        gamma * _less_mean(dy) / np.sqrt(row_mean(_less_mean(dy) ** 2) + 1e-5)
    ),
)


eps_dropped = _in_rstd("eps-dropped", lambda c, var, eps, cache: 1 / np.sqrt(var))


@_register
def eps_outside_root(dy, cache):
    (c, var, eps), g = _centred(cache.xhat, cache.rstd), dy * cache.gamma
    s = np.sqrt(var) + eps
    return (g - row_mean(g)) / s - c * row_mean(g * c) / (np.sqrt(var) * s**2), *_sums(dy, c / s)


_in_dx("exact-projection", lambda g, xhat, r, *_: _dx(g, xhat, r, second=1 / row_mean(xhat * xhat)))
_in_rstd("rstd-for-variance", lambda c, var, eps, cache: 1 / np.sqrt(cache.rstd + eps))


def padding(D):
    """Lanes beyond the row's end in a block of 2**k lanes, for each feature."""
    D = max(D, 1)
    return ((1 << (D - 1).bit_length()) - D) / D


_in_rstd(
    "padded-lanes",
    lambda c, var, eps, cache: (
        1 / np.sqrt(var + padding(c.shape[-1]) * row_mean(cache.x.astype(c.dtype)) ** 2 + eps)
    ),
)
_in_dx(
    "ddof-mismatch",
    lambda g, xhat, r, *_: r * (g - row_mean(g) - xhat * _row_sum(g * xhat) / (g.shape[-1] - 1)),
)


@_register
def sample_variance(dy, cache):
    (c, var, eps), g = _centred(cache.xhat, cache.rstd), dy * cache.gamma
    ratio = dy.shape[-1] / (dy.shape[-1] - 1)
    r = 1 / np.sqrt(ratio * var + eps)
    return r * (g - row_mean(g) - ratio * c * r * row_mean(g * c * r)), *_sums(dy, c * r)


_in_sums(
    "dgamma-averaged",
    lambda dgamma, dbeta, dy, cache: (dgamma * dy.shape[-1] / dy.size, dbeta),
)
_in_sums(
    "dgamma-over-features",
    lambda dgamma, dbeta, dy, cache: ((dy * cache.xhat).sum(axis=-1, keepdims=True), dbeta),
)
_in_sums(
    "parameters-over-first-axis",
    lambda dgamma, dbeta, dy, cache: ((dy * cache.xhat).sum(axis=0), dy.sum(axis=0)),
)
_in_sums("parameters-keep-an-axis", lambda dgamma, dbeta, dy, cache: (dgamma[None], dbeta[None]))
_in_sums("dgamma-from-y", lambda dgamma, dbeta, dy, cache: (cache.gamma * dgamma, dbeta))
_in_sums(
    "dgamma-from-centred",
    lambda dgamma, dbeta, dy, cache: ((dy * cache.xhat / cache.rstd).sum(axis=leading(dy)), dbeta),
)
_in_sums("dbeta-from-g", lambda dgamma, dbeta, dy, cache: (dgamma, cache.gamma * dbeta))
_in_sums("parameters-swapped", lambda dgamma, dbeta, dy, cache: (dbeta, dgamma))
_in_sums(
    "dgamma-from-dx",
    lambda dgamma, dbeta, dy, cache: (
        (right_backward(dy, cache)[0] * cache.xhat).sum(axis=leading(dy)),
        dbeta,
    ),
)
_in_sums(
    "dbeta-from-dx",
    lambda dgamma, dbeta, dy, cache: (dgamma, right_backward(dy, cache)[0].sum(axis=leading(dy))),
)


#: Rows that one block of "last-rows-missing" adds up.
BLOCK = 8


@_register
def last_rows_missing(dy, cache):
    rows, D = math.prod(dy.shape[:-1]), dy.shape[-1]
    dy_rows, xhat_rows = (a.reshape(rows, D)[: rows // BLOCK * BLOCK] for a in (dy, cache.xhat))
    return right_backward(dy, cache)[0], *_sums(dy_rows, xhat_rows)


# Right answers that look different. Each is the formula plus or minus a term that is zero.


@_register
def no_mean_inside_variance(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    c, D = xhat / r, g.shape[-1]
    dvar = -0.5 * r**3 * (g * c).sum(axis=-1, keepdims=True)
    return r * g + dvar * 2 * c / D - r * row_mean(g), *_sums(dy, xhat)


_in_dx(
    "scaled-by-d",
    lambda g, xhat, r, *_: (
        r / g.shape[-1] * (g.shape[-1] * g - _row_sum(g) - xhat * _row_sum(g * xhat))
    ),
)
_in_dx("projection-first", lambda g, xhat, r, *_: r * _less_mean(g - xhat * row_mean(g * xhat)))


def _killed_by(text):
    """The set that a cell of catalogue.csv lists: groups and ids of tests, each behind + or -."""
    kills, (first, *more) = set(), text.split() or [""]
    for sign, name in zip(["+", *more[::2]], [first, *more[1::2]]):
        some = _GROUPS.get(name, {name} - {""})
        kills = kills | some if sign == "+" else kills - some
    return frozenset(kills)


_ENTRIES = [
    Mistake(
        name,
        row["wrong"].format(BLOCK=BLOCK),
        row["question"],
        _backwards[name],
        killed_by=_killed_by(row["killed_by"]),
    )
    for name, row in _ROWS.items()
]

#: Wrong backwards, each with one mistake; pairwise different on the probes of the diagnosis.
MUTANTS = tuple(entry for entry in _ENTRIES if entry.killed_by)

#: Right backwards that are written differently. No test may kill them.
HARMLESS = tuple(entry for entry in _ENTRIES if not entry.killed_by)
