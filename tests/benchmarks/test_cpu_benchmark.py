"""The speed benchmark on the CPU: who takes part, on what arrays, in what processes."""

import json
import math
import platform
import shutil

import numpy as np
import pytest

from benchmarks.cpu import command, contestants, limit, tables
from lnbook.measure.contestants import (
    EPS,
    Case,
    arrays,
    ladder_calls,
    memory_calls,
    numpy_calls,
    thread_calls,
)


def test_geometric_mean():
    assert tables.geometric_mean([1, 4]) == pytest.approx(2, rel=1e-12)


@pytest.mark.parametrize(
    "threads, state, number", [(1, "recycled", 8), (1, "fresh", 2), (2, "recycled", 4)]
)
def test_every_case_once(threads, state, number):
    found = list(command.cases(command.SHAPES, ("float32", "float64"), threads, state))
    assert len(set(found)) == len(found) == number * len(command.SHAPES)
    sums = list(command.thread_cases(threads, state))
    assert bool(sums) == (threads == 2) and len({math.prod(case.shape) for case in sums}) == bool(
        sums
    )
    assert len({*command.pass_cases(threads, state)}) == 8 * (threads == 2)


def test_first_cases_are_measured_twice_and_kept_once(monkeypatch, capsys):
    measured = []
    monkeypatch.setattr(command, "pin", lambda threads: None)
    monkeypatch.setattr(command, "contestants", lambda case, a, left_out: {})
    monkeypatch.setattr(
        command, "records_of", lambda case, *_: measured.append(case) or [len(measured)]
    )
    monkeypatch.setattr(command.assembly, "report", lambda module: [])
    command.work(1, "recycled", [(1, 1, 2), (1, 1, 3)], ["float32"], 1)
    todo = list(command.cases([(1, 1, 2), (1, 1, 3)], ["float32"], 1, "recycled"))
    assert len(todo) == 8 and measured == todo[:4] + todo
    *kept, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert [line["records"] for line in kept] == [[k] for k in range(5, 13)]


def test_a_terminal_is_told_the_shape(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    shown = tables.Progress(2)
    shown.step({"threads": 1, "state": "fresh", "shape": [2, 3]})
    assert "1 thread(s), fresh, (2, 3)" in str(shown.bar) and "1/2" in str(shown.bar)
    shown.close()


def small(which, dtype="float32", **changes):
    case = Case((2, 3, 8), dtype, which, 1, "recycled", "ordinary")._replace(**changes)
    return case, arrays(case)


@pytest.mark.parametrize("alignment, offset", [("ordinary", 16), ("aligned", 0)])
def test_arrays_lie_where_they_should(alignment, offset):
    _, a = small("forward", "float64", shape=(2, 3, 5), state="fresh", alignment=alignment)
    assert [t.shape for t in a] == [(2, 3, 5), (5,), (5,), (2, 3, 5), (2, 3, 5)]
    for t, row in zip(a, a.rows()):
        assert t.ctypes.data % 4096 == offset and t.flags.c_contiguous and t.dtype == np.float64
        assert np.shares_memory(t, row) and row.shape in ((6, 5), (5,))
    assert not np.array_equal(a.x, a.dy) and not np.shares_memory(a.x, a.out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "which, number", [("forward", 2), pytest.param("backward", 3, marks=pytest.mark.slow)]
)
def test_calls_do_what_they_are_named_for(which, number):
    pytest.importorskip("numba")
    case, a = small(which)
    x, dy = a.x.copy(), a.dy.copy()
    results = {name: call() for name, call in numpy_calls(case, a)}
    assert set(results) == {"numpy-idiomatic", "numpy-reused"}
    # Numbers below 4, a dozen roundings each of 2**-24 of that: some 3e-6.
    np.testing.assert_allclose(results["numpy-idiomatic"][0], results["numpy-reused"][0], atol=1e-5)
    for name, call in memory_calls(case, a):
        a.out[...] = 0
        call()
        # One rounding (fused) or two of numbers below 16: 2**-23 of that at most.
        np.testing.assert_allclose(a.out, x + 3 * dy if name == "triad" else x, atol=2e-6)
    assert np.array_equal(a.x, x) and np.array_equal(a.dy, dy)
    steps = [call for _, call in ladder_calls(case, a)]
    assert steps and all(len(call()) == number and call()[0].shape == (6, 8) for call in steps)


@pytest.mark.slow
def test_the_limit_in_c_is_the_same_pass():
    """Row by row, and four rows at a time with rows left over; D with a head, whole vectors and a
    rest.
    """
    cpu = pytest.importorskip("lnlib.cpu")
    if not (shutil.which("gcc") or shutil.which("clang")) or platform.machine() != "x86_64":
        pytest.skip("needs gcc or clang, and an x86-64 processor")
    for shape in ((2, 3, 8), (3, 7, 1000)):
        case, a = small("backward", shape=shape)
        expected = cpu.layer_norm_backward(
            a.dy, cpu.layer_norm_forward(a.x, a.gamma, a.beta, EPS)[1]
        )
        calls = dict(limit.limit_calls(case, a))
        assert list(calls) == ["c-rows", "c-four-rows"]
        for call in calls.values():
            a.out[...] = np.nan
            # Each has a dozen roundings of 2**-24, of the size of what is compared.
            for found, right in zip(call(), expected):
                assert np.linalg.norm(
                    found.ravel() - right.ravel()
                ) <= 24 * 2**-24 * np.linalg.norm(right)
    for other in (small("forward"), small("backward", "float64")):
        assert not list(limit.limit_calls(*other))


@pytest.mark.slow
def test_thread_calls():
    """The sums of two parts share a cache line in one call and not in the other; all add the same
    rows.
    """
    pytest.importorskip("numba")
    case, a = small("backward", threads=2)
    distances = {}
    for name, call in thread_calls(case, a):
        call()
        sums = call.args[2]
        ends = [part[1, 7:].ctypes.data // 64 for part in sums[:-1]]
        distances[name] = [part[0].ctypes.data // 64 - end for part, end in zip(sums[1:], ends)]
        # Sums of six terms of size one: 7 roundings of 2**-24, times some.
        for side, terms in enumerate((a.dy * a.x, a.dy)):
            np.testing.assert_allclose(
                sums[:, side, :8].sum(axis=0), terms.sum(axis=(0, 1)), atol=1e-5
            )
    assert distances == {"one-part": [], "side-by-side": [0], "apart": [2]}


def test_a_peer_may_be_absent_but_not_one_of_ours(monkeypatch):
    def broken(case, a):
        yield "half", "a call"
        raise ImportError("no such peer")

    left_out = {}
    monkeypatch.setattr(contestants, "FAMILIES", {"jax": broken})
    assert contestants.contestants(None, None, left_out) == {"half": "a call"} and left_out == {
        "jax": "ImportError"
    }
    monkeypatch.setattr(contestants, "FAMILIES", {"lnlib": broken})
    with pytest.raises(ImportError):
        contestants.contestants(None, None, {})


def test_the_process_that_measures_gets_its_variables(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    found = command.environment(2, "recycled", "folder")
    assert (
        found["OMP_NUM_THREADS"] == found["NUMBA_NUM_THREADS"] == "2"
        and found["NUMBA_CACHE_DIR"] == "folder"
    )
    assert found["MALLOC_MMAP_MAX_"] == "0" and not {"MALLOC_ARENA_MAX", "OMP_WAIT_POLICY"} & set(
        found
    )
    assert "MALLOC_MMAP_MAX_" not in command.environment(1, "fresh", "folder")


@pytest.mark.parametrize(
    "state, faults, others, warnings",
    [
        ("recycled", 0.0, 0.01, 0),
        ("recycled", 2049.0, 0.01, 1),
        ("fresh", 2049.0, 0.01, 0),
        ("fresh", 0.0, 0.01, 1),
        ("recycled", 0.0, 0.5, 1),
    ],
)
def test_doubtful_numbers_are_named(state, faults, others, warnings):
    record = {
        "implementation": "pytorch",
        "shape": (4, 512, 1024),
        "dtype": "float32",
        "which": "forward",
        "threads": 1,
        "state": state,
        "faults": faults,
        "others": others,
    }
    assert len(list(command.warnings_about([record]))) == warnings
    small = record | {"shape": (1, 1, 64), "others": 0.01}  # below the threshold nothing is fresh
    assert state == "recycled" or not list(command.warnings_about([small | {"faults": 0.0}]))
