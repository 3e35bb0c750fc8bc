"""Chapter 12: what its derivations and questions say, and what its exercises say of answers, right
and wrong.
"""

import math

import numpy as np
import pytest
from attempts import failed, solution_with
from pages import BOOK
from questions import says

from lnbook.exercises import ch12, exercises
from lnbook.figures import fusing
from lnlib import layer_norm_backward, layer_norm_forward, reference
from lnlib.sharded import GATHER, cut, simulate, traffic
from lnlib.sharded.groups import merge

U = 2.0**-24

# ---- The page


def test_ranks_wait_for_the_slowest_in_the_figure():
    steps = [("", np.array([3e-6, 1e-6])), ("m", [2e-6, 2e-6])]
    work, waits, message, _ = fusing.messages_over_time({"p": steps}).axes[0].containers
    assert [bar.get_x() + bar.get_width() for bar in work] == pytest.approx([3, 1])
    assert [(bar.get_x(), bar.get_width()) for bar in waits] == [(3, 0), (1, 2)]
    assert [bar.get_x() for bar in message] == [3, 3]


@pytest.mark.parametrize("counts", [(1, 1000), (1000, 1), (30, 31), (1, 1)])
def test_the_residual_moves_by_at_most_the_root_of_the_counts(rng, counts):
    """The bound of the page, attained where all the spread is between the groups."""
    for spread in (0.0, 1e-3, 1.0):
        x = spread * rng.standard_normal(sum(counts))
        x[: counts[0]] += 7
        small, large = sorted(counts)
        delta = x[: counts[0]].mean() - x[counts[0] :].mean()
        moved, bound = small / len(x) * abs(delta) / x.std(), math.sqrt(small / large)
        assert moved <= bound * (1 + 1e-12) and (spread or moved >= bound * (1 - 1e-12))


def test_the_exercise_and_the_library_merge_alike(rng):
    for counts in ((5, 9), (9, 5), (0, 4), (300, 1)):
        x = (1e4 + rng.standard_normal(sum(counts))).astype(np.float32)
        groups = [ch12._group(part) for part in (x[: counts[0]], x[counts[0] :])]
        found = ch12.merged_solution(*groups)
        # In float64 the library rounds 1e8 times less.
        wanted = merge(*(np.array(group, float) for group in groups))
        assert found[0] == wanted[0] and found[1] == wanted[1]
        assert abs(found[2] - wanted[2]) <= 8 * U * max(x.std(dtype=float), 1e-30)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_the_exercise_and_the_library_have_one_model(ranks):
    N, D, alpha, beta, rate = 1000, 4096, 2e-6, 1e-10, 1e10
    wanted = [20 * N * D / rate]
    for count, other, messages in (
        (N, D, lambda n: traffic.rows(n, D)),
        (D, N, lambda n: traffic.features(n, N)),
    ):
        counts = [part.stop - part.start for part in cut(count, ranks)]
        sent = [m for m in messages(counts) if any(m.sent)]
        wanted.append(
            20 * max(counts) * other / rate + sum(traffic.seconds(m, alpha, beta) for m in sent)
        )
    assert np.allclose(
        ch12.cuts_solution(N, D, ranks, alpha, beta, rate), wanted, rtol=1e-12, atol=0
    )


# ---- Exercise 1: two groups


def in_float64(a, b):
    """Another right way: all in float64, the mean cut in two again at the end."""
    (na, ma, ra, sa), (nb, mb, rb, sb) = ([float(v) for v in group] for group in (a, b))
    n = na + nb
    if not n:
        return a
    mean_a, mean_b = ma + ra, mb + rb
    mean = (na * mean_a + nb * mean_b) / n
    squares = sa + sb + (mean_b - mean_a) ** 2 * na * nb / n
    return int(n), np.float32(mean), np.float32(mean - float(np.float32(mean))), np.float32(squares)


def chan(a, b):
    n = a[0] + b[0]
    if not n:
        return a
    d = (b[1] + b[2]) - (a[1] + a[2])
    return (
        n,
        a[1] + d * np.float32(b[0] / n),
        np.float32(0),
        a[3] + b[3] + d * d * np.float32(a[0] * b[0] / n),
    )


def pivot(old):
    """The solution with another choice of the group whose mean is kept."""
    return solution_with("merge-groups", ("a[0] < b[0]", old))


MERGES = [
    (in_float64, None, ""),
    (chan, "far from zero", "off by"),
    # The smaller group has the larger mean, or the smaller one, or that nearer to 0.
    (pivot("a[0] > b[0]"), "an outlier alone in its group", "The pivot is the smaller of these"),
    (pivot("a[1] < b[1]"), "an outlier alone in its group", ""),
    (pivot("abs(a[1]) > abs(b[1])"), "an outlier alone in its group", ""),
]


def test_nothing_is_said_of_squares_that_no_sum_of_these_terms_is():
    forgotten = solution_with("merge-groups", ("distance * moved", "abs(moved)"))
    doubled = solution_with("merge-groups", ("distance * moved", "2 * distance * moved"))
    assert ch12._of_a_merge(forgotten) is None
    assert "squares hold 48 times the squared distance" in ch12._of_a_merge(doubled).sentence


@pytest.mark.slow
@pytest.mark.parametrize("answer, title, words", MERGES, ids=range(len(MERGES)))
def test_what_is_said_of_a_merge(answer, title, words):
    assert failed("merge-groups", answer, words) == title


# ---- Exercise 2: planted mistakes


def right_of(x, gamma, beta, dy):
    y, cache = layer_norm_forward(x, gamma, beta)
    return y, *layer_norm_backward(dy, cache)


def by_size(layer):
    """Right: from the factor of dgamma alone, and from lengths with equal counts."""
    mine = np.random.default_rng(9)
    x, dy = mine.standard_normal((2, 2000, 8))
    one, zero = np.ones(8), np.zeros(8)
    dbeta, dgamma = (layer(x[:12], one, zero, dy[:12], "rows", [3, 4, 5])[k] for k in (3, 2))
    right = right_of(x[:12], one, zero, dy[:12])
    if abs(dgamma[0] / right[2][0] - 1) > 0.5 or abs(dbeta[0] / right[3][0] - 1) > 0.5:
        return "mean"
    if not np.allclose(
        layer(x[:3], one, zero, dy[:3], "features", [1, 7])[0],
        right_of(x[:3], one, zero, dy[:3])[0],
    ):
        return "counts"
    y = layer(x, one, zero, dy, "features", [4, 4])[0]
    return "nothing" if np.allclose(y, right_of(x, one, zero, dy)[0]) else "cut"


def test_another_test_that_is_right_is_accepted():
    assert failed("planted-mistakes", by_size) is None


def test_a_test_that_finds_nothing_is_refused():
    assert failed("planted-mistakes", lambda layer: "nothing", "averaged") == '"mean" is found'

    def of_zeros(layer):  # of which every layer is right, however long the messages are
        zeros, one = np.zeros((3000, 8)), np.ones(8)
        for cut_by, counts in (("rows", [1000, 2000]), ("features", [1, 7])):
            assert not np.any(layer(zeros, one, one, zeros, cut_by, counts)[1])
        return "nothing"

    assert failed("planted-mistakes", of_zeros, "None of your inputs") == '"mean" is found'


# ---- Exercise 3: bits


def blocks_of(products, size=64):
    return [products[k : k + size] for k in range(0, len(products), size)]


def in_a_loop(products):
    """Right: one addition after the other."""
    mine = [sum(block[1:], block[0].copy()) for block in blocks_of(products)]
    total = np.zeros(products.shape[1])
    for part in (yield GATHER, np.array(mine).reshape(len(mine), products.shape[1])):
        total = total + part
    return total


def fsum_of_shards(products):
    """Wrong: rounded once on each rank, then exactly."""
    mine = np.array([math.fsum(column) for column in products.T])[None]
    return np.array([math.fsum(column) for column in (yield GATHER, mine).T])


def halves_of_a_block(products):
    """Wrong: smaller blocks within the blocks have the same bits, but bring twice as many numbers
    as were asked for.
    """
    mine = [part.sum(axis=0) for part in blocks_of(products, 32)]
    return (yield GATHER, np.reshape(mine, (-1, products.shape[1]))).sum(axis=0)


ANYWHERE = "the same bits for any number of ranks"
PROGRAMS = [
    (in_a_loop, None, ""),
    (halves_of_a_block, "one number a feature and block is sent", "320 numbers, expected 160"),
    (fsum_of_shards, ANYWHERE, "other bits on 2 ranks"),
]


@pytest.mark.parametrize("answer, title, words", PROGRAMS, ids=range(len(PROGRAMS)))
def test_what_is_said_of_a_program(answer, title, words):
    assert failed("same-bits", answer, words) == title


# ---- Exercise 4: which cut


def with_bits(N, D, ranks, alpha, beta, rate):
    """Right: whole numbers alone, steps counted in bits, a NumPy array of results."""
    share, steps = [-(-n // ranks) for n in (N, D)], (ranks - 1).bit_length()
    message = 2 * steps * alpha
    return np.array([N * D, share[0] * D, N * share[1]]) * 20 / rate, message


def as_array(N, D, ranks, alpha, beta, rate):
    memory, message = with_bits(N, D, ranks, alpha, beta, rate)
    return [
        memory[0],
        memory[1] + message + 32 * D * (ranks - 1) * beta / ranks,
        memory[2] + message + (ranks - 1) * (4 + 5) * 8 * N * beta,
    ]


def test_another_right_time_is_accepted():
    assert failed("which-cut", as_array) is None


def test_what_the_solution_says_of_a_small_batch():
    (case,) = (one for one in exercises()["which-cut"].checks if one.title == "a small batch")
    small = case.ask(np.random.default_rng(0)).arguments
    one, rows, _ = ch12.cuts_solution(**small | {"alpha": 2e-6, "beta": 0.0, "rate": 1e10})
    page = (BOOK / "12-split-across-processes.md").read_text(encoding="utf-8")
    assert small["ranks"] == 4
    assert "16 rows of 64, at 2 µs a step and 10 GB/s, four ranks spend" in page
    assert f"{(rows - one / 4) * 1e6:.0f} µs on steps" in page
    assert f"all its memory in {one * 1e6:.0f} µs." in page


# ---- Questions: the numbers in the answers are computed, then looked for in their text


def test_what_the_answers_say():
    counts = np.array([40, 16, 4, 4])  # 14.1
    weight, should = 1 / (4 * counts), 1 / counts.sum()
    says(
        "12.1",
        f"1/{1 / weight[-1]:.0f}",
        f"1/{1 / weight[0]:.0f}",
        f"1/{1 / should:.0f}",
        f"{weight[-1] / should:.0f} times",
        f"{weight[0] / should:.1f} times",
    )
    assert weight[-1] / weight[0] == 10

    def weights(order, ranks):  # 14.2: what each rank's mean counts in a mean of means
        def program(k):
            return (yield lambda a, b: (a + b) / 2, np.eye(ranks)[k : k + 1])

        return simulate([program(k) for k in range(ranks)], order=order)[0][0].tolist()

    assert weights("chain", 3) == [0.25, 0.25, 0.5] and weights("tree", 4) == [0.25] * 4
    assert weights("chain", 4) == [0.125, 0.125, 0.25, 0.5]
    says("12.2", "$1/8$, $1/8$, $1/4$ and $1/2$")

    moved = 8 * 8 * 1024  # 14.3: bytes of a rank
    says("12.3", f"{moved / 1e3:.1f} kB", f"{moved / 3e12 * 1e6:.3f} µs", "3 steps")
    assert 30 / (moved / 3e12 * 1e6) > 1000 and 7 * 8 * 32 == 1792  # about 2 kB

    # 14.4: one number of 8192 is a neighbour of all the others; between 128 and 256 they are 1
    # apart
    row = np.full(8192, 255.0)
    row[0] = 256
    ratio = row.mean() / row.std()
    assert 22_500 < ratio < 23_500 and ratio == pytest.approx(256 * math.sqrt(8192), rel=0.01)
    says("12.4", "23 000", f"{2.0**-53 * ratio**2:.0e}".replace("e-08", " \\cdot 10^{-8}"))


def test_a_mean_of_own_losses_needs_equal_counts(rng):
    """The equation before the cell: weights N_k / N, which are 1 / K for equal counts alone."""
    x, dy = rng.standard_normal((2, 12, 5))
    one, zero = np.ones(5), np.zeros(5)
    right = reference.layer_norm(x, one, zero, dy / 12).dgamma
    for counts in ((6, 6), (9, 3)):
        parts = np.split(np.arange(12), [counts[0]])
        own = [right_of(x[p], one, zero, dy[p] / len(p))[2] for p in parts]
        weighted = sum(n / 12 * a for n, a in zip(counts, own))
        assert reference.relative_error(weighted, right) < 1e-14
        assert (reference.relative_error(sum(own) / 2, right) < 1e-14) == (counts == (6, 6))
