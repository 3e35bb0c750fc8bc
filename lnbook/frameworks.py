r"""The layer norms of PyTorch, Flax and Keras, re-created in NumPy.

Each recreation performs the same steps in the same precision as the framework's own code on a CPU,
so it fails where the framework fails. It is not the same to the last bit: the order in which a
compiler adds numbers is not copied, nor are its fused multiply-adds, but for one that matters.
Forward returns (y, cache), backward takes (dy, cache) and returns (dx, dgamma, dbeta), as in
:mod:`lnlib.layernorm`. Arguments are not checked.

float32 and float64 are worked on as they are, half precision in float32. No gradient formula is
simplified: those of Flax and Keras follow their forward, as automatic differentiation does.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from lnlib.summation import by_halves

#: Sums that run side by side, as in an AVX2 register of float32. It changes digits, not failures.
LANES = 8


def _rows(a):
    """``a`` as a (rows, D) array of the dtype that the arithmetic is done in."""
    a = np.asarray(a)
    return a.astype(np.promote_types(a.dtype, np.float32)).reshape(-1, a.shape[-1])


def _given_back(dx, dgamma, dbeta, x, gamma):
    dx = dx.astype(x.dtype).reshape(x.shape)
    return dx, dgamma.astype(gamma.dtype), dbeta.astype(gamma.dtype)


def _lane_sum(a, lanes):
    """Sum over D as a SIMD loop does it, (rows, 1): running sums side by side, then their sum."""
    padded = np.pad(a, [(0, 0), (0, -a.shape[-1] % lanes)]).reshape(len(a), -1, lanes)
    return by_halves(np.add.accumulate(padded, axis=1)[:, -1].T)[:, None]


def _sum(a):
    """Sum over D, (rows, 1), with eight registers: it errs about as XLA's and TensorFlow's."""
    return _lane_sum(a, 8 * LANES)


def _mean(a):
    return _sum(a) / a.dtype.type(a.shape[-1])


def _sequential_sum(terms, dtype):
    """Sum over rows, one after the other, in ``dtype``: the error grows like sqrt(n) u."""
    total = np.zeros(terms.shape[-1], dtype)
    for term in terms:
        total = (total + term).astype(dtype, copy=False)
    return total


# PyTorch


class Moments(NamedTuple):
    """count, mean, and the sum of squared deviations of a part of each row."""

    count: int  # type: ignore[assignment]
    mean: np.ndarray
    m2: np.ndarray


def welford(parts):
    """Moments of ``parts`` (..., k, n) along k; the division is a rounded reciprocal."""
    mean, m2 = np.zeros((2, *parts.shape[:-2], parts.shape[-1]), parts.dtype)
    for j in range(parts.shape[-2]):
        value = parts[..., j, :]
        delta = value - mean
        mean = mean + delta * (value.dtype.type(1) / value.dtype.type(j + 1))
        m2 = m2 + delta * (value - mean)
    return Moments(parts.shape[-2], mean, m2)


def merge(a, b):
    """Moments of two parts together, as Chan et al.; NaN where delta**2 overflows, a count is 0."""
    count = a.count + b.count
    share = a.mean.dtype.type(b.count / count if count else 0)
    delta = b.mean - a.mean
    m2 = a.m2 + (b.m2 + delta * delta * share * a.mean.dtype.type(a.count))
    return Moments(count, a.mean + share * delta, m2)


def pytorch_moments(x):
    """Mean and variance of the rows of ``x``: Welford in chunks of 16 registers, merged as a tree.

    The numbers that fill no register go first, then each lane, even an empty one.
    """
    rows, D = x.shape
    lanes = LANES * 4 // x.itemsize
    full = D // lanes
    vectors = x[:, : full * lanes].reshape(rows, full, lanes)
    parts = [welford(vectors[:, i : i + 16]) for i in range(0, full, 16)]
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [merge(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    lane = parts[0] if parts else Moments(0, *np.zeros((2, rows, lanes), x.dtype))
    total = welford(x[:, full * lanes :, None])
    for j in range(lanes):
        total = merge(total, Moments(lane.count, lane.mean[:, j : j + 1], lane.m2[:, j : j + 1]))
    return total.mean, total.m2 / x.dtype.type(D)


def pytorch_forward(x, gamma, beta, eps=1e-5):
    r"""PyTorch 2.13 on the CPU: Welford moments, then :math:`y = (x - m)\,r\,\gamma + \beta`.

    The variance loses some digits; y loses more, where the mean m is rounded. Half precision also
    forms :math:`x\,r + (-m\,r)`, two numbers of about mean / sigma, but in float32.

    For the backward it keeps x and two numbers a row, m and r, in gamma's dtype. Source:
    ``aten/src/ATen/native/cpu/layer_norm_kernel.cpp`` and ``moments_utils.h`` (the second is in the
    wheel). Releases before 2.13 may differ: one had the half-precision form everywhere.
    """
    x = np.asarray(x)
    rows = _rows(x)
    with np.errstate(all="ignore"):
        mean, var = pytorch_moments(rows)
        rstd = 1 / np.sqrt(var + rows.dtype.type(eps))
        xhat = (rows - mean) * rstd if x.dtype == rows.dtype else rows * rstd + -rstd * mean
        y = xhat * gamma.astype(rows.dtype) + beta.astype(rows.dtype)
    kept = x, mean.astype(gamma.dtype), rstd.astype(gamma.dtype), gamma
    return y.astype(x.dtype).reshape(x.shape), kept


def pytorch_backward(dy, cache):
    r"""PyTorch 2.13 on the CPU: :math:`dx = r\,g + b\,x + c`, b and c one number a row.

    .. math::

        b = \Bigl(m \sum g - \sum g x\Bigr) \frac{r^3}{D}, \qquad c = -b\,m - \frac{r}{D} \sum g,
        \qquad d\gamma = \sum_{rows} dy\,(r\,x + (-r\,m))

    The two terms in b are about mean / sigma times their difference, and so are b x and c. dgamma
    and dbeta are added up row after row in x's dtype, half precision included. Source:
    ``aten/src/ATen/native/cpu/layer_norm_kernel.cpp``, with one thread.
    """
    x, mean, rstd, gamma = cache
    rows, upstream = _rows(x), _rows(dy)
    mean, a, gain = _rows(mean), _rows(rstd), gamma.astype(rows.dtype)
    scale = rows.dtype.type(1) / rows.dtype.type(x.shape[-1])
    with np.errstate(all="ignore"):
        dgamma = _sequential_sum(upstream * (a * rows + -a * mean), x.dtype)
        dbeta = _sequential_sum(upstream, x.dtype)
        ds, db = _lane_sum(upstream * rows * gain, LANES), _lane_sum(upstream * gain, LANES)
        b = (db * mean - ds) * a * a * a * scale
        c = -b * mean - db * a * scale
        dx = a * upstream * gain + b * rows + c
    return _given_back(dx, dgamma, dbeta, x, gamma)


# Flax


def _multiply_add(a, b, c):
    """a * b + c, rounded once in float32 as XLA's code does it; in float64 twice.

    It matters in the variance: without it an exact 0, the kink of the clip, is more frequent.
    """
    return (a.astype(np.float64) * b + c).astype(a.dtype)


def flax_forward(x, gamma, beta, eps=1e-5, fast=True):
    r"""Flax 0.12.8 as it comes: the variance is :math:`\max(0, \overline{x^2} - \overline{x}^2)`.

    From mean / sigma near 1 / sqrt(u), 4000 in float32, the difference is rounding error. Where
    that is negative the variance becomes 0 and y is sqrt(1 + sigma^2 / eps) times too large; no NaN
    shows it. ``fast=False`` is ``use_fast_variance=False``, the mean of (x - mean)**2. Source:
    ``flax/linen/normalization.py``, ``_compute_stats`` and ``_normalize``.
    """
    x = np.asarray(x)
    rows = _rows(x)
    share = rows.dtype.type(1) / rows.dtype.type(x.shape[-1])  # XLA multiplies by 1 / D
    with np.errstate(all="ignore"):
        mean = _sum(rows) * share
        if fast:
            raw = _multiply_add(_sum(rows * rows), share, -(mean * mean))
        else:
            raw = _sum((rows - mean) ** 2) * share
        rstd = 1 / np.sqrt(np.maximum(raw, 0) + rows.dtype.type(eps))
        y = (rows - mean) * (rstd * gamma.astype(rows.dtype)) + beta.astype(rows.dtype)
    return y.astype(x.dtype).reshape(x.shape), (x, mean, raw, rstd, gamma, eps, fast)


def flax_backward(dy, cache):
    """Gradients of both Flax forwards as automatic differentiation forms them, from y back to x."""
    x, mean, raw, rstd, gamma, eps, fast = cache
    rows, upstream = _rows(x), _rows(dy)
    kind = rows.dtype.type
    share = kind(1) / kind(x.shape[-1])
    with np.errstate(all="ignore"):
        c = rows - mean
        dmul = upstream * c
        dgamma, dbeta = by_halves(dmul * rstd), by_halves(upstream)
        dc = upstream * (rstd * gamma.astype(rows.dtype))
        drstd = _sum(dmul * gamma.astype(rows.dtype))
        dvar = drstd * kind(-0.5) * (rstd / (np.maximum(raw, 0) + kind(eps)))
        if fast:
            # max(0, raw): nothing comes back through a clipped variance, and half at the kink.
            draw = dvar * np.where(raw > 0, kind(1), np.where(raw == 0, kind(0.5), kind(0)))
            dmean = -_sum(dc) - 2 * mean * draw
            dx = dc + 2 * rows * (draw * share) + dmean * share
        else:
            dsquare = 2 * c * (dvar * share)
            dmean = -_sum(dc) - _sum(dsquare)
            dx = dc + dsquare + dmean * share
    return _given_back(dx, dgamma, dbeta, x, gamma)


# Keras


def keras_forward(x, gamma, beta, eps=1e-5, on_numpy=False):
    r"""Keras 3.15 on TensorFlow 2.21: two passes, :math:`y = x\,w + (-m\,w + \beta)`, w = r gamma.

    ``on_numpy``: its NumPy backend, whose one-pass variance may be negative, and which has no
    gradients. Source: ``keras/src/ops/nn.py``, ``keras/src/backend/tensorflow/nn.py`` and
    ``keras/src/backend/numpy/nn.py``, ``tensorflow/python/ops/nn_impl.py``.
    """
    x = np.asarray(x)
    rows = _rows(x)
    with np.errstate(all="ignore"):
        if on_numpy:
            mean = rows.mean(axis=-1, keepdims=True)
            var = (rows * rows).mean(axis=-1, keepdims=True) - mean * mean
        else:
            mean = _mean(rows)
            var = _mean((rows - mean) ** 2)
        rstd = 1 / np.sqrt(var + rows.dtype.type(eps))
        inv = rstd * gamma.astype(rows.dtype)
        y = rows * inv + (-mean * inv + beta.astype(rows.dtype))
    return y.astype(x.dtype).reshape(x.shape), (x, mean, rstd, gamma)


def keras_backward(dy, cache):
    """Gradients of :func:`keras_forward` as automatic differentiation forms them.

    The gradient of w is dy x - dy m, two large numbers for one small one, so dgamma loses digits
    too. No gradient flows from the variance to the mean: that path is zero for an exact mean, and
    is cut.
    """
    x, mean, rstd, gamma = cache
    rows, upstream = _rows(x), _rows(dy)
    kind, D = rows.dtype.type, x.shape[-1]
    with np.errstate(all="ignore"):
        inv = rstd * gamma.astype(rows.dtype)
        dinv = upstream * rows + upstream * -mean
        dgamma, dbeta = by_halves(dinv * rstd), by_halves(upstream)
        dvar = kind(-0.5) * _sum(dinv * gamma.astype(rows.dtype)) * (rstd * rstd * rstd)
        dmean = -_sum(upstream * inv)
        dx = upstream * inv + 2 * (rows - mean) * (dvar / kind(D)) + dmean / kind(D)
    return _given_back(dx, dgamma, dbeta, x, gamma)


class Recreation(NamedTuple):
    """name (as in the results file), framework, version read, forward, backward or None."""

    name: str
    framework: str
    version: str
    forward: object
    backward: object


#: All of them; the names are those of the results of ``benchmarks.accuracy``.
RECREATIONS = (
    Recreation("pytorch", "PyTorch, CPU", "2.13.0", pytorch_forward, pytorch_backward),
    Recreation("flax", "Flax, default", "0.12.8", flax_forward, flax_backward),
    Recreation(
        *("flax-two-pass", "Flax, use_fast_variance=False", "0.12.8"),
        *(partial(flax_forward, fast=False), flax_backward),
    ),
    Recreation("keras", "Keras on TensorFlow", "3.15.1", keras_forward, keras_backward),
    Recreation(
        "keras-numpy", "Keras on NumPy", "3.15.1", partial(keras_forward, on_numpy=True), None
    ),
)
