"""Sums of float32 rows in a given order: the order is a tree, and the tree is evaluated."""

import functools

import numpy as np

from lnlib.exercises.expect import expect

#: Source that leaves the only number in ``sums``, and a mistake in it.
IN_PAIRS = """
    while len(sums) > 1:
        pairs = [sums[i] + sums[i + 1] for i in range(0, len(sums) - 1, 2)]
        sums = pairs + sums[2 * len(pairs):]"""
ODD_LOST = " + sums[2 * len(pairs):]", "", "an odd last sum is lost"


def sequence(parts):
    """((p0 + p1) + p2) + ..."""
    return functools.reduce(lambda a, b: (a, b), parts)


def neighbours(parts):
    """p0 + p1, p2 + p3, ..., an odd one as it is; and again, until one is left."""
    parts = list(parts)
    while len(parts) > 1:
        pairs = [tuple(parts[i:i + 2]) for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[2 * len(pairs):]
    return parts[0]


def halves(parts):
    """p0 + ph, p1 + p(h+1), ... with h half their number, a power of two; and again."""
    parts = list(parts)
    while len(parts) > 1:
        half = len(parts) // 2
        parts = list(zip(parts[:half], parts[half:]))
    return parts[0]


TREES = {"sequence": sequence, "neighbours": neighbours, "halves": halves}


def evaluate(tree, rows):
    """The sum that ``tree``, of indices of rows, stands for; every partial sum is a float32."""
    if isinstance(tree, tuple):
        a, b = tree
        # A sequence is a deep tree: follow its long side in a loop.
        right = [b]
        while isinstance(a, tuple):
            a, b = a
            right.append(b)
        total = rows[a]
        for b in reversed(right):
            total = (total + evaluate(b, rows)).astype(np.float32)
        return total
    return rows[tree]


def expect_to_the_bit(found, expected, name):
    """Raise Mismatch unless ``found`` is ``expected``, float32, in every bit."""
    expect(found is not None, f"{name} is None; is a return missing?")
    found = np.asarray(found)
    expect(found.shape == expected.shape, f"{name} has shape {found.shape}, expected {expected.shape}")
    expect(found.dtype == np.float32, f"{name} has dtype {found.dtype}, expected float32")
    if not np.array_equal(found, expected):
        first = f", first at {np.argwhere(found != expected)[0].tolist()}" if found.ndim else ""
        expect(np.allclose(found, expected, atol=1e-3), f"{name} is wrong{first}")
        expect(False, f"{name} is right but for the last bits, so the order is another one{first}")
