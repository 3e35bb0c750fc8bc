"""What a CPU can do: rates count what the loops do, on the threads that were asked for."""

import sys

import numpy as np
import pytest

from lnbook import measure
from lnbook.measure import rates


@pytest.fixture
def numba():
    return pytest.importorskip("numba")


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_kernels_do_what_is_counted(numba, threads):
    copy, triad = rates.memory_loops(threads)
    a, b, c = (
        np.zeros(1001, np.float32),
        np.arange(1001, dtype=np.float32),
        np.ones(1001, np.float32),
    )
    copy(a, b, threads)
    assert np.array_equal(a, b)
    triad(a, b, np.float32(0.5), c, threads)
    assert np.array_equal(a, b + np.float32(0.5))
    work = np.ones((2, 5), np.float32)
    rates.multiply_add_loop(threads > 1)(work, np.float32(2), np.float32(1), 2)
    assert (work == 2**17 - 1).all()  # v + 1 doubles in each of 2 * 8 steps


@pytest.mark.parametrize("threads", [1, 2])
def test_a_machine_counts_bytes_and_operations(numba, monkeypatch, threads):
    """Of a clock that gives each call a second: the amounts themselves, and kernels called as they
    are meant.
    """
    threads, called = min(threads, numba.config.NUMBA_NUM_THREADS), []

    def once(calls, rounds):
        for call in calls.values():
            call()
        return {name: measure.Timing([1.0] * rounds) for name in calls}

    monkeypatch.setattr(rates, "interleave", once)

    def loop(*arguments):
        called.append([np.shape(a) for a in arguments])

    monkeypatch.setattr(
        rates, "memory_loops", lambda threads: called.append(threads) or (loop, loop)
    )
    monkeypatch.setattr(
        rates, "multiply_add_loop", lambda parallel: called.append(parallel) or loop
    )
    machine = measure.machine(threads, size=10_000)
    assert machine[1:] == (20_000, 30_000, threads * 512 * 2**14 * 8 * 2)
    assert f"threads: {threads}" in machine.name and "0.01 MB" in machine.name
    assert called == [
        threads,
        threads > 1,
        [(2500,), (2500,), ()],
        [(2500,), (2500,), (), (2500,), ()],
        [(threads, 512), (), (), ()],
    ]


def test_the_number_of_threads_is_set_and_set_back(numba, monkeypatch):
    calls = []
    monkeypatch.setattr(numba, "get_num_threads", lambda: 7)
    monkeypatch.setattr(numba, "set_num_threads", calls.append)
    monkeypatch.setattr(rates, "interleave", lambda calls, rounds: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measure.machine(threads=1, size=64)
    assert calls == [1, 7]


@pytest.mark.parametrize("n", [16, 1000, 10**6])
def test_arrays_begin_on_a_cache_line(numba, monkeypatch, n):
    def loop(*arguments):
        for a in arguments:
            assert np.ndim(a) != 1 or a.ctypes.data % 64 == 0 and a.shape == (n,) and (a == 1).all()

    monkeypatch.setattr(rates, "memory_loops", lambda threads: (loop, loop))
    monkeypatch.setattr(rates, "multiply_add_loop", lambda parallel: loop)
    measure.machine(size=4 * n, rounds=1)


def test_without_numba_it_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(
        ImportError,
        match=r"lnbook.measure.machine needs Numba.*Machine\(name, copy, triad, flops\)",
    ):
        measure.machine()
