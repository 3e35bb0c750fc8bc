r"""Teaching kernels: the same layer norm, written in several ways that move different numbers of bytes.

Every forward takes ``(x, gamma, beta, eps)`` and returns ``(y, cache)``; the matching backward takes
``(dy, cache)`` and returns ``(dx, dgamma, dbeta)``. x, y, dy and dx have shape (rows, D), gamma, beta and
their gradients (D,), the statistics of the rows (rows, 1). A cache is a plain tuple that holds the caller's
arrays, not copies. Nothing is checked and nothing is recentred: for use, take :mod:`lnlib.layernorm`.

The formulas are those of :func:`lnlib.layernorm.layer_norm_backward`; :mod:`lnlib.cost` counts what these
functions do.
"""

import numpy as np

# NumPy. Each call is one pass over memory. The last two terms of dx are added first, and then subtracted from g:
# of g - a - b NumPy would on some platforms reuse a temporary, and the peak of memory would depend on the platform.


def idiomatic_forward(x, gamma, beta, eps=1e-5):
    """Layer norm as one writes it in NumPy; the cache is (xhat, rstd, gamma)."""
    mean = x.mean(axis=-1, keepdims=True)
    c = x - mean
    var = (c * c).mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt(var + eps)
    xhat = c * rstd
    y = gamma * xhat + beta
    return y, (xhat, rstd, gamma)


def idiomatic_backward(dy, cache):
    """The two means of chapter 3 as one writes them in NumPy."""
    xhat, rstd, gamma = cache
    g = gamma * dy
    mean_g = g.mean(axis=-1, keepdims=True)
    mean_gx = (g * xhat).mean(axis=-1, keepdims=True)
    dx = rstd * (g - (mean_g + xhat * mean_gx))
    dgamma = (dy * xhat).sum(axis=0)
    dbeta = dy.sum(axis=0)
    return dx, dgamma, dbeta


def recomputing_forward(x, gamma, beta, eps=1e-5):
    """Keeps nothing of x's size but x: c is computed twice. The cache is (x, mean, rstd, gamma)."""
    mean = x.mean(axis=-1, keepdims=True)
    var = np.square(x - mean).mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt(var + eps)
    y = gamma * ((x - mean) * rstd) + beta
    return y, (x, mean, rstd, gamma)


def recomputing_backward(dy, cache):
    """Computes xhat again, then does what :func:`idiomatic_backward` does."""
    x, mean, rstd, gamma = cache
    xhat = (x - mean) * rstd
    return idiomatic_backward(dy, (xhat, rstd, gamma))


def reused_buffers_forward(x, gamma, beta, eps=1e-5, out=None):
    """As good as NumPy gets: no temporaries, ``einsum`` for sums of products. The cache is (x, mean, rstd, gamma).

    ``out``, an array of x's shape and dtype other than x, receives y.
    """
    D = x.shape[-1]
    y = np.empty_like(x) if out is None else out
    mean = np.einsum("rd->r", x)[:, None]
    mean /= D
    np.subtract(x, mean, out=y)
    var = np.einsum("rd,rd->r", y, y)[:, None]
    var /= D
    rstd = 1 / np.sqrt(var + eps)
    y *= rstd
    y *= gamma
    y += beta
    return y, (x, mean, rstd, gamma)


def reused_buffers_backward(dy, cache, out=None, scratch=None):
    """Gradients with two buffers and no other temporaries.

    ``out`` receives dx, and ``scratch`` is overwritten: two arrays of x's shape and dtype, other than x and dy.
    """
    x, mean, rstd, gamma = cache
    D = x.shape[-1]
    xhat = np.empty_like(x) if scratch is None else scratch
    dx = np.empty_like(x) if out is None else out
    np.subtract(x, mean, out=xhat)
    xhat *= rstd
    dgamma = np.einsum("rd,rd->d", dy, xhat)
    dbeta = np.einsum("rd->d", dy)
    np.multiply(gamma, dy, out=dx)  # g, for now
    mean_g = np.einsum("rd->r", dx)[:, None]
    mean_g /= D
    mean_gx = np.einsum("rd,rd->r", dx, xhat)[:, None]
    mean_gx /= D
    xhat *= mean_gx
    dx -= mean_g
    dx -= xhat
    dx *= rstd
    return dx, dgamma, dbeta
