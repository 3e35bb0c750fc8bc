"""Exercises of chapter 14, the backward pass on a GPU. Kernels of readers run in the interpreter,
simt.
"""

import numpy as np

import simt
from lnlib.gpu.ladder import block_sum, warp_sum
from lnlib.layernorm import rms_norm_backward, rms_norm_forward
from normcheck.mistakes import RMS_NORM, Diagnosis, diagnose
from simt.cuda_access import cuda, float32

from . import Exercise, changes
from .expect import expect, expect_close, expect_number, expect_parts
from .kernels import Out, expect_few_sectors, expect_written, launch
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
    expect(
        isinstance(answers, dict),
        f"found {type(answers).__name__}, expected a dict; is a return missing?",
    )
    names = sorted(kernel.__name__ for kernel in _VARIANTS)
    expect(
        sorted(map(str, answers)) == names,
        f"found the keys {sorted(map(str, answers))}, expected {names}",
    )
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


#: kernel -> a wrong word for it -> what is said of that.
_SAID = {
    "one_side": {
        "nothing": (
            "You take one_side for sound. What may a warp that is ahead do in the next row while"
            " the other still reads?"
        ),
        "divergent": (
            "You see a barrier in one_side that some threads miss. Which threads do not come to it?"
        ),
    },
    "two_sides": {
        "race": (
            "You suspect two_sides. Which barrier lies between the last reading of a side and its"
            " next writing?"
        ),
        "divergent": (
            "You see a barrier in two_sides that some threads miss. Which threads do not come"
            " to it?"
        ),
    },
    "some_threads": {
        "nothing": (
            "You take some_threads for sound. Which threads of the block come to its barrier?"
        ),
        "race": "You see a race in some_threads. All threads that read have waited; for whom?",
    },
    "one_warp": {
        "nothing": (
            "You take one_warp for sound. What promises that a warp's threads are at the same line?"
        ),
        "divergent": "You see a barrier in one_warp that some threads miss. Which barrier has it?",
    },
}


def _of_four_words(answer):
    """The :class:`~normcheck.mistakes.Diagnosis` of the first word that is wrong."""
    words = reply(plainly, answer, {})[0]
    _four_words(words)
    for name, right in missing_barrier_solution().items():
        if words[name] != right:
            return Diagnosis(
                "known", (), _SAID[name][words[name]], (f"says {words[name]!r} of {name}",)
            )
    return None


def rms_backward_solution(dy, x, rstd, gamma, dx, dgamma_parts, N, D):
    parts = cuda.shared.array(32, float32)
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    mine = cuda.blockIdx.x * D
    for c in range(t, D, T):
        dgamma_parts[mine + c] = float32(0)
    for row in range(cuda.blockIdx.x, N, cuda.gridDim.x):
        base, r, total = row * D, rstd[row], float32(0)
        for c in range(t, D, T):
            total += gamma[c] * dy[base + c] * (x[base + c] * r)
        mean = block_sum(total, parts) / float32(D)
        for c in range(t, D, T):
            d, xhat = dy[base + c], x[base + c] * r
            dx[base + c] = r * (gamma[c] * d - xhat * mean)
            dgamma_parts[mine + c] += d * xhat


_launch_backward = launch(lambda dgamma_parts, D, **_: (dgamma_parts.shape // D, 64))


def _arguments(dy, x, cache, blocks):
    N, D = dy.shape
    given = {"dy": dy, "x": x, "rstd": cache.rstd, "gamma": cache.gamma}
    return {name: a.astype(np.float32).reshape(-1) for name, a in given.items()} | {
        "dx": Out(N * D),
        "dgamma_parts": Out(blocks * D),
        "N": N,
        "D": D,
    }


def _backward(title, judge, *cases):
    """A check on cases (blocks, N, D)."""

    def ask(rng):
        for blocks, N, D in cases:
            x, dy = rng.standard_normal((2, N, D), np.float32)
            gamma = rng.uniform(0.5, 2, D).astype(np.float32)
            gamma[2] = 0  # where dx is not
            cache = rms_norm_forward(x, gamma, 0.1)[1]
            yield Call(_arguments(dy, x, cache, blocks), right=rms_norm_backward(dy, cache))

    return each(title, ask, judge, call=_launch_backward, unchanged=True)


def _dx(ran, right, N, D, **_):
    dx, _ = ran.results
    expect_written(dx, "dx", f"N = {N}, D = {D}: ")
    # A sum of D terms in any order and ten more operations, kappa below 2: 2 (D + 10) u at most.
    expect_close(
        dx.reshape(N, D), right[0], 2 * (D + 10) * 2.0**-24, f"dx of {N} rows of {D} numbers"
    )


def _dgamma(ran, right, N, D, **_):
    parts = ran.results[1].reshape(-1, D)
    idle = np.isnan(parts).all(axis=1)
    expect(
        not idle.any() or not np.array_equal(idle, np.arange(len(parts)) >= N),
        f"of {len(parts)} blocks and {N} rows, blocks without a row leave their part of dgamma"
        " unwritten",
    )
    expect_written(parts, "dgamma_parts", f"N = {N}, D = {D}: ")
    # Up to seven rows of either sign, added in float32: a few u, each up to three times the size of
    # the sum.
    expect_close(
        parts.sum(axis=0), right[1], 1e-5, f"the sum of dgamma_parts of {len(parts)} blocks"
    )


def _traffic(ran, N, D, **_):
    expect(
        not any(a.kind == "atomic" for a in ran.log.accesses),
        "your kernel uses atomics; a part belongs to one block",
    )
    for (name, kind), traffic in simt.sectors(ran.log).items():
        if name in ("dy", "x", "dx"):
            times, most = traffic.bytes_used / (4 * N * D), 1 if name == "dx" else 2
            expect((kind == "store") == (name == "dx"), f"your kernel has {kind}s of {name}")
            expect(
                times <= most,
                f"each number of {name} is part of {times:.0f} {kind}s, expected {most} at most",
            )
    # 32 neighbours lie in 4 sectors, or in 5 where a row does not begin with one.
    expect_few_sectors(ran.log, ("dy", "x", "dx"), 5)


def _which_mistake(answer):
    def backward(dy, cache):
        ran, _ = reply(_launch_backward, answer, _arguments(dy, cache.xhat / cache.rstd, cache, 2))
        dx, parts = ran.results
        return dx.reshape(dy.shape), parts.reshape(2, -1).sum(axis=0)

    return diagnose(backward, RMS_NORM)


def choose_partials_solution(N, D, multiprocessors):
    threads = 32
    while 8 * threads < D:
        threads *= 2
    groups = multiprocessors * (512 // threads)
    G = groups
    while 64 * G < N:
        G += groups
    G = min(G, N)
    return G, 16 * G / (12 * N + 16 * G)


def _partials(title, judge, *cases, alone=False):
    """A check on cases (N, D, multiprocessors)."""

    def judge_case(found, N, D, multiprocessors):
        case = f"N = {N}, D = {D}, {multiprocessors} multiprocessors"
        G, share = expect_parts(found, 2, "numbers")
        G = int(expect_number(G, f"{case}: G", "iu", "a whole number"))
        judge(
            case, G, share, *choose_partials_solution(N, D, multiprocessors), N, D, multiprocessors
        )

    return each(
        title,
        lambda rng: [Call(dict(zip(("N", "D", "multiprocessors"), case))) for case in cases],
        judge_case,
        alone=alone,
    )


def _few_rows(case, G, share, right, right_share, N, *_):
    expect(G <= N, f"{case}: {G} partial sums are more than there are rows")
    expect(right == G, f"{case}: found {G} partial sums, expected {right}")


def _many_rows(case, G, share, right, right_share, N, D, multiprocessors):
    expect(-(-N // G) <= 64, f"{case}: with {G} partial sums one of them has {-(-N // G)} rows")
    groups = multiprocessors * (512 // max(32, 1 << (-(-D // 8) - 1).bit_length()))
    expect(
        G % groups == 0,
        f"{case}: {groups} groups run at once, and some would get more of {G} sums than others",
    )
    expect(right == G, f"{case}: {right} partial sums will do, found {G}")


def _share(case, G, share, right_G, right, *_):
    rounded = any(share == round(right, digits) for digits in range(1, 9))
    expect(
        abs(share - right) <= 1e-9,
        f"{case}: the share is {share}, expected {right:.6f}"
        + ", which is not rounded to a few digits" * rounded,
    )


def second_stage_solution(parts, total, G, D):
    c, value = cuda.grid(1), float32(0)
    if c < D:
        for part in range(G):
            value += parts[part * D + c]
        total[c] = value


def _stage(title, judge, *shapes):
    """A check on G rows of D numbers, for each (G, D) of ``shapes``."""

    def ask(rng):
        return [
            Call(
                {
                    "parts": (100 + rng.standard_normal(G * D)).astype(np.float32),
                    "total": Out(D),
                    "G": G,
                    "D": D,
                }
            )
            for G, D in shapes
        ]

    return each(title, ask, judge, call=launch(lambda D, **_: (-(-D // 64), 64)))


def _sums(ran, parts, G, D, **_):
    (total,) = ran.results
    expect_written(total, "total")
    # G terms of one sign: G u at most.
    expect_close(
        total,
        parts.reshape(G, D).sum(axis=0),
        2 * G * 2.0**-24,
        f"the total of {G} rows of {D} numbers",
    )


def _in_order(ran, parts, G, D, **_):
    expect(
        not any(a.kind == "atomic" for a in ran.log.accesses),
        "your kernel uses atomics, which come in any order",
    )
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
        expect(
            traffic.bytes_used == size,
            f"{kind}s of {name} ask for {traffic.bytes_used} bytes, expected {size}: each number"
            " once",
        )


EXERCISES = (
    Exercise(
        "missing-barrier",
        20,
        "test",
        missing_barrier_solution,
        (
            each("four words", lambda rng: Call({}), _four_words),
            each("as the interpreter says", lambda rng: Call({}), _as_interpreted),
        ),
        _of_four_words,
    ),
    Exercise(
        "rms-backward",
        35,
        "implement",
        rms_backward_solution,
        # Rows with three and four columns for some threads, and with none for others.
        (
            _backward("dx", _dx, (3, 7, 100), (3, 2, 200), (3, 2, 20)),
            # Of seven rows the last block of eight has none.
            _backward("partial sums of dgamma", _dgamma, (1, 7, 20), (3, 7, 100), (8, 7, 100)),
            _backward("no atomics, two readings, neighbours", _traffic, (3, 7, 100)),
        ),
        _which_mistake,
        mistakes=changes("""
            dgamma_parts[mine + c] = float32(0) => pass
                You add to the parts before anything is written there. What is in memory at the
                start?
            cuda.blockIdx.x * D => 0
                All blocks write to the first part. Who else adds there at the same time?
            block_sum(total, parts) => warp_sum(total)
                Each warp takes its own sum for that of the row. How many warps share a row?
            block_sum(total, parts) => total
                Each thread takes its own part of the sum for that of the row. Who adds up the
                parts?
            dgamma_parts[mine + c] += d * xhat => pass
                Your parts stay zero. Which sum does each hold at the end?
            dgamma_parts[mine + c] += d * xhat => dgamma_parts[mine + c] = d * xhat
                Each row overwrites the part of the rows before it.
            base, r, total = row * D, rstd[row], float32(0) => base, r = row * D, rstd[row]
            & mine = cuda.blockIdx.x * D => mine, total = cuda.blockIdx.x * D, float32(0)
                The sum over a row is not started anew: each row adds to those before it.
            dgamma_parts[mine + c] = float32(0) => pass
            & += d * xhat => = d * xhat
                Each row overwrites the part of the rows before it.
        """),
    ),
    Exercise(
        "choose-partials",
        20,
        "derive",
        choose_partials_solution,
        (
            _partials("few rows", _few_rows, (1, 128, 40), (100, 128, 40), (100, 256, 132)),
            # More than 512 threads make no group run, and a loop over multiples of none never ends.
            # So a wrong number has to fail on short rows, where it is no larger than that: with one
            # number for a thread it is 256. With <= for < a row of 4096 takes 1024 threads: no
            # check of long rows has one.
            _partials(
                "many rows",
                _many_rows,
                (8192, 252, 132),
                (10**6, 256, 132),
                (65536, 64, 40),
                (135168, 128, 132),
                (135169, 128, 132),
            ),
            _partials(
                "many long rows",
                _many_rows,
                (8192, 768, 132),
                (10**6, 512, 132),
                (50_000, 260, 108),
                (16896, 2048, 132),
                (16897, 2048, 132),
                (10**5, 4092, 40),
                (297_000, 2052, 108),
                alone=True,
            ),
            _partials(
                "their share of the bytes",
                _share,
                (10**6, 512, 132),
                (8192, 2048, 132),
                (100, 128, 40),
                alone=True,
            ),
        ),
        mistakes=changes(r"""
            *= 2 => += 32
                Your number of threads need not be a power of two. Which does the docstring ask for?
            512 // threads => 1024 // threads
                You count twice as many groups at once, for such rows. How many threads does a
                multiprocessor run?
            64 * G < N => 128 * G < N
                Your sums have 128 rows at most. How many may they have?
            * (512 // threads) =>
                One group is counted for each multiprocessor. How many run on it at once?
            G = groups\n    while 64 * G < N:\n        G += groups => G = -(-N // 64)
                Your G is as many sums as 64 rows each need. Of which number must it be a multiple?
            G = groups\n    while 64 * G < N:\n        G += groups => G = groups
                Your G is the number of groups that run at once. How many rows has a sum then?
            G = min(G, N) => pass
                There may be more partial sums than rows: some have nothing to add.
            (12 * N + 16 * G) => (12 * N)
                The partial sums are compared with the other bytes. A share is a part of which
                whole?
        """),
    ),
    Exercise(
        "second-stage",
        15,
        "implement",
        second_stage_solution,
        (
            _stage("sums", _sums, (1, 64), (5, 128), (6, 72)),
            _stage("in order", _in_order, (50, 64)),
            _stage("each number once, four sectors a request", _side_by_side, (6, 128), (3, 72)),
        ),
        mistakes=changes(r"""
            part * D + c => c * G + part
                The parts are read as if a column's numbers were neighbours. How are they stored?
            if c < D => if True
                Threads beyond the last column take part. How many threads are there, and how many
                columns?
            value += parts => value = parts
                Each part takes the place of those before it.
            total[c] = value => total[c] = value / float32(G)
                These are means. What is asked for is a sum.
            range(G) => range(1, G)
                The first partial sum is left out.
            range(G) => range(G - 1, -1, -1)
                The parts are added from the last to the first. Does the order change the bits?
            cuda.grid(1) => cuda.threadIdx.x
                Every block does the same 64 columns. What tells its threads from those of another
                block?
            cuda.grid(1) => cuda.grid(1) // 32
            & total[c] = value => if cuda.threadIdx.x % 32 == 0:\n            total[c] = value
                A warp does a column, and there is a thread for each. Which columns are left?
        """),
    ),
)
