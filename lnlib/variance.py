r"""Ten ways to compute the mean and the variance of a row, and what each of them loses.

Every algorithm takes x of shape (..., D) and returns three arrays of shape (..., 1) in x's dtype,

.. math::

    (m, c, v) \quad\text{for}\quad \hat x = \bigl((x - m) - c\bigr) / \sqrt{v + \varepsilon} ,

where the *correction* c is what must still be subtracted once the mean m has been; only the last
algorithm needs one. But for :func:`wide`, arithmetic is done in x's dtype, half precision included.

Notation: u is the unit roundoff of x's dtype (2**-24 in float32), mu and sigma are the mean and the
standard deviation of the row, :math:`\kappa = \sqrt{1 + \mu^2/\sigma^2}` is the condition number of
the variance. E(D) u bounds the relative error of a sum of D positive terms: E is D - 1 in sequence,
about D / 8 with eight accumulators, about log2 D pairwise. Bounds are for the relative error of v,
to leading order and up to small factors. They are those of Chan, Golub and LeVeque, *Algorithms for
Computing the Sample Variance: Analysis and Recommendations*, The American Statistician 37, 1983;
those for sums are in Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, chapter 4.
Errors seen in practice grow like :math:`\sqrt D` where a bound grows like D.

No bound for v bounds the error of xhat. The rounded mean m is off by up to :math:`u |\mu|`, so with
a perfect variance xhat is still off by up to :math:`u |\mu| / \sigma`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from . import validation

_REAL = ("float16", "bfloat16", "float32", "float64")
_SUMMED = *_REAL, np.dtype(np.longdouble).name  # which "wide" sums in

#: (mean, correction, variance), each of shape (..., 1) and x's dtype.
Moments = tuple[np.ndarray, np.ndarray, np.ndarray]

# The count, the mean and the sum of squared deviations of a group of numbers.
Group = Sequence[np.ndarray]


def _sequential(a):
    # Not a.sum(): NumPy adds float16 in float32. accumulate stores, so it rounds, every sum.
    return np.add.accumulate(a, axis=-1)[..., -1:]


def _accumulators(a, lanes=8):
    lanes = [_sequential(a[..., i::lanes]) for i in range(min(lanes, a.shape[-1]))]
    return _sequential(np.concatenate(lanes, axis=-1))


def _pairwise(a):
    while (D := a.shape[-1]) > 1:
        pairs = a[..., 0 : D - 1 : 2] + a[..., 1:D:2]
        a = np.concatenate([pairs, a[..., D - 1 :]], axis=-1) if D % 2 else pairs
    return a


#: The orders in which D terms can be added, from the longest chain of additions to the shortest.
#: ``sequential``: one running sum. ``accumulators``: eight running sums, added at the end, which is
#: what SIMD code does. ``pairwise``: neighbours, then the sums of neighbours, until one is left; an
#: odd one waits. (The sum of NumPy stops at blocks of at most 128 float32 or float64 numbers, which
#: it adds with eight accumulators.)
#:
#: :meta hide-value:
ORDERS = {"sequential": _sequential, "accumulators": _accumulators, "pairwise": _pairwise}


def total(a: np.ndarray, order: str = "pairwise") -> np.ndarray:
    r"""Sum over the last axis of ``a``, (..., D), every partial sum rounded to its dtype.

    The result has shape (..., 1) and the dtype of ``a``; ``order`` is a key of ``ORDERS``. The
    error is at most :math:`E u \sum |a_i|`, with E = D - 1 (sequential), ceil(D / 8) + 6
    (accumulators) or ceil(log2(D)) (pairwise). Higham 2002, section 4.2.
    """
    a = validation.require_x(a, "a", _SUMMED)
    return ORDERS[validation.require_choice("order", order, ORDERS)](a)


def compensated_total(a: np.ndarray) -> np.ndarray:
    r"""Sum over the last axis with one running sum and a second one for what each addition lost.

    Shapes and dtypes as :func:`total`. The error is one rounding of the result plus, at most,
    :math:`D^2 u^2 \sum |a_i|`. Source: Neumaier, *Rundungsfehleranalyse einiger Verfahren zur
    Summation endlicher Summen*, Zeitschrift fuer Angewandte Mathematik und Mechanik 54, 1974.
    """
    a = validation.require_x(a, "a", _SUMMED)
    running = np.add.accumulate(a, axis=-1)
    before, after, term = running[..., :-1], running[..., 1:], a[..., 1:]
    larger = np.where(abs(before) >= abs(term), before, term)
    smaller = np.where(abs(before) >= abs(term), term, before)
    lost = (larger - after) + smaller  # exact, because the larger of the two comes first
    nothing = np.zeros_like(a[..., :1])
    return running[..., -1:] + _sequential(np.concatenate([nothing, lost], axis=-1))


def _divide(a, n):
    # Rounded once, to the dtype of a, in which n need not exist: in float16, 65536 is inf.
    return (a / np.float64(n)).astype(a.dtype)


def mean(a: np.ndarray, order: str = "pairwise") -> np.ndarray:
    """:func:`total` divided by D: shape (..., 1), the dtype of ``a``."""
    return _divide(total(a, order), np.shape(a)[-1])


def _algorithm(function):
    """Check the arguments of an algorithm; NaN, Inf and overflow are data, and pass silently."""

    @functools.wraps(function)
    def checked(x, order="pairwise"):
        x = validation.require_x(x, dtypes=_REAL)
        validation.require_choice("order", order, ORDERS)
        with np.errstate(all="ignore"):
            return function(x, order)

    return checked


@_algorithm
def naive(x: np.ndarray, order: str = "pairwise") -> Moments:
    r"""Mean of the squares minus square of the mean: :math:`\sigma^2 = \overline{x^2} - m^2`.

    Two numbers near :math:`\mu^2` that differ by :math:`\sigma^2` are subtracted: the error is
    :math:`E \kappa^2 u`. Where that is more than 1, var is any number up to about :math:`E u
    \mu^2`, of either sign.
    """
    m = mean(x, order)
    var = mean(x * x, order) - m * m
    return m, np.zeros_like(m), var


@_algorithm
def naive_clipped(x: np.ndarray, order: str = "pairwise") -> Moments:
    r""":func:`naive`, clipped: :math:`\sigma^2 = \max(\overline{x^2} - m^2,\, 0)`.

    No negative variance, and no better answer: with var = 0, xhat is :math:`(x - m)/\sqrt
    \varepsilon`, which is :math:`\sqrt{1 + \sigma^2/\varepsilon}` times too large.
    """
    m, c, var = naive(x, order)
    return m, c, np.maximum(var, np.zeros_like(var))


@_algorithm
def two_pass(x: np.ndarray, order: str = "pairwise") -> Moments:
    r"""The definition, with d = x - m: :math:`\sigma^2 = \overline{d^2}`.

    The error is :math:`E u + (E \kappa u)^2`; the latter is m's, squared. Higham 2002, section 1.9.
    """
    m = mean(x, order)
    d = x - m
    var = mean(d * d, order)
    return m, np.zeros_like(m), var


@_algorithm
def corrected_two_pass(x: np.ndarray, order: str = "pairwise") -> Moments:
    r""":func:`two_pass`, with the error of the mean taken out of the variance.

    .. math:: d = x - m, \qquad \sigma^2 = \overline{d^2} - \overline{d}^{\,2}

    The error of var is :math:`E u + E^3 \kappa^2 u^3`. xhat is no better than with
    :func:`two_pass`: m is the same. It can be worse: on a constant row var is now zero, or nearly,
    and what m is off by is divided by the root of eps.
    """
    m, residual, var = recentred_short(x, order)
    return m, np.zeros_like(residual), var


@_algorithm
def shifted(x: np.ndarray, order: str = "pairwise") -> Moments:
    r""":func:`naive` on x minus its first element.

    .. math:: d = x - x_0, \qquad m = x_0 + \overline{d}, \qquad
              \sigma^2 = \overline{d^2} - \overline{d}^{\,2}

    The error is that of :func:`naive` for a row whose mean is :math:`\mu - x_0`: small when
    :math:`x_0` is near the mean. No element is more than :math:`\sigma\sqrt{D - 1}` from it, so the
    worst is :math:`E D u`, when :math:`x_0` is the outlier of its row.
    """
    shift = x[..., :1]
    rest, c, var = naive(x - shift, order)
    return shift + rest, c, var


@_algorithm
def welford(x: np.ndarray, order: str = "sequential") -> Moments:
    r"""One element after another, each moving the mean towards itself.

    .. math:: d_n = x_n - m_{n-1}, \qquad m_n = m_{n-1} + d_n/n, \qquad
              S_n = S_{n-1} + d_n (x_n - m_n)

    and var = S / D. The error is :math:`D \kappa u`: the mean is rounded at every step. The order
    is sequential by nature, and ``order`` changes nothing. Source: Welford, *Note on a Method for
    Calculating Corrected Sums of Squares and Products*, Technometrics 4, 1962.
    """
    m = S = np.zeros_like(x[..., :1])
    for n in range(1, x.shape[-1] + 1):
        xn = x[..., n - 1 : n]
        d = xn - m
        m = m + _divide(d, n)
        S = S + d * (xn - m)
    return m, np.zeros_like(m), _divide(S, x.shape[-1])


def merge(a: Group, b: Group) -> Group:
    r"""The count, the mean and the sum of squared deviations of two groups taken together.

    .. math::

        n = n_a + n_b, \quad d = m_b - m_a, \quad m = m_a + d\, n_b/n, \quad
        S = S_a + S_b + d^2\, n_a n_b/n

    ``a`` and ``b`` are triples (n, m, S); m and S are arrays of one shape and dtype, n is float64
    and broadcasts. Arguments are not checked: they are what :func:`chan` makes of rows that it has
    checked. Source: Chan, Golub and LeVeque, *Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances*, COMPSTAT 1982.
    """
    (na, ma, Sa), (nb, mb, Sb) = a, b
    n = na + nb
    d = mb - ma
    m = ma + d * (nb / n).astype(d.dtype)
    S = (Sa + Sb) + d * d * (na * nb / n).astype(d.dtype)
    return n, m, S


@_algorithm
def chan(x: np.ndarray, order: str = "pairwise") -> Moments:
    r"""Groups of one element, merged with their neighbours until one group is left; var = S / D.

    The formula is that of :func:`merge`. The error is :math:`\kappa u \log_2 D`: fewer roundings of
    the mean than in :func:`welford`, and threads may share the work. ``order`` changes nothing.
    """
    groups = np.ones(x.shape[-1]), x.copy(), np.zeros_like(x)
    while groups[0].size > 1:
        even = groups[0].size // 2 * 2
        merged = merge([a[..., 0:even:2] for a in groups], [a[..., 1:even:2] for a in groups])
        groups = [
            np.concatenate([new, old[..., even:]], axis=-1) for new, old in zip(merged, groups)
        ]
    _, m, S = groups
    return m, np.zeros_like(m), _divide(S, x.shape[-1])


@_algorithm
def neumaier(x: np.ndarray, order: str = "sequential") -> Moments:
    r""":func:`two_pass` with :func:`compensated_total` for both sums.

    The error no longer grows with D in practice: it is :math:`u + (\kappa u)^2`. Running sums are
    all it needs; ``order`` changes nothing. That of xhat stays: m is rounded.
    """
    D = x.shape[-1]
    m = _divide(compensated_total(x), D)
    d = x - m
    return m, np.zeros_like(m), _divide(compensated_total(d * d), D)


@_algorithm
def wide(x: np.ndarray, order: str = "pairwise") -> Moments:
    r""":func:`two_pass` in a wider dtype; the results are rounded to x's dtype.

    The wider dtype is float64, and for float64 it is ``numpy.longdouble``. Where that is float64 as
    well (Windows, and macOS on ARM), this is :func:`two_pass` for float64 x. Mean and var are
    correctly rounded, nearly always. xhat is no better: m is rounded before it is subtracted.
    """
    w = x.astype(np.longdouble if x.dtype == np.float64 else np.float64)
    m = mean(w, order)
    d = w - m
    var = mean(d * d, order).astype(x.dtype)
    return m.astype(x.dtype), np.zeros_like(var), var


@_algorithm
def recentred(x: np.ndarray, order: str = "pairwise") -> Moments:
    r"""Subtract the mean, then the mean of what is left: the cure.

    .. math:: d = x - m, \qquad c = d - \overline{d}, \qquad \sigma^2 = \overline{c^2}

    m only has to be close: then x - m is exact where it is small, and the residual, the mean of d,
    is the part of the mean that m could not hold. It is returned as the correction, because m +
    residual would be rounded to m again. What is left of the mean in xhat is at most :math:`\delta
    = E u\,(1 + E u |\mu|/\sigma)`, and the error of the variance is :math:`E u + \delta^2`. Both
    are a few E u while :math:`E u |\mu|/\sigma` is below 1. Chains of additions must be short for
    that: in practice pairwise will do where sigma is at least the spacing of the elements, one
    running sum over D = 65536 will not.

    A constant row comes out as exact zeros, if its sum is in range. If all x are k, then d is a
    small whole number j of units in the last place of k, the same for all, and its partial sums are
    multiples of that unit up to D j. Those need no rounding while D j < 1/u, so the residual is d.

    Source: Neely, *Comparison of Several Algorithms for Computation of Means, Standard Deviations
    and Correlation Coefficients*, Communications of the ACM 9, 1966, who adds it to the mean.
    """
    m = mean(x, order)
    d = x - m
    residual = mean(d, order)
    c = d - residual
    var = mean(c * c, order)
    return m, residual, var


@_algorithm
def recentred_short(x: np.ndarray, order: str = "pairwise") -> Moments:
    r""":func:`recentred`, one pass shorter: the sums of d and of d**2 are taken together.

    .. math:: d = x - m, \qquad \sigma^2 = \overline{d^2} - \overline d^{\,2}

    The error is :math:`E u\,(1 + \overline d^{\,2}/\sigma^2)`. It is safe while the residual is
    below sigma, as it is for a pairwise mean where sigma is well above the spacing of the elements.
    A mean summed with few accumulators may leave a residual of hundreds of sigma, and then this is
    :func:`naive` again: var is wrong, and may be negative.
    """
    m = mean(x, order)
    residual, _, var = naive(x - m, order)
    return m, residual, var


class Algorithm(NamedTuple):
    """One way to compute mean and variance."""

    function: Callable[..., Moments]  #: (x, order) -> (mean, correction, var)
    #: How often x is read for the statistics when nothing stays in cache; writing xhat reads it
    #: once more. A row that fits into cache is read from memory once, whatever the algorithm.
    passes: int


#: The algorithms in teaching order, by a short id.
#:
#: :meta hide-value:
ALGORITHMS = {
    "naive": Algorithm(naive, 1),
    "clipped": Algorithm(naive_clipped, 1),
    "two-pass": Algorithm(two_pass, 2),
    "corrected": Algorithm(corrected_two_pass, 2),
    "shifted": Algorithm(shifted, 1),
    "welford": Algorithm(welford, 1),
    "chan": Algorithm(chan, 1),
    "neumaier": Algorithm(neumaier, 2),
    "wide": Algorithm(wide, 2),
    "recentred": Algorithm(recentred, 3),
}


def normalise(
    x: np.ndarray,
    algorithm: str | Algorithm = "recentred",
    eps: float = 1e-5,
    order: str = "pairwise",
    var: np.ndarray | None = None,
) -> np.ndarray:
    r"""Layer norm without gamma and beta, with mean and variance from ``algorithm``.

    .. math:: \bigl((x - m) - c\bigr) / \sqrt{v + \varepsilon}

    x is float16, bfloat16, float32 or float64, of shape (..., D), and never modified; ``algorithm``
    is a key or an entry of ``ALGORITHMS``, eps in the square of x's units, and ``order`` a key of
    ``ORDERS``. ``var``, of shape (..., 1), is used in place of the algorithm's variance, after
    rounding to x's dtype: to see what the mean alone costs.
    """
    x = validation.require_x(x)
    eps = validation.require_eps(eps)
    if not isinstance(algorithm, Algorithm):
        algorithm = ALGORITHMS[validation.require_choice("algorithm", algorithm, ALGORITHMS)]
    m, c, v = algorithm.function(x, order)
    if var is not None:
        v = validation.as_array("var", var, _SUMMED)
        validation.require_shape("var", v.shape, m.shape, ", one variance per row of x")
    with np.errstate(all="ignore"):
        return ((x - m) - c) / np.sqrt(v.astype(x.dtype) + x.dtype.type(eps))
