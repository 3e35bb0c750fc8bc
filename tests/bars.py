"""What a careful implementation of layer norm may lose of y, dx, dgamma and dbeta: a few roundings,
as its dtype and the condition numbers have it. (What any right one may lose is in
:mod:`normcheck.tolerance`.)
"""

import math

import numpy as np

from lnlib import reference
from lnlib.rounding import round_to, spacing
from lnlib.validation import COMPUTE_DTYPE
from normcheck.tolerance import U, xhat_size

#: What a tensor's relative L2 error may be, by compute dtype: 9 u and 3.4 u. The longest path, to
#: dx, has about eight roundings (mean, subtraction, recentring, square, root, quotient, product,
#: difference): 8 u at worst, and near sqrt(8) u = 2.8 u since they are independent.
BAR = {"float64": 1e-15, "float32": 2e-7}


def half_ulp(exact, dtype):
    """Relative L2 error of rounding every element to ``dtype``, at worst: half an ulp each
    (subnormals too).
    """
    value = reference.to_float64(exact)
    norm = np.linalg.norm(value)
    return np.linalg.norm(spacing(value, dtype)) / 2 / norm if norm else 0.0


def sum_kappa(terms, total):
    """||terms|| / ||sum||, the condition of a sum over rows whose terms err independently, each by
    u of its size; 0 where the sum is 0.
    """
    total = np.linalg.norm(reference.to_float64(total))
    return np.linalg.norm(terms) / total if total else 0.0


def rounding_sizes(xhat, rstd, gamma, dy, mean=True, S=1):
    """What the roundings of each tensor are proportional to, element by element; all float64 and of
    shape (rows, D), but dgamma and dbeta (rows, D / S), where S neighbours share a gamma.

    * xhat errs as :func:`normcheck.tolerance.xhat_size` has it, without a ``mean`` by its own
      roundings alone; y takes that times gamma, and a term of dgamma times dy: all there is where
      an outlier of dy meets an xhat near 0.
    * dx: the product g = gamma * dy, its centring, the last difference and the last product each
      leave about u |r g|.
    * dgamma: the S terms of a row and a channel err independently, and together: by the error of
      the row's mean, times the sum of dy, and by that of rstd, times the sum of the terms.
    * dbeta: NumPy adds the S terms in eight sums, which round alike where terms are equal.
    """
    size = xhat_size(xhat) if mean else np.abs(xhat)
    root = np.sqrt(np.mean(xhat * xhat, axis=-1, keepdims=True)) * mean

    def of_channels(a):
        return a.reshape(len(a), a.shape[1] // S, S)

    eights = of_channels(dy)[..., : S - S % 8].reshape(len(dy), dy.shape[1] // S, S // 8, 8)
    alike = np.hypot.reduce(eights.sum(axis=3), axis=2)
    together = np.hypot(of_channels(dy * xhat).sum(axis=2), root * of_channels(dy).sum(axis=2))
    return {
        "xhat": size,
        "y": gamma * size,
        "dx": rstd * (gamma * dy),
        "dgamma": np.maximum(np.hypot.reduce(of_channels(dy * size), axis=2), together),
        "dbeta": np.maximum(np.hypot.reduce(of_channels(dy), axis=2), alike),
    }


def in_rows(shapes, gamma, *others):
    """gamma and arrays of x's shape, in float64 and in rows."""
    gamma = np.broadcast_to(gamma.astype(np.float64)[:, None], shapes.whole)
    return [a.astype(np.float64).reshape(shapes.rows) for a in (gamma, *others)]


def conditions(exact, gamma, dy):
    """The condition numbers of y, dx, dgamma and dbeta (see :func:`rounding_sizes`)."""
    gammas, dys, xhat = in_rows(exact.shapes, gamma, dy, reference.to_float64(exact.xhat))
    rstd = reference.to_float64(exact.rstd).reshape(-1, 1)
    sizes = rounding_sizes(xhat, rstd, gammas, dys, exact.norm.mean, exact.shapes.whole[2])
    kappa = {
        "y": 0.0,
        "dx": reference.kappa(exact, dy, gamma),
        **{name: sum_kappa(sizes[name], getattr(exact, name)) for name in ("dgamma", "dbeta")},
    }
    # dx is exactly zero, and so it must come out.
    kappa["dx"] = 0.0 if math.isinf(kappa["dx"]) else kappa["dx"]
    return kappa


def expected_error(exact, kappa, dtype, parameters=""):
    """The relative L2 errors that a careful implementation may make of y, dx, dgamma and dbeta,
    from its conditions.

    * y: the bar of the compute dtype.
    * dx: the bar, or 4 kappa u (see :func:`rounding_sizes`). Kappa is that of dx + dh where a dh is
      added, whose addition is one rounding of the sum.
    * dgamma, dbeta: the bar, or 4 u times the condition of the sum: each term errs, and adding in
      halves leaves u ||terms|| on each of log2(rows) levels; they are independent, and
      sqrt(log2(65536)) = 4.
    * Half-precision results are rounded once more when they are stored: half an ulp of each
      element.

    ``dtype`` is x's, ``parameters`` that of gamma and beta, if not x's.
    """
    compute, found = COMPUTE_DTYPE[dtype].name, {}
    for name, k in kappa.items():
        stored = parameters or dtype if name in ("dgamma", "dbeta") else dtype
        rounded = (
            half_ulp(getattr(exact, name), stored) if stored in ("float16", "bfloat16") else 0.0
        )
        found[name] = max(BAR[compute], 4 * k * U[compute]) + rounded
    return found


def either_way(xhat, size, gamma, dtype):
    """What y may differ by, element by element, where xhat is rounded to ``dtype`` before gamma:
    float32 errs by 4 u of the ``size`` of xhat, and may round to the neighbour of what is exact if
    that is as near to the middle of two numbers.
    """
    error = 4 * U["float32"] * np.abs(size)
    return np.abs(gamma) * (round_to(xhat + error, dtype) - round_to(xhat - error, dtype))


def rounded_twice(exact, gamma, dtype):
    """The same, relative to all of y."""
    gamma, xhat = in_rows(exact.shapes, gamma, reference.to_float64(exact.xhat))
    size = rounding_sizes(xhat, 1, gamma, gamma, exact.norm.mean)["xhat"]
    apart = either_way(xhat, size, gamma, dtype)
    return np.linalg.norm(apart) / np.linalg.norm(reference.to_float64(exact.y))
