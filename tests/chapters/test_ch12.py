"""Chapter 12: its exercises refuse wrong answers and say why, its figures draw what they are given."""

import itertools
import math
import random

import matplotlib
import numpy as np
import pytest
from attempts import failed
from questions import percent, says

matplotlib.use("agg")

from lnlib import exercises, gpu, simt  # noqa: E402
from lnlib.simt.cuda_access import cuda, float32  # noqa: E402
from lnlib.exercises import ch12  # noqa: E402
from lnlib.figures import fusing  # noqa: E402
from lnlib.gpu.ladder import block_sum  # noqa: E402
from lnlib.summation import sum_rows  # noqa: E402

# Exercises: each attempt is a mistake a reader may make


def answering(**changes):
    return lambda: ch12.missing_barrier_solution() | changes


@pytest.mark.parametrize("attempt, check, words", [
    (lambda: None, "four words", "is a return missing"),
    (lambda: {"one_side": "race"}, "four words", "found the keys"),
    (answering(one_side="a race"), "four words", "expected one of race, divergent, nothing"),
    (answering(one_side="nothing"), "as the interpreter says", "one_side: you say nothing"),
    (answering(two_sides="race"), "as the interpreter says", "no complaint"),
    (answering(some_threads="race"), "as the interpreter says", "has returned"),
    (answering(one_warp="nothing"), "as the interpreter says", "no barrier orders"),
])
def test_missing_barrier_refuses(attempt, check, words):
    assert failed("missing-barrier", attempt, words) == check


def test_the_variant_without_complaint_is_right():
    x, out = np.arange(192, dtype=np.float32), np.zeros(192, np.float32)
    simt.launch(ch12.two_sides, 1, 64, x, out)
    assert np.array_equal(out.reshape(3, 64)[:, 0], x.reshape(3, 64).sum(axis=1))
    assert np.ptp(out.reshape(3, 64), axis=1).max() == 0


def of_xhat(g, d, xhat):
    return d * xhat


def upstream_alone(g, d, xhat):
    return d


def gamma_twice(g, d, xhat):
    return g * xhat


def rms(dx_of, *, term=of_xhat):
    """An answer with dx = dx_of(r, g, d, xhat, sum of g, sum of g xhat, D) and some term of dgamma."""
    def kernel(dy, x, rstd, gamma, dx, dgamma_parts, M, D):
        parts = cuda.shared.array(32, float32)
        t, T, mine = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * D
        for c in range(t, D, T):
            dgamma_parts[mine + c] = float32(0)
        for row in range(cuda.blockIdx.x, M, cuda.gridDim.x):
            base, r, total, g_total = row * D, rstd[row], float32(0), float32(0)
            for c in range(t, D, T):
                g = gamma[c] * dy[base + c]
                total += g * (x[base + c] * r)
                g_total += g
            total = block_sum(total, parts)
            g_total = block_sum(g_total, parts)
            for c in range(t, D, T):
                d, xhat = dy[base + c], x[base + c] * r
                dx[base + c] = dx_of(r, gamma[c] * d, d, xhat, g_total, total, float32(D))
                dgamma_parts[mine + c] += term(gamma[c] * d, d, xhat)
    return kernel


def right(r, g, d, xhat, a, b, D):
    return r * (g - xhat * (b / D))


def layer_norms(r, g, d, xhat, a, b, D):
    return r * (g - a / D - xhat * (b / D))


def wrong_sign(r, g, d, xhat, a, b, D):
    return r * (g + xhat * (b / D))


def without_division(r, g, d, xhat, a, b, D):
    return r * (g - xhat * b)


def in_atomics(dy, x, rstd, gamma, dx, dgamma_parts, M, D):
    parts = cuda.shared.array(32, float32)
    t, T, mine = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * D
    for c in range(t, D, T):
        dgamma_parts[mine + c] = float32(0)
    cuda.syncthreads()
    for row in range(cuda.blockIdx.x, M, cuda.gridDim.x):
        base, r, total = row * D, rstd[row], float32(0)
        for c in range(t, D, T):
            total += gamma[c] * dy[base + c] * (x[base + c] * r)
        mean = block_sum(total, parts) / float32(D)
        for c in range(t, D, T):
            d, xhat = dy[base + c], x[base + c] * r
            dx[base + c] = r * (gamma[c] * d - xhat * mean)
            cuda.atomic.add(dgamma_parts, mine + c, d * xhat)


def nothing(dy, x, rstd, gamma, dx, dgamma_parts, M, D):
    pass


def in_steps(order):
    """The solution with g kept in dy, with one more loop, or with a look at dx."""
    def kernel(dy, x, rstd, gamma, dx, dgamma_parts, M, D):
        parts = cuda.shared.array(32, float32)
        t, T, mine = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * D
        for c in range(t, D, T):
            dgamma_parts[mine + c] = float32(0)
        for row in range(cuda.blockIdx.x, M, cuda.gridDim.x):
            base, r, total = row * D, rstd[row], float32(0)
            for c in range(t, D, T):
                d, xhat = dy[base + c], x[base + c] * r
                dgamma_parts[mine + c] += d * xhat
                total += gamma[c] * d * xhat
                if order == "in dy":
                    dy[base + c] = gamma[c] * d
            mean = block_sum(total, parts) / float32(D)
            if order == "another loop":
                for c in range(t, D, T):
                    total += dy[base + c]
            for c in range(t, D, T):
                xhat = x[base + c] * r
                if order == "in dy":
                    dx[base + c] = r * (dy[base + c] - xhat * mean)
                else:
                    dx[base + c] = r * (gamma[c] * dy[base + c] - xhat * mean)
                if order == "reads dx":
                    total += dx[base + c]
    return kernel


def first_row_stored(dy, x, rstd, gamma, dx, dgamma_parts, M, D):
    """A block without a row leaves its partial sums unwritten."""
    parts = cuda.shared.array(32, float32)
    t, T, mine = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * D
    for row in range(cuda.blockIdx.x, M, cuda.gridDim.x):
        base, r, total = row * D, rstd[row], float32(0)
        for c in range(t, D, T):
            total += gamma[c] * dy[base + c] * (x[base + c] * r)
        mean = block_sum(total, parts) / float32(D)
        for c in range(t, D, T):
            d, xhat = dy[base + c], x[base + c] * r
            dx[base + c] = r * (gamma[c] * d - xhat * mean)
            if row == cuda.blockIdx.x:
                dgamma_parts[mine + c] = d * xhat
            else:
                dgamma_parts[mine + c] += d * xhat


def in_one_place(dy, x, rstd, gamma, dx, dgamma_parts, M, D):
    """All blocks add to the first row of partial sums."""
    for row in range(cuda.blockIdx.x, M, cuda.gridDim.x):
        for c in range(cuda.threadIdx.x, D, cuda.blockDim.x):
            dx[row * D + c] = float32(0)
            dgamma_parts[c] = x[row * D + c]


def neighbours_to_one_thread(dy, x, rstd, gamma, dx, dgamma_parts, M, D):
    parts = cuda.shared.array(32, float32)
    t, mine, each = cuda.threadIdx.x, cuda.blockIdx.x * D, (D + 63) // 64
    for c in range(t * each, min(t * each + each, D)):
        dgamma_parts[mine + c] = float32(0)
    for row in range(cuda.blockIdx.x, M, cuda.gridDim.x):
        base, r, total = row * D, rstd[row], float32(0)
        for c in range(t * each, min(t * each + each, D)):
            total += gamma[c] * dy[base + c] * (x[base + c] * r)
        mean = block_sum(total, parts) / float32(D)
        for c in range(t * each, min(t * each + each, D)):
            d, xhat = dy[base + c], x[base + c] * r
            dx[base + c] = r * (gamma[c] * d - xhat * mean)
            dgamma_parts[mine + c] += d * xhat


@pytest.mark.parametrize("attempt, check, words", [
    (nothing, "dx", "numbers of dx were not written"),
    (rms(wrong_sign), "dx", "the projection has the wrong sign"),
    (rms(layer_norms), "dx", "a mean is subtracted, as in layer norm"),
    (rms(without_division), "dx", "the projection is multiplied by D"),
    (rms(right, term=gamma_twice), "partial sums of dgamma", "dgamma carries gamma"),
    (rms(right, term=upstream_alone), "partial sums of dgamma", "is off by"),
    (first_row_stored, "partial sums of dgamma", "100 of 800 numbers of dgamma_parts were not written"),
    (in_one_place, "dx", "raised DataRace"),
    (in_steps("in dy"), "dx", "changed its argument dy"),
    (in_steps("reads dx"), "no atomics, two readings, neighbours", "loads of dx"),
    (in_steps("another loop"), "no atomics, two readings, neighbours", "part of 3 loads"),
    (in_atomics, "no atomics, two readings, neighbours", "uses atomics"),
    (neighbours_to_one_thread, "no atomics, two readings, neighbours", "neighbouring threads"),
])
def test_rms_backward_refuses(attempt, check, words):
    assert failed("rms-backward", attempt, words) == check


def test_rms_backward_takes_other_ways_to_write_it():
    assert failed("rms-backward", rms(right)) is None


def test_choose_partials_is_the_plan():
    rng = random.Random(12)
    for _ in range(500):
        M, D = rng.choice((1, 5, 100, 1000, 8192, 65536, 300001)), 4 * rng.randint(1, 2048)
        multiprocessors = rng.choice((1, 40, 108, 132))
        plan = gpu.plans.plan_backward(M, D, 4, multiprocessors=multiprocessors)
        assert ch12.choose_partials_solution(M, D, multiprocessors)[0] == plan.partials


def with_share(G_of):
    def attempt(M, D, multiprocessors):
        G = G_of(M, multiprocessors, multiprocessors * (512 // threads_of(D)))
        return G, 16 * G / (12 * M + 16 * G)
    return attempt


def threads_of(D):
    return next(T for T in (32, 64, 128, 256, 512) if 16 * T >= D)


@pytest.mark.parametrize("attempt, check, words", [
    (with_share(lambda M, P, groups: groups), "few rows", "more than there are rows"),
    (with_share(lambda M, P, groups: min(M, groups)), "many rows", "one of them has"),
    (with_share(lambda M, P, groups: min(M, max(groups, -(-M // 64)))), "many rows", "more of"),
    (with_share(lambda M, P, groups: min(M, groups * (M // (64 * groups) + 1))), "many rows", "will do"),
    (with_share(lambda M, P, groups: min(M, 2 * groups * -(-M // (64 * groups)))), "many rows", "will do"),
    (with_share(lambda M, P, groups: min(M, P * -(-M // (64 * P)))), "few rows", "expected"),
    (lambda M, D, P: (ch12.choose_partials_solution(M, D, P)[0], 0.02), "their share of the bytes", "share is 0.02"),
    (lambda M, D, P: ch12.choose_partials_solution(M, D, P)[0], "few rows", "expected 2 numbers"),
    (lambda M, D, P: (float(ch12.choose_partials_solution(M, D, P)[0]), 0.02), "few rows", "expected a whole number"),
])
def test_choose_partials_refuses(attempt, check, words):
    assert failed("choose-partials", attempt, words) == check


@pytest.mark.parametrize("numbers, strict", [(16, True), (8, False), (4, False), (1, False)])
def test_a_wrong_number_of_threads_fails_before_a_loop_over_no_groups(numbers, strict):
    asked = []

    def attempt(M, D, multiprocessors):
        T = 32
        while numbers * T < D + strict:
            T *= 2
        asked.append(T)
        groups = multiprocessors * (512 // T)
        G = min(M, groups * -(-M // (64 * groups)))
        return G, 16 * G / (12 * M + 16 * G)

    # With more than 512 threads a multiple of 0 is looked for: a loop would not end, here or while mistakes are told.
    assert failed("choose-partials", attempt) == "many rows" and max(asked) <= 512


def a_row_apart(parts, total, G, D):
    """A thread reads neighbours; its columns lie side by side."""
    first = cuda.threadIdx.x * 2
    if cuda.blockIdx.x % 2 == 0:
        for c in range(first + cuda.blockIdx.x * 64, min(first + cuda.blockIdx.x * 64 + 2, D)):
            value = float32(0)
            for part in range(G):
                value += parts[part * D + c]
            total[c] = value


def without_the_last(parts, total, G, D):
    c, value = cuda.grid(1), float32(0)
    if c < D:
        for part in range(max(G - 1, 1)):
            value += parts[part * D + c]
        total[c] = value


def read_twice(parts, total, G, D):
    c, value, largest = cuda.grid(1), float32(0), float32(0)
    if c < D:
        for part in range(G):
            largest = max(largest, parts[part * D + c])
        for part in range(G):
            value += parts[part * D + c]
        total[c] = value


def in_memory(parts, total, G, D):
    c = cuda.grid(1)
    if c < D:
        total[c] = float32(0)
        for part in range(G):
            total[c] += parts[part * D + c]


def atomics(parts, total, G, D):
    c = cuda.grid(1)
    if c < D:
        total[c] = float32(0)
        for part in range(G):
            cuda.atomic.add(total, c, parts[part * D + c])


@pytest.mark.parametrize("attempt, check, words", [
    (without_the_last, "sums", "is off by"),
    (read_twice, "each number once, four sectors a request", "ask for"),
    (in_memory, "each number once, four sectors a request", "of total"),
    (atomics, "in order", "uses atomics"),
    (a_row_apart, "each number once, four sectors a request", "neighbouring numbers"),
])
def test_second_stage_refuses(attempt, check, words):
    assert failed("second-stage", attempt, words) == check


def block_for_a_column(parts, total, G, D):
    shared, t = cuda.shared.array(32, float32), cuda.threadIdx.x
    for c in range(cuda.blockIdx.x, D, cuda.gridDim.x):
        value = float32(0)
        for part in range(t, G, 64):
            value += parts[part * D + c]
        value = block_sum(value, shared)
        if t == 0:
            total[c] = value


def test_an_order_of_another_kind_is_not_taken_for_the_last_part_first():
    report = exercises.check("second-stage", block_for_a_column)
    assert report.failed[0] == "in order" and "from the last" not in str(report.diagnosis), report


# Figures

def access(block, address, size=4):
    return simt.Access(block, 0, "global", "a", "store", address, size, 1, (), 0)


def test_writers_draws_what_blocks_touch():
    panels = {"one place": [access(b, 4 * c) for b in range(3) for c in range(8)],
              "apart": [access(b, 32 * b + 16 * c, 16) for b in range(2) for c in range(2)]}
    first, second = fusing.writers(panels).axes

    def boxes(ax):
        return [path.get_extents().bounds for bars in ax.collections for path in bars.get_paths()]

    assert [(x, y + h / 2, w) for x, y, w, h in boxes(first)] == [(0, 0, 32), (0, 1, 32), (0, 2, 32)]
    assert [(x, y + h / 2, w) for x, y, w, h in boxes(second)] == [(0, 0, 32), (32, 1, 32)]
    assert first.get_xlim() == second.get_xlim() and first.get_ylim()[0] > first.get_ylim()[1]


def test_sums_by_order_counts_runs():
    ax, = fusing.sums_by_order(np.array([-1.0, 0.0, 0.0, 2.0]), 0.5).axes
    heights = [bar.get_height() for bar in ax.patches]
    assert sum(heights) == 4 and max(heights) == 2
    assert ax.lines[0].get_xdata()[0] == 0.5


def test_partial_traffic_draws_line_points_and_levels():
    ax, = fusing.partial_traffic({0.25: 16.0, 0.5: 20.0, 1.0: 28.0}, {0.25: 16.0, 1.0: 28.0}, {"two": 20.0}).axes
    line, points, level = ax.lines
    assert list(line.get_ydata()) == [16, 20, 28] and list(points.get_xdata()) == [0.25, 1]
    assert level.get_ydata()[0] == 20
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1/4", "1"]


# Questions: the numbers in the answers are computed, then looked for in their text

def test_question_1_bytes_in_half_precision():
    def equal(itemsize):  # G/M at which 3 arrays and the partial sums move as much as 5 arrays
        return (5 - 3) * itemsize / 16

    says("12.1", f"{5 * 2}, and $6 + 16\\,G/M$", f"1/{1 / equal(2):.0f}", f"1/{1 / equal(4):.0f}")
    p = gpu.steps.STEPS["fused-partials"].predict
    assert (p(64, 128, 32).bytes - p(64, 128, 16).bytes) / (64 * 128) == 16 * 16 / 64
    half, single = (16 / 64 / (3 * itemsize + 16 / 64) for itemsize in (2, 4))
    says("12.1", f"{percent(half)} of", percent(single))


def test_question_2_integers_do_not_round():
    rng = np.random.default_rng(11)
    terms = np.prod(rng.integers(-3, 4, (2, 100_000, 4)), axis=0).astype(np.float32)
    assert 9 * 100_000 < 2**24
    for order in (terms, rng.permutation(terms), rng.permutation(terms)):
        assert np.array_equal(sum_rows(order, "sequential"), terms.sum(axis=0, dtype=float))
    # A block of rows that every run misses leaves equal bits, and only the exact sum shows it.
    assert np.array_equal(sum_rows(terms[32:], "sequential"), sum_rows(rng.permutation(terms[32:]), "sequential"))
    assert not np.array_equal(sum_rows(terms[32:], "sequential"), terms.sum(axis=0, dtype=float))


def test_question_3_three_blocks_have_an_order():
    assert 8192 // 512 == 16  # "a sixteenth"
    parts = np.random.default_rng(12).standard_normal((3, 64), np.float32)
    for G, results in ((1, 1), (2, 1), (3, 2)):
        orders = [sum_rows(np.array([np.zeros(64, np.float32), *order]), "sequential")
                  for order in itertools.permutations(parts[:G])]
        assert (len(np.unique(orders, axis=0)) > 1) == (results > 1)
    says("12.3", "$G = 1$", "$G = 2$", "From 3")


def test_question_4_a_register_more():
    def fit(registers, block):
        each = 8 * math.ceil(registers / 8) * block
        return each, 65536 // each, 65536 // each * block

    (before, blocks, threads), (after, fewer, left) = fit(80, 256), fit(81, 256)
    says("12.4", f"{before}$ registers: {blocks} blocks, {threads} threads")
    says("12.4", f"{after}, and {fewer} blocks fit: {left}")
    assert 1 - left / threads == pytest.approx(1 / 3)
    small = fit(80, 64), fit(81, 64)
    says("12.4", f"{small[0][1]} before and {small[1][1]} after, {small[0][2]} and {small[1][2]} threads")
