r"""Teaching kernels for the GPU: the same layer norm in ways that ask memory differently.

Every kernel works on flat float32 arrays in which N rows of D numbers lie one after the other. A
forward takes ``(x, gamma, beta, y, mean, rstd, N, D, eps)``, a backward ``(dy, x, mean, rstd,
gamma, dx, ..., N, D)``. The formulas are those of :mod:`lnlib.layernorm`, but with one rounded
mean: nothing is recentred, and no row is done again.

A kernel that needs constants when it is compiled (the number of threads in a block, say) is made by
a function of them. :mod:`simt` interprets a kernel as it stands. :mod:`lnlib.gpu.steps` says which
kernels make a step of the ladder, with how many threads, and what they ask of memory.

Arguments are not checked: kernels and what they call run on the device, and :mod:`lnlib.gpu.steps`
makes them with constants of its plans.
"""

import functools
import math

from simt.cuda_access import FULL, cuda, device, float32, load4, store4

# Sums over threads. All of them call the function, and get the sum where nothing else is said.


@device
def warp_sum(value):
    """The sum over a warp: lanes swap with a partner 16, 8, 4, 2, 1 away, a butterfly."""
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(FULL, value, distance)
    return value


@device
def block_sum(value, parts):
    """The sum over a block's threads. ``parts``: shared memory, a number for each of 32 warps."""
    value = warp_sum(value)
    if cuda.threadIdx.x % 32 == 0:
        parts[cuda.threadIdx.x // 32] = value
    cuda.syncthreads()  # nobody reads a part before it is there
    total = float32(0)
    for warp in range(cuda.blockDim.x // 32):
        total += parts[warp]
    cuda.syncthreads()  # the next sum may overwrite these
    return total


@device
def tree_sum(value, tree):
    """The sum over a block of 2**k threads. ``tree``: shared memory, a number for each of them."""
    t, half = cuda.threadIdx.x, cuda.blockDim.x // 2
    tree[t] = value
    cuda.syncthreads()
    while half > 0:
        if t < half:
            tree[t] += tree[t + half]
        cuda.syncthreads()  # a level is complete before the next one begins
        half //= 2
    total = tree[0]
    cuda.syncthreads()  # the next tree may overwrite this one
    return total


@device
def sum_over_warps(value, parts):
    """For a lane of warp 0, its sum over the warps. ``parts``: shared, a number for each thread."""
    t, total = cuda.threadIdx.x, float32(0)
    parts[t] = value
    cuda.syncthreads()
    if t < 32:
        for other in range(t, cuda.blockDim.x, 32):
            total += parts[other]
    cuda.syncthreads()
    return total


# Forward


def thread_per_row(x, gamma, beta, y, mean, rstd, N, D, eps):
    """A thread does a row: at each step the lanes of a warp ask for numbers that lie D apart."""
    row = cuda.grid(1)
    if row < N:
        base, total, squares = row * D, float32(0), float32(0)
        for c in range(D):
            total += x[base + c]
        m = total / float32(D)
        for c in range(D):
            d = x[base + c] - m
            squares += d * d
        r = float32(1) / math.sqrt(squares / float32(D) + eps)
        for c in range(D):
            y[base + c] = (x[base + c] - m) * r * gamma[c] + beta[c]
        mean[row] = m
        rstd[row] = r


@functools.cache
def block_per_row(threads):
    """A block does a row: neighbouring threads take neighbouring numbers, and add up in a tree."""

    def kernel(x, gamma, beta, y, mean, rstd, N, D, eps):
        tree = cuda.shared.array(threads, float32)
        row, t = cuda.blockIdx.x, cuda.threadIdx.x
        base, total, squares = row * D, float32(0), float32(0)
        for c in range(t, D, threads):
            total += x[base + c]
        m = tree_sum(total, tree) / float32(D)
        for c in range(t, D, threads):
            d = x[base + c] - m
            squares += d * d
        r = float32(1) / math.sqrt(tree_sum(squares, tree) / float32(D) + eps)
        for c in range(t, D, threads):
            y[base + c] = (x[base + c] - m) * r * gamma[c] + beta[c]
        if t == 0:
            mean[row] = m
            rstd[row] = r

    return kernel


def warp_per_row(x, gamma, beta, y, mean, rstd, N, D, eps):
    """A warp does a row: sums need no shared memory and no barrier."""
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < N:
        base, total, squares = row * D, float32(0), float32(0)
        for c in range(lane, D, 32):
            total += x[base + c]
        m = warp_sum(total) / float32(D)
        for c in range(lane, D, 32):
            d = x[base + c] - m
            squares += d * d
        r = float32(1) / math.sqrt(warp_sum(squares) / float32(D) + eps)
        for c in range(lane, D, 32):
            y[base + c] = (x[base + c] - m) * r * gamma[c] + beta[c]
        if lane == 0:
            mean[row] = m
            rstd[row] = r


@functools.cache
def row_access(threads, V, W):
    """``read`` and ``write``, for a row of which a thread keeps V chunks of W neighbours.

    W is 4, where 4 divides D, or 1. The threads t of a block take turns: chunk j of thread t begins
    at column (j * threads + t) * W. Past the end of the row, zeros are kept. The loops have
    constant bounds, so the compiler can unroll them, and can give each number a register.
    """

    @device
    def read(array, start, t, D, kept):
        for j in range(V):
            c = (j * threads + t) * W
            if c >= D:
                for k in range(j * W, j * W + W):
                    kept[k] = float32(0)
            elif W == 4:
                k = 4 * j
                kept[k], kept[k + 1], kept[k + 2], kept[k + 3] = load4(array, start + c)
            else:
                kept[j] = array[start + c]

    @device
    def write(array, start, t, D, kept):
        for j in range(V):
            c = (j * threads + t) * W
            if c < D:
                if W == 4:
                    k = 4 * j
                    store4(array, start + c, kept[k], kept[k + 1], kept[k + 2], kept[k + 3])
                else:
                    array[start + c] = kept[j]

    return read, write


@functools.cache
def row_in_registers(threads, V, W):
    """A block does a row of up to threads * V * W numbers, reads it once and keeps it."""
    size, (read, write) = V * W, row_access(threads, V, W)

    def kernel(x, gamma, beta, y, mean, rstd, N, D, eps):
        parts = cuda.shared.array(32, float32)
        kept = cuda.local.array(size, float32)
        gammas = cuda.local.array(size, float32)
        betas = cuda.local.array(size, float32)
        row, t = cuda.blockIdx.x, cuda.threadIdx.x
        total, squares = float32(0), float32(0)
        read(x, row * D, t, D, kept)
        for k in range(size):
            total += kept[k]
        m = block_sum(total, parts) / float32(D)
        for k in range(size):
            kept[k] -= m
            if (k // W * threads + t) * W < D:  # none from past the end of the row
                squares += kept[k] * kept[k]
        variance = block_sum(squares, parts) / float32(D)
        r = float32(1) / math.sqrt(variance + eps)
        read(gamma, 0, t, D, gammas)
        read(beta, 0, t, D, betas)
        for k in range(size):
            kept[k] = kept[k] * r * gammas[k] + betas[k]
        write(y, row * D, t, D, kept)
        if t == 0:
            mean[row] = m
            rstd[row] = r

    return kernel


# Backward


def dx_per_warp(dy, x, mean, rstd, gamma, dx, N, D):
    """The first of two kernels: a warp does the dx of a row."""
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < N:
        base, m, r, g_sum, gx_sum = row * D, mean[row], rstd[row], float32(0), float32(0)
        for c in range(lane, D, 32):
            g = gamma[c] * dy[base + c]
            g_sum += g
            gx_sum += g * ((x[base + c] - m) * r)
        a, b = warp_sum(g_sum) / float32(D), warp_sum(gx_sum) / float32(D)
        for c in range(lane, D, 32):
            xhat = (x[base + c] - m) * r
            dx[base + c] = r * (gamma[c] * dy[base + c] - (a + xhat * b))


@functools.cache
def column_sums(threads):
    """The second of two kernels: a block adds up 32 columns, a warp a row of them at a time."""

    def kernel(dy, x, mean, rstd, dgamma, dbeta, N, D):
        parts = cuda.shared.array(threads, float32)
        warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        c = cuda.blockIdx.x * 32 + lane
        gamma_sum, beta_sum = float32(0), float32(0)
        if c < D:
            for row in range(warp, N, threads // 32):
                d = dy[row * D + c]
                gamma_sum += d * ((x[row * D + c] - mean[row]) * rstd[row])
                beta_sum += d
        gamma_sum = sum_over_warps(gamma_sum, parts)
        beta_sum = sum_over_warps(beta_sum, parts)
        if warp == 0 and c < D:
            dgamma[c] = gamma_sum
            dbeta[c] = beta_sum

    return kernel


def fused_atomics(dy, x, mean, rstd, gamma, dx, dgamma, dbeta, N, D):
    """A block does a row, and adds its part of dgamma and dbeta, in whatever order blocks come."""
    parts = cuda.shared.array(32, float32)
    row, t, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    base, m, r = row * D, mean[row], rstd[row]
    g_sum, gx_sum = float32(0), float32(0)
    for c in range(t, D, threads):
        d, xhat = dy[base + c], (x[base + c] - m) * r
        cuda.atomic.add(dgamma, c, d * xhat)
        cuda.atomic.add(dbeta, c, d)
        g_sum += gamma[c] * d
        gx_sum += gamma[c] * d * xhat
    a = block_sum(g_sum, parts) / float32(D)
    b = block_sum(gx_sum, parts) / float32(D)
    for c in range(t, D, threads):
        xhat = (x[base + c] - m) * r
        dx[base + c] = r * (gamma[c] * dy[base + c] - (a + xhat * b))


@functools.cache
def fused_partials(threads, V, W):
    """A block does rows of up to threads * V * W numbers; it keeps its sums of dgamma and dbeta."""
    size, (read, write) = V * W, row_access(threads, V, W)

    def kernel(dy, x, mean, rstd, gamma, dx, dgamma_parts, dbeta_parts, N, D):
        parts = cuda.shared.array(32, float32)
        xhat = cuda.local.array(size, float32)
        g = cuda.local.array(size, float32)
        gammas = cuda.local.array(size, float32)
        dgamma = cuda.local.array(size, float32)
        dbeta = cuda.local.array(size, float32)
        block, t = cuda.blockIdx.x, cuda.threadIdx.x
        read(gamma, 0, t, D, gammas)
        for k in range(size):
            dgamma[k] = dbeta[k] = float32(0)
        for row in range(block, N, cuda.gridDim.x):
            read(dy, row * D, t, D, g)  # dy for now
            read(x, row * D, t, D, xhat)
            m, r = mean[row], rstd[row]
            g_sum, gx_sum = float32(0), float32(0)
            for k in range(size):  # past the end of the row, dy is zero
                xhat[k] = (xhat[k] - m) * r
                dgamma[k] += g[k] * xhat[k]
                dbeta[k] += g[k]
                g[k] *= gammas[k]
                g_sum += g[k]
                gx_sum += g[k] * xhat[k]
            a = block_sum(g_sum, parts) / float32(D)
            b = block_sum(gx_sum, parts) / float32(D)
            for k in range(size):
                g[k] = r * (g[k] - (a + xhat[k] * b))
            write(dx, row * D, t, D, g)
        write(dgamma_parts, block * D, t, D, dgamma)
        write(dbeta_parts, block * D, t, D, dbeta)

    return kernel


def fused_partials_long(dy, x, mean, rstd, gamma, dx, dgamma_parts, dbeta_parts, N, D):
    """As :func:`fused_partials`, for any D: reads a row twice; its parts are in global memory."""
    parts = cuda.shared.array(32, float32)
    t, threads, mine = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * D
    for c in range(t, D, threads):
        dgamma_parts[mine + c] = dbeta_parts[mine + c] = float32(0)
    for row in range(cuda.blockIdx.x, N, cuda.gridDim.x):
        base, m, r, g_sum, gx_sum = row * D, mean[row], rstd[row], float32(0), float32(0)
        for c in range(t, D, threads):
            g = gamma[c] * dy[base + c]
            g_sum += g
            gx_sum += g * ((x[base + c] - m) * r)
        a, b = block_sum(g_sum, parts) / float32(D), block_sum(gx_sum, parts) / float32(D)
        for c in range(t, D, threads):
            d, xhat = dy[base + c], (x[base + c] - m) * r
            dx[base + c] = r * (gamma[c] * d - (a + xhat * b))
            dgamma_parts[mine + c] += d * xhat
            dbeta_parts[mine + c] += d


@functools.cache
def second_stage(threads):
    """The second of two stages: a block adds up 32 columns of the G rows of parts."""

    def kernel(dgamma_parts, dbeta_parts, dgamma, dbeta, G, D):
        parts = cuda.shared.array(threads, float32)
        warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        c = cuda.blockIdx.x * 32 + lane
        gamma_sum, beta_sum = float32(0), float32(0)
        if c < D:
            for part in range(warp, G, threads // 32):
                gamma_sum += dgamma_parts[part * D + c]
                beta_sum += dbeta_parts[part * D + c]
        gamma_sum = sum_over_warps(gamma_sum, parts)
        beta_sum = sum_over_warps(beta_sum, parts)
        if warp == 0 and c < D:
            dgamma[c] = gamma_sum
            dbeta[c] = beta_sum

    return kernel
