"""What any right implementation may lose of y, dx, dgamma and dbeta by rounding.

It follows from the dtype, the shape, and how far a row is from zero. Arguments are not checked.
"""

import math

import numpy as np

from lnlib.rounding import FORMATS
from lnlib.validation import COMPUTE_DTYPE

#: Unit roundoff: half the distance from 1 to the next number.
U = {name: form.u for name, form in FORMATS.items()}

#: Up to this |mean| / s the algebra is free: a row may lose the square of the ratio, as the affine
#: form does, and so does the mean of squares less the square of the mean. Beyond, no more than was
#: free here, or than the ratio itself where that is larger, from the square of this on: a mean
#: rounded once.
OFFSET_TOLERATED = 100


def distance_loss(offset, D):
    """By how much the error of xhat may grow, in u, where |mean| / s is ``offset``: see
    :data:`OFFSET_TOLERATED`. A mean of one feature is not rounded: it loses no more than was free.
    """
    return np.minimum(offset**2, np.maximum(OFFSET_TOLERATED**2, offset if D > 1 else 0))


def near_zero(D, accumulate):
    """What any right spelling may lose of a row, relative to what is rounded. A statistic is a sum
    of D terms, added in some order: typically wrong by u sqrt(D) / 4 of the sum of their sizes, and
    always by less than D u. A row has up to twenty roundings of its own.
    """
    return (20 + 4 * math.sqrt(D)) * U[accumulate]


def xhat_size(xhat):
    """What the roundings of xhat are proportional to, element by element.

    It errs by about u |xhat| in its own roundings, and by what the error of the row's mean does to
    it. Recentred, the mean is that of D differences of the size of sigma, rounded: wrong by about u
    sigma, which is u times the root mean square of xhat in every element, however small it is.
    """
    return np.hypot(xhat, np.sqrt(np.mean(xhat * xhat, axis=-1, keepdims=True)))


def allowed(
    exact, x, gamma, beta, dy, dtype, of_sums, accumulate, rms=False, powers=(), whole=None, y=None
):
    """Absolute L2 errors that any right spelling may make: of each row of y and dx, each column of
    dgamma and dbeta.

    ``exact`` holds float64 arrays, x and dy have shape (rows, D); ``of_sums`` is the dtype of
    dgamma and dbeta, ``y`` that of y if not x's, ``accumulate`` that of arithmetic and sums.

    xhat may lose :func:`near_zero` of its :func:`xhat_size`, times what its distance from zero
    costs; y takes that times gamma, a term of dgamma times dy. In dx the product g = gamma * dy,
    its centring, the last difference and the last product each round |r g|. Sums over n rows, one
    after the other, may lose u sqrt(n) of the sum of the sizes of their terms (typical is a quarter
    of that). Where arrays are stored in half precision, so may be what stands between: eight
    roundings of that kind. Of a group norm ``whole`` is (N, C, L), gamma and beta have the shape of
    x, and the L numbers of a channel share the errors of one mean and one rstd, which add up.

    All this is relative. A rounding to a subnormal number errs by half a spacing, however small the
    number is, and so may each of those twenty and eight (sums of subnormal numbers are exact):
    ``floor``. In x it is ``rstd`` times as large in xhat, in the variance it changes rstd by a
    share of itself, at most all of it. Where numbers are very small, arrays are given and errors
    told in units of 2**``powers[tensor]``, because squares of them would be 0.
    """
    rows, D = dy.shape
    half = COMPUTE_DTYPE[dtype].name != dtype
    u, stored = U[accumulate], U[dtype] if half else 0.0
    last_of_sums = 4 * (u + U[of_sums] * (COMPUTE_DTYPE[of_sums].name != of_sums))
    spacing, stored_spacing = (FORMATS[name].smallest_subnormal for name in (accumulate, dtype))
    floor = 10 * spacing + 4 * stored_spacing * half
    floors = {
        name: np.ldexp(floor, -dict(powers).get(name, 0)) for name in ("y", "dx", "dgamma", "dbeta")
    }
    rstd, norm, last = exact["rstd"].reshape(-1, 1), np.linalg.norm, 4 * (u + stored)
    offset = np.abs(x.mean(axis=-1, keepdims=True)) * rstd * (not rms)
    near, away = near_zero(D, accumulate), distance_loss(offset, D)
    lost = floor * rstd + np.minimum(floor * rstd * rstd, 1)
    size = xhat_size(exact["xhat"])
    xhat = near * (size + away) + 8 * stored * (size + offset) + lost * (1 + size) + floor
    row = near * (1 + away) + 8 * stored * (1 + offset) + lost
    N, C, L = whole or (rows, D, 1)
    sums = sum(np.abs(a.reshape(N, C, L).sum(axis=-1)) for a in (dy, dy * exact["xhat"]))
    shared = norm(np.repeat(row, D // L, axis=-1).reshape(N, C) * sums, axis=0) * (L > 1)

    def of_sum(name, terms, sizes, shared=0):
        terms, sizes = (a.reshape(N, C, L) for a in (terms, sizes))
        adding = u * math.sqrt(N * L) * sizes.sum(axis=(0, 2)) + shared
        own = FORMATS[of_sums].smallest_subnormal * (of_sums != dtype)
        last = last_of_sums * np.abs(exact[name]) + N * L * floors[name]
        return norm(terms, axis=(0, 2)) + adding + last + np.ldexp(own, -dict(powers).get(name, 0))

    if y:  # which may be narrower
        last += 4 * U[y]
        floors["y"] += np.ldexp(FORMATS[y].smallest_subnormal, -dict(powers).get("y", 0))
    y_ends = last * norm(np.abs(beta) + np.abs(exact["y"]), axis=-1)
    return {
        "y": norm(gamma * xhat, axis=-1) + y_ends + floors["y"] * math.sqrt(D),
        "dx": norm(row * rstd * (gamma * dy), axis=-1)
        + (1 + rstd[:, 0]) * floors["dx"] * math.sqrt(D),
        "dgamma": of_sum("dgamma", np.abs(dy) * xhat, np.abs(dy) * size, shared),
        "dbeta": of_sum("dbeta", last_of_sums * np.abs(dy), np.abs(dy)),
    }


def allowed_of_derivatives(case, rstd, accumulate, rms=False):
    """Absolute L2 errors of the gradients of <v, dx> with respect to x, gamma and dy.

    The parts of the first are r^2 times a row times a mean of two rows, of which none is above
    ||v|| ||g|| / sqrt(D); there are six of them. The others are sums and products of J v, none of
    whose numbers is above r ||v||.
    """
    D, half = case.width, COMPUTE_DTYPE[case.dtype].name != case.dtype
    offset = np.abs(case.x.mean(axis=-1, keepdims=True)) * rstd * (not rms)
    share = near_zero(D, accumulate) + 8 * near_zero(D, case.dtype) * half
    share = share * (1 + distance_loss(offset, D))
    v, g = (np.linalg.norm(a, axis=-1, keepdims=True) for a in (case.v, case.gamma * case.dy))
    parts = 6 * rstd**2 * v * g / math.sqrt(D), case.dy * rstd * v, case.gamma * rstd * v
    return [np.linalg.norm(share * part) for part in parts]
