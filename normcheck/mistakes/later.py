r"""Bugs from the wild that were read after chapter 6 was written: :mod:`normcheck` names them, the
chapter does not count them. See :mod:`~normcheck.mistakes.wild` for what a
:class:`~normcheck.mistakes.wild.Bug` is. What shipped with another formula for y is in
:mod:`~normcheck.mistakes.conventions`.

Of memory that nothing wrote, and of what lies beyond an array, a rebuilt bug has 0: there is no
other number to expect.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lnlib.rounding import round_to

from .catalogue import row_mean
from .wild import (
    as_rows,
    backward_of,
    distributed,
    forward_of,
    g_xhat_r,
    in_float,
    rms_with,
    with_statistics,
)

#: When the threads were read, as they were stored then.
READ = "November 2026"


class Seen(NamedTuple):
    """One bug in one kind of norm: fields as those of :class:`~normcheck.mistakes.wild.Bug`."""

    name: str
    threads: tuple
    kind: str
    cause: str
    forward: Callable
    backward: Callable
    mistake: str = ""


LAYER, RMS, BOTH = ("layer_norm",), ("rms_norm",), ("layer_norm", "rms_norm")
_seen = []


def _bug(name, threads, kinds, cause, *, forward=None, backward=None, around=None, mistake=""):
    """Put a bug on the list, once for each kind; ``around`` changes its forward and its backward as
    a whole.
    """
    for kind in kinds:
        pair = forward_of(kind, forward), backward_of(kind, backward)
        _seen.append(
            Seen(
                name,
                tuple(threads.split()),
                kind,
                cause,
                *(around(*pair) if around else pair),
                mistake,
            )
        )


def _dx(saved, g, xhat=None, r=None, mean=row_mean):
    """dx of layer norm, or of RMS norm where there is no beta, with one of its parts changed."""
    xhat, r = saved.cache.xhat if xhat is None else xhat, saved.cache.rstd if r is None else r
    return r * (g - (0 if saved.beta is None else mean(g)) - xhat * mean(g * xhat))


def _with_xhat(saved, dy, right, xhat, r):
    """All gradients from another xhat and r."""
    return _dx(saved, dy * saved.gamma, xhat, r), as_rows(dy * xhat).sum(axis=0), *right[2:]


# ---- Where arrays lie in memory
# ----------------------------------------------------------------------


def seen_in_memory(a, strides):
    """What a kernel sees in the memory of ``a`` that walks it with these strides; 0 where that is
    not its memory.
    """
    whole = a
    while isinstance(
        of := (
            getattr(whole.base, "base", None)
            if not isinstance(whole.base, np.ndarray)
            else whole.base
        ),
        np.ndarray,
    ):  # NumPy's as_strided puts an object of its own between
        whole = of
    if not (whole.flags.c_contiguous and a.size):
        return a
    start = (a.__array_interface__["data"][0] - whole.__array_interface__["data"][0]) // a.itemsize
    at = np.full(a.shape, start)
    for axis, (n, stride) in enumerate(zip(a.shape, strides)):
        at += (np.arange(n) * (stride // a.itemsize)).reshape(-1, *(1,) * (a.ndim - 1 - axis))
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
        seen = in_float(seen_in_memory(x, in_order(x)))
        c, beta = (seen, 0) if saved.beta is None else (seen - row_mean(saved.x), saved.beta)
        return (saved.gamma * c * saved.cache.rstd + beta).astype(x.dtype), saved

    return reading, backward


_bug(
    "triton-dy-walked-as-x",
    "pytorch/pytorch#194719 ByteDance-Seed/VeOmni#958 fla-org/flash-linear-attention#871",
    BOTH,
    "dy is walked with the strides of x",
    around=_walks_dy(lambda dy, of_x: of_x),
)
_bug(
    "quack-dy-taken-as-contiguous",
    "Dao-AILab/quack#88 ROCm/TransformerEngine#623",
    BOTH,
    "dy is read as if its numbers lay one behind the other",
    around=_walks_dy(lambda dy, of_x: in_order(dy)),
)
_bug(
    "unsloth-dy-column-stride",
    "unslothai/unsloth#10617 flagos-ai/FlagGems#1068 flagos-ai/FlagGems#1084",
    BOTH,
    "the stride of dy from row to row is kept, that from feature to feature is taken to be 1",
    around=_walks_dy(lambda dy, of_x: (*dy.strides[:-1], dy.itemsize)),
)
_bug(
    "lightllm-x-taken-as-contiguous",
    "ModelTC/LightLLM#1467",
    BOTH,
    "statistics are those of x, but y is computed from x as if its numbers lay one behind the"
    " other",
    around=_reads_x,
)


# ---- The formula of dx
# ------------------------------------------------------------------------------


def _aliased(dy, saved, right):
    """dx = x; dx *= -k; dx += dx, which was dy; dx *= r."""
    g, xhat, r = g_xhat_r(dy, saved)
    return -2 * r * r * saved.x * row_mean(g * xhat), *right[1:]


def _along_columns(a):
    """The means of the rows, laid along the columns: feature j gets that of row j."""
    means = row_mean(a).ravel()
    return np.resize(means, a.shape[-1]) if means.size else row_mean(a)


def _variance_for_rstd(dy, saved, right):
    v = 1 / saved.cache.rstd**2 - saved.eps
    return _with_xhat(saved, dy, right, saved.cache.xhat / saved.cache.rstd * v, v)


def _left_in_register(dy, saved, right, tile=32):
    """g of a tile with what the tiles before have left in the same lanes."""
    g, D = dy * saved.gamma, dy.shape[-1]
    for start in range(tile, D, tile):
        end = min(start + tile, D)
        g[..., start:end] += g[..., start - tile : end - tile]
    return _dx(saved, g), *right[1:]


def _once_more(dy, saved, right):
    """The saved xhat is normalised again, as if it were x."""
    xhat = saved.cache.xhat
    r = 1 / np.sqrt(row_mean(xhat * xhat) + saved.eps)
    return _with_xhat(saved, dy, right, xhat * r, r)


def _rows_beyond(forward, backward, most=65535):
    def cut(dy, saved):
        dx, *sums = backward(dy, saved)
        kept = np.arange(len(as_rows(dx)))[:, None] < most
        return np.where(kept, as_rows(dx), 0).reshape(dx.shape).astype(dx.dtype), *sums

    return forward, cut


_bug(
    "ggml-dx-over-dy",
    "ggml-org/ggml#1491 ggml-org/llama.cpp#24305",
    RMS,
    "dx is written over dy before dy is added, so that -2 r x mean(g xhat) r is left of it",
    backward=_aliased,
)
_bug(
    "attorch-sums-along-columns",
    "BobMcDear/attorch#17",
    BOTH,
    "the sums of the rows are laid along the columns: feature j gets that of row j",
    backward=lambda dy, saved, right: (
        _dx(saved, dy * saved.gamma, mean=_along_columns),
        *right[1:],
    ),
)
_bug(
    "flaggems-variance-for-rstd",
    "flagos-ai/FlagGems#5771",
    BOTH,
    "the buffer from which backward reads 1/s holds the mean square of the row",
    backward=_variance_for_rstd,
)
_bug(
    "tt-metal-register-not-zeroed",
    "tenstorrent/tt-metal#28803",
    BOTH,
    "a register is not set to 0 between tiles of 32, and g of a tile has that of the tiles before"
    " in it",
    backward=_left_in_register,
)
_bug(
    "mamba-normalised-once-more",
    "state-spaces/mamba#919",
    BOTH,
    "backward takes the saved rows, which are normalised, for x, and normalises them once more",
    backward=_once_more,
)
_bug(
    "apex-rows-beyond-65535",
    "NVIDIA/apex#411",
    BOTH,
    "rows from number 65535 on are not written",
    around=_rows_beyond,
)


# ---- dgamma and dbeta
# -------------------------------------------------------------------------------


def _distributed_dgamma(dy, saved, right):
    """xhat as r x - r m, with one rounding less, in the sum of dgamma alone."""
    xhat = distributed(saved.x, saved.gamma, saved.beta, saved.eps)[1]
    return right[0], as_rows(dy * xhat).sum(axis=0), right[2]


_bug(
    "pytorch-distributed-dgamma",
    "pytorch/pytorch#188375",
    LAYER,
    "dgamma is summed from xhat computed as r x - r mean, two large numbers of which one is rounded"
    " before",
    backward=_distributed_dgamma,
)
_bug(
    "paddle-parameters-not-written",
    "PaddlePaddle/Paddle#78794",
    LAYER,
    "the kernel of dgamma and dbeta is not launched; here they are 0",
    backward=lambda dy, saved, right: (right[0], *(np.zeros_like(a) for a in right[1:])),
)


# ---- Statistics and forward
# -------------------------------------------------------------------------


def _bfloat16_sum(a):
    """The sum of each row, added up feature by feature in bfloat16."""
    total = np.zeros((*a.shape[:-1], 1), a.dtype)
    for k in range(a.shape[-1]):
        total = round_to(total + a[..., k : k + 1], "bfloat16").astype(a.dtype)
    return total


def _bfloat16_mean(x, eps):
    """The mean from a sum in bfloat16, the mean of squares from one in float32."""
    mean = _bfloat16_sum(x) / max(x.shape[-1], 1)
    return mean, row_mean(x * x) - mean**2 + eps


def _whole_tiles(a, tile):
    """The sum of the features of whole tiles, over D."""
    D = a.shape[-1]
    return a[..., : D // tile * tile].sum(axis=-1, keepdims=True) / max(D, 1)


def _tail_statistics(tile):
    def statistics(x, eps):
        mean = _whole_tiles(x, tile)
        return mean, _whole_tiles((x - mean) ** 2, tile) + eps

    return {
        "layer_norm": with_statistics(statistics),
        "rms_norm": rms_with(lambda x, eps: _whole_tiles(x * x, tile) + eps),
    }


_bug(
    "mlir-aie-bfloat16-mean",
    "Xilinx/mlir-aie#3410",
    LAYER,
    "the sum of the mean is kept in bfloat16",
    forward=with_statistics(_bfloat16_mean),
)

#: Tiles whose tail may be left out: the bugs that differ in nothing else are told by the widths
#: that fail.
TILES = tuple(2**k for k in range(2, 11))

for _tile in TILES:
    for _kind in BOTH:
        _bug(
            f"tail-of-{_tile}-in-statistics",
            "tile-ai/tilelang-ascend#890",
            (_kind,),
            f"features after the last whole tile of {_tile} are left out of the statistics",
            forward=_tail_statistics(_tile)[_kind],
        )
    _bug(
        f"tail-of-{_tile}-in-means",
        "tile-ai/tilelang-ascend#890",
        BOTH,
        f"features after the last whole tile of {_tile} are left out of the means of dx",
        backward=lambda dy, saved, right, tile=_tile: (
            _dx(saved, dy * saved.gamma, mean=lambda a: _whole_tiles(a, tile)),
            *right[1:],
        ),
    )

#: All of them; some in both kinds of norm.
LATER = tuple(_seen)
