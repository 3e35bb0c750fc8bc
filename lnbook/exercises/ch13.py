"""Exercises of chapter 13, layer norm forward on the GPU. Every kernel runs in :mod:`simt`."""

import numpy as np

import simt
from lnlib.gpu.ladder import warp_sum
from simt.cuda_access import FULL, cuda, device, float32

from . import Exercise
from .expect import expect
from .kernels import Out, expect_few_sectors, expect_written, launch
from .run import Call, each

U = 2.0**-24


def group_sum_solution(value, width):
    distance = width // 2
    while distance > 0:
        value += cuda.shfl_xor_sync(FULL, value, distance)
        distance //= 2
    return value


def _in_lanes(answer):
    """A kernel in which each lane of a warp calls the answer."""
    called = answer if hasattr(answer, "py_func") else device(answer)

    def kernel(numbers, sums, width):
        lane = cuda.threadIdx.x
        sums[lane] = called(numbers[lane], width)

    return kernel


_IN_A_WARP = launch(lambda **_: (1, 32), _in_lanes)


def _lanes(title, numbers, widths, judge):
    """A check on ``numbers(rng)``, one for each lane, in groups of these widths."""

    def ask(rng):
        for width in widths:
            given = numbers(rng).astype(np.float32)
            yield Call({"numbers": given, "sums": Out(32), "width": width})

    return each(title, ask, judge, call=_IN_A_WARP)


def _integers(rng):
    return rng.integers(-50, 50, 32)


def _sums(ran, numbers, width, **_):
    (sums,) = ran.results
    right = np.repeat(numbers.reshape(-1, width).sum(axis=1), width)
    lane = np.argmax(sums != right)  # the first that is wrong, else lane 0
    own = " its own number, " if sums[lane] == numbers[lane] else " "
    gets = f"lane {lane} gets{own}{sums[lane]:g}, its group's sum is {right[lane]:g}"
    expect(sums[lane] == right[lane], f"width {width}: {gets}")


def _same_bits(ran, width, **_):
    groups = ran.results[0].reshape(-1, width)
    same = (groups == groups[:, :1]).all()
    expect(same, f"width {width}: sums of a group's lanes differ in the last bits")
    exchanges, right = len(ran.log.events) / 32, np.log2(width)
    both = f"found {int(exchanges)} exchanges, expected {right:.0f}"
    expect(exchanges <= right, f"width {width}: {both}")


def slow_means(x, mean, N, D):
    """A warp does a row, and its lanes take neighbouring c. The grid has one thread for each row,
    or a few more.
    """
    warp, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    for row in range(warp, N, cuda.gridsize(1) // 32):
        total = float32(0)
        for c in range(lane, D, 32):
            total += x[c * N + row]
        total = warp_sum(total)
        if lane == 0:
            mean[row] = total / float32(D)


def fast_means_solution(x, mean, N, D):
    row = cuda.grid(1)
    if row < N:
        total = float32(0)
        for c in range(D):
            total += x[c * N + row]
        mean[row] = total / float32(D)


def _means(title, shapes, judge):
    """A check on N rows of D numbers, for each (N, D) of ``shapes``."""

    def ask(rng):
        for N, D in shapes:
            x = rng.standard_normal(D * N).astype(np.float32)
            yield Call({"x": x, "mean": Out(N), "N": N, "D": D})

    return each(title, ask, judge, call=launch(lambda N, **_: (-(-N // 64), 64)))


def _right_means(ran, x, N, D, **_):
    (mean,), x, case = ran.results, x.reshape(D, N), f"N = {N}, D = {D}: "
    expect_written(mean, "mean", case)
    # A sum of D terms in any order errs by (D - 1) u times the sum of their sizes; a quotient, or a
    # product with a rounded 1 / D, adds up to 2 u; and one u is for the terms of second order.
    off = np.abs(mean - x.mean(axis=0, dtype=float))
    bound = (D + 2) * U * np.abs(x).mean(axis=0, dtype=float)
    expect((off <= bound).all(), f"{case}a mean is off by {off.max():.1e}")


def _few_sectors(ran, N, D, **arguments):
    _right_means(ran, N=N, D=D, **arguments)
    expect_few_sectors(ran.log, ("x",))
    read = simt.sectors(ran.log)["x", "load"].bytes_used // 4
    expect(read == N * D, f"{read} numbers were read, expected {N * D}, each once")


def transpose_solution(x, y):
    tile = cuda.shared.array(32 * 33, float32)
    lane = cuda.threadIdx.x
    for r in range(32):
        tile[r * 33 + lane] = x[r * 32 + lane]
    cuda.syncthreads()
    for c in range(32):
        y[c * 32 + lane] = tile[lane * 33 + c]


def _transpose(title, judge=lambda run: None, **measured):
    """A check that y is the transpose, and of the log."""

    def transposed(ran, x, **_):
        y, right = ran.results[0], x.reshape(32, 32).T.reshape(-1)
        expect_written(y, "y")
        k = np.argmax(y != right)  # the first that is wrong, else 0
        wrong = f"y[{k}] is {y[k]:g}, expected {right[k]:g}"
        expect(y[k] == right[k], f"y is not the transpose of x: {wrong}")
        judge(ran.log)

    def ask(rng):
        return Call({"x": rng.standard_normal(1024).astype(np.float32), "y": Out(1024)})

    return each(title, ask, transposed, call=launch(lambda **_: (1, 32), **measured))


def _turns(run):
    """Of each line's loads or stores of shared memory: line, kind, turns a request."""
    found = simt.bank_conflicts(run).items()
    return [(line, kind, turns / requests) for (line, kind), (requests, turns) in found]


def _no_conflicts(run):
    for line, kind, turns in _turns(run):
        found = f"the {kind} in line {line} takes {turns:g} turns a request, expected 1"
        expect(turns == 1, f"{found}; in which banks are the numbers of a column?")


MISTAKES = r"""
== warp-sum
width // 2 => 16
    The first exchange is over half a warp, whatever the width. Does its partner belong to the
    group?
distance = width // 2\n => distance = width\n
    Sums of a group come out twice, or with another group's. Does a distance of `width` stay in the
    group?
return value => return value / float32(width)
    These are means. What is asked for is a sum.
distance > 0 => distance > 1
    One exchange is missing: neighbours never hear of each other.
shfl_xor_sync => shfl_down_sync
    Each lane takes from a higher one only. Which lanes have the whole sum at the end?
value += cuda => value = cuda
    A lane ends with one lane's number. What should become of both numbers in an exchange?
while distance > 0: => own = value\n    for distance in range(1, width):
& FULL, value => FULL, own
& \n        distance //= 2 =>
    Each lane asks all others, one by one, and adds in an order of its own. How many exchanges are
    there?
distance //= 2 => distance -= 1
    Every distance is used in turn, so that some numbers are counted more than once.
== coalesced
c * N + row => row * D + c
    You read x as if a row's numbers were neighbours. How is it stored here?
c * N + row => c * D + row
    From one number of a row to the next you go on by D. How many rows' numbers lie between the two?
if row < N => if True
    Threads beyond the last row take part. How many threads has the grid, and how many rows has x?
cuda.grid(1) => cuda.threadIdx.x
    Every block does the same 64 rows. What tells its threads from those of another block?
float32(D) => float32(N)
    The sums are divided by the number of rows.
total += x => total = x
    Each number takes the place of those before it.
total / float32(D) => total
    These are sums. What makes them means?
row = cuda.grid(1)\n\
    if row < N
=> lane = cuda.threadIdx.x % 32\n\
    for row in range(cuda.grid(1) // 32, N, cuda.gridsize(1) // 32)
& range(D) => range(lane, D, 32)
& mean[ => total = warp_sum(total)\n        if lane == 0:\n            mean[
    A warp does a row, as in slow_means: its lanes ask for numbers that lie N apart.
== no-conflicts
\n    cuda.syncthreads() =>
    Nothing waits between the stores and the loads. Whose number does a thread read from the tile?
r * 33 => r * 32
& lane * 33 => lane * 32
    Rows of the tile begin 32 numbers apart, or a multiple of 32. In how many banks are the numbers
    of one column?
r * 33 => r * 31
& lane * 33 => lane * 31
    Rows of the tile begin 31 numbers apart, but a row has 32: its last number and the next row's
    first share a place. No barrier cures that.
y[c * 32 + lane] = tile[lane * 33 + c] => y[lane * 32 + c] = tile[c * 33 + lane]
    The lanes store to a column of y. Which index should differ by 1 from lane to lane?
tile[r * 33 + lane] = x[r * 32 + lane] => tile[lane * 33 + r] = x[lane * 32 + r]
    The lanes load a column of x. Which index should differ by 1 from lane to lane?
tile[lane * 33 + c] => x[lane * 32 + c]
    The lanes load a column of x directly. What is the tile for?
tile[lane * 33 + c] => tile[c * 33 + lane]
    Your y is x: nothing is transposed, or all of it twice.
32 * 33 => 32 * 34
& r * 33 => r * 34
& lane * 33 => lane * 34
    Rows of the tile begin 34 numbers apart. How many banks do the lanes reach by even steps?
"""

EXERCISES = (
    Exercise("warp-sum", 15, "implement", group_sum_solution).with_checks(
        _lanes("a whole warp", _integers, (32,), _sums),
        _lanes("parts of a warp", _integers, (8, 16, 4, 2, 1), _sums),
        _lanes(
            "the same bits, in few exchanges",
            lambda rng: rng.standard_normal(32),
            (32, 8),
            _same_bits,
        ),
    ),
    Exercise("coalesced", 15, "implement", fast_means_solution).with_checks(
        _means("means", ((64, 40), (64, 1), (7, 33), (130, 9)), _right_means),
        _means("four sectors, each number once", ((128, 64),), _few_sectors),
    ),
    Exercise("no-conflicts", 20, "implement", transpose_solution).with_checks(
        _transpose("the transpose"),
        _transpose("neighbours in global memory", lambda run: expect_few_sectors(run, ("x", "y"))),
        _transpose(
            "no conflicts",
            _no_conflicts,
            measure=lambda run: [f"{kind} in {turns} turns" for _, kind, turns in _turns(run)],
        ),
    ),
)
