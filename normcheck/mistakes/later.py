"""Formulas of bugs that were read after chapter 6 was written: :mod:`normcheck` names them, the
chapter does not count them. See :mod:`~normcheck.mistakes.wild`.

Of memory that nothing wrote, and of what lies beyond an array, a rebuilt bug has 0: there is no
other number to expect.
"""

import itertools

import numpy as np

from lnlib.rounding import round_to

from .formula import row_mean
from .wild import (
    WILD,
    Bug,
    as_rows,
    bugs,
    dx_of,
    g_xhat_r,
    in_float,
    made,
    rms_with,
    with_statistics,
)


def _with_xhat(saved, dy, right, xhat, r):
    """All gradients from another xhat and r."""
    return dx_of(saved, dy * saved.gamma, xhat, r), as_rows(dy * xhat).sum(axis=0), *right[2:]


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
        seen = in_float(seen_in_memory(x, in_order(x)))
        c, beta = (seen, 0) if saved.beta is None else (seen - row_mean(saved.x), saved.beta)
        return (saved.gamma * c * saved.cache.rstd + beta).astype(x.dtype), saved

    return reading, backward


# ---- The formula of dx


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
    return dx_of(saved, g), *right[1:]


def _once_more(dy, saved, right):
    """The saved xhat is normalised again, as if it were x."""
    xhat = saved.cache.xhat
    r = 1 / np.sqrt(row_mean(xhat * xhat) + saved.eps)
    return _with_xhat(saved, dy, right, xhat * r, r)


# ---- Statistics and forward


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


#: Tiles whose tail may be left out: the bugs that differ in nothing else are told by the widths
#: that fail.
TILES = tuple(2**k for k in range(2, 11))


def _tails(tile):
    """The bugs of one width of tiles: in the statistics of either norm, and in the means of dx."""

    def statistics(x, eps):
        mean = _whole_tiles(x, tile)
        return mean, _whole_tiles((x - mean) ** 2, tile) + eps

    def means(dy, saved, right):
        tiled = dx_of(saved, dy * saved.gamma, mean=lambda a: _whole_tiles(a, tile))
        return tiled, *right[1:]

    forwards = {
        "layer_norm": with_statistics(statistics),
        "rms_norm": rms_with(lambda x, eps: _whole_tiles(x * x, tile) + eps),
    }
    row = dict.fromkeys(Bug._fields[:-2], "")
    row |= {"threads": "tile-ai/tilelang-ascend#890", "read": READ}
    for place, (kind, forward) in itertools.product(("statistics", "means"), forwards.items()):
        what = "means of dx" if place == "means" else place
        name = f"tail-of-{tile}-in-{place}"
        cause = f"features after the last whole tile of {tile} are left out of the {what}"
        wrong = ({}, {name: means}) if place == "means" else ({name: forward}, {})
        yield made(row | {"name": name, "kind": kind, "cause": cause}, *wrong)


#: Name of a bug -> what changes its forward and its backward as a whole.
AROUND = {
    "triton-dy-walked-as-x": _walks_dy(lambda dy, of_x: of_x),
    "quack-dy-taken-as-contiguous": _walks_dy(lambda dy, of_x: in_order(dy)),
    "unsloth-dy-column-stride": _walks_dy(lambda dy, of_x: (*dy.strides[:-1], dy.itemsize)),
    "lightllm-x-taken-as-contiguous": _reads_x,
}

#: Name of a bug -> its gradients.
BACKWARDS = {
    "ggml-dx-over-dy": _aliased,
    "attorch-sums-along-columns": lambda dy, saved, right: (
        dx_of(saved, dy * saved.gamma, mean=_along_columns),
        *right[1:],
    ),
    "flaggems-variance-for-rstd": _variance_for_rstd,
    "tt-metal-register-not-zeroed": _left_in_register,
    "mamba-normalised-once-more": _once_more,
}

#: When these threads were read.
READ = "November 2026"

#: All of them; some in both kinds of norm.
LATER = (
    *bugs(READ, {"mlir-aie-bfloat16-mean": with_statistics(_bfloat16_mean)}, BACKWARDS, AROUND),
    *(bug for tile in TILES for bug in _tails(tile)),
)

#: Every public bug.
BUGS = WILD + LATER
