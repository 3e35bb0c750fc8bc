"""Chapter 11: its exercises refuse wrong answers and say why, its figures draw what they are
given.
"""

import itertools
import math
from collections import OrderedDict

import numba
import numpy as np
import pytest
from attempts import failed, solution_with
from questions import of, says

from lnbook.exercises import ch11
from lnbook.figures import fusing
from lnlib.cpu.ladder import ANY_ORDER
from lnlib.summation import sum_rows

# Exercises: each attempt is a mistake a reader may make


@pytest.mark.parametrize(
    "attempt, check, words",
    [
        (lambda x, lanes: x[:, None], "whole numbers, with a remainder", "expected one number"),
        (
            lambda x, lanes: np.array(
                [ch11.lane_sum_solution(x[k::lanes], 1) for k in range(lanes)]
            ).sum(),
            "to the last bit",
            "in an order of its own",
        ),
        pytest.param(
            lambda x, lanes: ch11.lane_sum_solution(x[::-1], lanes),
            "to the last bit",
            "to the last bit",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_lane_sum_refuses(attempt, check, words):
    assert failed("lane-sum", attempt, words) == check


def test_lane_sum_takes_other_ways_to_write_it():
    def padded(x, lanes):
        x = np.concatenate([x, np.zeros(-len(x) % lanes, x.dtype)]).reshape(-1, lanes)
        total = x[0].copy()
        for row in x[1:]:
            total = total + row
        return list(itertools.accumulate(total))[-1]

    assert failed("lane-sum", padded) is None


def touched(sums, line, strides):
    """The lines of each part, described by strides."""
    return [
        {
            (sums.ctypes.data + np.dot((part, *at), strides)) // line
            for at in np.ndindex(sums.shape[1:])
        }
        for part in range(len(sums))
    ]


def shared(parts, counts=lambda n: n > 1):
    """How many lines are those of so many parts."""
    return sum(counts(sum(number in lines for lines in parts)) for number in set().union(*parts))


def whole_parts(sums, line):
    """Every byte from one part to the next counts as written."""
    starts = [sums.ctypes.data + part * sums.strides[0] for part in range(len(sums))]
    return shared([set(range(at // line, (at + sums.strides[0] - 1) // line + 1)) for at in starts])


@pytest.mark.parametrize(
    "attempt, check, words",
    [
        (
            lambda sums, line: shared(
                touched(sums, line, np.empty(sums.shape, np.float32).strides)
            ),
            "wider numbers, longer lines",
            "float64",
        ),
        (lambda sums, line: "two", "side by side", "expected a whole number"),
        (whole_parts, "padded or transposed", "or counted as written"),
        # Wrong where three parts share a line. Six whole numbers of one check may be those of
        # another slip by chance.
        (
            lambda sums, line: shared(touched(sums, line, sums.strides), lambda n: n == 2),
            "side by side",
            "None",
        ),
    ],
)
def test_shared_lines_refuses(attempt, check, words):
    assert failed("shared-lines", attempt, words) == check


def vectorised(x, gamma, eps, y, rstd):
    rstd[:] = 1 / np.sqrt((x * x).mean(axis=1) + eps)
    y[:] = x * rstd[:, None] * gamma


def of_rows(id, *changes):
    return id, solution_with(id, *changes)


FORWARD, BACKWARD, DX = (
    "rms-forward-rows",
    "rms-backward-rows",
    "r * (gamma[j] * upstream - xhat * mean)",
)
TOTAL = "total += gamma[j] * dy[i, j] * x[i, j]"
IN_STEPS = "row after row, x read twice, y written once"


@pytest.mark.parametrize(
    "answer, check, words",
    [
        (of_rows(FORWARD, ("range(x.shape[0])", "range(0)")), "y and rstd", "not written"),
        ((FORWARD, vectorised), IN_STEPS, "one number at a time"),
        # Right in Python; Numba does not know such a dictionary.
        pytest.param(
            of_rows(
                FORWARD,
                ("r = x.dtype", 'squares = {"sum": squares, 1: None}["sum"]\n        r = x.dtype'),
            ),
            "compiled, in float32",
            "raised",
            marks=pytest.mark.slow,
        ),
        (
            of_rows(BACKWARD, (DX, "r * gamma[j] * upstream")),
            "dx and dgamma",
            "the path through the mean square is left out",
        ),
        # What is said is true of RMS norm too: no deviations, no sigma.
        (
            of_rows(
                BACKWARD, (TOTAL, f"{TOTAL}\n        for j in range(D):\n            dy[i, j]")
            ),
            "row after row, dy and x read twice, dx written once",
            "was read 3 times",
        ),
        # What is accumulated and stored in float32, and multiplied in float64 all the same.
        (of_rows(BACKWARD, ("range(x.shape[0])", "range(x.shape[0] - 1, -1, -1)")), None, ""),
        # A number that is read twice in one step is one trip to memory.
        (of_rows(FORWARD, ("x[i, j] ** 2", "x[i, j] * x[i, j]")), None, ""),
    ],
)
def test_loops_over_rows_are_judged(answer, check, words):
    pytest.importorskip("numba")
    assert failed(*answer, words) == check


# Figures


def test_ladder_steps_draws_bars_and_predictions():
    panels = {
        "forward": {"a": ((2e-3, 1e-3, 3e-3), 1e-3), "b": ((4e-3, 4e-3, 5e-3), None)},
        "backward": {"c": ((1e-3, 1e-3, 1e-3), 2e-3)},
    }
    first, second = fusing.ladder_steps(panels).axes
    assert [bar.get_width() for bar in first.patches] == [2, 4] and [
        b.get_width() for b in second.patches
    ] == [1]
    assert [t.get_text() for t in first.get_yticklabels()] == ["a", "b"]
    diamonds = [line.get_xdata()[0] for line in first.lines if line.get_marker() == "D"]
    spans = [list(line.get_xdata()) for line in first.lines if line.get_marker() != "D"]
    assert diamonds == [1] and spans == [[1, 3], [4, 5]]
    assert first.get_ylim()[0] > first.get_ylim()[1]  # the first on top


def test_false_sharing_draws_a_group_for_each_width():
    fig = fusing.false_sharing(
        {4: {"side by side": 2.0, "apart": 0.5}, 64: {"side by side": 1.0, "apart": 0.4}}
    )
    heights = [bar.get_height() for bar in fig.axes[0].patches]
    assert heights == [2.0, 1.0, 0.5, 0.4]
    assert [t.get_text() for t in fig.axes[0].get_xticklabels()] == ["4", "64"]
    assert fig.axes[0].get_xlabel() == "$D$"


# Questions: the numbers in the answers are computed, then looked for in their text


def test_question_1_a_chain_of_additions():
    sums, memory = 2 * 768 * 4 / 4e9, 2 * 4 * 768 / 25e9
    says("11.1", f"{1e6 * sums:.1f} μs", 2 * 4 * 768, f"{1e6 * memory:.2f} μs")
    says("11.1", f"at least {math.ceil(sums / memory)}")
    assert round(sums / memory) == 6  # "about a sixth"


def compensated(x):
    total, lost = np.float32(0), np.float32(0)
    for term in x:
        new = total + term
        lost += (total - new) + term
        total = new
    return total, lost


def test_question_2_a_compensated_sum():
    x = np.random.default_rng(8).standard_normal(10**5, np.float32)
    total, lost = numba.njit(compensated)(x)
    assert (total, lost) == compensated(x) and lost != 0
    exact = math.fsum(x.tolist())
    reordered, nothing = numba.njit(fastmath=ANY_ORDER)(compensated)(x)
    assert nothing == 0
    # Right to one rounding of the sum and one of each loss, against a sum that nobody has looked
    # after.
    assert abs(float(total) + float(lost) - exact) < 0.01 * abs(float(reordered) - exact)


def missed(loops, row, room):
    """Accesses to main memory for each line of a row, if a cache has room for the lines last
    used.
    """
    cache, count = OrderedDict(), 0
    for arrays in loops:
        for key in ((array, line) for line in range(row) for array in arrays):
            count += key not in cache
            cache[key] = True
            cache.move_to_end(key)
            if len(cache) > room:
                cache.popitem(last=False)
    return count / row


def test_question_3_a_row_longer_than_the_cache():
    fused, one_reading = (
        ("x", "x", "xy"),
        ("x", "xy"),
    )  # a single row: separate loops are the fused ones
    short, long = (n * 4 / 2**20 for n in (2**20, 2**24))  # MB; in the model a line is a MB
    found = [missed(loops, int(row), 32) for row in (short, long) for loops in (fused, one_reading)]
    assert found == [2, 2, 4, 3]
    # gamma and beta, as long as the row, would add two accesses to each.
    loops = ("x", "x", "xgby"), ("x", "xgby")
    assert [missed(way, int(row), 32) for row in (short, long) for way in loops] == [4, 4, 6, 5]
    says("11.3", of(short, "MB"), of(long, "MB"), "two accesses", "four accesses", "three")


def test_question_4_rows_taken_in_turn():
    rng = np.random.default_rng(9)
    terms = rng.standard_normal((400, 16), np.float32)

    def stages(owner, parts):
        sums = [sum_rows(terms[owner == part], "sequential") for part in range(parts)]
        return sum_rows(np.array(sums), "sequential")

    runs = [stages(rng.integers(2, size=400), 2) for _ in range(5)]
    assert len(np.unique(runs, axis=0)) == 5

    # A partial sum for each block does not do it alone: the order in which blocks are done must not
    # count either.
    blocks = np.array([sum_rows(block, "sequential") for block in terms.reshape(8, 50, 16)])
    done = [sum_rows(rng.permutation(blocks), "sequential") for _ in range(5)]
    assert len(np.unique(done, axis=0)) == 5
    says("11.4", "in the order of the blocks")
