"""What a CPU can do: rates count what the loops do, on the threads that were asked for."""

import numpy as np
import pytest

from lnbook.measure import rates


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_do_what_is_counted(threads):
    pytest.importorskip("numba")
    copy, triad = rates.memory_loops(threads)
    a = np.zeros(1001, np.float32)
    b = np.arange(1001, dtype=np.float32)
    c = np.ones(1001, np.float32)
    copy(a, b, threads)
    assert np.array_equal(a, b)
    triad(a, b, np.float32(0.5), c, threads)
    assert np.array_equal(a, b + np.float32(0.5))
    work = np.ones((2, 5), np.float32)
    rates.multiply_add_loop(threads > 1)(work, np.float32(2), np.float32(1), 2)
    assert (work == 2**17 - 1).all()  # v + 1 doubles in each of 2 * 8 steps
