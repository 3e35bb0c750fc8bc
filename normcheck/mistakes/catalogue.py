r"""Wrong backwards of layer norm: the catalogue.

A *mutant* is a backward pass with one mistake in it. Arguments are not checked: it does what its
author would have written. ``cache`` is that of ``forward_keeping_x``; all but one of them take that
of :mod:`lnlib.layernorm`, too.

Notation: g = gamma * dy, r = 1 / sqrt(var + eps), means over the D features. Right is

.. math::

    dx = r\,\bigl(g - \overline{g} - \hat x\, \overline{g \hat x}\bigr), \qquad
    d\gamma = \sum_{rows} dy\, \hat x, \qquad d\beta = \sum_{rows} dy.
"""

import math

import numpy as np

from lnlib.layernorm import LayerNormCache, layer_norm_forward

from .entry import Mistake

# Names for groups of gradient tests, so that killed_by can be written (and read) as a sentence.
_UNIT = frozenset({"sum-y", "sum-y2", "gamma-one"})  # gamma = 1, beta = 0
_TWO_D = frozenset({"square", "single-row", "two-rows-2d", "wide-loose"})
_SUM = frozenset({"sum-dx-zero"})
_ORTHOGONAL = frozenset({"dx-orthogonal-xhat"})
_ROWS = frozenset({"row-independence"})
_SHAPE = frozenset({"shape"})
_EPS = frozenset({"small-sigma", "adjoint", "one-direction"})  # sigma comparable with sqrt(eps)
_RANDOM = frozenset({"ones-random-gamma", "random", "standardised", "small-sigma"})
_EVERY_GRADIENT = _UNIT | _TWO_D | _RANDOM | {"broadcasting-compare", "one-direction"}
_DX = _EVERY_GRADIENT | {"adjoint"}  # the tests that compare dx with numbers
_PARAMETERS = _EVERY_GRADIENT | {"dgamma-dbeta-only"}  # and dgamma, dbeta


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


_mutants, _harmless = [], []


def _register(wrong, killed_by, question="", name=None):
    def add(function):
        (_mutants if killed_by else _harmless).append(
            Mistake(
                name or function.__name__.replace("_", "-"),
                wrong,
                question,
                function,
                killed_by=frozenset(killed_by),
            )
        )
        return function

    return add


def row_mean(a):
    """The mean over the features, which broadcasts against ``a``."""
    return a.mean(axis=-1, keepdims=True)


def _row_sum(a):
    return a.sum(axis=-1, keepdims=True)


def _less_mean(a):
    return a - row_mean(a)


def _g_xhat_r(dy, cache):
    return dy * cache.gamma, cache.xhat, cache.rstd


def _dx(g, xhat, r, mean=row_mean):
    return r * (g - mean(g) - xhat * mean(g * xhat))


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


def _in_dx(name, wrong, killed_by, question, dx):
    """Register, and return, the backward with this ``dx(g, xhat, r, dy, gamma)``."""
    return _register(wrong, killed_by, question, name)(
        lambda dy, cache: (dx(*_g_xhat_r(dy, cache), dy, cache.gamma), *_sums(dy, cache.xhat))
    )


def _in_sums(name, wrong, killed_by, question, sums):
    """Register the backward with these ``sums(dgamma, dbeta, dy, cache)``, of the right ones."""

    def backward(dy, cache):
        dx, dgamma, dbeta = right_backward(dy, cache)
        return dx, *sums(dgamma, dbeta, dy, cache)

    _register(wrong, killed_by, question, name)(backward)


def _centred(xhat, r):
    """x - mean, its mean square (the variance), and eps."""
    c = xhat / r
    var = row_mean(c * c)
    return c, var, 1 / r**2 - var


def _normalised_again(xhat, eps):
    r = 1 / np.sqrt(row_mean(xhat * xhat) + eps)
    return xhat * r, r


def _in_rstd(name, wrong, killed_by, question, rstd):
    """Register, and return, the backward with this 1/s, ``rstd(c, var, eps, cache)``."""

    def backward(dy, cache):
        c, var, eps = _centred(cache.xhat, cache.rstd)
        r = rstd(c, var, eps, cache)
        return _dx(dy * cache.gamma, c * r, r), *_sums(dy, c * r)

    return _register(wrong, killed_by, question, name)(backward)


_in_dx(
    "identity",
    "layer norm is treated as if it were not there",
    _DX | _SUM | _ORTHOGONAL,
    "Shift a whole row by a constant: what happens to y, and what does your dx predict?",
    lambda g, xhat, r, dy, gamma: dy.copy(),
)
_in_dx(
    "frozen-statistics",
    "mean and variance are treated as constants",
    _DX | _SUM | _ORTHOGONAL,
    "How many routes lead from x[i] to y[j] when j differs from i?",
    lambda g, xhat, r, *_: r * g,
)

missing_projection = _in_dx(
    "missing-projection",
    "the path through the variance is left out",
    _DX - {"sum-y"} | _ORTHOGONAL,
    "Multiply a row by 1.01: y hardly moves; does your dx know?",
    lambda g, xhat, r, *_: r * _less_mean(g),
)
_in_dx(
    "missing-mean",
    "the path through the mean is left out",
    _DX - {"sum-y2"} | _SUM,
    "Add up your dx along a row: what must come out?",
    lambda g, xhat, r, *_: r * (g - xhat * row_mean(g * xhat)),
)
_in_dx(
    "gamma-outside",
    "gamma is pulled out of the means",
    _DX - _UNIT | _SUM | _ORTHOGONAL,
    "In which order do scale and normalise come forwards, and so backwards?",
    lambda g, xhat, r, dy, gamma: gamma * _dx(dy, xhat, r),
)
_in_dx(
    "gamma-twice-in-projection",
    "gamma stands inside the projection's mean and again outside it",
    _DX - _UNIT | _SUM | _ORTHOGONAL,
    "Count how often each gamma[i] may appear in each term.",
    lambda g, xhat, r, dy, gamma: r * (g - row_mean(g) - gamma * xhat * row_mean(g * xhat)),
)
_in_dx(
    "gamma-missing",
    "gamma is forgotten: dx is the same whatever gamma is",
    _DX - _UNIT,
    "Set one gamma to 0: what must its dy contribute to dx?",
    lambda g, xhat, r, dy, gamma: _dx(dy, xhat, r),
)
_in_dx(
    "gamma-twice",
    "gamma is multiplied in twice, by the caller and by the layer",
    _DX - _UNIT,
    "Who owns the scale: the caller or the layer?",
    lambda g, xhat, r, dy, gamma: _dx(gamma * g, xhat, r),
)
_in_dx(
    "gamma-missing-first",
    "gamma is forgotten in the first term only",
    _DX - _UNIT | _SUM | _ORTHOGONAL,
    "Which of your terms change when one gamma is set to 0?",
    lambda g, xhat, r, dy, gamma: r * (dy - row_mean(g) - xhat * row_mean(g * xhat)),
)
# With dy = 1 what is missing, r J 1, is nothing: ones-random-gamma does not see it.
_in_dx(
    "gamma-minus-one",
    "forward scales by 1 + w, backward by w",
    _DX - {"sum-y", "sum-y2", "ones-random-gamma"},
    "At w = 0, what does forward do to xhat, and what is your dx?",
    lambda g, xhat, r, dy, gamma: _dx(g - dy, xhat, r),
)
_in_dx(
    "y-for-xhat",
    "the scaled output gamma * xhat is used as xhat",
    _DX - _UNIT | _SUM | _ORTHOGONAL,
    "Print mean and variance of the array you call xhat.",
    lambda g, xhat, r, dy, gamma: _dx(g, gamma * xhat, r),
)
_in_dx(
    "centred-for-xhat",
    "x - mean is used as xhat in the projection, both times",
    _DX - {"sum-y", "standardised"} | _ORTHOGONAL,
    "Check the units: x in metres, what must dx be in?",
    lambda g, xhat, r, *_: _dx(g, xhat / r, r),
)
_in_dx(
    "centred-once",
    "in the projection 1/s is missing, or x - mean stands once for xhat",
    _DX - {"sum-y", "standardised"} | _ORTHOGONAL,
    "Check the units: x in metres, what must dx be in?",
    lambda g, xhat, r, *_: r * (g - row_mean(g) - xhat / r * row_mean(g * xhat)),
)
_in_dx(
    "extra-rstd-in-projection",
    "one 1/s too many in the projection: s**3 was kept when x - mean became xhat",
    _DX - {"sum-y", "standardised"} | _ORTHOGONAL,
    "Scale x by 10: every term of dx must scale alike.",
    lambda g, xhat, r, *_: r * (g - row_mean(g) - r * xhat * row_mean(g * xhat)),
)
_in_dx(
    "missing-rstd",
    "the division by s at the end is missing",
    _DX - {"sum-y", "sum-y2", "standardised"},
    "Double the input: should the gradient stay, double or halve?",
    lambda g, xhat, r, *_: g - row_mean(g) - xhat * row_mean(g * xhat),
)
_in_dx(
    "variance-for-std",
    "dx is divided by the variance, not by its root",
    _DX - {"sum-y", "sum-y2", "standardised"},
    "Double the input: should the gradient stay, halve or fall to a quarter?",
    lambda g, xhat, r, *_: _dx(g, xhat, r * r),
)


_in_dx(
    "statistics-of-xhat",
    "mean and variance are computed again, but from xhat, so s is about 1",
    _DX - {"sum-y", "standardised"},
    "Which array does the forward pass divide by its standard deviation?",
    lambda g, xhat, r, *_: _dx(g, *_normalised_again(xhat, _centred(xhat, r)[2])),
)
_in_dx(
    "projection-times-two",
    "the 2 of the square is kept, the 1/2 of the root is lost",
    _DX - {"sum-y"} | _ORTHOGONAL,
    "Differentiate sqrt(v) at v = 4 by hand.",
    lambda g, xhat, r, *_: r * (g - row_mean(g) - 2 * xhat * row_mean(g * xhat)),
)
_in_dx(
    "mean-twice",
    "the mean of g is subtracted twice",
    _DX - {"sum-y2"} | _SUM,
    "Add up your dx along a row: what must come out?",
    lambda g, xhat, r, *_: r * (g - 2 * row_mean(g) - xhat * row_mean(g * xhat)),
)
_in_dx(
    "projection-halved",
    "the 1/2 of the root is kept, the 2 of the square is lost",
    _DX - {"sum-y"} | _ORTHOGONAL,
    "Differentiate c**2 at c = 3 by hand.",
    lambda g, xhat, r, *_: r * (g - row_mean(g) - xhat * row_mean(g * xhat) / 2),
)
_in_dx(
    "projection-added",
    "the projection has the wrong sign",
    _DX - {"sum-y"} | _ORTHOGONAL,
    "If one y grows, must the answer of the divisor help or oppose?",
    lambda g, xhat, r, *_: r * (g - row_mean(g) + xhat * row_mean(g * xhat)),
)
_in_dx(
    "means-over-d-again",
    "both means are divided by D once more",
    _DX | _SUM | _ORTHOGONAL,
    "Let D grow: which terms should survive?",
    lambda g, xhat, r, *_: (
        r * (g - row_mean(g) / g.shape[-1] - xhat * row_mean(g * xhat) / g.shape[-1])
    ),
)
_in_dx(
    "dx-over-d",
    "the whole of dx is divided by D",
    _DX - {"sum-y", "sum-y2"},
    "Take D = 1000: is a gradient a thousand times smaller plausible?",
    lambda g, xhat, r, *_: _dx(g, xhat, r) / g.shape[-1],
)
_in_dx(
    "sums-for-means",
    "sums stand where means belong",
    _DX | _SUM | _ORTHOGONAL,
    "Compare D = 4 with D = 400: does the error grow?",
    lambda g, xhat, r, *_: (
        r * (g - g.shape[-1] * row_mean(g) - g.shape[-1] * xhat * row_mean(g * xhat))
    ),
)
_in_dx(
    "rows-for-features",
    "sums over D are divided by the number of rows",
    _DX - {"square"} | _SUM | _ORTHOGONAL,
    "Test with dimensions that are all different.",
    lambda g, xhat, r, *_: (
        r * (g - g.shape[-1] ** 2 / g.size * (row_mean(g) + xhat * row_mean(g * xhat)))
    ),
)
_in_dx(
    "batch-axis",
    "the means run over the rows, as in batch norm",
    _DX | _SUM | _ORTHOGONAL | _ROWS,
    "Change row 2: may the gradient of row 1 change?",
    lambda g, xhat, r, *_: _dx(g, xhat, r, AXES["batch-axis"]),
)
_in_dx(
    "whole-tile",
    "the sums run over all rows of a tile (rows worked on together) at once",
    _DX - {"single-row"} | _SUM | _ORTHOGONAL | _ROWS,
    "Run one row, then the same row twice: does its gradient change?",
    lambda g, xhat, r, *_: _dx(g, xhat, r, AXES["whole-tile"]),
)
_in_dx(
    "two-d-assumed",
    "x of shape (B, T, D) is read as B rows of T * D features",
    _DX - _TWO_D - {"sum-y", "sum-y2"} | _SUM | _ORTHOGONAL | _ROWS,
    "Which axes does the forward pass reduce?",
    lambda g, xhat, r, *_: _dx(g, xhat, r, AXES["two-d-assumed"]),
)
_in_dx(
    "diagonal-jacobian",
    "only the diagonal of the Jacobian is kept",
    _DX | _SUM | _ORTHOGONAL,
    "The Jacobian is a full matrix: where did what lies beside its diagonal go?",
    lambda g, xhat, r, *_: r * g * (1 - (1 + xhat * xhat) / g.shape[-1]),
)
_in_dx(
    "norm-of-gradient",
    "dy is normalised, as if backward were forward again",
    _DX - {"sum-y"} | _SUM | _ORTHOGONAL,
    "Double dy: what must dx do?",
    lambda g, xhat, r, dy, gamma: (
        gamma * _less_mean(dy) / np.sqrt(row_mean(_less_mean(dy) ** 2) + 1e-5)
    ),
)


eps_dropped = _in_rstd(
    "eps-dropped",
    "backward computes s again without eps",
    _EPS,
    "Make sigma as small as sqrt(eps).",
    lambda c, var, eps, cache: 1 / np.sqrt(var),
)


@_register(
    "backward belongs to s = sqrt(var) + eps, forward has sqrt(var + eps)",
    _EPS,
    "Make sigma as small as sqrt(eps).",
)
def eps_outside_root(dy, cache):
    (c, var, eps), g = _centred(cache.xhat, cache.rstd), dy * cache.gamma
    s = np.sqrt(var) + eps
    return (g - row_mean(g)) / s - c * row_mean(g * c) / (np.sqrt(var) * s**2), *_sums(dy, c / s)


_in_dx(
    "exact-projection",
    "all of g along xhat is removed; eps lets a little of it through",
    _EPS,
    "At eps > 0, how long is xhat?",
    lambda g, xhat, r, *_: (
        r * (g - row_mean(g) - xhat * row_mean(g * xhat) / row_mean(xhat * xhat))
    ),
)


_in_rstd(
    "rstd-for-variance",
    "what forward saved as 1/s is read as the variance",
    (_DX | _PARAMETERS) - {"standardised"} | _ORTHOGONAL,
    "Scale x by 10: which way must the number you saved change?",
    lambda c, var, eps, cache: 1 / np.sqrt(cache.rstd + eps),
)


def padding(D):
    """Lanes beyond the row's end in a block of 2**k lanes, for each feature."""
    D = max(D, 1)
    return ((1 << (D - 1).bit_length()) - D) / D


_in_rstd(
    "padded-lanes",
    "lanes beyond the row's end count in its variance, each as -mean",
    (_DX | _PARAMETERS) - {"standardised"} | _ORTHOGONAL,
    "What does a lane that loaded 0 hold once the mean is subtracted?",
    lambda c, var, eps, cache: (
        1 / np.sqrt(var + padding(c.shape[-1]) * row_mean(cache.x.astype(c.dtype)) ** 2 + eps)
    ),
)
_in_dx(
    "ddof-mismatch",
    "the projection is divided by D - 1, the variance by D",
    _DX - {"sum-y", "wide-loose"} | _ORTHOGONAL,
    "Try the smallest D that makes sense.",
    lambda g, xhat, r, *_: r * (g - row_mean(g) - xhat * _row_sum(g * xhat) / (g.shape[-1] - 1)),
)


@_register(
    "the backward of layer norm with the sample variance (D - 1)",
    (_DX | _PARAMETERS) - {"wide-loose"},
    "Is the variance here an estimate or a definition?",
)
def sample_variance(dy, cache):
    (c, var, eps), g, ratio = (
        _centred(cache.xhat, cache.rstd),
        dy * cache.gamma,
        dy.shape[-1] / (dy.shape[-1] - 1),
    )
    r = 1 / np.sqrt(ratio * var + eps)
    return r * (g - row_mean(g) - ratio * c * r * row_mean(g * c * r)), *_sums(dy, c * r)


_in_sums(
    "dgamma-averaged",
    "dgamma is averaged over the rows, not summed",
    _PARAMETERS - {"single-row"},
    "Who divides by the number of rows, the loss or the layer? Once?",
    lambda dgamma, dbeta, dy, cache: ((dy * cache.xhat).mean(axis=leading(dy)), dbeta),
)
_in_sums(
    "dgamma-over-features",
    "dgamma is summed over the features: one number per row",
    _PARAMETERS | _SHAPE,
    "How many gammas does the layer own?",
    lambda dgamma, dbeta, dy, cache: ((dy * cache.xhat).sum(axis=-1, keepdims=True), dbeta),
)
_in_sums(
    "parameters-over-first-axis",
    "dgamma and dbeta are summed over the first axis only",
    _PARAMETERS - _TWO_D | _SHAPE,
    "Compare the shape of each gradient with that of its parameter.",
    lambda dgamma, dbeta, dy, cache: ((dy * cache.xhat).sum(axis=0), dy.sum(axis=0)),
)
_in_sums(
    "parameters-keep-an-axis",
    "dgamma and dbeta keep a leading axis, of length 1",
    _PARAMETERS - {"broadcasting-compare"} | _SHAPE,
    "Compare the shape of each gradient with that of its parameter.",
    lambda dgamma, dbeta, dy, cache: (dgamma[None], dbeta[None]),
)
_in_sums(
    "dgamma-from-y",
    "dgamma carries gamma: it is summed from dy * gamma * xhat",
    _PARAMETERS - _UNIT,
    "Which intermediate does gamma multiply?",
    lambda dgamma, dbeta, dy, cache: (cache.gamma * dgamma, dbeta),
)
_in_sums(
    "dgamma-from-centred",
    "dgamma is summed from dy * (x - mean)",
    _PARAMETERS - {"standardised"},
    "Which intermediate does gamma multiply?",
    lambda dgamma, dbeta, dy, cache: ((dy * cache.xhat / cache.rstd).sum(axis=leading(dy)), dbeta),
)
_in_sums(
    "dbeta-from-g",
    "dbeta carries gamma",
    _PARAMETERS - _UNIT,
    "Move beta by a little: by how much does y move?",
    lambda dgamma, dbeta, dy, cache: (dgamma, cache.gamma * dbeta),
)
_in_sums(
    "parameters-swapped",
    "dgamma and dbeta change places",
    _PARAMETERS,
    "After one step, which parameter moved, and why?",
    lambda dgamma, dbeta, dy, cache: (dbeta, dgamma),
)
_in_sums(
    "dgamma-from-dx",
    "dgamma is summed from dx, which was written over dy",
    _PARAMETERS,
    "When dgamma is summed, what does the buffer hold that held dy?",
    lambda dgamma, dbeta, dy, cache: (
        (right_backward(dy, cache)[0] * cache.xhat).sum(axis=leading(dy)),
        dbeta,
    ),
)
_in_sums(
    "dbeta-from-dx",
    "dbeta is summed from dx, which was written over dy",
    _PARAMETERS,
    "When dbeta is summed, what does the buffer hold that held dy?",
    lambda dgamma, dbeta, dy, cache: (dgamma, right_backward(dy, cache)[0].sum(axis=leading(dy))),
)


#: Rows that one block of "last-rows-missing" adds up.
BLOCK = 8


@_register(
    f"the rows after the last full block of {BLOCK} are missing in dgamma and dbeta",
    _PARAMETERS,
    "With one row more than a block has, how many blocks are there?",
)
def last_rows_missing(dy, cache):
    rows, D = math.prod(dy.shape[:-1]), dy.shape[-1]
    dy_rows, xhat_rows = (a.reshape(rows, D)[: rows // BLOCK * BLOCK] for a in (dy, cache.xhat))
    return right_backward(dy, cache)[0], *_sums(dy_rows, xhat_rows)


# Right answers that look different. Each is the formula plus or minus a term that is zero.


@_register(
    "the variance's own dependence on the mean is left out: "
    "that term has the factor mean(x - mean) = 0",
    (),
)
def no_mean_inside_variance(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    c, D = xhat / r, g.shape[-1]
    dvar = -0.5 * r**3 * (g * c).sum(axis=-1, keepdims=True)
    return r * g + dvar * 2 * c / D - r * row_mean(g), *_sums(dy, xhat)


_in_dx(
    "scaled-by-d",
    "D is multiplied in and divided out",
    (),
    "",
    lambda g, xhat, r, *_: (
        r / g.shape[-1] * (g.shape[-1] * g - _row_sum(g) - xhat * _row_sum(g * xhat))
    ),
)
_in_dx(
    "projection-first",
    "the mean is taken out after the projection: xhat has mean 0, so the order is free",
    (),
    "",
    lambda g, xhat, r, *_: r * _less_mean(g - xhat * row_mean(g * xhat)),
)


#: Wrong backwards, each with one mistake; pairwise different on the probes of the diagnosis.
MUTANTS = tuple(_mutants)

#: Right backwards that are written differently. No test may kill them.
HARMLESS = tuple(_harmless)
