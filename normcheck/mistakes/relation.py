"""How wrong numbers follow from the right ones, where no mistake of the list explains them."""

import itertools
from fractions import Fraction

import numpy as np

from .compare import TOLERANCE, agree, is_numbers
from .diagnosis import Diagnosis


def _leaves(value):
    """The arrays and numbers in a record, in order; None stands for what is neither."""
    if isinstance(value, (tuple, list)):
        return list(itertools.chain(*map(_leaves, value)))
    return [
        np.asarray(value) if is_numbers(value) and not isinstance(value, (bool, np.bool_)) else None
    ]


def _inverse(b):
    """None if there is none, or none to many digits, which agrees with no number."""
    b = b.astype(complex)  # NumPy inverts no float16
    square = b.ndim == 2 and b.shape == b.T.shape
    return np.linalg.inv(b) if square and np.linalg.cond(b) < 1e6 else None


def _of_float32(a, b):
    return (
        a.dtype == float
        and (a == a.astype(np.float32)).all()
        and agree(a, b, tolerance=TOLERANCE[4])
    )


def _is(form, both=False):
    """Whether what was found is this form of the right result, or both have one form."""
    return lambda a, b: agree(form(a) if both else a, form(b))


# In this order: what is both, a sign and a reciprocal of 1, say, has the first name.
_RELATIONS = (
    ("has the digits of float32 and no more", _of_float32),
    ("has the other sign", _is(np.negative)),
    ("is the transpose", _is(np.transpose)),
    ("has the right numbers in another shape", _is(np.ravel, both=True)),
    ("is the other way round along its first axis", _is(lambda b: np.atleast_1d(b)[::-1])),
    ("has the right numbers in another order", _is(lambda b: np.sort(b, axis=None), both=True)),
    ("is the inverse", _is(_inverse)),
    ("is the reciprocal", _is(lambda b: 1 / b)),
    ("is the square", _is(np.square)),
    ("is the square root", _is(np.sqrt)),
    ("is 1 too large", _is(lambda b: b + 1)),
    ("is 1 too small", _is(lambda b: b - 1)),
)


@np.errstate(
    all="ignore"
)  # a reciprocal of 0 or a root of -1 is no finite number, and agrees with none
def relation(mine, right):
    """How the wrong numbers of these replies follow from the right ones, if in a simple way, the
    same in every call.
    """
    pairs, places, rights = [], set(), 0
    # The arrays among the arguments are results only where nothing is returned.
    returned = any(record[0] is not None for record in right)
    for calls in zip(mine, right):
        found, expected = (_leaves(call[0] if returned else call) for call in calls)
        if [a is None for a in found] != [b is None for b in expected]:
            return None
        wrong = [k for k, (a, b) in enumerate(zip(found, expected), 1) if not agree(a, b)]
        rights += sum(a is not None for a in found) - len(wrong)
        pairs += [(found[k - 1], expected[k - 1]) for k in wrong]
        places |= {
            (
                f"part {k} of {len(found)} of your result"
                if returned and len(found) > 1
                else "your result"
            )
            for k in wrong
        }
    if not pairs or not all(
        x.dtype.kind in "ifc" and np.isfinite(x).all() for pair in pairs for x in pair
    ):
        return None
    words = (
        next(
            (words for words, related in _RELATIONS if all(related(*pair) for pair in pairs)), None
        )
        or _rounded(pairs)
        or _times(pairs)
        or rights
        and _bound(pairs)
    )
    what = places.pop() if len(places) == 1 else "your result"
    start = f"Compared with what the book's solution returns, {what}"
    because = (
        (
            f"{len(pairs)} pairs of numbers, of this answer and of the solution, stand in this"
            " relation"
        ),
    )
    return (
        Diagnosis("relation", (), f"{start} {words}, wherever the two differ.", because)
        if words
        else None
    )


def _rounded(pairs):
    """In words to how many decimals all wrong results are the right ones, rounded; None if they are
    not.
    """
    return next(
        (
            f"is rounded to {n} decimal place{'s' * (n > 1)}"
            for n in range(1, 10)
            if all(a.any() and np.array_equal(a, np.round(b, n)) for a, b in pairs)
        ),
        None,
    )


def _times(pairs):
    """In words the rational number that all results are too large by, or None."""
    if any(a.shape != b.shape for a, b in pairs):
        return None
    a, b = (np.concatenate([x.ravel() for x in side]).astype(complex) for side in zip(*pairs))
    # Fractions of small denominators only: of larger ones, one is near every number.
    rough = any(x.dtype in (np.float16, np.float32) for pair in pairs for x in pair)
    quotient = (np.vdot(b, a) / np.vdot(b, b)).real
    factor = (
        Fraction(quotient).limit_denominator(32 if rough else 1024) if np.isfinite(quotient) else 0
    )
    # One number is a simple multiple of another too often to mean something, and an integer more
    # often still.
    telling = (
        len(set(b.tolist())) > 1
        or factor in (2, Fraction(1, 2), 4, Fraction(1, 4))
        or ((b != np.round(b)).any() and max(abs(factor.numerator), factor.denominator) <= 10)
    )
    times = _is(lambda b: float(factor) * b)
    return (
        f"is {factor} times it"
        if factor and telling and all(times(*pair) for pair in pairs)
        else None
    )


def _bound(pairs):
    """In words the number that all wrong results are, where all right ones lie on one side of it,
    or None.
    """
    if {(x.shape, x.dtype.kind) for pair in pairs for x in pair} != {((), "f")}:
        return None
    room = 1e-12 * max(abs(b) for _, b in pairs)  # what a search ends with in place of 0
    apart = [(a, b) for a, b in (map(float, pair) for pair in pairs) if abs(a - b) > room]
    bounds, rights, sides = (
        {a for a, _ in apart},
        {b for _, b in apart},
        {np.sign(b - a) for a, b in apart},
    )
    if len(bounds) == 1 < len(rights) and len(sides) == 1:
        return (
            f"is {bounds.pop():g} where the right one is"
            f" {'larger' if sides.pop() > 0 else 'smaller'}"
        )
    return None
