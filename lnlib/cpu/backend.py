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
from .kernels import backward_serial, backward_threads, forward_serial, forward_threads

#: Arrays with fewer elements use one thread. Starting the others would take longer than they save.
PARALLEL_SIZE = 100_000

#: Held while threads are used. Numba's own threading layer, ``workqueue``, aborts the process where
#: two call at once; with the others one call keeps all cores busy, too.
ONE_CALL = threading.Lock()
_PROCESS = os.getpid()

_FLOAT32, _FLOAT64 = _FLOATS = np.dtype(np.float32), np.dtype(np.float64)
_REAL = "float64", "float32", "float16", "bfloat16"
_OVERLAP = "out: found memory that an input uses too, expected an array of its own"
# Found at once: a name in a module of its own takes 30 ns.
_ndarray, _empty, _new, _inf = np.ndarray, np.empty, tuple.__new__, math.inf

# For one thread, for several, and what Numba has compiled of the first for arrays of one dtype.
# Called directly that does not ask for the types of its arguments, which takes up to 0.5 us.
_Functions = tuple[Callable, Callable, dict[np.dtype, Callable]]
_FORWARD: _Functions = (forward_serial, forward_threads, {})
_BACKWARD: _Functions = (backward_serial, backward_threads, {})


class CpuLayerNormCache(NamedTuple):
    """What backward needs: x, three numbers a row, and gamma.

    * ``x``, (..., D): **the caller's own array** where that is C-contiguous, aligned and writeable,
      else a copy. It must not change before backward, which refuses it if the mean of a row is no
      longer the recorded one. Other changes cannot be told, nor those of rows out of range.
    * ``saved``, (3 rows + D,), compute dtype, float64 if precise: ``statistics``, and then a copy
      of gamma. They are one array because making an array takes as long as a short row.
    * ``eps``, a float.
    * ``dtype``, gamma's, which dgamma and dbeta will have.

    Backward refuses ``x`` and ``saved`` of another type, shape or dtype than forward made. It reads
    ``eps`` only for a row out of range, and ``dtype`` only for half precision, unchecked.
    """

    x: np.ndarray
    saved: np.ndarray
    eps: float
    dtype: np.dtype

    backend = "cpu"  # type: ignore[misc]

    @property
    def statistics(self) -> np.ndarray:
        """A guess at the mean, the mean of what it leaves, and 1 / sqrt(var + eps), of (3, rows).

        The last is 0 for a row that :mod:`lnlib.layernorm` does.
        """
        return self.saved[: -self.x.shape[-1]].reshape(3, -1)

    @property
    def gamma(self) -> np.ndarray:
        """Shape (D,), compute dtype."""
        return self.saved[-self.x.shape[-1] :]


def in_forked_child() -> bool:
    """Whether this process was forked from the one that loaded this module, and may have none of
    its threads: with GNU's OpenMP a parallel function would terminate it.
    """
    return os.getpid() != _PROCESS


def number_of_threads() -> int:
    """numba.get_num_threads(), past the locks that it takes once the threads are there. After a
    pass over arrays that fill the caches they would take 4 us of 80.
    """
    return getattr(numba_threads, "_get_num_threads", numba.get_num_threads)()


def _run(functions, usual, *arguments):
    """Call one of the functions, and keep what was compiled for usual arguments."""
    serial, parallel, compiled = functions
    size, dtype = arguments[0].size, arguments[0].dtype
    threads = 1 if size < PARALLEL_SIZE or in_forked_child() else number_of_threads()
    if threads > 1:
        with ONE_CALL:
            return parallel(*arguments, threads)
    if usual and dtype in compiled:
        return compiled[dtype](*arguments)
    result = serial(*arguments)
    if usual:
        compiled[dtype] = serial.overloads[tuple(map(numba.typeof, arguments))].entry_point
    return result


def _fits(out, shape, dtype):
    return type(out) is _ndarray and out.dtype is dtype and out.shape == shape and out.flags.carray


def _result(out, x, *inputs):
    """Where a result goes: a new array, or ``out``, which may share no memory with inputs, as
    nothing but an array (an np.matrix always has two axes).
    """
    if out is None:
        return _empty(x.shape, x.dtype)
    validation.require_out(out, x, rows_in_order=True)
    if any(np.shares_memory(out, a) for a in inputs):
        raise ValueError(_OVERLAP)
    return np.asarray(out)


#: An array as the kernels take it, or a copy that is.
_copied = partial(np.require, requirements="CAWE")


# float16 and bfloat16 are storage: float32 in between, or float64 if precise. Results are rounded
# once, from there.


def _half_forward(x, gamma, beta, eps, precise, y):
    compute = _FLOAT64 if precise else _FLOAT32
    wide, cache = layer_norm_forward(*(a.astype(compute) for a in (x, gamma, beta)), eps)
    with np.errstate(all="ignore"):
        y[...] = wide
    return cache._replace(x=_copied(x), dtype=gamma.dtype)


def _half_backward(dy, cache, dx):
    compute = cache.saved.dtype
    wide, *parameters = layer_norm_backward(
        dy.astype(compute), cache._replace(x=cache.x.astype(compute))
    )
    with np.errstate(all="ignore"):
        dx[...] = wide
        return [a.astype(cache.dtype) for a in parameters]


def layer_norm_forward(
    x: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    eps: float = 1e-5,
    *,
    precise: bool = False,
    out: np.ndarray | None = None,
) -> tuple[np.ndarray, CpuLayerNormCache]:
    r"""Layer norm of the last axis, in one pass; see :func:`lnlib.layernorm.layer_norm_forward`.

    Formula, units, errors and source as there; parameters too, but for these. Returns y and a
    CpuLayerNormCache.

    * ``x`` is float64, float32, float16 or bfloat16 (half precision is converted to float32 and
      back, or float64 if ``precise``). Never modified, and kept by the cache: see
      :class:`CpuLayerNormCache`.
    * ``precise``: arithmetic of both passes in float64, for float32 and half-precision x.
    * ``out``, of x's shape and dtype and C-contiguous, receives y, and is returned as y. It may not
      overlap x, gamma or beta.
    """
    usual = (
        type(x) is type(gamma) is type(beta) is _ndarray
        and (dtype := x.dtype) is gamma.dtype is beta.dtype
        and dtype in _FLOATS
        and (shape := x.shape)
        and shape[-1:] == gamma.shape == beta.shape != (0,)
        and x.flags.carray
        and gamma.flags.carray
        and beta.flags.carray
        and type(eps) is float
        and 0 <= eps < _inf
        and precise is False
        and (out is None or _fits(out, shape, dtype))
    )
    if usual:
        y, compute = _empty(shape, dtype) if out is None else out, dtype
    else:
        x, gamma, beta, eps, precise, y = _checked_forward(x, gamma, beta, eps, precise, out)
        if x.dtype not in _FLOATS:
            return y if out is None else out, _half_forward(x, gamma, beta, eps, precise, y)
        x, gamma, beta = map(_copied, (x, gamma, beta))
        dtype = x.dtype
        compute = _FLOAT64 if precise else dtype
    D = len(gamma)
    rows, results = x.reshape(-1, D), y.reshape(-1, D)
    saved = _empty(3 * len(rows) + D, compute)
    left = _run(_FORWARD, usual, rows, gamma, beta, eps, results, saved)
    if left < 0:
        raise ValueError(_OVERLAP)
    cache = _new(CpuLayerNormCache, (x, saved, eps, dtype))  # in half the time of its own
    if left:
        mine = cache.statistics[2] == 0
        results[mine], _ = layernorm.layer_norm_forward(
            rows[mine], gamma, beta, eps, precise=compute != dtype
        )
    return y if out is None else out, cache


def _checked_forward(x, gamma, beta, eps, precise, out):
    """Arguments of forward, and where y goes; or the error that says what is wrong with them."""
    x = validation.require_x(x)
    expected = "float64, float32, float16 or bfloat16 (backend 'numpy' takes complex128)"
    validation.require_dtype("x", x.dtype, _REAL, expected)
    gamma, beta = validation.require_parameters(gamma, beta, x)
    for name, array in (("gamma", gamma), ("beta", beta)):
        validation.require_dtype(name, array.dtype, _REAL, f"{x.dtype.name}, the dtype of x")
    eps, precise = validation.require_eps(eps), validation.require_precise(precise, x)
    return x, gamma, beta, eps, precise, _result(out, x, x, gamma, beta)


def layer_norm_backward(
    dy: np.ndarray, cache: CpuLayerNormCache, *, out: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Gradients of a loss with respect to x, gamma and beta; see
    :func:`lnlib.layernorm.layer_norm_backward`.

    All is as there, but x changed after forward is a ``ValueError``, and a dy whose products with
    gamma leave the range of the dtype gives NaN or Inf. ``out``, of x's shape and dtype and
    C-contiguous, receives dx, and is returned as dx. It may not overlap dy or x.
    """
    usual = (
        type(cache) is CpuLayerNormCache
        and type(x := cache.x) is type(saved := cache.saved) is type(dy) is _ndarray
        and (dtype := x.dtype) is dy.dtype is saved.dtype
        and dtype in _FLOATS
        and (shape := x.shape) == dy.shape != ()
        and shape[-1]
        and saved.ndim == 1
        and x.flags.carray
        and dy.flags.carray
        and saved.flags.carray
        and (out is None or _fits(out, shape, dtype))
    )
    if usual:
        dx = _empty(shape, dtype) if out is None else out
    else:
        dy, dx = _checked_backward(dy, cache, out)
        if cache.x.dtype not in _FLOATS:
            return dx if out is None else out, *_half_backward(dy, cache, dx)
        dy, x, saved = map(_copied, (dy, cache.x, cache.saved))
        shape, dtype = x.shape, x.dtype
    D = shape[-1]
    rows, dgamma, dbeta = x.reshape(-1, D), _empty(D, dtype), _empty(D, dtype)
    if len(saved) != (size := 3 * len(rows) + D):
        validation.require_part(cache, "saved", (size,), _FLOATS)
    left, changed = _run(
        _BACKWARD, usual, dy.reshape(-1, D), rows, saved, dx.reshape(-1, D), dgamma, dbeta
    )
    if left < 0:
        raise ValueError(_OVERLAP)
    if changed:
        raise ValueError(
            f"cache: found x changed since forward (the mean of {changed} rows is not the one "
            "recorded), expected the same numbers; give forward a copy of x"
        )
    if left:
        _finish_backward(cache, dy, dx, dgamma, dbeta)
    return dx if out is None else out, dgamma, dbeta


def _checked_backward(dy, cache, out):
    """dy, and where dx goes; or the error that says what is wrong with an argument."""
    validation.require_cache(cache, CpuLayerNormCache)
    x = validation.require_kind("cache.x", cache.x, np.ndarray, "the array that forward kept")
    validation.require_x(x, "cache.x", _REAL)
    size = 3 * (x.size // x.shape[-1]) + x.shape[-1]
    dtypes = (_FLOAT64,) if x.dtype == _FLOAT64 else _FLOATS
    validation.require_part(cache, "saved", (size,), dtypes)
    dy = validation.require_like_x("dy", dy, x.shape, x.dtype)
    validation.require_dtype("dy", dy.dtype, _REAL, f"{x.dtype.name}, the dtype of x")
    return dy, _result(out, x, x, cache.saved, dy)


def _finish_backward(cache, dy, dx, dgamma, dbeta):
    """Let the NumPy backend do the rows of dx that are NaN, and all of dgamma and dbeta, because
    parts rounded apart lose digits.
    """
    dy, rows, dx = (a.reshape(-1, len(dgamma)) for a in (dy, cache.x, dx))
    mine = np.isnan(dx[:, 0])
    gamma = cache.gamma.astype(rows.dtype)
    _, again = layernorm.layer_norm_forward(
        rows, gamma, gamma, cache.eps, precise=cache.saved.dtype != rows.dtype
    )
    all_dx, dgamma[:], dbeta[:] = layernorm.layer_norm_backward(dy, again)
    dx[mine] = all_dx[mine]
