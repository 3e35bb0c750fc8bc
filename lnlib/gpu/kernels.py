r"""The kernels of :mod:`lnlib.gpu`, in Numba CUDA, made of the parts in :mod:`lnlib.gpu.parts`.

* **One read, one write.** Threads share a row. Each keeps its part in registers, so what is needed
  twice is read once: forward moves 8 bytes an element in float32, backward 12; a residual adds 8
  and 4. Where D is a multiple of 4, or of 8 in half precision, accesses are of 16 bytes, but of 8
  where layer norm's backward reads rows of half precision of up to 16384 numbers twice and adds dh.
  Rows that do not fit in the registers of a block (more than 32768 numbers in forward, 8192 in
  backward; 12288 and 6144 where 4 does not divide D; half as many if ``precise``) are read again,
  from cache. In backward, up to
  twice as many numbers have their sums of dgamma and dbeta in registers all the same.
* **Statistics.** As in :mod:`lnlib.cpu`, by a guess at the mean. The first is 0, and m + residual
  the next one. The row is in registers: another round costs no memory traffic.
* **Parameter gradients.** A thread goes through many rows and adds their dgamma and dbeta in
  registers, at most :data:`~lnlib.gpu.plans.ROWS_ADDED` of them. The sums of a block go to one row
  of partial sums, which another kernel adds. Without atomics every run has the same bits.
* **Asking early.** A thread waits for memory where it uses what it has asked for. So it asks for
  all its numbers of a row first, and in backward, up to 4096 numbers (2048 if ``precise``), for
  those of its next row, so that memory has work while it adds up these.
* **Short rows.** In backward a row of up to 256 numbers (192 where they are read one by one), in
  forward one of up to 512 (384), is in a warp or a part of one, and a block does several.
* **Same row, same bits.** How a row is summed depends on its length, never on other rows.
* **Range.** A row whose variance leaves the range is done again, scaled by a power of two, and so
  is an upstream gradient whose sums are near the largest number. A row that varies little at a huge
  mean is scaled only until its mean is known: eps counts in its variance. All arithmetic is
  float32, or float64 if ``real`` is.
* **Half precision.** Numbers are widened when they are read, and rounded once when they are
  written. Of bfloat16 the kernels see bits (``simt.cuda_access.bfloat16``).

Arrays are flat, (rows * D). ``statistics`` has four numbers a row: a guess at the mean, the mean of
what it leaves, 1 / sqrt(var + eps), and the power of two by which the row is multiplied before.

Arguments are not checked: kernels and what they call run on the device, and
:mod:`lnlib.gpu.backend` makes them with constants of its plans.
"""

from simt.cuda_access import cuda, float32, int32, int64, load4, store4, uint64

from .parts import (
    ACCESS,
    chunks_of_backward,
    means_of_g,
    normalising,
    part_of_row,
    places_of_row,
    row_statistics,
    sum_of_rows,
    sums_of_block,
)
from .plans import KEPT, TERMS

# Kernels. A factory makes them: its arguments are constants when the kernel is compiled, so that
# loops over them are unrolled and arrays of their size are registers.
#   A thread has V chunks of a row; R rows are in a block (1 if threads > 32).


def forward(threads, V, W, R, centred=True, added=False, real=float32, storage=float32):
    """Make the forward kernel for rows of at most threads * V * W numbers: of layer norm if
    ``centred``, else of RMS norm; of x + residual, written to h, if ``added``.

    If V is 0, for rows of any length: nothing is kept, and a row is read again in every round.
    Arrays that a kernel does not use, such as beta of RMS norm, may be any.
    """
    (fetch, put), slots, pair = ACCESS[W], max(1, threads // 8), 2 * W
    at, kept, chunks = places_of_row(threads, V, W)
    find_statistics = row_statistics(threads, V, W, real, centred)
    normalised, threads_as_bits = normalising(centred), threads.bit_length() - 1
    waiting, add_rows = sum_of_rows(threads, V, W, real, storage)

    def kernel(x, gamma, beta, y, statistics, residual, h, rows, D, eps, eps_down, eps_up):
        v = cuda.local.array(kept, real)
        weights = cuda.local.array(pair, real)
        shared = cuda.shared.array(slots, real)
        thread = int32(cuda.threadIdx.x)
        row = int32(cuda.blockIdx.x)
        if R > 1:
            row = row * int32(R) + (thread >> int32(threads_as_bits))
            thread = thread & int32(threads - 1)
        inside = row < rows
        if threads < 32:  # all lanes of a warp stay together: of the last, some do a row again
            row = min(row, rows - int32(1))
        if threads < 32 or inside:
            base, source = int64(row) * int64(D), x
            if added:
                others, source = cuda.local.array(waiting, real), h
                add_rows(x, residual, h, base, inside, v, others, thread, D)
            for j in range(0 if added else V):
                column = (thread + int32(j * threads)) * int32(W)
                if column < D:
                    fetch(x, base + column, v, j * W)

            found = find_statistics(source, base, v, thread, D, shared, eps, eps_down, eps_up)
            if inside and thread == 0:
                store4(statistics, int64(row) * 4, found[0], found[1], found[2], found[3])
            for j in range(chunks(D)):
                column, k = (thread + int32(j * threads)) * int32(W), j * at
                if inside and column < D:
                    if V == 0:
                        fetch(source, base + column, v, 0)
                    fetch(gamma, column, weights, 0)
                    if centred:
                        fetch(beta, column, weights, W)
                    for n in range(W):
                        xhat = normalised(v[k + n], found[0], found[1], found[2], found[3])
                        v[k + n] = xhat * weights[n]
                        if centred:
                            v[k + n] += weights[W + n]
                    put(y, base + column, v, k, storage)

    return kernel


def backward(threads, V, W, R=1, centred=True, added=False, real=float32, storage=float32):
    """Make the backward kernel, dx and partial sums, for rows of at most threads * V * W numbers:
    of layer norm if ``centred``, else of RMS norm, without dbeta; with dh added to dx if ``added``.

    A block does R neighbouring rows at a time (one, where a row has more than a warp), and all rows
    of a partial sum. A thread that keeps few numbers asks memory for its next row ``ahead``.
    """
    kept, both, threads_as_bits = V * W, (1 + centred) * V * W, threads.bit_length() - 1
    ahead = kept <= KEPT // (2 if real is float32 else 4)  # else two rows have no registers
    slots = threads // 8 if R == 1 else max(1, threads * R // 32 - 1) * both * threads
    read, write_dx = chunks_of_backward(threads, V, W, centred, added, real, storage)
    find_means = means_of_g(threads, V, W, centred, read, real)
    ask, write_sums = part_of_row(threads, V, W), sums_of_block(threads, V, W, R, centred, real)
    fetch, normalised = ACCESS[W][0], normalising(centred)

    def kernel(dy, x, statistics, gamma, dx, partial_sums, dh, rows, D, partials):
        xhat, upstream = cuda.local.array(kept, real), cuda.local.array(kept, real)
        other, sums = cuda.local.array(kept, real), cuda.local.array(both, real)
        next_x, next_dy = xhat, upstream
        if ahead:
            next_x, next_dy = cuda.local.array(kept, real), cuda.local.array(kept, real)
        following, shared = cuda.local.array(4, real), cuda.shared.array(slots, real)
        thread = int32(cuda.threadIdx.x)
        lane, step, side = thread & int32(threads - 1), partials * int32(R), int32(0)
        for k in range(kept):  # dy of what lies behind the end of a row stays 0
            next_x[k], next_dy[k], xhat[k], upstream[k] = real(0), real(0), real(0), real(0)
        for k in range(4):
            following[k] = real(0)
        partial = int32(cuda.blockIdx.x)
        while partial < partials:
            for k in range(both):
                sums[k] = real(0)
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
                        xhat[k] = normalised(next_x[k], found[0], found[1], found[2], found[3])
                        upstream[k] = next_dy[k]
                        sums[k] += upstream[k] * xhat[k]
                        if centred:
                            sums[kept + k] += upstream[k]
                    for j in range(V if added else 0):
                        column = (lane + int32(j * threads)) * int32(W)
                        if column < D:
                            fetch(dh, base + column, other, j * W)
                if ahead and row + step < rows:
                    ask(dy, x, statistics, row + step, lane, D, next_dy, next_x, following)
                means, side = find_means(
                    dy, x, gamma, base, xhat, upstream, lane, D, found, shared, side
                )
                write_dx(gamma, dx, base, lane, D, inside, xhat, upstream, other, found, means)
                row += step
                block_row += step

            write_sums(partial_sums, partial, thread, D, sums, shared)
            partial += int32(cuda.gridDim.x)

    return kernel


def backward_twice(threads, V, W, centred=True, added=False, real=float32, storage=float32):
    """Make the backward kernel for rows of at most threads * V * W numbers that are read twice.

    A thread keeps its sums of dgamma and dbeta in registers, where x and dy have no room as well:
    two numbers for each column instead of four. If V is 0, for rows of any length: there is no room
    for these either, and they grow in memory. The second reading comes from cache.
    """
    (fetch, put), slots = ACCESS[W], threads // 8
    at, kept, chunks = places_of_row(threads, V, W)
    both = (1 + centred) * kept
    write_sums = sums_of_block(threads, V, W, 1, centred, real)
    read, write_dx = chunks_of_backward(threads, 1, W, centred, added, real, storage)
    find_means = means_of_g(threads, 0, W, centred, read, real)

    def kernel(dy, x, statistics, gamma, dx, partial_sums, dh, rows, D, partials):
        xhat, upstream = cuda.local.array(W, real), cuda.local.array(W, real)
        other, sums = cuda.local.array(W, real), cuda.local.array(both, real)
        shared = cuda.shared.array(slots, real)
        thread, side = int32(cuda.threadIdx.x), int32(0)
        partial = int32(cuda.blockIdx.x)
        while partial < partials:
            here = int64(partial) * int64(1 + centred) * int64(D)
            for k in range(both):
                sums[k] = real(0)
            row = partial
            while row < rows:
                base = int64(row) * int64(D)
                found = load4(statistics, int64(row) * 4)
                means, side = find_means(
                    dy, x, gamma, base, xhat, upstream, thread, D, found, shared, side
                )
                for j in range(chunks(D)):
                    chunk, place = thread + int32(j * threads), j * at
                    column = chunk * int32(W)
                    if column < D:
                        read(x, dy, base + column, xhat, upstream, found)
                        if added:
                            fetch(dh, base + column, other, 0)
                        if V == 0 and row > partial:
                            fetch(partial_sums, here + column, sums, 0)
                            if centred:
                                fetch(partial_sums, here + int64(D) + column, sums, W)
                        if V == 0 and row == partial:
                            for k in range(both):
                                sums[k] = real(0)
                        for k in range(W):
                            sums[place + k] += upstream[k] * xhat[k]
                            if centred:
                                sums[kept + place + k] += upstream[k]
                        if V == 0:
                            put(partial_sums, here + column, sums, 0, real)
                            if centred:
                                put(partial_sums, here + int64(D) + column, sums, W, real)
                        write_dx(
                            gamma, dx, base, chunk, D, True, xhat, upstream, other, found, means
                        )
                row += partials
            write_sums(partial_sums, partial, thread, D, sums, shared)
            partial += int32(cuda.gridDim.x)

    return kernel


def add_partials(columns, lanes, real=float32, storage=float32):
    """Make the kernel that adds rows of partial sums, in a fixed order: a chunk of them to one row.

    A block does ``columns`` columns of a chunk; 8 of float32 are a sector of 32 bytes. Each column
    has ``lanes`` threads, and each of these at most :data:`~lnlib.gpu.plans.TERMS` terms: the error
    grows with their number. The sums of several chunks are added by another launch.
    """
    threads = columns * lanes

    def kernel(partial_sums, sums, partials, width):
        shared = cuda.shared.array(threads, real)
        thread = int32(cuda.threadIdx.x)
        blocks = (width + int32(columns - 1)) // int32(columns)  # of a chunk
        chunk = int32(cuda.blockIdx.x) // blocks
        first = (int32(cuda.blockIdx.x) - chunk * blocks) * int32(columns)
        column = first + thread % int32(columns)
        p = chunk * int32(TERMS * lanes) + thread // int32(columns)
        i = int64(p) * int64(width) + int64(column)
        total = real(0)
        end = min(partials, (chunk + int32(1)) * int32(TERMS * lanes))
        while p < end:
            for _ in range(8):  # unrolled: eight loads are on their way at the same time
                if p < partials and column < width:
                    total += partial_sums[uint64(i)]
                p += int32(lanes)
                i += int64(lanes) * int64(width)
        shared[thread] = total
        half = int32(threads // 2)
        while half >= int32(columns):
            cuda.syncthreads()
            if thread < half:
                shared[thread] += shared[uint64(thread + half)]
            half //= int32(2)
        if thread < int32(columns) and column < width:
            i = int64(chunk) * int64(width) + int64(column)
            sums[uint64(i)] = storage(shared[thread])

    return kernel
