"""Exercises of chapter 14, the backward pass on a GPU. Kernels of readers run in the interpreter,
simt.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import simt
from lnlib.gpu.ladder import block_sum, warp_sum
from lnlib.layernorm import (
    layer_norm_backward,
    layer_norm_forward,
    rms_norm_backward,
    rms_norm_forward,
)
from normcheck.mistakes import LAYER_NORM, RMS_NORM, Diagnosis, Family, diagnose
from simt.cuda_access import cuda, float32

from . import Exercise
from .expect import expect, expect_close
from .kernels import Out, expect_few_sectors, expect_no_atomics, expect_written, launch
from .mistakes import sentences
from .run import Call, each, plainly, reply

# Four kernels for the first exercise. Their arrays: x to read, out to write.


def one_side(x, out):
    """Three rows of 64 numbers, a block of 64 threads."""
    parts = cuda.shared.array(2, float32)
    t = cuda.threadIdx.x
    for row in range(3):
        value = warp_sum(x[row * 64 + t])
        if t % 32 == 0:
            parts[t // 32] = value
        cuda.syncthreads()
        out[row * 64 + t] = parts[0] + parts[1]


def two_sides(x, out):
    """Three rows of 64 numbers, a block of 64 threads."""
    parts = cuda.shared.array(4, float32)
    t = cuda.threadIdx.x
    side = 0
    for row in range(3):
        value = warp_sum(x[row * 64 + t])
        if t % 32 == 0:
            parts[side + t // 32] = value
        cuda.syncthreads()
        out[row * 64 + t] = parts[side] + parts[side + 1]
        side = 2 - side


def some_threads(x, out):
    """One row of 40 numbers, a block of 64 threads."""
    parts = cuda.shared.array(40, float32)
    t, total = cuda.threadIdx.x, float32(0)
    if t < 40:
        parts[t] = x[t]
        cuda.syncthreads()
        for k in range(40):
            total += parts[k]
        out[t] = total


def one_warp(x, out):
    """One row of 32 numbers, a block of 32 threads."""
    total = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    value = warp_sum(x[t])
    if t == 0:
        total[0] = value
    out[t] = total[0]


# For each kernel its threads, and how many numbers it reads and writes.
_VARIANTS = {one_side: (64, 192), two_sides: (64, 192), some_threads: (64, 40), one_warp: (32, 32)}

_WORDS = "race", "divergent", "nothing"


def missing_barrier_solution():
    return {
        "one_side": "race",
        "two_sides": "nothing",
        "some_threads": "divergent",
        "one_warp": "race",
    }


def _four_words(answers):
    kind = type(answers).__name__
    expect(isinstance(answers, dict), f"found {kind}, expected a dict; is a return missing?")
    names, found = sorted(kernel.__name__ for kernel in _VARIANTS), sorted(map(str, answers))
    expect(found == names, f"found the keys {found}, expected {names}")
    for name, word in answers.items():
        expect(word in _WORDS, f"{name}: found {word!r}, expected one of {', '.join(_WORDS)}")


def _as_interpreted(answers):
    for kernel, (threads, numbers) in _VARIANTS.items():
        x, out = np.arange(numbers, dtype=np.float32), simt.uninitialised(numbers, np.float32)
        word, message, mine = "nothing", "no complaint", answers[kernel.__name__]
        try:
            simt.launch(kernel, 1, threads, x, out)
        except (simt.DataRace, simt.UninitialisedRead) as error:
            word, message = "race", str(error)
        except simt.DivergentBarrier as error:
            word, message = "divergent", str(error)
        expect(mine == word, f"{kernel.__name__}: you say {mine}, the interpreter says: {message}")


#: What is said of a wrong word for a kernel.
_SAID = sentences("""
one_side nothing
    You take one_side for sound. What may a warp that is ahead do in the next row while the other
    still reads?
one_side divergent
    You see a barrier in one_side that some threads miss. Which threads do not come to it?
two_sides race
    You suspect two_sides. Which barrier lies between the last reading of a side and its next
    writing?
two_sides divergent
    You see a barrier in two_sides that some threads miss. Which threads do not come to it?
some_threads nothing
    You take some_threads for sound. Which threads of the block come to its barrier?
some_threads race
    You see a race in some_threads. All threads that read have waited; for whom?
one_warp nothing
    You take one_warp for sound. What promises that a warp's threads are at the same line?
one_warp divergent
    You see a barrier in one_warp that some threads miss. Which barrier has it?
""")


def _of_four_words(answer):
    """The :class:`~normcheck.mistakes.Diagnosis` of the first word that is wrong."""
    words = reply(plainly, answer, {})[0]
    _four_words(words)
    for name, right in missing_barrier_solution().items():
        if words[name] != right:
            because = f"says {words[name]!r} of {name}"
            return Diagnosis("known", (), _SAID[f"{name} {words[name]}"], (because,))
    return None


def rms_backward_solution(dy, x, rstd, gamma, dx, dgammas, N, D):
    parts = cuda.shared.array(32, float32)
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    mine = cuda.blockIdx.x * D
    for c in range(t, D, T):
        dgammas[mine + c] = float32(0)
    for row in range(cuda.blockIdx.x, N, cuda.gridDim.x):
        base, r, total = row * D, rstd[row], float32(0)
        for c in range(t, D, T):
            total += gamma[c] * dy[base + c] * (x[base + c] * r)
        mean = block_sum(total, parts) / float32(D)
        for c in range(t, D, T):
            d, xhat = dy[base + c], x[base + c] * r
            dx[base + c] = r * (gamma[c] * d - xhat * mean)
            dgammas[mine + c] += d * xhat


_launch_backward = launch(lambda dgammas, D, **_: (dgammas.shape // D, 64))


class _Norm(NamedTuple):
    """A norm whose backward is asked for as one kernel.

    forward : function (x, gamma, eps) -> y, cache.
    inputs : names of the kernel's arrays to read, in order.
    sums : names of the arrays that get a row of partial sums for each block, dgamma's first.
    loads : how often each number of these may be loaded, where that is asked.
    """

    forward: Callable
    backward: Callable
    family: Family
    inputs: tuple
    sums: tuple
    loads: int | None = None

    def arguments(self, dy, x, mean, cache, blocks):
        N, D = dy.shape
        values = {"dy": dy, "x": x, "mean": mean, "rstd": cache.rstd, "gamma": cache.gamma}
        given = {name: values[name].astype(np.float32).reshape(-1) for name in self.inputs}
        outputs = {"dx": Out(N * D)} | dict.fromkeys(self.sums, Out(blocks * D))
        return given | outputs | {"N": N, "D": D}

    def check(self, title, judge, *cases):
        """A check on cases (blocks, N, D)."""

        def ask(rng):
            for blocks, N, D in cases:
                dy, x = rng.standard_normal((2, N, D), np.float32)
                x += np.arange(N, dtype=np.float32)[:, None]
                gamma = rng.uniform(0.5, 2, D).astype(np.float32)
                gamma[2] = 0  # where dx is not
                cache = self.forward(x, gamma, 0.1)[1]
                given = self.arguments(dy, x, x.mean(axis=1), cache, blocks)
                yield Call(given, right=self.backward(dy, cache), norm=self)

        return each(title, ask, judge, call=_launch_backward, unchanged=True)

    def which_mistake(self, answer):
        """The known mistake whose numbers the answer has, if any."""

        def backward(dy, cache):
            rows, x = (a.reshape(-1, a.shape[-1]) for a in (dy, cache.xhat / cache.rstd))
            given = self.arguments(rows, x, np.zeros_like(cache.rstd), cache, 2)
            dx, *sums = reply(_launch_backward, answer, given)[0].results
            return dx.reshape(dy.shape), *(a.reshape(2, -1).sum(axis=0) for a in sums)

        return diagnose(backward, self.family)


_RMS = _Norm(
    rms_norm_forward, rms_norm_backward, RMS_NORM, ("dy", "x", "rstd", "gamma"), ("dgammas",)
)
_LAYER = _Norm(
    lambda x, gamma, eps: layer_norm_forward(x, gamma, np.zeros_like(gamma), eps),
    layer_norm_backward,
    LAYER_NORM,
    ("dy", "x", "mean", "rstd", "gamma"),
    ("dgammas", "dbetas"),
    loads=0,
)


def _dx(ran, right, N, D, **_):
    dx = ran.results[0]
    expect_written(dx, "dx", f"N = {N}, D = {D}: ")
    # A sum of D terms in any order and ten more operations, kappa below 2: 2 (D + 10) u at most.
    # The last row is six from zero; its mean is rounded by 3 u, of which layer norm keeps a part.
    rtol = 2 * (D + 10) * 2.0**-24
    expect_close(dx.reshape(N, D), right[0], rtol, f"dx of {N} rows of {D} numbers")


def _sums_of_blocks(ran, right, norm, N, D, **_):
    for name, sums, whole in zip(norm.sums, ran.results[1:], right[1:]):
        sums = sums.reshape(-1, D)
        idle = np.isnan(sums).all(axis=1)
        no_rows = idle.any() and np.array_equal(idle, np.arange(len(sums)) >= N)
        left = f"blocks without a row leave their part of {name} unwritten"
        expect(not no_rows, f"of {len(sums)} blocks and {N} rows, {left}")
        expect_written(sums, name, f"N = {N}, D = {D}: ")
        # Up to seven rows of either sign, added in float32: a few u, each up to three times the
        # size of the sum.
        expect_close(sums.sum(axis=0), whole, 1e-5, f"the sum of {name} of {len(sums)} blocks")


def _traffic(ran, norm, N, D, **_):
    expect_no_atomics(ran.log, "; a part belongs to one block")
    blocks = len(ran.results[1]) // D
    for (name, kind), traffic in simt.sectors(ran.log).items():
        times = traffic.bytes_used / (4 * D * (blocks if name in norm.sums else N))
        if name in ("dy", "x", "dx"):
            expect((kind == "store") == (name == "dx"), f"your kernel has {kind}s of {name}")
            most = 1 if name == "dx" else 2
        elif name in norm.sums and norm.loads is not None:
            most = norm.loads if kind == "load" else 1
        else:
            continue
        part = f"each number of {name} is part of {times:.0f} {kind}s"
        expect(times <= most, f"{part}, expected {most} at most")
    # 32 neighbours lie in 4 sectors, or in 5 where a row does not begin with one.
    expect_few_sectors(ran.log, ("dy", "x", "dx", *norm.sums), 5)


def layer_backward_solution(dy, x, mean, rstd, gamma, dx, dgammas, dbetas, N, D):
    parts = cuda.shared.array(32, float32)
    dgamma = cuda.local.array(4, float32)
    dbeta = cuda.local.array(4, float32)
    t = cuda.threadIdx.x
    for k in range(4):
        dgamma[k] = dbeta[k] = float32(0)
    for row in range(cuda.blockIdx.x, N, cuda.gridDim.x):
        base, m, r = row * D, mean[row], rstd[row]
        g_sum, gx_sum = float32(0), float32(0)
        for k in range(4):
            c = t + 64 * k
            if c < D:
                d, xhat = dy[base + c], (x[base + c] - m) * r
                dgamma[k] += d * xhat
                dbeta[k] += d
                g_sum += gamma[c] * d
                gx_sum += gamma[c] * d * xhat
        a = block_sum(g_sum, parts) / float32(D)
        b = block_sum(gx_sum, parts) / float32(D)
        for k in range(4):
            c = t + 64 * k
            if c < D:
                g, xhat = gamma[c] * dy[base + c], (x[base + c] - m) * r
                dx[base + c] = r * (g - (a + xhat * b))
    for k in range(4):
        c = t + 64 * k
        if c < D:
            dgammas[cuda.blockIdx.x * D + c] = dgamma[k]
            dbetas[cuda.blockIdx.x * D + c] = dbeta[k]


def second_stage_solution(parts, total, G, D):
    c, value = cuda.grid(1), float32(0)
    if c < D:
        for part in range(G):
            value += parts[part * D + c]
        total[c] = value


def _stage(title, judge, *shapes):
    """A check on G rows of D numbers, for each (G, D) of ``shapes``."""

    def ask(rng):
        for G, D in shapes:
            parts = (100 + rng.standard_normal(G * D)).astype(np.float32)
            yield Call({"parts": parts, "total": Out(D), "G": G, "D": D})

    return each(title, ask, judge, call=launch(lambda D, **_: (-(-D // 64), 64)))


def _sums(ran, parts, G, D, **_):
    (total,) = ran.results
    expect_written(total, "total")
    # G terms of one sign: G u at most.
    right, what = parts.reshape(G, D).sum(axis=0), f"the total of {G} rows of {D} numbers"
    expect_close(total, right, 2 * G * 2.0**-24, what)


def _in_order(ran, parts, G, D, **_):
    expect_no_atomics(ran.log, ", which come in any order")
    off = np.abs(ran.results[0] - np.cumsum(parts.reshape(G, D), axis=0)[-1]).max()
    expect(
        off == 0,
        f"{G} rows: right to rounding, but in other bits (a sum is off by {off:.1e}); expected the"
        " bits of row 0 + row 1 + row 2 + ..., rounded after each; is that another order of"
        " additions, or a sum that keeps more digits than a float32 has?",
    )


def _side_by_side(ran, G, D, **_):
    expect_few_sectors(ran.log, ("parts", "total"))
    for (name, kind), traffic in simt.sectors(ran.log).items():
        size = 4 * D * (G if name == "parts" else 1)
        asked = f"{kind}s of {name} ask for {traffic.bytes_used} bytes"
        expect(traffic.bytes_used == size, f"{asked}, expected {size}: each number once")


MISTAKES = r"""
== rms-backward
dgammas[mine + c] = float32(0) => pass
    You add to the parts before anything is written there. What is in memory at the start?
cuda.blockIdx.x * D => 0
    All blocks write to the first part. Who else adds there at the same time?
block_sum(total, parts) => warp_sum(total)
    Each warp takes its own sum for that of the row. How many warps share a row?
block_sum(total, parts) => total
    Each thread takes its own part of the sum for that of the row. Who adds up the parts?
dgammas[mine + c] += d * xhat => pass
    Your parts stay zero. Which sum does each hold at the end?
dgammas[mine + c] += d * xhat => dgammas[mine + c] = d * xhat
dgammas[mine + c] = float32(0) => pass
& += d * xhat => = d * xhat
    Each row overwrites the part of the rows before it.
base, r, total = row * D, rstd[row], float32(0) => base, r = row * D, rstd[row]
& mine = cuda.blockIdx.x * D => mine, total = cuda.blockIdx.x * D, float32(0)
    The sum over a row is not started anew: each row adds to those before it.
== layer-backward
dgamma[k] = dbeta[k] = float32(0) => pass
    You add to the local arrays before anything is written there. What is in them at the start?
dgamma[k] += d * xhat => dgamma[k] = d * xhat
    Each row overwrites the sum of the rows before it.
dbeta[k] += d => dbeta[k] += d; dgammas[cuda.blockIdx.x * D + c] = dgamma[k]
    The sums are stored after every row. When is it enough to store them?
dbetas[cuda.blockIdx.x * D + c] = => dbetas[c] =
    All blocks write their sums to the same place. Which row of it is this block's?
a = block_sum(g_sum, parts) => a = warp_sum(g_sum)
    Each warp takes its own sum for that of the row. How many warps share a row?
(x[base + c] - m) * r\n                dx => x[base + c] * r\n                dx
    The second loop does not subtract the mean that the first one subtracts.
== second-stage
part * D + c => c * G + part
    The parts are read as if a column's numbers were neighbours. How are they stored?
if c < D => if True
    Threads beyond the last column take part. How many threads are there, and how many columns?
value += parts => value = parts
    Each part takes the place of those before it.
total[c] = value => total[c] = value / float32(G)
    These are means. What is asked for is a sum.
range(G) => range(1, G)
    The first partial sum is left out.
range(G) => range(G - 1, -1, -1)
    The parts are added from the last to the first. Does the order change the bits?
cuda.grid(1) => cuda.threadIdx.x
    Every block does the same 64 columns. What tells its threads from those of another block?
cuda.grid(1) => cuda.grid(1) // 32
& total[c] = value => if cuda.threadIdx.x % 32 == 0:\n            total[c] = value
    A warp does a column, and there is a thread for each. Which columns are left?
"""

EXERCISES = (
    Exercise("missing-barrier", 20, "test", missing_barrier_solution).with_checks(
        each("four words", lambda rng: Call({}), _four_words),
        each("as the interpreter says", lambda rng: Call({}), _as_interpreted),
        diagnose=_of_four_words,
    ),
    Exercise("rms-backward", 35, "implement", rms_backward_solution).with_checks(
        # Rows with three and four columns for some threads, and with none for others.
        _RMS.check("dx", _dx, (3, 7, 100), (3, 2, 200), (3, 2, 20)),
        # Of seven rows the last block of eight has none.
        _RMS.check("partial sums of dgamma", _sums_of_blocks, (1, 7, 20), (3, 7, 300), (8, 7, 100)),
        _RMS.check("no atomics, two readings, neighbours", _traffic, (3, 7, 100)),
        diagnose=_RMS.which_mistake,
    ),
    Exercise("layer-backward", 40, "implement", layer_backward_solution).with_checks(
        _LAYER.check("dx", _dx, (3, 7, 100), (3, 2, 200), (3, 2, 20)),
        _LAYER.check("partial sums", _sums_of_blocks, (1, 7, 20), (3, 7, 256), (8, 7, 100)),
        _LAYER.check("sums in registers", _traffic, (3, 7, 100)),
        diagnose=_LAYER.which_mistake,
    ),
    Exercise("second-stage", 15, "implement", second_stage_solution).with_checks(
        _stage("sums", _sums, (1, 64), (5, 128), (6, 72)),
        _stage("in order", _in_order, (50, 64)),
        _stage("each number once, four sectors a request", _side_by_side, (6, 128), (3, 72)),
    ),
)
