"""Who is timed: the calls that are named, memory beside them, and what cannot run is told."""

import sys

import numpy as np
import pytest

from lnbook import measure
from lnbook.measure import contestants


@pytest.mark.slow
def test_passes_are_what_they_are_called():
    pytest.importorskip("numba")
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
    # Where lnlib.cpu is loaded already, its cache on disk finds no Numba either, and would warn.
    monkeypatch.setattr("lnlib.cpu.compiler._warned", [None])
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
