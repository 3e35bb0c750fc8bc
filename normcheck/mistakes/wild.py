r"""Bugs from the wild: gradients and statistics that shipped, or nearly did, rebuilt from the
formula that caused them.

``bugs.csv`` has one row a bug: its public threads, its cause, what hid it. The formulas are here,
and in :mod:`~normcheck.mistakes.later` those of bugs read after chapter 6 was written; none of
their lines are those of the projects. A bug without a formula is one mistake of
:mod:`~normcheck.mistakes.catalogue`, and nothing else. What a bug does not touch is
:mod:`lnlib.layernorm`. Arguments are not checked: a bug does what its author would have written.

Left out are races, which NumPy cannot have, and what only several outputs, processes or nested
derivatives show.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lnlib.forms import eps_outside_backward
from lnlib.layernorm import (
    LayerNormCache,
    RMSNormCache,
    layer_norm_backward,
    layer_norm_forward,
    rms_norm_backward,
    rms_norm_forward,
)
from lnlib.rounding import round_to

from .catalogue import BLOCK, MUTANTS, padding
from .formula import row_mean

#: When the threads of chapter 6 were read, as they were stored then.
READ = "September 2026"

#: What hid a bug: each entry names one of these, and says how.
HIDDEN_BY = (
    *("gamma = 1", "shape", "not compared", "tolerance", "small eps"),
    *("mean 0, sigma 1", "path not run", "timing", "not told"),
)


class Bug(NamedTuple):
    """One bug in one kind of norm.

    * ``name``: the project, and what is wrong. ``threads``: public issues and pull requests, as
      owner/repository#number; the first tells most.
    * ``kind``: "layer_norm" or "rms_norm".
    * ``where``: "dx", "parameters" or "statistics": what is wrong first. ``cause``: one sentence.
    * ``hidden_by``: one of ``HIDDEN_BY``; ``hid``: how. ``kills``: the input, or the comparison,
      that shows it. ``status``: what had become of it when it was read. Empty in later bugs.
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

    @property
    def links(self):
        """The addresses of the threads; GitHub sends those of pull requests on."""
        return tuple(
            "https://github.com/" + thread.replace("#", "/issues/") for thread in self.threads
        )


class Saved(NamedTuple):
    """What a forward saves: arrays in the dtype of the arithmetic, and the library's cache."""

    x: np.ndarray
    y: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray | None
    eps: float
    cache: NamedTuple


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


_MUTANT = {mutant.name: mutant.backward for mutant in MUTANTS}


def in_float(a):
    """``a`` in the dtype of the arithmetic: half formats in float32."""
    return np.asarray(a, np.result_type(a, np.float32))


def _right(x, gamma, beta, eps):
    """y, xhat and 1/s of the library."""
    rms = beta is None
    y, cache = rms_norm_forward(x, gamma, eps) if rms else layer_norm_forward(x, gamma, beta, eps)
    return y, cache.xhat, cache.rstd


def forward_of(kind, formula):
    """A forward of the contract from ``formula(x, gamma, beta, eps) -> y, xhat, rstd``."""
    make = LayerNormCache if kind == "layer_norm" else RMSNormCache

    def run(x, gamma, beta, eps):
        wide, scale, shift = in_float(x), in_float(gamma), None if beta is None else in_float(beta)
        with np.errstate(all="ignore"):
            y, xhat, rstd = formula(wide, scale, shift, eps)
            kept = [a.astype(wide.dtype, copy=False) for a in (xhat, rstd, scale)]
            return y.astype(x.dtype), Saved(wide, y, scale, shift, eps, make(*kept, x.dtype))

    if kind == "rms_norm":
        return lambda x, gamma, eps=1e-5: run(x, gamma, None, eps)
    return lambda x, gamma, beta, eps=1e-5: run(x, gamma, beta, eps)


def backward_of(kind, formula):
    """A backward of the contract from ``formula(dy, saved, right) -> gradients``; ``right`` are
    those of the library.
    """
    library = layer_norm_backward if kind == "layer_norm" else rms_norm_backward

    def run(dy, saved):
        dtype = saved.cache.dtype
        cache, dy = saved.cache._replace(dtype=saved.x.dtype), in_float(dy)
        right = library(dy, cache)
        with np.errstate(all="ignore"):
            found = formula(dy, saved._replace(cache=cache), right) if formula else right
            return tuple(a.astype(dtype, copy=False) for a in found)

    return run


def bugs(read, forwards, backwards, around=()):
    """The bugs of ``bugs.csv`` that were ``read`` then, one for each kind of norm.

    Formulas are by name of the bug; ``around`` are functions that change both passes as a whole.
    """
    with Path(__file__).with_name("bugs.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["read"] == read]
    return tuple(
        made(row | {"kind": kind}, forwards, backwards, around)
        for row in rows
        for kind in row.pop("kinds").split()
    )


def made(row, forwards, backwards, around=()):
    """The :class:`Bug` of one row and one kind of norm."""
    name, kind, mistake = row["name"], row["kind"], row["mistake"]
    row = {key: text.format(BLOCK=BLOCK, READ=READ) for key, text in row.items()}
    backward = backwards.get(name)
    if mistake and not (name in forwards or backward):

        def backward(dy, saved, right):
            return _MUTANT[mistake](dy, saved.cache)

    pair = forward_of(kind, forwards.get(name, _right)), backward_of(kind, backward)
    forward, backward = around[name](*pair) if name in around else pair
    return Bug(
        **row | {"threads": tuple(row["threads"].split())}, forward=forward, backward=backward
    )


def g_xhat_r(dy, saved):
    """g, xhat and r."""
    return dy * saved.gamma, saved.cache.xhat, saved.cache.rstd


def dx_of(saved, g, xhat=None, r=None, mean=row_mean, second=1):
    """dx of layer norm, or of RMS norm where there is no beta, with one of its parts changed."""
    xhat, r = saved.cache.xhat if xhat is None else xhat, saved.cache.rstd if r is None else r
    first = 0 if saved.beta is None else mean(g)
    return r * (g - first - second * xhat * mean(g * xhat))


def as_rows(a):
    return a.reshape(-1, a.shape[-1])


# ---- The formula of dx


def _last_block(dy, saved, right, width=32):
    (g, xhat, r), D = g_xhat_r(dy, saved), dy.shape[-1]
    start = (D - 1) // width * width if D else 0
    last = (g * xhat)[..., start:].sum(axis=-1, keepdims=True) / max(D, 1)
    return r * (g - row_mean(g) - xhat * last), *right[1:]


def _output_for_input(dy, saved, right):
    g, xhat, r = g_xhat_r(dy, saved)
    c = saved.y - row_mean(saved.x)
    along = row_mean(g * c)
    return r * (g - row_mean(g)) - r**3 * along * (c - row_mean(c)), *right[1:]


def _two_d(dy, saved, right):
    """B rows of T * D numbers, with the first B of the B * T means and rstds; gamma repeats."""
    if dy.ndim < 3 or not dy.size:
        return right
    (g, _, r), (B, D) = g_xhat_r(dy, saved), (dy.shape[0], dy.shape[-1])
    mean, r = row_mean(saved.x).reshape(-1, 1)[:B], r.reshape(-1, 1)[:B]
    xhat, g, dy_rows = (saved.x.reshape(B, -1) - mean) * r, g.reshape(B, -1), dy.reshape(B, -1)
    dx = dx_of(saved, g, xhat, r)
    return dx.reshape(dy.shape), (dy_rows * xhat).sum(axis=0)[:D], dy_rows.sum(axis=0)[:D]


def _one_row(dy, saved, right):
    """Statistics read at the column's index; what lies behind arrays of length 1 is taken to be
    0.
    """
    (g, xhat, r), D = g_xhat_r(dy, saved), dy.shape[-1]
    if dy.size != D or not D:
        return right
    beyond = 1 / np.sqrt(np.maximum(saved.eps, np.finfo(r.dtype).tiny))
    r_read = np.where(np.arange(D) == 0, r, beyond)
    c, t = xhat / r, g * r_read.astype(r.dtype)
    return t - row_mean(t) - c * r**2 * row_mean(t * c), *right[1:]


# ---- dgamma and dbeta


def _row_index(dy, saved, right, tile=32):
    """xhat rebuilt from y, with beta and gamma of the row's index within a tile of columns."""
    n, D = as_rows(dy).shape
    k = np.arange(D) // tile * tile + np.arange(n)[:, None] % tile
    k = np.minimum(k, D - 1)
    xhat = (as_rows(saved.y) - saved.beta[k]) / saved.gamma[k]
    return right[0], (as_rows(dy) * xhat).sum(axis=0), right[2]


def _in_bfloat16(dy, saved, right, per_partial=8):
    products = as_rows(dy * saved.cache.xhat)
    total = np.zeros(dy.shape[-1], dy.dtype)
    for start in range(0, len(products), per_partial):
        partial = round_to(products[start : start + per_partial].sum(axis=0), "bfloat16")
        total = round_to(total + partial, "bfloat16")
    return right[0], total, right[2]


def _last_half(dy, saved, right):
    """Two micro-batches, of which the second overwrites what the first has left."""
    products, dy_rows = as_rows(dy * saved.cache.xhat), as_rows(dy)
    start = len(dy_rows) // 2
    return right[0], products[start:].sum(axis=0), dy_rows[start:].sum(axis=0)


def _half_of_a_warp(dy, saved, right):
    kept = np.arange(dy.shape[-1]) % 64 < 32
    return right[0], *(np.where(kept, a, 0).astype(dy.dtype) for a in right[1:])


# ---- Statistics and forward


def with_statistics(mean_and_var):
    """Layer norm with these statistics, a function (x, eps) -> mean, var + eps."""

    def formula(x, gamma, beta, eps):
        mean, var_eps = mean_and_var(x, eps)
        rstd = 1 / np.sqrt(var_eps)
        xhat = (x - mean) * rstd
        return gamma * xhat + beta, xhat, rstd

    return formula


def rms_with(mean_square):
    """RMS norm with this mean square + eps, a function (x, eps)."""

    def formula(x, gamma, beta, eps):
        rstd = 1 / np.sqrt(mean_square(x, eps))
        return gamma * x * rstd, x * rstd, rstd

    return formula


def variance(x):
    return row_mean((x - row_mean(x)) ** 2)


def _padded_width(x, eps, tile=32):
    N = -(-x.shape[-1] // tile) * tile
    mean = x.sum(axis=-1, keepdims=True) / N
    return mean, (x * x).sum(axis=-1, keepdims=True) / N - mean**2 + eps


def _sample(x, gamma, beta, eps):
    D = np.asarray(x.shape[-1], x.dtype)  # an array: at D = 1 it divides by 0, and says NaN
    s = np.sqrt(variance(x) * D / (D - 1) + eps)
    return gamma * (x - row_mean(x)) / s + beta, *_right(x, gamma, beta, eps)[1:]


def _sample_backward(dy, saved, right):
    if dy.shape[-1] > 1:
        return _MUTANT["sample-variance"](dy, saved.cache)
    return tuple(np.full_like(a, np.nan) for a in right)


def _outside_root(x, gamma, beta, eps):
    c = x - row_mean(x)
    s = np.sqrt(variance(x)) + eps
    return gamma * c / s + beta, c / s, 1 / s


def distributed(x, gamma, beta, eps):
    """xhat as r x - r m, a fused multiply-add: r m is rounded before, r x is not."""
    mean, rstd = row_mean(x), 1 / np.sqrt(variance(x) + eps)
    wide = np.float64 if x.dtype == np.float32 else np.longdouble
    xhat = (rstd.astype(wide) * x - rstd * mean).astype(x.dtype)
    return gamma * xhat + beta, xhat, rstd


def _scaled_eps(x, eps):
    largest = np.abs(x).max(axis=-1, keepdims=True, initial=0)
    return largest**2 * (row_mean((x / largest) ** 2) + eps)


def _squares_in(dtype):
    """The mean square, added up feature by feature in ``dtype``."""

    def mean_square(x, eps):
        total = np.zeros((*x.shape[:-1], 1), x.dtype)
        for k in range(x.shape[-1]):
            square = round_to(x[..., k : k + 1] ** 2 / x.shape[-1], dtype)
            total = round_to(total + square, dtype)
        return total + eps

    return mean_square


def _gamma_squared(dy, saved, right):
    return dx_of(saved, dy * saved.gamma**2), 2 * saved.gamma * right[1]


def _inverted(x, gamma, beta, eps):
    s = np.sqrt(row_mean(x * x) + eps)
    return gamma * x * s, x * s, s


#: Name of a bug -> its statistics and y.
FORWARDS = {
    "liger-padded-lanes": with_statistics(
        lambda x, eps: (row_mean(x), variance(x) + padding(x.shape[-1]) * row_mean(x) ** 2 + eps)
    ),
    "tt-metal-padded-width": with_statistics(_padded_width),
    "onnxruntime-one-pass": with_statistics(
        lambda x, eps: (row_mean(x), row_mean(x * x) - row_mean(x) ** 2 + eps)
    ),
    "pytorch-distributed": distributed,
    "flux-eps-outside-root": _outside_root,
    "coreml-scaled-eps": rms_with(_scaled_eps),
    "tt-mlir-sum-for-mean": rms_with(lambda x, eps: (x * x).sum(axis=-1, keepdims=True) + eps),
    "mlir-air-bfloat16-squares": rms_with(_squares_in("bfloat16")),
    "onnxruntime-float16-squares": rms_with(_squares_in("float16")),
    "torchtune-gamma-twice": lambda x, gamma, beta, eps: _right(x, gamma**2, beta, eps),
    "llm-foundry-rsqrt": _inverted,
    "allennlp-sample-variance": _sample,
}

#: Name of a bug -> its gradients, a function (dy, saved, the library's gradients).
BACKWARDS = {
    "megatron-gamma-twice": lambda dy, saved, right: (
        dx_of(saved, dy * saved.gamma, second=saved.gamma),
        *right[1:],
    ),
    "tt-metal-last-block": _last_block,
    "mlpack-output-for-input": _output_for_input,
    "flaggems-two-d": _two_d,
    "paddle-one-row": _one_row,
    "deepspeed-row-for-column": _row_index,
    "unsloth-no-dgamma": lambda dy, saved, right: (right[0], 0 * saved.gamma),
    "llm-c-bfloat16-sums": _in_bfloat16,
    "llm-c-overwritten": _last_half,
    "gpt-neox-averaged": lambda dy, saved, right: (right[0], right[1] / 4, right[2] / 4),
    "pytorch-half-of-a-warp": _half_of_a_warp,
    "flux-eps-outside-root": lambda dy, saved, right: (
        eps_outside_backward(dy * saved.gamma, saved.x, saved.eps),
        *right[1:],
    ),
    "torchtune-gamma-twice": _gamma_squared,
    "allennlp-sample-variance": _sample_backward,
}

#: The bugs of chapter 6, first those in the formula of dx, then dgamma and dbeta, then statistics.
WILD = bugs(READ, FORWARDS, BACKWARDS)
