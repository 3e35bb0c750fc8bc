"""Rank programs for the tests: both passes of a cut, and their results put together again."""

import numpy as np

from lnlib import layernorm
from lnlib.sharded import SUM, cut, features, rows, simulate

MODULES = {"rows": rows, "features": features}


def norm_of(module, norm):
    return getattr(module, f"{norm}_norm_forward"), getattr(module, f"{norm}_norm_backward")


def arrays_of(norm, x, gamma, beta):
    return (x, gamma, beta) if norm == "layer" else (x, gamma)


def program(
    how,
    part,
    x,
    gamma,
    beta,
    dy,
    norm="layer",
    eps=1e-5,
    precise=False,
    reproducible=False,
    block=None,
):
    """(y, dx, dgamma[, dbeta]) of one rank; ``block`` makes it reproducible."""
    forward, backward = norm_of(MODULES[how], norm)
    blocks = {"reproducible": True} if reproducible or block else {}
    blocks |= {"block": block} if block else {}
    options = {"precise": precise} if precise else {}
    if how == "rows":
        y, cache = yield from forward(*arrays_of(norm, x[part], gamma, beta), eps, **options)
        return y, cache.xhat, *(yield from backward(dy[part], cache, **blocks))
    y, cache = yield from forward(
        *arrays_of(norm, x[..., part], gamma[part], beta[part]), eps, **options, **blocks
    )
    return y, cache.xhat, *(yield from backward(dy[..., part], cache))


def edges():
    """What is seldom sent, one number and arrays without numbers, and what came of each."""
    replies = []
    for message in ((SUM, 3.0), (SUM, np.ones((0, 3)))):
        replies.append((yield message))
    return [[type(reply).__name__, [*reply.shape], reply.sum()] for reply in replies]


def of_edges(ranks):
    """What each of so many ranks gets."""
    return [["ndarray", [], 3 * ranks], ["ndarray", [0, 3], 0]]


def whole(how, results):
    """The results of all ranks as one process would have them: y, xhat, dx, dgamma and, of layer
    norm, dbeta.
    """
    axis = 0 if how == "rows" else -1
    joined = [np.concatenate(parts, axis) for parts in zip(*(r[:3] for r in results))]
    sums = zip(*(r[3:] for r in results))
    return *joined, *(results[0][3:] if how == "rows" else map(np.concatenate, sums))


def run(how, ranks, *arrays, order="tree", **options):
    """All results, put together. ``ranks``: slices, or how many share evenly, in whole blocks."""
    parts = ranks
    if isinstance(ranks, int):
        parts = cut(arrays[0].shape[how == "features"], ranks, options.get("block") or 1)
    return whole(how, simulate([program(how, p, *arrays, **options) for p in parts], order=order))


def single(x, gamma, beta, dy, norm="layer", eps=1e-5, **options):
    """The same of :mod:`lnlib.layernorm`."""
    forward, backward = norm_of(layernorm, norm)
    y, cache = forward(*arrays_of(norm, x, gamma, beta), eps, **options)
    return y, cache.xhat, *backward(dy, cache)


def numbers(rows, D, ratio=0.0, dtype="float32", seed=0):
    """x, gamma, beta, dy; x has standard deviation 1 and mean ``ratio``."""
    rng = np.random.default_rng((seed, rows, D))
    x = (ratio + rng.standard_normal((rows, D))).astype(dtype)
    gamma, beta = rng.standard_normal((2, D)).astype(dtype)
    return x, gamma, beta, rng.standard_normal((rows, D)).astype(dtype)
