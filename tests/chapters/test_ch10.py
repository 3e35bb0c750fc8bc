"""Chapter 10: its exercises refuse wrong answers and say why, its figures draw what they are given."""

import itertools
import re

import matplotlib
import numpy as np
import pytest
from attempts import failed

matplotlib.use("agg")

from lnlib import exercises, plots  # noqa: E402
from lnlib.exercises import ch10  # noqa: E402


# Exercises: each attempt is a mistake a reader may make

@pytest.mark.parametrize("attempt, check, words", [
    (lambda x, lanes: ch10.lane_sum_solution(x, 1), "to the last bit", "One running sum"),
    (lambda x, lanes: x[:, None], "whole numbers, with a remainder", "expected one number"),
    (lambda x, lanes: ch10.lane_sum_solution(np.array([ch10.lane_sum_solution(p, 1) for p in np.array_split(x, lanes)]), 1),
     "to the last bit", "a block of neighbours"),
    (lambda x, lanes: np.array([ch10.lane_sum_solution(x[k::lanes], 1) for k in range(lanes)]).sum(),
     "to the last bit", "in an order of its own"),
    (lambda x, lanes: ch10.lane_sum_solution(x[::-1], lanes), "to the last bit", "to the last bit"),
])
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


def test_lane_sum_shows_numbers_that_differ():
    def last_lane_first(x, lanes):
        sums = [ch10.lane_sum_solution(x[k::lanes], 1) for k in range(lanes)]
        return ch10.lane_sum_solution(np.array(sums)[::-1], 1)

    message = exercises.check("lane-sum", last_lane_first).failed[1]
    found, expected = re.search(r"found (\S+), expected (\S+),", message).groups()
    assert found != expected, message


def lines_of(sums, line=64, address=None, strides=None):
    """Shared lines of parts described by one address and their strides."""
    start = sums.ctypes.data if address is None else address
    strides = strides or sums.strides
    touched = [set() for _ in range(len(sums))]
    for (part, row, j) in np.ndindex(sums.shape):
        at = start + part * strides[0] + row * strides[1] + j * strides[2]
        touched[part].add(at // line)
    return sum(sum(number in t for t in touched) > 1 for number in set().union(*touched))


@pytest.mark.parametrize("attempt, check, words", [
    (lambda sums, line: len(sums) - 1, "side by side", "for each pair of neighbours"),
    (lambda sums, line: 0, "side by side", "found 0 lines"),
    (lambda sums, line: lines_of(sums, line, address=0), "side by side", "begin where a line begins"),
    (lambda sums, line: lines_of(sums, 64), "wider numbers, longer lines", "lines of 128 bytes"),
    (lambda sums, line: lines_of(sums, line, strides=np.empty(sums.shape, np.float32).strides),
     "wider numbers, longer lines", "float64"),
    (lambda sums, line: lines_of(sums, line, strides=np.empty(sums.shape, sums.dtype).strides),
     "padded or transposed", "without a gap"),
    (lambda sums, line: "two", "side by side", "expected a whole number"),
])
def test_shared_lines_refuses(attempt, check, words):
    assert failed("shared-lines", attempt, words) == check


def test_shared_lines_blames_the_address_only_where_that_explains_all_cases():
    report = exercises.check("shared-lines", lambda sums, line: 0)
    assert "begin where" not in str(report.diagnosis), report


def test_shared_lines_takes_a_loop_over_numbers():
    assert failed("shared-lines", lines_of) is None


def vectorised(x, gamma, eps, y, rstd):
    rstd[:] = 1 / np.sqrt((x * x).mean(axis=1) + eps)
    y[:] = x * rstd[:, None] * gamma


def column_by_column(x, gamma, eps, y, rstd):
    for i in range(x.shape[0]):
        rstd[i] = 0
    for j in range(x.shape[1]):
        for i in range(x.shape[0]):
            rstd[i] += x[i, j] ** 2
    for i in range(x.shape[0]):
        rstd[i] = 1 / np.sqrt(rstd[i] / x.shape[1] + eps)
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] * rstd[i] * gamma[j]


def through_y(x, gamma, eps, y, rstd):
    for i in range(x.shape[0]):
        total = 0.0
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] * gamma[j]
            total += x[i, j] ** 2
        rstd[i] = 1 / np.sqrt(total / x.shape[1] + eps)
        for j in range(x.shape[1]):
            y[i, j] *= rstd[i]


def with_objects(x, gamma, eps, y, rstd):
    """Right in Python; Numba does not know such a dictionary."""
    for i in range(x.shape[0]):
        total = {"sum": 0.0, 1: None}
        for j in range(x.shape[1]):
            total["sum"] += x[i, j] ** 2
        rstd[i] = 1 / np.sqrt(total["sum"] / x.shape[1] + eps)
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] * rstd[i] * gamma[j]


@pytest.mark.parametrize("attempt, check, words", [
    (lambda x, gamma, eps, y, rstd: None, "y and rstd", "not written"),
    (vectorised, "row after row, x read twice, y written once", "one number at a time"),
    (column_by_column, "row after row, x read twice, y written once", "come back to a row"),
    (through_y, "row after row, x read twice, y written once", "written 2 times"),
    (with_objects, "compiled, in float32", "raised"),
])
def test_rms_forward_refuses(attempt, check, words):
    pytest.importorskip("numba")
    assert failed("rms-forward-rows", attempt, words) == check


def backward_with(dx_of, add=True, dgamma_of=lambda g, upstream, xhat: upstream * xhat):
    def attempt(dy, x, rstd, gamma, dx, dgamma):
        D = x.shape[1]
        for i in range(x.shape[0]):
            r = rstd[i]
            g = [gamma[j] * dy[i, j] for j in range(D)]
            mean_g, mean_gx = sum(g) / D, sum(g[j] * x[i, j] * r for j in range(D)) / D
            for j in range(D):
                xhat, upstream = x[i, j] * r, dy[i, j]
                dx[i, j] = dx_of(r, g[j], upstream, xhat, mean_g, mean_gx)
                term = dgamma_of(g[j], upstream, xhat)
                dgamma[j] = dgamma[j] + term if add else term
    return attempt


@pytest.mark.parametrize("attempt, words", [
    (backward_with(lambda r, g, dy, xhat, a, b: r * (g - a - xhat * b)), "a mean is subtracted, as in layer norm"),
    (backward_with(lambda r, g, dy, xhat, a, b: r * g), "the path through the mean square is left out"),
    (backward_with(lambda r, g, dy, xhat, a, b: r * (g + xhat * b)), "the projection has the wrong sign"),
    (backward_with(lambda r, g, dy, xhat, a, b: r * (g - xhat * b), add=False), "overwritten row by row"),
    (backward_with(lambda r, g, dy, xhat, a, b: r * (g - xhat * b), dgamma_of=lambda g, dy, xhat: g * xhat),
     "carries gamma"),
    (lambda dy, x, rstd, gamma, dx, dgamma: None, "not written"),
])
def test_rms_backward_refuses(attempt, words):
    assert failed("rms-backward-rows", attempt, words) == "dx and dgamma"


def test_rms_backward_refuses_a_third_loop():
    def thrice(dy, x, rstd, gamma, dx, dgamma):
        D = x.shape[1]
        for i in range(x.shape[0]):
            total = x[i, 0] * 0
            for j in range(D):
                total += gamma[j] * dy[i, j] * x[i, j]
            for j in range(D):
                dx[i, j] = rstd[i] * (gamma[j] * dy[i, j] - x[i, j] * rstd[i] ** 2 * total / D)
            for j in range(D):
                dgamma[j] += dy[i, j] * x[i, j] * rstd[i]

    assert failed("rms-backward-rows", thrice, "was read 3 times") == "row after row, dy and x read twice, dx written once"


def squares_by_products(x, gamma, eps, y, rstd):
    for i in range(x.shape[0]):
        squares = x[i, 0] * 0
        for j in range(x.shape[1]):
            squares += x[i, j] * x[i, j]
        rstd[i] = 1 / np.sqrt(squares / x.shape[1] + eps)
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] * rstd[i] * gamma[j]


def dy_twice_in_a_step(dy, x, rstd, gamma, dx, dgamma):
    D = x.shape[1]
    for i in range(x.shape[0]):
        r, total = rstd[i], x[i, 0] * 0
        for j in range(D):
            total += gamma[j] * dy[i, j] * x[i, j] * r
        for j in range(D):
            dx[i, j] = r * (gamma[j] * dy[i, j] - x[i, j] * r * total / D)
            dgamma[j] += dy[i, j] * x[i, j] * r


@pytest.mark.parametrize("id, answer", [("rms-forward-rows", squares_by_products),
                                        ("rms-backward-rows", dy_twice_in_a_step)])
def test_a_number_read_twice_in_one_step_is_one_trip(id, answer):
    pytest.importorskip("numba")
    assert failed(id, answer) is None


# Figures

def test_ladder_steps_draws_bars_and_predictions():
    panels = {"forward": {"a": ((2e-3, 1e-3, 3e-3), 1e-3), "b": ((4e-3, 4e-3, 5e-3), None)},
              "backward": {"c": ((1e-3, 1e-3, 1e-3), 2e-3)}}
    first, second = plots.ladder_steps(panels).axes
    assert [bar.get_width() for bar in first.patches] == [2, 4] and [b.get_width() for b in second.patches] == [1]
    assert [t.get_text() for t in first.get_yticklabels()] == ["a", "b"]
    diamonds = [line.get_xdata()[0] for line in first.lines if line.get_marker() == "D"]
    spans = [list(line.get_xdata()) for line in first.lines if line.get_marker() != "D"]
    assert diamonds == [1] and spans == [[1, 3], [4, 5]]
    assert first.get_ylim()[0] > first.get_ylim()[1]  # the first on top


def test_false_sharing_draws_a_group_for_each_width():
    fig = plots.false_sharing({4: {"side by side": 2.0, "apart": 0.5}, 64: {"side by side": 1.0, "apart": 0.4}})
    heights = [bar.get_height() for bar in fig.axes[0].patches]
    assert heights == [2.0, 1.0, 0.5, 0.4]
    assert [t.get_text() for t in fig.axes[0].get_xticklabels()] == ["$D = 4$", "$D = 64$"]
