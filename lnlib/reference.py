r"""The judge: the norms and their gradients in exact arithmetic, and how far a result is from it.

Numbers are Python integers counting units of 2**-400, in NumPy arrays of dtype object. Every finite
float in the range used here *is* such an integer, so inputs, sums and means lose nothing; a product
or quotient is rounded to 2**-400, some 350 bits below the last of a float64 near 1. Results are
judged in the same integers: nothing is rounded to float64 before it is compared.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from . import rounding, validation
from .norms import GROUP_NORM, LAYER_NORM, RMS_NORM, Norm

#: Fractional bits of a fixed-point number. float32 needs 149; below 2**-348 a float64 loses bits,
#: and so do the variance of rows below 1e-50 and rstd of rows above 1e100.
BITS = 400


def to_fixed(a: ArrayLike, name: str = "a") -> np.ndarray:
    """Floats (any dtype up to float64, any shape) as an object array of integers in units of
    2**-BITS. What is such an array already comes back as it is.
    """
    a = validation.as_array(name, a, (*validation.REAL_NUMBERS, "object"))
    if a.dtype == object:
        if not all(type(n) is int for n in a.flat):
            raise TypeError(
                f"{name}: found objects other than ints, expected floats, or ints in fixed point"
            )
        return a
    a = validation.require_finite(name, a, validation.REAL_NUMBERS).astype(np.float64)
    fixed = np.empty(a.shape, object)
    part, power = np.frexp(a.ravel())  # part * 2**53 is a whole number
    numbers = zip(np.ldexp(part, 53).astype(np.int64).tolist(), (power + (BITS - 53)).tolist())
    fixed.ravel()[:] = [n << left if left >= 0 else n >> -left for n, left in numbers]
    return fixed


def to_float64(a: ArrayLike) -> np.ndarray:
    """A fixed-point array, each element correctly rounded to float64."""
    validation.as_array("a", a, ("object",))
    a = to_fixed(a)
    return np.asarray(a / (1 << BITS), np.float64)


def _times(a, b):
    return (a * b) >> BITS


def _over(a, b):
    """a / b, b > 0, rounded towards zero: what cancels does so to the last bit."""
    size = abs(a) // b
    return np.where(a < 0, -size, size)


def _mean(a):
    return _over(a.sum(axis=-1, keepdims=True), a.shape[-1])


def _cancelled(X, E, g, rstd, mean):
    """dx of rows in which little is left of g: integers, and one division at the end: 0 is 0.

    g has units of 2**(-2 BITS). With n = D (of RMS norm 1), C = n (x - mean(x)), K = n (g -
    mean(g)) and W = sum(C^2) + n^2 D eps it is r (K W - C sum(K C)) / (n W).
    """
    D = X.shape[-1]
    n = D if mean else 1
    C, K = (D * a - a.sum(axis=-1, keepdims=True) if mean else a for a in (X, g))
    W = (C * C).sum(axis=-1, keepdims=True) + (n * n * D * E << BITS)
    return _over((K * W - C * (K * C).sum(axis=-1, keepdims=True)) * rstd, n * W << 2 * BITS)


class Exact(NamedTuple):
    """Exact results in fixed point; shapes as in the contract. Gradients are None without dy."""

    y: np.ndarray
    xhat: np.ndarray
    rstd: np.ndarray
    dx: np.ndarray | None = None
    dgamma: np.ndarray | None = None
    dbeta: np.ndarray | None = None
    norm: Norm = LAYER_NORM

    @property
    def shapes(self):
        return self.norm.shapes(self.xhat.shape, self.rstd.shape[-1])


def _shaped(name, value, shape):
    fixed = to_fixed(value, name)
    validation.require_shape(name, fixed.shape, shape)
    return fixed


@np.vectorize(otypes=[object], excluded=["dtype"])
def _rounded(n, dtype):
    """A fixed-point number rounded to a float of ``dtype``, to nearest, ties to even."""
    form = rounding.find(dtype)
    smallest = BITS + round(math.log2(form.smallest_subnormal))
    shift = max(abs(n).bit_length() - form.precision, smallest, 1)
    half, odd = 1 << shift - 1, n >> shift & 1
    return (n + half - 1 + odd >> shift) << shift


def layer_norm(
    x: ArrayLike,
    gamma: ArrayLike,
    beta: ArrayLike,
    dy: ArrayLike | None = None,
    eps: float = 1e-5,
    *,
    residual: ArrayLike | None = None,
    dh: ArrayLike | None = None,
    round_twice: bool = False,
) -> Exact:
    """Layer norm of finite real arrays, exactly; with ``dy`` its gradients too.

    Formulas and shapes are those of :mod:`lnlib.layernorm`. eps and all arrays are taken as the
    exact values of the floats given. Rounded to x's dtype is only what the contract rounds, once
    each: x + residual, and with ``round_twice`` xhat where y takes it. (An xhat in the middle of
    two floats is then rounded to either by an implementation whose xhat is off by a little.) A
    constant row with an eps of 0, or one below 2**-BITS, raises ``ZeroDivisionError``.
    """
    return _norm(LAYER_NORM, x, gamma, beta, dy, eps, 1, residual, dh, round_twice)


def rms_norm(
    x: ArrayLike,
    gamma: ArrayLike,
    dy: ArrayLike | None = None,
    eps: float = 1e-5,
    *,
    residual: ArrayLike | None = None,
    dh: ArrayLike | None = None,
    round_twice: bool = False,
) -> Exact:
    """RMS norm, as :func:`layer_norm` without a mean; ``dbeta`` is what a beta would have."""
    return _norm(RMS_NORM, x, gamma, None, dy, eps, 1, residual, dh, round_twice)


def group_norm(
    x: ArrayLike,
    gamma: ArrayLike,
    beta: ArrayLike,
    groups: int,
    dy: ArrayLike | None = None,
    eps: float = 1e-5,
    *,
    residual: ArrayLike | None = None,
    dh: ArrayLike | None = None,
    round_twice: bool = False,
) -> Exact:
    """Group norm, as :func:`layer_norm`; see :func:`lnlib.layernorm.group_norm_forward`."""
    return _norm(GROUP_NORM, x, gamma, beta, dy, eps, groups, residual, dh, round_twice)


def _norm(norm, x, gamma, beta, dy, eps, groups, residual, dh, round_twice):
    x, X, E = np.asarray(x), to_fixed(x, "x"), to_fixed(validation.require_eps(eps))[()]
    validation.require_x(X, dtypes=("object",))
    shapes = norm.shapes(x.shape, validation.require_groups(groups, x) if norm.grouped else 1)
    channels = shapes.whole[1:2]
    G = _shaped("gamma", gamma, channels)[:, None]
    B = _shaped("beta", beta, channels)[:, None] if norm.beta else 0
    if residual is not None:
        X = _rounded(X + _shaped("residual", residual, x.shape), dtype=x.dtype.name)
    X = X.reshape(shapes.rows)
    mean = _mean if norm.mean else lambda a: 0  # what is subtracted, from x and from g
    c = X - mean(X)
    var = _mean(_times(c, c)) + E
    # rstd = 1/sqrt(v / 2**BITS) in units of 2**-BITS is sqrt(2**(3 BITS) / v).
    rstd = np.empty(var.shape, object)
    rstd.ravel()[:] = [math.isqrt((1 << 3 * BITS) // v) for v in var.ravel()]
    xhat = _over(c * rstd, 1 << BITS)
    round_twice = validation.require_round_twice(round_twice, x)
    z = _rounded(xhat, dtype=x.dtype.name) if round_twice else xhat
    y = _times(z.reshape(shapes.whole), G) + B
    found = y.reshape(x.shape), xhat.reshape(x.shape), rstd.reshape(shapes.statistics)
    if dy is None:
        return Exact(*found, norm=norm)
    dY = _shaped("dy", dy, x.shape).reshape(shapes.whole)
    g2 = (dY * G).reshape(shapes.rows)  # in units of 2**(-2 BITS)
    g = g2 >> BITS
    dx = _times(rstd, g - mean(g) - _times(xhat, _mean(_times(g, xhat))))
    # Rounding leaves something of what cancels; of numbers up to 1e100 r has 67 bits or more.
    small = (np.abs(dx) << 50 <= _times(rstd, np.abs(g).max(axis=-1, keepdims=True))).any(axis=-1)
    dx[small] = _cancelled(X[small], E, g2[small], rstd[small], norm.mean)
    dx = dx.reshape(x.shape) + (0 if dh is None else _shaped("dh", dh, x.shape))
    along = dY * xhat.reshape(shapes.whole)
    sums = _over(along.sum(axis=(0, 2)), 1 << BITS), dY.sum(axis=(0, 2))
    return Exact(*found, dx, *sums, norm)


def _root_ratio(a, b):
    """sqrt(a / b) of two non-negative integers, as a float; inf where it is larger than any."""
    if b == 0:
        return 0.0 if a == 0 else math.inf
    try:
        return math.isqrt((a << 256) // b) / (1 << 128)
    except OverflowError:
        return math.inf


def _norm2(a):
    return int(np.sum(a * a))  # a 0-d array of objects has become a plain int here


def relative_error(value: ArrayLike, exact: ArrayLike) -> float:
    r"""Relative L2 error :math:`\|value - exact\| / \|exact\|` of a whole tensor.

    ``exact`` is fixed point (or floats, taken as exact). NaN or Inf in ``value`` gives ``inf``;
    where the exact tensor is zero, the error is 0.0 if ``value`` is too, else ``inf``.
    """
    value = validation.as_array("value", value, (*validation.REAL_NUMBERS, "object"))
    exact = to_fixed(exact, "exact")
    validation.require_shape("value", value.shape, exact.shape, ", the shape of exact")
    if value.dtype != object and not np.isfinite(value).all():
        return math.inf
    return _root_ratio(_norm2(to_fixed(value, "value") - exact), _norm2(exact))


def correct_digits(value: ArrayLike, exact: ArrayLike) -> float:
    """Correct decimal digits of a tensor, -log10 of its relative error, between 0 and 17."""
    error = relative_error(value, exact)
    return 17.0 if error == 0 else min(max(-math.log10(error), 0.0), 17.0)


def kappa(exact: Exact, dy: ArrayLike, gamma: ArrayLike) -> float:
    r"""Condition number of dx: :math:`\|r g\| / \|dx\|` over the whole tensor, g = gamma * dy;
    ``inf`` where dx = 0, and 0 where g is also 0.

    It says how much of g is subtracted away; a backward in precision u loses about kappa * u.
    """
    validation.require_kind("exact", exact, Exact, "the Exact that layer_norm returns")
    if exact.dx is None:
        raise ValueError("exact: found an Exact without gradients, expected that of a call with dy")
    whole, rows, _ = exact.shapes
    dy, gamma = _shaped("dy", dy, exact.dx.shape), _shaped("gamma", gamma, whole[1:2])
    g = _times(dy.reshape(whole), gamma[:, None]).reshape(rows)
    return _root_ratio(_norm2(_times(exact.rstd.reshape(-1, 1), g)), _norm2(exact.dx))
