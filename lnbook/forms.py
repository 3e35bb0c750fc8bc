r"""Backward passes that keep or combine other numbers than :mod:`lnlib.layernorm`.

They exist to be measured. Each works in the dtype of its arguments, for rows on the last axis, and
takes g = gamma * dy. Arguments are not checked: what is measured is the rounding of these lines and
no others. On paper all but those with eps outside the root are layer norm's dx.
"""

import numpy as np

from lnlib.rounding import round_to


def _mean(a):
    return a.mean(axis=-1, keepdims=True)


def saved_statistics(x, dtype="float32", eps=1e-5):
    """Mean and rstd of float32 rows, (..., 1), from float64 rounded once to ``dtype``; float32."""
    wide = x.astype(np.float64)
    mean = _mean(wide)
    rstd = 1 / np.sqrt(_mean((wide - mean) ** 2) + eps)
    return tuple(round_to(a, dtype).astype(np.float32) for a in (mean, rstd))


def centred(g, xhat, rstd):
    r"""dx as two means: :math:`r\,(g - \overline g - \hat x\, \overline{g \hat x})`."""
    return rstd * (g - _mean(g) - xhat * _mean(g * xhat))


def affine(g, x, mean, rstd):
    r"""dx as a multiple of g, a multiple of x and a constant: :math:`r\,g + b\,x + c`.

    .. math:: b = r^3\,(\mu\, \overline g - \overline{g x}), \qquad c = -b\,\mu - r\, \overline g

    It saves a subtraction for every element: x - mean is never formed. Put :math:`\hat x = r\,(x -
    \mu)` into :func:`centred` to derive it. Where the mean is large against sigma, b is a small
    difference of large numbers, and so is b x + c.
    """
    mean_g = _mean(g)
    b = (mean * mean_g - _mean(g * x)) * rstd**3
    c = -b * mean - mean_g * rstd
    return rstd * g + b * x + c


def reorthogonalised(g, xhat, rstd, eps=1e-5):
    r"""dx with both subtractions done twice, as if by Gram and Schmidt.

    The second time removes what the rounding of the first has left along **1** and along xhat. What
    eps lets through is added at the end: the part along xhat, found in both rounds, times
    :math:`\varepsilon / s^2`. A constant row, whose xhat is zero, is NaN.
    """
    along = 0 * rstd
    for _ in range(2):
        g = g - _mean(g)
        step = _mean(g * xhat) / _mean(xhat * xhat)
        g, along = g - xhat * step, along + step
    return rstd * (g + xhat * along * (g.dtype.type(eps) * rstd**2))


def eps_outside_forward(x, eps=1e-5):
    r"""Rows centred and divided by :math:`\sigma + \varepsilon`; no gamma, no beta."""
    c = x - _mean(x)
    return c / (np.sqrt(_mean(c * c)) + eps)


def eps_outside_backward(g, x, eps=1e-5):
    r"""dx of :func:`eps_outside_forward`: the derivative of the root divides by sigma.

    .. math:: dx = \frac 1 s \Bigl(g - \overline g - \frac c \sigma\, \overline{g\, c/s}\Bigr),
              \qquad s = \sigma + \varepsilon

    A constant row has :math:`c = \sigma = 0`, and so dx is NaN.
    """
    c = x - _mean(x)
    sigma = np.sqrt(_mean(c * c))
    s = sigma + eps
    return (g - _mean(g) - c / sigma * _mean(g * c / s)) / s
