"""lnlib.cpu and its compiler: what is compiled, how often, and what is kept on disk."""

import errno
import functools
import itertools
import platform

import cases
import llvmlite.binding
import numba
import numpy as np
import pytest
from cases import VIEWS, arrays, child
from numba.core import caching
from numba.core.compiler import Flags

from lnlib import cpu
from lnlib.cpu import backend, compiler, kernels

run = functools.partial(cases.run, cpu)


@pytest.mark.parametrize("view", VIEWS)
def test_no_view_needs_a_kernel_of_its_own(view):
    """Numba would compile one, in seconds, for every layout of every argument."""
    a = arrays((3, 40))
    run(*a)
    entries = kernels.forward_serial, kernels.backward_serial
    before = [list(entry.signatures) for entry in entries]
    run(*map(VIEWS[view], a))
    assert [list(entry.signatures) for entry in entries] == before


def test_usual_arguments_are_not_checked_twice(monkeypatch):
    """The checks of lnlib.validation take longer than a short row."""
    monkeypatch.setattr(backend, "validation", None)
    for dtype, shape in itertools.product(("f4", "f8"), ((6,), (4, 6), (2, 2, 6))):
        a = arrays(shape, dtype)
        run(*a, 0.0, out=[np.empty_like(a[0]), np.empty_like(a[0])])


def cut(folder, ending, size):
    files = list(folder.rglob(f"*.{ending}"))
    for file in files:
        file.write_bytes(file.read_bytes()[:size])
    assert files


def full(*what):
    raise OSError(errno.ENOSPC, "No space left on device")


#: What happens to the place of compiled code, once something lies in it, and what a warning says.
NO_CACHE = {
    "a cut index": (lambda folder, patch: cut(folder, "nbi", 20), "Error: "),
    "cut data": (lambda folder, patch: cut(folder, "nbc", 200), "Error: "),
    "a full disk": (
        lambda folder, patch: (
            cut(folder, "nbi", 0),
            patch.setattr(caching.IndexDataCacheFile, "load", lambda *what: None),
            patch.setattr(caching.IndexDataCacheFile, "save", full),
        ),
        "OSError: .*No space left",
    ),
    "nowhere to write": (
        lambda folder, patch: patch.setattr(caching.CacheImpl, "_locator_classes", []),
        "RuntimeError: cannot cache function",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("trouble", NO_CACHE)
def test_compiled_code_that_cannot_be_kept_or_read_is_compiled_anew(trouble, tmp_path, monkeypatch):
    """With one warning in a process, which says what to do."""

    def first(array):
        return array[0]

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "_warned", [])
    array = np.array([7.0, 8.0])
    assert compiler.cached()(first)(array) == 7
    happens, says = NO_CACHE[trouble]
    happens(tmp_path, monkeypatch)
    with pytest.warns(
        RuntimeWarning, match=f"no usable place for compiled code .*{says}.*Set NUMBA_CACHE_DIR"
    ) as told:
        assert [compiler.cached()(first)(array) for _ in range(2)] == [7, 7]
    assert len(told) == 1


COMPILED = """
import json, re, test_cpu_compiler
from lnlib.cpu import kernels
found = test_cpu_compiler.several_widths()
print(json.dumps([found, [[sum(c.values()) for c in (entry.stats.cache_hits, entry.stats.cache_misses)]
                          for entry in (kernels.forward_serial, kernels.backward_serial)],
                  [max(re.findall(r"movntps\\s+%([xyz])mm", a)) for entry in (kernels.forward_serial, kernels.backward_serial)
                   if not entry.stats.cache_hits for a in entry.inspect_asm().values()]]))
"""  # noqa: E501


def several_widths():
    return [a.tobytes().hex() for D in (3, 64, 255, 300, 2500) for a in run(*arrays((20, D)))]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder for compiled functions, and what the first process that used it found."""
    folder = tmp_path_factory.mktemp("compiled")
    return folder, child(COMPILED, folder)


@pytest.mark.slow
def test_compiled_code_is_kept_and_gives_the_same_bits(compiled):
    """The second process compiles nothing; this one compiled in another order."""
    folder, (results, counts, _) = compiled
    assert counts == [[0, 1], [0, 1]]
    assert child(COMPILED, folder)[:2] == [results, [[1, 0], [1, 0]]]
    assert results == several_widths()


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the names are those of x86-64")
def test_long_rows_are_streamed_in_vectors(compiled):
    """A streaming store that is not part of a vector loop would be slower than none; and vectors
    are as wide as the processor has them, of 512, 256 or 128 bits.
    """
    features = llvmlite.binding.get_host_cpu_features()
    widest = "z" if features.get("avx512f") else "y" if features.get("avx") else "x"
    assert compiled[1][2] == [widest, widest]


@pytest.mark.slow
def test_the_promise_that_arrays_do_not_overlap(compiled, tmp_path):
    """``flags.noalias`` is Numba's private option: it must exist, and change no bit."""
    assert hasattr(Flags, "noalias")
    without = (
        "from numba.core.compiler import Flags\nFlags.noalias = property(lambda flags: False,"
        " lambda *_: None)\n"
    )
    assert child(without + COMPILED, tmp_path)[0] == compiled[1][0]
