r"""Layer norm, RMS norm, group norm and their gradients in NumPy: the readable truth.

.. math::

    y = \gamma \hat x + \beta, \qquad \hat x = (x - \mu)\, r, \qquad r = 1/\sqrt{\sigma^2 +
    \varepsilon}

The table :data:`lnlib.norms.NORMS` says what a row is, whether its mean is subtracted and whether
there is a beta. Every function does its arithmetic on a (rows, D) array in the compute dtype of
:data:`lnlib.validation.COMPUTE_DTYPE`. The mean is *recentred*: the computed mean m is rounded, so
the residual mean of x - m is subtracted too. Without it the error of y grows like u times mean /
sigma, whatever formula computes the variance. Sums over D are NumPy's, which are pairwise over
blocks of at most 128 terms on a contiguous axis; sums over rows are wide or pairwise. For float32,
forward's rstd and backward's mean(g xhat) are float64.

Same row, same bits: y and dx of a row do not depend on the batch it stands in, and parameter
gradients have the same bits in every run.

Complex numbers meet no ``abs``, ``var`` or ``conj`` on these paths: the functions are analytic in
x, residual, gamma and beta, so the complex step may differentiate them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import validation
from .norms import GROUP_NORM, LAYER_NORM, RMS_NORM, Norm

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class NormCache(NamedTuple):
    """What a norm's backward needs, and no more: of layer norm rows * (D + 1) + D numbers.

    No field shares memory with an argument of forward: those may change later.
    """

    xhat: np.ndarray  #: x's shape, compute dtype (float64 if precise), the normalised rows
    rstd: np.ndarray  #: (..., 1), or (N, groups), the same dtype, 1 / sqrt(var + eps)
    gamma: np.ndarray  #: (D,) or (C,), a copy in gamma's dtype
    dtype: np.dtype  #: x's dtype, which dx will have
    #: rstd's shape, float64, 2^-64 rstd; None unless a rstd is beyond the largest number
    beyond: np.ndarray | None = None
    norm: Norm = LAYER_NORM  #: its row of the table

    backend = "numpy"  # type: ignore[misc]

    @property
    def shapes(self):
        return self.norm.shapes(self.xhat.shape, self.rstd.shape[-1])


#: y and the cache; with a residual y, h and the cache.
Outputs = tuple[Any, ...]
#: dx, dgamma, dbeta, or what else comes in three arrays.
Gradients = tuple[np.ndarray, np.ndarray, np.ndarray]


def _rows(array, dtype, shape):
    """A C-contiguous (rows, D) array of ``dtype``; it may share memory with ``array``."""
    return np.ascontiguousarray(array, dtype).reshape(shape)


def wide_mean(a):
    """Mean over D, in float64 for float32: what is wrong in it is wrong in the whole row."""
    return np.mean(a, axis=1, keepdims=True, dtype=np.float64 if a.dtype == np.float32 else None)


def centred(a):
    """Rows of ``a`` minus their mean, recentred: the mean goes, then the mean of what is left."""
    d = a - a.mean(axis=1, keepdims=True)
    return d - d.mean(axis=1, keepdims=True)


def _keep(a):
    """RMS norm's way to centre: not at all."""
    return a


def _centre(norm):
    return centred if norm.mean else _keep


def _exponent(a):
    """The e with M < 2^e <= 2 M of each row, (rows, 1); M: the largest |a|, or the least normal."""
    return np.frexp(np.max(np.abs(a), axis=1, keepdims=True, initial=np.finfo(a.dtype).tiny))[1]


def _normalise(c, eps):
    """xhat, rstd and var + eps of each row x - mean = c, if no square over- or underflows."""
    var_eps = wide_mean(c * c) + eps
    rstd = 1 / np.sqrt(var_eps)
    return (c * rstd).astype(c.dtype), rstd.astype(c.dtype), var_eps


def _normalise_any(x, eps, centre):
    """xhat and rstd of each row, and what the cache has of a rstd beyond the largest number.

    A row out of :data:`lnlib.validation.RANGE` is done again, scaled. x is scaled by its largest
    element, so that its sum does not overflow, and then c by its own or by the root of eps: c, and
    eps with it, may be nothing in units of x.
    """
    xhat, rstd, var_eps = _normalise(centre(x), eps)
    beyond = None
    if x.dtype.kind == "c":
        return xhat, rstd, beyond
    smallest, largest = validation.RANGE[x.dtype.name]
    redo = ~((smallest < var_eps) & (var_eps < largest))[:, 0]
    if redo.any():  # a row with NaN or Inf stays what it is
        e_x = _exponent(x[redo])
        c = centre(np.ldexp(x[redo], -e_x))
        # The smallest numbers stand in for a constant row and eps = 0, which have no exponent.
        e = (e_x + _exponent(c)).clip(math.frexp(math.sqrt(eps) or 5e-324)[1])
        xhat[redo], scaled_rstd, _ = _normalise(np.ldexp(c, e_x - e), np.ldexp(eps, -2 * e))
        rstd[redo] = np.ldexp(scaled_rstd, -e)
        if np.isinf(rstd).any():
            beyond = np.ldexp(rstd, -64, dtype=np.float64)
            beyond[redo] = np.ldexp(scaled_rstd, -e - 64, dtype=np.float64)
    return xhat, rstd, beyond


def apply_jacobian(v, xhat, rstd, centre):
    """J v for each row, J = d xhat / d x. J is symmetric: this is J transposed times v, too."""
    v = centre(v)
    return rstd * (v - xhat * wide_mean(v * xhat))


def _apply_jacobian_any(v, xhat, rstd, beyond, centre):
    """J v for each row; where a sum or a product overflows, or r itself, 2^e J (v / 2^e)."""
    result = apply_jacobian(v, xhat, rstd, centre)
    if v.dtype.kind == "c":
        return result
    redo = ~np.isfinite(result).all(axis=1)
    if redo.any():
        e, r = _exponent(v[redo]), rstd[redo]
        small = np.ldexp(v[redo], -e)
        if beyond is not None:
            e, r = e + 64 * np.isinf(r), np.where(np.isinf(r), beyond.reshape(-1, 1)[redo], r)
        result[redo] = np.ldexp(apply_jacobian(small, xhat[redo], r, centre), e)
    return result


def sum_rows(a):
    """Sum over axis 0, float64 for float32, else pairwise. May overwrite ``a``."""
    if a.dtype == np.float32:
        return a.sum(axis=0, dtype=np.float64)
    n = len(a)
    while n > 1:
        half = n // 2
        a[:half] += a[n - half : n]
        n -= half
    return a[:1].sum(axis=0)  # one row, or zeros when there was none


def _compute_dtype(*arrays):
    return np.result_type(*(validation.COMPUTE_DTYPE[a.dtype.name] for a in arrays))


def _given_back(result, dtype):
    """``result`` in the caller's ``dtype``, unless a complex argument made it complex."""
    return result if result.dtype.kind == "c" else result.astype(dtype, copy=False)


def _forward(norm, x, gamma, beta, eps, groups, residual, round_twice, precise):
    """y, h if there is a residual, and the cache, of any norm of the table."""
    x = validation.require_x(x)
    shapes = norm.shapes(x.shape, validation.require_groups(groups, x) if norm.grouped else 1)
    gamma, beta = validation.require_parameters(gamma, beta, x, norm)
    residual = validation.require_residual(residual, x)
    eps = validation.require_eps(eps)
    round_twice = validation.require_round_twice(round_twice, x)
    precise = validation.require_precise(precise, x)
    # NaN, Inf and underflow are data here: they stay in their row, whatever np.seterr says.
    with np.errstate(all="ignore"):
        h = x if residual is None else x + residual
        compute = np.float64 if precise else _compute_dtype(h, gamma, *[beta] * norm.beta)
        xhat, rstd, beyond = _normalise_any(_rows(h, compute, shapes.rows), eps, _centre(norm))
        z = xhat.astype(x.dtype).astype(compute) if round_twice else xhat
        y = gamma[:, None] * z.reshape(shapes.whole)
        y = y + beta[:, None] if norm.beta else y
        y = _given_back(y, x.dtype).reshape(x.shape)
    rstd, beyond = (a if a is None else a.reshape(shapes.statistics) for a in (rstd, beyond))
    cache = NormCache(xhat.reshape(x.shape), rstd, gamma.copy(), h.dtype, beyond, norm)
    return (y, cache) if residual is None else (y, h, cache)


def layer_norm_forward(
    x: ArrayLike,
    gamma: ArrayLike,
    beta: ArrayLike,
    eps: float = 1e-5,
    *,
    residual: ArrayLike | None = None,
    round_twice: bool = False,
    precise: bool = False,
) -> Outputs:
    r"""Layer norm of the last axis.

    .. math:: y = \gamma\, (h - \mu) / \sqrt{\sigma^2 + \varepsilon} + \beta

    Returns y, of x's shape and dtype, and a :class:`NormCache`; with a residual y, h and the cache.

    * ``x``, (..., D): float64, float32, float16 or bfloat16; complex128 for the complex step. Never
      modified.
    * ``gamma``, ``beta``, (D,): x's dtype; for half-precision x also float32.
    * ``eps`` is added to the variance (in the square of x's units), under the root.
    * ``residual``, of x's shape and dtype: h = x + residual, rounded once to x's dtype, is
      normalised and returned, bit by bit what an addition and then a norm give. Else h is x.
    * ``round_twice``, for half-precision x: round xhat to x's dtype before it is multiplied by
      gamma, like model files with ``weight * hidden.to(dtype)``. Gradients do not change.
    * ``precise``, for float32 and half-precision x: do the arithmetic of both passes in float64. y
      and dx then err by hardly more than one rounding, at any kappa up to 1e6.

    NaN and Inf stay in their row. A constant row with eps = 0 is NaN. A finite row whose squares
    leave the range of the dtype is done again, scaled by a power of two (not in complex128).

    The error of y is about u of :math:`\gamma\sqrt{\hat x^2 + \overline{\hat x^2}}` and of y, as
    long as the row is not more than 1e6 standard deviations away from zero, or 1e8 in float64;
    :func:`layer_norm_backward` says how far that holds. Deviations that are subnormal are few units
    of the smallest number, eta, and so is the mean that is subtracted: with eps > 0 each xhat is
    off by up to (r + 1) eta / 2 more, whatever its size. ``precise`` avoids both. With
    ``round_twice`` the error is u of x's dtype in each gamma xhat more. Source: Ba, Kiros and
    Hinton, *Layer Normalization*, 2016, arXiv:1607.06450, equation 4.
    """
    return _forward(LAYER_NORM, x, gamma, beta, eps, 1, residual, round_twice, precise)


def _unpack(cache, **arrays):
    """xhat, rstd and ``arrays`` as rows in the dtype of the arithmetic; dh may be None."""
    validation.require_cache(cache, NormCache)
    arrays = validation.require_upstream(cache.xhat.shape, cache.dtype, **arrays)
    rows = cache.shapes.rows
    compute = _compute_dtype(cache.xhat, cache.gamma, *(a for a in arrays if a is not None))
    yield _rows(cache.xhat, compute, rows)
    yield _rows(cache.rstd, compute, (rows[0], 1))
    yield from (a if a is None else _rows(a, compute, rows) for a in arrays)


def _times_gamma(a, cache):
    """gamma times rows, as rows."""
    return (a.reshape(cache.shapes.whole) * cache.gamma[:, None]).reshape(a.shape)


def _per_channel(a, cache):
    """Sums over N and S of numbers in rows, (C,): float64 where the arithmetic is float32."""
    a = a.reshape(-1, *cache.shapes.whole[1:])
    if a.shape[2] > 1:  # over S first: what grows or falls along S does so in every row
        a = a.sum(axis=2, dtype=np.result_type(a, np.float64), keepdims=True)
    return sum_rows(a)[:, 0]


def backward_sums(dy, cache, block=None, dh=None):
    """dx, and the sums that are dgamma and, if the norm has a beta, dbeta, not rounded yet.

    The sums have gamma's shape, and are float64 where the arithmetic is float32. With ``block``
    they are those of each block of so many rows, (blocks, C). Which norm it is, the cache tells.
    """
    xhat, rstd, upstream, dh = _unpack(cache, dy=dy, dh=dh)
    with np.errstate(all="ignore"):
        g = _times_gamma(upstream, cache)
        dx = _apply_jacobian_any(g, xhat, rstd, cache.beyond, _centre(cache.norm))
        dx = _given_back(dx if dh is None else dx + dh, cache.dtype).reshape(cache.xhat.shape)
        # sum_rows may overwrite what it adds.
        terms = [upstream * xhat, upstream.copy()] if cache.norm.beta else [upstream * xhat]
        if block is None:
            return dx, *(_per_channel(a, cache) for a in terms)
        terms = [a.reshape(cache.shapes.whole) for a in terms]
        of_blocks = [slice(start, start + block) for start in range(0, len(terms[0]), block)]
        sums = ([_per_channel(a[part], cache) for part in of_blocks] for a in terms)
        return dx, *(np.array(each).reshape(-1, cache.gamma.size) for each in sums)


def _backward(norm, dy, cache, dh):
    validation.require_cache(cache, NormCache, norm)
    dx, *sums = backward_sums(dy, cache, dh=dh)
    with np.errstate(all="ignore"):
        return dx, *(_given_back(a, cache.gamma.dtype) for a in sums)


def layer_norm_backward(dy: ArrayLike, cache: NormCache, dh: ArrayLike | None = None) -> Gradients:
    r"""Gradients of a loss with respect to x, gamma and beta, given ``dy``, that with respect to y.

    With :math:`g = \gamma\, dy` and means over the D features,

    .. math::

        dx = r\,\bigl(g - \overline{g} - \hat x\, \overline{g \hat x}\bigr), \qquad
        d\gamma = \sum_{rows} dy\, \hat x, \qquad d\beta = \sum_{rows} dy.

    Returns dx, of x's shape and dtype, and dgamma and dbeta, of shape (D,) and gamma's dtype. With
    a residual dx is its gradient, too.

    * ``dy``, of exactly x's shape: x's dtype; for half-precision x also float32. Never modified.
    * ``dh``, like dy: the gradient with respect to h of what else uses h, added before rounding.

    The relative error of dx is about kappa * u with kappa = ||r g|| / ||dx||: what g has along
    **1** and along xhat is subtracted away, and its rounding error stays. That of dgamma is about
    u ||dy sqrt(xhat^2 + mean(xhat^2))|| / ||dgamma||: however small an xhat is, the error of the
    row's mean is in it, about u sigma. If forward was ``precise``, u is float64's.

    Rows of random numbers err by less than 4 of these units, the dx of float64 rows of a few
    numbers by less than 8. Where roundings have one sign, in
    ramps, or behind an outlier that swallows a part of every number that follows, a mean whose
    longest chain has n additions may lose n units of the mean size of its terms: no row of y can
    lose more than 1.2 n + 6 units, and none of dx more than 3.5 n + 12, where n is
    :func:`lnlib.gradcheck.longest_chain` of D. The worst that a directed search over all backends
    found (tests/directed.py) is below 16 units in y, dgamma and dbeta, and below 64 in dx.
    """
    return _backward(LAYER_NORM, dy, cache, dh)


def layer_norm_backward_steps(dy, x, gamma, eps=1e-5):
    r"""The gradients by the chain rule, one line per value between x and y, from y back to x.

    The teaching version of chapter 3, and an independent check of :func:`layer_norm_backward`. It
    has no recentred mean and no cache. Arguments as there, not checked; results in the dtype
    that NumPy makes of them.
    """
    D = x.shape[-1]
    mean = x.mean(axis=-1, keepdims=True)
    c = x - mean
    var = (c * c).mean(axis=-1, keepdims=True)
    s = np.sqrt(var + eps)
    xhat = c / s

    leading = tuple(range(x.ndim - 1))
    dbeta = dy.sum(axis=leading)
    dgamma = (dy * xhat).sum(axis=leading)
    dxhat = dy * gamma
    ds = -(dxhat * c).sum(axis=-1, keepdims=True) / s**2
    dvar = ds / (2 * s)
    dc = dxhat / s + dvar * 2 * c / D
    dmean = -dc.sum(axis=-1, keepdims=True)
    dx = dc + dmean / D
    return dx, dgamma, dbeta


def layer_norm_jvp(v: ArrayLike, cache: NormCache) -> np.ndarray:
    r"""Derivative of y along ``v``: :math:`\gamma\, r\,(v - \overline{v} - \hat x\,\overline{v \hat
    x})`. ``v`` and the result have x's shape: the backward formula with gamma last, not first.
    """
    xhat, rstd, v = _unpack(cache, v=v)
    with np.errstate(all="ignore"):
        Jv = _apply_jacobian_any(v, xhat, rstd, cache.beyond, _centre(cache.norm))
        return _given_back(_times_gamma(Jv, cache), cache.dtype).reshape(cache.xhat.shape)


def layer_norm_double_backward(v: ArrayLike, dy: ArrayLike, cache: NormCache) -> Gradients:
    r"""Gradient of :math:`\langle v, dx \rangle` with respect to x, gamma and dy.

    With ``v`` and g = ``gamma * dy`` centred, and means over D,

    .. math::

        grad_x = -r^2 \bigl(\hat x\, \overline{vg} + v\, \overline{g \hat x} + g\, \overline{v \hat
        x}
                 - 3\, \hat x\, \overline{v \hat x}\; \overline{g \hat x}\bigr), \qquad
        grad_{dy} = \gamma J v, \qquad grad_\gamma = \sum_{rows} dy\, J v,

    where J is the (symmetric) Jacobian of xhat. Cotangents of dgamma and dbeta are not included.
    Arguments as of :func:`layer_norm_backward`, ``v`` like dy. Returns grad_x, grad_gamma, grad_dy.
    The cache may be any norm's; where no mean is subtracted, ``v`` and g are not centred.
    """
    xhat, rstd, v, upstream = _unpack(cache, v=v, dy=dy)
    centre = _centre(cache.norm)
    with np.errstate(all="ignore"):
        v, g = centre(v), centre(_times_gamma(upstream, cache))
        vx, gx = wide_mean(v * xhat), wide_mean(g * xhat)
        grad_x = -rstd * (rstd * (xhat * wide_mean(v * g) + v * gx + g * vx - 3 * xhat * vx * gx))
        Jv = apply_jacobian(v, xhat, rstd, _keep)  # v is centred already
        return (
            _given_back(grad_x, cache.dtype).reshape(cache.xhat.shape),
            _given_back(_per_channel(upstream * Jv, cache), cache.gamma.dtype),
            _given_back(_times_gamma(Jv, cache), cache.dtype).reshape(cache.xhat.shape),
        )


def rms_norm_forward(
    x: ArrayLike,
    gamma: ArrayLike,
    eps: float = 1e-5,
    *,
    residual: ArrayLike | None = None,
    round_twice: bool = False,
    precise: bool = False,
) -> Outputs:
    r"""RMS norm of the last axis: :math:`y = \gamma\, h / \sqrt{\overline{h^2} + \varepsilon}`.

    Arguments, results and errors as :func:`layer_norm_forward`. Source: Zhang and Sennrich, *Root
    Mean Square Layer Normalization*, 2019, arXiv:1910.07467.
    """
    return _forward(RMS_NORM, x, gamma, None, eps, 1, residual, round_twice, precise)


def rms_norm_backward(
    dy: ArrayLike, cache: NormCache, dh: ArrayLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    r"""Gradients of RMS norm: :math:`dx = r (g - \hat x\, \overline{g \hat x})`, :math:`d\gamma =
    \sum dy\, \hat x`.

    Arguments and errors as :func:`layer_norm_backward`; returns (dx, dgamma).
    """
    return _backward(RMS_NORM, dy, cache, dh)


def group_norm_forward(
    x: ArrayLike,
    gamma: ArrayLike,
    beta: ArrayLike,
    groups: int,
    eps: float = 1e-5,
    *,
    residual: ArrayLike | None = None,
    round_twice: bool = False,
    precise: bool = False,
) -> Outputs:
    r"""Group norm of x, (N, C, ...): each example is normalised in ``groups`` groups of channels.

    .. math:: y = \gamma_c\, (h - \mu) / \sqrt{\sigma^2 + \varepsilon} + \beta_c

    The mean and the variance are those of the C / ``groups`` channels of a group, with all numbers
    of each; gamma and beta have shape (C,). ``groups`` divides C: instance norm is ``groups = C``.
    Other arguments, results and errors as :func:`layer_norm_forward`. Source: Wu and He, *Group
    Normalization*, 2018, arXiv:1803.08494.
    """
    return _forward(GROUP_NORM, x, gamma, beta, eps, groups, residual, round_twice, precise)


def group_norm_backward(dy: ArrayLike, cache: NormCache, dh: ArrayLike | None = None) -> Gradients:
    r"""Gradients of group norm: dx is that of :func:`layer_norm_backward`, with means over a group.

    Arguments and errors as there. dgamma and dbeta, (C,), sum over all axes but that of channels.
    All of a row share one mean: its error, about u sigma, is in dgamma times the sum of their dy.
    """
    return _backward(GROUP_NORM, dy, cache, dh)
