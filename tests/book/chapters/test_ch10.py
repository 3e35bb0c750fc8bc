"""Chapter 10: RMS norm is counted as layer norm is; calls, rooflines and answers are right."""

import numpy as np
import pytest
from attempts import failed
from pages import BOOK
from questions import of, says

from lnbook.exercises import ch10
from lnbook.figures import fusing
from lnbook.measure.contestants import Arrays, line_calls
from lnlib import cost
from lnlib.rounding import TAU

# Exercises

RMS_NORM = (
    "square = x * x\nms = sum(square)\nms = ms / D\nshifted = ms + eps\nroot = sqrt(shifted)\n"
    "rstd = 1 / root\nxhat = x * rstd\ny = gamma * xhat"
)


@pytest.mark.parametrize("rows, D, itemsize", [(1, 1, 8), (5, 3, 4), (40, 300, 2)])
def test_rms_norm_is_counted_as_layer_norm_is(rows, D, itemsize):
    """By lnlib.cost's own reading of lines, with the names of this program's statistics."""
    sizes = {
        "x": rows * D,
        "square": rows * D,
        "xhat": rows * D,
        "y": rows * D,
        "gamma": D,
        **dict.fromkeys(("ms", "shifted", "root", "rstd"), rows),
    }
    total = cost.total(cost.count(RMS_NORM, lambda name: itemsize * sizes[name], itemsize))
    fused = itemsize * sum(sizes[name] for name in ("x", "gamma", "y", "rstd"))
    assert ch10.rms_norm_cost_solution(rows, D, itemsize) == (total.flops, total.bytes, fused)
    page = " ".join((BOOK / "10-cost-and-roofline.md").read_text(encoding="utf-8").split())
    assert all(line in page for line in RMS_NORM.splitlines())


def test_another_right_answer_is_accepted():
    def another(machine, itemsize):
        return max(0, 2 * itemsize * machine.flops / machine.copy - 8)

    assert failed("free-operations", another) is None


# Data


def test_the_calls_measured_are_those_named():
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 1, 3, 5))
    gamma, beta = rng.standard_normal((2, 5))
    a = Arrays(x, gamma, beta, dy, np.empty_like(x))
    before = np.getbufsize()
    # mean and rstd are 1 there; c, square, xhat and scaled are dy.
    expected = {
        "mean = sum(x)": x.sum(axis=-1).T,
        "c = x - mean": x[0] - 1,
        "c = x - mean, no buffer": x[0] - 1,
        "square = c * c": dy[0] ** 2,
        "var = sum(square)": dy.sum(axis=-1).T,
        "xhat = c * rstd": dy[0],
        "scaled = gamma * xhat": gamma * dy[0],
        "y = scaled + beta": dy[0] + beta,
    }
    for name, call in line_calls(a).items():
        a.out[...] = np.nan
        result = call()
        np.testing.assert_allclose(
            a.out[0] if result is None else result, expected.pop(name), rtol=1e-15
        )
    assert not expected and np.getbufsize() == before


# Figures


def with_data(ax):
    """The lines of a panel without those that stand in its key alone."""
    return [line for line in ax.lines if len(line.get_xdata())]


def test_rooflines_show_their_numbers():
    machines = [cost.Machine("near", 100e9, 1, 400e9), cost.Machine("far", 50e9, 1, 400e9)]
    fig = fusing.rooflines(machines, {"p": [(0.5, 20e9), (0.5, 10e9)]})
    name = fig.axes[0].texts[0]
    assert (name.get_text(), name.xy) == ("p", (0.5, 10))
    near, far, first, second = with_data(fig.axes[0])
    for line, ridge in ((near, 4), (far, 8)):
        x, y = line.get_data()
        assert np.allclose(y[x >= ridge], 400)
        assert np.allclose(y[x < ridge], 400 / ridge * x[x < ridge])
    assert (first.get_ydata()[0], second.get_ydata()[0], first.get_xdata()[0]) == (20, 10, 0.5)
    assert (first.get_fillstyle(), second.get_fillstyle()) == ("full", "none")
    key = {line.get_label(): line for line in fig.axes[0].lines}
    for name, roof, point in (("near", near, first), ("far", far, second)):
        assert key[name].get_linestyle() == roof.get_linestyle()
        assert key[name].get_fillstyle() == point.get_fillstyle()
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["near", "far"]


# Questions: the numbers in the answers are computed, then looked for in their text


def test_question_1_what_lowers_the_bound():
    def bound(operations=8, itemsize=4, rate=100e9):
        return 1e3 * cost.roofline(
            operations * 1e8, 2 * itemsize * 1e8, cost.Machine("core", 20e9, 20e9, rate)
        )

    fused = cost.operations("forward", 10**4, 10**4, keep="x", fused=True)[0]
    assert fused.flops / 1e8 == pytest.approx(8, rel=1e-2, abs=0)
    assert bound() == bound(operations=4) == bound(rate=200e9)
    times = [of(ms, "ms") for ms in (bound(), bound(itemsize=2), 8e8 / 100e9 * 1e3)]
    says("10.1", *times, "0.8 GB", "0.4 GB")


def test_question_2_folded_parameters():
    N = 10**8
    lines = cost.operations("forward", 10**4, 10**4)
    gone = [o for o in lines if o.name.startswith(("scaled", "y ="))]
    accesses = round(cost.total(gone).bytes / 4 / N), round(cost.total(lines).bytes / 4 / N)
    fused = cost.operations("forward", 10**4, 10**4, keep="x", fused=True)[0]
    left = (fused.flops - sum(o.flops for o in gone)) / N
    says("10.2", "{} of {}, a third".format(*accesses), f"from {fused.flops / N:.0f} to {left:.0f}")
    assert len(gone) == 2 and round(fused.bytes / 4 / N) == 2


def test_question_3_new_memory():
    nbytes = 4 * 8 * 1024 * 768
    copy, faults = 1e3 * 2 * nbytes / 20e9, 1e3 * nbytes / 4096 * 0.5e-6
    says("10.3", f"About {(copy + faults) / copy:.1f}", of(nbytes / 1e6, "MB"), f"{copy:.1f} ms")
    says("10.3", f"{nbytes // 4096} new pages", f"{faults:.1f} ms")


def test_question_4_what_a_network_keeps():
    kept = 4 * 8 * 1024 * 768
    says("10.4", of(kept / 1e6, "MB"), f"{48 * kept / 1e9:.1f} GB")
    rng = np.random.default_rng(13)
    xhat = rng.standard_normal(10**4, np.float32)
    gamma, beta = (10.0 ** -rng.integers(0, 4, 10**4)).astype(np.float32), np.float32(1)
    lost = abs((gamma * xhat + beta - beta) / gamma - xhat)
    for size in np.unique(gamma):
        # The rounding of y, of size |beta| + |gamma xhat|, is t u in the root mean square, divided
        # by gamma.
        wanted = TAU * 2.0**-24 * np.sqrt(beta / size**2 + 1)
        assert 0.5 < np.sqrt(np.mean(lost[gamma == size] ** 2)) / wanted < 3
    says("10.4", "\\beta/\\gamma|$ roundings")
