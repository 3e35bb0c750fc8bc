"""Rows sharded: every rank has all features of its own rows, and its own copy of gamma and beta.

y and dx need nobody. dgamma and dbeta are sums over all rows: each rank adds up its own, and one
message adds those. A *sum*, never a mean: dy belongs to one loss, whoever computed it. Every
function is a rank's program, to be called by ``yield from`` inside one, or to be handed to
:func:`~lnlib.sharded.simulator.simulate` or :func:`~lnlib.sharded.mpi.run`. Arguments, results and
errors are those of :mod:`lnlib.layernorm`, but for complex128; an error on one rank is a
:class:`~lnlib.sharded.messages.RankError` on all.
"""

import zlib

import numpy as np

from .. import layernorm, validation
from .groups import tree
from .messages import GATHER, SAME, SUM

#: Rows of a block with sums of its own, where results must not depend on the number of ranks.
BLOCK = 64

DTYPES = "float64", "float32", "float16", "bfloat16"


def _checksum(a):
    checksum = zlib.crc32(np.ascontiguousarray(a).tobytes())
    return f"{a.dtype.name}, numbers with the checksum {checksum:08x}"


def _forward(local, x, parameters, eps, finite):
    """``local()``, once it is known that all ranks were given the same parameters, eps and D."""
    validation.require_dtype("x", validation.as_array("x", x).dtype, DTYPES)
    if validation.require_bool("finite", finite):
        validation.require_finite("x", x, DTYPES)
    y, cache = local()
    agreed = {
        "eps": float(eps),
        "features": y.shape[-1],
        "dtype of x": y.dtype.name,
        "kind of cache": type(cache).__name__,
        **{name: _checksum(a) for name, a in parameters.items()},
    }
    yield SAME, agreed
    return y, cache


def layer_norm_forward(x, gamma, beta, eps=1e-5, *, precise=False, finite=False):
    r"""This rank's rows of layer norm: :math:`y = \gamma (x - \mu) r + \beta`. Returns y and a
    cache.

    x: (..., D), the rows of this rank, any number of them, also none. gamma, beta: (D,), the same
    on all ranks. eps, precise and the cache are those of
    :func:`lnlib.layernorm.layer_norm_forward`, whose results these are, bit by bit. finite: refuse
    x with NaN or Inf, naming the rank, instead of letting it through. Nothing is sent but what
    finds out ranks whose parameters, eps or D differ.
    """
    gamma = validation.as_array("gamma", gamma, DTYPES)
    beta = validation.as_array("beta", beta, DTYPES)

    def local():
        return layernorm.layer_norm_forward(x, gamma, beta, eps, precise=precise)

    return (yield from _forward(local, x, {"gamma": gamma, "beta": beta}, eps, finite))


def rms_norm_forward(x, gamma, eps=1e-5, *, finite=False):
    """This rank's rows of RMS norm, as :func:`layer_norm_forward`; no beta, no ``precise``."""
    gamma = validation.as_array("gamma", gamma, DTYPES)

    def local():
        return layernorm.rms_norm_forward(x, gamma, eps)

    return (yield from _forward(local, x, {"gamma": gamma}, eps, finite))


def require_blocks(counts, block, what):
    """Raise ValueError unless all parts but the last, of ``counts``, have ``block`` of ``what``."""
    for k, count in enumerate(counts[:-1]):
        if count != block:
            raise ValueError(
                f"block: found {count:g} {what} in part {k} of {len(counts)}, expected {block}:"
                " only the last rank's last part may have fewer, else bits would depend on the cut"
            )


def _backward(dy, cache, reproducible, block):
    validation.require_bool("reproducible", reproducible)
    validation.require_count("block", block)
    dy = validation.as_array("dy", dy, DTYPES)
    dx, *sums = layernorm.backward_sums(dy, cache, block if reproducible else None)
    validation.require_dtype("cache", dx.dtype, DTYPES, "one of real numbers")  # dx tells of all
    if reproducible:
        counts = [min(block, cache.rstd.size - start) for start in range(0, cache.rstd.size, block)]
        parts = yield GATHER, np.column_stack([counts, *sums])
        require_blocks(parts[:, 0], block, "rows")
        sums = np.zeros((2, len(cache.gamma)))
        if len(parts):
            sums = tree(np.add, parts[:, 1:]).reshape(2, -1)
    else:
        sums = yield SUM, np.array(sums, np.float64)
    with np.errstate(all="ignore"):
        return dx, *sums.astype(cache.gamma.dtype)


def layer_norm_backward(dy, cache, *, reproducible=False, block=BLOCK):
    r"""This rank's rows of dx; dgamma and dbeta of all rows, the same bits on every rank.

    .. math:: d\gamma = \sum_{ranks} \sum_{rows} dy\, \hat x, \qquad d\beta = \sum_{ranks} \sum_{rows} dy

    dy: x's shape. cache: from :func:`layer_norm_forward`. One message of 2 D float64, their sum.
    The order of that sum is the MPI library's, and depends on the number of ranks. reproducible:
    the sums of fixed blocks of ``block`` rows are gathered instead and added in one fixed tree, so
    that their bits do not depend on how many ranks have the rows, if each has whole blocks (only
    the last may be shorter). That costs 8 (1 + 2 D) bytes a block.
    """  # noqa: E501
    validation.require_cache(cache, layernorm.LayerNormCache, layernorm.PreciseLayerNormCache)
    return (yield from _backward(dy, cache, reproducible, block))


def rms_norm_backward(dy, cache, *, reproducible=False, block=BLOCK):
    """This rank's rows of dx, and dgamma of all rows, as :func:`layer_norm_backward`."""
    validation.require_cache(cache, layernorm.RMSNormCache)
    dx, dgamma, _ = yield from _backward(dy, cache, reproducible, block)
    return dx, dgamma
