"""Chapter 13: its exercises refuse wrong answers and say why; figures, times and answers."""

import numpy as np
import pytest
from attempts import failed, solution_with
from questions import of, percent, plain, says

import simt
from lnbook.figures import fusing, measured, span
from lnlib import gpu
from lnlib.gpu.ladder import tree_sum, warp_sum
from simt.cuda_access import FULL, cuda, device, float32

# Exercises: each attempt is a mistake a reader may make. Kernels need their source, so they are
# functions here.


def one_by_one(value, width):
    total, first = float32(0), cuda.laneid // width * width
    for k in range(width):
        total += cuda.shfl_sync(FULL, value, first + k)
    return total


SMALLEST_FIRST = ("width // 2", "1"), ("distance > 0", "distance < width"), ("//= 2", "*= 2")


@pytest.mark.parametrize(
    "attempt, check, words",
    [
        (one_by_one, "the same bits, in few exchanges", "found 32 exchanges, expected 5"),
        (solution_with("warp-sum", *SMALLEST_FIRST), None, ""),
        (solution_with("warp-sum", ("return value", "return vlaue")), "a whole warp", "misspelt"),
    ],
)
def test_group_sum(attempt, check, words):
    assert failed("warp-sum", attempt, words) == check


def plan_of_the_library(D):
    return tuple(gpu.plans.plan_forward(1, D, 4)[:4])


STORED, LOADED = "tile[r * 33 + lane]", "tile[lane * 33 + c]"


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes, check, words",
    [
        (
            [("x[r * 32 + lane]", "x[lane * 32 + r]")],
            "the transpose",
            "nothing is transposed, or all of it twice",
        ),
        (
            [
                ("32 * 33", "32 * 65"),
                (STORED, "tile[r * 64 + lane]"),
                (LOADED, "tile[lane * 64 + c]"),
            ],
            "no conflicts",
            "or a multiple of 32",
        ),
        # Another way without conflicts: rows are 32 apart, and turned.
        (
            [(STORED, "tile[r * 32 + (lane ^ r)]"), (LOADED, "tile[lane * 32 + (c ^ lane)]")],
            None,
            "",
        ),
    ],
)
def test_transpose(changes, check, words):
    assert failed("no-conflicts", solution_with("no-conflicts", *changes), words) == check


# Figures


def sum_in_warp(x, sums):
    sums[cuda.threadIdx.x] = warp_sum(x[cuda.threadIdx.x])


@pytest.mark.slow
def test_butterfly_marks_the_lanes_that_know():
    one = (np.arange(32) == 3).astype(np.float32)
    run = simt.launch(sum_in_warp, 1, 32, one, np.empty(32, np.float32), log=True)
    ax = fusing.butterfly(run.events, (16, 8, 4, 2, 1)).axes[0]
    unaware, aware = (c.get_offsets() for c in ax.collections)
    assert [int(np.sum(aware[:, 0] == step)) for step in range(6)] == [1, 2, 4, 8, 16, 32]
    assert sorted(aware[aware[:, 0] == 1][:, 1]) == [3, 19]
    assert len(aware) + len(unaware) == 6 * 32


def test_tree_and_registers_show_the_log():
    def sum_in_tree(x, sums):
        tree = cuda.shared.array(64, float32)
        sums[cuda.threadIdx.x] = tree_sum(x[cuda.threadIdx.x], tree)

    numbers, N = np.ones(1024, np.float32), np.int64(2)
    run = simt.launch(sum_in_tree, 1, 64, numbers[:64], numbers[64:128].copy(), log=True)
    waits, writes = fusing.timeline(run).axes[0].containers
    assert [bar.get_height() for bar in writes] == [64, 32, 16, 8, 4, 2, 1, 0, 0]
    assert {bar.get_height() for bar in waits} == {64}
    rows = numbers, numbers[:512], numbers[:512], numbers.copy(), numbers[:2].copy()
    kernel = gpu.ladder.row_in_registers(64, 2, 4)
    run = simt.launch(kernel, 2, 64, *rows, numbers[:2].copy(), N, 512, np.float32(1), log=True)
    texts = fusing.registers(run, 4).axes[0].texts
    shown = {tuple(text.get_position()): text.get_text() for text in texts}
    for thread, left in ((0, 0), (31, 3), (32, 4.4), (63, 7.4)):  # and where it stands
        columns = [*range(4 * thread, 4 * thread + 4), *range(256 + 4 * thread, 260 + 4 * thread)]
        assert [shown[left + 0.47, k] for k in range(8)] == [f"{c}" for c in columns]


# Times on a GPU


def test_times_on_a_gpu():
    case = {"section": "speed", "shape": [64, 128], "which": "forward", "dtype": "float32"}
    records = [
        {"section": "launch", "implementation": "numba", "host_seconds": 1e-5},
        case | {"implementation": "copy", "seconds": [1e-6, 1e-6, 3e-6]},
        case | {"implementation": "lnlib", "seconds": [2e-6, 1e-6, 3e-6]},
        case | {"implementation": "lnlib", "seconds": [5e-6, 1e-6, 3e-6], "which": "backward"},
        case | {"implementation": "lnlib", "seconds": [6e-6, 1e-6, 3e-6], "dtype": "float16"},
        case | {"implementation": "lnlib", "seconds": [7e-6, 1e-6, 3e-6], "section": "ladder"},
        case | {"implementation": "copy", "seconds": [2e-6, 1e-6, 3e-6], "shape": [1, 8]},
        case
        | {"implementation": "warp-per-row", "seconds": [3e-6, 1e-6, 3e-6], "section": "ladder"},
    ]
    assert measured.on_gpu(records, "forward", dtype="float16") == {"lnlib": {(64, 128): 6e-6}}
    times = measured.on_gpu(records, "forward")
    assert times == {
        "copy": {(64, 128): 1e-6, (1, 8): 2e-6},
        "lnlib": {(64, 128): 2e-6},
        "warp-per-row": {(64, 128): 3e-6},
    }
    assert measured.ratios(times, "lnlib", "copy") == {(64, 128): 2.0}
    assert span([3.14159, 121.6]) == "3.1 to 122"
    assert span([1.36, 1.41]) == "1.4" and span([1.36, 1.41], ".2f") == "1.36 to 1.41"
    (ax,) = fusing.times_on_gpu(times, "copy").axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["1 x 8", "64 x 128"]


# Questions: the numbers in the answers are computed, then looked for in their text


def test_question_1_sectors():
    lane, x, y = np.arange(32), np.zeros(128, np.float32), np.zeros(32, np.float32)
    found = [
        simt.sectors(simt.launch(gather, 1, 32, x, index, y, log=True))["x", "load"]
        for index in (lane, 31 - lane, lane + 3, 2 * lane, lane // 4)
    ]
    *first, last = (t.sectors for t in found)
    says("13.1", f"{', '.join(map(str, first))} and {last}", "256 bytes", "half")
    assert found[3].efficiency == 0.5 and found[4].bytes_used == 8 * 4


def gather(x, index, y):
    lane = cuda.threadIdx.x
    y[lane] = x[index[lane]]


def without_some_lanes(x, out):
    lane = cuda.threadIdx.x
    if lane < 20:
        out[lane] = warp_sum(x[lane])


def with_all_lanes(x, out):
    lane = cuda.threadIdx.x
    value = float32(0)
    if lane < 20:
        value = x[lane]
    total = warp_sum(value)
    if lane < 20:
        out[lane] = total


def test_question_2_all_lanes_take_part():
    x, out = np.arange(20, dtype=np.float32), np.zeros(20, np.float32)
    with pytest.raises(simt.DivergentBarrier):
        simt.launch(without_some_lanes, 1, 32, x, out)
    simt.launch(with_all_lanes, 1, 32, x, out)
    assert np.all(out == x.sum())
    says("13.2", f"number of lane {5 ^ 16}")


def test_question_3_only_the_mean(monkeypatch):
    x = np.random.default_rng(10).standard_normal((4, 96), np.float32) + np.float32(1)
    right = gpu.steps.STEPS["warp-per-row"].run(x, *plain(x))[0]
    monkeypatch.setattr(gpu.ladder, "warp_sum", warp_sum_to_lane_0)
    found = gpu.steps.STEPS["warp-per-row"].run(x, *plain(x))[0]
    # Sums of 96 float32 numbers of size one in another order: off by a few u.
    assert np.allclose(found["mean"], right["mean"], rtol=1e-6, atol=1e-6)
    assert np.all(abs(found["rstd"] / right["rstd"] - 1) > 1e-4)
    assert np.all(abs(found["y"] - right["y"]).max(axis=0) > 1e-4)
    says("13.3", "Only `mean`")


@device
def warp_sum_to_lane_0(value):
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(FULL, value, distance)
    return value


def test_question_4_near_the_floor():
    floor = 1e6 * 2 * 4 * 8192 * 4096 / 4800e9
    says(
        "13.4",
        f"{66 - floor:.0f} μs",
        percent((66 - floor) / 66),
        of(floor, "μs"),
        of(66 - floor / 2, "μs"),
        of(floor / 2, "μs"),
    )
