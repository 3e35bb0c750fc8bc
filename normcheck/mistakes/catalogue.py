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

from lnlib.layernorm import NormCache, layer_norm_forward

from .change import Mistake, table
from .formula import BLOCK, layer_norm_formula, leading, row_mean, rows_of

# ---- The mutants


class CacheAndInput(NormCache):
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
    return ((1 << (D - 1).bit_length()) - D) / D


def _whole_blocks(a):
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
    return rows[: len(rows) // BLOCK * BLOCK]


def _summed(a):
    """The sum over the rows."""
    return a.sum(axis=leading(a))


def _sums(dy, xhat):
    """The right dgamma and dbeta."""
    return _summed(dy * xhat), _summed(dy)


_NAMES = {"summed": _summed, "whole_blocks": _whole_blocks, "padding": padding}


def changed(change, formula=layer_norm_formula, outputs=3, **names):
    """The backward with this change, the text of a row; RMS norm's has two ``outputs``. A change
    may also use the right dgamma and dbeta, what sums over rows, the cache and its x, dy as it was
    ``given``, and these ``names``.
    """

    def backward(dy, cache):
        right = formula(dy, cache)
        dgamma, dbeta = _sums(right.dy, right.xhat)
        more = {"given": dy, "cache": cache, "dgamma": dgamma, "dbeta": dbeta}
        if hasattr(cache, "x"):
            more["x"] = cache.x.astype(right.xhat.dtype)
        fields = right.fields(change, **_NAMES | more | names)
        wrong = right.changed({key: fields[key] for key in fields if key in right._fields})
        made = zip(("dx", "dgamma", "dbeta"), (wrong.dx(), *_sums(right.dy, wrong.xhat)))
        return tuple(fields.get(name, gradient) for name, gradient in made)[:outputs]

    return backward


def _g_xhat_r(dy, cache):
    return dy * cache.gamma, cache.xhat, cache.rstd


def missing_projection(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return r * (g - row_mean(g)), *_sums(dy, xhat)


# Right answers that look different. Each is the formula plus or minus a term that is zero.


def no_mean_inside_variance(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    c, D = xhat / r, g.shape[-1]
    dvar = -0.5 * r**3 * (g * c).sum(axis=-1, keepdims=True)
    return r * g + dvar * 2 * c / D - r * row_mean(g), *_sums(dy, xhat)


#: Those that chapters show; others are the ``change`` of their row.
_SHOWN = missing_projection, no_mean_inside_variance
_WRITTEN_OUT = {backward.__name__.replace("_", "-"): backward for backward in _SHOWN}
_HARMLESS = "no-mean-inside-variance", "scaled-by-d", "projection-first"


# ---- The entries

_GROUPS_OF = {row["id"]: row["groups"].split() for row in table("gradient_tests.csv")}


def _killed_by(text):
    """The set that a cell of catalogue.csv lists: ids of tests, and groups of tests, each behind +
    or -. UNIT: gamma = 1, beta = 0. TWO_D. EPS: sigma is comparable with sqrt(eps). DX: tests that
    compare dx with numbers; PARAMETERS: and dgamma, dbeta.
    """
    kills, (first, *more) = set(), text.split() or [""]
    for sign, name in zip(["+", *more[::2]], [first, *more[1::2]]):
        some = {id for id, groups in _GROUPS_OF.items() if name in (id, *groups)}
        kills = kills | some if sign == "+" else kills - some
    return frozenset(kills)


def _entry(row):
    name, killed_by = row["name"], _killed_by(row["killed_by"])
    backward = _WRITTEN_OUT.get(name)
    if row["change"] and (killed_by or not row["group"]):  # others are parts of combinations
        backward = backward or changed(row["change"])
    return Mistake(name, row["wrong"], row["question"], backward, killed_by=killed_by)


_ENTRIES = [_entry(row) for row in rows_of("layer")]

#: Wrong backwards, each with one mistake; pairwise different on the probes of the diagnosis.
MUTANTS = tuple(entry for entry in _ENTRIES if entry.killed_by)

#: Right backwards that are written differently. No test may kill them.
HARMLESS = tuple(entry for entry in _ENTRIES if entry.name in _HARMLESS)

eps_dropped = next(mutant.backward for mutant in MUTANTS if mutant.name == "eps-dropped")

#: Every mistake that the numbers of a wrong backward tell: the mutants; one that gives the same
#: numbers; and parts of the combinations of :mod:`~normcheck.mistakes.fit`, without a backward.
ENTRIES = tuple(entry for entry in _ENTRIES if entry.name not in _HARMLESS)
