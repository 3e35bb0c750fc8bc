r"""The kernels of :mod:`lnlib.gpu`, in Numba CUDA.

* **One read, one write.** Threads share a row. Each keeps its part in registers, so what is needed twice is read
  once: forward moves 8 bytes an element in float32, backward 12. Where D is a multiple of 4 every access to them is
  of 16 bytes. Rows that do not fit in the registers of a block (more than 16384 numbers in forward, 8192 in
  backward; a quarter less where 4 does not divide D) have kernels of their own, whose second reading comes from
  cache.
* **Statistics.** As in :mod:`lnlib.cpu`, by a guess at the mean. The first is 0, and m + residual the next one. The
  row is in registers: another round costs no memory traffic.
* **Parameter gradients.** A group of threads goes through many rows and adds their dgamma and dbeta in registers,
  at most :data:`~lnlib.gpu.plans.ROWS_ADDED` of them. The sums go to one row of partial sums each, and a second
  kernel adds these. No atomic operation takes part: the results are the same bit for bit in every run.
* **Range.** A row whose variance leaves the range is done again, scaled by a power of two, and so is an upstream
  gradient whose sums overflow. A row that varies little at a huge mean is scaled only until its mean is known: eps
  counts in its variance. All arithmetic is float32, or float64 if ``real`` is.
* **Half precision.** Numbers are widened when they are read, and rounded once when they are written. Of bfloat16 the
  kernels see bits (:func:`~lnlib.simt.cuda_access.bfloat16`).

Arrays are flat, (rows * D). ``statistics`` has four numbers a row: a guess at the mean, the mean of what it leaves,
1 / sqrt(var + eps), and the power of two by which the row is multiplied before.

Arguments are not checked: kernels and what they call run on the device, and :mod:`lnlib.gpu.backend` makes them with
constants of its plans.
"""

import math

from .. import contract
from ..simt.cuda_access import FULL, cuda, device, float32, float64, int32, int64, libdevice, load4, store4, widened

#: Powers of two by which a row out of range is multiplied. The first is for one that is too large.
DOWN, UP = 2.0**-90, 2.0**100

#: Rounds that the statistics of a row may take. Two are usual, and one if the mean is small.
ROUNDS = 6


# Parts of kernels. A device function is compiled into the kernel that calls it. Some are made by a factory: its
# arguments are constants when the kernel is compiled.
#   real is the dtype of the arithmetic, storage that of y and dx (of dgamma and dbeta in the second stage).
#   threads is how many share a row, and W neighbours are a chunk of it.


@device
def fetch1(array, i, registers, k):
    registers[k] = widened(array[i])


@device
def put1(array, i, registers, k, storage):
    array[i] = storage(registers[k])


@device
def fetch4(array, i, registers, k):
    a, b, c, d = load4(array, i)
    registers[k] = widened(a)
    registers[k + 1] = widened(b)
    registers[k + 2] = widened(c)
    registers[k + 3] = widened(d)


@device
def put4(array, i, registers, k, storage):
    store4(array, i, storage(registers[k]), storage(registers[k + 1]), storage(registers[k + 2]),
           storage(registers[k + 3]))


#: W -> how a chunk is read, and written.
ACCESS = {1: (fetch1, put1), 4: (fetch4, put4)}


@device
def times32(a, b):
    """a * b, rounded: a fused a * b - c would leave the rounding error of a constant g, which must be 0."""
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


@device
def block_sums(a, b, flag, shared, start, thread, warps):
    """The sums of a and b over all threads of a block, and whether any has set its flag; every thread gets them.

    Uses 2 * warps numbers of ``shared`` from ``start`` on. One barrier is enough if the next call uses others.
    """
    a, b = warp_sums(a, b)
    if thread & 31 == 0:
        shared[start + (thread >> 5)] = a
        shared[start + warps + (thread >> 5)] = b
    flag = cuda.syncthreads_or(flag)
    a = shared[start]
    b = shared[start + warps]
    for w in range(1, warps):
        a += shared[start + w]
        b += shared[start + warps + w]
    return a, b, flag


def row_statistics(threads, sums, real):
    """Make the device function that finds the statistics of a row.

    It calls ``sums(x, base, v, thread, D, scale, mean)``, which are a thread's sums of d and of d^2 for
    d = scale * x - mean. Kernels differ in where x is then: in registers v, or in memory.
    """
    warps = threads // 32
    ends = contract.RANGE["float32" if real is float32 else "float64"]
    smallest, largest, hardly = real(ends[0]), real(ends[1]), real(0.25 * DOWN**2 * ends[1])
    down, back, up, quarter = real(DOWN), real(1 / DOWN), real(UP), real(0.25)

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
            # Rounding makes this negative only where the guess is poor, and then there is a better one.
            variance = squares / real(D) - residual * residual
            better = mean + residual
            off, near = residual * residual, quarter * variance
            # Where squares underflow both are 0, and the first guess may be poor, for all that can be seen.
            if (off > near or off == near and mean == real(0)) and better != mean:
                mean = better
            elif scale == real(1) and not smallest < variance + e < largest:
                # NaN comes here too, and stays NaN.
                if not variance + e <= smallest:
                    mean, scale, e = real(0), down, eps_down
                elif mean * mean < real(1):
                    mean, scale, e = mean * up, up, eps_up
                else:
                    break  # constant: any other row with such a mean varies more
            elif scale == down and variance + e < hardly:
                # Only the mean was too large. With this guess squares are in range unscaled, and eps stays as it is.
                mean, scale, e = mean * back, real(1), eps
            else:
                break
        return mean, residual, real(1) / math.sqrt(variance + e), scale

    return find


def y_of_chunk(W, storage):
    """Make the device function that writes y for the chunk at ``column``, which is in v from k on."""
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
    """Make the device functions that read xhat and dy, add up g and g * xhat, and write dx, of the chunk at k."""
    fetch, put = ACCESS[W]
    times = TIMES[real]

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
        fetch(gamma, column, weights, 0)
        for n in range(W):
            g = times(upstream[k + n] * small, weights[n])
            inner = (g - g_mean) - xhat[k + n] * gx_mean
            upstream[k + n] = (rstd * scale) * inner * large
        put(dx, base + column, upstream, k, storage)

    return read, add, write


def means_of_g(threads, sums, real):
    """Make the device function that finds the means of g and g * xhat of a row, and the scale they are of.

    It calls ``sums(dy, x, gamma, base, xhat, upstream, weights, thread, D, statistics, small, first)``, which are a
    thread's sums for g = gamma * dy * small, and whether any g is not ``first``.
    """
    warps, times = threads // 32, TIMES[real]
    down, back = real(DOWN), real(1 / DOWN)

    @device
    def find(dy, x, gamma, base, xhat, upstream, weights, thread, D, statistics, shared, side):
        small, large = real(1), real(1)
        g_mean, gx_mean = real(0), real(0)
        for _ in range(2):
            first = times(real(widened(dy[base])) * small, real(widened(gamma[0])))
            g_sum, gx_sum, differs = sums(dy, x, gamma, base, xhat, upstream, weights, thread, D, statistics,
                                          small, first)
            if warps > 1:
                g_sum, gx_sum, differs = block_sums(g_sum, gx_sum, differs, shared, side, thread, warps)
                side = int32(2 * warps) - side
            else:
                g_sum, gx_sum = warp_sums(g_sum, gx_sum)
                differs = cuda.any_sync(FULL, differs)
            g_mean, gx_mean = first, real(0)  # if g is constant: dx is then 0
            if differs:
                g_mean, gx_mean = g_sum / real(D), gx_sum / real(D)
            if math.isfinite(g_sum) and math.isfinite(gx_sum) or small != real(1):
                break
            small, large = down, back
        return (g_mean, gx_mean, small, large), side

    return find


# Kernels. A factory makes them: its arguments are constants when the kernel is compiled, so that loops over them
# are unrolled and arrays of their size are registers.
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
    """Make the forward kernel for rows of any length: one block a row, which is read once for every round."""
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
                g_sum, gx_sum, differs = add(gamma, column, xhat, upstream, j * W, weights, small, first,
                                             g_sum, gx_sum, differs)
        return g_sum, gx_sum, differs

    return sums


def backward(threads, V, W, R, real=float32, storage=float32):
    """Make the backward kernel for rows of at most threads * V * W numbers: dx, and rows of partial sums."""
    put, slots, kept = ACCESS[W][1], threads // 8, V * W
    read, add, write_dx = chunks_of_backward(W, real, storage)

    find_means = means_of_g(threads, sums_of_kept(threads, V, W, add, real), real)

    def kernel(dy, x, statistics, gamma, dx, partial_dgamma, partial_dbeta, rows, D, partials):
        xhat = cuda.local.array(kept, real)
        upstream = cuda.local.array(kept, real)
        dgamma = cuda.local.array(kept, real)
        dbeta = cuda.local.array(kept, real)
        weights = cuda.local.array(W, real)
        shared = cuda.shared.array(slots, real)
        thread = int32(cuda.threadIdx.x)
        partial = int32(cuda.blockIdx.x)
        groups = int32(cuda.gridDim.x)
        if R > 1:
            partial = partial * int32(R) + (thread >> int32(5))
            groups = groups * int32(R)
            thread = thread & int32(31)
        side = int32(0)
        while partial < partials:
            for k in range(kept):
                dgamma[k] = real(0)
                dbeta[k] = real(0)

            row = partial
            while row < rows:
                base = int64(row) * int64(D)
                found = load4(statistics, int64(row) * 4)
                for j in range(V):
                    column = (thread + int32(j * threads)) * int32(W)
                    if column < D:
                        read(x, dy, base + column, xhat, upstream, j * W, found)
                        for k in range(j * W, j * W + W):
                            dgamma[k] += upstream[k] * xhat[k]
                            dbeta[k] += upstream[k]

                means, side = find_means(dy, x, gamma, base, xhat, upstream, weights, thread, D, found, shared, side)
                for j in range(V):
                    column = (thread + int32(j * threads)) * int32(W)
                    if column < D:
                        write_dx(gamma, dx, base, column, xhat, upstream, j * W, weights, found, means)
                row += partials

            base = int64(partial) * int64(D)
            for j in range(V):
                column = (thread + int32(j * threads)) * int32(W)
                if column < D:
                    put(partial_dgamma, base + column, dgamma, j * W, real)
                    put(partial_dbeta, base + column, dbeta, j * W, real)
            partial += groups

    return kernel


def backward_long(threads, W, real=float32, storage=float32):
    """Make the backward kernel for rows of any length. Its partial sums grow in memory, row after row."""
    (fetch, put), slots = ACCESS[W], threads // 8
    read, add, write_dx = chunks_of_backward(W, real, storage)

    @device
    def sums(dy, x, gamma, base, xhat, upstream, weights, thread, D, statistics, small, first):
        g_sum, gx_sum, differs = real(0), real(0), 0
        for column in range(thread * int32(W), D, int32(threads * W)):
            read(x, dy, base + column, xhat, upstream, 0, statistics)
            g_sum, gx_sum, differs = add(gamma, column, xhat, upstream, 0, weights, small, first,
                                         g_sum, gx_sum, differs)
        return g_sum, gx_sum, differs

    find_means = means_of_g(threads, sums, real)

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
                means, side = find_means(dy, x, gamma, base, xhat, upstream, weights, thread, D, found, shared, side)
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
    """Make the second stage: sums over the rows of partial sums, in a fixed order.

    A block does ``columns`` columns; 8 of float32 are a sector of 32 bytes. Each column has ``lanes`` threads.
    """
    threads, slots = columns * lanes, 2 * columns * lanes

    def kernel(partial_dgamma, partial_dbeta, dgamma, dbeta, partials, D):
        shared = cuda.shared.array(slots, real)
        thread = int32(cuda.threadIdx.x)
        column = int32(cuda.blockIdx.x) * int32(columns) + thread % int32(columns)
        a, b = real(0), real(0)
        if column < D:
            start = thread // int32(columns)
            while start < partials:
                a_inner, b_inner = real(0), real(0)  # 32 terms at a time: the error grows with their number
                for p in range(start, min(start + int32(32 * lanes), partials), int32(lanes)):
                    a_inner += partial_dgamma[int64(p) * int64(D) + column]
                    b_inner += partial_dbeta[int64(p) * int64(D) + column]
                a += a_inner
                b += b_inner
                start += int32(32 * lanes)
        shared[thread] = a
        shared[thread + threads] = b
        half = int32(threads // 2)
        while half >= int32(columns):
            cuda.syncthreads()
            if thread < half:
                shared[thread] += shared[thread + half]
                shared[thread + threads] += shared[thread + threads + half]
            half //= int32(2)
        if thread < int32(columns) and column < D:
            dgamma[column] = storage(shared[thread])
            dbeta[column] = storage(shared[thread + threads])

    return kernel
