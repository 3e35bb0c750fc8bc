r"""Rows sharded: every rank has all features of its own rows, and its own copy of gamma and beta.

y and dx need nobody. dgamma and dbeta are sums over all rows: each rank adds up its own, and one
message adds those. A *sum*, never a mean: dy belongs to one loss, whoever computed it. Every
function is a rank's program, to be called by ``yield from`` inside one, or to be handed to
:func:`~lnlib.sharded.simulator.simulate` or :func:`~lnlib.sharded.mpi.run`. Arguments, results and
errors are those of :mod:`lnlib.layernorm`, but for complex128 and ``round_twice``; an error on one
rank is a :class:`~lnlib.sharded.messages.RankError` on all.
"""

import zlib

import numpy as np
from numpy.typing import ArrayLike

from .. import layernorm, validation
from ..layernorm import NormCache
from ..norms import LAYER_NORM, RMS_NORM
from .groups import tree
from .messages import GATHER, SAME, SUM, Program

#: Rows of a block with sums of its own, where results must not depend on the number of ranks.
BLOCK = 64

DTYPES = "float64", "float32", "float16", "bfloat16"


def require_real(name, value, finite=False):
    """Return None, or an array of real numbers; of finite ones if asked."""
    if value is None:
        return None
    value = validation.as_array(name, value, DTYPES)
    if validation.require_bool("finite", finite):
        validation.require_finite(name, value, DTYPES)
    return value


def require_x(x, finite):
    """Return x, an array of real numbers whose last axis may be empty; of finite ones if asked."""
    x = require_real("x", x, finite)
    if not x.ndim:
        raise ValueError("x: found a 0-d array, expected one whose last axis counts features")
    return x


def _forward(forward, x, eps, residual, finite, parameters, **options):
    """What a function of :mod:`lnlib.layernorm` returns; tells what all ranks need alike."""
    x, residual = require_x(x, finite), require_real("residual", residual, finite)
    parameters = {name: validation.as_array(name, a, DTYPES) for name, a in parameters.items()}
    outputs = y, *_, cache = forward(x, **parameters, eps=eps, residual=residual, **options)
    told = {
        "eps": float(eps),
        "features": y.shape[-1],
        "dtype of x": y.dtype.name,
        "dtype of the arithmetic": cache.xhat.dtype.name,
    }
    for name, a in parameters.items():
        checksum = zlib.crc32(np.ascontiguousarray(a).tobytes())
        told[name] = f"{a.dtype.name}, numbers with the checksum {checksum:08x}"
    yield SAME, told
    return outputs


def layer_norm_forward(
    x: ArrayLike,
    gamma: ArrayLike,
    beta: ArrayLike,
    eps: float = 1e-5,
    *,
    residual: ArrayLike | None = None,
    precise: bool = False,
    finite: bool = False,
) -> Program[layernorm.Outputs]:
    r"""This rank's rows of :math:`y = \gamma (x - \mu) r + \beta`: y, with a residual h, a cache.

    x: (..., D), the rows of this rank, any number of them, also none. gamma, beta: (D,), the same
    on all ranks. eps, residual, precise and the cache are those of
    :func:`lnlib.layernorm.layer_norm_forward`, whose results these are, bit by bit. finite: refuse
    x and residual with NaN or Inf, naming the rank. Sent is only what tells if parameters, eps or D
    differ.
    """
    parameters, forward = {"gamma": gamma, "beta": beta}, layernorm.layer_norm_forward
    return (yield from _forward(forward, x, eps, residual, finite, parameters, precise=precise))


def rms_norm_forward(
    x: ArrayLike,
    gamma: ArrayLike,
    eps: float = 1e-5,
    *,
    residual: ArrayLike | None = None,
    precise: bool = False,
    finite: bool = False,
) -> Program[layernorm.Outputs]:
    """This rank's rows of RMS norm, as :func:`layer_norm_forward`; no beta."""
    parameters, forward = {"gamma": gamma}, layernorm.rms_norm_forward
    return (yield from _forward(forward, x, eps, residual, finite, parameters, precise=precise))


def require_blocks(counts, block, what):
    """Raise ValueError unless all parts but the last, of ``counts``, have ``block`` of ``what``."""
    for k, count in enumerate(counts[:-1]):
        if count != block:
            raise ValueError(
                f"block: found {count:g} {what} in part {k} of {len(counts)}, expected {block}:"
                " only the last rank's last part may have fewer, else bits would depend on the cut"
            )


def _backward(norm, dy, cache, dh, reproducible, block):
    validation.require_cache(cache, NormCache, norm)
    validation.require_bool("reproducible", reproducible)
    validation.require_count("block", block)
    dy, dh = validation.as_array("dy", dy, DTYPES), require_real("dh", dh)
    dx, *sums = layernorm.backward_sums(dy, cache, block if reproducible else None, dh)
    validation.require_dtype("cache", dx.dtype, DTYPES, "one of real numbers")  # dx tells of all
    if reproducible:
        counts = [min(block, cache.rstd.size - start) for start in range(0, cache.rstd.size, block)]
        parts = yield GATHER, np.column_stack([counts, *sums])
        require_blocks(parts[:, 0], block, "rows")
        shape = len(sums), len(cache.gamma)
        sums = tree(np.add, parts[:, 1:]).reshape(shape) if len(parts) else np.zeros(shape)
    else:
        sums = yield SUM, np.array(sums, np.float64)
    with np.errstate(all="ignore"):
        return dx, *sums.astype(cache.gamma.dtype)


def layer_norm_backward(
    dy: ArrayLike,
    cache: NormCache,
    dh: ArrayLike | None = None,
    *,
    reproducible: bool = False,
    block: int = BLOCK,
) -> Program[layernorm.Gradients]:
    r"""This rank's rows of dx, with its dh added; dgamma and dbeta of all rows, the same bits on
    every rank.

    One message of 2 D float64, the sum of each rank's
    :math:`\sum_{rows} dy\, \hat x` and :math:`\sum_{rows} dy`. Its order is the MPI library's, and
    depends on the number of ranks. reproducible: the sums of fixed blocks of ``block`` rows are
    gathered instead and added in one fixed tree, so that their bits do not depend on how many ranks
    have the rows, if each has whole blocks (only the last may be shorter): 8 (1 + 2 D) bytes each.
    """
    return (yield from _backward(LAYER_NORM, dy, cache, dh, reproducible, block))


def rms_norm_backward(
    dy: ArrayLike,
    cache: NormCache,
    dh: ArrayLike | None = None,
    *,
    reproducible: bool = False,
    block: int = BLOCK,
) -> Program[tuple[np.ndarray, np.ndarray]]:
    """This rank's rows of dx, and dgamma of all rows, as :func:`layer_norm_backward`."""
    return (yield from _backward(RMS_NORM, dy, cache, dh, reproducible, block))
