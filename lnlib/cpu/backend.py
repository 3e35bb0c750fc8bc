"""What is called from Python: arguments, the cache, rows and dtypes that the kernels do not take.

A call on one short row takes two microseconds, and the checks of :mod:`lnlib.validation` would take
a few more. So arguments that the kernels take as they are go there at once.
"""

import math
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numba
import numpy as np
from numba.np.ufunc import parallel as numba_threads

from .. import layernorm, validation
from ..norms import LAYER_NORM, RMS_NORM, Norm
from .kernels import backward_serial, backward_threads, forward_serial, forward_threads

#: Arrays with fewer elements use one thread. Starting the others would take longer than they save.
PARALLEL_SIZE = 100_000

#: Held while threads are used. Numba's own threading layer, ``workqueue``, aborts the process where
#: two call at once; with the others one call keeps all cores busy, too.
ONE_CALL = threading.Lock()
_PROCESS = os.getpid()
Array = np.ndarray

_FLOAT32, _FLOAT64 = _FLOATS = np.dtype(np.float32), np.dtype(np.float64)
_REAL = "float64", "float32", "float16", "bfloat16"
_OVERLAP = "out: found memory that an input uses too, expected an array of its own"
# Found at once: a name in a module of its own takes 30 ns.
_ndarray, _empty, _new, _inf = np.ndarray, np.empty, tuple.__new__, math.inf

# For one thread, for several, and what Numba has compiled of the first, by dtype, norm and whether
# there is a residual, or dh. Called directly, that does not ask for types, which takes 0.5 us.
_Functions = tuple[Callable, Callable, dict[tuple, Callable]]
_FORWARD: _Functions = (forward_serial, forward_threads, {})
_BACKWARD: _Functions = (backward_serial, backward_threads, {})


class CpuNormCache(NamedTuple):
    """What backward needs: x, three numbers a row, and gamma.

    * ``x``, (..., D): **the caller's own array** where that is C-contiguous, aligned and writeable,
      else a copy; with a residual the h that forward returned. It must not change before backward,
      which refuses it if the mean of a row (of RMS norm: that of its squares) is no longer the
      recorded one. Other changes cannot be told, nor those of rows out of range.
    * ``saved``, (3 rows + D,), compute dtype, float64 if precise: ``statistics``, and then a copy
      of gamma. They are one array because making an array takes as long as a short row.
    * ``eps``, a float.
    * ``dtype``, gamma's, which dgamma and dbeta will have.
    * ``norm``, its row of :data:`lnlib.norms.NORMS`.

    Backward refuses ``x`` and ``saved`` whose types, sizes or dtypes do not go together. It reads
    ``eps`` only where NumPy computes a row or gradient out of range, and ``dtype`` only for
    half precision, unchecked.
    """

    x: np.ndarray
    saved: np.ndarray
    eps: float
    dtype: np.dtype
    norm: Norm

    backend = "cpu"  # type: ignore[misc]

    @property
    def statistics(self) -> np.ndarray:
        """A guess at the mean, the mean of what it leaves, and 1 / sqrt(var + eps), of (3, rows);
        of RMS norm 0, the mean of xhat^2, and 1 / sqrt(mean(x^2) + eps).

        The last is 0 for a row that :mod:`lnlib.layernorm` does.
        """
        return self.saved[: -self.x.shape[-1]].reshape(3, -1)

    @property
    def gamma(self) -> np.ndarray:
        """Shape (D,), compute dtype."""
        return self.saved[-self.x.shape[-1] :]


def in_forked_child() -> bool:
    """Whether this process was forked, and lacks Numba's threads: GNU's OpenMP would end it."""
    return os.getpid() != _PROCESS


def number_of_threads() -> int:
    """numba.get_num_threads(), past the locks that it takes once the threads are there. After a
    pass over arrays that fill the caches they would take 4 us of 80.
    """
    return getattr(numba_threads, "_get_num_threads", numba.get_num_threads)()


def _run(functions, key, *arguments):
    """Call one of the functions; keep what was compiled for usual arguments, which have a key."""
    serial, parallel, compiled = functions
    few = arguments[0].size < PARALLEL_SIZE
    threads = 1 if few or in_forked_child() else number_of_threads()
    if threads > 1:
        with ONE_CALL:
            return parallel(*arguments, threads)
    if key in compiled:
        return compiled[key](*arguments)
    result = serial(*arguments)
    if key:
        compiled[key] = serial.overloads[tuple(map(numba.typeof, arguments))].entry_point
    return result


def _fits(a, shape, dtype):
    return type(a) is _ndarray and a.dtype is dtype and a.shape == shape and a.flags.carray


def _result(out, x, *inputs):
    """Where a result goes: a new array, or ``out``, which may share no memory with inputs."""
    if out is None:
        return _empty(x.shape, x.dtype)
    validation.require_out(out, x, rows_in_order=True)
    if any(np.shares_memory(out, a) for a in inputs if a is not None):
        raise ValueError(_OVERLAP)
    return np.asarray(out)  # an np.matrix always has two axes


def _each(function, *arrays):
    """A function of arrays, some of which may be None and stay it."""
    return [None if a is None else function(a) for a in arrays]


#: An array as the kernels take it, or a copy that is.
_copied = partial(np.require, requirements="CAWE")


def _by_numpy(cache, rows, *parameters):
    """y and the cache of :mod:`lnlib.layernorm` for some rows."""
    forward = getattr(layernorm, f"{cache.norm.name}_forward")
    parameters = (a for a in parameters if a is not None)
    return forward(rows, *parameters, cache.eps, precise=cache.saved.dtype != rows.dtype)


# float16 and bfloat16 are storage: float32, or float64 if precise, in between; rounded once.


def _half_forward(norm, x, gamma, beta, eps, residual, precise, y, out):
    compute = _FLOAT64 if precise else _FLOAT32
    with np.errstate(all="ignore"):
        h = _copied(x if residual is None else x + residual)
        wide = _each(lambda a: a.astype(compute), h, gamma, beta)
        y[...], cache = _forward(norm, *wide, eps, None, False, None)
    y, cache = y if out is None else out, cache._replace(x=h, dtype=gamma.dtype)
    return (y, cache) if residual is None else (y, h, cache)


def _half_backward(dy, cache, dh, dx):
    x, dy, dh = _each(lambda a: a.astype(cache.saved.dtype), cache.x, dy, dh)
    with np.errstate(all="ignore"):
        dx[...], *parameters = _backward(cache.norm, dy, cache._replace(x=x), dh, None)
        return [a.astype(cache.dtype) for a in parameters]


def _forward(norm, x, gamma, beta, eps, residual, precise, out):
    """y, h if there is a residual, and the cache; beta is None of RMS norm."""
    usual = (
        type(x) is _ndarray
        and (dtype := x.dtype) in _FLOATS
        and (shape := x.shape)
        and (one := shape[-1:]) != (0,)
        and x.flags.carray
        and _fits(gamma, one, dtype)
        and (_fits(beta, one, dtype) if norm.beta else True)
        and type(eps) is float
        and 0 <= eps < _inf
        and precise is False
        and (residual is None or _fits(residual, shape, dtype))
        and (out is None or _fits(out, shape, dtype))
    )
    if usual:
        y, compute = _empty(shape, dtype) if out is None else out, dtype
    else:
        x, gamma, beta, eps, residual, precise, y = _checked_forward(
            norm, x, gamma, beta, eps, residual, precise, out
        )
        if x.dtype not in _FLOATS:
            return _half_forward(norm, x, gamma, beta, eps, residual, precise, y, out)
        x, gamma, beta, residual = _each(_copied, x, gamma, beta, residual)
        shape, dtype = x.shape, x.dtype
        compute = _FLOAT64 if precise else dtype
    D, h, added = len(gamma), x, None
    rows = sums = x.reshape(-1, D)
    if residual is not None:
        h, added = _empty(shape, dtype), residual.reshape(-1, D)
        sums = h.reshape(-1, D)
    results, saved = y.reshape(-1, D), _empty(3 * len(rows) + D, compute)
    key = (dtype, beta is None, residual is None) if usual else None
    left = _run(_FORWARD, key, rows, added, gamma, beta, eps, sums, results, saved)
    if left < 0:
        raise ValueError(_OVERLAP)
    cache = _new(CpuNormCache, (h, saved, eps, dtype, norm))  # in half the time of its own
    if left:
        mine = cache.statistics[2] == 0
        results[mine], _ = _by_numpy(cache, sums[mine], gamma, beta)
    y = y if out is None else out
    return (y, cache) if residual is None else (y, h, cache)


def _checked_forward(norm, x, gamma, beta, eps, residual, precise, out):
    """Arguments of forward, and where y goes; or the error that says what is wrong with them."""
    expected = "float64, float32, float16 or bfloat16 (backend 'numpy' takes complex128)"
    x = validation.require_x(x, dtypes=_REAL, expected=expected)
    gamma, beta = validation.require_parameters(gamma, beta, x, norm, _REAL)
    residual = validation.require_residual(residual, x, _REAL)
    eps, precise = validation.require_eps(eps), validation.require_precise(precise, x)
    y = _result(out, x, x, gamma, beta, residual)
    return x, gamma, beta, eps, residual, precise, y


def _backward(norm, dy, cache, dh, out):
    """dx, dgamma and, if the norm has it, dbeta."""
    usual = (
        type(cache) is CpuNormCache
        and cache.norm is norm
        and type(x := cache.x) is type(saved := cache.saved) is _ndarray
        and (dtype := x.dtype) is saved.dtype
        and dtype in _FLOATS
        and (shape := x.shape)
        and shape[-1]
        and saved.ndim == 1
        and x.flags.carray
        and saved.flags.carray
        and _fits(dy, shape, dtype)
        and (dh is None or _fits(dh, shape, dtype))
        and (out is None or _fits(out, shape, dtype))
    )
    if usual:
        dx = _empty(shape, dtype) if out is None else out
    else:
        dy, dh, dx = _checked_backward(norm, dy, cache, dh, out)
        if cache.x.dtype not in _FLOATS:
            return dx if out is None else out, *_half_backward(dy, cache, dh, dx)
        dy, dh, x, saved = _each(_copied, dy, dh, cache.x, cache.saved)
        shape, dtype = x.shape, x.dtype
    D = shape[-1]
    rows, dgamma = x.reshape(-1, D), _empty(D, dtype)
    dbeta = _empty(D, dtype) if norm.beta else None
    if len(saved) != (size := 3 * len(rows) + D):
        validation.require_part(cache, "saved", (size,), _FLOATS)
    added = dh if dh is None else dh.reshape(-1, D)
    key = (dtype, dbeta is None, dh is None) if usual else None
    arguments = dy.reshape(-1, D), rows, saved, added, dx.reshape(-1, D), dgamma, dbeta
    left, changed = _run(_BACKWARD, key, *arguments)
    if left < 0:
        raise ValueError(_OVERLAP)
    if changed:
        mean = "mean" if norm.mean else "mean square"
        raise ValueError(
            f"cache: found x changed since forward (the {mean} of {changed} rows is not the one "
            "recorded), expected the same numbers; give forward a copy of x"
        )
    if left:
        _finish_backward(cache, dy, dh, dx, dgamma, dbeta)
    dx = dx if out is None else out
    return (dx, dgamma, dbeta) if norm.beta else (dx, dgamma)


def _checked_backward(norm, dy, cache, dh, out):
    """dy, dh, and where dx goes; or the error that says what is wrong with an argument."""
    validation.require_cache(cache, CpuNormCache, norm)
    x = validation.require_kind("cache.x", cache.x, np.ndarray, "the array that forward kept")
    validation.require_x(x, "cache.x", _REAL)
    size = 3 * (x.size // x.shape[-1]) + x.shape[-1]
    dtypes = (_FLOAT64,) if x.dtype == _FLOAT64 else _FLOATS
    validation.require_part(cache, "saved", (size,), dtypes)
    dy, dh = validation.require_upstream(x.shape, x.dtype, _REAL, dy=dy, dh=dh)
    return dy, dh, _result(out, x, x, cache.saved, dy, dh)


def _finish_backward(cache, dy, dh, dx, dgamma, dbeta):
    """Let NumPy do NaN rows of dx, and all of dgamma and dbeta: parts rounded apart lose digits."""
    dy, dh, rows, dx = _each(lambda a: a.reshape(-1, len(dgamma)), dy, dh, cache.x, dx)
    mine = np.isnan(dx).all(axis=1)
    gamma = cache.gamma.astype(rows.dtype)
    _, again = _by_numpy(cache, rows, gamma, gamma if cache.norm.beta else None)
    all_dx, dgamma[:], *of_beta = getattr(layernorm, f"{cache.norm.name}_backward")(dy, again, dh)
    dx[mine] = all_dx[mine]
    if of_beta:
        dbeta[:] = of_beta[0]


def layer_norm_forward(
    x: Array,
    gamma: Array,
    beta: Array,
    eps: float = 1e-5,
    *,
    residual: Array | None = None,
    precise: bool = False,
    out: Array | None = None,
) -> layernorm.Outputs:
    r"""Layer norm of the last axis, in one pass; see :func:`lnlib.layernorm.layer_norm_forward`.

    Formula, units, errors and source as there; parameters too, but for these. Returns y, h if there
    is a residual, and a CpuNormCache.

    * ``x`` is float64, float32, float16 or bfloat16 (half precision is converted to float32 and
      back, or float64 if ``precise``). Never modified, and kept by the cache: see
      :class:`CpuNormCache`. With a residual h is kept, the array that is returned.
    * ``out``, of x's shape and dtype and C-contiguous, receives y, and is returned as y. It may not
      overlap x, residual, gamma or beta.
    """
    return _forward(LAYER_NORM, x, gamma, beta, eps, residual, precise, out)


def layer_norm_backward(
    dy: Array, cache: CpuNormCache, dh: Array | None = None, *, out: Array | None = None
) -> layernorm.Gradients:
    r"""Gradients of a loss with respect to x, gamma and beta; see
    :func:`lnlib.layernorm.layer_norm_backward`.

    All is as there, but x changed after forward is a ``ValueError``. ``out``, of x's shape and
    dtype and C-contiguous, receives dx, and is returned as dx. It may not overlap dy, dh or x.
    """
    return _backward(LAYER_NORM, dy, cache, dh, out)


def rms_norm_forward(
    x: Array,
    gamma: Array,
    eps: float = 1e-5,
    *,
    residual: Array | None = None,
    precise: bool = False,
    out: Array | None = None,
) -> layernorm.Outputs:
    r"""RMS norm of the last axis: :math:`y = \gamma\, h / \sqrt{\overline{h^2} + \varepsilon}`; see
    :func:`lnlib.layernorm.rms_norm_forward`.

    Arguments, results and errors as of :func:`layer_norm_forward`.
    """
    return _forward(RMS_NORM, x, gamma, None, eps, residual, precise, out)


def rms_norm_backward(
    dy: Array, cache: CpuNormCache, dh: Array | None = None, *, out: Array | None = None
) -> tuple[np.ndarray, np.ndarray]:
    r"""Gradients of a loss with respect to x and gamma; see
    :func:`lnlib.layernorm.rms_norm_backward`. Arguments and errors as of
    :func:`layer_norm_backward`.
    """
    return _backward(RMS_NORM, dy, cache, dh, out)
