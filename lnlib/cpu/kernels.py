"""The compiled loops of :mod:`lnlib.cpu`: over a row, over rows, and over threads.

They are one file because Numba's cache on disk looks at the file of the function called from
Python, and at no other: a loop changed elsewhere would not be compiled again. (So change this file,
too, if ``validation.RANGE`` changes, or what it takes from :mod:`lnlib.cpu.arguments` or
:mod:`lnlib.cpu.compiler`.)
"""

import math

import numpy as np
from numba import njit, prange
from numba.core.registry import cpu_target

from .. import validation
from .arguments import (
    READABLE,
    WRITEABLE,
    as_row,
    as_rows,
    has_shape_of,
    is_array,
    is_vector,
    row_length,
)
from .compiler import NoAlias, entry, fence, prefetch, stream

#: Rows whose parameter gradients are added in the dtype of the arithmetic, before float64 takes
#: over, and whose roots forward takes together.
ROW_BLOCK = 16


def _chunk(processor, features):
    """CHUNK for a processor with these features, as LLVM names them; the smallest if in doubt.

    LLVM adds to four vectors of sums, of 512 bits for AMD's AVX-512 and of 256 for Intel's, whose
    clock wide ones would slow. SSE2 has the registers for two vectors, of 128 bits.
    """
    found = features.split(",")
    if "+avx512f" in found and processor.startswith("znver"):
        return 2048
    return 1024 if "+avx" in found else 256


#: Bytes of a row that are summed in the dtype of the arithmetic, before float64 takes over. So few
#: that 8 numbers are added one after another. Each addition is rounded, by u of the sum so far at
#: most. Where that is the square of an outlier it swallows the same of every square that follows:
#: these errors have one sign.
CHUNK = _chunk(*cpu_target.target_context.codegen().magic_tuple()[1:])

#: The same for backward. It adds no squares, and to two vectors a sum; after 32 numbers in a row dx
#: is as exact as after 16. Rows of 512 to 4096 take 1 to 6 % less.
BACKWARD_CHUNK = 2 * CHUNK

#: Bytes of a cache line; an aligned vector store writes one, a misaligned one writes two halves.
LINE = 64

#: Bytes of a page.
PAGE = 4096

#: Bytes, in all, of the arrays of a pass from which they are *far*, in memory or in a part of the
#: last cache that others use too. A core then asks for the lines of a row before it needs them, and
#: stores long rows past the caches. Of nearer arrays both cost more than they save. On one of 8
#: cores that share 32 MB a pass begins to gain between 8 and 12 MB, and a pass whose result is read
#: at once, so from memory, between 12 and 16.
FAR = 16 * 2**20

#: Bytes between the row that is written and the one that is asked for meanwhile; the next row where
#: that is longer.
AHEAD = 2048

#: Bytes of a far row that are written between two requests. A core can wait for a few dozen lines
#: at a time.
PIECE = 1024

#: Features from which it pays to treat the beginning of a row apart, so that the rest is aligned
#: and may be stored past the caches.
LONG_ROW = 256

_RANGE32, _RANGE64 = validation.RANGE["float32"], validation.RANGE["float64"]
_SAFE32, _SAFE64 = validation.SAFE_TO_SUBTRACT["float32"], validation.SAFE_TO_SUBTRACT["float64"]

# A flag that is not given is the one of whichever caller happens to be compiled first: all are
# given. ``forceinline`` is on in the backward pass: of a function that is called, LLVM has one
# version for each caller, whose sums may be in another order, and which of them is taken depends on
# what was compiled before. ``_nrt`` off: who allocates nothing counts no references. Numba would
# count those to every array, twice or more, in every function that it does not find simple enough:
# 10 ns a row and more, where 64 numbers take 50.
_COMMON = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": False,
    "forceinline": True,
    "_nrt": False,
}
_CONTRACT = {
    "fastmath": {"contract"}
}  # a product and a sum may become one fused operation; nothing is reordered
_ENTRY = _COMMON | {"cache": True, "forceinline": False, "_nrt": True}
_row_loop = njit(**_COMMON)
_of_element = njit(**_COMMON | _CONTRACT)
_loop = njit(**_COMMON | _CONTRACT, pipeline_class=NoAlias)
_allocating = njit(**_COMMON | {"_nrt": True})
# Forward's loops are called: inlined, those for one thread and for several would differ in the
# order of float64 sums.
_CALLED = {"forceinline": False, "_nrt": True}
_called = njit(**_COMMON | _CALLED)
_called_loop = njit(**_COMMON | _CONTRACT | _CALLED, pipeline_class=NoAlias)


@njit(**_COMMON | {"fastmath": {"reassoc", "nsz", "contract"}})
def _add(total, term):
    """total + term, in any order: a loop of these is a vector of partial sums. NaN and Inf stay
    what they are.
    """
    return total + term


@_row_loop
def times(a, b):
    """a * b, rounded: a fused dy * gamma - c would leave the rounding error of a constant g, which
    must be 0.
    """
    return a * b


@_of_element
def _xhat(number, mean, shift, rstd):
    """An element of (x - mean - residual) * rstd, where ``shift`` is residual * rstd.

    One operation less, where product and sum are fused: 3 % of backward's time for rows in a cache;
    a rounding less.
    """
    return (number - mean) * rstd - shift


# Where a loop stores; the second only for whole cache lines. Numba compiles a loop once for None,
# once for a bool.
_TO_CACHE, _PAST_CACHES = None, True


@_row_loop
def _store(array, i, j, number, where):
    if where is None:
        array[i, j] = number
    else:
        stream(array, i, j, number)


@_of_element
def _gradient(g, xhat, rstd, g_mean, gx_mean):
    """An element of dx."""
    return rstd * (g - g_mean - xhat * gx_mean)


# One loop each. Indices are unsigned: Numba would look for negative ones in every step, and not
# vectorise.


@_called_loop
def _first_sum(x, i, n):
    total = x.dtype.type(0)
    for j in range(np.uintp(n)):
        total = _add(total, x[np.uintp(i), j])
    return total


@_called_loop
def _moments(x, i, start, stop, guess):
    """Sums of d and d^2, d = x - guess, over columns start to stop."""
    total = squares = guess - guess
    for j in range(np.uintp(start), np.uintp(stop)):
        d = x[np.uintp(i), j] - guess
        total = _add(total, d)
        squares = _add(squares, d * d)
    return np.float64(total), np.float64(squares)


@_called_loop
def _write_y(x, i, start, stop, mean, shift, rstd, gamma, beta, y, where):
    for j in range(np.uintp(start), np.uintp(stop)):
        _store(
            y,
            np.uintp(i),
            j,
            _xhat(x[np.uintp(i), j], mean, shift, rstd) * gamma[j] + beta[j],
            where,
        )


@_loop
def _upstream_sums(dy, x, i, start, stop, gamma, mean, shift, rstd, first):
    """Sums of w = g - first, of w * xhat and of xhat, over columns start to stop.

    If g is constant, w is 0. The mean of xhat is not quite 0, and that times the mean of w is in
    the sum of w * xhat: the caller takes it out, for it would be in every element of dx.
    """
    w_sum = wx_sum = x_sum = gamma.dtype.type(0)
    for j in range(np.uintp(start), np.uintp(stop)):
        w = times(dy[np.uintp(i), j], gamma[j]) - first
        xhat = _xhat(x[np.uintp(i), j], mean, shift, rstd)
        w_sum = _add(w_sum, w)
        wx_sum = _add(wx_sum, w * xhat)
        x_sum = _add(x_sum, xhat)
    return w_sum, wx_sum, x_sum


@_loop
def write_gradients(
    dy, x, i, start, stop, gamma, mean, shift, rstd, g_mean, gx_mean, dx, dgamma, dbeta, where
):
    """Columns start to stop of a row of dx, and its part of dgamma and dbeta."""
    for j in range(np.uintp(start), np.uintp(stop)):
        upstream = dy[np.uintp(i), j]
        xhat = _xhat(x[np.uintp(i), j], mean, shift, rstd)
        _store(
            dx,
            np.uintp(i),
            j,
            _gradient(times(upstream, gamma[j]), xhat, rstd, g_mean, gx_mean),
            where,
        )
        dgamma[j] += upstream * xhat
        dbeta[j] += upstream


@_row_loop
def _lost(before, total, term):
    """What total = before + term, rounded, has lost: exactly so, after Knuth."""
    added = total - before
    return (before - (total - added)) + (term - added)


@_loop
def _two_sum(k, j, term, sums):
    """Add ``term`` to sums[k, j], in float64, and what that loses to sums[k + 2, j]."""
    total = sums[k, j] + term
    sums[k + 2, j] += _lost(sums[k, j], total, term)
    sums[k, j] = total


@_loop
def _fold(dgamma, dbeta, sums):
    """Add a block's parameter gradients to float64 sums, and clear the block.

    Over very many rows float64 sums of float64 would lose digits too, so what each addition loses
    is kept. Of float32 that is nothing: a billion rows lose less than float32 shows.
    """
    for j in range(np.uintp(dgamma.shape[0])):
        if dgamma.itemsize == 4:
            sums[0, j] += dgamma[j]
            sums[1, j] += dbeta[j]
        else:
            _two_sum(np.uintp(0), j, dgamma[j], sums)
            _two_sum(np.uintp(1), j, dbeta[j], sums)
        dgamma[j] = dbeta[j] = 0


# What long rows and far ones need too: requests in advance, sums of chunks, copies that meet cache
# lines.


@_row_loop
def _fetch(array, i, start, stop, line):
    """Ask for columns start to stop of row i."""
    while start < stop:
        prefetch(array, i, start)
        start += line


@_allocating
def _long_moments(x, i, guess, chunk, asked):
    """_moments of a whole row. Meanwhile asks for the first half of row ``asked``, if that is not
    0.

    What float64 loses of sums of float64 numbers is added at the end. After the square of an
    outlier each addition would swallow up to u of it, with one sign: over D numbers, in chunks of
    128, D / 128 u of the squares and half of that of rstd, and so in the whole row of y and dx. So
    would the sum of d, where a row of few steps begins with one that is half a standard deviation
    away. Of float32 that is nothing.
    """
    total = squares = total_lost = squares_lost = 0.0
    start = 0
    while start < x.shape[1]:  # a range would divide, in every row, to know its length
        stop = min(start + chunk, x.shape[1])
        if asked:
            _fetch(x, asked, start // 2, stop // 2, LINE // x.itemsize)
        d, dd = _moments(x, i, start, stop, guess)
        total_before, squares_before = total, squares
        total += d
        squares += dd
        if x.itemsize == 8:
            total_lost += _lost(total_before, total, d)
            squares_lost += _lost(squares_before, squares, dd)
        start = stop
    return total + total_lost, squares + squares_lost


@_allocating
def head_of(rows):
    """How many elements of the first row lie before the first cache line that begins in it."""
    return -rows.ctypes.data % LINE // rows.itemsize


@_allocating
def copy_for(rows, quarters, array):
    """A copy of ``array``, of shape (D,), that lies ``quarters`` quarters of a page behind the
    first row of ``rows``.

    Modulo a page, so that it meets cache lines where that row does. Addresses that agree in their
    last 12 bits compete for the same 8 places in the nearest cache: with no quarters, rows of 1024
    take 1.25 times as long.
    """
    page = PAGE // array.itemsize
    buffer = np.empty(len(array) + page, array.dtype)
    skip = (rows.ctypes.data + quarters * (PAGE // 4) - buffer.ctypes.data) % PAGE // array.itemsize
    copy = buffer[skip : skip + len(array)]
    for j in range(len(array)):  # copy[:] = array would take two seconds to compile
        copy[j] = array[j]
    return copy


# Loops over rows.


@_row_loop
def _rounding_of_a_mean(itemsize):
    """How far the mean of a row's c, in standard deviations, may be from 0.

    The residual's sums are of at most CHUNK bytes, those of xhat of twice that, and float64 takes
    over. Would LLVM make one vector of sums of them, that were 32 and 64 additions one after the
    other, each with an error of at most u times what is added up. |d| is 1.5 standard deviations on
    average at most, for residuals are below half of one (or x is a few ulps wide, and sums of d are
    exact), and |xhat| is 1 at most: 112 u. With the rounding of residual, shift and xhat that is
    below 256 u = 2^-16, for every D. Sums of chunks add D / CHUNK times float64's u: 2^-32 holds to
    D = 2^24.
    """
    return 2.0**-16 if itemsize == 4 else 2.0**-32


@_row_loop
def _plan(D, nbytes, itemsize):
    """How a pass over rows of D goes, whose arrays have ``nbytes`` in all: (far, ahead, piece).

    Whether they are far, how many rows ahead a core asks, and how many elements of a long row it
    writes in between. Rows of less than four lines are too short to gain by being asked for.
    """
    return (
        nbytes >= FAR and D * itemsize >= 4 * LINE,
        max(1, AHEAD // (D * itemsize)),
        PIECE // itemsize,
    )


@_row_loop
def _is_plain(rows, nbytes):
    """Whether rows, in a pass over ``nbytes``, are near and summed as one chunk."""
    return rows.shape[1] * rows.itemsize <= CHUNK and nbytes < FAR


@_row_loop
def _row_to_ask_for(row, end, far):
    """``row``, or 0, which nobody asks for: near rows are not, and none from row ``end`` on."""
    return row if far and row < end else 0


@_row_loop
def _ends_of_lines(i, D, first_head, line, far):
    """(head, whole): the columns of row i at which its first cache line begins and, if far, its
    last whole one ends.
    """
    head = (first_head - i * D) & (line - 1)
    return head, D - ((D - head) & (line - 1)) if far else D


@_row_loop
def _harmless(array):
    """What is below it pushes no element of dx out of range; see
    :data:`lnlib.validation.SAFE_TO_SUBTRACT`.
    """
    return _SAFE32 if array.itemsize == 4 else _SAFE64


@_row_loop
def _guess_of_g(dy, i, gamma):
    """A guess at the mean of a row's g, so that the dx of a constant g is exactly 0: its first
    element.

    An outlier would be subtracted from every element, and sums would be of its size. So the guess
    is 0 where the second and third element are far from the first. All three may be outliers: then
    :func:`_is_poor` finds it out.
    """
    first, real = times(dy[i, 0], gamma[0]), gamma.dtype.type
    if len(gamma) > 2:
        second, third = (
            abs(times(dy[i, 1], gamma[1]) - first),
            abs(times(dy[i, 2], gamma[2]) - first),
        )
        farthest = second if second > third else third
        # One comparison: a choice by two would be compiled to branches, which nothing can foretell.
        return first if farthest <= real(0.5) * abs(first) else real(0)
    return first


@_row_loop
def _guess_of_mean(x, i, gamma):
    """The mean of row i's first numbers, in gamma's dtype."""
    first = min(x.shape[1], 16)
    return gamma.dtype.type(_first_sum(x, i, first) / first)


@_row_loop
def _of_sums(total, squares, D):
    """(residual, variance, whether a guess was too far away), of the sums of d and d^2 over a row
    of D.
    """
    residual = total / D
    variance = squares / D - residual * residual
    return residual, variance, residual * residual > 0.25 * variance


@_row_loop
def _moments_of_row(x, i, gamma, chunk, asked):
    """(mean, residual, variance): a guess at row i's mean that is near enough, the mean of what it
    leaves, and var.
    """
    mean = _guess_of_mean(x, i, gamma)
    residual = variance = 0.0
    for _ in range(4):
        total, squares = _long_moments(x, i, mean, chunk, asked)
        residual, variance, too_far = _of_sums(total, squares, x.shape[1])
        if not too_far:
            break
        mean = gamma.dtype.type(mean + residual)
    return mean, residual, variance


@_row_loop
def _rstd(denominator, itemsize):
    """1 / sqrt(denominator), or 0 if the row is out of range."""
    smallest, largest = _RANGE32 if itemsize == 4 else _RANGE64
    return 1 / math.sqrt(denominator) if smallest < denominator < largest else 0.0


@_called
def _forward_rows(x, beta, eps, y, statistics, gamma, begin, end):
    """Rows begin to end of y and of the statistics; returns how many rows are out of range, with
    rstd 0.
    """
    D, real = x.shape[1], gamma.dtype.type
    first_head, chunk, line = head_of(y), CHUNK // x.itemsize, LINE // x.itemsize
    far, ahead, piece = _plan(D, 2 * x.nbytes, x.itemsize)
    out_of_range = 0
    for i in range(begin, end):
        asked = _row_to_ask_for(i + ahead, end, far)
        if far:  # the line that this row shares with the next is read before it is written
            prefetch(y, i, D - 1)
        mean, residual, variance = _moments_of_row(x, i, gamma, chunk, asked)
        rstd = real(_rstd(variance + eps, gamma.itemsize))
        shift = real(residual) * rstd
        statistics[0, i], statistics[1, i], statistics[2, i] = mean, residual, rstd
        if rstd == 0:
            out_of_range += 1
            continue
        start, (stop, whole) = 0, _ends_of_lines(i, D, first_head, line, far)
        while start < D:  # the head, whole lines, where they are far in pieces, the tail
            if asked:
                _fetch(x, asked, (D + start) // 2, (D + stop) // 2, line)
            if far and stop - start >= line:
                _write_y(x, i, start, stop, mean, shift, rstd, gamma, beta, y, _PAST_CACHES)
            else:
                _write_y(x, i, start, stop, mean, shift, rstd, gamma, beta, y, _TO_CACHE)
            start, stop = stop, min(stop + piece, whole) if far and stop < whole else D
    if far:
        fence()
    return out_of_range


@_called
def _forward_short_rows(x, beta, eps, y, statistics, gamma, begin, end):
    """The same for short rows. One is written while the core waits for sums and root of the
    next.
    """
    D, real = x.shape[1], gamma.dtype.type
    chunk, line = CHUNK // x.itemsize, LINE // x.itemsize
    far, ahead, _ = _plan(D, 2 * x.nbytes, x.itemsize)
    out_of_range, following = 0, _moments_of_row(x, begin, gamma, chunk, 0)
    for i in range(begin, end):
        mean, residual, variance = following
        if i + 1 < end:
            following = _moments_of_row(x, i + 1, gamma, chunk, 0)
        rstd = real(_rstd(variance + eps, gamma.itemsize))
        statistics[0, i], statistics[1, i], statistics[2, i] = mean, residual, rstd
        asked = _row_to_ask_for(i + ahead, end, far)
        if asked:
            _fetch(x, asked, 0, D, line)
            _fetch(y, asked, 0, D, line)
        if rstd == 0:
            out_of_range += 1
        else:
            _write_y(x, i, 0, D, mean, real(residual) * rstd, rstd, gamma, beta, y, _TO_CACHE)
    return out_of_range


@_loop
def _take_roots(sums, squares, start, stop, D, eps):
    """Put the residuals of rows start to stop in the place of their sums of d, and rstd in that of
    their squares.

    rstd is negative where the guess was too far from the mean.
    """
    for i in range(np.uintp(start), np.uintp(stop)):
        residual, variance, too_far = _of_sums(np.float64(sums[i]), np.float64(squares[i]), D)
        sums[i], squares[i] = residual, -1 if too_far else _rstd(variance + eps, sums.itemsize)


@_called
def _forward_blocks(x, beta, eps, y, statistics, gamma, begin, end):
    """The same for plain rows, a block at a time: roots and quotients of many rows are taken
    together, in vectors.

    The sums of a row, which is one chunk, fit into the statistics until then.
    """
    D, out_of_range = x.shape[1], 0
    for row in range(begin, end, ROW_BLOCK):
        block = range(row, min(row + ROW_BLOCK, end))
        for i in block:
            statistics[0, i] = _guess_of_mean(x, i, gamma)
        for i in block:
            statistics[1, i], statistics[2, i] = _moments(x, i, 0, D, statistics[0, i])
        _take_roots(statistics[1], statistics[2], row, min(row + ROW_BLOCK, end), D, eps)
        for i in block:
            if statistics[2, i] < 0:
                mean, residual, variance = _moments_of_row(x, i, gamma, D, 0)
                statistics[0, i], statistics[1, i] = mean, residual
                statistics[2, i] = _rstd(variance + eps, gamma.itemsize)
            mean, residual, rstd = statistics[0, i], statistics[1, i], statistics[2, i]
            if rstd == 0:
                out_of_range += 1
            else:
                _write_y(x, i, 0, D, mean, residual * rstd, rstd, gamma, beta, y, _TO_CACHE)
    return out_of_range


@_called_loop
def _write_y_and_gamma(x, mean, shift, rstd, gamma, beta, y, weights):
    for j in range(np.uintp(x.shape[1])):
        y[0, j] = _xhat(x[0, j], mean, shift, rstd) * gamma[j] + beta[j]
        weights[j] = gamma[j]


@_called
def _forward_row(x, gamma, beta, eps, y, statistics, weights):
    """The same for a row alone, which fills ``weights`` with gamma, too: a loop of its own would
    read it once more.
    """
    mean, residual, variance = _moments_of_row(x, 0, weights, CHUNK // x.itemsize, 0)
    statistics[0, 0], statistics[1, 0] = mean, residual
    statistics[2, 0] = rstd = weights.dtype.type(_rstd(variance + eps, weights.itemsize))
    _write_y_and_gamma(x, mean, statistics[1, 0] * rstd, rstd, gamma, beta, y, weights)
    return 1 if rstd == 0 else 0  # y is done again then


@_called
def _forward_part(x, beta, eps, y, statistics, gamma, begin, end):
    """The same, in one of three ways; with copies of gamma and beta where rows are long and
    many.
    """
    if begin == end:
        return 0
    if _is_plain(x, 2 * x.nbytes):
        return _forward_blocks(x, beta, eps, y, statistics, gamma, begin, end)
    if x.shape[1] < LONG_ROW:
        return _forward_short_rows(x, beta, eps, y, statistics, gamma, begin, end)
    if end - begin > 8:
        return _forward_rows(
            x, copy_for(y, 2, beta), eps, y, statistics, copy_for(y, 1, gamma), begin, end
        )
    return _forward_rows(x, beta, eps, y, statistics, gamma, begin, end)


@_row_loop
def _is_poor(first, w_sum, D):
    """Whether w = g - first is larger than g: mean(w^2) is mean(g^2) - first (first + 2
    mean(w)).
    """
    guess = np.float64(first)
    return guess * (guess * D + 2 * w_sum) < 0


@_row_loop
def _sums_of_chunks(dy, x, i, gamma, mean, shift, rstd, guess, chunk, asked):
    """_upstream_sums of a whole row, a chunk at a time, with the guess 0 if this one is poor; and
    the guess.

    Asks for the first half of row ``asked`` too, if not 0. What float64 loses of float64 sums is
    added at the end, as in forward.
    """
    first = guess
    while True:
        w_sum = wx_sum = x_sum = w_lost = wx_lost = x_lost = 0.0
        start = 0
        while start < x.shape[1]:
            stop = min(start + chunk, x.shape[1])
            if asked:
                _fetch(dy, asked, start // 2, stop // 2, LINE // x.itemsize)
                _fetch(x, asked, start // 2, stop // 2, LINE // x.itemsize)
            w, wx, xhat = _upstream_sums(dy, x, i, start, stop, gamma, mean, shift, rstd, first)
            w_before, wx_before, x_before = w_sum, wx_sum, x_sum
            w_sum += w
            wx_sum += wx
            x_sum += xhat
            if x.itemsize == 8:
                w_lost += _lost(w_before, w_sum, w)
                wx_lost += _lost(wx_before, wx_sum, wx)
                x_lost += _lost(x_before, x_sum, xhat)
            start = stop
        if not _is_poor(first, w_sum, x.shape[1]):
            return first, w_sum + w_lost, wx_sum + wx_lost, x_sum + x_lost
        first -= first
        asked = 0


@_row_loop
def _means_of_g(first, w_sum, wx_sum, x_sum, rstd, D, tolerance, root, harmless):
    """The means of g and of g * xhat over a row, and 1 if its mean is not the recorded one;
    ``root`` is that of D.

    The first is NaN if the row is left to the NumPy backend.
    """
    real = type(first)
    changed = abs(x_sum) > tolerance * D
    w_mean, x_mean = w_sum / D, x_sum / D
    g_mean = real(first + w_mean)
    if rstd == 0 or not abs(w_sum) + abs(wx_sum) * root < harmless * D:
        g_mean = real(math.nan)
    return g_mean, real(wx_sum / D - w_mean * x_mean), changed  # as if the mean of xhat were 0


@_row_loop
def _backward_rows(dy, x, statistics, gamma, dx, dgamma, dbeta, sums, begin, end):
    """Fills rows begin to end of dx and adds their dgamma and dbeta to ``sums`` by way of arrays
    dgamma and dbeta.

    If ``sums`` has no columns they stay in dgamma and dbeta. Returns two counts: of rows left to
    the NumPy backend (their dx is NaN), and of rows whose mean is not that recorded.

    Row by row, each still in the nearest cache when it is read again. Four at a time save stores of
    dgamma and dbeta, and yet take longer in C (benchmarks/cpu/limit.c): rows of 64 in a cache 1.2
    times, of 1024 twice, of 512 from memory 1.4 times as long.
    """
    D, line, chunk = x.shape[1], LINE // x.itemsize, BACKWARD_CHUNK // x.itemsize
    tolerance, root, harmless = _rounding_of_a_mean(gamma.itemsize), math.sqrt(D), _harmless(gamma)
    far, ahead, piece = _plan(D, 3 * x.nbytes, x.itemsize)
    first_head, left, changed = head_of(dx), 0, 0
    for row in range(begin, end, ROW_BLOCK):
        for i in range(row, min(row + ROW_BLOCK, end)):
            mean, rstd = statistics[0, i], statistics[2, i]
            shift, guess = statistics[1, i] * rstd, _guess_of_g(dy, i, gamma)
            asked = _row_to_ask_for(i + ahead, end, far)
            if far and D >= LONG_ROW:
                prefetch(dx, i, D - 1)  # as in forward
            first, w_sum, wx_sum, x_sum = _sums_of_chunks(
                dy, x, i, gamma, mean, shift, rstd, guess, chunk, asked if D >= LONG_ROW else 0
            )
            g_mean, gx_mean, other = _means_of_g(
                first, w_sum, wx_sum, x_sum, rstd, D, tolerance, root, harmless
            )
            changed += other
            left += math.isnan(g_mean)
            if D < LONG_ROW:
                if asked:
                    _fetch(dy, asked, 0, D, line)
                    _fetch(x, asked, 0, D, line)
                    _fetch(dx, asked, 0, D, line)
                write_gradients(
                    dy,
                    x,
                    i,
                    0,
                    D,
                    gamma,
                    mean,
                    shift,
                    rstd,
                    g_mean,
                    gx_mean,
                    dx,
                    dgamma,
                    dbeta,
                    _TO_CACHE,
                )
                continue
            start, (stop, whole) = 0, _ends_of_lines(i, D, first_head, line, far)
            while start < D:  # as in forward
                if asked:
                    _fetch(dy, asked, (D + start) // 2, (D + stop) // 2, line)
                    _fetch(x, asked, (D + start) // 2, (D + stop) // 2, line)
                if far and stop - start >= line:
                    write_gradients(
                        dy,
                        x,
                        i,
                        start,
                        stop,
                        gamma,
                        mean,
                        shift,
                        rstd,
                        g_mean,
                        gx_mean,
                        dx,
                        dgamma,
                        dbeta,
                        _PAST_CACHES,
                    )
                else:
                    write_gradients(
                        dy,
                        x,
                        i,
                        start,
                        stop,
                        gamma,
                        mean,
                        shift,
                        rstd,
                        g_mean,
                        gx_mean,
                        dx,
                        dgamma,
                        dbeta,
                        _TO_CACHE,
                    )
                start, stop = stop, min(stop + piece, whole) if far and stop < whole else D
        if sums.size:
            _fold(dgamma, dbeta, sums)
    if far:
        fence()
    return left, changed


@_allocating
def _backward_blocks(dy, x, statistics, gamma, dx, dgamma, dbeta, sums, begin, end):
    """The same for plain rows, a block at a time: the means of many rows are taken together, in
    vectors.

    Of 256 rows those of 8 take a quarter less than row by row, of 64 a sixth, of 200 a twentieth.
    Far rows, which would be asked for in between, take longer. Row numbers are unsigned here, as
    columns are.
    """
    D, scratch = x.shape[1], np.empty((4, ROW_BLOCK), gamma.dtype)
    guesses, w_sums, wx_sums, x_sums = scratch[0], scratch[1], scratch[2], scratch[3]
    g_means, gx_means = w_sums, wx_sums  # each takes the place of the sum it is made of
    tolerance, root, harmless = _rounding_of_a_mean(gamma.itemsize), math.sqrt(D), _harmless(gamma)
    left = changed = 0
    for row in range(np.uintp(begin), np.uintp(end), np.uintp(ROW_BLOCK)):
        rows = min(np.uintp(ROW_BLOCK), np.uintp(end) - row)
        for k in range(rows):
            i = row + k
            mean, rstd = statistics[0, i], statistics[2, i]
            shift, first = statistics[1, i] * rstd, _guess_of_g(dy, i, gamma)
            for _ in range(2):
                guesses[k] = first
                w_sums[k], wx_sums[k], x_sums[k] = _upstream_sums(
                    dy, x, i, 0, D, gamma, mean, shift, rstd, first
                )
                if not _is_poor(first, np.float64(w_sums[k]), D):
                    break
                first -= first
        for k in range(rows):
            g_means[k], gx_means[k], other = _means_of_g(
                guesses[k],
                np.float64(w_sums[k]),
                np.float64(wx_sums[k]),
                np.float64(x_sums[k]),
                statistics[2, row + k],
                D,
                tolerance,
                root,
                harmless,
            )
            changed += other
            left += math.isnan(g_means[k])
        for k in range(rows):
            i = row + k
            mean, rstd = statistics[0, i], statistics[2, i]
            write_gradients(
                dy,
                x,
                i,
                0,
                D,
                gamma,
                mean,
                statistics[1, i] * rstd,
                rstd,
                g_means[k],
                gx_means[k],
                dx,
                dgamma,
                dbeta,
                _TO_CACHE,
            )
        if sums.size:
            _fold(dgamma, dbeta, sums)
    return left, changed


@_allocating
def _backward_part(dy, x, statistics, gamma, dx, dgamma, dbeta, sums, begin, end):
    """The same for plain rows or others; with copies of gamma, dgamma and dbeta where they belong
    if rows are long.
    """
    if end - begin > ROW_BLOCK and x.shape[1] < LONG_ROW and _is_plain(x, 3 * x.nbytes):
        return _backward_blocks(dy, x, statistics, gamma, dx, dgamma, dbeta, sums, begin, end)
    if sums.size and x.shape[1] >= LONG_ROW:
        gamma, dgamma, dbeta = (
            copy_for(dx, 1, gamma),
            copy_for(dx, 2, dgamma),
            copy_for(dx, 3, dbeta),
        )
    return _backward_rows(dy, x, statistics, gamma, dx, dgamma, dbeta, sums, begin, end)


# Whole arrays. The threaded functions are written out, not derived from the others: Numba's cache
# on disk would take one for the other. ``threads`` is an argument because reading it inside would
# defeat that cache.


@_allocating
def _overlap(a, b):
    return a.ctypes.data < b.ctypes.data + b.nbytes and b.ctypes.data < a.ctypes.data + a.nbytes


@_allocating
def _parts(saved, D):
    """The statistics and gamma of ``CpuLayerNormCache.saved``."""
    rows = (len(saved) - D) // 3
    return saved[: 3 * rows].reshape(3, rows), saved[3 * rows :]


@_allocating
def _filled_parts(saved, gamma):
    """The same, with gamma copied into its part."""
    statistics, weights = _parts(saved, len(gamma))
    for j in range(len(gamma)):
        weights[j] = gamma[j]
    return statistics, weights


@_allocating
def _unusual(x, gamma, beta, eps, y, saved):
    """-2 if arguments of forward are not as they should be, -1 if y overlaps an input, else 0."""
    D = row_length(x)
    if not (
        is_array(x, saved, WRITEABLE)
        and is_array(y, saved, WRITEABLE)
        and has_shape_of(y, x)
        and is_array(gamma, saved, READABLE)
        and is_vector(gamma, D)
        and is_array(beta, saved, READABLE)
        and is_vector(beta, D)
        and 0 <= eps < math.inf
        and is_vector(saved, 3 * len(as_rows(x)) + D)
    ):
        return -2
    y = as_row(y)
    return (
        -1
        if _overlap(y, as_row(x)) or _overlap(y, as_row(gamma)) or _overlap(y, as_row(beta))
        else 0
    )


@entry(**_ENTRY)
def forward_serial(x, gamma, beta, eps, y, saved):
    """Fills y and ``saved``, which is new; returns how many rows are left, or what _unusual
    says.
    """
    unusual = _unusual(x, gamma, beta, eps, y, saved)
    if unusual:
        return unusual
    x, gamma, beta, y, saved = as_rows(x), as_row(gamma), as_row(beta), as_rows(y), as_row(saved)
    if x.shape[0] == 1 and 2 * x.nbytes < FAR:
        statistics, weights = _parts(saved, x.shape[1])
        return _forward_row(x, gamma, beta, eps, y, statistics, weights)
    statistics, weights = _filled_parts(saved, gamma)
    return _forward_part(x, beta, eps, y, statistics, weights, 0, x.shape[0])


@entry(parallel=True, **_ENTRY)
def forward_threads(x, gamma, beta, eps, y, saved, threads):
    unusual = _unusual(x, gamma, beta, eps, y, saved)
    if unusual:
        return unusual
    rows, results, offsets, out_of_range = as_rows(x), as_rows(y), as_row(beta), 0
    statistics, weights = _filled_parts(as_row(saved), as_row(gamma))
    for t in prange(threads):
        out_of_range += _forward_part(
            rows,
            offsets,
            eps,
            results,
            statistics,
            weights,
            len(rows) * t // threads,
            len(rows) * (t + 1) // threads,
        )
    return out_of_range


@_allocating
def _zero_sums(threads, D):
    """For each thread sums of dgamma and of dbeta, and what they lost; no two write to one line, or
    to neighbours.
    """
    return np.zeros((threads, 4, D + 16))


@_allocating
def _add_threads(sums, dgamma, dbeta):
    """Sums over the threads, in their order."""
    for t in range(1, sums.shape[0]):
        _fold(sums[t, 0], sums[t, 1], sums[0])
        _fold(sums[t, 2], sums[t, 3], sums[0])
    for j in range(dgamma.shape[0]):
        dgamma[j], dbeta[j] = sums[0, 0, j] + sums[0, 2, j], sums[0, 1, j] + sums[0, 3, j]


@_loop
def _overflown(dgamma, dbeta):
    """1 if sums over rows may have left the range on their way, else 0."""
    total = dgamma.dtype.type(0)
    for j in range(dgamma.shape[0]):
        total = _add(total, abs(dgamma[j]) + abs(dbeta[j]))
    return 0 if total < _harmless(dgamma) else 1


@_allocating
def _refused(dy, x, saved, dx, dgamma):
    """-2 if arguments of backward are not as they should be, -1 if dx overlaps an input, else 0.

    ``dgamma`` is new, of x's dtype and as long as its rows.
    """
    D = row_length(x)
    if not (
        D
        and is_array(x, dgamma, READABLE)
        and is_array(dy, dgamma, READABLE)
        and is_array(dx, dgamma, WRITEABLE)
        and has_shape_of(dy, x)
        and has_shape_of(dx, x)
        and is_array(saved, dgamma, READABLE)
        and is_vector(saved, 3 * len(as_rows(x)) + D)
    ):
        return -2
    dx = as_row(dx)
    return (
        -1
        if _overlap(dx, as_row(x)) or _overlap(dx, as_row(dy)) or _overlap(dx, as_row(saved))
        else 0
    )


@_called
def _backward(dy, x, saved, dx, dgamma, dbeta):
    """backward_serial, of arrays. It is called: inlined there, rows take 5 % longer, those of 128
    from memory 20 %.
    """
    (statistics, gamma), (rows, D) = _parts(saved, x.shape[1]), x.shape
    if (
        rows <= ROW_BLOCK and dgamma.itemsize == gamma.itemsize
    ):  # one block: its sums are the results
        for j in range(D):
            dgamma[j] = dbeta[j] = 0
        left, changed = _backward_part(
            dy, x, statistics, gamma, dx, dgamma, dbeta, np.empty((4, 0)), 0, rows
        )
    else:
        sums = _zero_sums(1, D)
        left, changed = _backward_part(
            dy,
            x,
            statistics,
            gamma,
            dx,
            np.zeros(D, gamma.dtype),
            np.zeros(D, gamma.dtype),
            sums[0],
            0,
            rows,
        )
        _add_threads(sums, dgamma, dbeta)
    return left + _overflown(dgamma, dbeta), changed


@entry(**_ENTRY)
def backward_serial(dy, x, saved, dx, dgamma, dbeta):
    """Fills dx, dgamma and dbeta, which are new; returns the counts of _backward_rows, the first <
    0 as of _refused.
    """
    refused = _refused(dy, x, saved, dx, dgamma)
    if refused:
        return refused, 0
    return _backward(
        as_rows(dy), as_rows(x), as_row(saved), as_rows(dx), as_row(dgamma), as_row(dbeta)
    )


@entry(parallel=True, **_ENTRY)
def backward_threads(dy, x, saved, dx, dgamma, dbeta, threads):
    refused = _refused(dy, x, saved, dx, dgamma)
    if refused:
        return refused, 0
    gradients, inputs, results, left, changed = as_rows(dy), as_rows(x), as_rows(dx), 0, 0
    (statistics, gamma), (rows, D) = _parts(as_row(saved), inputs.shape[1]), inputs.shape
    sums = _zero_sums(threads, D)
    for t in prange(threads):
        counts = _backward_part(
            gradients,
            inputs,
            statistics,
            gamma,
            results,
            np.zeros(D, gamma.dtype),
            np.zeros(D, gamma.dtype),
            sums[t],
            rows * t // threads,
            rows * (t + 1) // threads,
        )
        left += counts[0]
        changed += counts[1]
    _add_threads(sums, as_row(dgamma), as_row(dbeta))
    return left + _overflown(as_row(dgamma), as_row(dbeta)), changed
