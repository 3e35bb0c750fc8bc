"""The speed benchmark on the CPU: its arithmetic, on a clock that the test turns, who takes part, what it shows."""

import gc
import json
import math
import os

import numpy as np
import pytest

from benchmarks.common import provenance, timing
from benchmarks.cpu import assembly, command, contestants, tables, tricks
from lnlib import cpu


class FakeClock:
    """Nanoseconds that pass only when a call says so; ``log`` holds the names of the calls made."""

    def __init__(self):
        self.now, self.log = 0, []

    def __call__(self):
        return self.now

    def call(self, name, *milliseconds):
        """A call that takes the given times in turn, and the last of them from then on."""
        times = list(milliseconds)

        def run():
            self.log.append(name)
            self.now += round((times.pop(0) if len(times) > 1 else times[0]) * 1e6)

        return run


def test_quartiles():
    assert timing.quartiles([5, 1, 4, 2, 3]) == (3, 2, 4)
    assert timing.quartiles([1.0, 2.0]) == (1.5, 1.25, 1.75)


@pytest.mark.parametrize("milliseconds, number", [
    ([50.0], 1), ([2.0], 2), ([0.01], 300),
    ([900.0, 1.0], 3),  # a slow first call does not set the number
    ([900.0, 0.5, 0.1], 30),  # nor do the next: blocks of 1, 2, 4 and 8 calls take 0.5, 0.2, 0.4 and 0.8 ms
])
def test_a_block_is_as_long_as_asked(milliseconds, number):
    clock = FakeClock()
    assert timing.calibrate(clock.call("a", *milliseconds), 3e-3, clock) == number
    assert timing.seconds(clock.call("b", 2.0), 4, clock) == pytest.approx(2e-3, rel=1e-12)
    assert clock.log.count("b") == 4


def test_the_order_turns_round():
    clock = FakeClock()
    calls = {name: clock.call(name, 10.0) for name in "abc"}
    timing.interleave(calls, rounds=4, block=1e-3, clock=clock)
    calibration = 2 * len(calls)  # each: one call to warm up, one that is long enough
    # In a round each is called twice: untimed, then timed.
    assert "".join(clock.log[calibration:]) == "aabbcc" + "ccbbaa" + "aabbcc" + "ccbbaa"


def test_settling_is_not_timed():
    clock = FakeClock()
    # 1 ms a call; a block is 4 calls, so 8 ms of settling are 8 calls. They are slower here, and must not count.
    warm_up, settle, block = [1.0] * 2, [5.0] * 8, [1.0] * 4
    found = timing.interleave({"a": clock.call("a", *warm_up, *settle, *block, *settle, *block)}, rounds=2,
                              block=4e-3, settle=8e-3, clock=clock, faults=lambda: 3 * len(clock.log))
    assert found["a"].number == 4 and found["a"].faults == [3, 3]  # 3 a call of the block
    assert found["a"].seconds == pytest.approx([1e-3, 1e-3], rel=1e-12)
    assert len(clock.log) == 2 + 2 * (8 + 4)


def test_records():
    clock = FakeClock()
    # One call to warm up and one to calibrate (each 8 ms); then, in each round, one untimed and one timed.
    calls = {"fast": clock.call("fast", 8, 8, 9, 1, 9, 2, 9, 3), "slow": clock.call("slow", 8, 8, 9, 4, 9, 4, 9, 4)}
    fast, slow = timing.compare(calls, {"speedup": ("slow",), "of_copy": ("absent",)}, rounds=3, block=1e-3,
                                clock=clock, faults=lambda: 0)
    assert fast == {"implementation": "fast", "seconds": [2e-3, 1.5e-3, 2.5e-3], "calls": 1, "faults": 0.0,
                    "speedup": [2.0, 1.667, 3.0]}  # of 4 / 1, 4 / 2 and 4 / 3: ratios are taken inside a round
    assert slow["seconds"] == [4e-3, 4e-3, 4e-3] and slow["speedup"] == [1, 1, 1]
    # Of several bases the fastest of each round counts.
    found = {"base": timing.Timing([2.0, 20.0, 4.0], [], 1), "other": timing.Timing([1.0, 10.0, 1.0], [], 1)}
    assert timing.ratios(found, ("base", "other"), "base").tolist() == [0.5, 0.5, 0.25]


def test_no_collection_inside_blocks():
    clock = FakeClock()
    seen = []
    timing.interleave({"a": lambda: seen.append(gc.isenabled()) or clock.call("a", 10.0)()}, rounds=1, clock=clock)
    assert seen and not any(seen) and gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        timing.interleave({"a": lambda: 1 / 0})
    assert gc.isenabled()


def test_the_time_of_others(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    stat.write_text("cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 20 3 7777 88 99 66 4 0 0\n"
                    "cpu1 50 0 0 0 0 0 0 0 0 0\nintr 1\n")
    tick = os.sysconf("SC_CLK_TCK")
    assert timing.busy_seconds({0}, stat) == 127 / tick and timing.busy_seconds({0, 1}, stat) == 177 / tick
    # Two cores for 10 s are busy for 15 s, of which this process had 11: 4 of 20 went to others.
    for name, values in (("busy_seconds", [100.0, 115.0]), ("time.process_time", [1.0, 12.0]),
                         ("time.perf_counter", [5.0, 15.0])):
        monkeypatch.setattr(f"benchmarks.common.timing.{name}", lambda *_, values=iter(values): next(values))
    with timing.watch({0, 1}) as shared:
        pass
    assert shared == {"others": 0.2}


X86 = ["vmovups (%rax,%rdx,4), %zmm1", "vfmadd231ps %zmm0, %zmm1, %zmm2", "vfnmadd213pd %ymm0, %ymm1, %ymm2",
       "vaddps (%rax), %ymm3, %ymm4", "vsubps %xmm3, %xmm3, %xmm4", "vextractf64x4 $1, %zmm0, %ymm1",
       "vxorps %xmm0, %xmm0, %xmm0", "vcvtps2pd %ymm0, %zmm1", "vaddss %xmm3, %xmm3, %xmm4",
       "vdivsd %xmm3, %xmm3, %xmm4", "vfmadd132sd %xmm3, %xmm3, %xmm4", "vmovntps %zmm1, (%rax)", "addq $8, %rax"]
ARM = ["ldp q0, q1, [x0], #32", "fmla v2.4s, v0.4s, v1.4s", "fadd v3.2d, v0.2d, v1.2d", "fmul.4s v3, v0, v1",
       "fadd s0, s1, s2", "fmadd d0, d1, d2, d3", "stnp q0, q1, [x0]", "add x0, x0, #8"]


@pytest.mark.parametrize("lines, expected", [
    (X86, {"zmm": 1, "ymm": 2, "xmm": 1, "scalar": 3, "fma": 3, "streaming": 1}),
    (ARM, {"v": 3, "scalar": 2, "fma": 2, "streaming": 1}), ([], {}),
])
def test_instructions_are_counted_by_register(lines, expected):
    assert assembly.count("".join(f"\t{line.replace(' ', chr(9), 1)}\n" for line in lines)) == expected


def test_kernels_of_a_module_are_found_where_they_hide():
    numba = pytest.importorskip("numba")

    def double(a):
        for i in range(a.size):
            a[i] *= 2

    hidden = {"deep": [numba.njit(double)]}
    hidden["deep"][0](np.ones(64))
    hidden["deep"][0](np.ones(64, np.float32))
    records = [r for r in assembly.report(__name__) if r["kernel"].endswith("double")]
    assert [(r["arguments"], r["parallel"]) for r in records] == [("float64", False), ("float32", False)]
    assert all(sum(r.get(register, 0) for register in ("zmm", "ymm", "xmm", "v")) > 0 for r in records)
    assert assembly.report("no.such.module") == []


def test_a_file_has_a_record_a_line(tmp_path):
    result = {"title": "t", "provenance": {"a": 1}, "records": [{"x": 1}, {"x": [2, 3]}]}
    provenance.save(tmp_path / "new" / "r.json", result)
    text = (tmp_path / "new" / "r.json").read_text()
    assert json.loads(text) == result and '  {"x": 1},\n  {"x": [2, 3]}\n' in text
    assert [provenance.digits(n) for n in (1.23456e-7, math.inf, math.nan)] == [1.235e-7, None, None]
    assert provenance.slug("AMD EPYC(TM) 9-core @ (2.0 GHz)") == "amd-epyc-tm-9-core-2-0-ghz"


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


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_calls_do_what_they_are_named_for(which):
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
    steps = dict(contestants.ladder_calls(case, a))
    assert all(len(call()) == {"forward": 2, "backward": 3}[which] and call()[0].shape == (6, 8)
               for call in steps.values()) and steps


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
        np.testing.assert_allclose(sums[:, 0, :8].sum(axis=0), (a.dy * a.x).sum(axis=(0, 1)), atol=1e-5)
        np.testing.assert_allclose(sums[:, 1, :8].sum(axis=0), a.dy.sum(axis=(0, 1)), atol=1e-5)
    assert distances == {"one-part": [], "side-by-side": [0], "apart": [2]}


@pytest.mark.parametrize("name", tricks.TRICKS)
def test_every_trick_takes_something_away(name):
    without = tricks.changed(tricks.SOURCE, tricks.TRICKS[name])
    for file, text in without.items():
        compile(text, file, "exec")
    assert without != tricks.SOURCE
    with pytest.raises(ValueError, match="no such text"):
        tricks.changed(tricks.SOURCE, {"no such text": ""})


def test_a_trick_less_is_the_same_function():
    pytest.importorskip("numba")
    x = np.random.default_rng(0).standard_normal((9, 300), np.float32)
    gamma, without = x[0].copy(), tricks.without("no-head")
    assert without is tricks.without("no-head") and without.layer_norm_forward is not cpu.layer_norm_forward
    # Each element has the same operations, whatever lies in one vector.
    assert np.array_equal(without.layer_norm_forward(x, gamma, gamma)[0], cpu.layer_norm_forward(x, gamma, gamma)[0])


def test_a_peer_may_be_absent_but_not_one_of_ours(monkeypatch):
    def broken(case, a):
        yield "half", "a call"
        raise ImportError("no such peer")

    monkeypatch.setattr(contestants, "FAMILIES", {"jax": broken})
    left_out = {}
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


# What is shown

@pytest.mark.parametrize("state, faults, shape, others, warnings", [
    ("recycled", 0.0, (4, 512, 1024), 0.01, 0), ("recycled", 2049.0, (4, 512, 1024), 0.01, 1),
    ("fresh", 2049.0, (4, 512, 1024), 0.01, 0), ("fresh", 0.0, (4, 512, 1024), 0.01, 1),
    ("fresh", 0.0, (1, 1, 64), 0.01, 0),  # below the threshold nothing is fresh
    ("recycled", 0.0, (4, 512, 1024), 0.5, 1),
])
def test_doubtful_numbers_are_named(state, faults, shape, others, warnings):
    record = {"implementation": "pytorch", "shape": shape, "dtype": "float32", "which": "forward", "threads": 1,
              "state": state, "faults": faults, "others": others}
    assert len(list(command.warnings_about([record]))) == warnings


def test_cells():
    assert [timing.cell([1.0, q1, 1.1]) for q1 in (0.95, 0.8)] == ["1.00", "~1.00"] and timing.cell(None) == ""
    assert tables.geometric_mean([1, 4]) == pytest.approx(2, rel=1e-12)
