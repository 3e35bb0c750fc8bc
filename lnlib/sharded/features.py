r"""Features sharded: every rank has its own features of all rows, and of gamma and beta.

The mean of a row lies on no rank, and one number cannot hold it: each rank sends the quadruples of
its part of every row (:mod:`lnlib.sharded.groups`), and merges those of all ranks in one fixed
tree. So all ranks have the statistics of the whole row, with the same bits. dx needs two more means
of the whole row; dgamma and dbeta are this rank's own. Every function is a rank's program, as in
:mod:`lnlib.sharded.rows`. x, y, dy and dx have shape (..., width), gamma, beta, dgamma and dbeta
(width,), and a width may be 0. With ``reproducible`` parts are fixed blocks of ``block`` features
instead of whole shards: bits do not depend on how many ranks have them, if each has whole blocks.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .. import layernorm, validation
from ..norms import LAYER_NORM, RMS_NORM, Norm
from .groups import merge, merge_upstream, products, quadruples, quintuples, squares, tree
from .messages import GATHER, SAME, Program
from .rows import DTYPES, require_blocks, require_real, require_x

#: Features of a block, where the result must not depend on the number of ranks.
BLOCK = 128


class FeaturesCache(NamedTuple):
    """What backward needs of one rank's features; it shares no memory with forward's arguments."""

    xhat: np.ndarray  #: (..., width), float32 or float64, the normalised part of the rows
    rstd: np.ndarray  #: (..., 1), float64, of the whole row
    gamma: np.ndarray  #: (width,), a copy in gamma's dtype
    dtype: np.dtype  #: x's dtype, which dx will have
    D: int  #: features of the whole row
    block: int | None  #: features of a part, None for whole shards
    #: (..., 1), 2^-64 rstd; None unless a rstd is beyond the largest number
    beyond: np.ndarray | None = None
    norm: Norm = LAYER_NORM

    backend = "features"  # type: ignore[misc]


# What a norm sends of each part of a row, and how two parts are merged.
_FORWARD = {LAYER_NORM: (quadruples, merge), RMS_NORM: (squares, np.add)}
_BACKWARD = {LAYER_NORM: (quintuples, merge_upstream), RMS_NORM: (products, np.add)}


def _rows(a):
    """A copy, (rows, width) in float64; reshape(-1, 0) could not tell how many rows there are."""
    return np.array(a, np.float64, order="C").reshape(math.prod(a.shape[:-1]), a.shape[-1])


@np.errstate(all="ignore")
def _joined(join, parts, block):
    """The numbers of the whole row, one column each: parts of all ranks joined in one tree."""
    if not len(parts):
        raise ValueError("x: found no features on any rank, expected at least one")
    if block is not None:
        require_blocks(parts[:, :1, 0].ravel(), block, "features")
    return np.split(tree(join, parts), parts.shape[2], axis=1)


def _statistics(rows, eps, block, norm):
    """The numbers of whole rows, a column each, and e: rows out of range are scaled by 2**-e."""
    numbers_of, join = _FORWARD[norm]
    statistics = _joined(join, (yield GATHER, numbers_of(rows, block)), block)
    e = np.zeros((len(rows), 1), np.int64)
    smallest, largest = validation.RANGE["float64"]
    with np.errstate(all="ignore"):  # around a yield it would be the caller's, too
        var_eps = statistics[-1] / statistics[0] + eps
        # The same rows on all ranks, because the bits are. NaN is among them.
        redo = ~((smallest < var_eps) & (var_eps < largest))[:, 0]
    if redo.any():  # M <= 2**e; M is a rank's largest size, or the root of eps
        M = np.abs(rows[redo]).max(axis=1, initial=max(math.sqrt(eps), np.finfo(float).tiny))
        e[redo, 0] = (yield GATHER, np.frexp(M)[1].astype(np.int64)[None]).max(axis=0)
        with np.errstate(all="ignore"):
            rows[redo] = np.ldexp(rows[redo], -e[redo])
        again = _joined(join, (yield GATHER, numbers_of(rows[redo], block)), block)
        for column, new in zip(statistics, again):
            column[redo] = new
    return statistics, e


@np.errstate(all="ignore")
def _normalised(norm, x, rows, gamma, beta, eps, statistics, e, precise, block):
    """y and the cache, from the (n, m, r, S) or (n, S) of whole rows; overwrites ``rows``."""
    n, *mean, S = statistics
    compute = np.dtype(np.float64) if precise else validation.COMPUTE_DTYPE[x.dtype.name]
    scaled = 1 / np.sqrt(S / n + np.ldexp(eps, -2 * e))
    alone = (S == 0) & (eps > 0)  # all there is below the root is eps
    rstd = np.where(alone, 1 / np.sqrt(np.float64(eps)), np.ldexp(scaled, -e))
    beyond = None
    if np.isinf(rstd).any():
        beyond = np.where(alone, np.ldexp(rstd, -64), np.ldexp(scaled, -e - 64))
    for part in mean:
        rows -= part
    # Squares that vanish beside eps are a constant row's only if eps, scaled, has vanished, too.
    rows *= np.where(alone & (scaled == np.inf), 1, scaled)
    xhat = rows.astype(compute)
    y = gamma.astype(compute) * xhat
    y = (y + beta.astype(compute) if norm.beta else y).astype(x.dtype).reshape(x.shape)
    D = int(n[0, 0]) if len(n) else 0
    rstd, beyond = (a if a is None else a.reshape(*x.shape[:-1], 1) for a in (rstd, beyond))
    xhat = xhat.reshape(x.shape)
    return y, FeaturesCache(xhat, rstd, gamma.copy(), x.dtype, D, block, beyond, norm)


def _forward(norm, x, gamma, beta, eps, residual, precise, reproducible, block, finite):
    """y, h if there is a residual, and the cache of either norm; a shard may have no features."""
    x, residual = require_x(x, finite), require_real("residual", residual, finite)
    parameters = require_real("gamma", gamma), require_real("beta", beta)
    gamma, beta = validation.require_parameters(*parameters, x, norm)
    residual = validation.require_residual(residual, x)
    eps = validation.require_eps(eps)
    validation.require_count("block", block)
    block = block if validation.require_bool("reproducible", reproducible) else None
    told = {
        "eps": eps,
        "leading shape of x": x.shape[:-1],
        "dtype of x": x.dtype.name,
        "dtype of gamma": gamma.dtype.name,
        "precise": validation.require_precise(precise, x),
        "block": block,
    }
    yield SAME, told
    with np.errstate(all="ignore"):
        h = x if residual is None else x + residual
    rows = _rows(h)
    statistics, e = yield from _statistics(rows, eps, block, norm)
    y, cache = _normalised(norm, h, rows, gamma, beta, eps, statistics, e, precise, block)
    return (y, cache) if residual is None else (y, h, cache)


def layer_norm_forward(
    x: ArrayLike,
    gamma: ArrayLike,
    beta: ArrayLike,
    eps: float = 1e-5,
    *,
    residual: ArrayLike | None = None,
    precise: bool = False,
    reproducible: bool = False,
    block: int = BLOCK,
    finite: bool = False,
) -> Program[layernorm.Outputs]:
    r"""This rank's features of layer norm: :math:`y = \gamma (x - \mu) r + \beta`, and the cache.

    One message, 32 bytes a row and part: the quadruples; two more if some row is out of float64's
    range or holds NaN. Means over the D features of all ranks; eps, residual (this rank's features
    of it) and precise as in :func:`lnlib.layernorm.layer_norm_forward`. finite: NaN and Inf in x,
    residual are errors.
    """
    options = residual, precise, reproducible, block, finite
    return (yield from _forward(LAYER_NORM, x, gamma, beta, eps, *options))


def rms_norm_forward(
    x: ArrayLike,
    gamma: ArrayLike,
    eps: float = 1e-5,
    *,
    residual: ArrayLike | None = None,
    precise: bool = False,
    reproducible: bool = False,
    block: int = BLOCK,
    finite: bool = False,
) -> Program[layernorm.Outputs]:
    """This rank's features of RMS norm, and the cache. One message, 16 bytes a row and part."""
    options = residual, precise, reproducible, block, finite
    return (yield from _forward(RMS_NORM, x, gamma, None, eps, *options))


def _backward(norm, dy, cache, dh):
    validation.require_cache(cache, FeaturesCache, norm)
    like = cache.xhat.shape, cache.dtype, DTYPES
    dy, dh = validation.require_upstream(*like, dy=dy, dh=dh)
    xhat, g = _rows(cache.xhat), _rows(dy)
    with np.errstate(all="ignore"):
        terms = [g * xhat, g.copy()][: 1 + norm.beta]
        sums = [layernorm.sum_rows(a).astype(cache.gamma.dtype) for a in terms]
        g *= cache.gamma.astype(np.float64)
    numbers_of, join = _BACKWARD[norm]
    parts = yield GATHER, numbers_of(g, xhat, cache.block)
    _, *mean, along = _joined(join, parts, cache.block)
    with np.errstate(all="ignore"):
        for part in mean[:2]:  # behind m and r is the sum of xhat, which only merging needs
            g -= part
        xhat *= along / cache.D
        g -= xhat
        rstd = cache.rstd.reshape(len(g), 1)
        dx = g * rstd
        if cache.beyond is not None:
            large = np.ldexp(g * cache.beyond.reshape(len(g), 1), 64)
            dx = np.where(np.isinf(rstd), large, dx)
        dx = dx if dh is None else dx + _rows(dh)
        return dx.astype(cache.dtype).reshape(cache.xhat.shape), *sums


def layer_norm_backward(
    dy: ArrayLike, cache: FeaturesCache, dh: ArrayLike | None = None
) -> Program[layernorm.Gradients]:
    r"""This rank's features of dx, dgamma and dbeta of :func:`lnlib.layernorm.layer_norm_backward`.

    One message, 40 bytes a row and part: the mean of g, as carefully as that of x, and the sum of
    :math:`(g - \overline g)\,\hat x` (:func:`lnlib.sharded.groups.merge_upstream`).
    """
    return (yield from _backward(LAYER_NORM, dy, cache, dh))


def rms_norm_backward(
    dy: ArrayLike, cache: FeaturesCache, dh: ArrayLike | None = None
) -> Program[tuple[np.ndarray, np.ndarray]]:
    """This rank's features of RMS norm's dx and dgamma. One message, 16 bytes a row and part."""
    return (yield from _backward(RMS_NORM, dy, cache, dh))
