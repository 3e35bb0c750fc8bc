"""How wrong numbers follow from the right ones, where no mistake of the list explains them."""

import itertools
from fractions import Fraction

import numpy as np

from .compare import agree, is_numbers
from .diagnosis import Diagnosis


def _leaves(value):
    """The arrays and numbers in a record, in order; None stands for what is neither."""
    if isinstance(value, (tuple, list)):
        return list(itertools.chain(*map(_leaves, value)))
    return [np.asarray(value) if is_numbers(value) and not isinstance(value, (bool, np.bool_)) else None]


def _matrix(a, b):
    return a.ndim == 2 and b.ndim == 2


def _is_inverse(a, b):
    square = _matrix(a, b) and a.shape == b.shape == b.T.shape
    if not square:
        return False
    b = b.astype(float)  # NumPy inverts no float16
    return np.linalg.cond(b) < 1e6 and agree(a, np.linalg.inv(b))


def _of_float32(a, b):
    return a.shape == b.shape and a.dtype == b.dtype == float and np.array_equal(a, a.astype(np.float32)) and \
        np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


# In this order: what is both, a sign and a reciprocal of 1, say, has the first name.
_RELATIONS = (
    ("has the digits of float32 and no more", _of_float32),
    ("has the other sign", lambda a, b: agree(a, -b)),
    ("is the transpose", lambda a, b: _matrix(a, b) and agree(a, b.T)),
    ("has the right numbers in another shape",
     lambda a, b: a.shape != b.shape and a.size == b.size and agree(a.ravel(), b.ravel())),
    ("is the other way round along its first axis", lambda a, b: b.ndim > 0 and agree(a, b[::-1])),
    ("has the right numbers in another order",
     lambda a, b: a.ndim == 1 and a.shape == b.shape and agree(np.sort(a), np.sort(b))),
    ("is the inverse", _is_inverse),
    ("is the reciprocal", lambda a, b: b.all() and agree(a, 1 / b)),
    ("is the square", lambda a, b: agree(a, b * b)),
    ("is the square root", lambda a, b: (b.dtype.kind == "c" or (b >= 0).all()) and agree(a, np.sqrt(b))),
    ("is 1 too large", lambda a, b: agree(a, b + 1)),
    ("is 1 too small", lambda a, b: agree(a, b - 1)),
)


def relation(mine, right):
    """How the wrong numbers of these replies follow from the right ones, if in a simple way, the same in every call."""
    pairs, places, rights = [], set(), 0
    # The arrays among the arguments are results only where nothing is returned.
    returned = any(record[0] is not None for record in right)
    for my_call, right_call in zip(mine, right):
        found, expected = (_leaves(call[0] if returned else call) for call in (my_call, right_call))
        if len(found) != len(expected) or any((a is None) != (b is None) for a, b in zip(found, expected)):
            return None
        wrong = [k for k, (a, b) in enumerate(zip(found, expected), 1) if a is not None and not agree(a, b)]
        rights += sum(a is not None for a in found) - len(wrong)
        pairs += [(found[k - 1], expected[k - 1]) for k in wrong]
        places |= {f"part {k} of {len(found)} of your result" if returned and len(found) > 1 else "your result"
                   for k in wrong}
    if not pairs or not all(x.dtype.kind in "ifc" and np.isfinite(x).all() for pair in pairs for x in pair):
        return None
    words = [words for words, related in _RELATIONS if all(related(a, b) for a, b in pairs)]
    words = words or _rounded(pairs)
    factor = None if words else _factor(pairs)
    if factor:
        words = [f"is {factor} times it"]
    bound = None if words or not rights else _bound(pairs)
    if bound is not None:
        a, b = bound
        words = [f"is {a:g} where the right one is {'larger' if b > a else 'smaller'}"]
    what = places.pop() if len(places) == 1 else "your result"
    start = f"Compared with what the book's solution returns, {what}"
    because = f"{len(pairs)} pairs of numbers, of this answer and of the solution, stand in this relation",
    return Diagnosis("relation", (), f"{start} {words[0]}, wherever the two differ.", because) if words else None


def _bound(pairs):
    """(The number that all wrong results are, a right one) where all right ones lie on one side of it, or None."""
    if any(a.shape or b.shape for a, b in pairs):
        return None
    room = 1e-12 * max(abs(b) for _, b in pairs)  # what a search ends with in place of 0
    pairs = [(a, b) for a, b in pairs if abs(a - b) > room]
    if len({b.item() for _, b in pairs}) < 2:
        return None
    (a, b), *rest = pairs
    same = a.dtype.kind == b.dtype.kind == "f" and all(agree(c, a) and (d > a) == (b > a) for c, d in rest)
    return (a, b) if same else None


def _rounded(pairs):
    """In words to how many decimals all wrong results are the right ones, rounded; an empty list if they are not."""
    return [f"is rounded to {n} decimal place{'s' * (n > 1)}" for n in range(1, 10)
            if all(a.any() and np.array_equal(a, np.round(b, n)) for a, b in pairs)][:1]


def _factor(pairs):
    """The rational number that all results are too large by, or None."""
    if any(a.shape != b.shape for a, b in pairs):
        return None
    a, b = (np.concatenate([pair[k].ravel() for pair in pairs]).astype(complex) for k in (0, 1))
    # Fractions of small denominators only: of larger ones, one is near every number.
    rough = any(x.dtype.itemsize < 8 for pair in pairs for x in pair)
    quotient = (np.vdot(b, a) / np.vdot(b, b)).real if b.any() else 0
    factor = Fraction(float(quotient)).limit_denominator(32 if rough else 1024) if np.isfinite(quotient) else 0
    # One number is a simple multiple of another too often to mean something, and an integer more often still.
    telling = len(set(b.tolist())) > 1 or factor in (2, Fraction(1, 2), 4, Fraction(1, 4)) or (
        (b != np.round(b)).any() and factor and max(abs(factor.numerator), factor.denominator) <= 10)
    fits = factor and telling and all(agree(a, (float(factor) * b).astype(a.dtype)) for a, b in pairs)
    return factor if fits else None
