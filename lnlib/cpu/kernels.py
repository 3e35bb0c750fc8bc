"""The compiled loops of :mod:`lnlib.cpu`: over a row, over rows, and over threads.

They are one file because Numba's cache on disk compares the time of the file of the function that
Python calls, and of no other: a loop changed elsewhere would not be compiled again. (So touch this
file if ``validation.RANGE`` or :mod:`lnlib.cpu.compiler` changes.)
"""

import math
from typing import Any

import numpy as np
from numba import njit, prange

from .. import validation
from .compiler import NoAlias, cached, fence, stream, use_widest_vectors

#: Rows whose parameter gradients are added in the dtype of the arithmetic, before float64.
ROW_BLOCK = 16

#: Bytes of a row that are summed in the dtype of the arithmetic, before float64 takes over. They
#: are so few that 8 numbers are added one after another in vectors of 256 bits. Each addition is
#: rounded, by u of the sum so far at most. Where that sum is the square of an outlier, an addition
#: loses the same of every square that follows, and these errors have one sign.
SUM_BLOCK_BYTES = 1024

#: Bytes of a cache line.
LINE = 64

#: Bytes of all arrays of a pass from which it uses streaming stores, which write long rows past the
#: caches: they would not stay there. Of smaller arrays that costs more. ``2**62`` switches it off.
OUT_OF_CACHE_BYTES = 16 * 2**20

#: Features from which a row's whole cache lines are stored as aligned vectors, maybe streamed.
LONG_ROW = 256

#: Of float32 and of float64, found at ``itemsize // 8``, as is SAFE. What is below SAFE pushes no
#: element of dx out of range.
RANGE = validation.RANGE["float32"], validation.RANGE["float64"]
SAFE = validation.SAFE_TO_SUBTRACT["float32"], validation.SAFE_TO_SUBTRACT["float64"]

#: How far the mean of a row's xhat may be from 0 if x has not changed since forward. A block of
#: SUM_BLOCK_BYTES is at most 64 additions one after the other, if its sums are a single vector of
#: 128 bits; each has an error of at most u times what is added. |d| is 1.5 standard deviations on
#: average at most, because residuals are below half of one, and |xhat| is 1: 160 u. With the
#: rounding of residual, shift and xhat that is below 256 u = 2^-16, for every D. In float64 sums of
#: blocks add D / 128 times u: 2^-32 holds to D = 2^24. Of RMS norm it is the mean of xhat^2, at
#: most 1: its sum and forward's err by 66 u each, and the other roundings add 10 u.
TOLERANCE_OF_A_MEAN = 2.0**-16, 2.0**-32

# Every flag is given, because Numba takes one that is missing from the first caller it compiles.
# Helpers are inlined: LLVM may optimise a function that is called once for each caller, with sums
# in another order. ``_nrt`` off: no references are counted, which takes 10 ns a row and more.
_INLINED: dict[str, Any] = dict(
    nogil=True, error_model="numpy", fastmath=False, forceinline=True, _nrt=False
)
_inlined = njit(**_INLINED)
_allocating = njit(**_INLINED | {"_nrt": True})
# A product and a sum may become one fused operation; nothing is reordered.
_loop = njit(**_INLINED | {"fastmath": {"contract"}}, pipeline_class=NoAlias)
# Called, not inlined: one thread and several then run the same code.
_CALLED = _INLINED | {"forceinline": False, "_nrt": True}
_over_rows = njit(**_CALLED)
# Called from Python without counts of references, which would take 50 ns an array.
_FROM_PYTHON = _CALLED | {"_nrt": False}


@njit(**_INLINED | {"fastmath": {"reassoc", "nsz", "contract"}})
def _add(total, term):
    """total + term, in any order: loops become vectors of partial sums. NaN and Inf stay."""
    return total + term


@_inlined
def times(a, b):
    """a * b, rounded: a fused dy * gamma - c would leave the rounding error of a constant g."""
    return a * b


@_inlined
def _itemsize(array):
    """Bytes of a number: known when compiled, while ``array.itemsize`` is read in every row."""
    return np.finfo(array.dtype).bits // 8


@_inlined
def _accumulate(total, lost, term, itemsize):
    """total + term in float64, and ``lost`` with exactly what this addition loses (TwoSum, Knuth).

    Sums of many blocks would lose digits of float64 numbers: after the square of an outlier, for
    example, u of it in each. Of float32 numbers that is nothing: they are added as they are.
    """
    new = total + term
    if itemsize == 4:
        return new, lost
    added = new - total
    return new, lost + ((total - (new - added)) + (term - added))


# Loops over one row. Indices are unsigned: for signed ones Numba looks for negative numbers in
# every step, and the loop is not vectorised. ``shift`` is residual * rstd: xhat, which is
# (x - mean - residual) * rstd, then has a rounding less.
#
# What is None is compiled away: of RMS norm beta and dbeta, and then mean, shift and the guess at
# the mean of g are 0; without a residual, which is called ``added``, that and h; and dh.


@_inlined
def _store(array, i, j, number, streamed):
    """array[i, j] = number. ``streamed`` is True or None, for which Numba compiles twice."""
    if streamed is None:
        array[i, j] = number
    else:
        stream(array, i, j, number)


@_loop
def _write_h(x, added, i, start, stop, rows, k, h, streamed):
    """Columns start to stop of row i of h = x + added, and of row k of ``rows`` if that is not
    None.
    """
    use_widest_vectors()
    for j in range(np.uintp(start), np.uintp(stop)):
        number = x[np.uintp(i), j] + added[np.uintp(i), j]
        if rows is not None:
            rows[np.uintp(k), j] = number
        _store(h, np.uintp(i), j, number, streamed)


@_loop
def _moments(x, i, start, stop, guess):
    """Sums of d and d^2, d = x - guess, over columns start to stop."""
    use_widest_vectors()
    total = squares = guess - guess
    for j in range(np.uintp(start), np.uintp(stop)):
        d = x[np.uintp(i), j] - guess
        total = _add(total, d)
        squares = _add(squares, d * d)
    return np.float64(total), np.float64(squares)


@_loop
def _write_y(x, start, stop, row, gamma, beta, y, i, streamed):
    """Columns start to stop of row i of y. ``row``: which row of x, its mean, shift and rstd."""
    use_widest_vectors()
    k, mean, shift, rstd = row
    for j in range(np.uintp(start), np.uintp(stop)):
        xhat = (x[np.uintp(k), j] - mean) * rstd - shift
        scaled = xhat * gamma[j] if beta is None else xhat * gamma[j] + beta[j]
        _store(y, np.uintp(i), j, scaled, streamed)


@_loop
def _upstream_sums(dy, x, i, start, stop, gamma, mean, shift, rstd, guess, dgamma, dbeta):
    """Sums of w = g - guess, of w * xhat and of xhat, over columns start to stop; of RMS norm 0,
    that of g * xhat and that of xhat^2. Adds the row's part of dgamma and dbeta, too, if dgamma is
    not None.

    If g is constant, w is 0. The mean of xhat is not quite 0, and that times the mean of w is in
    the sum of w * xhat: the caller takes it out, for it would be in every element of dx.
    """
    use_widest_vectors()
    w_sum = wx_sum = x_sum = gamma.dtype.type(0)
    for j in range(np.uintp(start), np.uintp(stop)):
        upstream = dy[np.uintp(i), j]
        w = times(upstream, gamma[j]) - guess
        xhat = (x[np.uintp(i), j] - mean) * rstd - shift
        wx_sum = _add(wx_sum, w * xhat)
        if dbeta is None:
            x_sum = _add(x_sum, xhat * xhat)
        else:
            w_sum = _add(w_sum, w)
            x_sum = _add(x_sum, xhat)
        if dgamma is not None:
            dgamma[j] += upstream * xhat
            if dbeta is not None:
                dbeta[j] += upstream
    return w_sum, wx_sum, x_sum


@_loop
def _write_dx(dy, x, i, start, stop, gamma, row, dh, dx, streamed):
    """Columns start to stop of a row of dx. ``row``: mean, shift, rstd, mean(g), mean(g * xhat).

    Nothing else is stored here. Stores wait for the one before, and those of dx are for a cache
    line that is far away: dgamma and dbeta, stored in the same loop, would take its time.
    """
    use_widest_vectors()
    mean, shift, rstd, g_mean, gx_mean = row
    for j in range(np.uintp(start), np.uintp(stop)):
        xhat = (x[np.uintp(i), j] - mean) * rstd - shift
        gradient = rstd * (times(dy[np.uintp(i), j], gamma[j]) - g_mean - xhat * gx_mean)
        if dh is not None:
            gradient += dh[np.uintp(i), j]
        _store(dx, np.uintp(i), j, gradient, streamed)


@_loop
def _fold(block, sums):
    """Add a block's gradient of a parameter to float64 sums, and clear the block.

    ``sums`` has shape (2, D or more): the sums, and what their additions have lost. Of float32 that
    is nothing: a billion rows lose less than float32 shows.
    """
    use_widest_vectors()
    if block is not None:
        for j in range(np.uintp(block.shape[0])):
            lost = sums[1, j]
            sums[0, j], sums[1, j] = _accumulate(sums[0, j], lost, block[j], _itemsize(block))
            block[j] = 0


# Sums over a row. A core can read one row from memory while it writes another, so forward writes
# the row before on the way, a block of it after each block that is summed: its ``columns``, from
# the first to the last. After the last row there is one more turn, in which nothing is ``summed``.


@_inlined
def _statistics(x, k, D, summed, real, before, columns, weights, beta, y, i, streams):
    """(mean, residual, variance) of row k of x: a guess at its mean, the mean of what that leaves,
    and the variance; of RMS norm 0, 0 and the mean of squares. The first guess is the mean of 16
    numbers; where it was poor, as :mod:`lnlib.cpu` says, the mean found so far is the next.

    ``before``: of the row before its row of x, mean, shift and rstd.
    """
    block, first, total = SUM_BLOCK_BYTES // _itemsize(x), min(D, 16), x.dtype.type(0)
    if summed:
        for j in range(np.uintp(first)):
            total = _add(total, x[np.uintp(k), j])
    mean = real(0) if beta is None else real(total / first)
    residual = variance = 0.0
    written, end = columns
    for _ in range(4):
        total = squares = total_lost = squares_lost = 0.0
        start = 0
        while start < D:  # a range would divide, in every row, to know its length
            stop = min(start + block, D)
            if summed:
                d, dd = _moments(x, k, start, stop, mean)
                total, total_lost = _accumulate(total, total_lost, d, _itemsize(x))
                squares, squares_lost = _accumulate(squares, squares_lost, dd, _itemsize(x))
            next = min(written + block, end)
            if streams:
                _write_y(x, written, next, before, weights, beta, y, i, True)
            else:
                _write_y(x, written, next, before, weights, beta, y, i, None)
            start, written = stop, next
        residual = 0.0 if beta is None else (total + total_lost) / D
        variance = (squares + squares_lost) / D - residual * residual
        if beta is None or not residual * residual > 0.25 * variance:
            break
        mean = real(mean + residual)
    return mean, residual, variance


@_inlined
def _guess_at_g(dy, i, gamma):
    """A guess at the mean of row i's g: the first if the middle and the last are like it, so that
    the dx of a constant g is exactly 0.

    Else it is 0: an outlier would be subtracted from every g, and sums would be of its size.
    """
    real, half, last = gamma.dtype.type, len(gamma) // 2, len(gamma) - 1
    guess = times(dy[i, 0], gamma[0])
    far = abs(times(dy[i, half], gamma[half]) - guess), abs(times(dy[i, last], gamma[last]) - guess)
    # One comparison: a choice by two would be compiled to branches, which nothing can foretell.
    farthest = far[0] if far[0] > far[1] else far[1]
    return guess if farthest <= real(0.5) * abs(guess) else real(0)


@_inlined
def _row_sums(dy, x, i, gamma, mean, shift, rstd, guess, dgamma, dbeta):
    """_upstream_sums of all of row i."""
    block, D = SUM_BLOCK_BYTES // _itemsize(x), x.shape[1]
    w_sum = wx_sum = x_sum = w_lost = wx_lost = x_lost = 0.0
    start = 0
    while start < D:
        stop = min(start + block, D)
        w, wx, xhat = _upstream_sums(
            dy, x, i, start, stop, gamma, mean, shift, rstd, guess, dgamma, dbeta
        )
        w_sum, w_lost = _accumulate(w_sum, w_lost, w, _itemsize(x))
        wx_sum, wx_lost = _accumulate(wx_sum, wx_lost, wx, _itemsize(x))
        x_sum, x_lost = _accumulate(x_sum, x_lost, xhat, _itemsize(x))
        start = stop
    return w_sum + w_lost, wx_sum + wx_lost, x_sum + x_lost


# Loops over rows.


@_allocating
def _columns_before_line(array):
    """How many elements of the first row lie before the first cache line that begins in it."""
    return -array.ctypes.data % LINE // array.itemsize


@_allocating
def _zeros_on_lines(gamma):
    """Zeros of shape (2, D or more), whose rows both begin with a cache line, so that no store
    crosses two. They are 1 KB more than D apart: a core takes equal places in two pages for the
    same place.
    """
    line = LINE // _itemsize(gamma)
    apart = (len(gamma) // line + 17) * line
    zeros = np.zeros(2 * apart + line, gamma.dtype)
    start = _columns_before_line(zeros)
    return zeros[start : start + 2 * apart].reshape(2, apart)


@_inlined
def _whole_lines(i, D, before, line):
    """The columns at which row i's first cache line begins (of a short row 0), and at which its
    last whole one ends.
    """
    start = (before - i * D) & (line - 1) if D >= LONG_ROW else 0
    return start, D - ((D - start) & (line - 1))


@_allocating
def _overlap(a, b):
    if b is None:
        return False
    return a.ctypes.data < b.ctypes.data + b.nbytes and b.ctypes.data < a.ctypes.data + a.nbytes


@_allocating
def _parts_of(saved, D):
    """The statistics and gamma of ``CpuNormCache.saved``."""
    rows = (len(saved) - D) // 3
    return saved[: 3 * rows].reshape(3, rows), saved[3 * rows :]


@_over_rows
def _forward(x, added, gamma, beta, eps, h, y, saved, part, parts):
    """One of so many parts of the rows of h, y and the statistics; returns how many are out of
    range (rstd 0), or -1 if y overlaps an input. Each part writes the copy of gamma that it reads.

    A row of h is read again where it was written, or, if that was past the caches, in a buffer of
    two rows. No array is chosen in the loop: counting its references would wait for all streamed
    stores.
    """
    if _overlap(y, x) or _overlap(y, added) or _overlap(y, gamma) or _overlap(y, beta):
        return -1
    D, real, line = x.shape[1], saved.dtype.type, LINE // _itemsize(x)
    statistics, weights = _parts_of(saved, D)
    for j in range(np.uintp(D)):  # weights[:] = gamma would compare two shapes for each number
        weights[j] = gamma[j]
    smallest, largest = RANGE[_itemsize(saved) // 8]
    streams = (2 if added is None else 4) * x.nbytes >= OUT_OF_CACHE_BYTES and D >= LONG_ROW
    line_of_y, line_of_h, out_of_range = _columns_before_line(y), _columns_before_line(h), 0
    rows, buffered = h, False
    if added is not None and streams:
        rows, buffered = _zeros_on_lines(gamma), True
    first, end = len(x) * part // parts, len(x) * (part + 1) // parts
    before, columns = (0, real(0), real(0), real(0)), (0, 0)
    for i in range(first, end + 1):
        k = i & 1 if buffered else i
        if added is not None and i < end:
            if streams:
                start, stop = _whole_lines(i, D, line_of_h, line)
                _write_h(x, added, i, 0, start, rows, k, h, None)
                _write_h(x, added, i, start, stop, rows, k, h, True)
                _write_h(x, added, i, stop, D, rows, k, h, None)
            else:
                _write_h(x, added, i, 0, D, None, k, h, None)
        if i > first:
            start, stop = _whole_lines(i - 1, D, line_of_y, line)
            columns = start, stop if streams else D
            _write_y(rows, 0, columns[0], before, weights, beta, y, i - 1, None)
            _write_y(rows, columns[1], D, before, weights, beta, y, i - 1, None)
        mean, rest, variance = _statistics(
            rows, k, D, i < end, real, before, columns, weights, beta, y, i - 1, streams
        )
        if i < end:
            denominator, rstd = variance + eps, real(0)
            if smallest < denominator < largest:
                rstd = real(1 / math.sqrt(denominator))
            out_of_range += rstd == 0
            shift = real(0) if beta is None else real(rest) * rstd
            statistics[0, i], statistics[2, i] = mean, rstd
            statistics[1, i] = variance * rstd * rstd if beta is None else rest
            before = k, mean, shift, rstd
    if streams:
        fence()
    return out_of_range


@_over_rows
def _backward(dy, x, saved, dh, dx, dbeta, sums, part, parts):
    """One of so many parts of the rows of dx; adds their dgamma and dbeta to ``sums``, by way of a
    block of ROW_BLOCK rows. Of dbeta it reads only whether it is None.

    Returns two counts: of rows left to the NumPy backend (their dx is NaN), and of rows whose mean
    is not the recorded one; or -1 and 0 if dx overlaps an input. Row by row, each still in the
    nearest cache when it is read again.
    """
    if _overlap(dx, x) or _overlap(dx, dy) or _overlap(dx, dh) or _overlap(dx, saved):
        return -1, 0
    D, real, line = x.shape[1], saved.dtype.type, LINE // _itemsize(x)
    statistics, gamma = _parts_of(saved, D)
    tolerance, limit = TOLERANCE_OF_A_MEAN[_itemsize(gamma) // 8], SAFE[_itemsize(gamma) // 8]
    root = math.sqrt(D)
    streams = (3 if dh is None else 4) * x.nbytes >= OUT_OF_CACHE_BYTES and D >= LONG_ROW
    before, left, changed = _columns_before_line(dx), 0, 0
    zeros = _zeros_on_lines(gamma)
    gammas, betas = zeros[0, :D], None if dbeta is None else zeros[1, :D]
    end = len(x) * (part + 1) // parts
    for block in range(len(x) * part // parts, end, ROW_BLOCK):
        for i in range(block, min(block + ROW_BLOCK, end)):
            rstd = statistics[2, i]
            guess = real(0)
            if dbeta is None:
                mean, shift, expected = guess, guess, statistics[1, i]
            else:
                mean, shift, expected = statistics[0, i], statistics[1, i] * rstd, guess
            w_sum, wx_sum, x_sum = _row_sums(
                dy, x, i, gamma, mean, shift, rstd, guess, gammas, betas
            )
            if dbeta is not None:
                # Only now: first, all sums would wait for these three numbers from memory.
                better = _guess_at_g(dy, i, gamma)
                if better != 0:
                    again = _row_sums(dy, x, i, gamma, mean, shift, rstd, better, None, betas)
                    wide = np.float64(better)
                    # mean(g^2) - mean(w^2), times D: below 0 if all three numbers were outliers.
                    if not wide * (wide * D + 2 * again[0]) < 0:
                        guess, (w_sum, wx_sum, x_sum) = better, again
            # Of a row in range, NaN is a change too: it held neither NaN nor Inf in forward.
            changed += rstd != 0 and not abs(x_sum - expected * D) <= tolerance * D
            g_mean = real(guess + w_sum / D)
            gx_mean = real(wx_sum / D - w_sum / D * (x_sum / D))  # as if the mean of xhat were 0
            if rstd == 0 or not abs(w_sum) + abs(wx_sum) * root < limit * D:
                gx_mean = real(math.nan)
                left += 1
            row = mean, shift, rstd, g_mean, gx_mean
            start, stop = _whole_lines(i, D, before, line)
            stop = stop if streams else start
            _write_dx(dy, x, i, 0, start, gamma, row, dh, dx, None)
            _write_dx(dy, x, i, start, stop, gamma, row, dh, dx, True)
            _write_dx(dy, x, i, stop, D, gamma, row, dh, dx, None)
        _fold(gammas, sums[0])
        _fold(betas, sums[1])
    if streams:
        fence()
    return left, changed


@_loop
def _finish(sums, gradient):
    """Add the threads' sums for a parameter, in order; returns 1 if one may have overflowed."""
    if gradient is None:
        return 0
    total = 0.0
    for t in range(1, sums.shape[0]):
        _fold(sums[t, 0], sums[0])
        _fold(sums[t, 1], sums[0])
    for j in range(np.uintp(gradient.shape[0])):
        gradient[j] = sums[0, 0, j] + sums[0, 1, j]
        total = _add(total, abs(gradient[j]))
    return 0 if total < SAFE[_itemsize(gradient) // 8] else 1


# What Python calls: x, added, h, y, dy, dh and dx of shape (rows, D), C-contiguous. The threaded
# functions are written out, not derived from the others: Numba's cache on disk would take one for
# the other. ``threads`` is an argument because reading it inside would defeat that cache.


@cached(**_FROM_PYTHON)
def forward_serial(x, added, gamma, beta, eps, h, y, saved):
    """Fill h, y and ``saved``; returns how many rows are out of range, below 0 if y overlaps."""
    return _forward(x, added, gamma, beta, eps, h, y, saved, 0, 1)


@cached(parallel=True, **_CALLED)
def forward_threads(x, added, gamma, beta, eps, h, y, saved, threads):
    left = 0
    for t in prange(threads):
        left += _forward(x, added, gamma, beta, eps, h, y, saved, t, threads)
    return left


@_over_rows
def _backward_in_one_part(dy, x, saved, dh, dx, dgamma, dbeta):
    sums = np.zeros((1, 2, 2, x.shape[1]))
    left, changed = _backward(dy, x, saved, dh, dx, dbeta, sums[0], 0, 1)
    return left + _finish(sums[:, 0], dgamma) + _finish(sums[:, 1], dbeta), changed


@cached(**_FROM_PYTHON)
def backward_serial(dy, x, saved, dh, dx, dgamma, dbeta):
    """Fill dx, dgamma and dbeta; returns _backward's counts, the first below 0 if dx overlaps."""
    return _backward_in_one_part(dy, x, saved, dh, dx, dgamma, dbeta)


@cached(parallel=True, **_CALLED)
def backward_threads(dy, x, saved, dh, dx, dgamma, dbeta, threads):
    # Each thread has sums of its own, two cache lines apart from the next thread's.
    sums, left, changed = np.zeros((threads, 2, 2, x.shape[1] + 16)), 0, 0
    for t in prange(threads):
        counts = _backward(dy, x, saved, dh, dx, dbeta, sums[t], t, threads)
        left += counts[0]
        changed += counts[1]
    return left + _finish(sums[:, 0], dgamma) + _finish(sums[:, 1], dbeta), changed
