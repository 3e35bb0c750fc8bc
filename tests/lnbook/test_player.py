"""Kernels that one can watch: a recording says what the interpreter's log and its errors say."""

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("matplotlib")
import simt  # noqa: E402
from lnbook.figures import player, watched  # noqa: E402
from lnlib.gpu.ladder import fused_partials_long  # noqa: E402
from simt.cuda_access import cuda, float32  # noqa: E402


def unpack(packed):
    if not isinstance(packed, str):
        return packed
    first, step, count = map(int, packed.split(","))
    return [first + k * step for k in range(count)]


@pytest.mark.parametrize(
    "kernel, lanes, grid, block, sizes, numbers",
    [
        (watched.row_of_16, 8, 1, 16, (16, 16), ()),
        (watched.atomics, 4, 4, 4, (48, 48, 4), (12,)),
        (fused_partials_long, 32, 2, 64, (320, 320, 5, 5, 64, 320, 128, 128), (5, 64)),
    ],
)
def test_a_recording_is_the_log(kernel, lanes, grid, block, sizes, numbers):
    whole = np.random.default_rng(9).integers(-3, 4, 3 + sum(sizes)).astype(np.float32)
    _, *arrays, _ = np.split(whole, 3 + np.cumsum((0, *sizes)))  # none begins where a sector does
    film = player.Film(lanes)
    run = film.launch(kernel, grid, block, *arrays, *numbers).run
    data, asked, exchanges = film.data(), Counter(), 0
    memory = [array["v"] for array in data["arrays"]]
    for step in data["steps"]:
        exchanges += len(unpack(step.get("x", [[]])[0]))
        for number, kind, _, indices, *values in step.get("a", ()):
            array, indices = data["arrays"][number], unpack(indices)
            if array["g"]:
                key = array["n"], player.KINDS[kind]
                asked[key, "requests"] += 1
                late = array.get("o", 0)
                asked[key, "sectors"] += len({(i + late) * array["z"] // 32 for i in indices})
            for i, value in zip(indices, unpack(values[0]) if values else ()):
                memory[number][i] = value + (memory[number][i] if kind == 2 else 0)
    counted = simt.sectors(run).items()
    both = "requests", "sectors"
    assert asked == {(key, what): getattr(t, what) for key, t in counted for what in both}
    assert exchanges == sum(event[2].startswith("shfl") for event in run.events)
    for found, array in zip(memory, arrays):  # three digits are kept
        np.testing.assert_allclose(found, array, rtol=5e-3)


def test_a_missing_barrier_is_a_race_at_the_two_lines_of_the_error():
    whole, *others = watched.row_sum().films
    assert not any("c" in step for step in whole["steps"])
    assert watched.row_sum().json() == watched.row_sum().json()  # as builds of one commit are
    for film in others:
        line = whole["code"][film["off"]]
        assert line.strip().startswith("cuda.syncthreads()")
        step = next(step for step in film["steps"] if "c" in step)
        with pytest.raises(simt.DataRace) as error:
            row, arrays = watched.without(line.strip()), np.ones((2, 16), np.float32)
            simt.launch(row, 1, 16, *arrays, lanes=8)
        assert [step["l"][0] + 1, step["c"][0] + 1] == [error.value.line, error.value.other_line]
        assert error.value.place == ("parts", 0) and error.value.run.accesses is None


def test_blocks_queue_at_one_address_only():
    atomics, own = watched.dgamma().films
    assert [sum("q" in step for step in film["steps"]) for film in (atomics, own)] == [3 * 3, 0]
    assert max(len(step.get("a", ())) for step in own["steps"]) == 4 * 2  # of a row, not of all


def test_a_mistake_ends_what_one_watches():
    def kernel(x):
        x[cuda.threadIdx.x] = float32(1)

    shown = player.watch(kernel, 1, 32, np.zeros(31, np.float32))
    assert "The interpreter stops: x[31] is out of bounds" in repr(shown).split("\n")[-1]
    assert "<script" in shown._repr_html_()
