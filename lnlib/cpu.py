r"""Layer norm and its gradient in one pass over each row, compiled for the CPU with Numba.

The same two functions as :mod:`lnlib.layernorm`, the same contract, and ``out=``. Each row is read from
memory once and written once; what is computed in between stays in the first level of cache.

* **Statistics.** A guess m at the mean (that of the first elements) is subtracted before anything is summed:
  with d = x - m, mean(d) is the residual and mean(d^2) - mean(d)^2 the variance, from a single loop. If the
  residual is more than half a standard deviation, the guess was poor, and the loop runs again from m + residual.
* **Order of additions.** Sums over a row may be added in any order (then they become vector loops), those of the
  statistics in blocks of 2 KB, in float64 after that. Nothing else may: in x - m - residual the order of the two
  subtractions is the point.
* **Parameter gradients.** Rows are added in the dtype of the arithmetic 16 at a time, then in float64. With
  threads each has its own float64 sums, 128 bytes apart from the next, added in the order of the threads.
* **Rows out of range.** A row whose variance leaves the range where these loops are accurate, or that holds
  NaN or Inf, is done by :mod:`lnlib.layernorm`. So are gradients in which something may overflow on the way.

For one number of threads the results are the same bit for bit in every run, wherever the arrays lie in memory.
The number of threads is Numba's (``numba.set_num_threads``); arrays below :data:`PARALLEL_SIZE` use one.
"""

import math
from typing import NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core.cgutils import get_or_insert_function
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.extending import intrinsic

from . import contract, layernorm

#: Arrays with fewer elements use one thread. Starting the others would take longer than they save.
PARALLEL_SIZE = 100_000

#: Rows whose parameter gradients are added in the dtype of the arithmetic, before float64 takes over.
ROW_BLOCK = 16

#: Bytes of a row that are summed in the dtype of the arithmetic, before float64 takes over.
CHUNK = 2048

#: Bytes of a cache line; an aligned vector store writes one, a misaligned one writes two halves.
LINE = 64

#: A row of this many bytes is wide. The rows of a block are then done together, in tiles of CHUNK bytes, so that
#: gamma, dgamma and dbeta of a tile stay in the first level of cache.
WIDE_ROW = 8192

#: Features from which it pays to treat the beginning of a row apart, so that the rest is aligned.
LONG_ROW = 256


class CpuLayerNormCache(NamedTuple):
    """What backward needs: x, three numbers a row, and gamma.

    * ``x``, (..., D): **the caller's own array** where that is C-contiguous, aligned and writeable, else a copy.
      It must not change before backward, which refuses rows whose mean is no longer the recorded one. A change
      that keeps all means cannot be told: one inside a row that holds NaN (or whose sum overflows float64)
      before and after, or one that cancels.
    * ``saved``, (3 rows + D,), compute dtype, float64 if precise: ``statistics``, and then a copy of gamma. They
      are one array because making an array takes as long as a short row.
    * ``eps``, a float.
    * ``dtype``, gamma's, which dgamma and dbeta will have.
    """

    x: np.ndarray
    saved: np.ndarray
    eps: float
    dtype: np.dtype

    backend = "cpu"

    @property
    def statistics(self):
        """Shape (3, rows). A guess at the mean, the mean of what it leaves, and 1 / sqrt(var + eps).

        The last is 0 for a row that :mod:`lnlib.layernorm` does. Its first is then the mean.
        """
        return self.saved[:-self.x.shape[-1]].reshape(3, -1)

    @property
    def gamma(self):
        """Shape (D,), compute dtype."""
        return self.saved[-self.x.shape[-1]:]


# Compiler settings.


class _NoAlias(CompilerBase):
    """Numba's compiler, told that no two array arguments overlap.

    Without it vector loops stand behind run-time checks of every pair of arrays, for every row, and short rows
    spend their time in these. ``flags.noalias`` is not a documented option: if a version of Numba drops it the
    results stay right, and tests/test_cpu.py says so.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.state.flags.noalias = True

    def define_pipelines(self):
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]


# A flag that is not given is the one of whichever caller happens to be compiled first: all are given.
_COMMON = {"nogil": True, "error_model": "numpy", "fastmath": False, "forceinline": False}
_row_loop = njit(**_COMMON)
_inlined = njit(**_COMMON | {"forceinline": True})  # a call for every row would count references to every array
# A product and a sum may become one fused operation; nothing is reordered.
_loop = njit(**_COMMON | {"fastmath": {"contract"}}, pipeline_class=_NoAlias)


@njit(**_COMMON | {"fastmath": {"reassoc", "nsz", "contract"}})
def _add(total, term):
    """total + term, in any order: a loop of these is a vector of partial sums. NaN and Inf stay what they are."""
    return total + term


@_row_loop
def _times(a, b):
    """a * b, rounded: a fused dy * gamma - c would leave the rounding error of a constant g, which must be 0."""
    return a * b


@intrinsic
def _prefetch(typing_context, array, i, j):
    """Ask for the cache line of array[i, j], to write to it."""

    def generate(context, builder, signature, arguments):
        value, row, column = arguments
        view = context.make_array(signature.args[0])(context, builder, value)
        width = builder.extract_value(view.shape, 1)
        address = builder.gep(view.data, [builder.add(builder.mul(row, width), column)])
        int32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, int32, int32, int32])
        function = get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        to_write, keep_in_all_caches, data = (ir.Constant(int32, value) for value in (1, 3, 1))
        builder.call(function, [address, to_write, keep_in_all_caches, data])
        return context.get_dummy_value()

    return types.void(array, i, j), generate


# One loop each. Indices are unsigned: Numba would look for negative ones in every step, and not vectorise.


@_loop
def _first_sum(x, i, n):
    total = x.dtype.type(0)
    for j in range(np.uintp(n)):
        total = _add(total, x[np.uintp(i), j])
    return total


@_loop
def _moments(x, i, start, stop, guess):
    """Sums of d and d^2, d = x - guess, over columns start to stop."""
    total = squares = guess - guess
    for j in range(np.uintp(start), np.uintp(stop)):
        d = x[np.uintp(i), j] - guess
        total = _add(total, d)
        squares = _add(squares, d * d)
    return np.float64(total), np.float64(squares)


@_loop
def _write_y(x, i, start, stop, mean, residual, rstd, gamma, beta, y):
    for j in range(np.uintp(start), np.uintp(stop)):
        y[np.uintp(i), j] = ((x[np.uintp(i), j] - mean) - residual) * rstd * gamma[j] + beta[j]


@_loop
def _upstream_sums(dy, x, i, gamma, mean, residual, first):
    """Sums of w = g - first, of w * c and of c = x - mean - residual, in float64.

    If g is constant, w is 0. If ``first`` is an outlier, so is the mean of w: the sum of w * c then needs correction
    for c, whose mean is not quite 0.
    """
    w_sum = wx_sum = c_sum = 0.0
    for j in range(np.uintp(x.shape[1])):
        w = _times(dy[np.uintp(i), j], gamma[j]) - first
        c = (x[np.uintp(i), j] - mean) - residual
        w_sum = _add(w_sum, w)
        wx_sum = _add(wx_sum, np.float64(w) * np.float64(c))
        c_sum = _add(c_sum, c)
    return w_sum, wx_sum, c_sum


@_loop
def _write_gradients(dy, x, i, start, stop, gamma, mean, residual, rstd, g_mean, gx_mean, dx, dgamma, dbeta):
    """One row of dx, and its part of dgamma and dbeta."""
    for j in range(np.uintp(start), np.uintp(stop)):
        upstream = dy[np.uintp(i), j]
        xhat = ((x[np.uintp(i), j] - mean) - residual) * rstd
        dx[np.uintp(i), j] = rstd * (_times(upstream, gamma[j]) - g_mean - xhat * gx_mean)
        dgamma[j] += upstream * xhat
        dbeta[j] += upstream


@_loop
def _fold(block, sums):
    """Add a block's parameter gradients to float64 sums, and clear the block."""
    for j in range(block.shape[0]):
        sums[j] += block[j]
        block[j] = 0


# The same for long rows: sums in chunks, and stores that begin at a cache line.


@_inlined
def _long_moments(x, i, guess, chunk):
    total = squares = 0.0
    for start in range(0, x.shape[1], chunk):
        d, dd = _moments(x, i, start, min(start + chunk, x.shape[1]), guess)
        total += d
        squares += dd
    return total, squares


@_inlined
def _fetch(array, i, start, stop, line):
    """Ask for columns start to stop of row i, to be written: a store that finds its line in cache waits less."""
    for j in range(start, min(stop, array.shape[1]), line):
        _prefetch(array, i, j)


@_row_loop
def _head(rows):
    """How many elements of the first row lie before the first cache line that begins in it."""
    return -rows.ctypes.data % LINE // rows.itemsize


@_row_loop
def _copy_for(rows, array):
    """A copy of ``array``, of shape (D,), that meets cache lines where the first row of ``rows`` does."""
    line = LINE // array.itemsize
    buffer = np.empty(len(array) + line, array.dtype)
    skip = (_head(buffer) - _head(rows)) % line
    copy = buffer[skip:skip + len(array)]
    for j in range(len(array)):  # copy[:] = array would take two seconds to compile
        copy[j] = array[j]
    return copy


# Loops over rows.


@_row_loop
def _rounding_of_a_mean(itemsize):
    """How far the mean of a row's c, in standard deviations, may be from 0.

    The residual's sums are of at most CHUNK bytes, in four lanes or more for float32: 128 additions one after the
    other, each with an error of at most u times what is added up. |d| is 1.5 standard deviations on average at most,
    for residuals are below half of one (or x is a few ulps wide, and sums of d are exact). With the rounding of the
    residual and of c that is below 256 u = 2^-16, for every D: the sum of c is taken in float64. That sum's own
    error, D u / 8 for eight partial sums, is what float64's limit is for: 2^-32 holds to D = 2^24.
    """
    return 2.0**-16 if itemsize == 4 else 2.0**-32


@_row_loop
def _harmless(array):
    """Below half an ulp of the largest number: subtracted from any number, it cannot push it out of range.

    A row of dx is r (w - mean(w) - xhat mean(w xhat)) with |xhat| at most the root of D. As long as mean(w) and the
    root times mean(w xhat) are harmless, nothing overflows in it unless dx does.
    """
    return 1e31 if array.itemsize == 4 else 9e291


@_row_loop
def _guess_of_g(dy, i, gamma):
    """A guess at the mean of a row's g, so that the dx of a constant g is exactly 0: its first element.

    An outlier would be subtracted from every element. For float32 that does no harm, the sums are float64; for
    float64 the guess is 0 where the second and third element are far from the first.
    """
    first = _times(dy[i, 0], gamma[0])
    if gamma.dtype.type(0.1) == 0.1 and len(gamma) > 2:  # known at compile time: float32's 0.1 is another number
        second, third = _times(dy[i, 1], gamma[1]), _times(dy[i, 2], gamma[2])
        near = (2 * abs(second - first) <= abs(first)) & (2 * abs(third - first) <= abs(first))  # & does not branch
        return first if near else 0.0
    return first


@_row_loop
def _forward_rows(x, beta, eps, y, statistics, gamma, begin, end):
    """Rows begin to end of y and of the statistics; returns how many rows are out of range, with rstd 0."""
    D, real = x.shape[1], gamma.dtype.type
    first, first_head, chunk, line = min(D, 16), _head(y), CHUNK // x.itemsize, LINE // x.itemsize
    smallest, largest = (1e-25, 1e35) if gamma.itemsize == 4 else (1e-290, 1e300)
    out_of_range = 0
    if D >= LONG_ROW and end - begin > 8:
        gamma, beta = _copy_for(y, gamma), _copy_for(y, beta)
    for i in range(begin, end):
        mean = real(_first_sum(x, i, first) / first)
        residual = variance = 0.0
        for _ in range(4):
            total, squares = _moments(x, i, 0, D, mean) if D < LONG_ROW else _long_moments(x, i, mean, chunk)
            residual = total / D
            variance = squares / D - residual * residual
            better = real(mean + residual)
            if not residual * residual > 0.25 * variance or better == mean:
                break
            mean = better
        in_range = smallest < variance + eps < largest
        rstd = real(1 / math.sqrt(variance + eps)) if in_range else real(0)
        statistics[0, i], statistics[1, i], statistics[2, i] = mean, residual, rstd
        if not in_range:
            out_of_range += 1
        elif D < LONG_ROW:
            _write_y(x, i, 0, D, mean, real(residual), rstd, gamma, beta, y)
        else:
            head = (first_head - i * D) & (line - 1)
            _write_y(x, i, 0, head, mean, real(residual), rstd, gamma, beta, y)
            _write_y(x, i, head, D, mean, real(residual), rstd, gamma, beta, y)
    return out_of_range


@_row_loop
def _backward_short_rows(dy, x, statistics, gamma, dx, dgamma, dbeta, sums, begin, end):
    """Rows begin to end of dx; their dgamma and dbeta are added to ``sums`` by way of arrays dgamma and dbeta.

    If ``sums`` has no columns they stay in dgamma and dbeta. Returns two counts: of rows left to the NumPy backend
    (their dx begins with NaN), and of rows whose mean is not the recorded one.
    """
    D, line, real = x.shape[1], LINE // x.itemsize, gamma.dtype.type
    tolerance, root, harmless = _rounding_of_a_mean(gamma.itemsize), math.sqrt(D), _harmless(gamma)
    first_head, left, changed = _head(dx), 0, 0
    for row in range(begin, end, ROW_BLOCK):
        for i in range(row, min(row + ROW_BLOCK, end)):
            mean, residual, rstd = statistics[0, i], statistics[1, i], statistics[2, i]
            first = _guess_of_g(dy, i, gamma)
            if D >= LONG_ROW:
                _fetch(dx, i, 0, D, line)
            w_sum, wx_sum, c_sum = _upstream_sums(dy, x, i, gamma, mean, residual, first)
            changed += abs(c_sum) * rstd > tolerance * D
            wx_sum -= w_sum * (c_sum / D)
            g_mean, gx_mean = real(first + w_sum / D), real(wx_sum / D * rstd)
            if rstd == 0 or not abs(w_sum) + abs(wx_sum) * (rstd * root) < harmless * D:
                left += 1
                dx[i, 0] = math.nan
                continue
            if D < LONG_ROW:
                _write_gradients(dy, x, i, 0, D, gamma, mean, residual, rstd, g_mean, gx_mean,
                                 dx, dgamma, dbeta)
            else:
                head = (first_head - i * D) & (line - 1)
                _write_gradients(dy, x, i, 0, head, gamma, mean, residual, rstd, g_mean, gx_mean,
                                 dx, dgamma, dbeta)
                _write_gradients(dy, x, i, head, D, gamma, mean, residual, rstd, g_mean, gx_mean,
                                 dx, dgamma, dbeta)
        if sums.shape[1] > 0:
            _fold(dgamma, sums[0])
            _fold(dbeta, sums[1])
    return left, changed


@_row_loop
def _backward_wide_rows(dy, x, statistics, gamma, dx, dgamma, dbeta, sums, begin, end):
    """The same, tile after tile for a block of rows: their part of gamma, dgamma and dbeta stays in cache."""
    D, line, tile = x.shape[1], LINE // x.itemsize, CHUNK // x.itemsize
    tolerance, root, harmless = _rounding_of_a_mean(gamma.itemsize), math.sqrt(D), _harmless(gamma)
    # One head for all rows: a column then lies in the same tile of each, and its sums run over them in their order.
    head, left, changed = _head(dx) if D % line == 0 else 0, 0, 0
    means = np.empty((2, ROW_BLOCK), gamma.dtype)
    for row in range(begin, end, ROW_BLOCK):
        rows = range(row, min(row + ROW_BLOCK, end))
        for i in rows:
            mean, residual, rstd = statistics[0, i], statistics[1, i], statistics[2, i]
            _fetch(dx, i, 0, tile, line)
            first = _guess_of_g(dy, i, gamma)
            w_sum, wx_sum, c_sum = _upstream_sums(dy, x, i, gamma, mean, residual, first)
            changed += abs(c_sum) * rstd > tolerance * D
            wx_sum -= w_sum * (c_sum / D)
            means[0, i - row], means[1, i - row] = first + w_sum / D, wx_sum / D * rstd
            if rstd == 0 or not abs(w_sum) + abs(wx_sum) * (rstd * root) < harmless * D:
                left += 1
                means[0, i - row] = math.nan
        for start in range(0, D, tile):
            for i in rows:
                mean, residual, rstd = statistics[0, i], statistics[1, i], statistics[2, i]
                g_mean, gx_mean = means[0, i - row], means[1, i - row]
                if math.isnan(g_mean):
                    dx[i, 0] = math.nan
                    continue
                if start == 0:
                    _write_gradients(dy, x, i, 0, head, gamma, mean, residual, rstd, g_mean, gx_mean,
                                     dx, dgamma, dbeta)
                stop = min(head + start + tile, D)
                _fetch(dx, i, stop, stop + tile, line)
                _write_gradients(dy, x, i, head + start, stop, gamma, mean, residual, rstd, g_mean, gx_mean,
                                 dx, dgamma, dbeta)
        _fold(dgamma, sums[0])
        _fold(dbeta, sums[1])
    return left, changed


@_row_loop
def _backward_rows(dy, x, statistics, gamma, dx, sums, begin, end):
    """Rows begin to end of dx; their dgamma and dbeta are added to ``sums``, (2, D and more)."""
    D = x.shape[1]
    dgamma, dbeta = np.zeros(D, gamma.dtype), np.zeros(D, gamma.dtype)
    if D >= LONG_ROW:
        gamma, dgamma, dbeta = _copy_for(dx, gamma), _copy_for(dx, dgamma), _copy_for(dx, dbeta)
    if D * x.itemsize >= WIDE_ROW:
        return _backward_wide_rows(dy, x, statistics, gamma, dx, dgamma, dbeta, sums, begin, end)
    return _backward_short_rows(dy, x, statistics, gamma, dx, dgamma, dbeta, sums, begin, end)


# Whole arrays. The threaded functions are written out, not derived from the others: Numba's cache on disk
# would take one for the other. ``threads`` is an argument because reading it inside would defeat that cache.


@_row_loop
def _overlap(a, b):
    return a.ctypes.data < b.ctypes.data + b.nbytes and b.ctypes.data < a.ctypes.data + a.nbytes


@_row_loop
def _parts(saved, D):
    """The statistics and gamma of ``CpuLayerNormCache.saved``."""
    rows = (len(saved) - D) // 3
    return saved[:3 * rows].reshape(3, rows), saved[3 * rows:]


@njit(cache=True, **_COMMON)
def _forward_serial(x, gamma, beta, eps, y, saved):
    if _overlap(y, x) or _overlap(y, gamma) or _overlap(y, beta):
        return -1
    statistics, weights = _parts(saved, len(gamma))
    for j in range(len(gamma)):
        weights[j] = gamma[j]
    return _forward_rows(x, beta, eps, y, statistics, weights, 0, x.shape[0])


@njit(cache=True, parallel=True, **_COMMON)
def _forward_threads(x, gamma, beta, eps, y, saved, threads):
    if _overlap(y, x) or _overlap(y, gamma) or _overlap(y, beta):
        return -1
    statistics, weights = _parts(saved, len(gamma))
    for j in range(len(gamma)):
        weights[j] = gamma[j]
    rows, out_of_range = x.shape[0], 0
    for t in prange(threads):
        out_of_range += _forward_rows(x, beta, eps, y, statistics, weights, rows * t // threads,
                                      rows * (t + 1) // threads)
    return out_of_range


@_row_loop
def _empty_sums(threads, D):
    """Zeros of shape (threads, 2, D and some more): no two threads write to one cache line, or to neighbours."""
    return np.zeros((threads, 2, D + 16))


@_loop
def _add_threads(sums, dgamma, dbeta):
    """Sums over the threads, in their order; those of the first end up as the totals."""
    for t in range(1, sums.shape[0]):
        for k in range(2):
            for j in range(sums.shape[2]):
                sums[0, k, j] += sums[t, k, j]
    for j in range(dgamma.shape[0]):
        dgamma[j], dbeta[j] = sums[0, 0, j], sums[0, 1, j]


@_loop
def _overflown(dgamma, dbeta):
    """1, and a dgamma that begins with NaN, if sums over rows may have left the range, or those left may; else 0."""
    total = dgamma.dtype.type(0)
    for j in range(dgamma.shape[0]):
        total = _add(total, abs(dgamma[j]) + abs(dbeta[j]))
    if total < _harmless(dgamma):
        return 0
    dgamma[0] = math.nan
    return 1


@njit(cache=True, **_COMMON)
def _backward_serial(dy, x, saved, dx, dgamma, dbeta):
    statistics, gamma = _parts(saved, x.shape[1])
    if _overlap(dx, x) or _overlap(dx, dy):
        return -1, 0
    if x.shape[0] <= ROW_BLOCK and dgamma.itemsize == gamma.itemsize:  # one block: its sums are the results
        for j in range(len(dgamma)):
            dgamma[j] = dbeta[j] = 0
        left, changed = _backward_short_rows(dy, x, statistics, gamma, dx, dgamma, dbeta, np.empty((2, 0)), 0,
                                             x.shape[0])
    else:
        sums = _empty_sums(1, x.shape[1])
        left, changed = _backward_rows(dy, x, statistics, gamma, dx, sums[0], 0, x.shape[0])
        _add_threads(sums, dgamma, dbeta)
    return left + _overflown(dgamma, dbeta), changed


@njit(cache=True, parallel=True, **_COMMON)
def _backward_threads(dy, x, saved, dx, dgamma, dbeta, threads):
    statistics, gamma = _parts(saved, x.shape[1])
    rows, left, changed = x.shape[0], 0, 0
    if _overlap(dx, x) or _overlap(dx, dy):
        return -1, 0
    sums = _empty_sums(threads, x.shape[1])
    for t in prange(threads):
        counts = _backward_rows(dy, x, statistics, gamma, dx, sums[t], rows * t // threads,
                                     rows * (t + 1) // threads)
        left += counts[0]
        changed += counts[1]
    _add_threads(sums, dgamma, dbeta)
    return left + _overflown(dgamma, dbeta), changed


# What is called from Python. A call on one short row should cost two microseconds, so the usual arguments are
# recognised at a glance and everything else goes the slow way through lnlib.contract.

_FLOAT32, _FLOAT64 = _FLOATS = np.dtype(np.float32), np.dtype(np.float64)
_OVERLAP = "out: found memory that an input uses too, expected an array of its own"


def _checked(x, gamma, beta, eps):
    x = contract.check_x(x)
    if x.dtype.kind == "c":
        raise TypeError("x: found dtype complex128, expected float64, float32, float16 or bfloat16 "
                        "(backend 'numpy' takes complex128)")
    gamma, beta = (np.asarray(a) for a in contract.check_parameters(gamma, beta, x))
    for name, array in (("gamma", gamma), ("beta", beta)):
        if array.dtype.kind == "c":
            raise TypeError(f"{name}: found dtype complex128, expected {x.dtype.name}, the dtype of x")
    return x, gamma, beta, contract.check_eps(eps)


def _check_out(out, x):
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out: found {type(out).__name__}, expected a NumPy array")
    contract.as_array("out", out, (out.dtype.name,))  # no mask, no foreign byte order
    if out.dtype != x.dtype:
        raise TypeError(f"out: found dtype {out.dtype.name}, expected {x.dtype.name}, the dtype of x")
    if out.shape != x.shape:
        raise ValueError(f"out: found shape {out.shape}, expected {x.shape}, the shape of x")
    if not out.flags.carray:
        raise ValueError("out: found an array that is read-only, not C-contiguous or not aligned, "
                         "expected one that can be written row after row")


def _refuse_overlap(out, *inputs):
    """For inputs that are copied before the compiled functions, which look themselves, see them."""
    if any(np.shares_memory(out, a) for a in inputs):
        raise ValueError(_OVERLAP)


def _means(rows, dtype):
    """Of rows that forward and backward both find out of range: the same numbers give the same bits."""
    with np.errstate(all="ignore"):
        return rows.mean(axis=1, dtype=_FLOAT64).astype(dtype)


def _changed_rows(rows, statistics, mine):
    """How many of the rows ``mine`` changed after forward, in a way that the compiled functions do not see."""
    out_of_range = statistics[2] == 0
    recorded, found = statistics[0, out_of_range], _means(rows[out_of_range], statistics.dtype)
    now_nan = np.isnan(_means(rows[mine & ~out_of_range], statistics.dtype))  # a row in range held no NaN
    both_nan = np.isnan(found) & np.isnan(recorded)
    return np.count_nonzero((found != recorded) & ~both_nan) + np.count_nonzero(now_nan)


def _half_forward(x, gamma, beta, eps, precise, y):
    """float16 and bfloat16 are storage: float32 in between."""
    _refuse_overlap(y, x, gamma, beta)
    wide, cache = layer_norm_forward(x.astype(_FLOAT32), gamma.astype(_FLOAT32), beta.astype(_FLOAT32), eps,
                                     precise=precise)
    with np.errstate(all="ignore"):
        y[...] = wide
    return y, cache._replace(x=x if x.flags.carray else x.copy(), dtype=gamma.dtype)


def _half_backward(dy, cache, dx):
    _refuse_overlap(dx, cache.x, dy)
    wide, *parameters = layer_norm_backward(dy.astype(_FLOAT32), cache._replace(x=cache.x.astype(_FLOAT32)))
    with np.errstate(all="ignore"):
        dx[...] = wide
        return dx, *(a.astype(cache.dtype) for a in parameters)


def layer_norm_forward(x, gamma, beta, eps=1e-5, *, precise=False, out=None):
    r"""Layer norm of the last axis, in one pass; see :func:`lnlib.layernorm.layer_norm_forward`.

    .. math:: y = \gamma\, (x - \mu) / \sqrt{\sigma^2 + \varepsilon} + \beta

    Parameters
    ----------
    x : array of shape (..., D)
        float64, float32, float16 or bfloat16 (half precision is converted to float32 and back). Never
        modified, and kept by the cache: see :class:`CpuLayerNormCache`.
    gamma, beta : array of shape (D,)
        x's dtype; for half-precision x also float32.
    eps : float
        Added to the variance (in the square of x's units), under the root.
    precise : bool
        Arithmetic of both passes in float64, for float32 and half-precision x.
    out : array of x's shape and dtype, C-contiguous, optional
        Receives y, and is returned as y. It may not overlap x, gamma or beta.

    Returns
    -------
    y : array of x's shape and dtype
    cache : CpuLayerNormCache

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was found and what was expected.

    References
    ----------
    Ba, Kiros and Hinton, *Layer Normalization*, 2016, arXiv:1607.06450, equation 4.
    """
    if not (type(x) is type(gamma) is type(beta) is np.ndarray and x.dtype is gamma.dtype is beta.dtype in _FLOATS
            and x.ndim and x.size and gamma.shape == beta.shape == x.shape[-1:]
            and type(eps) is float and 0 <= eps < math.inf):
        x, gamma, beta, eps = _checked(x, gamma, beta, eps)
    if precise is not False:
        contract.check_precise(precise, x)
    dtype = x.dtype
    if out is None:
        y = np.empty(x.shape, dtype)
    else:
        y = out
        if not (type(y) is np.ndarray and y.dtype is dtype and y.shape == x.shape and y.flags.carray):
            _check_out(y, x)
    if dtype not in _FLOATS:
        return _half_forward(x, gamma, beta, eps, precise, y)

    if not x.flags.carray:
        _refuse_overlap(y, x)
        x = x.copy()
    if not (gamma.flags.carray and beta.flags.carray):
        _refuse_overlap(y, gamma, beta)
        gamma, beta = gamma.copy(), beta.copy()
    D = x.shape[-1]
    rows, y_rows = x.reshape(-1, D), y.reshape(-1, D)
    saved = np.empty(3 * len(rows) + D, _FLOAT64 if precise else dtype)
    if x.size < PARALLEL_SIZE or (threads := numba.get_num_threads()) == 1:
        out_of_range = _forward_serial(rows, gamma, beta, eps, y_rows, saved)
    else:
        out_of_range = _forward_threads(rows, gamma, beta, eps, y_rows, saved, threads)
    cache = CpuLayerNormCache(x, saved, eps, dtype)
    if out_of_range:
        if out_of_range < 0:
            raise ValueError(_OVERLAP)
        left = cache.statistics[2] == 0
        cache.statistics[0, left] = _means(rows[left], saved.dtype)
        y_rows[left], _ = layernorm.layer_norm_forward(rows[left], gamma, beta, eps, precise=bool(precise))
    return y, cache


def layer_norm_backward(dy, cache, *, out=None):
    r"""Gradients of a loss with respect to x, gamma and beta; see :func:`lnlib.layernorm.layer_norm_backward`.

    .. math::

        dx = r\,\bigl(g - \overline{g} - \hat x\, \overline{g \hat x}\bigr), \qquad g = \gamma\, dy, \qquad
        d\gamma = \sum_{rows} dy\, \hat x, \qquad d\beta = \sum_{rows} dy.

    Parameters
    ----------
    dy : array of exactly x's shape (..., D)
        x's dtype; for half-precision x also float32. Never modified.
    cache : CpuLayerNormCache
    out : array of x's shape and dtype, C-contiguous, optional
        Receives dx, and is returned as dx. It may not overlap dy or x.

    Returns
    -------
    dx : array of x's shape and dtype
    dgamma, dbeta : arrays of shape (D,) and gamma's dtype

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was found and what was expected; ValueError if x was changed after forward.

    Notes
    -----
    The relative error of dx is about kappa * u with kappa = ||r g|| / ||dx||. A dy whose products with gamma leave
    the range of the dtype gives NaN or Inf.
    """
    contract.check_cache(cache, CpuLayerNormCache)
    x, saved, eps, _ = cache
    dtype, shape = x.dtype, x.shape
    if not (type(dy) is np.ndarray and dy.dtype is dtype and dy.shape == shape):
        dy = contract.check_like_x("dy", dy, shape, dtype)
        if dy.dtype.kind == "c":
            raise TypeError(f"dy: found dtype complex128, expected {dtype.name}, the dtype of x")
    if out is None:
        dx = np.empty(shape, dtype)
    else:
        dx = out
        if not (type(dx) is np.ndarray and dx.dtype is dtype and dx.shape == shape and dx.flags.carray):
            _check_out(dx, x)
    if dtype not in _FLOATS:
        return _half_backward(dy, cache, dx)

    D = shape[-1]
    if not dy.flags.carray:
        _refuse_overlap(dx, dy)
        dy = dy.copy()
    upstream, rows, dx_rows = dy.reshape(-1, D), x.reshape(-1, D), dx.reshape(-1, D)
    dgamma, dbeta = np.empty(D, dtype), np.empty(D, dtype)
    if x.size < PARALLEL_SIZE or (threads := numba.get_num_threads()) == 1:
        left, changed = _backward_serial(upstream, rows, saved, dx_rows, dgamma, dbeta)
    else:
        left, changed = _backward_threads(upstream, rows, saved, dx_rows, dgamma, dbeta, threads)
    if left < 0:
        raise ValueError(_OVERLAP)
    if left:
        mine = np.isnan(dx_rows[:, 0])
        changed += _changed_rows(rows, cache.statistics, mine)
    if changed:
        raise ValueError(f"cache: found x changed since forward (the mean of {changed} rows is not the one "
                         "recorded), expected the same numbers; give forward a copy of x")
    if left:
        again, gamma = mine, cache.gamma.astype(dtype)
        if np.isnan(dgamma[0]):  # all sums over rows again; dx stays as it is
            again, dgamma[:], dbeta[:] = np.ones_like(mine), 0, 0
        _, rest = layernorm.layer_norm_forward(rows[again], gamma, gamma, eps, precise=saved.dtype != dtype)
        dx_left, dgamma_left, dbeta_left = layernorm.layer_norm_backward(upstream[again], rest)
        dx_rows[mine] = dx_left[mine[again]]
        with np.errstate(all="ignore"):
            dgamma += dgamma_left
            dbeta += dbeta_left
    return dx, dgamma, dbeta
