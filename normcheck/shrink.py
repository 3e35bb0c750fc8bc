"""The smallest case that still shows what is wrong: fewer rows, fewer features, simpler numbers."""

import functools
import math
import time

import numpy as np

#: Leading shapes to try, and widths; others only if none of these fails. Two features come after
#: those, because every row of two is (1, -1) but for eps, and one feature, whose xhat is 0, comes
#: last: they tell little.
LEADING = ((), (1,), (2,), (1, 2), (2, 1), (3,), (2, 2), (4,))
SMALL = range(3, 9)


def sizes(rows, D):
    """Shapes, those of few rows and features first, then the rest by size."""
    powers = [2**p for p in range(3, max(rows, D).bit_length())]
    powers = sorted({n + k for n in powers for k in (-1, 0, 1)} - set(SMALL))
    small = [(*lead, d) for d in SMALL for lead in LEADING]
    tiny = [(*lead, d) for d in (2, 1) for lead in LEADING]
    wide = [(n, d) for d in (*powers, D) for n in (1, 2)]
    many = [(n, d) for n in (*powers, rows) for d in (1, 2, 3)]
    small, large = (sorted(part, key=math.prod) for part in (small, wide + many))
    return sorted([*small, *tiny, *large], key=lambda shape: shape[-1] == 1)


@functools.lru_cache(maxsize=256)
def cut(case, shape):
    """The first rows and features of a case, or None if it has fewer."""
    *lead, D = shape
    rows = math.prod(lead)
    if rows > case.rows or case.width < D:
        return None
    C = case.gamma.size if case.said.groups else D
    return case.with_rows(
        lambda a: a.reshape(-1, case.width)[:rows, :D].reshape(shape),
        gamma=case.gamma[:C],
        beta=case.beta[:C],
    )


def simpler(case):
    """Names of arrays with simpler numbers than their own, of each the simplest first."""
    yield "beta", np.zeros_like(case.beta)
    yield "gamma", np.ones_like(case.gamma)
    for name in ("beta", "gamma", "dy", "x"):
        a = getattr(case, name)
        known = a[np.isfinite(a)]
        spread = np.std(known) if known.size else 0
        spread = spread or np.max(np.abs(known), initial=0) or 1
        for digits in (0, 1, 2):
            yield name, np.round(a, digits - math.floor(math.log10(spread)))


def shrink(case, fails, takes, row, seconds):
    """The smallest case with ``fails(case)`` true that was found in so many seconds; ``row`` is the
    one to begin with.

    Where the cut of a case keeps what is odd about it, x has at most 4 rows and D is at most 8
    unless none of these fails.
    """
    end = time.monotonic() + seconds
    row -= row % (case.said.groups or 1)  # whole examples
    turned = case.with_rows(
        lambda a: np.roll(a.reshape(case.shapes.rows), -row, axis=0).reshape(a.shape)
    )
    found = case = turned if row and fails(turned) else case
    for shape in sizes(case.rows, case.width):
        if case.said.groups:  # with all channels
            shape = math.prod(shape[:-1]), case.gamma.size, shape[-1]
        if math.prod(shape) < case.x.size and takes(shape):
            small = cut(case, shape)
            if small is not None and small.defined and fails(small):
                found = small
                break
        if time.monotonic() > end:
            break
    simplified = set()
    for name, array in simpler(found):
        if name not in simplified and time.monotonic() < end + seconds:
            trial = found.with_arrays(**{name: array})
            if trial.defined and fails(trial):
                found = trial
                simplified.add(name)
    return found
