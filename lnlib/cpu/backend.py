"""What is called from Python: the cache, arguments, rows and dtypes that the kernels do not take.

A call on one short row takes a microsecond and a half, a fifth of it in compiled code. So nothing
is asked twice. The compiled functions look at their arguments themselves
(:mod:`lnlib.cpu.arguments`); whatever is not as usual goes the slow way through
:mod:`lnlib.validation`, which says what is wrong, copies, or has it compiled.
"""

from typing import NamedTuple

import numpy as np

from .. import layernorm, validation
from .compiler import MIXED
from .kernels import backward_serial, backward_threads, forward_serial, forward_threads
from .threads import turn, usable_threads

#: Arrays with fewer elements use one thread. Starting the others would take longer than they save.
PARALLEL_SIZE = 100_000

_FLOAT32, _FLOAT64 = _FLOATS = np.dtype(np.float32), np.dtype(np.float64)
_REAL = "float64", "float32", "float16", "bfloat16"
_empty, _ndarray = np.empty, np.ndarray  # found at once; a name in a module of its own takes 30 ns
_new = tuple.__new__  # makes a NamedTuple in half the time of its own
_UNUSUAL = -2  # what the compiled functions return for arguments that are not as they should be
_OVERLAP = "out: found memory that an input uses too, expected an array of its own"


class CpuLayerNormCache(NamedTuple):
    """What backward needs: x, three numbers a row, and gamma.

    * ``x``, (..., D): **the caller's own array** where that is C-contiguous, aligned and writeable,
      else a copy. It must not change before backward, which refuses rows whose mean is no longer
      the recorded one. A change that keeps all means cannot be told: one inside a row that holds
      NaN (or whose sum overflows float64) before and after, or one that cancels.
    * ``saved``, (3 rows + D,), compute dtype, float64 if precise: ``statistics``, and then a copy
      of gamma. They are one array because making an array takes as long as a short row.
    * ``eps``, a float.
    * ``dtype``, gamma's, which dgamma and dbeta will have.

    Backward refuses ``x`` and ``saved`` of another type, shape or dtype than forward made. ``eps``
    and ``dtype`` it reads, unchecked, where it needs them: eps for a row out of range, dtype for
    half precision.
    """

    x: np.ndarray
    saved: np.ndarray
    eps: float
    dtype: np.dtype

    backend = "cpu"

    @property
    def statistics(self):
        """Shape (3, rows). A guess at the mean, the mean of what it leaves, and 1 / sqrt(var +
        eps).

        The last is 0 for a row that :mod:`lnlib.layernorm` does. Its first is then the mean.
        """
        return self.saved[: -self.x.shape[-1]].reshape(3, -1)

    @property
    def gamma(self):
        """Shape (D,), compute dtype."""
        return self.saved[-self.x.shape[-1] :]


def _call(serial, parallel, size, arguments):
    """What the compiled function for one thread, or that for several, returns of arrays of
    ``size``.
    """
    if size < PARALLEL_SIZE or (threads := usable_threads()) == 1:
        return serial(*arguments)
    with turn():
        return parallel(*arguments, threads)


def _result(out, x):
    """Where a result of x's shape and dtype goes: a new array, or ``out``, as an array that is
    nothing but that.

    (An np.matrix has two axes, however it is cut.)
    """
    if out is None:
        return _empty(x.shape, x.dtype)
    validation.require_out(out, x, rows_in_order=True)
    return np.asarray(out)


def _in_order(array, out):
    """``array``, or a copy that lies row after row; refused if ``out`` would be written over what
    was copied.
    """
    if array.flags.carray:
        return np.asarray(array)
    _refuse_overlap(out, array)
    return np.array(array, order="C")


def _refuse_overlap(out, *inputs):
    """For inputs that are copied before the compiled functions, which look themselves, see them."""
    if any(np.shares_memory(out, a) for a in inputs):
        raise ValueError(_OVERLAP)


def _require_accepted(left):
    """After the slow way: of what :mod:`lnlib.validation` accepts, the compiled functions refuse an
    overlap.
    """
    if left == _UNUSUAL:
        raise RuntimeError(
            "arguments: found some that were changed during the call, expected none to be"
        )
    if left < 0:
        raise ValueError(_OVERLAP)


def _require_parts(cache):
    """Say what is wrong with the arrays of a cache that was changed by hand, if anything is."""
    x = validation.require_kind("cache.x", cache.x, np.ndarray, "the array that forward kept")
    validation.require_x(x, "cache.x", _REAL)
    size = 3 * (x.size // x.shape[-1]) + x.shape[-1]
    validation.require_part(
        cache, "saved", (size,), _FLOATS[1:] if x.dtype == _FLOAT64 else _FLOATS
    )
    if not cache.saved.flags.c_contiguous:
        raise ValueError(
            f"cache.saved: found strides {cache.saved.strides}, expected the array that forward"
            " made"
        )


def _means(rows, dtype):
    """Of rows that forward and backward both find out of range: the same numbers give the same
    bits.
    """
    with np.errstate(all="ignore"):
        return rows.mean(axis=1, dtype=_FLOAT64).astype(dtype)


def _changed_rows(rows, statistics, mine):
    """How many of the rows ``mine`` changed after forward, in a way that the compiled functions do
    not see.
    """
    out_of_range = statistics[2] == 0
    recorded, found = statistics[0, out_of_range], _means(rows[out_of_range], statistics.dtype)
    now_nan = np.isnan(
        _means(rows[mine & ~out_of_range], statistics.dtype)
    )  # a row in range held no NaN
    both_nan = np.isnan(found) & np.isnan(recorded)
    return np.count_nonzero((found != recorded) & ~both_nan) + np.count_nonzero(now_nan)


# float16 and bfloat16 are storage: float32 in between, or float64 if precise. Results are rounded
# once, from there.


def _half_forward(x, gamma, beta, eps, precise, y):
    _refuse_overlap(y, x, gamma, beta)
    compute = _FLOAT64 if precise else _FLOAT32
    wide, cache = layer_norm_forward(*(a.astype(compute) for a in (x, gamma, beta)), eps)
    with np.errstate(all="ignore"):
        y[...] = wide
    return cache._replace(x=x if x.flags.carray else x.copy(), dtype=gamma.dtype)


def _half_backward(dy, cache, dx):
    _refuse_overlap(dx, cache.x, cache.saved, dy)
    compute = cache.saved.dtype
    wide, *parameters = layer_norm_backward(
        dy.astype(compute), cache._replace(x=cache.x.astype(compute))
    )
    with np.errstate(all="ignore"):
        dx[...] = wide
        return [a.astype(cache.dtype) for a in parameters]


def layer_norm_forward(x, gamma, beta, eps=1e-5, *, precise=False, out=None):
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
    if (
        type(x) is _ndarray
        and type(eps) is float
        and type(precise) is bool
        and (size := x.size)
        and (shape := x.shape)
    ):
        dtype, D = x.dtype, shape[-1]
        kind, compute = (MIXED, _FLOAT64) if precise else (dtype, dtype)
        try:
            serial = forward_serial.versions[kind]
            y, saved = (
                _empty(shape, dtype) if out is None else out,
                _empty(3 * (size // D) + D, compute),
            )
            if size < PARALLEL_SIZE:
                left = serial(x, gamma, beta, eps, y, saved)
            else:
                left = _call(
                    serial,
                    forward_threads.versions.get(kind),
                    size,
                    (x, gamma, beta, eps, y, saved),
                )
        except (KeyError, TypeError):  # not compiled yet
            left = _UNUSUAL
        if left >= 0:
            cache = _new(CpuLayerNormCache, (x, saved, eps, dtype))
            if left:
                _finish_forward(cache, gamma, beta, y)
            return y, cache
    return _forward_with_care(x, gamma, beta, eps, precise, out)


def _forward_with_care(x, gamma, beta, eps, precise, out):
    """Forward of any arguments: says what is wrong with them, copies, converts, compiles."""
    x = validation.require_x(x)
    validation.require_dtype(
        "x",
        x.dtype,
        _REAL,
        "float64, float32, float16 or bfloat16 (backend 'numpy' takes complex128)",
    )
    gamma, beta = validation.require_parameters(gamma, beta, x)
    for name, array in (("gamma", gamma), ("beta", beta)):
        validation.require_dtype(name, array.dtype, _REAL, f"{x.dtype.name}, the dtype of x")
    eps, precise, y = (
        validation.require_eps(eps),
        validation.require_precise(precise, x),
        _result(out, x),
    )
    if x.dtype not in _FLOATS:
        return y if out is None else out, _half_forward(x, gamma, beta, eps, precise, y)
    x, gamma, beta = (_in_order(a, y) for a in (x, gamma, beta))
    D = x.shape[-1]
    saved = _empty(3 * (x.size // D) + D, _FLOAT64 if precise else x.dtype)
    left = _call(forward_serial, forward_threads, x.size, (x, gamma, beta, eps, y, saved))
    _require_accepted(left)
    cache = CpuLayerNormCache(x, saved, eps, x.dtype)
    if left:
        _finish_forward(cache, gamma, beta, y)
    return y if out is None else out, cache


def _finish_forward(cache, gamma, beta, y):
    """Do the rows that the compiled functions have left."""
    D, left = len(gamma), cache.statistics[2] == 0
    rows = cache.x.reshape(-1, D)[left]
    cache.statistics[0, left] = _means(rows, cache.saved.dtype)
    y.reshape(-1, D)[left], _ = layernorm.layer_norm_forward(
        rows, gamma, beta, cache.eps, precise=cache.saved.dtype != cache.dtype
    )


def layer_norm_backward(dy, cache, *, out=None):
    r"""Gradients of a loss with respect to x, gamma and beta; see
    :func:`lnlib.layernorm.layer_norm_backward`.

    Formulas, parameters, results, errors and error bounds as there, but for these. x changed after
    forward is a ``ValueError``. A dy whose products with gamma leave the range of the dtype gives
    NaN or Inf.

    ``out``, of x's shape and dtype and C-contiguous, receives dx, and is returned as dx. It may not
    overlap dy or x.
    """
    if type(cache) is CpuLayerNormCache:
        x, saved, _, _ = cache
        if type(x) is type(saved) is _ndarray and (shape := x.shape):
            dtype, D = x.dtype, shape[-1]
            kind = dtype if saved.dtype is dtype else MIXED
            try:
                serial = backward_serial.versions[kind]
                dx, dgamma, dbeta = (
                    _empty(shape, dtype) if out is None else out,
                    _empty(D, dtype),
                    _empty(D, dtype),
                )
                if (size := x.size) < PARALLEL_SIZE:
                    left, changed = serial(dy, x, saved, dx, dgamma, dbeta)
                else:
                    left, changed = _call(
                        serial,
                        backward_threads.versions.get(kind),
                        size,
                        (dy, x, saved, dx, dgamma, dbeta),
                    )
            except (KeyError, TypeError):  # not compiled yet
                left = _UNUSUAL
            if left >= 0:
                if left or changed:
                    _finish_backward(left, changed, cache, dy, dx, dgamma, dbeta)
                return dx, dgamma, dbeta
    return _backward_with_care(dy, cache, out)


def _backward_with_care(dy, cache, out):
    """Backward of any arguments, likewise."""
    validation.require_cache(cache, CpuLayerNormCache)
    _require_parts(cache)
    x, saved, _, _ = cache
    dy = validation.require_like_x("dy", dy, x.shape, x.dtype)
    validation.require_dtype("dy", dy.dtype, _REAL, f"{x.dtype.name}, the dtype of x")
    dx = _result(out, x)
    if x.dtype not in _FLOATS:
        return dx if out is None else out, *_half_backward(dy, cache, dx)
    dy, x, saved = (_in_order(a, dx) for a in (dy, x, saved))
    dgamma, dbeta = _empty(x.shape[-1], x.dtype), _empty(x.shape[-1], x.dtype)
    left, changed = _call(
        backward_serial, backward_threads, x.size, (dy, x, saved, dx, dgamma, dbeta)
    )
    _require_accepted(left)
    if left or changed:
        _finish_backward(left, changed, cache, dy, dx, dgamma, dbeta)
    return dx if out is None else out, dgamma, dbeta


def _finish_backward(left, changed, cache, dy, dx, dgamma, dbeta):
    """Do or refuse what the compiled functions, whose results ``left`` and ``changed`` are, have
    not done.

    The rows of dx that are NaN, and all of dgamma and dbeta, by the NumPy backend: parts rounded
    apart lose digits.
    """
    dy, rows, dx = (a.reshape(-1, len(dgamma)) for a in (dy, cache.x, dx))
    mine = np.isnan(dx[:, 0])
    if left:
        changed += _changed_rows(rows, cache.statistics, mine)
    if changed:
        raise ValueError(
            f"cache: found x changed since forward (the mean of {changed} rows is not the one "
            "recorded), expected the same numbers; give forward a copy of x"
        )
    gamma = cache.gamma.astype(rows.dtype)
    _, again = layernorm.layer_norm_forward(
        rows, gamma, gamma, cache.eps, precise=cache.saved.dtype != rows.dtype
    )
    all_dx, dgamma[:], dbeta[:] = layernorm.layer_norm_backward(dy, again)
    dx[mine] = all_dx[mine]
