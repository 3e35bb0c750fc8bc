r"""Bugs from the wild: gradients and statistics that shipped, or nearly did, rebuilt from the
formula that caused them.

``bugs.csv`` has one row a bug: its public threads, its cause, what hid it, and a formula: of its
mean, which is 0 in RMS norm, and variance + eps, the ``statistics``; or a ``change`` of gradients
as in :mod:`~normcheck.mistakes.formula`. Longer formulas are here; no lines are those of the
projects. A bug without a formula is one mistake of :mod:`~normcheck.mistakes.catalogue`, and
nothing else. What a bug does not touch is :mod:`lnlib.layernorm`. Arguments are not checked: a bug
does what its author would have written.

Left out are races, which NumPy cannot have, and what only several outputs, processes or nested
derivatives show. Of memory that nothing wrote, and of what lies beyond an array, a rebuilt bug has
0: there is no other number to expect.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lnlib.layernorm import (
    LayerNormCache,
    RMSNormCache,
    layer_norm_backward,
    layer_norm_forward,
    rms_norm_backward,
    rms_norm_forward,
)
from lnlib.rounding import round_to

from .catalogue import BLOCK, changed, padding
from .formula import Formula, layer_norm_formula, row_mean, rows_of

#: When the threads of chapter 6 were read, as they were stored then.
READ = "September 2026"
#: When those were read that the chapter does not count.
READ_LATER = "November 2026"


class Bug(NamedTuple):
    """One bug in one kind of norm.

    * ``name``: the project, and what is wrong. ``threads``: public issues and pull requests, as
      owner/repository#number; the first tells most.
    * ``kind``: "layer_norm" or "rms_norm".
    * ``where``: "dx", "parameters" or "statistics": what is wrong first. ``cause``: one sentence.
    * ``hidden_by``: what hid it, in a word or two; ``hid``: how. ``kills``: the input, or the
      comparison, that shows it. ``status``: what had become of it when it was read. Empty in later
      bugs.
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
    """What a forward saves: arrays in the dtype of the arithmetic, and ``dtype``, that of x. A
    mutant takes it for a cache. beta is None in RMS norm.
    """

    x: np.ndarray
    y: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray | None
    eps: float
    xhat: np.ndarray
    rstd: np.ndarray
    dtype: np.dtype


def compare(bug, x, gamma, beta, dy, eps=1e-5):
    """What ``bug`` gives and what is right: two lists with y, dx, dgamma and, of layer norm, dbeta.

    Arguments are not checked: right and wrong are handed the same.
    """
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


def _library(x, gamma, beta, eps):
    """y, xhat and 1/s of the library."""
    rms = beta is None
    y, cache = rms_norm_forward(x, gamma, eps) if rms else layer_norm_forward(x, gamma, beta, eps)
    return y, cache.xhat, cache.rstd


def _forward(kind, formula):
    """A forward of the contract from ``formula(x, gamma, beta, eps) -> y, xhat, rstd``."""

    def forward(x, gamma, beta, eps=1e-5):
        wide, scale, shift = (None if a is None else _in_float(a) for a in (x, gamma, beta))
        with np.errstate(all="ignore"):
            y, *kept = formula(wide, scale, shift, eps)
            kept = [a.astype(wide.dtype, copy=False) for a in kept]
            return y.astype(x.dtype), Saved(wide, y, scale, shift, eps, *kept, x.dtype)

    if kind == "layer_norm":
        return forward
    return lambda x, gamma, eps=1e-5: forward(x, gamma, None, eps)


def _backward(formula):
    """A backward of the contract from ``formula(dy, saved, right) -> gradients``; ``right`` are
    those of the library.
    """

    def backward(dy, saved):
        dy, cache = _in_float(dy), (saved.xhat, saved.rstd, saved.gamma, saved.x.dtype)
        if saved.beta is None:
            right = rms_norm_backward(dy, RMSNormCache(*cache))
        else:
            right = layer_norm_backward(dy, LayerNormCache(*cache))
        with np.errstate(all="ignore"):
            found = formula(dy, saved, right)
            return tuple(a.astype(saved.dtype, copy=False) for a in found)

    return backward


def formula_of(dy, saved):
    """The right :class:`~normcheck.mistakes.Formula` of dx, of either norm."""
    return layer_norm_formula(dy, saved)._replace(mean=int(saved.beta is not None))


def _bugs(rows):
    """The :class:`Bug` of each row, one for each kind of norm."""
    changes = {row["name"]: row["change"] for row in rows_of("layer")}
    for row in rows:
        text = {key: value.format(BLOCK=BLOCK, READ=READ) for key, value in row.items()}
        name, change, statistics = row["name"], text.pop("change"), text.pop("statistics")
        wrong, formula = BACKWARDS.get(name), FORWARDS.get(name, _library)
        if statistics:
            formula = _with_statistics(statistics)
        elif row["mistake"] and not change and not wrong:
            change = changes[row["mistake"]]
        wrong = _with_change(change) if change else wrong or (lambda dy, saved, right: right)
        text["threads"] = tuple(text["threads"].split())
        for kind in text.pop("kinds").split():
            pair = _forward(kind, formula), _backward(wrong)
            forward, backward = AROUND[name](*pair) if name in AROUND else pair
            yield Bug(**text, kind=kind, forward=forward, backward=backward)


# ---- What stands in the table


def _row_sum(a):
    return a.sum(axis=-1, keepdims=True)


def _sum_in(dtype, a):
    """The sum of each row, added up feature by feature in ``dtype``."""
    total = np.zeros((*a.shape[:-1], 1), a.dtype)
    for k in range(a.shape[-1]):
        total = round_to(total + a[..., k : k + 1], dtype).astype(a.dtype)
    return total


def _along_columns(a):
    """The means of the rows, laid along the columns: feature j gets that of row j."""
    means = row_mean(a).ravel()
    return np.resize(means, a.shape[-1]) if means.size else row_mean(a)


def _last_half(a):
    """Two micro-batches, of which the second overwrites what the first has left."""
    rows = _as_rows(a)
    return rows[len(rows) // 2 :].sum(axis=0)


def _half_of_a_warp(a):
    return np.where(np.arange(a.shape[-1]) % 64 < 32, a, 0).astype(a.dtype)


def _whole_tiles(tile):
    """The mean of the features of whole tiles, over D."""
    return lambda a: _row_sum(a[..., : a.shape[-1] // tile * tile]) / max(a.shape[-1], 1)


_IN_CHANGES = {
    "along_columns": _along_columns,
    "last_half": _last_half,
    "half_of_a_warp": _half_of_a_warp,
    "whole_tiles": _whole_tiles,
}
_IN_STATISTICS = {
    "mean": row_mean,
    "sqrt": np.sqrt,
    "total": _row_sum,
    "variance": lambda x: row_mean((x - row_mean(x)) ** 2),
    "largest": lambda x: np.abs(x).max(axis=-1, keepdims=True, initial=0),
    "padding": padding,
    "padded": lambda D: -(-D // 32) * 32,
    "whole_tiles": _whole_tiles,
    "sum_in": _sum_in,
    "round_to": round_to,
    **{name: name for name in ("bfloat16", "float16")},
}


def _with_change(change):
    """The gradients with this change, in either norm."""
    backward = changed(change, formula_of, **_IN_CHANGES)
    return lambda dy, saved, right: backward(dy, saved)[: len(right)]


def _with_statistics(statistics):
    """The norm with these statistics, a text; ``centred`` is 0 in RMS norm."""

    def formula(x, gamma, beta, eps):
        given = {"x": x, "eps": eps, "D": x.shape[-1], "centred": int(beta is not None)}
        mean, var_eps = eval(statistics, _IN_STATISTICS | given)
        rstd = 1 / np.sqrt(var_eps)
        xhat = (x - mean) * rstd
        return gamma * xhat + (0 if beta is None else beta), xhat, rstd

    return formula


def _as_rows(a):
    return a.reshape(-1, a.shape[-1])


# ---- The formula of dx


def _last_block(dy, saved, right, width=32):
    f, D = formula_of(dy, saved), dy.shape[-1]
    start = (D - 1) // width * width if D else 0
    return f._replace(mean2=lambda a: _row_sum(a[..., start:]) / max(D, 1)).dx(), *right[1:]


def _two_d(dy, saved, right):
    """B rows of T * D numbers, with the first B of the B * T means and rstds; gamma repeats."""
    if dy.ndim < 3 or not dy.size:
        return right
    B, D = dy.shape[0], dy.shape[-1]
    mean, r = row_mean(saved.x).reshape(-1, 1)[:B], saved.rstd.reshape(-1, 1)[:B]
    g, dy_rows = (dy * saved.gamma).reshape(B, -1), dy.reshape(B, -1)
    xhat = (saved.x.reshape(B, -1) - mean) * r
    dx = Formula(g, None, r, *[xhat] * 3).dx()
    return dx.reshape(dy.shape), (dy_rows * xhat).sum(axis=0)[:D], dy_rows.sum(axis=0)[:D]


def _one_row(dy, saved, right):
    """Statistics read at the column's index; what lies behind arrays of length 1 is taken to be
    0.
    """
    r, D = saved.rstd, dy.shape[-1]
    if dy.size != D or not D:
        return right
    beyond = 1 / np.sqrt(np.maximum(saved.eps, np.finfo(r.dtype).tiny))
    r_read = np.where(np.arange(D) == 0, r, beyond)
    c, t = saved.xhat / r, dy * saved.gamma * r_read.astype(r.dtype)
    return t - row_mean(t) - c * r**2 * row_mean(t * c), *right[1:]


def _left_in_register(dy, saved, right, tile=32):
    """g of a tile with what the tiles before have left in the same lanes."""
    g, D = dy * saved.gamma, dy.shape[-1]
    for start in range(tile, D, tile):
        end = min(start + tile, D)
        g[..., start:end] += g[..., start - tile : end - tile]
    return formula_of(g, saved)._replace(gamma=None).dx(), *right[1:]


# ---- dgamma and dbeta


def _row_index(dy, saved, right, tile=32):
    """xhat rebuilt from y, with beta and gamma of the row's index within a tile of columns."""
    n, D = _as_rows(dy).shape
    k = np.arange(D) // tile * tile + np.arange(n)[:, None] % tile
    k = np.minimum(k, D - 1)
    xhat = (_as_rows(saved.y) - saved.beta[k]) / saved.gamma[k]
    return right[0], (_as_rows(dy) * xhat).sum(axis=0), right[2]


def _in_bfloat16(dy, saved, right, per_partial=8):
    products = _as_rows(dy * saved.xhat)
    total = np.zeros(dy.shape[-1], dy.dtype)
    for start in range(0, len(products), per_partial):
        partial = round_to(products[start : start + per_partial].sum(axis=0), "bfloat16")
        total = round_to(total + partial, "bfloat16")
    return right[0], total, right[2]


# ---- Statistics and forward


def _sample(x, gamma, beta, eps):
    c, D = x - row_mean(x), np.asarray(x.shape[-1], x.dtype)  # at D = 1 the array says NaN
    s = np.sqrt(row_mean(c**2) * D / (D - 1) + eps)
    return gamma * c / s + beta, *_library(x, gamma, beta, eps)[1:]


def _distributed(x, gamma, beta, eps):
    """xhat as r x - r m, a fused multiply-add: r m is rounded before, r x is not."""
    mean = row_mean(x)
    rstd = 1 / np.sqrt(row_mean((x - mean) ** 2) + eps)
    wide = np.float64 if x.dtype == np.float32 else np.longdouble
    xhat = (rstd.astype(wide) * x - rstd * mean).astype(x.dtype)
    return gamma * xhat + beta, xhat, rstd


# ---- Where arrays lie in memory


def seen_in_memory(a, strides):
    """What a kernel sees in the memory of ``a`` that walks it with these strides; 0 where that is
    not its memory.
    """
    whole = a
    while (of := whole.base) is not None:
        # NumPy's as_strided puts an object of its own between.
        of = of if isinstance(of, np.ndarray) else getattr(of, "base", None)
        if not isinstance(of, np.ndarray):
            break
        whole = of
    if not (whole.flags.c_contiguous and a.size):
        return a
    start = (a.__array_interface__["data"][0] - whole.__array_interface__["data"][0]) // a.itemsize
    at = start + sum(
        index * (stride // a.itemsize) for index, stride in zip(np.indices(a.shape), strides)
    )
    inside = (at >= 0) & (at < whole.size)
    return np.where(inside, whole.ravel()[np.where(inside, at, 0)], 0).astype(a.dtype)


def in_order(a):
    """The strides of an array of this shape whose numbers lie one behind the other."""
    return tuple(int(np.prod(a.shape[k + 1 :])) * a.itemsize for k in range(a.ndim))


def _walks_dy(strides):
    """A backward that walks dy with ``strides(dy, strides of x)``, and a forward that keeps those
    of x.
    """

    def around(forward, backward):
        def keeping(x, *rest):
            y, saved = forward(x, *rest)
            return y, (saved, x.strides)

        return keeping, lambda dy, both: backward(seen_in_memory(dy, strides(dy, both[1])), both[0])

    return around


def _reads_x(forward, backward):
    """Statistics of x, and y from the memory of x in order."""

    def reading(x, *rest):
        _, saved = forward(x, *rest)
        seen = _in_float(seen_in_memory(x, in_order(x)))
        c, beta = (seen, 0) if saved.beta is None else (seen - row_mean(saved.x), saved.beta)
        return (saved.gamma * c * saved.rstd + beta).astype(x.dtype), saved

    return reading, backward


# ---- The tables

#: Name of a bug -> its y, xhat and 1/s.
FORWARDS = {
    "pytorch-distributed": _distributed,
    "torchtune-gamma-twice": lambda x, gamma, beta, eps: _library(x, gamma**2, beta, eps),
    "allennlp-sample-variance": _sample,
}

#: Name of a bug -> its gradients, a function (dy, saved, the library's gradients).
BACKWARDS = {
    "tt-metal-last-block": _last_block,
    "flaggems-two-d": _two_d,
    "paddle-one-row": _one_row,
    "deepspeed-row-for-column": _row_index,
    "llm-c-bfloat16-sums": _in_bfloat16,
    "tt-metal-register-not-zeroed": _left_in_register,
}

#: Name of a bug -> what changes its forward and its backward as a whole.
AROUND = {
    "triton-dy-walked-as-x": _walks_dy(lambda dy, of_x: of_x),
    "quack-dy-taken-as-contiguous": _walks_dy(lambda dy, of_x: in_order(dy)),
    "unsloth-dy-column-stride": _walks_dy(lambda dy, of_x: (*dy.strides[:-1], dy.itemsize)),
    "lightllm-x-taken-as-contiguous": _reads_x,
}

with Path(__file__).with_name("bugs.csv").open(encoding="utf-8", newline="") as _file:
    _ROWS = list(csv.DictReader(_file))

#: Tiles whose tail may be left out: the bugs that differ in nothing else are told by the widths
#: that fail.
TILES = tuple(2**k for k in range(2, 11))


def _tails(tile):
    """The rows of one width of tiles: in the statistics of either norm, and in the means of dx."""
    row = dict.fromkeys(_ROWS[0], "") | {"read": READ_LATER, "kinds": "layer_norm rms_norm"}
    row["threads"] = "tile-ai/tilelang-ascend#890"
    cause = f"features after the last whole tile of {tile} are left out of the"
    mean = f"whole_tiles({tile})"
    yield row | {
        "name": f"tail-of-{tile}-in-statistics",
        "cause": f"{cause} statistics",
        "statistics": f"(m := centred * {mean}(x)), {mean}((x - m)**2) + eps",
    }
    yield row | {
        "name": f"tail-of-{tile}-in-means",
        "cause": f"{cause} means of dx",
        "change": f"mean1={mean}, mean2={mean}",
    }


for _tile in TILES:
    _ROWS += _tails(_tile)

#: The bugs of chapter 6, first those in the formula of dx, then dgamma and dbeta, then statistics.
WILD = tuple(_bugs(row for row in _ROWS if row["read"] == READ))

#: Those that were read later; some in both kinds of norm.
LATER = tuple(_bugs(row for row in _ROWS if row["read"] == READ_LATER))

#: Every public bug.
BUGS = WILD + LATER
