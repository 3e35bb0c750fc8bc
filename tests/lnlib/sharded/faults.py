"""What goes wrong on one rank of a job, and what all ranks say about it: :func:`job` is a rank's
program in which a fault can be planted.
"""

import numpy as np

from lnlib.sharded import cut, features, rows

#: Rows and features of the job.
ROWS, D = 24, 48

#: What every rank's error contains, the faulty rank's number left out, by the name of the fault.
FAULTS = {
    "NaN": (
        "ValueError: x: found NaN or Inf"
    ),  # one number of its x, and the job asked for finite ones
    "dtype": "dtype of x: found float",  # its numbers are float64
    "length": "ValueError: dy: found shape",  # its dy has a row too few
    "exception": "ZeroDivisionError: ",  # it fails between the two passes
    "early return": "the end of the program on rank",  # it returns after the first pass
    "eps": "1e-06 on rank ",  # its eps is 1e-6
}


def job(how, rank, ranks, fault=None):
    """Both passes of layer norm, ``how`` "rows" or "features" sharded; ``fault``, a key of FAULTS,
    is this rank's.
    """
    module = {"rows": rows, "features": features}[how]
    rng, eps = np.random.default_rng(19), 1e-6 if fault == "eps" else 1e-5
    x, dy = (3 + rng.standard_normal((2, ROWS, D))).astype(np.float32)
    gamma, beta = rng.standard_normal((2, D)).astype(np.float32)
    if how == "rows":
        part = cut(ROWS, ranks)[rank]
        arrays = [x[part], gamma, beta, dy[part]]
    else:
        part = cut(D, ranks)[rank]
        arrays = [x[:, part], gamma[part], beta[part], dy[:, part]]
    if fault == "NaN":
        arrays[0][0, 0] = np.nan
    if fault == "dtype":
        arrays = [a.astype(np.float64) for a in arrays]
    x, gamma, beta, dy = arrays
    y, cache = yield from module.layer_norm_forward(x, gamma, beta, eps, finite=True)
    if fault == "early return":
        return y
    if fault == "exception":
        1 // 0  # noqa: B018
    dx, dgamma, dbeta = yield from module.layer_norm_backward(
        dy[:-1] if fault == "length" else dy, cache
    )
    return y, dx, dgamma, dbeta
