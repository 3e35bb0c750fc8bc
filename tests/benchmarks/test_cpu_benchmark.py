"""The speed benchmark on the CPU: who takes part, on what arrays, in what processes."""

import platform
import shutil

import numpy as np
import pytest

from benchmarks.cpu import limit
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
