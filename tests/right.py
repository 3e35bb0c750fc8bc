"""Right layer norms, written in the ways in which people write them: forwards and backwards that
can be combined.
"""

import numpy as np

from lnbook.forms import affine


def mean(a):
    return a.mean(axis=-1, keepdims=True)


def two_pass(x, eps):
    c = x - mean(x)
    return mean(x), 1 / np.sqrt(mean(c * c) + x.dtype.type(eps))


def numpy_var(x, eps):
    return mean(x), 1 / np.sqrt(x.var(axis=-1, keepdims=True) + x.dtype.type(eps))


def one_pass(x, eps):
    return mean(x), 1 / np.sqrt(np.maximum(mean(x * x) - mean(x) ** 2, 0) + x.dtype.type(eps))


def in_order(x, eps):
    """Sums one after the other."""
    m = np.add.accumulate(x, axis=-1)[..., -1:] / x.shape[-1]
    variance = np.add.accumulate((x - m) ** 2, axis=-1)[..., -1:] / x.shape[-1]
    return m, 1 / np.sqrt(variance + x.dtype.type(eps))


def einsum(x, eps):
    one = np.full(x.shape[-1], 1 / x.shape[-1], x.dtype)
    m = np.einsum("...d,d->...", x, one)[..., None]
    variance = np.einsum("...d,...d,d->...", x - m, x - m, one)[..., None]
    return m, 1 / np.sqrt(variance + x.dtype.type(eps))


def welford(x, eps):
    m, squares = np.zeros_like(x[..., :1]), np.zeros_like(x[..., :1])
    for k in range(x.shape[-1]):
        d = x[..., k : k + 1] - m
        m = m + d / x.dtype.type(k + 1)
        squares = squares + d * (x[..., k : k + 1] - m)
    return m, 1 / np.sqrt(squares / x.dtype.type(x.shape[-1]) + x.dtype.type(eps))


def wide(x, eps):
    return tuple(a.astype(x.dtype) for a in two_pass(x.astype(np.float64), eps))


def shifted(x, eps):
    """By the first number of the row."""
    m, r = one_pass(x - x[..., :1], eps)
    return m + x[..., :1], r


STATISTICS = two_pass, numpy_var, one_pass, in_order, einsum, welford, wide, shifted


def normalised(x, m, r, gamma, beta):
    return gamma * ((x - m) * r) + beta


def folded(x, m, r, gamma, beta):
    """A multiple of x and a constant."""
    return x * (r * gamma) + (beta - m * r * gamma)


def rows(a):
    return tuple(range(a.ndim - 1))


def sums(dy, xhat):
    return (dy * xhat).sum(axis=rows(dy)), dy.sum(axis=rows(dy))


def means(dy, x, y, m, r, gamma, beta, eps):
    xhat, g = (x - m) * r, gamma * dy
    return r * (g - mean(g) - xhat * mean(g * xhat)), *sums(dy, xhat)


def affine_dx(dy, x, y, m, r, gamma, beta, eps):
    return affine(gamma * dy, x, m, r), *sums(dy, (x - m) * r)


def over_d(dy, x, y, m, r, gamma, beta, eps):
    D, xhat, g = x.dtype.type(x.shape[-1]), (x - m) * r, gamma * dy
    of_g, along = (a.sum(axis=-1, keepdims=True) for a in (g, g * xhat))
    return r / D * (D * g - of_g - xhat * along), *sums(dy, xhat)


def chain_rule(dy, x, y, m, r, gamma, beta, eps):
    c, D, g = x - m, x.dtype.type(x.shape[-1]), gamma * dy
    dvar = -(g * c).sum(axis=-1, keepdims=True) * r**3 / 2
    dmean = -(g * r).sum(axis=-1, keepdims=True)
    return g * r + dvar * 2 * c / D + dmean / D, *sums(dy, c * r)


def einsums(dy, x, y, m, r, gamma, beta, eps):
    xhat, D = (x - m) * r, x.dtype.type(x.shape[-1])
    along = np.einsum("...d,d,...d->...", dy, gamma, xhat)[..., None] / D
    dx = r * (gamma * dy - np.einsum("...d,d->...", dy, gamma)[..., None] / D - xhat * along)
    flat, flat_xhat = dy.reshape(-1, dy.shape[-1]), xhat.reshape(-1, dy.shape[-1])
    return dx, np.einsum("nd,nd->d", flat, flat_xhat), np.einsum("nd->d", flat)


def rows_in_a_loop(dy, x, y, m, r, gamma, beta, eps):
    """Row after row, sums in order."""
    x2, dy2 = x.reshape(-1, x.shape[-1]), dy.reshape(-1, x.shape[-1])
    dx, dgamma, dbeta = np.empty_like(x2), np.zeros_like(gamma), np.zeros_like(gamma)
    for k, (a, b) in enumerate(zip(m.ravel(), r.ravel())):
        xhat, g = (x2[k] - a) * b, gamma * dy2[k]
        dx[k] = b * (g - g.mean() - xhat * (g * xhat).mean())
        dgamma += dy2[k] * xhat
        dbeta += dy2[k]
    return dx.reshape(x.shape), dgamma, dbeta


def from_y(dy, x, y, m, r, gamma, beta, eps):
    """xhat is y undone, so that x need not be kept: not among those that are right, for gamma may
    be 0.
    """
    xhat, g = (y - beta) / gamma, gamma * dy
    return r * (g - mean(g) - xhat * mean(g * xhat)), *sums(dy, xhat)


BACKWARDS = means, affine_dx, over_d, chain_rule, einsums, rows_in_a_loop


def pair(statistics, output, backward):
    """(forward, backward) in the contract's shape, all in the dtype of x."""

    def forward(x, gamma, beta, eps):
        m, r = statistics(x, eps)
        y = output(x, m, r, gamma, beta)
        return y, (x, y, m, r, gamma, beta, eps)

    return forward, lambda dy, saved: backward(dy, *saved)


def pairs():
    """Name and pair of each; over thirty."""
    for statistics in STATISTICS:
        for k, backward in enumerate(BACKWARDS):
            if (k + STATISTICS.index(statistics)) % 3 != 0 or statistics is two_pass:
                parts = statistics, folded if k % 2 else normalised, backward
                yield " ".join(part.__name__ for part in parts), pair(*parts)
