r"""Teaching kernels: the same layer norm in several ways, which move different numbers of bytes.

Every forward takes ``(x, gamma, beta, eps)`` and returns ``(y, cache)``; the matching backward
takes ``(dy, cache)`` and returns ``(dx, dgamma, dbeta)``. x, y, dy and dx have shape (rows, D),
gamma, beta and their gradients (D,), the statistics of the rows (rows, 1). A cache is a plain tuple
that holds the caller's arrays, not copies. Only the forward of ``one-reading`` and ``no-alias``
recentres. Arguments are not checked: what is timed and counted is the arithmetic. For use, take
:mod:`lnlib.layernorm`.

The formulas are those of :func:`lnlib.layernorm.layer_norm_backward`; :mod:`lnlib.cost` counts what
these functions do. The first half is NumPy, the second compiled by Numba at the first call of each
function. :data:`STEPS` is the ladder from one to the other; the kernels of
:mod:`lnlib.cpu.kernels` would be the next step.
"""

from functools import partial

import numpy as np

try:
    from numba import njit, prange

    from .compiler import NoAlias
except ImportError:  # in a browser, where chapter 10 runs the first half
    njit, prange = None, range  # type: ignore[assignment, misc]

# NumPy. Each call is one pass over memory. The last two terms of dx are added first, and then
# subtracted from g: of g - a - b NumPy would reuse a temporary, on some platforms only.


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
    """As good as NumPy gets: no temporaries, ``einsum`` for sums of products.

    The cache is (x, mean, rstd, gamma). ``out``, like x but another array, receives y.
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

    ``out`` receives dx, ``scratch`` is overwritten: arrays like x, and neither x nor dy.
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


# Numba. A kernel fills arrays that it is given; the function that uses it makes them.


def kernel(no_alias=False, **options):
    """A decorator: ``numba.njit`` with these options and those of the library. Without Numba a
    kernel stays the Python that it is, slow.

    ``no_alias``: the compiler may assume that no two arrays overlap.
    """
    if njit is None:
        return lambda function: function
    if no_alias:
        options["pipeline_class"] = NoAlias
    return njit(error_model="numpy", nogil=True, **options)


#: A product and a sum may become one operation, rounded once.
CONTRACT = {"contract"}

#: Sums may be added in any order as well. NaN and Inf stay what they are.
ANY_ORDER = {"reassoc", "nsz", "contract"}


def _forward(fill, x, gamma, beta, eps=1e-5):
    """Call ``fill(x, gamma, beta, eps, y, mean, rstd)`` with new arrays for the last three."""
    y, (mean, rstd) = np.empty_like(x), np.empty((2, len(x), 1), x.dtype)
    fill(x, gamma, beta, eps, y, mean, rstd)
    return y, (x, mean, rstd, gamma)


def _backward(fill, dy, cache):
    """Call ``fill(dy, *cache, dx, dgamma, dbeta)`` with new arrays, the last two of zeros."""
    x, _, _, gamma = cache
    dx, (dgamma, dbeta) = np.empty_like(x), np.zeros((2, len(gamma)), gamma.dtype)
    fill(dy, *cache, dx, dgamma, dbeta)
    return dx, dgamma, dbeta


# A loop over the whole array for each result.


@kernel(fastmath=ANY_ORDER)
def row_means(x, mean):
    for i in range(x.shape[0]):
        total = x.dtype.type(0)
        for j in range(x.shape[1]):
            total += x[i, j]
        mean[i, 0] = total / x.shape[1]


@kernel(fastmath=ANY_ORDER)
def row_rstds(x, mean, eps, rstd):
    for i in range(x.shape[0]):
        m, total = mean[i, 0], x.dtype.type(0)
        for j in range(x.shape[1]):
            total += (x[i, j] - m) ** 2
        rstd[i, 0] = 1 / np.sqrt(total / x.shape[1] + eps)


@kernel(fastmath=CONTRACT)
def normalise_rows(x, mean, rstd, gamma, beta, y):
    for i in range(x.shape[0]):
        m, r = mean[i, 0], rstd[i, 0]
        for j in range(x.shape[1]):
            y[i, j] = (x[i, j] - m) * r * gamma[j] + beta[j]


def _separate_forward(x, gamma, beta, eps, y, mean, rstd):
    row_means(x, mean)
    row_rstds(x, mean, eps, rstd)
    normalise_rows(x, mean, rstd, gamma, beta, y)


@kernel(fastmath=ANY_ORDER)
def row_means_of_g(dy, x, mean, rstd, gamma, mean_g, mean_gx):
    for i in range(x.shape[0]):
        m, g_sum, gc_sum = mean[i, 0], x.dtype.type(0), x.dtype.type(0)
        for j in range(x.shape[1]):
            g = gamma[j] * dy[i, j]
            g_sum += g
            gc_sum += g * (x[i, j] - m)
        mean_g[i, 0] = g_sum / x.shape[1]
        mean_gx[i, 0] = gc_sum / x.shape[1] * rstd[i, 0]


@kernel(fastmath=CONTRACT)
def input_gradients(dy, x, mean, rstd, gamma, mean_g, mean_gx, dx):
    for i in range(x.shape[0]):
        m, r, a, b = mean[i, 0], rstd[i, 0], mean_g[i, 0], mean_gx[i, 0]
        for j in range(x.shape[1]):
            dx[i, j] = r * (gamma[j] * dy[i, j] - (a + (x[i, j] - m) * r * b))


@kernel(fastmath=CONTRACT)
def parameter_gradients(dy, x, mean, rstd, dgamma, dbeta):
    for i in range(x.shape[0]):
        m, r = mean[i, 0], rstd[i, 0]
        for j in range(x.shape[1]):
            dgamma[j] += dy[i, j] * ((x[i, j] - m) * r)
            dbeta[j] += dy[i, j]


def _separate_backward(dy, x, mean, rstd, gamma, dx, dgamma, dbeta):
    mean_g, mean_gx = np.empty((2, *mean.shape), x.dtype)
    row_means_of_g(dy, x, mean, rstd, gamma, mean_g, mean_gx)
    input_gradients(dy, x, mean, rstd, gamma, mean_g, mean_gx, dx)
    parameter_gradients(dy, x, mean, rstd, dgamma, dbeta)


# One loop over rows, short loops inside; compiled in more ways than one.


def forward_rows(x, gamma, beta, eps, y, mean, rstd):
    real, D = x.dtype.type, x.shape[1]
    for i in range(x.shape[0]):
        total = squares = real(0)
        for j in range(D):
            total += x[i, j]
        m = real(total / D)
        for j in range(D):
            squares += (x[i, j] - m) ** 2
        r = real(1 / np.sqrt(squares / D + eps))
        for j in range(D):
            y[i, j] = (x[i, j] - m) * r * gamma[j] + beta[j]
        mean[i, 0], rstd[i, 0] = m, r


def backward_rows(dy, x, mean, rstd, gamma, dx, dgamma, dbeta):
    real, D = x.dtype.type, x.shape[1]
    for i in range(x.shape[0]):
        m, r, g_sum, gc_sum = mean[i, 0], rstd[i, 0], real(0), real(0)
        for j in range(D):
            g = gamma[j] * dy[i, j]
            g_sum += g
            gc_sum += g * (x[i, j] - m)
        a, b = real(g_sum / D), real(gc_sum / D * r)
        for j in range(D):
            xhat = (x[i, j] - m) * r
            dx[i, j] = r * (gamma[j] * dy[i, j] - (a + xhat * b))
            dgamma[j] += dy[i, j] * xhat
            dbeta[j] += dy[i, j]


@kernel(fastmath=ANY_ORDER)
def add(total, term):
    return total + term


def one_reading_rows(x, gamma, beta, eps, y, mean, rstd):
    real, D = x.dtype.type, x.shape[1]
    for i in range(x.shape[0]):
        guess = x[i, 0]
        total = squares = real(0)
        for j in range(D):
            d = x[i, j] - guess
            total = add(total, d)
            squares = add(squares, d * d)
        residual = real(total / D)
        r = real(1 / np.sqrt(squares / D - residual * residual + eps))
        for j in range(D):
            y[i, j] = ((x[i, j] - guess) - residual) * r * gamma[j] + beta[j]
        mean[i, 0], rstd[i, 0] = guess + residual, r


def _compiled(call, rows, fastmath, no_alias=False):
    return partial(call, kernel(fastmath=fastmath, no_alias=no_alias)(rows))


_forward_by, _backward_by = partial(_compiled, _forward), partial(_compiled, _backward)

#: The steps by name, each (forward, backward), or None for a pass that the step does not change.
STEPS = {
    "numpy-idiomatic": (idiomatic_forward, idiomatic_backward),
    "numpy-reused": (reused_buffers_forward, reused_buffers_backward),
    "separate": (partial(_forward, _separate_forward), partial(_backward, _separate_backward)),
    "fused-in-order": (_forward_by(forward_rows, CONTRACT), _backward_by(backward_rows, CONTRACT)),
    "fused": (_forward_by(forward_rows, ANY_ORDER), _backward_by(backward_rows, ANY_ORDER)),
    "one-reading": (_forward_by(one_reading_rows, CONTRACT), None),
    "no-alias": (
        _forward_by(one_reading_rows, CONTRACT, no_alias=True),
        _backward_by(backward_rows, ANY_ORDER, no_alias=True),
    ),
}


# Threads: every part of the rows has sums of its own, and these are added afterwards.


@kernel(parallel=True, fastmath=CONTRACT)
def add_parts(dy, xhat, sums):
    """Add dgamma and dbeta of part t of the rows to ``sums[t]``; sums: (parts, 2, D or more)."""
    (rows, D), parts = dy.shape, sums.shape[0]
    for t in prange(parts):
        for i in range(rows * t // parts, rows * (t + 1) // parts):
            for j in range(D):
                sums[t, 0, j] += dy[i, j] * xhat[i, j]
                sums[t, 1, j] += dy[i, j]


#: Numbers between the sums of one part and those of the next.
PADDINGS = {"side-by-side": 0, "apart": 32}


def two_stages(dy, xhat, parts, padding=32):
    """dgamma and dbeta, added in ``parts`` parts and then over these, in their order."""
    D = dy.shape[1]
    sums = np.zeros((parts, 2, D + padding), dy.dtype)
    add_parts(dy, xhat, sums)
    dgamma, dbeta = sums[..., :D].sum(axis=0)
    return dgamma, dbeta
