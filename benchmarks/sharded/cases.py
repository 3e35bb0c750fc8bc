"""The inputs that all are judged on, and the judge."""

import functools

import numpy as np

from lnbook.measure.provenance import digits
from lnlib import reference

N, D, EPS = 24, 1024, 1e-5
RATIOS = (0.0, 1e4)
CUTS = ("rows", "features")
TENSORS = ("y", "dx", "dgamma", "dbeta")


def arrays(ratio, rows=N, width=D):
    """x, gamma, beta, dy in float32; x has standard deviation 1 and mean ``ratio``. gamma is 1 and
    beta 0.
    """
    rng = np.random.default_rng((19, rows, width))
    x, dy = rng.standard_normal((2, rows, width))
    return [a.astype(np.float32) for a in (ratio + x, np.ones(width), np.zeros(width), dy)]


@functools.cache
def exact(ratio):
    return reference.layer_norm(*arrays(ratio), EPS)


def errors(implementation, how, ranks, ratio, results):
    """Records of the relative L2 errors of y, dx, dgamma and dbeta, put together from all ranks."""
    fields = {"section": "error", "implementation": implementation, "cut": how, "ranks": ranks}
    found = []
    for name, value in zip(TENSORS, results, strict=True):
        error = reference.relative_error(np.asarray(value), getattr(exact(ratio), name))
        found.append(fields | {"ratio": ratio, "tensor": name, "relative_error": digits(error)})
    return found


def sent(implementation, how, ranks, forward, backward):
    """Records of what is sent: [operation, bytes that the rank with most brings] of each
    message.
    """
    fields = {"section": "sent", "implementation": implementation, "cut": how, "ranks": ranks}
    return [
        fields | {"pass": name, "messages": messages, "bytes": sum(n for _, n in messages)}
        for name, messages in (("forward", forward), ("backward", backward))
    ]
