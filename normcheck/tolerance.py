"""What rounding may do to y, dx, dgamma and dbeta: what a careful implementation owes, and what any
right one may lose.

Both follow from the dtype, D, the condition numbers and, for the second, the number of rows and how
far a row is from zero. Arguments are not checked: these are the judges' own sums.
"""

import math

import numpy as np

from lnlib import reference
from lnlib.rounding import FORMATS, spacing
from lnlib.validation import COMPUTE_DTYPE

#: Unit roundoff: half the distance from 1 to the next number.
U = {name: form.u for name, form in FORMATS.items()}

#: The distance between subnormal numbers. A rounding to one of them errs by half of it, however
#: small the number is.
TINY = {name: form.smallest_subnormal for name, form in FORMATS.items()}

#: What a tensor's relative L2 error may be, by compute dtype: 9 u and 3.4 u. The longest path, to
#: dx, has about eight roundings (mean, subtraction, recentring, square, root, quotient, product,
#: difference): 8 u at worst, and near sqrt(8) u = 2.8 u since they are independent.
BAR = {"float64": 1e-15, "float32": 2e-7}


# What a careful implementation owes


def half_ulp(exact, dtype):
    """Relative L2 error of rounding every element to ``dtype``, at worst: half an ulp each
    (subnormals too).
    """
    value = reference.to_float64(exact)
    norm = np.linalg.norm(value)
    return np.linalg.norm(spacing(value, dtype)) / 2 / norm if norm else 0.0


def sum_kappa(terms, total):
    """Condition of a sum over rows whose terms err independently, each by u of its size: ||terms||
    / ||sum||.

    0 where the sum is 0.
    """
    total = np.linalg.norm(reference.to_float64(total))
    return np.linalg.norm(terms) / total if total else 0.0


def _xhat_size(xhat):
    return np.hypot(xhat, np.sqrt(np.mean(xhat * xhat, axis=-1, keepdims=True)))


def rounding_sizes(xhat, rstd, gamma, dy):
    """What the roundings of each tensor are proportional to, element by element; all float64 and of
    shape (..., D).

    * xhat errs by about u |xhat| in its own roundings, and by what the error of the row's mean does
      to it. Recentred, the mean is that of D differences of the size of sigma, rounded: wrong by
      about u sigma, which is u times the root mean square of xhat in every element, however small
      it is.
    * y takes that times gamma; a term of dgamma takes it times dy: all there is where an outlier of
      dy meets an xhat near 0.
    * dx: the product g = gamma * dy, its centring, the last difference and the last product each
      leave about u |r g|.
    """
    xhat = _xhat_size(xhat)
    return {"y": gamma * xhat, "dx": rstd * (gamma * dy), "dgamma": dy * xhat, "dbeta": dy}


def conditions(exact, gamma, dy):
    """The condition numbers of y, dx, dgamma and dbeta (see :func:`rounding_sizes`)."""
    dy, gamma = dy.astype(np.float64), gamma.astype(np.float64)
    sizes = rounding_sizes(
        reference.to_float64(exact.xhat), reference.to_float64(exact.rstd), gamma, dy
    )
    kappa = {
        "y": 0.0,
        "dx": reference.kappa(exact, dy, gamma),
        **{name: sum_kappa(sizes[name], getattr(exact, name)) for name in ("dgamma", "dbeta")},
    }
    kappa["dx"] = (
        0.0 if math.isinf(kappa["dx"]) else kappa["dx"]
    )  # dx is exactly zero, and so it must come out
    return kappa


def expected_error(exact, kappa, dtype, parameters=""):
    """The relative L2 errors that a careful implementation may make of y, dx, dgamma and dbeta,
    from its conditions.

    * y: the bar of the compute dtype.
    * dx: the bar, or 4 kappa u (see :func:`rounding_sizes`).
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


# What any right implementation may lose

#: Up to this |mean| / s the algebra is free: a row may lose the square of the ratio, as the affine
#: form does, and so does the mean of squares less the square of the mean. Beyond, no more than was
#: free here, or than the ratio itself where that is larger, from the square of this on: a mean
#: rounded once.
OFFSET_TOLERATED = 100


def distance_loss(offset, D):
    """By how much the error of xhat may grow where |mean| / s is ``offset``, in u: see
    :data:`OFFSET_TOLERATED`.

    Of one feature the mean is that feature, and is not rounded: no more than was free, however
    large the ratio.
    """
    return np.minimum(offset**2, np.maximum(OFFSET_TOLERATED**2, offset if D > 1 else 0))


def plain(D, accumulate):
    """What any right spelling may lose of a row, relative to what is rounded: see
    :func:`allowed`.
    """
    return (20 + 4 * math.sqrt(D)) * U[accumulate]


def allowed(exact, x, gamma, beta, dy, dtype, accumulate, rms=False):
    """Absolute L2 errors that any right spelling may make: of each row of y and dx, each column of
    dgamma and dbeta.

    ``exact`` holds float64 arrays, x and dy have shape (rows, D); ``accumulate`` is the dtype of
    arithmetic and sums.

    A statistic is a sum of D terms, added in some order: typically wrong by u sqrt(D) / 4 of the
    sum of their sizes, and always by less than D u. With up to twenty roundings of its own, a row
    may lose (20 + 4 sqrt(D)) u of what :func:`rounding_sizes` has, times what its distance from
    zero costs. Sums over n rows, one after the other, may lose u sqrt(n) of the sum of the sizes of
    their terms (typical is a quarter of that). Where arrays are stored in half precision, so may be
    what stands between: eight roundings of that kind.

    All this is relative. A rounding to a subnormal number errs by half a spacing, however small the
    number is, and so may each of those twenty and eight (sums of subnormal numbers are exact):
    ``floor``. In x it is ``rstd`` times as large in xhat, in the variance it changes rstd by a
    share of itself, at most all of it.
    """
    rows, D = dy.shape
    half = COMPUTE_DTYPE[dtype].name != dtype
    u, stored = U[accumulate], U[dtype] if half else 0.0
    floor = 20 / 2 * TINY[accumulate] + (8 / 2 * TINY[dtype] if half else 0.0)
    offset = np.abs(x.mean(axis=-1, keepdims=True)) * exact["rstd"] * (not rms)
    last, norm = 4 * (u + stored), np.linalg.norm
    size = _xhat_size(exact["xhat"])
    lost = floor * exact["rstd"] + np.minimum(floor * exact["rstd"] * exact["rstd"], 1)
    xhat = (
        plain(D, accumulate) * (size + distance_loss(offset, D))
        + 8 * stored * (size + offset)
        + lost * (1 + size)
        + floor
    )
    row = plain(D, accumulate) * (1 + distance_loss(offset, D)) + 8 * stored * (1 + offset) + lost
    wrong = {
        "dgamma": (np.abs(dy) * xhat, np.abs(dy) * size),
        "dbeta": (last * np.abs(dy), np.abs(dy)),
    }
    return {
        "y": (
            norm(gamma * xhat, axis=-1)
            + last * norm(np.abs(beta) + np.abs(exact["y"]), axis=-1)
            + floor * math.sqrt(D)
        ),
        "dx": (
            norm(row * exact["rstd"] * (gamma * dy), axis=-1)
            + (1 + exact["rstd"][:, 0]) * floor * math.sqrt(D)
        ),
        **{
            name: (
                norm(terms, axis=0)
                + u * math.sqrt(rows) * sizes.sum(axis=0)
                + last * np.abs(exact[name])
                + rows * floor
            )
            for name, (terms, sizes) in wrong.items()
        },
    }


def _of_derivatives(case, rstd, accumulate, rms):
    """What a row of a derivative of dx may lose of the sizes of its parts."""
    D = case.x.shape[-1]
    u = U[accumulate] + 8 * (U[case.dtype] if COMPUTE_DTYPE[case.dtype].name != case.dtype else 0.0)
    offset = np.abs(case.x.mean(axis=-1, keepdims=True)) * rstd * (not rms)
    return (20 + 4 * math.sqrt(D)) * u * (1 + distance_loss(offset, D))


def _row_norms(*arrays):
    return (np.linalg.norm(a, axis=-1, keepdims=True) for a in arrays)


def allowed_twice(case, v, rstd, accumulate, rms=False):
    """Absolute L2 errors of the gradients of <v, dx> with respect to x, gamma and dy; v has x's
    shape.

    The parts of the first are r^2 times a row times a mean of two rows, of which none is above
    ||v|| ||g|| / sqrt(D); there are six of them. The others are sums and products of J v, none of
    whose numbers is above r ||v||.
    """
    norm_v, norm_g = _row_norms(v, case.gamma * case.dy)
    return [
        np.linalg.norm(_of_derivatives(case, rstd, accumulate, rms) * part)
        for part in (
            6 * rstd**2 * norm_v * norm_g / math.sqrt(case.x.shape[-1]),
            case.dy * rstd * norm_v,
            case.gamma * rstd * norm_v,
        )
    ]


def allowed_thrice(case, v, u, rstd, accumulate, rms=False):
    """Absolute L2 error of the gradient of the product of u with the first of those gradients.

    Its parts are r^3 times a row times two means, none above ||u|| ||v|| ||g|| / D. There are 36:
    two for each of the six by what r^2 has of x, and two for each of their twelve xhat.
    """
    norm_u, norm_v, norm_g = _row_norms(u, v, case.gamma * case.dy)
    return np.linalg.norm(
        _of_derivatives(case, rstd, accumulate, rms)
        * 36
        * rstd**3
        * norm_u
        * norm_v
        * norm_g
        / case.x.shape[-1]
    )
