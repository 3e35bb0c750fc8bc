"""The stopwatch: its arithmetic, on a clock that the test turns, and its tables."""

import gc
import math

import pytest
from clocks import FakeClock

from lnbook import measure
from lnbook.measure import provenance, stopwatch


def test_numbers_and_names():
    assert stopwatch.quartiles([5, 1, 4, 2, 3]) == (3, 2, 4)
    # ~ where the quartiles are further apart than a fifth of the median.
    assert [stopwatch.cell([1.0, q1, 1.1]) for q1 in (0.95, 0.8)] == ["1.00", "~1.00"]
    assert [provenance.digits(n) for n in (1.23456e-7, math.inf)] == [1.235e-7, None]


def test_the_order_turns_round_and_settling_is_not_timed():
    clock = FakeClock()
    stopwatch.interleave(
        {name: clock.call(name, 10.0) for name in "abc"}, rounds=4, block=1e-3, clock=clock
    )
    # Each: one call to warm up, one that is long enough. Then in a round each is called twice:
    # untimed, then timed.
    assert clock.log[2 * 3 :] == "aabbccccbbaa" * 2 and gc.isenabled()
    clock = FakeClock()
    # 1 ms a call; a block is 4 calls, so 8 ms of settling are 8 calls. They are slower here, and
    # must not count.
    warm_up, settle, block = [1.0] * 2, [5.0] * 8, [1.0] * 4
    found = stopwatch.interleave(
        {"a": clock.call("a", *warm_up, *settle, *block, *settle, *block)},
        rounds=2,
        block=4e-3,
        settle=8e-3,
        clock=clock,
        faults=lambda: 3 * len(clock.log),
    )
    assert found["a"].number == 4 and found["a"].faults == [3, 3]  # 3 a call of the block
    assert found["a"].seconds == pytest.approx([1e-3, 1e-3], rel=1e-12, abs=0)
    assert len(clock.log) == 2 + 2 * (8 + 4)
    with pytest.raises(ZeroDivisionError):
        stopwatch.interleave({"a": lambda: 1 / 0})
    assert gc.isenabled()
    gc.disable()
    try:
        with stopwatch.no_garbage_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()  # nor does it begin for a caller who has none
    finally:
        gc.enable()


def test_records():
    clock = FakeClock()
    # One call to warm up and one to calibrate (each 8 ms); then, in each round, one untimed and one
    # timed.
    calls = {
        "fast": clock.call("f", 8, 8, 9, 1, 9, 2, 9, 3),
        "slow": clock.call("s", 8, 8, 9, 4, 9, 4, 9, 4),
    }
    fast, slow = stopwatch.compare(
        calls,
        {"speedup": ("slow",), "of_copy": ("absent",)},
        rounds=3,
        block=1e-3,
        clock=clock,
        faults=lambda: 0,
    )
    assert fast == {
        "implementation": "fast",
        "seconds": [2e-3, 1.5e-3, 2.5e-3],
        "first": 8e-3,
        "calls": 1,
        "faults": 0.0,
        "speedup": [2.0, 1.667, 3.0],
    }  # of 4 / 1, 4 / 2 and 4 / 3, each of one round
    assert slow["seconds"] == [4e-3, 4e-3, 4e-3] and slow["speedup"] == [1, 1, 1]
    # Of several bases the fastest of each round counts.
    found = {"base": measure.Timing([2.0, 20.0, 4.0]), "other": measure.Timing([1.0, 10.0, 1.0])}
    assert stopwatch.ratios(found, ("base", "other"), "base").tolist() == [0.5, 0.5, 0.25]


def timing(*milliseconds, **others):
    return measure.Timing([1e-3 * t for t in milliseconds], **others)


def test_table():
    """The prediction is by the access of the same round: 1, 2 and 1 ms for the two of the copy."""
    found = {
        "copyto": timing(2, 4, 6),
        "copy-loop": timing(3, 4, 2),
        "pass": timing(2, 6, 2),
        "numpy": timing(12, 24, 12),
    }
    lines = measure.table(found, 10**6, {"pass": 2, "numpy": 12}).splitlines()
    assert " ".join(lines[0].split()) == "predicted measured quartiles ratio GB/s of floor"
    assert [line.split() for line in lines[3:]] == [
        ["pass", "2.00", "2.00", "ms", "2.00", "to", "4.00", "1.00", "1.0", "100%"],
        ["numpy", "12.00", "12.00", "ms", "12.00", "to", "18.00", "1.00", "1.0", "17%"],
    ]
    # Without a floor there is nothing to predict from, without bytes no rate.
    lines = measure.table({"a": timing(2e-3, 3e-3, 4e-3)}).splitlines()
    assert [line.split() for line in lines] == [
        ["measured", "quartiles"],
        ["a", "3.00", "us", "2.50", "to", "3.50"],
    ]
    assert max(map(len, measure.table(found, 10**6, {"pass": 2}).splitlines())) <= 76
