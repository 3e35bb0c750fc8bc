r"""Teaching kernels for the GPU: the same layer norm, written in several ways that ask memory differently.

Every kernel works on flat float32 arrays in which M rows of D numbers lie one after the other. A forward takes
``(x, gamma, beta, y, mean, rstd, M, D, eps)``, a backward ``(dy, x, mean, rstd, gamma, dx, ..., M, D)``. The formulas
are those of :mod:`lnlib.layernorm`, but with one rounded mean: nothing is recentred, and no row is done again.

A kernel that needs constants when it is compiled (the number T of threads in a block, say) is made by a function of
them. :mod:`lnlib.simt` interprets a kernel as it stands; :func:`compiled` hands it to Numba.

:data:`STEPS` is the ladder. A :class:`Step` runs its kernels, and predicts from the way they ask for memory what the
interpreter will count.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from . import contract, simt
from .cuda_access import FULL, cuda, device, float32, load4, store4

# Sums over threads. All threads that take part call the function, and all get the sum where nothing else is said.


@device
def warp_sum(value):
    """The sum over the 32 lanes of a warp. Lanes swap with a partner 16, 8, 4, 2, 1 away: a butterfly."""
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(FULL, value, distance)
    return value


@device
def block_sum(value, parts):
    """The sum over the threads of a block. ``parts``: shared memory, a number for each of up to 32 warps."""
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
    """The sum over the threads of a block, a power of two. ``tree``: shared memory, a number for each of them."""
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
    """For a lane of warp 0, its sum over the warps of a block. ``parts``: shared memory, a number for each thread."""
    t, total = cuda.threadIdx.x, float32(0)
    parts[t] = value
    cuda.syncthreads()
    if t < 32:
        for other in range(t, cuda.blockDim.x, 32):
            total += parts[other]
    cuda.syncthreads()
    return total


# Forward


def thread_per_row(x, gamma, beta, y, mean, rstd, M, D, eps):
    """A thread does a row. In every step of its loops the lanes of a warp ask for numbers that lie D apart."""
    row = cuda.grid(1)
    if row < M:
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
def block_per_row(T):
    """A block of T threads does a row: neighbouring threads take neighbouring numbers, and add up in a tree."""
    def kernel(x, gamma, beta, y, mean, rstd, M, D, eps):
        tree = cuda.shared.array(T, float32)
        row, t = cuda.blockIdx.x, cuda.threadIdx.x
        base, total, squares = row * D, float32(0), float32(0)
        for c in range(t, D, T):
            total += x[base + c]
        m = tree_sum(total, tree) / float32(D)
        for c in range(t, D, T):
            d = x[base + c] - m
            squares += d * d
        r = float32(1) / math.sqrt(tree_sum(squares, tree) / float32(D) + eps)
        for c in range(t, D, T):
            y[base + c] = (x[base + c] - m) * r * gamma[c] + beta[c]
        if t == 0:
            mean[row] = m
            rstd[row] = r
    return kernel


def warp_per_row(x, gamma, beta, y, mean, rstd, M, D, eps):
    """A warp does a row: sums need no shared memory and no barrier."""
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < M:
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
def row_access(T, V, W):
    """``read`` and ``write``, for a row of D numbers of which a thread keeps V chunks of W neighbours.

    W is 4, where 4 divides D, or 1. The T threads t of a block take turns: chunk j of thread t begins at column
    (j T + t) W. Past the end of the row, zeros are kept. The loops have constant bounds, so the compiler can unroll
    them, and can give each number a register.
    """
    @device
    def read(array, start, t, D, kept):
        for j in range(V):
            c = (j * T + t) * W
            if c >= D:
                for k in range(j * W, j * W + W):
                    kept[k] = float32(0)
            elif W == 4:
                kept[4 * j], kept[4 * j + 1], kept[4 * j + 2], kept[4 * j + 3] = load4(array, start + c)
            else:
                kept[j] = array[start + c]

    @device
    def write(array, start, t, D, kept):
        for j in range(V):
            c = (j * T + t) * W
            if c < D:
                if W == 4:
                    store4(array, start + c, kept[4 * j], kept[4 * j + 1], kept[4 * j + 2], kept[4 * j + 3])
                else:
                    array[start + c] = kept[j]

    return read, write


@functools.cache
def row_in_registers(T, V, W):
    """A block does a row of up to T V W numbers, reads it once, W numbers in an access, and keeps it in registers."""
    N, (read, write) = V * W, row_access(T, V, W)

    def kernel(x, gamma, beta, y, mean, rstd, M, D, eps):
        parts = cuda.shared.array(32, float32)
        kept = cuda.local.array(N, float32)
        scale = cuda.local.array(N, float32)
        shift = cuda.local.array(N, float32)
        row, t = cuda.blockIdx.x, cuda.threadIdx.x
        total, squares = float32(0), float32(0)
        read(x, row * D, t, D, kept)
        for k in range(N):
            total += kept[k]
        m = block_sum(total, parts) / float32(D)
        for k in range(N):
            kept[k] -= m
            if (k // W * T + t) * W < D:  # none from past the end of the row
                squares += kept[k] * kept[k]
        variance = block_sum(squares, parts) / float32(D)
        r = float32(1) / math.sqrt(variance + eps)
        read(gamma, 0, t, D, scale)
        read(beta, 0, t, D, shift)
        for k in range(N):
            kept[k] = kept[k] * r * scale[k] + shift[k]
        write(y, row * D, t, D, kept)
        if t == 0:
            mean[row] = m
            rstd[row] = r
    return kernel


# Backward


def dx_per_warp(dy, x, mean, rstd, gamma, dx, M, D):
    """The first of two kernels: a warp does the dx of a row."""
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < M:
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
def column_sums(T):
    """The second of two kernels: a block adds up 32 columns. A warp reads 32 neighbours of a row, then of another."""
    def kernel(dy, x, mean, rstd, dgamma, dbeta, M, D):
        parts = cuda.shared.array(T, float32)
        warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        c = cuda.blockIdx.x * 32 + lane
        gamma_sum, beta_sum = float32(0), float32(0)
        if c < D:
            for row in range(warp, M, T // 32):
                d = dy[row * D + c]
                gamma_sum += d * ((x[row * D + c] - mean[row]) * rstd[row])
                beta_sum += d
        gamma_sum = sum_over_warps(gamma_sum, parts)
        beta_sum = sum_over_warps(beta_sum, parts)
        if warp == 0 and c < D:
            dgamma[c] = gamma_sum
            dbeta[c] = beta_sum
    return kernel


def fused_atomics(dy, x, mean, rstd, gamma, dx, dgamma, dbeta, M, D):
    """A block does a row, and adds what the row has for dgamma and dbeta to theirs, in whatever order blocks come."""
    parts = cuda.shared.array(32, float32)
    row, t, T = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    base, m, r = row * D, mean[row], rstd[row]
    g_sum, gx_sum = float32(0), float32(0)
    for c in range(t, D, T):
        d, xhat = dy[base + c], (x[base + c] - m) * r
        cuda.atomic.add(dgamma, c, d * xhat)
        cuda.atomic.add(dbeta, c, d)
        g_sum += gamma[c] * d
        gx_sum += gamma[c] * d * xhat
    a = block_sum(g_sum, parts) / float32(D)
    b = block_sum(gx_sum, parts) / float32(D)
    for c in range(t, D, T):
        xhat = (x[base + c] - m) * r
        dx[base + c] = r * (gamma[c] * dy[base + c] - (a + xhat * b))


@functools.cache
def fused_partials(T, V, W):
    """A block does row after row, of up to T V W numbers; its parts of dgamma and dbeta stay in registers."""
    N, (read, write) = V * W, row_access(T, V, W)

    def kernel(dy, x, mean, rstd, gamma, dx, dgamma_parts, dbeta_parts, M, D):
        parts = cuda.shared.array(32, float32)
        xhat = cuda.local.array(N, float32)
        g = cuda.local.array(N, float32)
        scale = cuda.local.array(N, float32)
        dgamma = cuda.local.array(N, float32)
        dbeta = cuda.local.array(N, float32)
        block, t = cuda.blockIdx.x, cuda.threadIdx.x
        read(gamma, 0, t, D, scale)
        for k in range(N):
            dgamma[k] = dbeta[k] = float32(0)
        for row in range(block, M, cuda.gridDim.x):
            read(dy, row * D, t, D, g)  # dy for now
            read(x, row * D, t, D, xhat)
            m, r = mean[row], rstd[row]
            g_sum, gx_sum = float32(0), float32(0)
            for k in range(N):  # past the end of the row, dy is zero
                xhat[k] = (xhat[k] - m) * r
                dgamma[k] += g[k] * xhat[k]
                dbeta[k] += g[k]
                g[k] *= scale[k]
                g_sum += g[k]
                gx_sum += g[k] * xhat[k]
            a = block_sum(g_sum, parts) / float32(D)
            b = block_sum(gx_sum, parts) / float32(D)
            for k in range(N):
                g[k] = r * (g[k] - (a + xhat[k] * b))
            write(dx, row * D, t, D, g)
        write(dgamma_parts, block * D, t, D, dgamma)
        write(dbeta_parts, block * D, t, D, dbeta)
    return kernel


def fused_partials_long(dy, x, mean, rstd, gamma, dx, dgamma_parts, dbeta_parts, M, D):
    """As :func:`fused_partials`, for rows of any length: reads a row twice, and its parts stay in global memory."""
    parts = cuda.shared.array(32, float32)
    t, T, mine = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * D
    for c in range(t, D, T):
        dgamma_parts[mine + c] = dbeta_parts[mine + c] = float32(0)
    for row in range(cuda.blockIdx.x, M, cuda.gridDim.x):
        base, m, r, g_sum, gx_sum = row * D, mean[row], rstd[row], float32(0), float32(0)
        for c in range(t, D, T):
            g = gamma[c] * dy[base + c]
            g_sum += g
            gx_sum += g * ((x[base + c] - m) * r)
        a, b = block_sum(g_sum, parts) / float32(D), block_sum(gx_sum, parts) / float32(D)
        for c in range(t, D, T):
            d, xhat = dy[base + c], (x[base + c] - m) * r
            dx[base + c] = r * (gamma[c] * d - (a + xhat * b))
            dgamma_parts[mine + c] += d * xhat
            dbeta_parts[mine + c] += d


@functools.cache
def add_partials(T):
    """The second stage: a block adds up 32 columns of the G rows of parts, as :func:`column_sums` does."""
    def kernel(dgamma_parts, dbeta_parts, dgamma, dbeta, G, D):
        parts = cuda.shared.array(T, float32)
        warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        c = cuda.blockIdx.x * 32 + lane
        gamma_sum, beta_sum = float32(0), float32(0)
        if c < D:
            for part in range(warp, G, T // 32):
                gamma_sum += dgamma_parts[part * D + c]
                beta_sum += dbeta_parts[part * D + c]
        gamma_sum = sum_over_warps(gamma_sum, parts)
        beta_sum = sum_over_warps(beta_sum, parts)
        if warp == 0 and c < D:
            dgamma[c] = gamma_sum
            dbeta[c] = beta_sum
    return kernel


# Which kernels a step launches. The predictions are made here, from the way a kernel asks for memory.

SECTOR = 32  #: Bytes that memory delivers at once.

#: The arrays that a pass is given, and those it makes.
INPUTS = {"forward": ("x", "gamma", "beta"), "backward": ("dy", "x", "mean", "rstd", "gamma")}
OUTPUTS = {"forward": ("y", "mean", "rstd"), "backward": ("dx", "dgamma", "dbeta")}


class Launch(NamedTuple):
    """One launch of a kernel. Its arguments are ``reads + writes + updates + atomics`` and then ``numbers``.

    kernel : a plain function.
    grid, block : numbers of blocks, and of threads in a block.
    reads, writes : names of arrays every element of which is loaded, or stored, at least once.
    updates : names of arrays every element of which is both stored and loaded by the kernel.
    atomics : names of arrays to every element of which the kernel adds; zero before the launch.
    numbers : names of the scalar arguments.
    sectors_per_request : of x, as predicted; None where the kernel does not read x.
    readings : how many times each number of x is loaded.
    """

    kernel: Callable
    grid: int
    block: int
    reads: tuple
    writes: tuple
    updates: tuple = ()
    atomics: tuple = ()
    numbers: tuple = ("M", "D")
    sectors_per_request: float | None = None
    readings: int = 0

    @property
    def arrays(self):
        """The names of the arrays, in the order of the arguments."""
        return self.reads + self.writes + self.updates + self.atomics


def side_by_side(D, W=1):
    """Sectors per request of x where neighbouring lanes load neighbours, W at a time.

    A row is asked for in ceil(D / 32 W) requests, and 8 numbers fill a sector: D / 8 sectors, if every row
    began with a sector. But rows begin at each multiple of gcd(D, 8) in a sector, at one as often as at another,
    and n numbers then touch (n + 8 - gcd) / 8 sectors on average.
    """
    requests = -(-D // (32 * W))
    return D / 8 / requests + 1 - math.gcd(D, 8) / 8


def a_row_apart(M, D):
    """Sectors per request of x where neighbouring lanes load numbers that lie a row apart: a sector for each lane.

    Rows of fewer than 8 numbers share sectors.
    """
    lanes = M / -(-M // 32)  # on average: the last warp may have fewer than 32 rows
    return lanes * min(D, 8) / 8


def _power(n, least=32, most=1024):
    """The smallest power of two that is at least n, within limits."""
    return min(most, max(least, 1 << max(n - 1, 0).bit_length()))


def _forward(kernel, grid, block, sectors_per_request, readings):
    return [Launch(kernel, grid, block, INPUTS["forward"], OUTPUTS["forward"], numbers=("M", "D", "eps"),
                   sectors_per_request=sectors_per_request, readings=readings)]


def _backward(kernel, grid, block, sectors_per_request, readings, **arrays):
    return Launch(kernel, grid, block, INPUTS["backward"], sectors_per_request=sectors_per_request, readings=readings,
                  **arrays)


def _plan_thread_per_row(M, D, G):
    T = _power(M, most=128)
    return _forward(thread_per_row, -(-M // T), T, a_row_apart(M, D), 3)


def _plan_block_per_row(M, D, G):
    T = _power(D, most=256)
    return _forward(block_per_row(T), M, T, side_by_side(D), 3)


def _plan_warp_per_row(M, D, G):
    T = 32 * min(M, 8)
    return _forward(warp_per_row, -(-32 * M // T), T, side_by_side(D), 3)


def _chunks(D, most_threads):
    """T, V and W for a row in registers: W = 4 where 4 divides D, V = 4 at most unless there are too few threads."""
    W = 4 if D % 4 == 0 else 1
    T = _power(-(-D // (4 * W)), most=most_threads)
    return T, -(-D // (T * W)), W


def _plan_row_in_registers(M, D, G):
    T, V, W = _chunks(D, 512)
    if V * W > 16:
        raise ValueError(f"D: found {D}, expected at most {512 * 16}: 512 threads keep 16 numbers each")
    return _forward(row_in_registers(T, V, W), M, T, side_by_side(D, W), 1)


def _plan_two_kernels(M, D, G):
    T, warps = 32 * min(M, 8), min(M, 32)
    return [_backward(dx_per_warp, -(-32 * M // T), T, side_by_side(D), 2, writes=("dx",)),
            Launch(column_sums(32 * warps), -(-D // 32), 32 * warps, ("dy", "x", "mean", "rstd"), ("dgamma", "dbeta"),
                   sectors_per_request=side_by_side(D), readings=1)]


def _plan_fused_atomics(M, D, G):
    return [_backward(fused_atomics, M, _power(D, most=256), side_by_side(D), 2,
                      writes=("dx",), atomics=("dgamma", "dbeta"))]


def _plan_fused_partials(M, D, G):
    parts, G = ("dgamma_parts", "dbeta_parts"), min(G, M)
    T, V, W = _chunks(D, 256)
    if V * W <= 16:
        first = _backward(fused_partials(T, V, W), G, T, side_by_side(D, W), 1, writes=("dx", *parts))
    else:
        first = _backward(fused_partials_long, G, T, side_by_side(D), 2, writes=("dx",), updates=parts)
    warps = min(G, 32)
    return [first, Launch(add_partials(32 * warps), -(-D // 32), 32 * warps, parts, ("dgamma", "dbeta"),
                          numbers=("G", "D"))]


# Steps


class Prediction(NamedTuple):
    """What a step is expected to ask of memory. Zeros that atomics begin with are written before, and not counted.

    traffic : for each launch, {(array, "load" or "store"): bytes}: every sector once, as if caches were perfect.
    sectors_per_request : sectors that a warp touches with one load of x, on average.
    readings : how many times each number of x is loaded.
    """

    traffic: tuple
    sectors_per_request: float
    readings: int

    @property
    def bytes(self):
        """The bytes that must come from or go to memory, all launches together."""
        return sum(sum(launch.values()) for launch in self.traffic)


class Step(NamedTuple):
    """A step of the ladder.

    name : key in :data:`STEPS`.
    direction : "forward" or "backward".
    plan : function of (M, D, G) that returns the launches; G is the number of blocks of a persistent grid.
    """

    name: str
    direction: str
    plan: Callable

    def run(self, *inputs, eps=1e-5, G=4, log=False, gpu=False):
        """Run the kernels, interpreted or on a GPU.

        Parameters
        ----------
        inputs : float32 arrays
            Forward: x (M, D), gamma and beta (D,). Backward: dy and x (M, D), mean and rstd (M, 1), gamma (D,).
        eps : float
            Of a forward.
        G : int
            Blocks of a persistent grid; M is enough where there are fewer rows.
        log : bool
            Record every access (see :func:`lnlib.simt.launch`).
        gpu : bool
            Compile the kernels and run them on the GPU.

        Returns
        -------
        outputs : dict of arrays by name
            Forward: y, mean, rstd. Backward: dx, dgamma, dbeta.
        runs : list
            What the interpreter returned, one for each launch; empty from the GPU.

        Raises
        ------
        TypeError, ValueError
            Naming the argument, what was found and what was expected.
        """
        names = INPUTS[self.direction]
        if len(inputs) != len(names):
            raise TypeError(f"inputs: found {len(inputs)} arrays, expected {len(names)}: {', '.join(names)}")
        M, D = _check_rows(inputs[names.index("x")])
        eps, shapes = contract.check_eps(eps), _shapes(M, D, G)
        arrays = {name: _flat(name, value, shapes[name]) for name, value in zip(names, inputs)}
        plan, runs = self.plan(M, D, G), []
        numbers = {"M": M, "D": D, "G": shapes["dgamma_parts"][0], "eps": np.float32(eps)}
        for launch in plan:
            for name in launch.writes + launch.updates:
                arrays[name] = simt.uninitialised(math.prod(shapes[name]), np.float32)
            for name in launch.atomics:
                arrays[name] = np.zeros(math.prod(shapes[name]), np.float32)
        if gpu:
            arrays = {name: cuda.to_device(array) for name, array in arrays.items()}
        for launch in plan:
            arguments = [arrays[name] for name in launch.arrays] + [numbers[name] for name in launch.numbers]
            if gpu:
                compiled(launch.kernel)[launch.grid, launch.block](*arguments)
            else:
                runs.append(simt.launch(launch.kernel, launch.grid, launch.block, *arguments, log=log))
        results = {name: arrays[name].copy_to_host() if gpu else arrays[name]
                   for name in OUTPUTS[self.direction]}
        return {name: array.reshape(shapes[name]) for name, array in results.items()}, runs

    def predict(self, M, D, G=4):
        """What the step asks of memory for M rows of D numbers: a :class:`Prediction`, made without running it."""
        size = {name: math.prod(shape) for name, shape in _shapes(M, D, G).items()}
        plan, traffic = self.plan(M, D, G), []
        for launch in plan:
            both = launch.updates + launch.atomics
            loads, stores = launch.reads + both, launch.writes + both
            traffic.append({(name, kind): -(-4 * size[name] // SECTOR) * SECTOR
                            for kind, names in (("load", loads), ("store", stores)) for name in names})
        return Prediction(tuple(traffic), plan[0].sectors_per_request, sum(launch.readings for launch in plan))


def _shapes(M, D, G):
    """The shape of every array by name."""
    for name, count in {"M": M, "D": D, "G": G}.items():
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)):
            raise TypeError(f"{name}: found {type(count).__name__}, expected an integer")
        if count < 1:
            raise ValueError(f"{name}: found {count}, expected at least 1")
    return {**dict.fromkeys(("x", "y", "dy", "dx"), (M, D)), **dict.fromkeys(("mean", "rstd"), (M, 1)),
            **dict.fromkeys(("gamma", "beta", "dgamma", "dbeta"), (D,)),
            **dict.fromkeys(("dgamma_parts", "dbeta_parts"), (min(G, M), D))}


def _check_rows(x):
    """(M, D), or an error that names x."""
    shape = contract.check_x(x).shape
    if len(shape) != 2 or shape[0] == 0:
        raise ValueError(f"x: found shape {shape}, expected (M, D) with at least one row")
    return shape


def _flat(name, value, shape):
    """A copy of ``value`` as a flat float32 array, or an error that names it. A view might be out of alignment."""
    array = contract.as_array(name, value, ("float32",))
    if array.shape != shape:
        raise ValueError(f"{name}: found shape {array.shape}, expected {shape}")
    return np.array(array, order="C").reshape(-1)


#: The ladder, by name.
STEPS = {name: Step(name, direction, plan) for name, direction, plan in (
    ("thread-per-row", "forward", _plan_thread_per_row),
    ("block-per-row", "forward", _plan_block_per_row),
    ("warp-per-row", "forward", _plan_warp_per_row),
    ("row-in-registers", "forward", _plan_row_in_registers),
    ("two-kernels", "backward", _plan_two_kernels),
    ("fused-atomics", "backward", _plan_fused_atomics),
    ("fused-partials", "backward", _plan_fused_partials),
)}


@functools.cache
def compiled(kernel):
    """A kernel handed to Numba, which compiles it when ``compiled(kernel)[grid, block](*arguments)`` runs it."""
    return cuda.jit(kernel)


def _check(name, arrays, numbers, threads, factory, *parameters, **expectations):
    types = ", ".join(["float32[::1]"] * arrays + [numbers])
    return f"ladder {name}", factory, parameters, f"void({types})", {"threads": threads, **expectations}


#: What a check of the compiled code needs to know of each (name, factory, its parameters, signature, expectations).
KERNELS_TO_CHECK = [
    _check("thread_per_row", 6, "int64, int64, float32", 128, lambda: thread_per_row, none=("SHFL", "BAR")),
    _check("block_per_row", 6, "int64, int64, float32", 256, block_per_row, 256, none=("SHFL",)),
    _check("warp_per_row", 6, "int64, int64, float32", 256, lambda: warp_per_row, none=("BAR",)),
    _check("row_in_registers", 6, "int64, int64, float32", 256, row_in_registers, 256, 4, 4,
           at_least={"LDG.E.128": 12, "STG.E.128": 4}),
    _check("row_in_registers narrow", 6, "int64, int64, float32", 512, row_in_registers, 512, 16, 1),
    _check("dx_per_warp", 6, "int64, int64", 256, lambda: dx_per_warp, none=("BAR",)),
    _check("column_sums", 6, "int64, int64", 1024, column_sums, 1024),
    _check("fused_atomics", 8, "int64, int64", 256, lambda: fused_atomics, at_least={"RED": 2}),
    _check("fused_partials", 8, "int64, int64", 256, fused_partials, 256, 4, 4,
           at_least={"LDG.E.128": 12, "STG.E.128": 12}),
    _check("fused_partials narrow", 8, "int64, int64", 256, fused_partials, 256, 16, 1),
    _check("fused_partials_long", 8, "int64, int64", 256, lambda: fused_partials_long),
    _check("add_partials", 4, "int64, int64", 1024, add_partials, 1024),
]
