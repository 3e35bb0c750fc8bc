r"""Groups of numbers, and what is known of two of them taken together: the arithmetic of a message.

A rank knows of its part of a row the *quadruple* (count n, mean m, residual r, squares S): the
rounded mean, the mean of what it leaves, and :math:`S = \sum (x - m - r)^2`. The mean of the group
is m + r, in two numbers as in :func:`lnlib.variance.recentred`: the sum would be rounded to m.

:mod:`lnlib.sharded.features` has all in float64, whatever x is: what is wrong in a statistic is
wrong in a whole row, and there are few of them. Arguments are not checked: programs check theirs.
"""

import numpy as np


@np.errstate(all="ignore")
def _of_parts(columns, make, block, *arrays):
    """The count and ``make(part of each array)``, in their dtype: (blocks, rows, columns)."""
    rows, width = arrays[0].shape
    block, made = block or max(width, 1), []
    for start in range(0, width, block):
        parts = [a[:, start : start + block] for a in arrays]
        numbers = make(*parts)
        made.append(np.concatenate([np.full_like(numbers[0], parts[0].shape[1]), *numbers], 1))
    return np.stack(made) if made else np.empty((0, rows, columns), arrays[0].dtype)


def centred(x):
    """(m, r, x - m - r) of each row: the mean rounded, what it leaves, and the row less both."""
    m = x.mean(axis=1, keepdims=True)
    c = x - m
    r = c.mean(axis=1, keepdims=True)
    c -= r  # in place, here and below: to get new memory takes longer than to subtract
    return m, r, c


def quadruples(x, block=None):
    """(n, m, r, S) of every row of x, (rows, width), for each block: (blocks, rows, 4)."""

    def make(part):
        m, r, c = centred(part)
        c *= c
        return m, r, c.sum(1, keepdims=True)

    return _of_parts(4, make, block, x)


def quintuples(g, xhat, block=None):
    r"""(n, m, r, X, Q) of every row of g, (rows, width), for each block: (blocks, rows, 5).

    :math:`X = \sum\hat x` and :math:`Q = \sum c\,\hat x`; c is g less the mean of the block, m + r.
    """

    def make(part, along):
        m, r, c = centred(part)
        c *= along
        return m, r, along.sum(1, keepdims=True), c.sum(1, keepdims=True)

    return _of_parts(5, make, block, g, xhat)


def products(a, b, block=None):
    """(n, sum of a * b) of every row for each block of features: (blocks, rows, 2)."""
    return _of_parts(2, lambda part, other: [(part * other).sum(1, keepdims=True)], block, a, b)


def squares(x, block=None):
    """(n, sum of x * x) of every row for each block of features: (blocks, rows, 2)."""
    return products(x, x, block)


def _meet(a, b):
    """The larger and the smaller of two groups, their count, the smaller's share and distance."""
    larger = (a[..., 0] > b[..., 0]) | ((a[..., 0] == b[..., 0]) & (a[..., 1] <= b[..., 1]))
    large, small = (
        np.moveaxis(np.where(larger[..., None], *pair), -1, 0) for pair in ((a, b), (b, a))
    )
    n = large[0] + small[0]
    distance = np.where(small[0] > 0, (small[1] - large[1]) + (small[2] - large[2]), 0)
    return large, small, n, small[0] / np.maximum(n, 1), distance


def merge(a, b):
    r"""The quadruples of two groups taken together; arrays of shape (..., 4).

    The rounded mean of the larger group, the *pivot*, stays as it is; the mean moves in the
    residual, which is small. With d the distance of the two means and p the share of the smaller
    group,

    .. math:: n = n_a + n_b, \quad m = m_a, \quad r = r_a + p\, d, \quad S = S_a + S_b + d^2 p\, n_a
        \qquad (n_a \ge n_b, \; p = n_b / n).

    The residual is off by a few u (sigma + its size): :math:`|d|\, p \le \sigma \sqrt{n_b/n_a}`, no
    more than sigma because the *larger* group is the pivot. merge(a, b) and merge(b, a) have the
    same bits, unless counts and rounded means are equal. The squares are those of Chan, Golub and
    LeVeque (:func:`lnlib.variance.merge`).
    """
    large, small, n, share, d = _meet(a, b)
    return np.stack(
        [n, large[1], large[2] + d * share, (large[3] + small[3]) + d * d * share * large[0]], -1
    )


def merge_upstream(a, b):
    r"""The quintuples of two groups taken together; arrays of shape (..., 5). As :func:`merge`, and

    .. math:: X = X_a + X_b, \qquad Q = Q_a + Q_b + d\,(X_b - p X).

    Each group has subtracted its own mean from its g; the mean of both takes its place.
    """
    large, small, n, share, d = _meet(a, b)
    X = large[3] + small[3]
    return np.stack(
        [n, large[1], large[2] + d * share, X, (large[4] + small[4]) + d * (small[3] - share * X)],
        -1,
    )


@np.errstate(all="ignore")
def tree(join, parts):
    """All parts joined, neighbours first, in an order that depends on their number alone."""
    while len(parts) > 1:
        even = len(parts) // 2 * 2
        parts = np.concatenate([join(parts[0:even:2], parts[1:even:2]), parts[even:]])
    return parts[0]
