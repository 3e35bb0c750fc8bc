r"""Bugs from the wild: gradients and statistics that shipped, or nearly did, rebuilt from the
formula that caused them.

``bugs.csv`` has one row a bug: its public threads, its cause, what hid it, and a formula: the
``change`` of gradients as in :mod:`~normcheck.mistakes.formula`, or what is set in its ``forward``:
``mean``, which is 0 in RMS norm, and variance + eps, ``var_eps``; or ``xhat`` or ``y``. What takes
more than a line is here; no lines are those of the projects. A bug without a formula is one mistake
of :mod:`~normcheck.mistakes.catalogue`, and nothing else. What a bug does not touch is
:mod:`lnlib.layernorm`. Arguments are not checked: a bug does what its author would have written.

Left out are races, which NumPy cannot have, and what only several outputs, processes or nested
derivatives show. Of memory that nothing wrote, and of what lies beyond an array, a rebuilt bug has
0: there is no other number to expect.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lnlib.layernorm import (
    layer_norm_backward,
    layer_norm_forward,
    rms_norm_backward,
    rms_norm_forward,
)
from lnlib.rounding import round_to

from .catalogue import BLOCK, changed, padding
from .change import table
from .formula import Formula, compiled, layer_norm_formula, row_mean, rows_of

#: When the threads of chapter 6 were read, as they were stored then.
READ = "September 2026"


class Bug(NamedTuple):
    """One bug in one kind of norm.

    * ``name``: the project, and what is wrong. ``kind``: "layer_norm" or "rms_norm".
    * ``threads``: public issues and pull requests, owner/repository#number; the first tells most.
    * ``where``: "dx", "parameters" or "statistics": what is wrong first. ``cause``: one sentence.
    * ``hidden_by``: what hid it, in a word or two; ``hid``: how. ``kills``: the input, or the
      comparison, that shows it. ``status``: what had become of it when it was read. In later bugs
      ``where`` and all from ``hidden_by`` to ``status`` are empty.
    * ``mistake``: its name in :mod:`normcheck.mistakes.catalogue`; empty where that has none.
    * ``read``: when.
    * ``forward(x, gamma, beta, eps) -> (y, saved)``, of RMS norm without beta;
      ``backward(dy, saved) -> (dx, dgamma, dbeta)``, of RMS norm without dbeta.
    """

    name: str
    threads: tuple
    kind: str
    where: str
    cause: str
    hidden_by: str
    hid: str
    kills: str
    status: str
    mistake: str
    read: str
    forward: Callable
    backward: Callable


class Saved(NamedTuple):
    """What a forward saves: arrays in the dtype of the arithmetic, and x as it was ``given``. A
    mutant takes it for a cache. beta is None in RMS norm.
    """

    x: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray | None
    eps: float
    y: np.ndarray
    xhat: np.ndarray
    rstd: np.ndarray
    given: np.ndarray


def compare(bug, x, gamma, beta, dy, eps=1e-5):
    """What ``bug`` gives, and what is right: lists of y, dx, dgamma and, of layer norm, dbeta."""
    rms = bug.kind == "rms_norm"
    given = (x, gamma) if rms else (x, gamma, beta)
    forward = rms_norm_forward if rms else layer_norm_forward
    backward = rms_norm_backward if rms else layer_norm_backward
    y, cache = forward(*given, eps)
    wrong, saved = bug.forward(*given, eps)
    return [wrong, *bug.backward(dy, saved)], [y, *backward(dy, cache)]


# ---- From a formula to a bug


def _in_float(a):
    """``a`` in the dtype of the arithmetic: half formats in float32."""
    return np.asarray(a, np.result_type(a, np.float32))


def _forward(kind, change):
    """A forward of the contract, in which this text sets what is wrong."""

    def forward(x, gamma, beta, eps=1e-5):
        wide, scale, shift = (None if a is None else _in_float(a) for a in (x, gamma, beta))
        centred, plus = beta is not None, 0 if beta is None else shift
        with np.errstate(all="ignore"):
            if centred:
                y, cache = layer_norm_forward(wide, scale, shift, eps)
            else:
                y, cache = rms_norm_forward(wide, scale, eps)
            found = {"y": y, "xhat": cache.xhat, "rstd": cache.rstd}
            names = {"x": wide, "gamma": scale, "beta": plus, "eps": eps, "given": x}
            names |= {"D": x.shape[-1], "centred": int(centred)}
            changes = eval(compiled(change), _NAMES | found | names)
            if "mean" in changes:
                mean, rstd = changes.pop("mean"), 1 / np.sqrt(changes.pop("var_eps"))
                xhat = changes.pop("xhat", (wide - mean) * rstd)
                found = {"y": scale * xhat + plus, "xhat": xhat, "rstd": rstd}
            found = {key: a.astype(wide.dtype) for key, a in (found | changes).items()}
            return found["y"].astype(x.dtype), Saved(wide, scale, shift, eps, **found, given=x)

    if kind == "layer_norm":
        return forward
    return lambda x, gamma, eps=1e-5: forward(x, gamma, None, eps)


def formula_of(dy, saved):
    """The right :class:`~normcheck.mistakes.Formula` of dx, of either norm."""
    return layer_norm_formula(_in_float(dy), saved)._replace(mean=int(saved.beta is not None))


def _backward(change):
    """A backward of the contract with this change."""
    wrong = changed(change, formula_of, **_NAMES)

    def backward(dy, saved):
        with np.errstate(all="ignore"):
            found = wrong(dy, saved)[: 2 if saved.beta is None else 3]
            return tuple(a.astype(saved.given.dtype) for a in found)

    return backward


def _bugs():
    """The :class:`Bug` of each row, one for each kind of norm, and for each of the tiles."""
    changes = {row["name"]: row["change"] for row in rows_of("layer")}
    rows = table("bugs.csv")
    of_tiles = [(row, tile) for tile in TILES for row in rows if "{tile}" in row["name"]]
    for row, tile in [(row, 0) for row in rows if "{tile}" not in row["name"]] + of_tiles:
        text = {key: value.format(BLOCK=BLOCK, READ=READ, tile=tile) for key, value in row.items()}
        text["threads"] = tuple(text["threads"].split())
        change, forward = text.pop("change"), text.pop("forward")
        if not change and not forward:
            change = changes[text["mistake"]]
        for kind in text.pop("kinds").split():
            pair = {"forward": _forward(kind, forward), "backward": _backward(change)}
            yield Bug(**text, **pair, kind=kind)


# ---- What stands in the table


def _as_rows(a):
    return a.reshape(-1, a.shape[-1])


def _sum_in(dtype, a):
    """The sum of each row, added up feature by feature in ``dtype``."""
    total = np.zeros((*a.shape[:-1], 1), a.dtype)
    for k in range(a.shape[-1]):
        total = round_to(total + a[..., k : k + 1], dtype).astype(a.dtype)
    return total


def _along_columns(a):
    """The means of the rows, laid along the columns: feature j gets that of row j."""
    return np.resize(row_mean(a), a.shape[-1])


def _over_d(some):
    """The mean of ``some`` of the features, but over D."""
    return lambda a: some(a).sum(axis=-1, keepdims=True) / a.shape[-1]


def _left_in_register(g, tile=32):
    """g of a tile with what the tiles before have left in the same lanes."""
    for start in range(tile, g.shape[-1], tile):
        these = g[..., start : start + tile]
        these += g[..., start - tile : start][..., : these.shape[-1]]
    return g


def _in_bfloat16(products, per_partial=8):
    """The sum over the rows in bfloat16, of partial sums."""
    rows, total = _as_rows(products), np.zeros(products.shape[-1], products.dtype)
    for start in range(0, len(rows), per_partial):
        partial = round_to(rows[start : start + per_partial].sum(axis=0), "bfloat16")
        total = round_to(total + partial, "bfloat16")
    return total


def _rebuilt(saved, tile=32):
    """xhat rebuilt from y, with beta and gamma of the row's index within a tile of columns."""
    n, D = _as_rows(saved.y).shape
    k = np.arange(D) // tile * tile + np.arange(n)[:, None] % tile
    k = np.minimum(k, D - 1)
    return ((_as_rows(saved.y) - saved.beta[k]) / saved.gamma[k]).reshape(saved.y.shape)


def _two_d(dy, saved):
    """B rows of T * D numbers, with the first B of the B * T means and rstds; gamma repeats."""
    if dy.ndim < 3 or not dy.size:
        return {}
    B, D = dy.shape[0], dy.shape[-1]
    mean, r = row_mean(saved.x).reshape(-1, 1)[:B], saved.rstd.reshape(-1, 1)[:B]
    g, dy_rows = (dy * saved.gamma).reshape(B, -1), dy.reshape(B, -1)
    xhat = (saved.x.reshape(B, -1) - mean) * r
    dx = Formula(g, None, r, *[xhat] * 3).dx().reshape(dy.shape)
    sums = (a.sum(axis=0)[:D] for a in (dy_rows * xhat, dy_rows))
    return dict(zip(("dx", "dgamma", "dbeta"), (dx, *sums)))


def _one_row(dy, saved):
    """Statistics read at the column's index; behind arrays of length 1 there are zeros."""
    r, D = saved.rstd, dy.shape[-1]
    if dy.size != D:
        return {}
    first, beyond = np.arange(D) == 0, 1 / np.sqrt(np.maximum(saved.eps, np.finfo(r.dtype).tiny))
    c, dy = saved.xhat / r, dy * np.where(first, r, beyond).astype(r.dtype)
    t, dgamma = dy * saved.gamma, dy * np.where(first, c, saved.x)
    return {"dx": t - row_mean(t) - c * r**2 * row_mean(t * c), "dgamma": dgamma.reshape(D)}


def seen(a, strides):
    """What a kernel with these strides sees in the memory of ``a``; elsewhere it sees 0."""
    memory = [a]
    while (of := getattr(memory[-1], "base", None)) is not None:
        memory.append(of)  # also of no array: NumPy's as_strided puts an object between
    whole = [one for one in memory if isinstance(one, np.ndarray)][-1]
    if not whole.flags.forc:
        return _in_float(a)
    start = (a.__array_interface__["data"][0] - whole.__array_interface__["data"][0]) // a.itemsize
    at = start + sum(
        index * (stride // a.itemsize) for index, stride in zip(np.indices(a.shape), strides)
    )
    inside = (at >= 0) & (at < whole.size)
    return _in_float(np.where(inside, whole.ravel("K")[np.where(inside, at, 0)], 0).astype(a.dtype))


_NAMES = {
    "np": np,
    "mean": row_mean,
    "sqrt": np.sqrt,
    "total": lambda a: a.sum(axis=-1, keepdims=True),
    "variance": lambda x: row_mean((x - row_mean(x)) ** 2),
    "whole_tiles": lambda tile: _over_d(lambda a: a[..., : a.shape[-1] // tile * tile]),
    "last_block": _over_d(lambda a: a[..., (a.shape[-1] - 1) // 32 * 32 :]),
    # Of two micro-batches the second overwrites what the first has left.
    "last_half": lambda a: _as_rows(a)[math.prod(a.shape[:-1]) // 2 :].sum(axis=0),
    # The strides of an array of this shape whose numbers lie one behind the other.
    "in_order": lambda a: np.empty(a.shape, a.dtype).strides,
    **{of.__name__.lstrip("_"): of for of in (padding, round_to, _sum_in, _in_bfloat16, seen)},
    **{of.__name__[1:]: of for of in (_along_columns, _left_in_register, _rebuilt)},
    **{of.__name__[1:]: of for of in (_two_d, _one_row)},
}

#: Tiles whose tail may be left out: the bugs that differ in nothing else are told by the widths
#: that fail.
TILES = tuple(2**k for k in range(2, 11))

#: Every public bug.
BUGS = tuple(_bugs())

#: The bugs of chapter 6, first those in the formula of dx, then dgamma and dbeta, then statistics.
WILD = tuple(bug for bug in BUGS if bug.read == READ)

#: Those that were read later; some in both kinds of norm.
LATER = tuple(bug for bug in BUGS if bug.read != READ)
