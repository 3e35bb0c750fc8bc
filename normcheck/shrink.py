"""The smallest case that still shows what is wrong: fewer rows, fewer features, simpler numbers."""

import math
import time

import numpy as np

from .cases import stored

#: Leading shapes to try, and widths; others only if none of these fails. Two features come after
#: those, because every row of two is (1, -1) but for eps, and one feature, whose xhat is 0, comes
#: last: they tell little.
LEADING = ((), (1,), (2,), (1, 2), (2, 1), (3,), (2, 2), (4,))
SMALL = (3, 4, 5, 6, 7, 8)


def sizes(rows, D):
    """(leading shape, width) pairs, few rows and features first, then the rest by size."""
    small = [(lead, d) for d in SMALL for lead in LEADING]
    tiny = [(lead, d) for d in (2, 1) for lead in LEADING]
    powers = sorted({n + k for n in (2**p for p in range(3, 20)) for k in (-1, 0, 1)} - set(SMALL))
    wide = [(lead, d) for d in (*powers, D) for lead in LEADING[1:3]]
    many = [((n,), d) for n in (*powers, rows) for d in (1, 2, 3)]
    both = [((n,), d) for n in (8, 64, rows) for d in (8, 64, D)]
    every = [
        *sorted(small, key=volume),
        *tiny,
        *sorted(wide + many, key=volume),
        *sorted(both, key=volume),
    ]
    return sorted(every, key=lambda size: size[1] == 1)


def volume(size):
    return math.prod(size[0]) * size[1]


def cut(case, lead, D):
    """The first rows and features of a case, or None if it has fewer."""
    x, dy = (a.reshape(-1, a.shape[-1]) for a in (case.x, case.dy))
    rows = math.prod(lead)
    if rows > len(x) or x.shape[1] < D:
        return None
    x, dy = (a[:rows, :D].reshape(*lead, D) for a in (x, dy))
    return case.with_arrays(x=x, dy=dy, gamma=case.gamma[:D], beta=case.beta[:D])


def starting_at(case, row):
    """The case with its rows turned round, so that this one is the first."""
    return case.with_arrays(
        **{
            name: np.roll(a.reshape(-1, a.shape[-1]), -row, axis=0).reshape(a.shape)
            for name, a in (("x", case.x), ("dy", case.dy))
        }
    )


def simpler(case):
    """Pairs of an array's name and numbers that are simpler than its own, of each array the
    simplest first.
    """
    for name in ("beta", "gamma", "dy", "x"):
        a = getattr(case, name)
        if name == "beta":
            yield name, np.zeros_like(a)
        if name == "gamma":
            yield name, np.ones_like(a)
        spread = np.std(a[np.isfinite(a)]) if a.size > 1 and np.isfinite(a).any() else 0
        spread = spread or np.max(np.abs(a[np.isfinite(a)]), initial=0) or 1
        for digits in (0, 1, 2):
            yield name, np.round(a, digits - math.floor(math.log10(spread)))


def shrink(case, fails, takes, seconds=3.0):
    """The smallest case with ``fails(case)`` true that was found in so many seconds.

    Where the cut of a case keeps what is odd about it, x has at most 4 rows and D is at most 8
    unless none of these fails.
    """
    end, found = time.monotonic() + seconds, case
    for lead, D in sizes(case.x.size // case.x.shape[-1], case.x.shape[-1]):
        small = (
            cut(case, lead, D) if volume((lead, D)) < case.x.size and takes((*lead, D)) else None
        )
        if small is not None and small.defined and fails(small):
            found = small
            break
        if time.monotonic() > end:
            break
    tried = set()
    for name, array in simpler(found):
        if name not in tried and time.monotonic() < end + seconds:
            trial = found.with_arrays(**{name: stored(array, found.dtype)})
            if trial.defined and fails(trial):
                found = trial
                tried.add(name)
    return found
