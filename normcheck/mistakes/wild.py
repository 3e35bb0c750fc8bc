r"""Bugs from the wild: gradients and statistics that shipped, or nearly did, rebuilt from the
formula that caused them.

Each :class:`Bug` has a forward and a backward that behave as the public thread says the code did;
none of its lines are those of the project. ``forward(x, gamma, beta, eps) -> (y, saved)``, of RMS
norm without beta; ``backward(dy, saved) -> (dx, dgamma, dbeta)``, of RMS norm without dbeta. What a
bug does not touch is :mod:`lnlib.layernorm`. Arguments are not checked: a bug does what its author
would have written.

Left out are races, which NumPy cannot have, and what only several outputs, processes or nested
derivatives show.
"""

from collections.abc import Callable
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

from .catalogue import BLOCK, MUTANTS, padding, row_mean

#: When the threads were read, as they were stored then.
READ = "September 2026"

#: What hid a bug: each entry names one of these, and says how.
HIDDEN_BY = (
    "gamma = 1",
    "shape",
    "not compared",
    "tolerance",
    "small eps",
    "mean 0, sigma 1",
    "path not run",
    "timing",
    "not told",
)


class Bug(NamedTuple):
    """One bug.

    * ``name``: kebab-case: the project, and what is wrong.
    * ``threads``: tuple of public issues and pull requests, as owner/repository#number; the first
      tells most.
    * ``kind``: "layer_norm" or "rms_norm".
    * ``where``: "dx", "parameters" or "statistics": what is wrong first.
    * ``cause``: one sentence.
    * ``hidden_by``: one of ``HIDDEN_BY``; ``hid``: how.
    * ``kills``: the input, or the comparison, that shows it.
    * ``status``: what had become of it in ``READ``.
    * ``forward``, ``backward``: see the module.
    * ``mistake``: its name in :mod:`normcheck.mistakes.catalogue`; empty where that has none.
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
    forward: Callable
    backward: Callable
    mistake: str = ""

    @property
    def links(self):
        """The addresses of the threads; GitHub sends those of pull requests on."""
        return tuple(
            "https://github.com/" + thread.replace("#", "/issues/") for thread in self.threads
        )


class Saved(NamedTuple):
    """What a forward saves: the arrays in the dtype of the arithmetic, and the cache of
    :mod:`lnlib.layernorm`.
    """

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


_bugs = []
_MUTANT = {mutant.name: mutant.backward for mutant in MUTANTS}


def in_float(a):
    """``a`` in the dtype of the arithmetic: half formats in float32."""
    return np.asarray(a, np.result_type(a, np.float32))


def forward_of(kind, formula):
    """A forward of the contract from ``formula(x, gamma, beta, eps) -> y, xhat, rstd``; the
    library's, if None.
    """
    make = LayerNormCache if kind == "layer_norm" else RMSNormCache

    def run(x, gamma, beta, eps):
        wide, scale, shift = in_float(x), in_float(gamma), None if beta is None else in_float(beta)
        with np.errstate(all="ignore"):
            if formula is None and shift is None:
                y, cache = rms_norm_forward(wide, scale, eps)
            elif formula is None:
                y, cache = layer_norm_forward(wide, scale, shift, eps)
            else:
                y, xhat, rstd = formula(wide, scale, shift, eps)
                cache = make(
                    *(a.astype(wide.dtype, copy=False) for a in (xhat, rstd, scale)), wide.dtype
                )
            return y.astype(x.dtype), Saved(
                wide, y, scale, shift, eps, cache._replace(dtype=x.dtype)
            )

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
            found = right if formula is None else formula(dy, saved._replace(cache=cache), right)
            return tuple(a.astype(dtype, copy=False) for a in found)

    return run


def _bug(
    name,
    threads,
    kind,
    where,
    cause,
    hidden_by,
    hid,
    kills,
    status,
    *,
    forward=None,
    backward=None,
    mistake="",
):
    """Put a bug on the list; one that has only a ``mistake`` is that entry of the catalogue, and
    nothing else.
    """
    if mistake and not (forward or backward):

        def backward(dy, saved, right):
            return _MUTANT[mistake](dy, saved.cache)

    _bugs.append(
        Bug(
            name,
            tuple(threads.split()),
            kind,
            where,
            cause,
            hidden_by,
            hid,
            kills,
            status,
            forward_of(kind, forward),
            backward_of(kind, backward),
            mistake,
        )
    )


def g_xhat_r(dy, saved):
    """g, xhat and r."""
    return dy * saved.gamma, saved.cache.xhat, saved.cache.rstd


def as_rows(a):
    return a.reshape(-1, a.shape[-1])


# ---- The formula of dx
# ------------------------------------------------------------------------------


def _gamma_twice(dy, saved, right):
    g, xhat, r = g_xhat_r(dy, saved)
    return r * (g - saved.gamma * xhat * row_mean(g * xhat)), right[1]


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
    dx = r * (g - row_mean(g) - xhat * row_mean(g * xhat))
    return dx.reshape(dy.shape), (dy_rows * xhat).sum(axis=0)[:D], dy_rows.sum(axis=0)[:D]


def _one_row(dy, saved, right):
    """Statistics read at the column's index; what lies behind arrays of length 1 is taken to be
    0.
    """
    (g, xhat, r), D = g_xhat_r(dy, saved), dy.shape[-1]
    if dy.size != D or not D:
        return right
    r_read = np.where(
        np.arange(D) == 0, r, 1 / np.sqrt(np.maximum(saved.eps, np.finfo(r.dtype).tiny))
    )
    c, t = xhat / r, g * r_read.astype(r.dtype)
    return t - row_mean(t) - c * r**2 * row_mean(t * c), *right[1:]


_bug(
    "megatron-gamma-twice",
    "NVIDIA/Megatron-LM#6859",
    "rms_norm",
    "dx",
    "gamma stands inside the mean of the projection and again outside it",
    "gamma = 1",
    "the parity test draws dy and looks at dx and dgamma, but leaves gamma at 1",
    "random gamma",
    "open; in the code since December 2025",
    backward=_gamma_twice,
    mistake="gamma-twice-in-projection",
)
_bug(
    "tt-metal-mean-twice",
    "tenstorrent/tt-metal#53204 tenstorrent/tt-metal#53215",
    "layer_norm",
    "dx",
    "a register kept the last sum, so the mean of g is subtracted twice",
    "tolerance",
    "the test allowed an absolute error of 0.5",
    "a relative tolerance; the sum of each row of dx",
    "fixed in August 2026",
    mistake="mean-twice",
)
_bug(
    "tt-metal-last-block",
    "tenstorrent/tt-metal#53204 tenstorrent/tt-metal#53215",
    "layer_norm",
    "dx",
    "of a row too long for fast memory only the last block counts in mean(g xhat)",
    "tolerance",
    "the test allowed an absolute error of 0.5",
    "a row of more than one block, and a relative tolerance",
    "fixed in August 2026",
    backward=_last_block,
)
_bug(
    "pytorch-gamma-missing-first",
    "pytorch/pytorch#41595 pytorch/pytorch#41332",
    "layer_norm",
    "dx",
    "the formula used with create_graph=True has dy in its first term where g belongs",
    "gamma = 1",
    "the review asks whether gamma different from 1 is tested at all",
    "random gamma, on every path through the code",
    "fixed in July 2020",
    mistake="gamma-missing-first",
)
_bug(
    "transformer-engine-gamma-minus-one",
    "NVIDIA/TransformerEngine#67",
    "layer_norm",
    "dx",
    "forward scales by 1 + w; backward is not told, and scales by w",
    "path not run",
    "backward was not run with the option",
    "numbers of dx; at w = 0 it is 0",
    "found in review, 2023",
    mistake="gamma-minus-one",
)
_bug(
    "chainer-exact-projection",
    "chainer/chainer#4744 chainer/chainer#4816",
    "layer_norm",
    "dx",
    "the derivative of 1/s divides by the variance where variance + eps belongs",
    "small eps",
    "eps was far below the variance, and the error is eps / variance of one term",
    "eps near the variance; a constant row",
    "fixed in May 2018",
    mistake="exact-projection",
)
_bug(
    "mlpack-output-for-input",
    "mlpack/mlpack#1923 mlpack/mlpack#1930",
    "layer_norm",
    "dx",
    "backward is handed the layer's output, and the formula takes it for x",
    "not compared",
    "the gradient test moved parameters, and no layer stood before the one tested, so dx went"
    " nowhere",
    "numbers of dx",
    "fixed in June 2019",
    backward=_output_for_input,
)
_bug(
    "aidotnet-rstd-for-variance",
    "ooples/AiDotNet.Tensors#784",
    "layer_norm",
    "dx",
    "forward saves 1/s in a slot called variance, and backward takes 1/sqrt(. + eps) of it",
    "mean 0, sigma 1",
    "with standardised rows 1/s and the variance are both 1",
    "sigma far from 1",
    "fixed in July 2026",
    mistake="rstd-for-variance",
)
_bug(
    "flaggems-two-d",
    "flagos-ai/FlagGems#5392 flagos-ai/FlagGems#5474",
    "layer_norm",
    "dx",
    "backward reads x of shape (B, T, D) as B rows of T * D features",
    "shape",
    "the shapes tested were 2-D",
    "three axes",
    "open; in version 5.0.2",
    backward=_two_d,
    mistake="two-d-assumed",
)
_bug(
    "flaggems-whole-tile",
    "flagos-ai/FlagGems#59",
    "layer_norm",
    "dx",
    "the sums of backward run over all rows of a tile",
    "shape",
    "it was right as long as a tile held one row",
    "several rows",
    "fixed in 2024",
    mistake="whole-tile",
)
_bug(
    "paddle-one-row",
    "PaddlePaddle/Paddle#35498 PaddlePaddle/Paddle#35480",
    "layer_norm",
    "dx",
    "the kernel for a single row reads mean[i] and var[i], i the column, from arrays of length 1",
    "shape",
    "no test had one row",
    "one row",
    "fixed in September 2021",
    backward=_one_row,
)


# ---- dgamma and dbeta
# -------------------------------------------------------------------------------


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
    return (
        right[0],
        np.where(kept, right[1], 0).astype(dy.dtype),
        np.where(kept, right[2], 0).astype(dy.dtype),
    )


_bug(
    "deepspeed-row-for-column",
    "deepspeedai/DeepSpeed#692",
    "layer_norm",
    "parameters",
    "xhat is rebuilt as (y - beta[k]) / gamma[k] with the row's index k where the column's belongs",
    "path not run",
    "the option was never on, and at gamma = 1, beta = 0 every index is right",
    "random gamma and beta, with every option",
    "fixed in January 2021",
    backward=_row_index,
)
_bug(
    "oneflow-parameters-swapped",
    "Oneflow-Inc/oneflow#6149",
    "layer_norm",
    "parameters",
    "dgamma and dbeta change places",
    "not compared",
    "both have the same shape",
    "numbers of dgamma and dbeta",
    "fixed in September 2021",
    mistake="parameters-swapped",
)
_bug(
    "pytorch-jit-dgamma-from-g",
    "pytorch/pytorch#18233",
    "layer_norm",
    "parameters",
    "dgamma is summed from a dy that already carries gamma",
    "gamma = 1",
    "at gamma = 1 it is right",
    "random gamma",
    "replaced in 2019",
    mistake="dgamma-from-y",
)
_bug(
    "unsloth-no-dgamma",
    "unslothai/unsloth#4533 unslothai/unsloth#4550",
    "rms_norm",
    "parameters",
    "dgamma is never computed; here it is 0",
    "not compared",
    "the test looks at dx alone",
    "numbers of dgamma",
    "closed; so in the code of August 2026",
    backward=lambda dy, saved, right: (right[0], 0 * saved.gamma),
)
_bug(
    "mlx-dbeta-from-dx",
    "tillahoffmann/jax-mps#168",
    "layer_norm",
    "parameters",
    "dbeta sums the buffer of dy while another kernel writes dx there; here all of it is"
    " overwritten",
    "timing",
    "108 of 2000 runs were wrong",
    "many repetitions",
    "patched there, not yet where it came from",
    mistake="dbeta-from-dx",
)
_bug(
    "attorch-last-rows",
    "BobMcDear/attorch#18",
    "layer_norm",
    "parameters",
    f"the buffer of partial sums has a place for every full block of rows, here {BLOCK}; the rows"
    " after it are lost",
    "shape",
    "the sizes tested divide evenly",
    "a prime number of rows",
    "fixed in August 2026",
    mistake="last-rows-missing",
)
_bug(
    "llm-c-bfloat16-sums",
    "karpathy/llm.c#428 linkedin/Liger-Kernel#950",
    "layer_norm",
    "parameters",
    "dgamma is added up in bfloat16",
    "tolerance",
    "the tolerance was an absolute 20",
    "a relative tolerance, and thousands of rows",
    "fixed in 2024 and 2025",
    backward=_in_bfloat16,
)
_bug(
    "llm-c-overwritten",
    "karpathy/llm.c#408 karpathy/llm.c#476",
    "layer_norm",
    "parameters",
    "dgamma and dbeta are written where they must be added; here the second half of the rows"
    " overwrites the first",
    "path not run",
    "tests start from gradients that are 0",
    "two micro-batches, or gradients that are not 0",
    "fixed in 2024",
    backward=_last_half,
)
_bug(
    "gpt-neox-averaged",
    "EleutherAI/gpt-neox#1259 NVIDIA/Megatron-LM#1446",
    "layer_norm",
    "parameters",
    "rows are split over processes, here 4, and their dgamma and dbeta averaged, not added",
    "path not run",
    "one process alone is right",
    "one process against several",
    "fixed in 2024; closed",
    backward=lambda dy, saved, right: (right[0], right[1] / 4, right[2] / 4),
)
_bug(
    "pytorch-half-of-a-warp",
    "pytorch/pytorch#183861 pytorch/pytorch#183864",
    "layer_norm",
    "parameters",
    "a kernel written for warps of 64 lanes runs on 32, and half of each 64 columns of dgamma and"
    " dbeta is lost",
    "path not run",
    "the tests run on another device",
    "more than 32 columns, on every device",
    "fixed in May 2026",
    backward=_half_of_a_warp,
)


# ---- Statistics and forward
# -------------------------------------------------------------------------


def with_statistics(mean_and_var):
    """Layer norm with these statistics, a function (x, eps) -> mean, var + eps."""

    def formula(x, gamma, beta, eps):
        mean, var_eps = mean_and_var(x, eps)
        rstd = 1 / np.sqrt(var_eps)
        xhat = (x - mean) * rstd
        return gamma * xhat + beta, xhat, rstd

    return formula


def rms_with(mean_square, output=lambda xhat, gamma: gamma * xhat):
    """RMS norm with this mean square + eps, a function (x, eps), and this output."""

    def formula(x, gamma, beta, eps):
        rstd = 1 / np.sqrt(mean_square(x, eps))
        return output(x * rstd, gamma), x * rstd, rstd

    return formula


def variance(x):
    return row_mean((x - row_mean(x)) ** 2)


def _padded_width(x, eps, tile=32):
    N = -(-x.shape[-1] // tile) * tile
    mean = x.sum(axis=-1, keepdims=True) / N
    return mean, (x * x).sum(axis=-1, keepdims=True) / N - mean**2 + eps


def _sample(x, gamma, beta, eps):
    y, cache = layer_norm_forward(x, gamma, beta, eps)
    c, D = (
        x - row_mean(x),
        np.asarray(x.shape[-1], x.dtype),
    )  # an array: at D = 1 it divides by 0, and says NaN
    return gamma * c / np.sqrt(variance(x) * D / (D - 1) + eps) + beta, cache.xhat, cache.rstd


def _sample_backward(dy, saved, right):
    if dy.shape[-1] == 1:
        return tuple(np.full_like(a, np.nan) for a in right)
    return _MUTANT["sample-variance"](dy, saved.cache)


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
    g, xhat, r = dy * saved.gamma**2, saved.cache.xhat, saved.cache.rstd
    return r * (g - xhat * row_mean(g * xhat)), 2 * saved.gamma * right[1]


def _inverted(x, gamma, beta, eps):
    s = np.sqrt(row_mean(x * x) + eps)
    return gamma * x * s, x * s, s


_bug(
    "liger-padded-lanes",
    "linkedin/Liger-Kernel#518 unslothai/unsloth#1867",
    "layer_norm",
    "statistics",
    "lanes beyond the row's end hold 0 - mean, and their squares count in the variance",
    "shape",
    "D was a power of two in the tests, so that there are no such lanes; in the test added first"
    " the mean is 0",
    "D = 2^k + 1 and a mean",
    "fixed in early 2025; in the code since August 2024",
    forward=with_statistics(
        lambda x, eps: (row_mean(x), variance(x) + padding(x.shape[-1]) * row_mean(x) ** 2 + eps)
    ),
    mistake="padded-lanes",
)
_bug(
    "tt-metal-padded-width",
    "tenstorrent/tt-metal#42801",
    "layer_norm",
    "statistics",
    "sums are divided by the width of the padded row",
    "shape",
    "at multiples of the tile, 32, both widths are the same",
    "D not a multiple of 32",
    "read in " + READ,
    forward=with_statistics(_padded_width),
)
_bug(
    "onnxruntime-one-pass",
    "microsoft/onnxruntime#21935 microsoft/onnxruntime#28463 tracel-ai/burn#5607",
    "layer_norm",
    "statistics",
    "the variance is the mean of squares less the square of the mean",
    "mean 0, sigma 1",
    "digits are lost only where the mean is large against sigma",
    "mean / sigma of 1e4; constant rows",
    "fixed in #28463; open elsewhere",
    forward=with_statistics(lambda x, eps: (row_mean(x), row_mean(x * x) - row_mean(x) ** 2 + eps)),
)
_bug(
    "pytorch-distributed",
    "pytorch/pytorch#188372 pytorch/pytorch#188375",
    "layer_norm",
    "statistics",
    "xhat is computed as r x - r mean, two large numbers of which one is rounded before",
    "mean 0, sigma 1",
    "digits are lost only where the mean is large against sigma",
    "D = 1 and x = 1e6",
    "open",
    forward=distributed,
)
_bug(
    "flux-eps-outside-root",
    "FluxML/Flux.jl#2096 pyg-team/pytorch_geometric#2917 tracel-ai/burn#2185",
    "layer_norm",
    "statistics",
    "eps is added to sigma, not to the variance under the root",
    "mean 0, sigma 1",
    "at sigma = 1 the output moves by half of eps",
    "a constant row; sigma near the root of eps",
    "fixed in one project, a repair open in another",
    forward=_outside_root,
    mistake="eps-outside-root",
    backward=lambda dy, saved, right: (
        eps_outside_backward(dy * saved.gamma, saved.x, saved.eps),
        *right[1:],
    ),
)
_bug(
    "coreml-scaled-eps",
    "apple/coremltools#2821",
    "rms_norm",
    "statistics",
    "the row is divided by its largest element m before eps is added, so that eps counts as"
    " eps m^2",
    "mean 0, sigma 1",
    "on ordinary rows eps is nothing either way",
    "a spike in a quiet row; a row of zeros",
    "open",
    forward=rms_with(_scaled_eps),
)
_bug(
    "tt-mlir-sum-for-mean",
    "tenstorrent/tt-mlir#8798",
    "rms_norm",
    "statistics",
    "the sum of squares stands where their mean belongs",
    "tolerance",
    "outputs were compared by correlation, which a factor leaves at 1",
    "norms",
    "fixed",
    forward=rms_with(lambda x, eps: (x * x).sum(axis=-1, keepdims=True) + eps),
)
_bug(
    "mlir-air-bfloat16-squares",
    "Xilinx/mlir-air#1679",
    "rms_norm",
    "statistics",
    "squares are added up in bfloat16",
    "tolerance",
    "a correlation of 0.99 was asked for",
    "norms, and a wide row",
    "fixed",
    forward=rms_with(_squares_in("bfloat16")),
)
_bug(
    "onnxruntime-float16-squares",
    "microsoft/onnxruntime#29034 openvinotoolkit/openvino#35942",
    "rms_norm",
    "statistics",
    "squares are added up in float16; where they overflow, y is 0",
    "mean 0, sigma 1",
    "ordinary rows do not overflow",
    "large rows: their squares beyond 65504",
    "closed",
    forward=rms_with(_squares_in("float16")),
)
_bug(
    "torchtune-gamma-twice",
    "meta-pytorch/torchtune#11",
    "rms_norm",
    "statistics",
    "the output is multiplied by gamma twice",
    "gamma = 1",
    "tests ran with gamma at its initial 1",
    "random gamma",
    "fixed in 2023",
    forward=rms_with(lambda x, eps: row_mean(x * x) + eps, lambda xhat, gamma: gamma**2 * xhat),
    backward=_gamma_squared,
)
_bug(
    "llm-foundry-rsqrt",
    "mosaicml/llm-foundry#371 mosaicml/llm-foundry#372",
    "rms_norm",
    "statistics",
    "x is divided by 1/s, not multiplied",
    "not told",
    "the fix's review says that it had hardly been used",
    "any row with sigma other than 1",
    "fixed in June 2023",
    forward=_inverted,
)
_bug(
    "allennlp-sample-variance",
    "allenai/allennlp#953 LBANN/lbann#2024",
    "layer_norm",
    "statistics",
    "the variance is divided by D - 1",
    "tolerance",
    "y is off by 1 / 2D: nothing at D = 768",
    "a short row",
    "read in " + READ,
    forward=_sample,
    backward=_sample_backward,
    mistake="sample-variance",
)


#: All bugs. First those in the formula of dx, then dgamma and dbeta, then statistics.
WILD = tuple(_bugs)
