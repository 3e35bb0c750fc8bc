r"""Wrong backwards of layer norm: the catalogue.

A *mutant* is a backward pass with one mistake in it. Arguments are not checked: it does what its
author would have written. ``cache`` is that of ``forward_keeping_x``; all but one of them take that
of :mod:`lnlib.layernorm`, too. Most are made of the text of a row of ``catalogue.csv``, which
:mod:`~normcheck.mistakes.formula` describes.

Notation: g = gamma * dy, r = 1 / sqrt(var + eps), means over the D features. Right is

.. math::

    dx = r\,\bigl(g - \overline{g} - \hat x\, \overline{g \hat x}\bigr), \qquad
    d\gamma = \sum_{rows} dy\, \hat x, \qquad d\beta = \sum_{rows} dy.
"""

import math

import numpy as np

from lnlib.layernorm import LayerNormCache, layer_norm_forward

from .change import Mistake
from .formula import layer_norm_formula, leading, row_mean, rows_of

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


def padding(D):
    """Lanes beyond the row's end in a block of 2**k lanes, for each feature."""
    D = max(D, 1)
    return ((1 << (D - 1).bit_length()) - D) / D


#: Rows that one block of "last-rows-missing" adds up.
BLOCK = 8


def _whole_blocks(a):
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
    return rows[: len(rows) // BLOCK * BLOCK]


def _summed(a):
    """The sum over the rows."""
    return a.sum(axis=leading(a))


def _sums(dy, xhat):
    """The right dgamma and dbeta."""
    return _summed(dy * xhat), _summed(dy)


def changed(change, formula=layer_norm_formula, **names):
    """The backward with this change, the text of a row. In it may stand, too, the right dgamma and
    dbeta, what sums over rows, the cache, x where that has it, and these ``names``.
    """

    def backward(dy, cache):
        right = formula(dy, cache)
        dgamma, dbeta = _sums(dy, right.xhat)
        more = {"dgamma": dgamma, "dbeta": dbeta, "summed": _summed, "whole_blocks": _whole_blocks}
        if hasattr(cache, "x"):
            more |= {"padding": padding, "x": cache.x.astype(right.xhat.dtype)}
        fields = right.fields(change, cache=cache, **more, **names)
        wrong = right.changed({key: fields[key] for key in fields if key in right._fields})
        made = zip(("dx", "dgamma", "dbeta"), (wrong.dx(), *_sums(dy, wrong.xhat)))
        return tuple(fields.get(name, gradient) for name, gradient in made)

    return backward


_backwards = {}


def _register(function, name=None):
    """Put a backward on the list: its row in catalogue.csv says what is wrong."""
    _backwards[name or function.__name__.replace("_", "-")] = function
    return function


def _g_xhat_r(dy, cache):
    return dy * cache.gamma, cache.xhat, cache.rstd


def right_backward(dy, cache):
    """dx, dgamma and dbeta as they should be."""
    return layer_norm_formula(dy, cache).dx(), *_sums(dy, cache.xhat)


def _less_mean(a):
    return a - row_mean(a)


def _in_dx(name, dx):
    """Register, and return, the backward with this ``dx(g, xhat, r)``."""

    def backward(dy, cache):
        return dx(*_g_xhat_r(dy, cache)), *_sums(dy, cache.xhat)

    return _register(backward, name)


missing_projection = _in_dx("missing-projection", lambda g, xhat, r, *_: r * _less_mean(g))
_register(missing_projection, "product-of-means")  # for the mean of xhat is 0


# Right answers that look different. Each is the formula plus or minus a term that is zero.


@_register
def no_mean_inside_variance(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    c, D = xhat / r, g.shape[-1]
    dvar = -0.5 * r**3 * (g * c).sum(axis=-1, keepdims=True)
    return r * g + dvar * 2 * c / D - r * row_mean(g), *_sums(dy, xhat)


@_register
def scaled_by_d(dy, cache):
    (g, xhat, r), D = _g_xhat_r(dy, cache), dy.shape[-1]
    sums = g.sum(axis=-1, keepdims=True) + xhat * (g * xhat).sum(axis=-1, keepdims=True)
    return r / D * (D * g - sums), *_sums(dy, xhat)


_in_dx("projection-first", lambda g, xhat, r: r * _less_mean(g - xhat * row_mean(g * xhat)))
_HARMLESS = "no-mean-inside-variance", "scaled-by-d", "projection-first"


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
    backward = _backwards.get(name) or (changed(row["change"]) if killed_by else None)
    wrong = row["wrong"].format(BLOCK=BLOCK)
    return Mistake(name, wrong, row["question"], backward, killed_by=killed_by)


_ENTRIES = [_entry(row) for row in rows_of("layer")]

#: Wrong backwards, each with one mistake; pairwise different on the probes of the diagnosis.
MUTANTS = tuple(entry for entry in _ENTRIES if entry.killed_by)

#: Right backwards that are written differently. No test may kill them.
HARMLESS = tuple(entry for entry in _ENTRIES if entry.name in _HARMLESS)

eps_dropped = next(mutant.backward for mutant in MUTANTS if mutant.name == "eps-dropped")

#: Every mistake that the numbers of a wrong backward tell: the mutants; one that gives the same
#: numbers; and parts of the combinations of :mod:`~normcheck.mistakes.fit`, without a backward.
ENTRIES = tuple(entry for entry in _ENTRIES if entry.name not in _HARMLESS)
