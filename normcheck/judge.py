"""The judge: how far y, dx, dgamma and dbeta are from the exact ones, and whether a right formula
may be as far.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from lnlib import reference
from lnlib.rounding import find

from .tolerance import allowed, allowed_thrice, allowed_twice, conditions, expected_error

BY_ROW = "y", "dx"


class Truth(NamedTuple):
    """Exact tensors rounded to float64, what a careful implementation loses of each, the errors any
    right one may make.

    ``slack`` has a number for each row (y, dx) or column (dgamma, dbeta).
    """

    tensors: dict
    expected_error: dict
    slack: dict


class Verdict(NamedTuple):
    """One tensor: its relative L2 error, that in digits and in units of the expected one; what is
    judged, its worst part.

    A part is a row of y or dx, a number of dgamma or dbeta. ``at`` is the worst of them, ``part``
    its relative error, ``share`` that error in units of what any right formula may lose there:
    right is what is at most 1. ``finite``: whether its numbers are.
    """

    error: float
    digits: float
    units: float
    share: float
    at: int
    part: float
    finite: bool


def truth(case, settings):
    """The exact results of a case."""
    return _truth(
        settings.rms,
        case.eps,
        case.dtype,
        settings.accumulated_in(case.dtype),
        case.x.shape,
        *(a.tobytes() for a in case.arrays),
    )


@functools.lru_cache(maxsize=512)
def _truth(rms, eps, dtype, accumulate, shape, *arrays):
    D = shape[-1]
    x, gamma, beta, dy = (np.frombuffer(a) for a in arrays)
    x, dy = x.reshape(-1, D), dy.reshape(-1, D)
    exact = (
        reference.rms_norm(x, gamma, dy, eps)
        if rms
        else reference.layer_norm(x, gamma, beta, dy, eps)
    )
    wide = {name: reference.to_float64(value) for name, value in exact._asdict().items()}
    slack = allowed(wide, x, gamma, beta, dy, dtype, accumulate, rms)
    tensors = {name: wide[name] for name in ("y", "dx", "dgamma", "dbeta")}
    return Truth(tensors, expected_error(exact, conditions(exact, gamma, dy), dtype), slack)


def judge(name, value, case, settings, rows=slice(None)):
    """The :class:`Verdict` on one tensor of the right shape; of y and dx, on these rows."""
    known = truth(case, settings)
    exact, slack = known.tensors[name], known.slack[name]
    value, where = value.astype(np.float64).reshape(exact.shape), np.arange(len(exact))
    if name in BY_ROW:
        exact, slack, value, where = exact[rows], slack[rows], value[rows], where[rows]
    largest = find(case.dtype).largest
    lost = ~np.isfinite(value) & (np.abs(exact) < largest)
    wrong = np.where(np.isfinite(value), value - exact, np.where(lost, math.inf, 0.0))
    size = np.linalg.norm(exact)
    with np.errstate(invalid="ignore", divide="ignore"):  # infinities are meant
        total = np.linalg.norm(wrong)
        each = np.linalg.norm(wrong, axis=-1) if name in BY_ROW else np.abs(wrong)
        error = total / size if size else 0.0 if not total else math.inf
        shares = np.where(each == 0, 0.0, each / np.maximum(slack, 1e-300))
        parts = each / (
            np.linalg.norm(exact, axis=-1) if name in BY_ROW else np.abs(exact)
        )  # NaN for 0 / 0
    worst = int(np.argmax(shares)) if shares.size else None
    of_part = (
        (0, 0.0, True)
        if worst is None
        else (
            int(where[worst]),
            float(np.nan_to_num(parts[worst], nan=0.0, posinf=math.inf)),
            bool(np.isfinite(each[worst])),
        )
    )
    digits = (
        17.0 if error == 0 else max(0.0, min(17.0, -math.log10(error))) if error < math.inf else 0.0
    )
    return Verdict(
        float(error),
        digits,
        float(error / max(known.expected_error[name], 1e-300)),
        float(shares.max(initial=0)),
        *of_part,
    )


def twice(v, x, gamma, dy, eps, rms):
    r"""The gradients of <v, dx> with respect to x, gamma and dy, and r; x may be complex.

    They are those of :func:`lnlib.layernorm.layer_norm_double_backward`; of RMS norm, whose dx = r
    (g - xhat mean(g xhat)) is the same formula, with nothing centred. Arguments are not checked:
    these are the judge's own.
    """

    def mean(a):
        return a.mean(axis=-1, keepdims=True)

    c, v, g = (a if rms else a - mean(a) for a in (x, v, gamma * dy))
    r = 1 / np.sqrt(mean(c * c) + eps)
    xhat = c * r
    vx, gx = mean(v * xhat), mean(g * xhat)
    Jv = r * (v - xhat * vx)
    return (
        -(r**2) * (xhat * mean(v * g) + v * gx + g * vx - 3 * xhat * vx * gx),
        (dy * Jv).sum(axis=tuple(range(dy.ndim - 1))),
        gamma * Jv,
    ), r


def second_derivative(case, v, settings):
    """The gradients of <v, dx> with respect to x, gamma and dy in float64, each with the error
    allowed to its L2 norm.
    """
    right, r = twice(v, case.x, case.gamma, case.dy, case.eps, settings.rms)
    return zip(right, allowed_twice(case, v, r, settings.accumulated_in(case.dtype), settings.rms))


def third_derivative(case, v, u, settings):
    """The gradient with respect to x of the product of u and the gradient of <v, dx>, and the error
    allowed to its norm.

    A Hessian is symmetric: it is how that gradient changes along u, here by the complex step, which
    rounds as u does.
    """
    step = 1e-30
    (along, _, _), r = twice(v, case.x + 1j * step * u, case.gamma, case.dy, case.eps, settings.rms)
    return along.imag / step, allowed_thrice(
        case, v, u, r.real, settings.accumulated_in(case.dtype), settings.rms
    )
