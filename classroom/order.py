"""Sums of float32 rows in a given order: the order is a tree, and the tree is evaluated."""

import functools

import numpy as np


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
