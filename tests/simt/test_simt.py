"""The interpreter of kernels: planted mistakes are found and named, and right kernels pass."""

import linecache
import math  # noqa: F401 - as below
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from golden import blocks
from pages import ROOT

import simt
from simt import source
from simt.cuda_access import (  # noqa: F401 - some are for kernels that are text
    FULL,
    cuda,
    device,
    float32,
    float64,
    int32,
    int64,
    load4,
    store4,
)

f32 = np.float32
HERE = Path(__file__).parent


def line_of(kernel, text):
    """The only line of its source on which ``kernel`` has ``text``."""
    source = linecache.getlines(kernel.__code__.co_filename)
    first = kernel.__code__.co_firstlineno
    last = max(line for *_, line in kernel.__code__.co_lines() if line)
    found = [n for n in range(first, last + 1) if text in source[n - 1]]
    assert len(found) == 1, found
    return found[0]


def caught(error, kernel, block, *arguments, grid=1, at="# HERE", say=()):
    """Run ``kernel``, expect ``error`` on the line marked ``at``, and ``say`` in its message."""
    with pytest.raises(error) as info:
        simt.launch(kernel, grid, block, *arguments)
    assert type(info.value) is error
    assert info.value.line == line_of(kernel, at)
    for text in (say,) if isinstance(say, str) else say:
        assert text in str(info.value), str(info.value)
    return info.value


# A block's sum, in several ways, all of them right.


def tree(T, real=float32):
    def kernel(x, total):
        sums = cuda.shared.array(T, real)
        t = cuda.threadIdx.x
        sums[t] = x[cuda.grid(1)]
        cuda.syncthreads()
        n = T // 2
        while n > 0:
            if t < n:
                sums[t] += sums[t + n]
            cuda.syncthreads()
            n //= 2
        if t == 0:
            total[cuda.blockIdx.x] = sums[0]

    return kernel


@device
def block_sum(value, shared):
    for offset in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(FULL, value, offset)
    if cuda.threadIdx.x % 32 == 0:
        shared[cuda.threadIdx.x // 32] = value
    cuda.syncthreads()
    value = shared[0]
    for w in range(1, cuda.blockDim.x // 32):
        value += shared[w]
    return value


def with_helper(x, total):
    warps = cuda.shared.array(8, float32)
    value = block_sum(x[cuda.grid(1)], warps)
    if cuda.threadIdx.x == 0:
        total[cuda.blockIdx.x] = value


def vectors(x, total):
    a, b, c, d = load4(x, 4 * cuda.grid(1))
    parts = cuda.local.array(2, float32)
    parts[0] = a + b
    parts[1] = c + d
    value = parts[0] + parts[1]
    for offset in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(FULL, value, offset)
    if cuda.laneid == 0:
        total[cuda.blockIdx.x] = value


def atomics(x, total):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(total, 0, x[i])


@pytest.mark.parametrize("kernel, block", [(tree(64), 64), (with_helper, 64), (vectors, 32)])
def test_sums(kernel, block):
    """Integers below 2**24 are added without rounding, in any order."""
    x = np.arange(256, dtype=f32)
    per_block = block * (4 if kernel is vectors else 1)
    total = simt.uninitialised(256 // per_block, f32)
    simt.launch(kernel, 256 // per_block, block, x, total)
    assert total.tolist() == x.reshape(-1, per_block).sum(1).tolist()
    total = np.zeros(1, f32)
    simt.launch(atomics, 3, 32, x[:200], total)
    assert total[0] == 199 * 100


def test_warp_operations_and_votes_of_a_block():
    def kernel(up, down, xor, one, ballot, some, every, number, all_of_block, any_of_block):
        t = cuda.threadIdx.x
        up[t] = cuda.shfl_up_sync(FULL, t, 1)
        down[t] = cuda.shfl_down_sync(FULL, t, 34)  # of five bits: 2
        xor[t] = cuda.shfl_xor_sync(FULL, t, 37)  # 5
        one[t] = cuda.shfl_sync(FULL, t, 39)  # of 32
        ballot[t] = cuda.ballot_sync(FULL, t % 32 < 3 or t % 32 == 31)  # an int32
        some[t] = cuda.any_sync(FULL, t == 40)
        every[t] = cuda.all_sync(FULL, t < 32)
        number[t] = cuda.syncthreads_count(t) + 100 * cuda.laneid
        all_of_block[t], any_of_block[t] = cuda.syncthreads_and(t), cuda.syncthreads_or(t)
        if t == 9:
            cuda.syncwarp(1 << 9)  # a lane alone

    t, lane = np.arange(64), np.arange(64) % 32
    got = [np.zeros(64, np.int64) for _ in range(10)]
    simt.launch(kernel, 1, 64, *got)
    expected = [np.where(lane < 1, t, t - 1), np.where(lane < 30, t + 2, t), t ^ 5]
    expected += [t // 32 * 32 + 7, np.full(64, 7 - 2**31), t // 32, 1 - t // 32]
    expected += [63 + 100 * lane, 0 * t, 1 + 0 * t]
    np.testing.assert_array_equal(got, expected)


# Planted mistakes. A kernel is written as the text of its body; the mistake is found on the line
# marked HERE.


def written(body, *arguments):
    """The kernel with these arguments whose body is this text."""
    source = f"def kernel({', '.join(arguments)}):\n" + textwrap.indent(
        textwrap.dedent(body).strip("\n"), "    "
    )
    name = f"<kernel {arguments} {body}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    scope = {name: value for name, value in globals().items() if not name.startswith("_")}
    exec(compile(source, name, "exec"), scope)
    return scope["kernel"]


def planted(error, body, block, say, *, grid=1, dtype=f32, **arguments):
    """The ``error``, expected at HERE, with the texts ``say`` in its message. Arrays are given as
    their number of zeros.
    """
    arguments = {
        name: np.zeros(a, dtype) if type(a) is int and name in "xy" else a
        for name, a in arguments.items()
    }
    kernel = written(body, *arguments)
    return caught(error, kernel, block, *arguments.values(), grid=grid, say=say)


#: name -> the body of a kernel with one mistake, and what is said of it.
PLANTED = {name: body.split("\n=> ") for name, body in blocks(HERE / "planted.txt").items()}


def racing(name):
    """The body of one of them."""
    return next(body for key, (body, _) in PLANTED.items() if key.startswith(f"DataRace {name} ("))


@pytest.mark.parametrize("name", PLANTED)
def test_planted_mistakes(name):
    error, given = name.split(" ")[0], eval(f"dict{name[name.index('(block') :]}")
    given.setdefault("dtype", np.int64 if error == "DivergentBarrier" else f32)
    body, message = PLANTED[name]
    assert str(planted(getattr(simt, error), body, say=(), **given)) == message


def test_what_is_no_race():
    """One block; and lanes that syncwarp orders, all of them."""
    y, ordered = (
        np.zeros(64, f32),
        racing("after a shuffle").replace("shfl_xor_sync(FULL, t, 1)", "syncwarp()"),
    )
    simt.launch(written(racing("of a block with a reader before"), "x"), 1, 1, np.ones(1, f32))
    simt.launch(written(racing("reader 0"), "x", "mask"), 1, 32, np.zeros(4, f32), 0b1111)
    simt.launch(written(ordered, "y"), 1, 64, y)
    assert y.tolist() == [t ^ 1 for t in range(64)]


def test_what_is_aligned():
    """Four are read and written at a multiple of their size, or of 16 bytes if they are more."""
    kernel = written("a, b, c, d = load4(x, i)\nstore4(x, i, d, c, b, a)", "x", "i")
    for dtype in (np.float16, f32, np.float64):
        simt.launch(kernel, 1, 1, np.zeros(8, dtype), 4)  # the last four
    simt.launch(kernel, 1, 1, np.zeros(10), 2)  # 16 bytes is all that float64 needs
    with pytest.raises(simt.Misaligned, match="starts 4 bytes into"):  # of a view's allocation
        simt.launch(kernel, 1, 1, np.zeros(12, f32)[1:], 0)
    simt.launch(kernel, 1, 1, np.zeros(12, f32)[4:], 0)


def test_uninitialised_reads():
    """Each element counts by itself, in views too, until a kernel writes it."""
    read = written("a = x[1] + x[2]  # HERE", "x")
    write = written("x[1 + cuda.threadIdx.x] = float32(1)", "x")
    x = simt.uninitialised((2, 4), f32)
    flat = x.reshape(-1)
    assert np.isnan(x).all() and type(x) is np.ndarray
    caught(simt.UninitialisedRead, read, 1, flat, say="x[1]")
    simt.launch(write, 1, 1, flat)
    caught(simt.UninitialisedRead, read, 1, flat, say="x[2]")
    simt.launch(write, 1, 3, flat)
    simt.launch(read, 1, 1, x.ravel())
    caught(simt.UninitialisedRead, read, 1, x[1], say="x[1]")  # the second row
    whole = simt.uninitialised(3, np.int32)
    assert whole.dtype == np.int32 and whole.tolist() == [0, 0, 0]
    simt.launch(read, 1, 1, whole.view(f32))  # as another dtype it is not watched


half, wide = 0.5, np.float64(2)


def test_an_argument_is_as_wide_as_it_is():
    root = written("x[0] = math.sqrt(x[0] + eps)  # HERE", "x", "eps")
    caught(simt.Promotion, root, 1, np.ones(1, f32), 1e-5)
    simt.launch(root, 1, 1, np.ones(1, f32), f32(1e-5))


def test_where_other_errors_and_those_of_a_helper_are():
    @device
    def helper(x):
        return x[99]  # HERE

    def kernel(x):
        helper(x)

    with pytest.raises(ZeroDivisionError) as info:
        simt.launch(written("x[0] = 1 // 0", "x"), 1, 1, np.zeros(1, f32))
    assert any("thread 0" in note for note in info.value.__notes__)
    with pytest.raises(simt.OutOfBounds) as info:
        simt.launch(kernel, 1, 1, np.zeros(1, f32))
    assert info.value.line == line_of(source.plain(helper), "# HERE")


# Where kernels come from.


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"grid": 2**31}, ValueError, "grid: found 2147483648, expected 1 to 2147483647"),
        ({"block": 1025}, ValueError, "block: found 1025"),
        ({"x": np.zeros((2, 2), f32)}, ValueError, r"x: found shape \(2, 2\)"),
        ({"x": np.zeros(8, f32)[::2]}, ValueError, "x: .*strides"),
        ({"x": np.zeros(8, complex)}, TypeError, "x: .*complex128"),
        ({"x": [1.0]}, TypeError, "x: found list"),
        ({"kernel": tree(0)}, simt.Refused, "the size T: found 0, expected a positive integer"),
        ({"kernel": tree((2, 2))}, simt.Refused, "the size T: arrays .* have one dimension"),
        ({"kernel": tree(32, 4)}, simt.Refused, "found dtype 4, expected one of"),
        ({"kernel": tree(2.5)}, simt.Refused, "the size T: found 2.5"),
        *(
            ({"kernel": written("return", "x", rest)}, simt.Refused, "among the parameters")
            for rest in ("*total", "**total", "*, total", "total, /")
        ),
        ({"kernel": lambda x: x}, TypeError, "arguments: found 2, expected 1: x"),
        ({"kernel": lambda x, y: x}, ValueError, "kernel: found no source of <lambda>"),
        ({"grid": 1.0}, TypeError, "grid: found float, expected one integer"),
    ],
)
def test_bad_arguments_of_a_launch(change, error, message):
    given = {"kernel": tree(32), "grid": 1, "block": 32, "x": np.zeros(32, f32)}
    given |= {"total": np.zeros(1, f32)} | change
    with pytest.raises(error, match=message):
        simt.launch(*given.values())


def test_only_numpy_is_needed():
    code = "import sys, simt; print(any(name in sys.modules for name in ('numba', 'matplotlib')))"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "False\n"
