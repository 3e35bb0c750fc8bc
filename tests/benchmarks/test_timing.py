"""The speed benchmark on the CPU: its arithmetic, on a clock that the test turns, who takes part, what it shows."""

import gc
import itertools
import math
import os

import numpy as np
import pytest

from benchmarks.common import provenance, timing
from benchmarks.cpu import command, contestants, tables


class FakeClock:
    """Nanoseconds that pass only when a call says so; ``log`` holds the names of the calls made, one letter each."""

    now, log = 0, ""

    def __call__(self):
        return self.now

    def call(self, name, *milliseconds):
        """A call that takes the given times in turn, and the last of them from then on."""
        times = itertools.chain(milliseconds, itertools.repeat(milliseconds[-1]))

        def run():
            assert not gc.isenabled() or name == "g"  # no collection inside a block
            self.log += name
            self.now += round(next(times) * 1e6)
        return run


def test_numbers_and_names():
    assert timing.quartiles([5, 1, 4, 2, 3]) == (3, 2, 4) and timing.quartiles([1.0, 2.0]) == (1.5, 1.25, 1.75)
    assert [timing.cell([1.0, q1, 1.1]) for q1 in (0.95, 0.8)] == ["1.00", "~1.00"] and timing.cell(None) == ""
    assert tables.geometric_mean([1, 4]) == pytest.approx(2, rel=1e-12)
    assert [provenance.digits(n) for n in (1.23456e-7, math.inf, math.nan)] == [1.235e-7, None, None]
    assert provenance.slug("AMD EPYC(TM) 9-core @ (2.0 GHz)") == "amd-epyc-tm-9-core-2-0-ghz"


@pytest.mark.parametrize("milliseconds, number", [
    ([50.0], 1), ([2.0], 2), ([0.01], 300),
    ([900.0, 1.0], 3),  # a slow first call does not set the number
    ([900.0, 0.5, 0.1], 30),  # nor do the next: blocks of 1, 2, 4 and 8 calls take 0.5, 0.2, 0.4 and 0.8 ms
])
def test_a_block_is_as_long_as_asked(milliseconds, number):
    clock = FakeClock()
    assert timing.calibrate(clock.call("g", *milliseconds), 3e-3, clock) == number
    before = clock.now
    assert timing.seconds(clock.call("g", 2.0), 4, clock) == pytest.approx(2e-3, rel=1e-12)
    assert clock.log[-4:] == "gggg" and clock.now == before + 8e6


def test_the_order_turns_round_and_settling_is_not_timed():
    clock = FakeClock()
    timing.interleave({name: clock.call(name, 10.0) for name in "abc"}, rounds=4, block=1e-3, clock=clock)
    # Each: one call to warm up, one that is long enough. Then in a round each is called twice: untimed, then timed.
    assert clock.log[2 * 3:] == "aabbccccbbaa" * 2 and gc.isenabled()
    clock = FakeClock()
    # 1 ms a call; a block is 4 calls, so 8 ms of settling are 8 calls. They are slower here, and must not count.
    warm_up, settle, block = [1.0] * 2, [5.0] * 8, [1.0] * 4
    found = timing.interleave({"a": clock.call("a", *warm_up, *settle, *block, *settle, *block)}, rounds=2,
                              block=4e-3, settle=8e-3, clock=clock, faults=lambda: 3 * len(clock.log))
    assert found["a"].number == 4 and found["a"].faults == [3, 3]  # 3 a call of the block
    assert found["a"].seconds == pytest.approx([1e-3, 1e-3], rel=1e-12)
    assert len(clock.log) == 2 + 2 * (8 + 4)
    with pytest.raises(ZeroDivisionError):
        timing.interleave({"a": lambda: 1 / 0})
    assert gc.isenabled()


def test_records():
    clock = FakeClock()
    # One call to warm up and one to calibrate (each 8 ms); then, in each round, one untimed and one timed.
    calls = {"fast": clock.call("f", 8, 8, 9, 1, 9, 2, 9, 3), "slow": clock.call("s", 8, 8, 9, 4, 9, 4, 9, 4)}
    fast, slow = timing.compare(calls, {"speedup": ("slow",), "of_copy": ("absent",)}, rounds=3, block=1e-3,
                                clock=clock, faults=lambda: 0)
    assert fast == {"implementation": "fast", "seconds": [2e-3, 1.5e-3, 2.5e-3], "calls": 1, "faults": 0.0,
                    "speedup": [2.0, 1.667, 3.0]}  # of 4 / 1, 4 / 2 and 4 / 3: ratios are taken inside a round
    assert slow["seconds"] == [4e-3, 4e-3, 4e-3] and slow["speedup"] == [1, 1, 1]
    # Of several bases the fastest of each round counts.
    found = {"base": timing.Timing([2.0, 20.0, 4.0], [], 1), "other": timing.Timing([1.0, 10.0, 1.0], [], 1)}
    assert timing.ratios(found, ("base", "other"), "base").tolist() == [0.5, 0.5, 0.25]


def test_the_time_of_others(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    stat.write_text("cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 20 3 7777 88 99 6 4 0 0\ncpu1 50 0 0 0 0 0 0 0 0 0\nintr 1\n")
    tick = os.sysconf("SC_CLK_TCK")
    assert timing.busy_seconds({0}, stat) == 127 / tick and timing.busy_seconds({0, 1}, stat) == 177 / tick
    # Two cores for 10 s are busy for 15 s, of which this process had 11: 4 of 20 went to others.
    for name, values in (("busy_seconds", [100.0, 115.0]), ("time.process_time", [1.0, 12.0]),
                         ("time.perf_counter", [5.0, 15.0])):
        monkeypatch.setattr(f"benchmarks.common.timing.{name}", lambda *_, values=iter(values): next(values))
    with timing.watch({0, 1}) as shared:
        pass
    assert shared == {"others": 0.2}


# What is compared

@pytest.mark.parametrize("threads, state, number", [(1, "recycled", 8), (1, "fresh", 2), (2, "recycled", 4)])
def test_every_case_once(threads, state, number):
    found = list(command.cases(command.SHAPES, ("float32", "float64"), threads, state))
    assert len(set(found)) == len(found) == number * len(command.SHAPES)
    sums = list(command.thread_cases(threads, state))
    assert bool(sums) == (threads == 2) and len({math.prod(case.shape) for case in sums}) == bool(sums)


def small(which, dtype="float32", **changes):
    case = contestants.Case((2, 3, 8), dtype, which, 1, "recycled", "ordinary")._replace(**changes)
    return case, contestants.arrays(case)


@pytest.mark.parametrize("alignment, offset", [("ordinary", 16), ("aligned", 0)])
def test_arrays_lie_where_they_should(alignment, offset):
    _, a = small("forward", "float64", shape=(2, 3, 5), state="fresh", alignment=alignment)
    assert [t.shape for t in a] == [(2, 3, 5), (5,), (5,), (2, 3, 5), (2, 3, 5)]
    for t, row in zip(a, a.rows()):
        assert t.ctypes.data % 4096 == offset and t.flags.c_contiguous and t.dtype == np.float64
        assert np.shares_memory(t, row) and row.shape in ((6, 5), (5,))
    assert not np.array_equal(a.x, a.dy) and not np.shares_memory(a.x, a.out)


@pytest.mark.slow
@pytest.mark.parametrize("which, number", [("forward", 2), pytest.param("backward", 3, marks=pytest.mark.slow)])
def test_calls_do_what_they_are_named_for(which, number):
    pytest.importorskip("numba")
    case, a = small(which)
    x, dy = a.x.copy(), a.dy.copy()
    results = {name: call() for name, call in contestants.numpy_calls(case, a)}
    assert set(results) == {"numpy-idiomatic", "numpy-reused"}
    # Numbers below 4, a dozen roundings each of 2**-24 of that: some 3e-6.
    np.testing.assert_allclose(results["numpy-idiomatic"][0], results["numpy-reused"][0], atol=1e-5)
    for name, call in contestants.memory_calls(case, a):
        a.out[...] = 0
        call()
        # One rounding (fused) or two of numbers below 16: 2**-23 of that at most.
        np.testing.assert_allclose(a.out, x + 3 * dy if name == "triad" else x, atol=2e-6)
    assert np.array_equal(a.x, x) and np.array_equal(a.dy, dy)
    steps = [call for _, call in contestants.ladder_calls(case, a)]
    assert steps and all(len(call()) == number and call()[0].shape == (6, 8) for call in steps)


def test_thread_calls():
    """The sums of two parts share a cache line in one call and not in the other; all add the same rows."""
    pytest.importorskip("numba")
    case, a = small("backward", threads=2)
    distances = {}
    for name, call in contestants.thread_calls(case, a):
        call()
        sums = call.args[2]
        ends = [part[1, 7:].ctypes.data // 64 for part in sums[:-1]]
        distances[name] = [part[0].ctypes.data // 64 - end for part, end in zip(sums[1:], ends)]
        # Sums of six terms of size one: 7 roundings of 2**-24, times some.
        for side, terms in enumerate((a.dy * a.x, a.dy)):
            np.testing.assert_allclose(sums[:, side, :8].sum(axis=0), terms.sum(axis=(0, 1)), atol=1e-5)
    assert distances == {"one-part": [], "side-by-side": [0], "apart": [2]}


def test_a_peer_may_be_absent_but_not_one_of_ours(monkeypatch):
    def broken(case, a):
        yield "half", "a call"
        raise ImportError("no such peer")
    left_out = {}
    monkeypatch.setattr(contestants, "FAMILIES", {"jax": broken})
    assert contestants.contestants(None, None, left_out) == {"half": "a call"} and left_out == {"jax": "ImportError"}
    monkeypatch.setattr(contestants, "FAMILIES", {"lnlib": broken})
    with pytest.raises(ImportError):
        contestants.contestants(None, None, {})


def test_the_process_that_measures_gets_its_variables(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    found = command.environment(2, "recycled", "folder")
    assert found["OMP_NUM_THREADS"] == found["NUMBA_NUM_THREADS"] == "2" and found["NUMBA_CACHE_DIR"] == "folder"
    assert found["MALLOC_MMAP_MAX_"] == "0" and not {"MALLOC_ARENA_MAX", "OMP_WAIT_POLICY"} & set(found)
    assert "MALLOC_MMAP_MAX_" not in command.environment(1, "fresh", "folder")


@pytest.mark.parametrize("state, faults, others, warnings", [
    ("recycled", 0.0, 0.01, 0), ("recycled", 2049.0, 0.01, 1), ("fresh", 2049.0, 0.01, 0), ("fresh", 0.0, 0.01, 1),
    ("recycled", 0.0, 0.5, 1)])
def test_doubtful_numbers_are_named(state, faults, others, warnings):
    record = {"implementation": "pytorch", "shape": (4, 512, 1024), "dtype": "float32", "which": "forward",
              "threads": 1, "state": state, "faults": faults, "others": others}
    assert len(list(command.warnings_about([record]))) == warnings
    small = record | {"shape": (1, 1, 64), "others": 0.01}  # below the threshold nothing is fresh
    assert state == "recycled" or not list(command.warnings_about([small | {"faults": 0.0}]))
