r"""The kernels of :mod:`lnlib.gpu`, in Numba CUDA.

* **One read, one write.** Threads share a row. Each keeps its part in registers, so what is needed
  twice is read once: forward moves 8 bytes an element in float32, backward 12. Where D is a
  multiple of 4 every access to them is of 16 bytes. Rows that do not fit in the registers of a
  block (more than 16384 numbers in forward, 8192 in backward; a quarter less where 4 does not
  divide D) have kernels of their own, whose second reading comes from cache. In backward, up to
  twice as many numbers have their sums of dgamma and dbeta in registers all the same.
* **Statistics.** As in :mod:`lnlib.cpu`, by a guess at the mean. The first is 0, and m + residual
  the next one. The row is in registers: another round costs no memory traffic.
* **Parameter gradients.** A thread goes through many rows and adds their dgamma and dbeta in
  registers, at most :data:`~lnlib.gpu.plans.ROWS_ADDED` of them. The sums of a block go to one row
  of partial sums, and another kernel adds these. No atomic operation takes part: the results are
  the same bit for bit in every run.
* **Asking early.** A thread waits for memory where it uses what it has asked for. So it asks for
  all its numbers of a row first, and in backward, up to 4096 numbers (a quarter less as above), for
  those of its next row.
* **Short rows.** In backward a row of up to 256 numbers (192 where they are read one by one) is in
  one warp or in a part of one, and a block does several.
* **Range.** A row whose variance leaves the range is done again, scaled by a power of two, and so
  is an upstream gradient whose sums are near the largest number. A row that varies little at a huge
  mean is scaled only until its mean is known: eps counts in its variance. All arithmetic is
  float32, or float64 if ``real`` is.
* **Half precision.** Numbers are widened when they are read, and rounded once when they are
  written. Of bfloat16 the kernels see bits (:func:`~simt.cuda_access.bfloat16`).

Arrays are flat, (rows * D). ``statistics`` has four numbers a row: a guess at the mean, the mean of
what it leaves, 1 / sqrt(var + eps), and the power of two by which the row is multiplied before.

Arguments are not checked: kernels and what they call run on the device, and
:mod:`lnlib.gpu.backend` makes them with constants of its plans.
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
    store4,
    uint64,
    widened,
)

from .. import validation
from .plans import KEPT, TERMS

#: Powers of two by which a row out of range is multiplied. The first is for one that is too large.
DOWN, UP = 2.0**-90, 2.0**100

#: Rounds that the statistics of a row may take. Two are usual, and one if the mean is small.
ROUNDS = 6


# Parts of kernels. A device function is compiled into the kernel that calls it. Some are made by a
# factory: its arguments are constants when the kernel is compiled.
#   real is the dtype of the arithmetic, storage that of y and dx (in the second stage of dgamma).
#   threads is how many share a row, and W neighbours are a chunk of it.
# An index that varies is a uint64: of one with a sign Numba first asks whether it counts from the
# end, which costs some instructions an access.


@device
def fetch1(array, i, registers, k):
    registers[k] = widened(array[uint64(i)])


@device
def put1(array, i, registers, k, storage):
    array[uint64(i)] = storage(registers[k])


@device
def fetch4(array, i, registers, k):
    a, b, c, d = load4(array, i)
    registers[k] = widened(a)
    registers[k + 1] = widened(b)
    registers[k + 2] = widened(c)
    registers[k + 3] = widened(d)


@device
def put4(array, i, registers, k, storage):
    store4(
        array,
        i,
        storage(registers[k]),
        storage(registers[k + 1]),
        storage(registers[k + 2]),
        storage(registers[k + 3]),
    )


#: W -> how a chunk is read, and written.
ACCESS = {1: (fetch1, put1), 4: (fetch4, put4)}


@device
def times32(a, b):
    """a * b, rounded: a fused a * b - c would leave an error of a constant g, which must be 0."""
    return libdevice.fmul_rn(a, b)


@device
def times64(a, b):
    return libdevice.dmul_rn(a, b)


TIMES = {float32: times32, float64: times64}


@device
def warp_sums(a, b):
    """The sums of a and b over the 32 lanes of a warp: every lane gets both, and the same bits."""
    for offset in (16, 8, 4, 2, 1):
        a += cuda.shfl_xor_sync(FULL, a, offset)
        b += cuda.shfl_xor_sync(FULL, b, offset)
    return a, b


def group_sums(threads):
    """Make what does for a group of 8, 16 or 32 lanes what ``block_sums`` does for a block.

    Lanes whose numbers differ in the lower bits only are a group. A mask names all 32 lanes,
    because all of them come here together: ``ballot_sync`` has a bit of each, of which those of the
    group are looked at.
    """
    offsets, bits = tuple(2**k for k in reversed(range(threads.bit_length() - 1))), 2**threads - 1

    @device
    def sums(a, b, flag):
        for offset in offsets:
            a += cuda.shfl_xor_sync(FULL, a, offset)
            b += cuda.shfl_xor_sync(FULL, b, offset)
        if threads == 32:
            return a, b, cuda.any_sync(FULL, flag)
        return a, b, cuda.ballot_sync(FULL, flag) >> (cuda.laneid & -threads) & bits != 0

    return sums


@device
def block_sums(a, b, flag, shared, side, thread, warps):
    """The sums of a and b over all threads of a block, and whether any has set its flag, for all.

    Uses 2 * warps numbers of ``shared`` from ``side`` on. One barrier is enough if the next call
    uses others.
    """
    a, b = warp_sums(a, b)
    if thread & 31 == 0:
        shared[side + (thread >> 5)] = a
        shared[side + warps + (thread >> 5)] = b
    flag = cuda.syncthreads_or(flag)
    a = shared[side]
    b = shared[side + warps]
    for w in range(1, warps):
        a += shared[uint64(side + w)]
        b += shared[uint64(side + warps + w)]
    return a, b, flag


def row_statistics(threads, sums, real):
    """Make the device function that finds the statistics of a row.

    It calls ``sums(x, base, v, thread, D, scale, mean)``, which are a thread's sums of d and of d^2
    for d = scale * x - mean. Kernels differ in where x is then: in registers v, or in memory.
    """
    warps = threads // 32
    ends = validation.RANGE["float32" if real is float32 else "float64"]
    smallest, largest, hardly = real(ends[0]), real(ends[1]), real(0.25 * DOWN**2 * ends[1])
    down, back, up, quarter = real(DOWN), real(1 / DOWN), real(UP), real(0.25)
    most = real(3.4e38 if real is float32 else 1.7e308)  # times 0 it is 0

    @device
    def find(x, base, v, thread, D, shared, eps, eps_down, eps_up):
        scale, e = real(1), eps
        mean, residual, variance = real(0), real(0), real(0)
        side = int32(0)
        for _ in range(ROUNDS):
            total, squares = sums(x, base, v, thread, D, scale, mean)
            if warps > 1:
                total, squares, _ = block_sums(total, squares, 0, shared, side, thread, warps)
                side = int32(2 * warps) - side
            else:
                total, squares = warp_sums(total, squares)
            residual = total / real(D)
            # Negative only where the guess is poor, and then there is a better one.
            variance = squares / real(D) - residual * residual
            better = mean + residual
            off, near = residual * residual, quarter * variance
            # Where squares underflow both are 0, and the first guess may be poor.
            if (off > near or off == near and mean == real(0)) and better != mean:
                mean = better
            elif scale == real(1) and not smallest < variance + e < largest:
                # NaN comes here too, and stays NaN.
                if not variance + e <= smallest:
                    mean, scale, e = real(0), down, eps_down
                elif mean * mean < real(1):
                    mean, scale, e = mean * up, up, eps_up
                else:  # constant: others vary more. A tiny eps is itself only in eps_up
                    rstd = up / math.sqrt(eps_up)
                    return mean, residual, min(rstd, most) if eps_up > real(0) else rstd, scale
            elif scale == down and variance + e < hardly:
                # Only the mean was too large: with this guess squares are in range unscaled.
                mean, scale, e = mean * back, real(1), eps
            else:
                break
        return mean, residual, real(1) / math.sqrt(variance + e), scale

    return find


def y_of_chunk(W, storage):
    """Make the device function that writes y for the chunk at ``column``, in v from k on."""
    fetch, put = ACCESS[W]

    @device
    def write(gamma, beta, y, base, column, v, k, weights, statistics):
        mean, residual, rstd, scale = statistics
        fetch(gamma, column, weights, 0)
        fetch(beta, column, weights, W)
        for n in range(W):
            xhat = ((v[k + n] * scale - mean) - residual) * rstd
            v[k + n] = xhat * weights[n] + weights[W + n]
        put(y, base + column, v, k, storage)

    return write


def chunks_of_backward(W, real, storage):
    """Make what reads xhat and dy, adds up g and g * xhat, and writes dx, of the chunk at k."""
    fetch, put = ACCESS[W]
    times = TIMES[real]
    most = real(3.4e38 if real is float32 else 1.7e308)  # as in row_statistics

    @device
    def read(x, dy, i, xhat, upstream, k, statistics):
        mean, residual, rstd, scale = statistics
        fetch(x, i, xhat, k)
        fetch(dy, i, upstream, k)
        for n in range(k, k + W):
            xhat[n] = ((xhat[n] * scale - mean) - residual) * rstd

    @device
    def add(gamma, column, xhat, upstream, k, weights, small, first, g_sum, gx_sum, differs):
        fetch(gamma, column, weights, 0)
        for n in range(W):
            g = times(upstream[k + n] * small, weights[n])
            g_sum += g
            gx_sum += g * xhat[k + n]
            if g != first:
                differs = 1
        return g_sum, gx_sum, differs

    @device
    def write(gamma, dx, base, column, xhat, upstream, k, weights, statistics, means):
        _, _, rstd, scale = statistics
        g_mean, gx_mean, small, large = means
        factor, last = rstd * scale, large
        if factor > most:  # not what it is multiplied by
            factor, last = rstd, min(large * scale, most)
        fetch(gamma, column, weights, 0)
        for n in range(W):
            g = times(upstream[k + n] * small, weights[n])
            inner = (g - g_mean) - xhat[k + n] * gx_mean
            upstream[k + n] = factor * inner * last
        put(dx, base + column, upstream, k, storage)

    return read, add, write


def means_of_g(threads, sums, real):
    """Make what finds the means of g and g * xhat of a row, and the scale they are of.

    It calls ``sums(dy, x, gamma, base, xhat, upstream, weights, thread, D, statistics, small,
    first)``, which are a thread's sums for g = gamma * dy * small, and whether any g is not
    ``first``.
    """
    warps, times = threads // 32, TIMES[real]
    down, back = real(DOWN), real(1 / DOWN)
    harmless = real(validation.SAFE_TO_SUBTRACT["float32" if real is float32 else "float64"])
    add_lanes = group_sums(min(threads, 32))

    @device
    def find(dy, x, gamma, base, xhat, upstream, weights, thread, D, statistics, shared, side):
        small, large = real(1), real(1)
        g_mean, gx_mean = real(0), real(0)
        for turn in range(2):
            first = times(real(widened(dy[uint64(base)])) * small, real(widened(gamma[0])))
            g_sum, gx_sum, differs = sums(
                dy, x, gamma, base, xhat, upstream, weights, thread, D, statistics, small, first
            )
            if warps > 1:
                g_sum, gx_sum, differs = block_sums(
                    g_sum, gx_sum, differs, shared, side, thread, warps
                )
                side = int32(2 * warps) - side
            else:
                g_sum, gx_sum, differs = add_lanes(g_sum, gx_sum, differs)
            g_mean, gx_mean = first, real(0)  # if g is constant: dx is then 0
            if differs:
                g_mean, gx_mean = g_sum / real(D), gx_sum / real(D)
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


# Kernels. A factory makes them: its arguments are constants when the kernel is compiled, so that
# loops over them are unrolled and arrays of their size are registers.
#   A thread has V chunks of a row; R rows are in a block (1 if threads > 32).


def forward(threads, V, W, R, real=float32, storage=float32):
    """Make the forward kernel for rows of at most threads * V * W numbers."""
    fetch, slots, kept, pair = ACCESS[W][0], threads // 8, V * W, 2 * W

    @device
    def sums(x, base, v, thread, D, scale, mean):
        total, squares = real(0), real(0)
        for j in range(V):
            if (thread + int32(j * threads)) * int32(W) < D:
                for k in range(j * W, j * W + W):
                    d = v[k] * scale - mean
                    total += d
                    squares += d * d
        return total, squares

    find_statistics = row_statistics(threads, sums, real)
    write_y = y_of_chunk(W, storage)

    def kernel(x, gamma, beta, y, statistics, rows, D, eps, eps_down, eps_up):
        v = cuda.local.array(kept, real)
        weights = cuda.local.array(pair, real)
        shared = cuda.shared.array(slots, real)
        thread = int32(cuda.threadIdx.x)
        row = int32(cuda.blockIdx.x)
        if R > 1:
            row = row * int32(R) + (thread >> int32(5))
            thread = thread & int32(31)
        if row < rows:
            base = int64(row) * int64(D)
            for j in range(V):
                column = (thread + int32(j * threads)) * int32(W)
                if column < D:
                    fetch(x, base + column, v, j * W)

            found = find_statistics(x, base, v, thread, D, shared, eps, eps_down, eps_up)
            if thread == 0:
                store4(statistics, int64(row) * 4, found[0], found[1], found[2], found[3])
            for j in range(V):
                column = (thread + int32(j * threads)) * int32(W)
                if column < D:
                    write_y(gamma, beta, y, base, column, v, j * W, weights, found)

    return kernel


def forward_long(threads, W, real=float32, storage=float32):
    """Make the forward kernel for rows of any length: one block a row, read in every round."""
    fetch, slots, pair = ACCESS[W][0], threads // 8, 2 * W

    @device
    def sums(x, base, v, thread, D, scale, mean):
        total, squares = real(0), real(0)
        for column in range(thread * int32(W), D, int32(threads * W)):
            fetch(x, base + column, v, 0)
            for k in range(W):
                d = v[k] * scale - mean
                total += d
                squares += d * d
        return total, squares

    find_statistics = row_statistics(threads, sums, real)
    write_y = y_of_chunk(W, storage)

    def kernel(x, gamma, beta, y, statistics, rows, D, eps, eps_down, eps_up):
        v = cuda.local.array(W, real)
        weights = cuda.local.array(pair, real)
        shared = cuda.shared.array(slots, real)
        thread = int32(cuda.threadIdx.x)
        row = int32(cuda.blockIdx.x)
        base = int64(row) * int64(D)
        found = find_statistics(x, base, v, thread, D, shared, eps, eps_down, eps_up)
        if thread == 0:
            store4(statistics, int64(row) * 4, found[0], found[1], found[2], found[3])
        for column in range(thread * int32(W), D, int32(threads * W)):
            fetch(x, base + column, v, 0)
            write_y(gamma, beta, y, base, column, v, 0, weights, found)

    return kernel


def sums_of_kept(threads, V, W, add, real):
    """Make the ``sums`` of :func:`means_of_g` for a thread that keeps V chunks of xhat and dy."""

    @device
    def sums(dy, x, gamma, base, xhat, upstream, weights, thread, D, statistics, small, first):
        g_sum, gx_sum, differs = real(0), real(0), 0
        for j in range(V):
            column = (thread + int32(j * threads)) * int32(W)
            if column < D:
                k = j * W
                g_sum, gx_sum, differs = add(
                    gamma, column, xhat, upstream, k, weights, small, first, g_sum, gx_sum, differs
                )
        return g_sum, gx_sum, differs

    return sums


def row_of_sums(threads, V, W, real):
    """Make what writes a row of partial sums, which the first ``threads`` threads have."""
    put = ACCESS[W][1]

    @device
    def write(partial_dgamma, partial_dbeta, partial, thread, D, dgamma, dbeta):
        base = int64(partial) * int64(D)
        for j in range(V):
            column = (thread + int32(j * threads)) * int32(W)
            if thread < int32(threads) and column < D:
                put(partial_dgamma, base + column, dgamma, j * W, real)
                put(partial_dbeta, base + column, dbeta, j * W, real)

    return write


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


def row_of_dx(threads, V, W, write_dx):
    """Make the device function that writes dx of V chunks of a row."""

    @device
    def write(gamma, dx, base, lane, D, inside, xhat, upstream, weights, found, means):
        for j in range(V):
            column = (lane + int32(j * threads)) * int32(W)
            if inside and column < D:
                write_dx(gamma, dx, base, column, xhat, upstream, j * W, weights, found, means)

    return write


def backward(threads, V, W, R=1, real=float32, storage=float32):
    """Make the backward kernel, dx and partial sums, for rows of at most threads * V * W numbers.

    A block does R neighbouring rows at a time (one, where a row has more than a warp), and all rows
    of a partial sum. A thread asks memory for all its numbers of a row before it uses any. One that
    keeps few asks for those of its next row before it adds up these, so that memory has work
    meanwhile: ``ahead``.
    """
    kept, warps = V * W, threads * R // 32
    most = KEPT // (2 if real is float32 else 4)
    ahead = kept <= most  # else registers would not do for two rows
    slots = threads // 8 if R == 1 else max(1, warps - 1) * 2 * kept * threads
    threads_as_bits = threads.bit_length() - 1
    _, add, write_dx = chunks_of_backward(W, real, storage)
    find_means = means_of_g(threads, sums_of_kept(threads, V, W, add, real), real)
    ask, gather = part_of_row(threads, V, W), sums_of_groups(threads, kept, warps, real)
    write_row, write_sums = row_of_dx(threads, V, W, write_dx), row_of_sums(threads, V, W, real)

    def kernel(dy, x, statistics, gamma, dx, partial_dgamma, partial_dbeta, rows, D, partials):
        xhat, upstream = cuda.local.array(kept, real), cuda.local.array(kept, real)
        dgamma, dbeta = cuda.local.array(kept, real), cuda.local.array(kept, real)
        next_x, next_dy = xhat, upstream
        if ahead:
            next_x, next_dy = cuda.local.array(kept, real), cuda.local.array(kept, real)
        weights, following = cuda.local.array(W, real), cuda.local.array(4, real)
        shared = cuda.shared.array(slots, real)
        thread = int32(cuda.threadIdx.x)
        lane, step, side = thread & int32(threads - 1), partials * int32(R), int32(0)
        for k in range(kept):  # dy of what lies behind the end of a row stays 0
            next_x[k], next_dy[k], xhat[k], upstream[k] = real(0), real(0), real(0), real(0)
        for k in range(4):
            following[k] = real(0)
        partial = int32(cuda.blockIdx.x)
        while partial < partials:
            for k in range(kept):
                dgamma[k], dbeta[k] = real(0), real(0)
            block_row = partial * int32(R)  # all threads of the block leave the loop together
            row = block_row + (thread >> int32(threads_as_bits))
            if ahead and row < rows:
                ask(dy, x, statistics, row, lane, D, next_dy, next_x, following)
            while block_row < rows:
                base, inside = int64(0), row < rows  # of a group without a row, nothing is used
                if not ahead and inside:
                    ask(dy, x, statistics, row, lane, D, next_dy, next_x, following)
                found = following[0], following[1], following[2], following[3]
                if inside:
                    base = int64(row) * int64(D)
                    for k in range(kept):
                        xhat[k] = ((next_x[k] * found[3] - found[0]) - found[1]) * found[2]
                        upstream[k] = next_dy[k]
                        dgamma[k] += upstream[k] * xhat[k]
                        dbeta[k] += upstream[k]
                if ahead and row + step < rows:
                    ask(dy, x, statistics, row + step, lane, D, next_dy, next_x, following)
                means, side = find_means(
                    dy, x, gamma, base, xhat, upstream, weights, lane, D, found, shared, side
                )
                write_row(gamma, dx, base, lane, D, inside, xhat, upstream, weights, found, means)
                row += step
                block_row += step

            if R > 1:
                gather(dgamma, dbeta, shared, thread)
            write_sums(partial_dgamma, partial_dbeta, partial, thread, D, dgamma, dbeta)
            partial += int32(cuda.gridDim.x)

    return kernel


def sums_of_groups(threads, kept, warps, real):
    """Make what adds dgamma and dbeta of all groups of a block, always in the same order.

    First those of a warp, which the shuffles of other bits than a group's reach; then those of the
    other warps, in shared memory. The first group gets the sums. In shared memory neighbours are
    lanes, so that banks do not conflict.
    """
    size = kept * threads

    @device
    def gather(dgamma, dbeta, shared, thread):
        for k in range(kept):
            offset = threads
            while offset < 32:
                dgamma[k] += cuda.shfl_xor_sync(FULL, dgamma[k], offset)
                dbeta[k] += cuda.shfl_xor_sync(FULL, dbeta[k], offset)
                offset *= 2
        warp, lane = thread >> int32(5), thread & int32(31)
        if warp > 0 and lane < int32(threads):
            for k in range(kept):
                place = (warp - int32(1)) * int32(2 * size) + int32(k * threads) + lane
                shared[uint64(place)] = dgamma[k]
                shared[uint64(place + int32(size))] = dbeta[k]
        cuda.syncthreads()
        if thread < int32(threads):
            for other in range(warps - 1):
                for k in range(kept):
                    place = int32(other * 2 * size + k * threads) + lane
                    dgamma[k] += shared[uint64(place)]
                    dbeta[k] += shared[uint64(place + int32(size))]
        cuda.syncthreads()  # before the next partial sum comes to the same places

    return gather


def sums_of_read(threads, W, read, add, real):
    """Make the ``sums`` of :func:`means_of_g` for a thread that keeps nothing, and reads."""

    @device
    def sums(dy, x, gamma, base, xhat, upstream, weights, thread, D, statistics, small, first):
        g_sum, gx_sum, differs = real(0), real(0), 0
        for column in range(thread * int32(W), D, int32(threads * W)):
            read(x, dy, base + column, xhat, upstream, 0, statistics)
            g_sum, gx_sum, differs = add(
                gamma, column, xhat, upstream, 0, weights, small, first, g_sum, gx_sum, differs
            )
        return g_sum, gx_sum, differs

    return sums


def backward_twice(threads, V, W, real=float32, storage=float32):
    """Make the backward kernel for rows of at most threads * V * W numbers that are read twice.

    A thread keeps its sums of dgamma and dbeta in registers, where x and dy have no room as well:
    two numbers for each column instead of four. The second reading comes from cache.
    """
    slots, kept = threads // 8, V * W
    read, add, write_dx = chunks_of_backward(W, real, storage)
    write_sums = row_of_sums(threads, V, W, real)
    find_means = means_of_g(threads, sums_of_read(threads, W, read, add, real), real)

    def kernel(dy, x, statistics, gamma, dx, partial_dgamma, partial_dbeta, rows, D, partials):
        xhat = cuda.local.array(W, real)
        upstream = cuda.local.array(W, real)
        dgamma = cuda.local.array(kept, real)
        dbeta = cuda.local.array(kept, real)
        weights = cuda.local.array(W, real)
        shared = cuda.shared.array(slots, real)
        thread = int32(cuda.threadIdx.x)
        partial = int32(cuda.blockIdx.x)
        side = int32(0)
        while partial < partials:
            for k in range(kept):
                dgamma[k] = real(0)
                dbeta[k] = real(0)

            row = partial
            while row < rows:
                base = int64(row) * int64(D)
                found = load4(statistics, int64(row) * 4)
                means, side = find_means(
                    dy, x, gamma, base, xhat, upstream, weights, thread, D, found, shared, side
                )
                for j in range(V):
                    column = (thread + int32(j * threads)) * int32(W)
                    if column < D:
                        read(x, dy, base + column, xhat, upstream, 0, found)
                        for k in range(W):
                            dgamma[j * W + k] += upstream[k] * xhat[k]
                            dbeta[j * W + k] += upstream[k]
                        write_dx(gamma, dx, base, column, xhat, upstream, 0, weights, found, means)
                row += partials

            write_sums(partial_dgamma, partial_dbeta, partial, thread, D, dgamma, dbeta)
            partial += int32(cuda.gridDim.x)

    return kernel


def backward_long(threads, W, real=float32, storage=float32):
    """Make the backward kernel for rows of any length, whose partial sums grow in memory."""
    (fetch, put), slots = ACCESS[W], threads // 8
    read, add, write_dx = chunks_of_backward(W, real, storage)
    find_means = means_of_g(threads, sums_of_read(threads, W, read, add, real), real)

    def kernel(dy, x, statistics, gamma, dx, partial_dgamma, partial_dbeta, rows, D, partials):
        xhat = cuda.local.array(W, real)
        upstream = cuda.local.array(W, real)
        dgamma = cuda.local.array(W, real)
        dbeta = cuda.local.array(W, real)
        weights = cuda.local.array(W, real)
        shared = cuda.shared.array(slots, real)
        thread = int32(cuda.threadIdx.x)
        partial = int32(cuda.blockIdx.x)
        side = int32(0)
        while partial < partials:
            row = partial
            while row < rows:
                base = int64(row) * int64(D)
                found = load4(statistics, int64(row) * 4)
                means, side = find_means(
                    dy, x, gamma, base, xhat, upstream, weights, thread, D, found, shared, side
                )
                here = int64(partial) * int64(D)
                for column in range(thread * int32(W), D, int32(threads * W)):
                    read(x, dy, base + column, xhat, upstream, 0, found)
                    for k in range(W):
                        dgamma[k] = real(0)
                        dbeta[k] = real(0)
                    if row >= partials:  # not the first row of this partial sum
                        fetch(partial_dgamma, here + column, dgamma, 0)
                        fetch(partial_dbeta, here + column, dbeta, 0)
                    for k in range(W):
                        dgamma[k] += upstream[k] * xhat[k]
                        dbeta[k] += upstream[k]
                    put(partial_dgamma, here + column, dgamma, 0, real)
                    put(partial_dbeta, here + column, dbeta, 0, real)
                    write_dx(gamma, dx, base, column, xhat, upstream, 0, weights, found, means)
                row += partials
            partial += int32(cuda.gridDim.x)

    return kernel


def add_partials(columns, lanes, real=float32, storage=float32):
    """Make the kernel that adds rows of partial sums, in a fixed order: a chunk of them to one row.

    A block does ``columns`` columns of a chunk; 8 of float32 are a sector of 32 bytes. Each column
    has ``lanes`` threads, and each of these at most :data:`~lnlib.gpu.plans.TERMS` terms: the error
    grows with their number. Of a single chunk the result is the sum; the sums of several are added
    by another launch.
    """
    threads, slots = columns * lanes, 2 * columns * lanes

    def kernel(partial_dgamma, partial_dbeta, dgamma, dbeta, partials, D):
        shared = cuda.shared.array(slots, real)
        thread = int32(cuda.threadIdx.x)
        blocks = (D + int32(columns - 1)) // int32(columns)  # of a chunk
        chunk = int32(cuda.blockIdx.x) // blocks
        first = (int32(cuda.blockIdx.x) - chunk * blocks) * int32(columns)
        column = first + thread % int32(columns)
        p = chunk * int32(TERMS * lanes) + thread // int32(columns)
        i = int64(p) * int64(D) + int64(column)
        a, b = real(0), real(0)
        end = min(partials, (chunk + int32(1)) * int32(TERMS * lanes))
        while p < end:
            for _ in range(8):  # unrolled: eight loads are on their way at the same time
                if p < partials and column < D:
                    a += partial_dgamma[uint64(i)]
                    b += partial_dbeta[uint64(i)]
                p += int32(lanes)
                i += int64(lanes) * int64(D)
        shared[thread] = a
        shared[thread + threads] = b
        half = int32(threads // 2)
        while half >= int32(columns):
            cuda.syncthreads()
            if thread < half:
                shared[thread] += shared[uint64(thread + half)]
                shared[thread + threads] += shared[uint64(thread + threads + half)]
            half //= int32(2)
        if thread < int32(columns) and column < D:
            i = int64(chunk) * int64(D) + int64(column)
            dgamma[uint64(i)] = storage(shared[thread])
            dbeta[uint64(i)] = storage(shared[thread + threads])

    return kernel
