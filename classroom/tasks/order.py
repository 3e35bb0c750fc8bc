"""Sums of float32 rows in a given order: what their solutions and judges share."""

import numpy as np

from lnlib.exercises.expect import expect, expect_array

#: Source that leaves the only number in ``sums``, and a mistake in it.
IN_PAIRS = """
    while len(sums) > 1:
        pairs = [sums[i] + sums[i + 1] for i in range(0, len(sums) - 1, 2)]
        sums = pairs + sums[2 * len(pairs):]"""
ODD_LOST = " + sums[2 * len(pairs):]", "", "an odd last sum is lost"


def expect_to_the_bit(found, expected, name):
    """Raise Mismatch unless ``found`` is ``expected``, float32, in every bit."""
    found = expect_array(found, expected.shape, "float32", name)
    if not np.array_equal(found, expected):
        first = f", first at {np.argwhere(found != expected)[0].tolist()}" if found.ndim else ""
        expect(np.allclose(found, expected, atol=1e-3), f"{name} is wrong{first}")
        expect(False, f"{name} is right but for the last bits, so the order is another one{first}")
