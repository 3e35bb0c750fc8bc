"""Exercises of chapter 11, layer norm forward on the GPU. Every kernel runs in :mod:`lnlib.simt`."""

import contextlib
import re

import numpy as np

from .. import gpu_kernels, simt
from ..cuda_access import FULL, cuda, float32
from ..gpu_ladder import warp_sum
from ..layernorm import layer_norm_forward
from . import Exercise, Mismatch, Mistake, expect, expect_close, expect_parts, note

U = 2.0**-24


@contextlib.contextmanager
def noted(*filled):
    """Note what a kernel filled in this block, or how it failed, for the comparison with known mistakes."""
    try:
        yield
    except simt.KernelError as error:
        # Without what is each author's own: lines, and the names of shared arrays.
        note(re.sub(r", line \d+|^\w+(?=\[)", "", str(error)))
        raise
    note(*filled)


def group_sum(value, width):
    """The sum over groups of `width` neighbouring lanes of a warp.

    Lanes 0 to width - 1 are a group, the next `width` are another,
    and so on.  value: a float32.  width: 1, 2, 4, 8, 16 or 32; halve
    it with //, because / of integers is float64.  All 32 lanes call
    the function; after log2(width) exchanges each gets its group's
    sum, and lanes of a group the same bits.  A kernel calls it, so
    it may call cuda.shfl_xor_sync(FULL, value, distance).  Returns a
    float32.
    """
    raise NotImplementedError("which distances stay in a group?")


def group_sum_solution(value, width):
    distance = width // 2
    while distance > 0:
        value += cuda.shfl_xor_sync(FULL, value, distance)
        distance //= 2
    return value


def _group_sums(candidate, numbers, width):
    """What the 32 lanes get, and the run."""
    def kernel(numbers, sums, width):
        lane = cuda.threadIdx.x
        value = candidate(numbers[lane], width)
        expect(value is not None, "your function returns None; is a return missing?")
        sums[lane] = value

    sums = simt.uninitialised(32, np.float32)
    try:
        with noted(sums):
            run = simt.launch(kernel, 1, 32, numbers, sums, width, log=True)
    except RecursionError:
        raise Mismatch("your function calls itself, which the interpreter cannot follow; use a loop") from None
    return sums, run


def _whole_warp(candidate, rng):
    numbers = rng.integers(-50, 50, 32).astype(np.float32)
    sums, _ = _group_sums(candidate, numbers, 32)
    wrong = np.flatnonzero(sums != numbers.sum())
    got = f"lane {wrong[0]} gets {sums[wrong[0]]:g}, the sum is {numbers.sum():g}" if wrong.size else ""
    alone = wrong.size and 0 not in wrong
    expect(not wrong.size, got + ("; lane 0 has it, but every lane must get it" if alone else ""))


def _parts_of_a_warp(candidate, rng):
    for width in (8, 16, 4, 2, 1):
        numbers = rng.integers(-50, 50, 32).astype(np.float32)
        sums, _ = _group_sums(candidate, numbers, width)
        right = np.repeat(numbers.reshape(-1, width).sum(axis=1), width)
        wrong = np.flatnonzero(sums != right)
        expect(not wrong.size, f"width {width}: lane {wrong[0] if wrong.size else 0} gets "
                               f"{sums[wrong[0] if wrong.size else 0]:g}, its group's sum is "
                               f"{right[wrong[0] if wrong.size else 0]:g}")


def _same_bits(candidate, rng):
    for width in (32, 8):
        numbers = rng.standard_normal(32).astype(np.float32)
        sums, run = _group_sums(candidate, numbers, width)
        groups = sums.reshape(-1, width)
        expect((groups == groups[:, :1]).all(), f"width {width}: sums of a group's lanes differ in the last bits")
        expect(len(run.events) <= 32 * np.log2(width),
               f"width {width}: found {len(run.events) // 32} exchanges, expected {np.log2(width):.0f}")


def slow_means(x, mean, M, D):
    """A warp does a row, and its lanes take neighbouring c. The grid has one thread for each row, or a few more."""
    warp, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    for row in range(warp, M, cuda.gridsize(1) // 32):
        total = float32(0)
        for c in range(lane, D, 32):
            total += x[c * M + row]
        total = warp_sum(total)
        if lane == 0:
            mean[row] = total / float32(D)


def fast_means(x, mean, M, D):
    """Means of M rows of D numbers that are stored by feature.

    A kernel.  x: flat; number c of row `row` is x[c * M + row].
    mean: flat (M,), to fill.  Both float32, as all arithmetic must
    be: float32(0), and float32(D).  The grid has blocks of 64 threads,
    in all one thread for each row or a few more.  A warp's load of x
    may touch 4 sectors at most where M is a multiple of 64, and each
    number is read once.
    """
    raise NotImplementedError("which numbers are neighbours here?")


def fast_means_solution(x, mean, M, D):
    row = cuda.grid(1)
    if row < M:
        total = float32(0)
        for c in range(D):
            total += x[c * M + row]
        mean[row] = total / float32(D)


def _means(candidate, rng, M, D):
    x = rng.standard_normal((D, M)).astype(np.float32)
    mean = simt.uninitialised(M, np.float32)
    with noted(mean):
        run = simt.launch(candidate, -(-M // 64), 64, x.reshape(-1), mean, M, D, log=True)
    missing = int(np.isnan(mean).sum())
    expect(not missing, f"M = {M}, D = {D}: {missing} of {M} means were not written")
    # A sum of D terms in any order errs by (D - 1) u times the sum of their sizes; a quotient, or a product with a
    # rounded 1 / D, adds up to 2 u; and one u is for the terms of second order.
    off = np.abs(mean - x.mean(axis=0, dtype=float))
    expect((off <= (D + 2) * U * np.abs(x).mean(axis=0, dtype=float)).all(),
           f"M = {M}, D = {D}: a mean is off by {off.max():.1e}")
    return run


def _right_means(candidate, rng):
    for M, D in ((64, 40), (64, 1), (7, 33), (130, 9)):
        _means(candidate, rng, M, D)


def _few_sectors(candidate, rng):
    M, D = 128, 64
    found = simt.sectors(_means(candidate, rng, M, D))["x", "load"]
    touched = found.sectors_per_request
    expect(touched <= 4, f"a load of x touches {touched:.1f} sectors, expected 4; do lanes ask for neighbours?")
    expect(found.bytes_used == 4 * M * D, f"{found.bytes_used // 4} numbers were read, expected {M * D}, each once")


def threads_for(D):
    """How many threads share a row of D numbers, as (T, V, W, R).

    D: a multiple of 4, up to 16384.  T: threads, a multiple of 32 up
    to 1024.  V: chunks that a thread keeps, each of W = 4 neighbours.
    T * V * W >= D, and V * W <= 16.  Of all such T and V take those
    with the fewest places beyond the row, T * V * W - D; where
    several are equal, the fewest threads.  R: rows in a block, 4 if
    T is 32, else 1.  gpu_kernels.forward(*threads_for(D)) is the
    kernel.
    """
    raise NotImplementedError("try every T; which V does it need?")


def threads_for_solution(D):
    plans = []
    for T in range(32, 1025, 32):
        V = -(-D // (T * 4))
        if V * 4 <= 16:
            plans.append((T * V * 4 - D, T, V))
    _, T, V = min(plans)
    return T, V, 4, 4 if T == 32 else 1


def _plan(candidate, D):
    """The candidate's plan, which covers a row."""
    plan = expect_parts(candidate(D), 4, "numbers T, V, W, R")
    expect(all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in plan),
           f"D = {D}: found {plan}, expected whole numbers")
    T, V, W, R = plan
    expect(T % 32 == 0 and 32 <= T <= 1024, f"D = {D}: T is {T}, expected a multiple of 32 up to 1024")
    expect(W == 4, f"D = {D}: W is {W}, expected 4 neighbours, which are read at once")
    expect(T * V * W >= D, f"D = {D}: {T} threads with {V} chunks of {W} keep {T * V * W} numbers, "
                           f"{D - T * V * W} too few")
    expect(V * W <= 16, f"D = {D}: a thread keeps {V * W} numbers, expected 16 at most")
    expect(R == (4 if T == 32 else 1), f"D = {D}: R is {R} for T = {T}")
    return T, V, W, R


def _plan_for_640(candidate, rng):
    T, V, W, _ = _plan(candidate, 640)
    idle = T * V * W - 640
    expect(not idle, f"{idle} of {T * V * W} places are beyond the row; there is a plan without any")


def _plans_for_others(candidate, rng):
    for D in (768, 64, 100, 4, 1000, 5120, 16384, *(4 * rng.integers(1, 4096, 20)).tolist()):
        found, right = _plan(candidate, D), threads_for_solution(D)
        idle = [T * V * W - D for T, V, W, _ in (found, right)]
        expect(idle[0] == idle[1], f"D = {D}: T, V, W = {found[:3]} has {idle[0]} places beyond the row, "
                                   f"expected {idle[1]}")
        expect(found == right, f"D = {D}: T is {found[0]}; {right[0]} threads can do it as well")


def _kernel_of_the_plan(candidate, rng):
    for D in (640, 768, 36):
        T, V, W, R = _plan(candidate, D)
        x, gamma, beta = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, D), D, D))
        y, statistics = simt.uninitialised(3 * D, np.float32), simt.uninitialised(12, np.float32)
        eps = np.float32([0.1, 0, 0])  # the others are for rows out of range
        simt.launch(gpu_kernels.forward(T, V, W, R), -(-3 // R), T * R, x.reshape(-1), gamma, beta, y, statistics,
                    3, D, *eps)
        # The row statistics err by at most (D + 4) u, and y by twice that, and a few roundings.
        expect_close(y.reshape(3, D), layer_norm_forward(x, gamma, beta, 0.1)[0], (2 * D + 20) * U, f"y for D = {D}")


def transpose(x, y):
    """Transpose 32 x 32 numbers through shared memory.

    A kernel, launched with one block of 32 threads.  x, y: flat,
    1024 float32; y[c * 32 + r] = x[r * 32 + c].  In each load of x
    and each store to y the warp's lanes take neighbours.  No access
    to shared memory has a conflict.  A shared array of n float32:
    tile = cuda.shared.array(n, float32), on a line of its own.
    """
    raise NotImplementedError("how many numbers apart are rows?")


def transpose_solution(x, y):
    tile = cuda.shared.array(32 * 33, float32)
    lane = cuda.threadIdx.x
    for r in range(32):
        tile[r * 33 + lane] = x[r * 32 + lane]
    cuda.syncthreads()
    for c in range(32):
        y[c * 32 + lane] = tile[lane * 33 + c]


def _transposed(candidate, rng):
    x = rng.standard_normal((32, 32)).astype(np.float32)
    y = simt.uninitialised(1024, np.float32)
    with noted(y):
        run = simt.launch(candidate, 1, 32, x.reshape(-1), y, log=True)
    missing = int(np.isnan(y).sum())
    expect(not missing, f"{missing} of 1024 numbers of y were not written")
    expect(not np.array_equal(y.reshape(32, 32), x), "y is x, and not its transpose")
    expect(np.array_equal(y.reshape(32, 32), x.T), "y is not the transpose of x")
    return run


def _neighbours(candidate, rng):
    for (array, kind), found in simt.sectors(_transposed(candidate, rng)).items():
        expect(found.sectors_per_request <= 4, f"a {kind} of {array} touches {found.sectors_per_request:g} sectors, "
                                               f"expected 4; go through shared memory")


def _no_conflicts(candidate, rng):
    for (line, kind), (requests, wavefronts) in simt.bank_conflicts(_transposed(candidate, rng)).items():
        note(kind, wavefronts / requests)
        expect(requests == wavefronts, f"the {kind} in line {line} takes {wavefronts / requests:g} turns a request, "
                                       f"expected 1; in which banks are the numbers of a column?")


EXERCISES = (
    Exercise("warp-sum", 11, "A sum over part of a warp", group_sum, group_sum_solution,
             (("a whole warp", _whole_warp),
              ("parts of a warp", _parts_of_a_warp),
              ("the same bits, in few exchanges", _same_bits)),
             mistakes=(Mistake("width // 2", "16",
                               "The first exchange is over half a warp, whatever the width. Does its partner "
                               "belong to the group?"),
                       Mistake("distance > 0", "distance > 1",
                               "One exchange is missing: neighbours never hear of each other."),
                       Mistake("cuda.shfl_xor_sync(FULL, value, distance)",
                               "cuda.shfl_down_sync(FULL, value, distance)",
                               "Each lane takes from a higher one only. Which lanes have the whole sum at the "
                               "end?"),
                       Mistake("value += cuda", "value = cuda",
                               "Each lane takes over its partner's number. What becomes of its own?"),
                       Mistake("while distance > 0:\n"
                               "        value += cuda.shfl_xor_sync(FULL, value, distance)\n"
                               "        distance //= 2",
                               "own = value\n"
                               "    for distance in range(1, width):\n"
                               "        value += cuda.shfl_xor_sync(FULL, own, distance)",
                               "Each lane asks all others, one by one, and adds in an order of its own. How many "
                               "exchanges are there?"),
                       Mistake("distance //= 2", "distance -= 1",
                               "Every distance is used in turn, so that some numbers are counted more than once."))),
    Exercise("coalesced", 11, "Stored by feature", fast_means, fast_means_solution,
             (("means", _right_means),
              ("four sectors, each number once", _few_sectors)),
             mistakes=(Mistake("x[c * M + row]", "x[row * D + c]",
                               "You read x as if a row's numbers were neighbours. How is it stored here?"),
                       Mistake("if row < M", "if True",
                               "Threads beyond the last row take part. How many threads has the grid, and how "
                               "many rows has x?"),
                       Mistake("cuda.grid(1)", "cuda.threadIdx.x",
                               "Every block does the same 64 rows. What tells its threads from those of another "
                               "block?"),
                       Mistake("float32(D)", "float32(M)",
                               "The sums are divided by the number of rows."),
                       Mistake("total = float32(0)\n        for c in range(D)",
                               "total = x[row]\n        for c in range(D)",
                               "The first number of each row is added twice: what does the sum begin with?"),
                       Mistake("row = cuda.grid(1)\n    if row < M",
                               "slow_means(x, mean, M, D)\n    row = M\n    if row < M",
                               "A warp does a row, as in slow_means: its lanes ask for numbers that lie M apart."))),
    Exercise("threads-for-768", 11, "Threads for 640 numbers", threads_for, threads_for_solution,
             (("640 numbers", _plan_for_640),
              ("other rows", _plans_for_others),
              ("the kernel of the plan", _kernel_of_the_plan)),
             mistakes=(Mistake("range(32, 1025, 32)", "(32, 64, 128, 256, 512, 1024)",
                               "Only powers of two are tried as T."),
                       Mistake("min(plans)", "min(plans, key=lambda plan: plan[1])",
                               "The fewest threads come first in your choice. What does the docstring count before "
                               "it counts threads?"),
                       Mistake("range(32, 1025, 32)", "range(32, 1024, 32)",
                               "The largest block is never tried. Where does range stop?"),
                       Mistake("V = -(-D // (T * 4))", "V = D // (T * 4)",
                               "The number of chunks is rounded down, and the end of the row is left to nobody."),
                       Mistake("V * 4 <= 16", "V <= 16",
                               "The limit is applied to chunks. What is it a limit of?"),
                       Mistake("(T * V * 4 - D, T, V)", "(T * V * 4 - D, -T, V)",
                               "Among plans equally good, the one with the most threads is taken."))),
    Exercise("no-conflicts", 11, "A transpose without conflicts", transpose, transpose_solution,
             (("the transpose", _transposed),
              ("neighbours in global memory", _neighbours),
              ("no conflicts", _no_conflicts)),
             mistakes=(Mistake("    cuda.syncthreads()\n", "",
                               "Nothing waits between the stores and the loads. Whose number does a thread read "
                               "from the tile?"),
                       Mistake("tile[r * 33 + lane] = x[r * 32 + lane]\n"
                               "    cuda.syncthreads()\n"
                               "    for c in range(32):\n"
                               "        y[c * 32 + lane] = tile[lane * 33 + c]",
                               "tile[r * 32 + lane] = x[r * 32 + lane]\n"
                               "    cuda.syncthreads()\n"
                               "    for c in range(32):\n"
                               "        y[c * 32 + lane] = tile[lane * 32 + c]",
                               "Rows of the tile begin 32 numbers apart. In how many banks are the numbers of "
                               "one column?"),
                       Mistake("y[c * 32 + lane] = tile[lane * 33 + c]", "y[lane * 32 + c] = tile[c * 33 + lane]",
                               "The lanes store to a column of y. Which index should differ by 1 from lane to "
                               "lane?"),
                       Mistake("tile[lane * 33 + c]", "x[lane * 32 + c]",
                               "The lanes load a column of x directly. What is the tile for?"),
                       Mistake("tile[lane * 33 + c]", "tile[c * 33 + lane]",
                               "A row goes in and a row comes out: nothing is transposed."))),
)
