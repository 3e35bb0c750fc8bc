"""Exercises of chapter 12, the backward pass on a GPU. Kernels of readers run in the interpreter, lnlib.simt."""

import numpy as np

from .. import simt
from ..diagnose import diagnose
from ..gpu.ladder import block_sum, warp_sum
from ..layernorm import rms_norm_backward, rms_norm_forward
from ..simt.cuda_access import cuda, float32
from . import Exercise, Mistake, expect, expect_close, expect_parts
from .backward import RMS_NORM
from .ch11 import noted

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


#: For each kernel its threads, and how many numbers it reads and writes.
VARIANTS = {one_side: (64, 192), two_sides: (64, 192), some_threads: (64, 40), one_warp: (32, 32)}

WORDS = "race", "divergent", "nothing"


def verdict(kernel, threads, numbers):
    """What the interpreter says of a kernel, as one of WORDS, and its message."""
    x, out = np.arange(numbers, dtype=np.float32), simt.uninitialised(numbers, np.float32)
    try:
        simt.launch(kernel, 1, threads, x, out)
    except (simt.DataRace, simt.UninitialisedRead) as error:
        return "race", str(error)
    except simt.DivergentBarrier as error:
        return "divergent", str(error)
    return "nothing", "no complaint"


def missing_barrier():
    """What the interpreter says of each of the four kernels.

    Returns a dict with the keys "one_side", "two_sides",
    "some_threads", "one_warp"; each value is "race", "divergent"
    or "nothing".  A block has 64 threads, that of one_warp 32.
    """
    raise NotImplementedError("which thread may be too early?")


def missing_barrier_solution():
    return {
        "one_side": "race",
        "two_sides": "nothing",
        "some_threads": "divergent",
        "one_warp": "race",
    }


def _answers(candidate):
    answers = candidate()
    expect(isinstance(answers, dict), f"found {type(answers).__name__}, expected a dict; is a return missing?")
    names = [kernel.__name__ for kernel in VARIANTS]
    expect(sorted(answers) == sorted(names), f"found the keys {sorted(map(str, answers))}, expected {sorted(names)}")
    for name, word in answers.items():
        expect(word in WORDS, f"{name}: found {word!r}, expected one of {', '.join(WORDS)}")
    return answers


def _four_words(candidate, rng):
    _answers(candidate)


def _as_interpreted(candidate, rng):
    answers = _answers(candidate)
    for kernel, (threads, numbers) in VARIANTS.items():
        word, message = verdict(kernel, threads, numbers)
        mine = answers[kernel.__name__]
        expect(mine == word, f"{kernel.__name__}: you say {mine}, the interpreter says: {message}")


def rms_backward(dy, x, rstd, gamma, dx, dgamma_parts, M, D):
    """Backward kernel of RMS norm: dx, and partial sums of dgamma.

    dx = rstd * (g - xhat * mean(g * xhat)) with g = gamma * dy and
    xhat = rstd * x.  dgamma is the sum of dy * xhat over the rows.
    Flat float32 arrays.  dy, x, dx: M rows of D numbers, one after
    the other.  rstd: M.  gamma: D.  dgamma_parts: a row of D for
    each block, not yet written; cuda.blockIdx.x says which.
    Blocks of 64 threads, cuda.gridDim.x of them, which may be more
    than M; no atomics.
    Change no input.  Load each number of dy and x twice at most,
    store each of dx once and never load it; at each of these,
    neighbouring threads take neighbouring columns.
    """
    raise NotImplementedError("which rows are this block's?")


def rms_backward_solution(dy, x, rstd, gamma, dx, dgamma_parts, M, D):
    parts = cuda.shared.array(32, float32)
    t, T = cuda.threadIdx.x, cuda.blockDim.x
    mine = cuda.blockIdx.x * D
    for c in range(t, D, T):
        dgamma_parts[mine + c] = float32(0)
    for row in range(cuda.blockIdx.x, M, cuda.gridDim.x):
        base, r, total = row * D, rstd[row], float32(0)
        for c in range(t, D, T):
            total += gamma[c] * dy[base + c] * (x[base + c] * r)
        mean = block_sum(total, parts) / float32(D)
        for c in range(t, D, T):
            d, xhat = dy[base + c], x[base + c] * r
            dx[base + c] = r * (gamma[c] * d - xhat * mean)
            dgamma_parts[mine + c] += d * xhat


def _launched(candidate, rng, M=7, D=100, blocks=3):
    """Run the candidate; what it was given, what it made, and the log."""
    x, dy = rng.standard_normal((2, M, D), np.float32)
    gamma = rng.uniform(0.5, 2, D).astype(np.float32)
    cache = rms_norm_forward(x, gamma, 0.1)[1]
    dx, parts = simt.uninitialised(M * D, np.float32), simt.uninitialised(blocks * D, np.float32)
    given = [dy.reshape(-1), x.reshape(-1), cache.rstd.reshape(-1).copy(), gamma]
    before = [a.copy() for a in given]
    with noted(dx, parts):
        run = simt.launch(candidate, blocks, 64, *given, dx, parts, M, D, log=True)
    for name, old, new in zip(("dy", "x", "rstd", "gamma"), before, given):
        expect(np.array_equal(old, new), f"your kernel changed {name}")
    return dy, cache, dx.reshape(M, D), parts.reshape(blocks, D), run


def _written(name, array):
    missing = int(np.isnan(array).sum())
    expect(not missing, f"{missing} of {array.size} numbers of {name} were not written")


def _rms_dx(candidate, rng):
    dy, cache, dx, _, _ = _launched(candidate, rng)
    _written("dx", dx)
    g, xhat, r = cache.gamma * dy, cache.xhat, cache.rstd
    projection = xhat * (g * xhat).mean(axis=1, keepdims=True)
    for mistake, wrong in (("dx is layer norm's: RMS norm subtracts no mean of g",
                            r * (g - g.mean(axis=1, keepdims=True) - projection)),
                           ("dx lacks the term with xhat", r * g),
                           ("dx lacks the factor rstd", g - projection),
                           ("the sum of g * xhat was not divided by D", r * (g - projection * dx.shape[1])),
                           ("dx lacks gamma", rms_norm_backward(dy, cache._replace(gamma=cache.gamma * 0 + 1))[0])):
        expect(not np.allclose(dx, wrong, rtol=1e-3), mistake)
    # A sum of D = 100 terms in any order and ten more operations, kappa below 2: 2 (D + 10) u at most.
    expect_close(dx, rms_norm_backward(dy, cache)[0], 220 * 2.0**-24, "dx")


def _rms_dgamma(candidate, rng):
    for blocks in (1, 3, 8):  # of seven rows: the last block of eight has none
        dy, cache, _, parts, _ = _launched(candidate, rng, blocks=blocks)
        _written("dgamma_parts", parts)
        terms = dy * cache.xhat
        # Seven rows of either sign, added in float32: a few u, each up to three times the size of the sum.
        expect(not np.allclose(parts.sum(axis=0), (cache.gamma * terms).sum(axis=0), rtol=1e-3),
               "dgamma_parts have gamma in them: the terms are dy * xhat")
        expect(not np.allclose(parts[-1], terms[-1], rtol=1e-3) or blocks > 1,
               "dgamma_parts hold the last row only; add to them")
        expect_close(parts.sum(axis=0), rms_norm_backward(dy, cache)[1], 1e-5,
                     f"the sum of dgamma_parts of {blocks} blocks")


def _rms_traffic(candidate, rng):
    _, cache, _, _, run = _launched(candidate, rng)
    expect(not any(a.kind == "atomic" for a in run.accesses), "your kernel uses atomics; a part belongs to one block")
    n = cache.xhat.nbytes
    for (name, kind), traffic in simt.sectors(run).items():
        if name in ("dy", "x", "dx"):
            times = traffic.bytes_used / n
            most = 1 if name == "dx" else 2
            expect((kind == "store") == (name == "dx"), f"your kernel has {kind}s of {name}")
            expect(times <= most, f"each number of {name} is part of {times:.0f} {kind}s, expected {most} at most")
            # 32 neighbours lie in 4 sectors, or in 5 where a row does not begin with one.
            expect(traffic.sectors_per_request <= 5, f"{kind}s of {name} touch {traffic.sectors_per_request:.1f} "
                   f"sectors a request; neighbouring threads should take neighbouring columns")


def _which_mistake(candidate):
    def backward(dy, cache):
        (M, D), blocks = dy.shape, 2
        given = [a.astype(np.float32).ravel() for a in (dy, cache.xhat / cache.rstd, cache.rstd, cache.gamma)]
        dx, parts = simt.uninitialised(M * D, np.float32), simt.uninitialised(blocks * D, np.float32)
        simt.launch(candidate, blocks, 64, *given, dx, parts, M, D)
        return dx.reshape(M, D), parts.reshape(blocks, D).sum(axis=0)
    return diagnose(backward, RMS_NORM)


def choose_partials(M, D, multiprocessors):
    """How many partial sums, and their share of the bytes.

    A row of D numbers, a multiple of 4 up to 8192, has T threads:
    a power of two, the smallest from 32 on with at most 16 numbers
    for a thread.  A multiprocessor runs 512 // T groups at once.
    Returns (G, share).  G, an int: the smallest multiple of the
    number of groups that the GPU runs at once such that no sum has
    more than 64 rows; M, if that is smaller.  share, a float, not
    rounded: of the bytes that both kernels move, those of the
    partial sums; 12 bytes an element of x and 16 a column of each
    of the G partial sums, nothing else counted.
    """
    raise NotImplementedError("how many groups run at once?")


def choose_partials_solution(M, D, multiprocessors):
    T = 32
    while 16 * T < D:
        T *= 2
    groups = multiprocessors * (512 // T)
    G = groups
    while 64 * G < M:
        G += groups
    G = min(G, M)
    return G, 16 * G / (12 * M + 16 * G)


def _partials(candidate, M, D, multiprocessors):
    G, share = expect_parts(candidate(M, D, multiprocessors), 2, "numbers")
    case = f"M = {M}, D = {D}, {multiprocessors} multiprocessors"
    expect(np.shape(G) == () and np.asarray(G).dtype.kind in "iu", f"{case}: G is {G!r}, expected a whole number")
    return int(G), share, case


def _few_rows(candidate, rng):
    for M, D, multiprocessors in ((1, 128, 40), (100, 128, 40), (100, 512, 132)):
        G, _, case = _partials(candidate, M, D, multiprocessors)
        expect(G <= M, f"{case}: {G} partial sums are more than there are rows")
        expect(G == choose_partials_solution(M, D, multiprocessors)[0], f"{case}: found {G} partial sums, expected "
               f"{choose_partials_solution(M, D, multiprocessors)[0]}")


def _many_rows(*cases):
    def test(candidate, rng):
        for M, D, multiprocessors in cases:
            G, _, case = _partials(candidate, M, D, multiprocessors)
            expect(-(-M // G) <= 64, f"{case}: with {G} partial sums one of them has {-(-M // G)} rows")
            right = choose_partials_solution(M, D, multiprocessors)[0]
            groups = multiprocessors * (512 // max(32, 1 << (-(-D // 16) - 1).bit_length()))
            expect(G % groups == 0,
                   f"{case}: {groups} groups run at once, and some would get more of {G} sums than others")
            expect(G == right, f"{case}: {right} partial sums will do, found {G}")
    return test


def _share(candidate, rng):
    for M, D, multiprocessors in ((10**6, 1024, 132), (8192, 4096, 132), (100, 128, 40)):
        _, share, case = _partials(candidate, M, D, multiprocessors)
        right = choose_partials_solution(M, D, multiprocessors)[1]
        expect(abs(share - right) <= 1e-9, f"{case}: the share is {share}, expected {right:.6f}")


def second_stage(parts, total, G, D):
    """Kernel: total[c] is the sum of parts[0, c], parts[1, c], ...

    Flat float32 arrays.  parts: G rows of D numbers, one after the
    other.  total: D, not yet written.  Added in the order of the
    rows, from 0; no atomics.  Blocks of 64 threads; all together
    there is at least one thread for each column.  Load each number
    of parts once and write each of total once, with four sectors a
    request at most.
    """
    raise NotImplementedError("which column is this thread's?")


def second_stage_solution(parts, total, G, D):
    c, value = cuda.grid(1), float32(0)
    if c < D:
        for part in range(G):
            value += parts[part * D + c]
        total[c] = value


def _summed(candidate, rng, G, D):
    parts = (100 + rng.standard_normal((G, D))).astype(np.float32)
    total = simt.uninitialised(D, np.float32)
    with noted(total):
        run = simt.launch(candidate, -(-D // 64), 64, parts.reshape(-1).copy(), total, G, D, log=True)
    return parts, total, run


def _sums(candidate, rng):
    for G, D in ((1, 64), (5, 128), (6, 72)):
        parts, total, _ = _summed(candidate, rng, G, D)
        _written("total", total)
        # G terms of one sign: G u at most.
        expect_close(total, parts.sum(axis=0), 2 * G * 2.0**-24, f"the total of {G} rows of {D} numbers")


def _in_order(candidate, rng):
    parts, total, run = _summed(candidate, rng, 50, 64)
    expect(not any(a.kind == "atomic" for a in run.accesses), "your kernel uses atomics, which come in any order")
    expect(not np.array_equal(total, np.cumsum(parts[::-1], axis=0)[-1]), "50 rows: you begin with the last one")
    expect(np.array_equal(total, np.cumsum(parts, axis=0)[-1]),
           "50 rows: not the bits of row 0 + row 1 + row 2 + ...; in which order do you add?")


def _side_by_side(candidate, rng):
    for G, D in ((6, 128), (3, 72)):
        for (name, kind), traffic in simt.sectors(_summed(candidate, rng, G, D)[2]).items():
            expect(traffic.sectors_per_request <= 4, f"{kind}s of {name} touch {traffic.sectors_per_request:.1f} "
                   f"sectors a request, 4 will do; neighbouring threads should take neighbouring columns")
            size = 4 * D * (G if name == "parts" else 1)
            expect(traffic.bytes_used == size,
                   f"{kind}s of {name} ask for {traffic.bytes_used} bytes, expected {size}: each number once")


EXERCISES = (
    Exercise("missing-barrier", 12, "Four sums, not all right", missing_barrier, missing_barrier_solution,
             (("four words", _four_words),
              ("as the interpreter says", _as_interpreted)),
             mistakes=(Mistake('"one_side": "race"', '"one_side": "nothing"',
                               "You take one_side for sound. What may a warp that is ahead do in the next row "
                               "while the other still reads?"),
                       Mistake('"two_sides": "nothing"', '"two_sides": "race"',
                               "You suspect two_sides. Which barrier lies between the last reading of a side "
                               "and its next writing?"),
                       Mistake('"some_threads": "divergent"', '"some_threads": "nothing"',
                               "You take some_threads for sound. Which threads of the block come to its barrier?"),
                       Mistake('"some_threads": "divergent"', '"some_threads": "race"',
                               "You see a race in some_threads. All that read have waited; for whom do they "
                               "wait?"),
                       Mistake('"one_warp": "race"', '"one_warp": "nothing"',
                               "You take one_warp for sound. What promises that a warp's threads are at the "
                               "same line?"))),
    Exercise("rms-backward", 12, "RMS norm, backwards in one kernel", rms_backward, rms_backward_solution,
             (("dx", _rms_dx),
              ("partial sums of dgamma", _rms_dgamma),
              ("no atomics, two readings, neighbours", _rms_traffic)), _which_mistake,
             mistakes=(Mistake("dgamma_parts[mine + c] = float32(0)", "pass",
                               "The parts are added to before they are written. What stands in memory at the "
                               "start?"),
                       Mistake("mine = cuda.blockIdx.x * D", "mine = 0",
                               "All blocks write to the first part. Who else adds there at the same time?"),
                       Mistake("block_sum(total, parts)", "warp_sum(total)",
                               "Each warp takes its own sum for that of the row. How many warps share a row?"),
                       Mistake("range(cuda.blockIdx.x, M, cuda.gridDim.x)",
                               "range(cuda.blockIdx.x, min(M, cuda.blockIdx.x + 1))",
                               "Each block does one row and stops. Who does the others?"),
                       Mistake("dgamma_parts[mine + c] += d * xhat", "dgamma_parts[mine + c] = d * xhat",
                               "Each row overwrites the part of the rows before it."))),
    Exercise("choose-partials", 12, "How many partial sums?", choose_partials, choose_partials_solution,
             (("few rows", _few_rows),
              # A T above 512 makes no group run, and a loop over multiples of none never ends. So a wrong T has to
              # fail on short rows, where it is no larger than that: with one number for a thread it is 512.
              ("many rows", _many_rows((10**6, 512, 132), (65536, 128, 40), (135168, 256, 132))),
              ("many long rows", _many_rows((10**6, 1024, 132), (65536, 516, 108), (16896, 4096, 132),
                                            (10**5, 8192, 40), (300000, 4100, 108))),
              ("their share of the bytes", _share)),
             mistakes=(Mistake("while 64 * G < M", "while 64 * G <= M",
                               "Where each sum has just 64 rows, you make more sums. Is 64 too many?"),
                       Mistake("while 64 * G < M", "while 64 * (G + groups) <= M",
                               "The number of rounds is rounded down. How many rows has a sum then, at most?"),
                       Mistake("multiprocessors * (512 // T)", "multiprocessors * 512",
                               "A group is counted as one thread. How many has it?"),
                       Mistake("multiprocessors * (512 // T)", "multiprocessors",
                               "One group is counted for each multiprocessor. How many run on it at once?"),
                       Mistake("G += groups", "G *= 2",
                               "Your G is doubled until it suffices. Which multiples are skipped?"),
                       Mistake("G = min(G, M)", "pass",
                               "There may be more partial sums than rows: some have nothing to add."),
                       Mistake("(12 * M + 16 * G)", "(12 * M)",
                               "The partial sums are compared with the other bytes. A share is a part of which "
                               "whole?"))),
    Exercise("second-stage", 12, "The second stage", second_stage, second_stage_solution,
             (("sums", _sums),
              ("in order", _in_order),
              ("each number once, four sectors a request", _side_by_side)),
             mistakes=(Mistake("part * D + c", "c * G + part",
                               "The parts are read as if a column's numbers were neighbours. How are they "
                               "stored?"),
                       Mistake("if c < D", "if True",
                               "Threads beyond the last column take part. How many threads are there, and how "
                               "many columns?"),
                       Mistake("range(G)", "range(1, G)",
                               "The first partial sum is left out."),
                       Mistake("range(G)", "range(G - 1, -1, -1)",
                               "The parts are added from the last to the first. Does the order change the bits?"),
                       Mistake("cuda.grid(1)", "cuda.threadIdx.x",
                               "Every block does the same 64 columns. What tells its threads from those of "
                               "another block?"))),
)
