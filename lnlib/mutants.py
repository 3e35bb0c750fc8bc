r"""Wrong backwards, and the checks that find them.

A *mutant* is a backward pass with one mistake in it. A check *kills* a mutant when the check fails
on it; a mutant that survives is a mistake the check would not have told you about. Running every
mutant through every check gives the kill matrix of chapter 5. The same catalogue lets the exercises
name a learner's mistake.

Notation: g = gamma * dy, r = 1 / sqrt(var + eps), means over the D features. Right is

.. math::

    dx = r\,\bigl(g - \overline{g} - \hat x\, \overline{g \hat x}\bigr), \qquad
    d\gamma = \sum_{rows} dy\, \hat x, \qquad d\beta = \sum_{rows} dy.

Checks compare with numeric gradients of the forward, or test an invariant; none of them uses the
backward of :mod:`lnlib.layernorm`.
"""

import functools
from typing import Callable, NamedTuple

import numpy as np

from .gradcheck import adjoint_test, central_difference, random_projection
from .layernorm import layer_norm_backward_steps, layer_norm_forward

__all__ = ["CHECKS", "HARMLESS", "MUTANTS", "RECIPES", "Check", "Mutant", "kill_matrix"]


class Mutant(NamedTuple):
    """A backward with one mistake.

    * ``name``: str, kebab-case.
    * ``wrong``: str, one line: what was got wrong.
    * ``backward``: function (dy, cache) -> (dx, dgamma, dbeta), as :func:`lnlib.layernorm.layer_norm_backward`.
    * ``killed_by``: frozenset of the ids of the checks in ``CHECKS`` that must kill it, written down by hand.
    """

    name: str
    wrong: str
    backward: Callable
    killed_by: frozenset


class Check(NamedTuple):
    """One way to test a backward.

    * ``id``: str, kebab-case.
    * ``title``: str, one line: the data, and what is compared with what.
    * ``run``: function (backward) -> bool. True: the check passes, the backward survives. It raises what
      the backward raises (the arrays it gets are read-only), and ValueError for shapes that do not broadcast.
    """

    id: str
    title: str
    run: Callable


# ---- The checks -------------------------------------------------------------------------------------
#
# Tolerances. Errors are measured against the size of the terms that are added up (see _Problem), not
# against the result: the right dx may be zero.
#
# TOLERANCE, for central differences. With h = (12 u)**(1/3) lengths of x, 1e-5, truncation and rounding
# are each worth about h**2 = 1e-10; as x = 30 is itself rounded, up to u |x| / (h sigma), 1e-8, is possible
# at sigma = 1e-3. The smallest mistake in the formula, at D = 7, is worth 1e-2. Halfway, on a log scale, is 1e-5.
# EXACT, for what has no truncation error (invariants, complex step): rounding is D u = 1e-15 times a
# condition number of at most a hundred or so; a factor 100 on top.
TOLERANCE = 1e-5
EXACT = 1e-11


class _Problem(NamedTuple):
    """Inputs of one probe; ``gradients`` is what is right, ``sizes`` the norms of the terms of each gradient."""

    x: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    eps: float
    dy: np.ndarray
    cache: NamedTuple
    gradients: tuple
    sizes: tuple


#: Losses of chapter 5: name -> (loss of y and fixed weights w, its gradient dy).
_LOSSES = {
    "random": (lambda y, w: (w * y).sum(), lambda y, w: w),
    "sum": (lambda y, w: y.sum(), lambda y, w: np.ones_like(y)),
    "squares": (lambda y, w: 0.5 * (y * y).sum(), lambda y, w: y),
}


@functools.cache  # the numeric gradients do not depend on the mutant
def _problem(shape=(3, 4, 7), loss="random", unit_affine=False, mean=30.0, sigma=10.0, eps=1e-5, standardise=False):
    """A probe of pairwise different dimensions, mean far from 0, s not 1 and gamma of mixed signs."""
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((2, *shape))
    gamma, beta = rng.standard_normal((2, shape[-1]))
    if standardise:
        x = (x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True)
    x = mean + sigma * x
    if unit_affine:
        gamma, beta = np.ones_like(gamma), np.zeros_like(beta)
    value, upstream = _LOSSES[loss]

    def f(x, gamma, beta):
        return value(layer_norm_forward(x, gamma, beta, eps)[0], w)

    y, cache = layer_norm_forward(x, gamma, beta, eps)
    dy = upstream(y, w)
    gradients = (central_difference(lambda v: f(v, gamma, beta), x),
                 central_difference(lambda v: f(x, v, beta), gamma),
                 central_difference(lambda v: f(x, gamma, v), beta))
    sizes = tuple(map(np.linalg.norm, (cache.rstd * dy * gamma, dy * cache.xhat, dy)))
    for array in (x, dy, *cache[:3], *gradients):
        array.setflags(write=False)  # shared by all mutants
    return _Problem(x, gamma, beta, eps, dy, cache, gradients, sizes)


def _agrees(backward, problem, tolerance=TOLERANCE, outputs=slice(None)):
    """Whether shapes agree, and numbers in the norm of each whole tensor."""
    found = backward(problem.dy, problem.cache)
    return all(a.shape == b.shape and np.linalg.norm(a - b) <= tolerance * size
               for a, b, size in list(zip(found, problem.gradients, problem.sizes))[outputs])


def _numeric(id, title, *, tolerance=TOLERANCE, outputs=slice(None), **problem):
    """A check against central differences on one probe."""
    return Check(id, title, lambda backward: _agrees(backward, _problem(**problem), tolerance, outputs))


def _agrees_after_broadcasting(backward):
    p = _problem()
    found = backward(p.dy, p.cache)
    return all(np.abs(a - b).max() <= TOLERANCE * size for a, b, size in zip(found, p.gradients, p.sizes))


def _sum_dx_is_zero(backward):
    p = _problem()
    return bool(np.abs(backward(p.dy, p.cache)[0].sum(axis=-1)).max() <= EXACT * p.sizes[0])


def _dx_is_orthogonal(backward):
    p = _problem(eps=0.0)  # with eps > 0 the right answer is r eps / s**2 mean(g xhat), not 0
    return bool(np.abs((backward(p.dy, p.cache)[0] * p.cache.xhat).sum(axis=-1)).max() <= EXACT * p.sizes[0])


def _shapes_and_dtypes(backward):
    x, dy = np.random.default_rng(5).standard_normal((2, 3, 4, 7)).astype(np.float32)
    gamma, beta = np.ones((2, 7), np.float32)
    found = backward(dy, layer_norm_forward(x, gamma, beta)[1])
    return [(a.shape, a.dtype) for a in found] == [(a.shape, a.dtype) for a in (x, gamma, beta)]


def _adjoint(backward):
    p = _problem()

    def jvp(u):  # the complex step in the direction u: no difference, so no truncation error
        return layer_norm_forward(p.x + 1e-30j * u, p.gamma, p.beta, p.eps)[0].imag / 1e-30

    u = np.random.default_rng(6).standard_normal(p.x.shape)
    return adjoint_test(jvp, lambda dy: backward(dy, p.cache)[0], u, p.dy) <= EXACT


def _projection(backward):
    p = _problem()
    args, gradients = (p.x, p.gamma, p.beta), backward(p.dy, p.cache)
    if any(a.shape != g.shape for a, g in zip(args, gradients)):
        return False  # a product that broadcasts would hide (1, D), and even (T, D)
    return random_projection(lambda *args: layer_norm_forward(*args, p.eps)[0], args, p.dy, gradients,
                             rng=np.random.default_rng(6)) <= EXACT


def _rows_are_independent(backward):
    p = _problem()
    x, dy = p.x.copy(), p.dy.copy()
    x[1, 2], dy[1, 2] = x[1, 2] ** 2 / 10, dy[1, 2] + 1
    change = backward(dy, layer_norm_forward(x, p.gamma, p.beta, p.eps)[1])[0] - backward(p.dy, p.cache)[0]
    change[1, 2] = 0
    return bool(np.abs(change).max() <= EXACT * p.sizes[0])


#: The checks of chapter 5, from losses that test almost nothing to one that is enough.
CHECKS = (
    _numeric("sum-y", "loss = sum(y), gamma = 1: dy is constant along a row", loss="sum", unit_affine=True),
    _numeric("sum-y2", "loss = sum(y**2)/2, gamma = 1, beta = 0: dy is xhat", loss="squares", unit_affine=True),
    _numeric("ones-random-gamma", "dy = 1, random gamma", loss="sum"),
    _numeric("gamma-one", "random dy, gamma = 1, beta = 0", unit_affine=True),
    _numeric("random", "random dy, gamma and beta, shape (3, 4, 7), central differences"),
    _numeric("square", "the same with 7 rows of 7 features", shape=(7, 7)),
    _numeric("single-row", "the same with one row", shape=(1, 7)),
    _numeric("two-rows-2d", "the same with a 2-D x", shape=(2, 7)),
    _numeric("standardised", "rows have mean 0 and s = 1 already", mean=0.0, sigma=1.0, eps=0.0, standardise=True),
    # 1e-2 is what half precision is often given. The part of a random g along one direction is worth
    # 1 / sqrt(D) = 3.6e-2 of g: leaving it out, or half of it, is just seen. A factor D / (D - 1) on it is not.
    _numeric("wide-loose", "D = 768 and a tolerance of 1e-2", shape=(6, 768), tolerance=1e-2),
    _numeric("small-sigma", "sigma about 1e-3, comparable with sqrt(eps)", sigma=1e-3),
    _numeric("dgamma-dbeta-only", "the parameters' gradients only", outputs=slice(1, None)),
    Check("broadcasting-compare", "as random, but abs(a - b).max() without a look at the shapes",
          _agrees_after_broadcasting),
    Check("sum-dx-zero", f"invariant: dx sums to 0 along a row, to {EXACT:.0e}", _sum_dx_is_zero),
    Check("dx-orthogonal-xhat", f"invariant, with eps = 0: dx is orthogonal to xhat, to {EXACT:.0e}",
          _dx_is_orthogonal),
    Check("shape", "shapes and dtypes only", _shapes_and_dtypes),
    Check("row-independence", f"another row's x and dy must not change this row's dx, to {EXACT:.0e}",
          _rows_are_independent),
    Check("adjoint", f"<dy, J u> = <dx, u> for one random u, J u by the complex step, to {EXACT:.0e}", _adjoint),
    Check("projection", f"one random direction in x, gamma and beta together, complex step, to {EXACT:.0e}",
          _projection),
)

# Names for groups of checks, so that killed_by can be written (and read) as a sentence.
_UNIT = frozenset({"sum-y", "sum-y2", "gamma-one"})  # gamma = 1, beta = 0
_TWO_D = frozenset({"square", "single-row", "two-rows-2d", "wide-loose"})
_SUM = frozenset({"sum-dx-zero"})
_ORTHOGONAL = frozenset({"dx-orthogonal-xhat"})
_ROWS = frozenset({"row-independence"})
_SHAPE = frozenset({"shape"})
_EVERY_GRADIENT = _UNIT | _TWO_D | {"ones-random-gamma", "random", "standardised", "small-sigma",
                                    "broadcasting-compare", "projection"}
_DX = _EVERY_GRADIENT | {"adjoint"}  # the checks that compare dx with numbers
_PARAMETERS = _EVERY_GRADIENT | {"dgamma-dbeta-only"}  # and dgamma, dbeta


# ---- The mutants ------------------------------------------------------------------------------------

_mutants, _harmless = [], []


def _register(wrong, killed_by):
    def add(function):
        name = function.__name__.replace("_", "-")
        (_mutants if killed_by else _harmless).append(Mutant(name, wrong, function, frozenset(killed_by)))
        return function
    return add


def _mean(a):
    return a.mean(axis=-1, keepdims=True)


def _g_xhat_r(dy, cache):
    return dy * cache.gamma, cache.xhat, cache.rstd


def _dx(g, xhat, r):
    return r * (g - _mean(g) - xhat * _mean(g * xhat))


def _rows(a):
    return tuple(range(a.ndim - 1))


def _sums(dy, xhat):
    """The right dgamma and dbeta."""
    return (dy * xhat).sum(axis=_rows(dy)), dy.sum(axis=_rows(dy))


def _right(dy, cache):
    return _dx(*_g_xhat_r(dy, cache)), *_sums(dy, cache.xhat)


def _centred(cache):
    """x - mean, its mean square (the variance), and eps."""
    c = cache.xhat / cache.rstd
    var = _mean(c * c)
    return c, var, 1 / cache.rstd**2 - var


@_register("layer norm is treated as if it were not there", _DX | _SUM | _ORTHOGONAL)
def identity(dy, cache):
    return dy.copy(), *_sums(dy, cache.xhat)


@_register("mean and variance are treated as constants", _DX | _SUM | _ORTHOGONAL)
def frozen_statistics(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return r * g, *_sums(dy, xhat)


@_register("the path through the variance is left out",
           _DX - {"sum-y"} | _ORTHOGONAL)
def missing_projection(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return r * (g - _mean(g)), *_sums(dy, xhat)


@_register("the path through the mean is left out", _DX - {"sum-y2"} | _SUM)
def missing_mean(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return r * (g - xhat * _mean(g * xhat)), *_sums(dy, xhat)


@_register("gamma is pulled out of the means", _DX - _UNIT | _SUM | _ORTHOGONAL)
def gamma_outside(dy, cache):
    return cache.gamma * _dx(dy, cache.xhat, cache.rstd), *_sums(dy, cache.xhat)


@_register("gamma stands inside the projection's mean and again outside it", _DX - _UNIT | _SUM | _ORTHOGONAL)
def gamma_twice_in_projection(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return r * (g - _mean(g) - cache.gamma * xhat * _mean(g * xhat)), *_sums(dy, xhat)


@_register("gamma is forgotten: dx is the same whatever gamma is", _DX - _UNIT)
def gamma_missing(dy, cache):
    return _dx(dy, cache.xhat, cache.rstd), *_sums(dy, cache.xhat)


@_register("gamma is multiplied in twice, by the caller and by the layer", _DX - _UNIT)
def gamma_twice(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return _dx(cache.gamma * g, xhat, r), *_sums(dy, xhat)


@_register("the scaled output gamma * xhat is used as xhat", _DX - _UNIT | _SUM | _ORTHOGONAL)
def y_for_xhat(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return _dx(g, cache.gamma * xhat, r), *_sums(dy, xhat)


@_register("x - mean is used as xhat in the projection, both times",
           _DX - {"sum-y", "standardised"} | _ORTHOGONAL)
def centred_for_xhat(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return _dx(g, xhat / r, r), *_sums(dy, xhat)


@_register("x - mean is used as xhat in the projection, once",
           _DX - {"sum-y", "standardised"} | _ORTHOGONAL)
def centred_once(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return r * (g - _mean(g) - xhat / r * _mean(g * xhat)), *_sums(dy, xhat)


@_register("one 1/s too many in the projection: s**3 was kept when x - mean became xhat",
           _DX - {"sum-y", "standardised"} | _ORTHOGONAL)
def extra_rstd_in_projection(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return r * (g - _mean(g) - r * xhat * _mean(g * xhat)), *_sums(dy, xhat)


@_register("the division by s at the end is missing", _DX - {"sum-y", "sum-y2", "standardised"})
def missing_rstd(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return g - _mean(g) - xhat * _mean(g * xhat), *_sums(dy, xhat)


@_register("dx is divided by the variance, not by its root", _DX - {"sum-y", "sum-y2", "standardised"})
def variance_for_std(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return _dx(g, xhat, r * r), *_sums(dy, xhat)


@_register("mean and variance are computed again, but from xhat, so s is about 1", _DX - {"sum-y", "standardised"})
def statistics_of_xhat(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    r_again = 1 / np.sqrt(_mean(xhat * xhat) + _centred(cache)[2])
    return _dx(g, xhat * r_again, r_again), *_sums(dy, xhat)


@_register("the 2 of the square is kept, the 1/2 of the root is lost", _DX - {"sum-y"} | _ORTHOGONAL)
def projection_times_two(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return r * (g - _mean(g) - 2 * xhat * _mean(g * xhat)), *_sums(dy, xhat)


@_register("the 1/2 of the root is kept, the 2 of the square is lost", _DX - {"sum-y"} | _ORTHOGONAL)
def projection_halved(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return r * (g - _mean(g) - xhat * _mean(g * xhat) / 2), *_sums(dy, xhat)


@_register("the projection has the wrong sign", _DX - {"sum-y"} | _ORTHOGONAL)
def projection_added(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return r * (g - _mean(g) + xhat * _mean(g * xhat)), *_sums(dy, xhat)


@_register("both means are divided by D once more", _DX | _SUM | _ORTHOGONAL)
def means_over_d_again(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return r * (g - _mean(g) / g.shape[-1] - xhat * _mean(g * xhat) / g.shape[-1]), *_sums(dy, xhat)


@_register("the whole of dx is divided by D", _DX - {"sum-y", "sum-y2"})
def dx_over_d(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return _dx(g, xhat, r) / g.shape[-1], *_sums(dy, xhat)


@_register("sums stand where means belong", _DX | _SUM | _ORTHOGONAL)
def sums_for_means(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    D = g.shape[-1]
    return r * (g - D * _mean(g) - D * xhat * _mean(g * xhat)), *_sums(dy, xhat)


@_register("sums over D are divided by the number of rows", _DX - {"square"} | _SUM | _ORTHOGONAL)
def rows_for_features(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    D_over_N = g.shape[-1] ** 2 / g.size
    return r * (g - D_over_N * (_mean(g) + xhat * _mean(g * xhat))), *_sums(dy, xhat)


@_register("the means run over the rows, as in batch norm", _DX | _SUM | _ORTHOGONAL | _ROWS)
def batch_axis(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return r * (g - g.mean(axis=_rows(g)) - xhat * (g * xhat).mean(axis=_rows(g))), *_sums(dy, xhat)


@_register("the sums run over all rows of a tile at once", _DX - {"single-row"} | _SUM | _ORTHOGONAL | _ROWS)
def whole_tile(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return r * (g - g.sum() / g.shape[-1] - xhat * (g * xhat).sum() / g.shape[-1]), *_sums(dy, xhat)


@_register("x of shape (B, T, D) is read as B rows of T * D features",
           _DX - _TWO_D - {"sum-y", "sum-y2"} | _SUM | _ORTHOGONAL | _ROWS)
def two_d_assumed(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    axes = tuple(range(1, g.ndim))
    return r * (g - g.mean(axes, keepdims=True) - xhat * (g * xhat).mean(axes, keepdims=True)), *_sums(dy, xhat)


@_register("only the diagonal of the Jacobian is kept", _DX | _SUM | _ORTHOGONAL)
def diagonal_jacobian(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return r * g * (1 - (1 + xhat * xhat) / g.shape[-1]), *_sums(dy, xhat)


@_register("dy is normalised, as if backward were forward again", _DX - {"sum-y"} | _SUM | _ORTHOGONAL)
def norm_of_gradient(dy, cache):
    c = dy - _mean(dy)
    return cache.gamma * c / np.sqrt(_mean(c * c) + 1e-5), *_sums(dy, cache.xhat)


@_register("backward computes s again without eps", {"small-sigma", "adjoint", "projection"})
def eps_dropped(dy, cache):
    c, var, _ = _centred(cache)
    r = 1 / np.sqrt(var)
    return _dx(dy * cache.gamma, c * r, r), *_sums(dy, c * r)


@_register("backward belongs to s = sqrt(var) + eps, forward has sqrt(var + eps)",
           {"small-sigma", "adjoint", "projection"})
def eps_outside_root(dy, cache):
    (c, var, eps), g = _centred(cache), dy * cache.gamma
    s = np.sqrt(var) + eps
    return (g - _mean(g)) / s - c * _mean(g * c) / (np.sqrt(var) * s**2), *_sums(dy, c / s)


@_register("the projection is divided by D - 1, the variance by D", _DX - {"sum-y", "wide-loose"} | _ORTHOGONAL)
def ddof_mismatch(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    return r * (g - _mean(g) - xhat * (g * xhat).sum(-1, keepdims=True) / (g.shape[-1] - 1)), *_sums(dy, xhat)


@_register("the backward of layer norm with the sample variance (D - 1)", (_DX | _PARAMETERS) - {"wide-loose"})
def sample_variance(dy, cache):
    (c, var, eps), g, ratio = _centred(cache), dy * cache.gamma, dy.shape[-1] / (dy.shape[-1] - 1)
    r = 1 / np.sqrt(ratio * var + eps)
    return r * (g - _mean(g) - ratio * c * r * _mean(g * c * r)), *_sums(dy, c * r)


@_register("dgamma is averaged over the rows, not summed", _PARAMETERS - {"single-row"})
def dgamma_averaged(dy, cache):
    dx, _, dbeta = _right(dy, cache)
    return dx, (dy * cache.xhat).mean(axis=_rows(dy)), dbeta


@_register("dgamma is summed over the features: one number per row", _PARAMETERS | _SHAPE)
def dgamma_over_features(dy, cache):
    dx, _, dbeta = _right(dy, cache)
    return dx, (dy * cache.xhat).sum(axis=-1, keepdims=True), dbeta


@_register("dgamma and dbeta are summed over the first axis only", _PARAMETERS - _TWO_D | _SHAPE)
def parameters_over_first_axis(dy, cache):
    return _right(dy, cache)[0], (dy * cache.xhat).sum(axis=0), dy.sum(axis=0)


@_register("dgamma and dbeta have shape (1, D), not (D,)", _PARAMETERS - {"broadcasting-compare"} | _SHAPE)
def parameters_keep_an_axis(dy, cache):
    dx, dgamma, dbeta = _right(dy, cache)
    return dx, dgamma[None], dbeta[None]


@_register("dgamma carries gamma: it is summed from dy * y", _PARAMETERS - _UNIT)
def dgamma_from_y(dy, cache):
    dx, dgamma, dbeta = _right(dy, cache)
    return dx, cache.gamma * dgamma, dbeta


@_register("dgamma is summed from dy * (x - mean)", _PARAMETERS - {"standardised"})
def dgamma_from_centred(dy, cache):
    dx, _, dbeta = _right(dy, cache)
    return dx, (dy * cache.xhat / cache.rstd).sum(axis=_rows(dy)), dbeta


@_register("dbeta carries gamma", _PARAMETERS - _UNIT)
def dbeta_from_g(dy, cache):
    dx, dgamma, dbeta = _right(dy, cache)
    return dx, dgamma, cache.gamma * dbeta


@_register("dgamma and dbeta change places", _PARAMETERS)
def parameters_swapped(dy, cache):
    dx, dgamma, dbeta = _right(dy, cache)
    return dx, dbeta, dgamma


# Right answers that look different. Each is the formula plus or minus a term that is zero.

@_register("the variance's own dependence on the mean is left out: "
           "that term has the factor mean(x - mean) = 0", ())
def no_mean_inside_variance(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    c, D = xhat / r, g.shape[-1]
    dvar = -0.5 * r**3 * (g * c).sum(axis=-1, keepdims=True)
    return r * g + dvar * 2 * c / D - r * _mean(g), *_sums(dy, xhat)


@_register("D is multiplied in and divided out", ())
def scaled_by_d(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    D = g.shape[-1]
    total, projected = g.sum(axis=-1, keepdims=True), (g * xhat).sum(axis=-1, keepdims=True)
    return r / D * (D * g - total - xhat * projected), *_sums(dy, xhat)


@_register("the mean is taken out after the projection: xhat has mean 0, so the order is free", ())
def projection_first(dy, cache):
    g, xhat, r = _g_xhat_r(dy, cache)
    t = g - xhat * _mean(g * xhat)
    return r * (t - _mean(t)), *_sums(dy, xhat)


#: Wrong backwards, each with one mistake; pairwise different on the probes of this module.
MUTANTS = tuple(_mutants)

#: Right backwards that are written differently. No check may kill them.
HARMLESS = tuple(_harmless)


# ---- Test recipes as published ----------------------------------------------------------------------
#
# What the tests of well-known libraries, tutorials and courses do, described and rebuilt: their
# shapes, distributions, losses and tolerances. Two changes. Arithmetic is float64 here: the question
# is what the tolerance lets through, not what rounding does. And where thousands of rows are used,
# there are fewer (said in the description). Published tests that compare with a framework's automatic
# gradient compare here with the chain rule, step by step. The reduced rows give the verdicts of the full
# number (tried; for one-large-shape many mistakes are within a factor 2 of its tolerance, on either side).


def _close(backward, x, gamma, beta, dy, *, eps=1e-5, outputs=slice(None), atol=0.0, rtol=0.0):
    """Elementwise and broadcasting, as ``allclose`` functions are."""
    right = layer_norm_backward_steps(dy, x, gamma, eps)
    found = backward(dy, layer_norm_forward(x, gamma, beta, eps)[1])
    atols = np.broadcast_to(atol, 3)
    return all((np.abs(a - b) <= t + rtol * np.abs(b)).all() for a, b, t in list(zip(found, right, atols))[outputs])


def _elements_sum(backward):
    x = np.random.default_rng(5).standard_normal((2, 3))
    return _close(backward, x, np.ones(3), np.zeros(3), np.ones((2, 3)), atol=1e-12)


def _ones_upstream(backward):
    rng = np.random.default_rng(5)
    x, (gamma, beta) = rng.standard_normal((10_000, 10)), rng.standard_normal((2, 10))
    return _close(backward, x, gamma, beta, np.ones_like(x), eps=1e-3, atol=1e-3, rtol=1e-3)


def _ones_after_linear(backward):
    rng = np.random.default_rng(5)
    x, weight = rng.standard_normal((4, 4, 8)), 0.02 * rng.standard_normal((16, 8))
    return _close(backward, x, np.ones(8), np.zeros(8), np.ones((4, 4, 16)) @ weight, atol=1e-4)


def _dx_with_unit_affine(backward):
    rng = np.random.default_rng(5)
    x, dy = rng.standard_normal((16, 512)), rng.random((16, 512))
    return _close(backward, x, np.ones(512), np.zeros(512), dy, outputs=slice(1), atol=1e-5, rtol=1.3e-6)


def _all_with_unit_affine(backward):
    x, dy = np.random.default_rng(5).standard_normal((2, 3, 7, 256))
    return _close(backward, x, np.ones(256), np.zeros(256), dy, eps=1e-6, atol=1e-5, rtol=1e-5)


@functools.cache
def _course_problem():
    rng = np.random.default_rng(5)
    x, dy = rng.standard_normal((2, 4, 5))
    x, (gamma, beta) = 5 * x + 12, rng.standard_normal((2, 5))
    right = (central_difference(lambda v: layer_norm_forward(v, gamma, beta)[0], x, 1e-5, dy=dy),
             central_difference(lambda v: layer_norm_forward(x, v, beta)[0], gamma, 1e-5, dy=dy),
             central_difference(lambda v: layer_norm_forward(x, gamma, v)[0], beta, 1e-5, dy=dy))
    return dy, layer_norm_forward(x, gamma, beta)[1], right


def _broadcasting_relative_error(backward):
    dy, cache, right = _course_problem()
    return all(np.max(np.abs(a - b) / np.maximum(1e-8, np.abs(a) + np.abs(b))) < 1e-6
               for a, b in zip(backward(dy, cache), right))


def _one_large_shape(backward):
    rng = np.random.default_rng(5)
    x, dy = rng.standard_normal((2, 64, 8192))
    gamma, beta = rng.random((2, 8192))
    return _close(backward, -2.3 + 0.5 * x, gamma, beta, 0.1 * dy, atol=1e-2)


def _small_random(backward):
    rng = np.random.default_rng(5)
    x, dy = rng.standard_normal((2, 2, 3, 4))
    gamma, beta = rng.standard_normal((2, 4))
    return _close(backward, x, gamma, beta, dy, atol=1e-5)


#: Test recipes as published, weakest idea first.
RECIPES = (
    Check("elements-sum", "loss = sum of the outputs, (2, 3), gamma = 1, exact equality (published for batch norm, "
          "where any gamma is as blind)", _elements_sum),
    Check("ones-upstream", "dy = 1, random gamma, 2-D, eps = 1e-3, all gradients to 1e-3; fewer rows here",
          _ones_upstream),
    Check("ones-after-linear", "dy = 1 at the output of a linear layer behind the norm, gamma = 1, (4, 4, 8), "
          "all gradients to 1e-4 absolute", _ones_after_linear),
    Check("dx-with-unit-affine", "dy uniform in (0, 1), gamma = 1, beta = 0, (16, 512), dx only, to 1e-5",
          _dx_with_unit_affine),
    Check("all-with-unit-affine", "random dy, gamma = 1, beta = 0, (3, 7, 256), all gradients to 1e-5",
          _all_with_unit_affine),
    Check("one-large-shape", "random dy of size 0.1, gamma in (0, 1), D = 8192, 1e-2 absolute; fewer rows here",
          _one_large_shape),
    Check("broadcasting-relative-error", "random everything, (4, 5), central differences, largest relative error "
          "below 1e-6, broadcasting", _broadcasting_relative_error),
    Check("small-random", "random everything, (2, 3, 4), largest absolute error below 1e-5", _small_random),
)


def kill_matrix(mutants=MUTANTS, checks=CHECKS):
    """Run every mutant through every check.

    Parameters
    ----------
    mutants : sequence of Mutant
    checks : sequence of Check
        ``CHECKS``, ``RECIPES`` or your own.

    Returns
    -------
    killed : bool array, shape (len(mutants), len(checks))
        True where the check found the mistake.
    """
    return np.array([[not check.run(mutant.backward) for check in checks] for mutant in mutants],
                    bool).reshape(len(mutants), len(checks))
