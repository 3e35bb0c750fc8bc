"""Who is timed: readers get the calls they name, memory beside them, and are told what cannot
run.
"""

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from lnbook import measure
from lnbook.measure import contestants
from lnbook.measure.allocation import STATES, memory
from lnlib import cost


@pytest.fixture
def numba():
    return pytest.importorskip("numba")


@pytest.mark.slow
def test_passes_are_what_they_are_called(numba):
    names = ["numpy-idiomatic", "fused"]
    for which, beside, number in (
        ("forward", {"copyto", "copy-loop"}, 2),
        ("backward", {"triad"}, 3),
    ):
        calls = measure.passes((4, 5, 8), names, which)
        assert set(calls) == beside | set(names)
        found = {name: calls[name]() for name in names}
        assert all(len(result) == number for result in found.values())
        # Of numbers of size one with a dozen roundings each: some 1e-6.
        first = [np.reshape(result[0], (20, 8)) for result in found.values()]
        assert all(np.allclose(first[0], other, atol=1e-5) for other in first)


def test_what_is_not_installed_is_left_out_and_told(monkeypatch, capsys):
    for name in ("numba", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    contestants.memory_loops.cache_clear()
    for which in ("forward", "backward"):
        assert set(
            measure.passes((2, 8), ["numpy-idiomatic", "fused", "lnlib", "pytorch"], which)
        ) == {"copyto", "numpy-idiomatic"}
        said = capsys.readouterr().out
        assert "the compiled copy and triad, fused, lnlib: Numba is not installed" in said
        assert "not measured here: pytorch: PyTorch is not installed" in said
    monkeypatch.setattr(sys, "platform", "emscripten")
    measure.passes((2, 8), ["lnlib"])
    assert "no browser runs Numba" in capsys.readouterr().out
    with pytest.raises(ImportError):
        measure.partial_sums(4)


def test_threads_are_set_for_each_call(numba, monkeypatch):
    now = []
    monkeypatch.setattr(numba, "set_num_threads", now.append)
    for threads in (1, 2):
        measure.passes((2, 8), ["numpy-idiomatic"], threads=threads)["copyto"]()
    assert now == [1, 2]


def test_a_table_for_readers(capsys):
    measure.show((4, 8), ["numpy-idiomatic"], rounds=1, block=1e-9)
    first, head, *lines = capsys.readouterr().out.splitlines()
    assert (
        first == "(4, 8), float32, forward, threads: 1" and "predicted" in head and "ratio" in head
    )
    assert lines[-1].startswith("numpy-idiomatic")


@pytest.mark.parametrize(
    "names, told",
    [
        (["numpy-idiomatic"], {"numba": [7]}),
        (["numpy-idiomatic", "pytorch"], {"numba": [7], "torch": [7]}),
    ],
)
def test_after_a_table_there_are_as_many_threads_as_before(monkeypatch, names, told):
    said = {}
    for package in ("numba", "torch"):
        monkeypatch.setitem(
            sys.modules,
            package,
            SimpleNamespace(
                get_num_threads=lambda: 7,
                set_num_threads=lambda n, package=package: said.setdefault(package, []).append(n),
            ),
        )
    monkeypatch.setattr(measure.contestants, "passes", lambda *arguments: {"copyto": list})
    measure.show((4, 8), names, rounds=1, block=1e-9)
    assert said == told
    monkeypatch.setitem(sys.modules, "numba", None)  # it is there and cannot be imported
    measure.show((4, 8), ["numpy-idiomatic"], rounds=1, block=1e-9)


def test_lines_are_those_of_the_cost_model():
    known = {o.name for o in cost.operations("forward", 10, 1000) if o.flops >= 10_000}
    assert known <= set(measure.lines((2, 3))) and "copyto" in measure.lines((2, 3))


def test_the_c_library_is_told_and_told_back(monkeypatch):
    said = []

    class Libc:
        def __init__(self, name):
            pass

        def malloc_trim(self, pad):
            pass

        def mallopt(self, name, value):
            said.append((name, value))
            return 1

    monkeypatch.setattr(ctypes, "CDLL", Libc)
    with memory("fresh") as told:
        assert told and said == list(STATES["fresh"])
    assert said[-3:] == list(STATES["plain"])
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with memory("recycled") as told:
        assert not told and len(said) == 6
