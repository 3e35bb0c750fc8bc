"""Chapter 11: its exercises judge loops over rows; the numbers in its answers."""

import itertools
import math
import re
from collections import OrderedDict

import numba
import numpy as np
import pytest
from attempts import failed, solution_with
from pages import CHAPTERS, read
from questions import of, says

from lnlib.cpu.ladder import ANY_ORDER
from lnlib.summation import sum_rows


def test_bars_name_the_section_of_their_step():
    pages = {page.stem[:2]: read(page).text for page in CHAPTERS}
    titles = "Bytes:", "Three", "One pass", "Vectors", "Both", "Backward", "What did", "Against"
    places = "10.2", "11.1", "11.2", "11.3", "11.4", "11.5", "11.6", "11.10"
    for title, place in zip(titles, places):
        chapter, section = place.split(".")
        assert re.findall("^## (.*)", pages[chapter], re.M)[int(section) - 1].startswith(title)
        assert f': "{place}"' in pages["11"]


# Exercises: each attempt is a mistake a reader may make


def test_lane_sum_takes_other_ways_to_write_it():
    def padded(x, lanes):
        x = np.concatenate([x, np.zeros(-len(x) % lanes, x.dtype)]).reshape(-1, lanes)
        total = x[0].copy()
        for row in x[1:]:
            total = total + row
        return list(itertools.accumulate(total))[-1]

    assert failed("lane-sum", padded) is None


def of_rows(id, *changes):
    return id, solution_with(id, *changes)


FORWARD = "rms-forward-rows"
BACKWARD = "rms-backward-rows"
DX = "r * (gamma[j] * upstream - xhat * mean)"
TOTAL = "total += gamma[j] * dy[i, j] * x[i, j]"


@pytest.mark.parametrize(
    "answer, check, words",
    [
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
    """Accesses to main memory for each line of a row, if a cache keeps the lines last used."""
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
    fused = ("x", "x", "xy")
    one_reading = ("x", "xy")  # a single row: separate loops are the fused ones
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
