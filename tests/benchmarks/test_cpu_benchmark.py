"""The speed benchmark on the CPU: who takes part, on what arrays, in what processes."""

import platform
import shutil

import numpy as np
import pytest

from benchmarks.cpu import limit, norms
from lnbook.measure.contestants import EPS, Case, arrays


def small(which, dtype="float32", **changes):
    case = Case((2, 3, 8), dtype, which, 1, "recycled", "ordinary")._replace(**changes)
    return case, arrays(case)


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
@pytest.mark.parametrize("section", norms.SECTIONS)
@pytest.mark.parametrize("which", ["forward", "backward"])
def test_norms_beside_pytorch_are_the_same_passes(which, section):
    """Rounded a dozen times at 2**-24 each, as above, and PyTorch's as often."""
    pytest.importorskip("torch")
    case, a = small(which, shape=(3, 7, 100))
    calls = dict(norms.norm_calls(case, a, *norms.SECTIONS[section]))
    found, right = (call() for call in (calls["lnlib"], calls["pytorch"]))
    if which == "forward":  # y, or h and y
        _, *h = right = right if isinstance(right, tuple) else (right,)
        right, found = right[::-1], found[: 1 + len(h)]
    elif not isinstance(right, tuple):  # dx + dh alone
        right, found = (right,), found[:1]
    for mine, theirs in zip(found, right, strict=True):
        mine, theirs = mine.astype(float), theirs.detach().double().numpy()
        assert np.linalg.norm(mine - theirs) <= 24 * 2**-24 * np.linalg.norm(theirs)
