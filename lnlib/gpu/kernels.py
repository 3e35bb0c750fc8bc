r"""The kernels of :mod:`lnlib.gpu`, in Numba CUDA.

* **One read, one write.** T threads share a row. Each keeps its part in registers, so what is needed twice is read
  once: forward moves 8 bytes an element in float32, backward 12. Where D is a multiple of 4 every access to them is
  of 16 bytes. Rows that do not fit in the registers of a block (more than 16384 numbers in forward, 8192 in
  backward; a quarter less where 4 does not divide D) have kernels of their own, whose second reading comes from
  cache.
* **Statistics.** With d = x - m for a guess m, mean(d) is the residual and mean(d^2) - mean(d)^2 the variance. The
  first guess is 0. If the residual is more than half a standard deviation, the guess was poor, and m + residual is
  the next one. The row is in registers: another round costs no memory traffic.
* **Parameter gradients.** A group of T threads goes through many rows and adds their dgamma and dbeta in registers,
  at most :data:`~lnlib.gpu.plans.ROWS_ADDED` of them. The sums go to one row of partial sums each, and a second
  kernel adds these. No atomic operation takes part: the results are the same bit for bit in every run.
* **Range.** A row whose variance leaves the range is done again, scaled by a power of two, and so is an upstream
  gradient whose sums overflow. All arithmetic is float32, or float64 if ``real`` is.

Arrays are flat, (rows * D). ``statistics`` has four numbers a row: a guess at the mean, the mean of what it leaves,
1 / sqrt(var + eps), and the power of two by which the row is multiplied before.
"""

import math

from .. import contract
from ..simt.cuda_access import FULL, cuda, device, float32, int32, int64, libdevice, load4, store4

#: Powers of two by which a row out of range is multiplied. The first is for one that is too large.
DOWN, UP = 2.0**-90, 2.0**100

#: Rounds that the statistics of a row may take. Two are usual, and one if the mean is small.
ROUNDS = 6


# Parts of kernels. A device function is compiled into the kernel that calls it.


@device
def load1(array, i, registers, k):
    registers[k] = array[i]


@device
def store1(array, i, registers, k, storage):
    array[i] = storage(registers[k])


@device
def fetch4(array, i, registers, k):
    a, b, c, d = load4(array, i)
    registers[k] = a
    registers[k + 1] = b
    registers[k + 2] = c
    registers[k + 3] = d


@device
def put4(array, i, registers, k, storage):
    store4(array, i, storage(registers[k]), storage(registers[k + 1]), storage(registers[k + 2]),
           storage(registers[k + 3]))


@device
def times32(a, b):
    """a * b, rounded: a fused a * b - c would leave the rounding error of a constant g, which must be 0."""
    return libdevice.fmul_rn(a, b)


@device
def times64(a, b):
    return libdevice.dmul_rn(a, b)


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


# Kernels. A factory makes them: its arguments are constants when the kernel is compiled, so that loops over them
# are unrolled and arrays of their size are registers.
# real is the dtype of the arithmetic, storage that of y and dx (of dgamma and dbeta in the second stage).
#   T threads share a row; a thread has V chunks of it, each of W neighbours; R rows are in a block (1 if T > 32).


def _limits(real):
    """The range of a variance within which it is accurate to rounding."""
    return contract.RANGE["float32" if real is float32 else "float64"]


def forward(T, V, W, R, real=float32, storage=float32):
    """Make the forward kernel for rows of at most T * V * W numbers."""
    fetch, put = (fetch4, put4) if W == 4 else (load1, store1)
    warps, slots, kept, pair = T // 32, T // 8, V * W, 2 * W
    smallest, largest = _limits(real)
    smallest, largest = real(smallest), real(largest)
    down, up, quarter = real(DOWN), real(UP), real(0.25)

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
                column = (thread + int32(j * T)) * int32(W)
                if column < D:
                    fetch(x, base + column, v, j * W)

            scale, e = real(1), eps
            mean, residual, variance = real(0), real(0), real(0)
            side = int32(0)
            for _ in range(ROUNDS):
                total, squares = real(0), real(0)
                for j in range(V):
                    if (thread + int32(j * T)) * int32(W) < D:
                        for k in range(j * W, j * W + W):
                            d = v[k] * scale - mean
                            total += d
                            squares += d * d
                if warps > 1:
                    total, squares, _ = block_sums(total, squares, 0,
                                                   shared, side, thread, warps)
                    side = int32(2 * warps) - side
                else:
                    total, squares = warp_sums(total, squares)
                residual = total / real(D)
                variance = squares / real(D) - residual * residual
                if variance < real(0):
                    variance = real(0)  # not max(), which would turn NaN into 0
                better = mean + residual
                if residual * residual > quarter * variance and better != mean:
                    mean = better
                elif scale == real(1) and not smallest < variance + e < largest:
                    # NaN comes here too, and stays NaN.
                    if not variance + e <= smallest:
                        mean, scale, e = real(0), down, eps_down
                    elif mean * mean < real(1):
                        mean, scale, e = mean * up, up, eps_up
                    else:
                        break  # constant: any other row with such a mean varies more
                else:
                    break

            rstd = real(1) / math.sqrt(variance + e)
            if thread == 0:
                store4(statistics, int64(row) * 4, mean, residual, rstd, scale)
            for j in range(V):
                column = (thread + int32(j * T)) * int32(W)
                if column < D:
                    fetch(gamma, column, weights, 0)
                    fetch(beta, column, weights, W)
                    for k in range(W):
                        xhat = ((v[j * W + k] * scale - mean) - residual) * rstd
                        v[j * W + k] = xhat * weights[k] + weights[W + k]
                    put(y, base + column, v, j * W, storage)

    return kernel


def forward_long(T, W, real=float32, storage=float32):
    """Make the forward kernel for rows of any length: one block a row, which is read once for every round."""
    fetch, put = (fetch4, put4) if W == 4 else (load1, store1)
    warps, slots, three = T // 32, T // 8, 3 * W
    smallest, largest = _limits(real)
    smallest, largest = real(smallest), real(largest)
    down, up, quarter = real(DOWN), real(UP), real(0.25)

    def kernel(x, gamma, beta, y, statistics, rows, D, eps, eps_down, eps_up):
        v = cuda.local.array(three, real)
        shared = cuda.shared.array(slots, real)
        thread = int32(cuda.threadIdx.x)
        row = int32(cuda.blockIdx.x)
        base = int64(row) * int64(D)
        scale, e = real(1), eps
        mean, residual, variance = real(0), real(0), real(0)
        side = int32(0)
        for _ in range(ROUNDS):
            total, squares = real(0), real(0)
            for column in range(thread * int32(W), D, int32(T * W)):
                fetch(x, base + column, v, 0)
                for k in range(W):
                    d = v[k] * scale - mean
                    total += d
                    squares += d * d
            total, squares, _ = block_sums(total, squares, 0, shared, side, thread, warps)
            side = int32(2 * warps) - side
            residual = total / real(D)
            variance = squares / real(D) - residual * residual
            if variance < real(0):
                variance = real(0)
            better = mean + residual
            if residual * residual > quarter * variance and better != mean:
                mean = better
            elif scale == real(1) and not smallest < variance + e < largest:
                if not variance + e <= smallest:
                    mean, scale, e = real(0), down, eps_down
                elif mean * mean < real(1):
                    mean, scale, e = mean * up, up, eps_up
                else:
                    break  # constant: any other row with such a mean varies more
            else:
                break

        rstd = real(1) / math.sqrt(variance + e)
        if thread == 0:
            store4(statistics, int64(row) * 4, mean, residual, rstd, scale)
        for column in range(thread * int32(W), D, int32(T * W)):
            fetch(x, base + column, v, 0)
            fetch(gamma, column, v, W)
            fetch(beta, column, v, 2 * W)
            for k in range(W):
                v[k] = ((v[k] * scale - mean) - residual) * rstd * v[W + k] + v[2 * W + k]
            put(y, base + column, v, 0, storage)

    return kernel


def backward(T, V, W, R, real=float32, storage=float32):
    """Make the backward kernel for rows of at most T * V * W numbers: dx, and rows of partial sums."""
    fetch, put = (fetch4, put4) if W == 4 else (load1, store1)
    warps, slots, kept = T // 32, T // 8, V * W
    times = times32 if real is float32 else times64
    down, back = real(DOWN), real(1 / DOWN)

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
                mean, residual, rstd, scale = load4(statistics, int64(row) * 4)
                for j in range(V):
                    column = (thread + int32(j * T)) * int32(W)
                    if column < D:
                        fetch(x, base + column, xhat, j * W)
                        fetch(dy, base + column, upstream, j * W)
                        for k in range(j * W, j * W + W):
                            xhat[k] = ((xhat[k] * scale - mean) - residual) * rstd
                            dgamma[k] += upstream[k] * xhat[k]
                            dbeta[k] += upstream[k]

                small, large = real(1), real(1)
                g_mean, gx_mean = real(0), real(0)
                for _ in range(2):
                    first = times(real(dy[base]) * small, real(gamma[0]))
                    g_sum, gx_sum, differs = real(0), real(0), 0
                    for j in range(V):
                        column = (thread + int32(j * T)) * int32(W)
                        if column < D:
                            fetch(gamma, column, weights, 0)
                            for k in range(W):
                                g = times(upstream[j * W + k] * small, weights[k])
                                g_sum += g
                                gx_sum += g * xhat[j * W + k]
                                if g != first:
                                    differs = 1
                    if warps > 1:
                        g_sum, gx_sum, differs = block_sums(g_sum, gx_sum, differs,
                                                            shared, side, thread, warps)
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

                for j in range(V):
                    column = (thread + int32(j * T)) * int32(W)
                    if column < D:
                        fetch(gamma, column, weights, 0)
                        for k in range(j * W, j * W + W):
                            g = times(upstream[k] * small, weights[k - j * W])
                            inner = (g - g_mean) - xhat[k] * gx_mean
                            upstream[k] = (rstd * scale) * inner * large
                        put(dx, base + column, upstream, j * W, storage)
                row += partials

            base = int64(partial) * int64(D)
            for j in range(V):
                column = (thread + int32(j * T)) * int32(W)
                if column < D:
                    put(partial_dgamma, base + column, dgamma, j * W, real)
                    put(partial_dbeta, base + column, dbeta, j * W, real)
            partial += groups

    return kernel


def backward_long(T, W, real=float32, storage=float32):
    """Make the backward kernel for rows of any length. Its partial sums grow in memory, row after row."""
    fetch, put = (fetch4, put4) if W == 4 else (load1, store1)
    warps, slots = T // 32, T // 8
    times = times32 if real is float32 else times64
    down, back = real(DOWN), real(1 / DOWN)

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
                mean, residual, rstd, scale = load4(statistics, int64(row) * 4)
                small, large = real(1), real(1)
                g_mean, gx_mean = real(0), real(0)
                for _ in range(2):
                    first = times(real(dy[base]) * small, real(gamma[0]))
                    g_sum, gx_sum, differs = real(0), real(0), 0
                    for column in range(thread * int32(W), D, int32(T * W)):
                        fetch(x, base + column, xhat, 0)
                        fetch(dy, base + column, upstream, 0)
                        fetch(gamma, column, weights, 0)
                        for k in range(W):
                            g = times(upstream[k] * small, weights[k])
                            g_sum += g
                            gx_sum += g * (((xhat[k] * scale - mean) - residual) * rstd)
                            if g != first:
                                differs = 1
                    g_sum, gx_sum, differs = block_sums(g_sum, gx_sum, differs, shared, side, thread, warps)
                    side = int32(2 * warps) - side
                    g_mean, gx_mean = first, real(0)
                    if differs:
                        g_mean, gx_mean = g_sum / real(D), gx_sum / real(D)
                    if math.isfinite(g_sum) and math.isfinite(gx_sum) or small != real(1):
                        break
                    small, large = down, back

                sums = int64(partial) * int64(D)
                for column in range(thread * int32(W), D, int32(T * W)):
                    fetch(x, base + column, xhat, 0)
                    fetch(dy, base + column, upstream, 0)
                    fetch(gamma, column, weights, 0)
                    for k in range(W):
                        dgamma[k] = real(0)
                        dbeta[k] = real(0)
                    if row >= partials:  # not the first row of this partial sum
                        fetch(partial_dgamma, sums + column, dgamma, 0)
                        fetch(partial_dbeta, sums + column, dbeta, 0)
                    for k in range(W):
                        h = ((xhat[k] * scale - mean) - residual) * rstd
                        dgamma[k] += upstream[k] * h
                        dbeta[k] += upstream[k]
                        g = times(upstream[k] * small, weights[k])
                        inner = (g - g_mean) - h * gx_mean
                        upstream[k] = (rstd * scale) * inner * large
                    put(dx, base + column, upstream, 0, storage)
                    put(partial_dgamma, sums + column, dgamma, 0, real)
                    put(partial_dbeta, sums + column, dbeta, 0, real)
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
