"""The two kernels that one can watch in the book, and their recordings (:data:`PLAYERS`)."""

import inspect
import math

import numpy as np

import simt
from normcheck.mistakes.change import changed, executed
from simt.cuda_access import FULL, cuda, device, float32

from .player import Film, Player

# A block of row_of_16 is two warps of 8 lanes. The blocks that add up dgamma are a warp of 4 each.


@device
def block_sum(value, parts):
    for distance in (4, 2, 1):
        value += cuda.shfl_xor_sync(FULL, value, distance)
    if cuda.threadIdx.x % 8 == 0:
        parts[cuda.threadIdx.x // 8] = value
    cuda.syncthreads()  # first
    total = parts[0] + parts[1]
    cuda.syncthreads()  # second
    return total


def row_of_16(x, y):
    parts = cuda.shared.array(2, float32)
    t = cuda.threadIdx.x
    v = x[t]
    v -= block_sum(v, parts) / float32(16)
    var = block_sum(v * v, parts) / float32(16)
    y[t] = v / math.sqrt(var)


def atomics(dy, xhat, dgamma, N):
    c = cuda.threadIdx.x
    for row in range(cuda.blockIdx.x, N, 4):
        i = row * 4 + c
        term = dy[i] * xhat[i]
        cuda.atomic.add(dgamma, c, term)


def partial_sums(dy, xhat, parts, N):
    c = cuda.threadIdx.x
    total = float32(0)
    for row in range(cuda.blockIdx.x, N, 4):
        i = row * 4 + c
        total += dy[i] * xhat[i]
    parts[cuda.blockIdx.x * 4 + c] = total


def add_parts(parts, dgamma):
    c = cuda.threadIdx.x
    total = float32(0)
    for block in range(4):
        total += parts[block * 4 + c]
    dgamma[c] = total


def without(barrier):
    """:func:`row_of_16` with the source of both functions, and a line of it left out."""
    source = inspect.getsource(block_sum) + "\n\n" + inspect.getsource(row_of_16)
    changes = ((barrier, "pass"),) if barrier else ()
    return executed(changed(source, changes), "row_of_16", globals())["row_of_16"]


def row_sum():
    """A row of 16 numbers is normalised by a block of two warps: with both barriers, and without
    one of them.
    """
    films = []
    for name, barrier in (
        ("both barriers", None),
        ("without the first", "cuda.syncthreads()  # first"),
        ("without the second", "cuda.syncthreads()  # second"),
    ):
        film = Film(8)
        # Mean 5 and variance 4, so that all numbers are whole.
        deviations = (0, 2, -2, 0, 4, 0, 2, -2, 0, -4, 2, -2, 0, -2, 2, 0)
        x = np.array(deviations, np.float32) + 5
        film.launch(without(barrier), 1, 16, x, simt.uninitialised(16, np.float32))
        films.append(film.data(name))
    return Player(films, start=12)


def dgamma():
    """dgamma of 12 rows of 4 numbers in 4 blocks: added by atomics, and by partial sums."""
    rng = np.random.default_rng(14)
    dy, xhat = rng.integers(-3, 4, (2, 48)).astype(np.float32)
    film, films = Film(4), []
    film.launch(atomics, 4, 4, dy, xhat, np.zeros(4, np.float32), 12)
    films.append(film.data("atomic additions"))
    film = Film(4)
    parts, result = simt.uninitialised(16, np.float32), simt.uninitialised(4, np.float32)
    film.launch(partial_sums, 4, 4, dy, xhat, parts, 12)
    film.launch(add_parts, 1, 4, parts, result)
    films.append(film.data("partial sums"))
    return Player(films, start=1)


#: name -> a function that records it.
PLAYERS = {"row_sum": row_sum, "dgamma": dgamma}
