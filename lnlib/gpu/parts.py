r"""Parts of :mod:`lnlib.gpu.kernels`: memory access, sums, statistics, steps of backward.

A device function is compiled into the kernel that calls it. Some are made by a factory, whose
arguments are constants when the kernel is compiled: ``real`` is the dtype of the arithmetic,
``storage`` that of y and dx (in the second stage of dgamma), ``threads`` is how many share a row,
and W neighbours are a chunk of it, of which a thread keeps V.

An index that varies is a uint64: of one with a sign Numba first asks whether it counts from the
end, which costs some instructions an access.
"""

import math

from simt.cuda_access import (
    FULL,
    cuda,
    device,
    float32,
    float64,
    int32,
    int64,
    libdevice,
    load4,
    load8,
    store4,
    store8,
    uint64,
    widened,
)

from .. import validation
from .plans import KEPT

#: Powers of two by which a row out of range is multiplied. The first is for one that is too large.
DOWN, UP = 2.0**-90, 2.0**100

#: The name of each dtype of the arithmetic.
NAMES = {float32: "float32", float64: "float64"}

#: A number near the largest of each dtype, which times 0 is 0.
MOST = {float32: 3.4e38, float64: 1.7e308}

#: Rounds that the statistics of a row may take. Two are usual, and one if the mean is small.
ROUNDS = 6


@device
def fetch1(array, i, registers, k):
    registers[k] = widened(array[uint64(i)])


@device
def put1(array, i, registers, k, storage):
    array[uint64(i)] = storage(registers[k])


@device
def fetch4(array, i, registers, k):
    numbers = load4(array, i)
    for n in range(4):
        registers[k + n] = widened(numbers[n])


@device
def fetch8(array, i, registers, k):
    numbers = load8(array, i)
    for n in range(8):
        registers[k + n] = widened(numbers[n])


@device
def put4(array, i, registers, k, storage):
    a, b, c, d = registers[k], registers[k + 1], registers[k + 2], registers[k + 3]
    store4(array, i, storage(a), storage(b), storage(c), storage(d))


@device
def put8(array, i, registers, k, storage):
    a, b, c, d = registers[k], registers[k + 1], registers[k + 2], registers[k + 3]
    e, f, g, h = registers[k + 4], registers[k + 5], registers[k + 6], registers[k + 7]
    a, b, c, d = storage(a), storage(b), storage(c), storage(d)
    store8(array, i, a, b, c, d, storage(e), storage(f), storage(g), storage(h))


#: W -> how a chunk is read, and written.
ACCESS = {1: (fetch1, put1), 4: (fetch4, put4), 8: (fetch8, put8)}


def normalising(centred):
    """Make what gives xhat, by the statistics of the row; without a mean, if not ``centred``."""

    @device
    def normalised(value, mean, residual, rstd, scale):
        if centred:
            return ((value * scale - mean) - residual) * rstd
        return value * scale * rstd

    return normalised


def places_of_row(threads, V, W):
    """Where a thread keeps a row: registers from one chunk to the next, registers in all, and what
    says how many chunks there are. If V is 0, all chunks take turns in one place.
    """
    at, kept, step = (W if V else 0), max(V, 1) * W, threads * W

    @device
    def chunks(D):
        if V == 0:
            return (D + int32(step - 1)) // int32(step)
        return int32(V)

    return at, kept, chunks


@device
def times32(a, b):
    """a * b, rounded: a fused a * b - c would leave an error of a constant g, which must be 0."""
    return libdevice.fmul_rn(a, b)


@device
def times64(a, b):
    return libdevice.dmul_rn(a, b)


TIMES = {float32: times32, float64: times64}


def sums_over(threads, flagged, both):
    """Make the sums of a (if ``both``) and b over the threads of a row, whether any has set its
    flag (if ``flagged``), and the next ``side``: all get these, and the same bits.

    A row has several warps or one, or 8 or 16 neighbouring lanes. A mask names all 32 lanes,
    because all of them come here together: of their flags, those of the row are looked at. Several
    warps use 2 * warps numbers of ``shared`` from ``side`` on, and one barrier is enough, because
    the next call uses others.
    """
    warps, lanes = threads // 32, min(threads, 32)
    offsets, bits = tuple(2**k for k in reversed(range(lanes.bit_length() - 1))), 2**lanes - 1

    @device
    def sums(a, b, flag, shared, side, thread):
        for offset in offsets:
            if both:
                a += cuda.shfl_xor_sync(FULL, a, offset)
            b += cuda.shfl_xor_sync(FULL, b, offset)
        if warps > 1:
            if thread & 31 == 0:
                if both:
                    shared[side + (thread >> 5)] = a
                shared[side + warps + (thread >> 5)] = b
            flag = cuda.syncthreads_or(flag)
            b = shared[side + warps]
            if both:
                a = shared[side]
            for w in range(1, warps):
                if both:
                    a += shared[uint64(side + w)]
                b += shared[uint64(side + warps + w)]
            side = int32(2 * warps) - side
        elif flagged and lanes == 32:
            flag = cuda.any_sync(FULL, flag)
        elif flagged:
            flag = cuda.ballot_sync(FULL, flag) >> (cuda.laneid & -lanes) & bits != 0
        return a, b, flag, side

    return sums


def sum_of_rows(threads, V, W, real, storage):
    """Make what adds a row of a residual to one of x, rounds the sum as h will be read, keeps it in
    registers v if V is not 0, and writes it to h. Both are read of several chunks before the first
    is written: behind a store, a load would wait.
    """
    (fetch, put), (at, _, chunks) = ACCESS[W], places_of_row(threads, V, W)
    turns = max(1, -(-V * W // KEPT))
    together = max(1, -(-V // turns))

    @device
    def add(x, residual, h, base, inside, v, others, thread, D):
        for first in range(0, chunks(D), together):
            for i in range(together):
                column = (thread + int32((first + i) * threads)) * int32(W)
                if column < D:
                    fetch(x, base + column, v, (first + i) * at)
                    fetch(residual, base + column, others, i * W)
            for i in range(together):
                column, k = (thread + int32((first + i) * threads)) * int32(W), (first + i) * at
                if column < D:
                    for n in range(W):
                        v[k + n] = real(widened(storage(v[k + n] + others[i * W + n])))
                    if inside:
                        put(h, base + column, v, k, storage)

    return together * W, add


def row_statistics(threads, V, W, real, centred):
    """Make what finds the statistics of a row, which is in registers v or, if V is 0, in memory. It
    adds up d and d^2 of d = scale * x - mean, where mean is a guess that it makes better; of a row
    that is not ``centred`` mean stays 0, and only d^2 is added up.
    """
    fetch, add_up = ACCESS[W][0], sums_over(threads, False, centred)
    at, _, chunks = places_of_row(threads, V, W)
    ends, most = validation.RANGE[NAMES[real]], real(MOST[real])
    smallest, largest, hardly = real(ends[0]), real(ends[1]), real(0.25 * DOWN**2 * ends[1])
    down, back, up, quarter = real(DOWN), real(1 / DOWN), real(UP), real(0.25)

    @device
    def find(x, base, v, thread, D, shared, eps, eps_down, eps_up):
        scale, e, side, constant = real(1), eps, int32(0), False
        mean, residual, variance = real(0), real(0), real(0)
        for _ in range(ROUNDS):
            total, squares = real(0), real(0)
            for j in range(chunks(D)):
                column = (thread + int32(j * threads)) * int32(W)
                if column < D:
                    if V == 0:
                        fetch(x, base + column, v, 0)
                    for k in range(j * at, j * at + W):
                        d = v[k] * scale
                        if centred:
                            d -= mean
                            total += d
                        squares += d * d
            total, squares, _, side = add_up(total, squares, 0, shared, side, thread)
            variance, again = squares / real(D), True
            if centred:
                residual = total / real(D)
                # Negative only where the guess is poor, and then there is a better one.
                variance -= residual * residual
            better = mean + residual
            off, near = residual * residual, quarter * variance
            # Where squares underflow both are 0, and the first guess may be poor.
            if centred and (off > near or off == near and mean == real(0)) and better != mean:
                mean = better
            elif scale == real(1) and not smallest < variance + e < largest:
                # NaN comes here too, and stays NaN.
                if not variance + e <= smallest:
                    mean, scale, e = real(0), down, eps_down
                elif mean * mean < real(1):
                    mean, scale, e = mean * up, up, eps_up
                else:  # constant: others vary more. A tiny eps is itself only in eps_up
                    constant, again = True, False
            elif scale == down and variance + e < hardly:
                # Only the mean was too large: with this guess squares are in range unscaled.
                mean, scale, e = mean * back, real(1), eps
            else:
                again = False
            # Of several rows in a warp, those that are done get the same numbers once more.
            if not (cuda.any_sync(FULL, again) if threads < 32 else again):
                break
        rstd = real(1) / math.sqrt(variance + e)
        if constant:
            rstd = up / math.sqrt(eps_up)
            rstd = min(rstd, most) if eps_up > real(0) else rstd
        return mean, residual, rstd, scale

    return find


def chunks_of_backward(threads, V, W, centred, added, real, storage):
    """Make what reads a chunk of xhat and dy, and what writes V of dx, with dh if ``added``."""
    (fetch, put), times, most = ACCESS[W], TIMES[real], real(MOST[real])
    normalised = normalising(centred)

    @device
    def read(x, dy, i, xhat, upstream, statistics):
        mean, residual, rstd, scale = statistics
        fetch(x, i, xhat, 0)
        fetch(dy, i, upstream, 0)
        for n in range(W):
            xhat[n] = normalised(xhat[n], mean, residual, rstd, scale)

    @device
    def write(gamma, dx, base, thread, D, inside, xhat, upstream, other, statistics, means):
        weights = cuda.local.array(W, real)
        _, _, rstd, scale = statistics
        g_mean, gx_mean, small, large = means
        for j in range(V):
            column, k = (thread + int32(j * threads)) * int32(W), j * W
            if inside and column < D:
                beyond = rstd * scale > most  # not what it is multiplied by
                factor = rstd if beyond else rstd * scale
                last = min(large * (scale if beyond else real(1)), most)
                fetch(gamma, column, weights, 0)
                for n in range(W):
                    g = times(upstream[k + n] * small, weights[n])
                    if centred:
                        g -= g_mean
                    upstream[k + n] = factor * (g - xhat[k + n] * gx_mean) * last
                    if added:
                        upstream[k + n] += other[k + n]
                put(dx, base + column, upstream, k, storage)

    return read, write


def means_of_g(threads, V, W, centred, read, real):
    """Make what finds the means of g = gamma * dy * small (0 if not ``centred``) and g * xhat of a
    row, and that scale: of V chunks of xhat and dy that a thread keeps or, if V is 0, of all.
    """
    fetch, times, add_up = ACCESS[W][0], TIMES[real], sums_over(threads, centred, centred)
    at, _, chunks = places_of_row(threads, V, W)
    down, back = real(DOWN), real(1 / DOWN)
    harmless = real(validation.SAFE_TO_SUBTRACT[NAMES[real]])

    @device
    def find(dy, x, gamma, base, xhat, upstream, thread, D, statistics, shared, side):
        weights = cuda.local.array(W, real)
        small, large = real(1), real(1)
        g_mean, gx_mean = real(0), real(0)
        for turn in range(2):
            first = real(0)
            if centred:
                first = times(real(widened(dy[uint64(base)])) * small, real(widened(gamma[0])))
            g_sum, gx_sum, differs = real(0), real(0), 0
            for j in range(chunks(D)):
                column, k = (thread + int32(j * threads)) * int32(W), j * at
                if column < D:
                    if V == 0:
                        read(x, dy, base + column, xhat, upstream, statistics)
                    fetch(gamma, column, weights, 0)
                    for n in range(W):
                        g = times(upstream[k + n] * small, weights[n])
                        gx_sum += g * xhat[k + n]
                        if centred:
                            g_sum += g
                            if g != first:
                                differs = 1
            g_sum, gx_sum, differs, side = add_up(g_sum, gx_sum, differs, shared, side, thread)
            g_mean, gx_mean = first, real(0)  # if g is constant: dx is then 0
            if centred:
                if differs:
                    g_mean, gx_mean = g_sum / real(D), gx_sum / real(D)
            else:
                gx_mean = gx_sum / real(D)
            # NaN comes again, too. The limit is one for means: on the safe side.
            again = not (-harmless < g_sum < harmless and -harmless < gx_sum < harmless)
            # Of several rows in a warp, those that are fine get the same sums once more: the others
            # need all lanes. A row by itself has its second turn where small is not 1; to know it
            # so takes no register.
            last = turn == 1 if threads < 32 else small != real(1)
            if last or not (cuda.any_sync(FULL, again) if threads < 32 else again):
                break
            if again:
                small, large = down, back
        return (g_mean, gx_mean, small, large), side

    return find


def part_of_row(threads, V, W):
    """Make the device function that reads V chunks of x and dy, and the statistics, of a row."""
    fetch = ACCESS[W][0]

    @device
    def read(dy, x, statistics, row, lane, D, next_dy, next_x, following):
        base = int64(row) * int64(D)
        fetch4(statistics, int64(row) * 4, following, 0)
        for j in range(V):
            column = (lane + int32(j * threads)) * int32(W)
            if column < D:
                fetch(x, base + column, next_x, j * W)
                fetch(dy, base + column, next_dy, j * W)

    return read


def sums_of_block(threads, V, W, R, centred, real):
    """Make what adds dgamma, and dbeta if ``centred``, of all R groups of a block, always in the
    same order, and writes the sums, V chunks a thread, as a row of partial sums.

    First those of a warp, which the shuffles of other bits than a group's reach; then those of the
    other warps, in shared memory. The first group gets the sums. In shared memory neighbours are
    lanes, so that banks do not conflict.
    """
    put, kept, warps = ACCESS[W][1], V * W, threads * R // 32
    both = (1 + centred) * kept

    @device
    def write(partial_sums, partial, thread, D, sums, shared):
        if R > 1:
            for k in range(both):
                offset = threads
                while offset < 32:
                    sums[k] += cuda.shfl_xor_sync(FULL, sums[k], offset)
                    offset *= 2
            warp, lane = thread >> int32(5), thread & int32(31)
            if warp > 0 and lane < int32(threads):
                for k in range(both):
                    place = ((warp - int32(1)) * int32(both) + int32(k)) * int32(threads) + lane
                    shared[uint64(place)] = sums[k]
            cuda.syncthreads()
            if thread < int32(threads):
                for other in range(warps - 1):
                    for k in range(both):
                        sums[k] += shared[uint64(int32((other * both + k) * threads) + lane)]
            cuda.syncthreads()  # before the next partial sum comes to the same places
        base = int64(partial) * int64(1 + centred) * int64(D)
        for j in range(V):
            column = (thread + int32(j * threads)) * int32(W)
            if thread < int32(threads) and column < D:
                put(partial_sums, base + column, sums, j * W, real)
                if centred:
                    put(partial_sums, base + int64(D) + column, sums, kept + j * W, real)

    return write
