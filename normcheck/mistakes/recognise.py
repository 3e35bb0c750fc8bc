"""Which known mistake a wrong answer is: the one rule, the one comparison and its tolerances; and
how they are asked of an answer to an exercise, whose mistakes are changes of the solution.

The rule is :func:`explaining`. :mod:`~normcheck.mistakes.fit` asks it of a backward's terms, and
:mod:`normcheck.naming` of a norm's cases.
"""

import functools
import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np

# ---- Tolerances

#: Relative to the L2 norm of the right numbers, by bytes of the narrower dtype. Two spellings of
#: one formula differ by a few roundings times a condition number, a few 1e-15 times at most 1e4 in
#: float64; mistakes by more, 1e-6 at least.
TOLERANCE = {2: 1e-2, 4: 1e-5, 8: 1e-9}
#: So many tolerances from what is right, other mistakes are as near; and within this factor two
#: losses of digits are alike.
NEARLY = 30
#: In units of a tolerance: two spellings of a formula whose parts were made again from others.
MADE_AGAIN = 10


# ---- The rule


class Diagnosis(NamedTuple):
    """Which mistake a wrong answer makes.

    * ``kind``: "known" (an entry, exactly), "one of" (entries that agree), "combination",
      "may be" (only what a check said agrees), "relation" (the numbers are 1.1 times
      the right ones, say), "precision" (all are numbers of a narrower dtype), "error" (an exception
      with a meaning of its own), "convention" (the y of another norm), "state" (numbers depend on
      earlier calls).
    * ``names``: the names of the mistakes, of the alternatives if ``kind`` is "one of".
    * ``sentence``: str for its author; also what ``str`` gives.
    * ``because``: lines for authors and instructors: what was fitted, or compared.
    """

    kind: str
    names: tuple
    sentence: str
    because: tuple = ()

    def __str__(self):
        return self.sentence


def explaining(candidates, right, same, fails):
    """Yield those of ``candidates`` that explain a failure.

    A candidate explains it if and only if it gives the same numbers, and fails what was failed, and
    the right answer does not: that one must neither give these numbers nor fail. Otherwise the
    numbers say nothing about the failure, and no candidate is named: a missing name costs little, a
    wrong one much.

    ``same(one)`` says whether ``one`` gives the numbers of the answer in question, ``fails(one)``
    whether it fails what the answer failed; ``right`` is the right answer, of the same kind as the
    candidates.
    """
    if same(right) or fails(right):
        return
    for candidate in candidates:
        if same(candidate) and fails(candidate):
            yield candidate


def combined(parts):
    """One diagnosis of several, None where there is none; each sentence ends with a mark."""
    parts = list(filter(None, parts))
    if len(parts) < 2:
        return parts[0] if parts else None
    return Diagnosis(
        "combination",
        tuple(dict.fromkeys(itertools.chain(*(p.names for p in parts)))),
        " ".join(p.sentence + "." * (p.sentence[-1] not in ".?") for p in parts),
        tuple(itertools.chain(*(p.because for p in parts))),
    )


# ---- Comparing


def agree(a, b, bits=False, tolerance=None, times=1):
    """Whether two results are the same, to ``times`` the ``tolerance`` or to the last bit."""
    pair, each = (a, b), functools.partial(agree, bits=bits, tolerance=tolerance, times=times)
    if all(isinstance(v, (tuple, list)) for v in pair):
        return len(a) == len(b) and all(map(each, a, b))
    if all(isinstance(v, dict) for v in pair):
        return a.keys() == b.keys() and all(each(a[key], b[key]) for key in a)
    symbolic = [hasattr(v, "free_symbols") for v in pair]
    if any(symbolic):
        return all(s or is_numbers(v) for s, v in zip(symbolic, pair)) and _same_expression(pair)
    if not all(map(is_numbers, pair)):
        return type(a) is type(b) and bool(np.all(a == b))
    a, b = pair = [np.asarray(v) for v in pair]
    if (a.dtype.kind == "b") != (b.dtype.kind == "b") or (bits and a.dtype != b.dtype):
        return False
    if bits or not {a.dtype.kind, b.dtype.kind} & set("fc"):
        return np.array_equal(*pair, equal_nan=True)
    odd = (np.where(np.isfinite(v), np.zeros_like(v), v) for v in pair)
    if not np.array_equal(*odd, equal_nan=True):
        return False
    digits = min(v.real.dtype.itemsize for v in pair if v.dtype.kind in "fc")
    a, b = (np.where(np.isfinite(v), v, 0).astype(complex).ravel() for v in pair)
    tolerance = times * (tolerance or TOLERANCE[min(digits, 8)])
    # The squares of large numbers overflow.
    size = np.max(np.abs([a.real, a.imag, b.real, b.imag]), initial=np.finfo(float).tiny)
    return bool(np.linalg.norm(a / size - b / size) <= tolerance * np.linalg.norm(b / size))


def is_numbers(value):
    """Whether ``value`` is a number, or an array of numbers."""
    number = isinstance(value, (np.ndarray, np.generic, int, float, complex))
    return number and np.asarray(value).dtype.kind in "biufc"


def _same_expression(pair):
    """Whether two SymPy expressions agree at numbers, integers once different and once equal."""
    from sympy import Indexed, sympify

    def at(expression, whole):
        expression = expression.subs(whole).doit()
        rest = expression.atoms(Indexed) | expression.free_symbols
        draws = {s: np.random.default_rng(list(str(s).encode())).random() for s in rest}
        return complex(expression.subs(draws))

    a, b = pair = [sympify(v) for v in pair]
    if getattr(a, "shape", ()) != getattr(b, "shape", ()):
        return False
    if getattr(a, "shape", ()):
        return all(map(_same_expression, zip(*pair)))
    symbols = sorted((s for s in a.free_symbols | b.free_symbols if s.is_integer), key=str)
    wholes = [dict(zip(symbols, numbers)) for numbers in (itertools.count(3), itertools.repeat(2))]
    try:
        return a == b or all(agree(*(at(v, whole) for v in pair)) for whole in wholes)
    except TypeError:  # one of them has no value
        return False


# ---- Answers to exercises


class Reply(NamedTuple):
    """What a call returned (or a :class:`Failure`), and the arrays among the arguments after it."""

    result: object
    left: list


class Failure(NamedTuple):
    """The exception that a call ended with; ``telling`` if few other wrong answers end with it;
    ``means``: what is true of whatever does, or empty.
    """

    kind: str
    message: str
    telling: bool = False
    means: str = ""


class Checks(NamedTuple):
    """What can be asked of a function where an answer failed one of several checks.

    * ``replies``: yields its replies to two draws of the failed check.
    * ``says``: what that check says of it, None if it passes.
    * ``passes_before``: whether it passes the checks before, as the answer did.
    * ``everywhere``: yields its replies to all checks that call it as this one does, in two draws.
    * ``verdicts``: what all checks say of it, in two draws.
    """

    replies: Callable
    says: Callable
    passes_before: Callable
    everywhere: Callable
    verdicts: Callable


def matches(mine, right, wrong, replies, fails):
    """Those of ``wrong`` (a dict, name -> function) that explain the replies ``mine``; to the bit,
    if one does.

    ``right`` are the solution's replies, ``replies(function)`` yields a function's own, and
    ``fails(function)`` says whether it fails the check that the answer failed.
    """
    if agree(mine, right, bits=True):
        return []
    told = {}  # asked once each, and no more than it takes
    for name, function in wrong.items():
        told[name] = []
        for a, b in itertools.zip_longest(mine, replies(function)):
            told[name].append(b)
            if not agree(a, b):
                del told[name]
                break

    def exactly(name):
        return agree(mine, told.get(name, right), bits=True)

    def nearly(name):  # of what is nearly right, other mistakes are as near
        return name in told or agree(mine, right, times=NEARLY)

    for same in (exactly, nearly):
        found = list(explaining(told, None, same, lambda name: name in told and fails(wrong[name])))
        if found:
            return found
    return []


def is_uninformative(mine):
    """Whether other wrong answers may well reply the same: booleans, zeros, NaN, or errors only."""

    def little(result):
        if isinstance(result, Failure):
            return not result.telling
        if isinstance(result, (tuple, list)):
            return all(map(little, result))
        return (
            isinstance(result, (bool, np.bool_))
            or is_numbers(result)
            and not np.any(np.nan_to_num(result, posinf=0, neginf=0))
        )

    return all(little(result) for result, _ in mine)


def recognise(answer, message, solution, mistakes, checks):
    """The :class:`Diagnosis` of an answer, which fails one of the ``checks`` that says ``message``
    of it, or None.

    A mistake is named only if it explains the failure, in all calls of all checks, and fails no
    check before; where numbers say little, or are right, only if all checks say the same of both.
    """
    mine, right = list(checks.replies(answer)), list(checks.replies(solution))
    wrong = {mistake: mistake.of(solution) for mistake in mistakes}
    everywhere = functools.cache(lambda function: list(checks.everywhere(function)))
    # What gives the same in one check alone is another mistake.
    found = [
        mistake
        for mistake in matches(mine, right, wrong, checks.replies, checks.says)
        if agree(everywhere(answer), everywhere(wrong[mistake]))
        and checks.passes_before(wrong[mistake])
    ]
    says = " Or: ".join(dict.fromkeys(mistake.says for mistake in found))
    if found and not is_uninformative(mine):
        if len({mistake.says for mistake in found}) == 1:
            return Diagnosis("known", (), says)
        return Diagnosis("one of", (), f"It is one of these, which give the same here: {says}")
    # What holds of the few numbers of one check may be an accident of them.
    if not found and relation(mine, right):
        return relation(everywhere(answer), everywhere(solution))
    if not found and agree(mine, right):  # and what fails is something else, of which checks speak
        found = [
            mistake
            for mistake, function in wrong.items()
            if checks.says(function) == message
            and checks.passes_before(function)
            and agree(mine, list(checks.replies(function)))
        ]
    # By the little that was replied many are told: all checks have to say the same of both.
    said = found and checks.verdicts(answer)
    found = [mistake for mistake in found if checks.verdicts(wrong[mistake]) == said]
    if found:
        says = " Or: ".join(dict.fromkeys(mistake.says for mistake in found))
        return Diagnosis("may be", (), f"It may be this: {says}")
    failures = [result for result, _ in mine if isinstance(result, Failure)]
    means = [f.means for f in failures if f.means and f.kind in message]
    return Diagnosis("error", (), means[0]) if means else None


# ---- How wrong numbers follow from the right ones


def _leaves(value):
    """The arrays and numbers in a record, in order; None stands for what is neither."""
    if isinstance(value, (tuple, list)):
        return list(itertools.chain(*map(_leaves, value)))
    number = is_numbers(value) and not isinstance(value, (bool, np.bool_))
    return [np.asarray(value) if number else None]


def _of_float32(a, b):
    return a.dtype == float and (a == a.astype("f")).all() and agree(a, b, tolerance=TOLERANCE[4])


def _is(form, both=False):
    """Whether what was found is this form of the right result, or both have one form."""
    return lambda a, b: agree(form(a) if both else a, form(b))


# In this order: what is both, a sign and a reciprocal of 1, say, has the first name.
_RELATIONS = (
    ("has the digits of float32 and no more", _of_float32),
    ("has the other sign", _is(np.negative)),
    ("is the transpose of the right one", _is(np.transpose)),
    ("has the right numbers in another shape", _is(np.ravel, both=True)),
    ("is the other way round along its first axis", _is(lambda b: np.atleast_1d(b)[::-1])),
    ("has the right numbers in another order", _is(lambda b: np.sort(b, axis=None), both=True)),
    ("is the reciprocal of the right one", _is(lambda b: 1 / b)),
    ("is the square of the right one", _is(np.square)),
    ("is the square root of the right one", _is(np.sqrt)),
    ("is 1 too large", _is(lambda b: b + 1)),
    ("is 1 too small", _is(lambda b: b - 1)),
)


@np.errstate(all="ignore")  # a reciprocal of 0 is no finite number, and agrees with none
def relation(mine, right):
    """How wrong replies follow from the right ones, if in one simple way in every call."""
    pairs, places = [], set()
    # The arrays among the arguments are results only where nothing is returned.
    returned = any(record[0] is not None for record in right)
    for calls in zip(mine, right):
        found, expected = (_leaves(call[0] if returned else call) for call in calls)
        if [a is None for a in found] != [b is None for b in expected]:
            return None
        wrong = [k for k, both in enumerate(zip(found, expected)) if not agree(*both)]
        pairs += [(found[k], expected[k]) for k in wrong]
        places |= {(k + 1, len(found)) for k in wrong}
    values = itertools.chain(*pairs)
    if not pairs or not all(v.dtype.kind in "ifc" and np.isfinite(v).all() for v in values):
        return None
    words = next((w for w, related in _RELATIONS if all(related(*pair) for pair in pairs)), None)
    words = words or _times(pairs)
    (k, parts), *others = places
    part = returned and parts > 1 and not others
    what = f"Part {k} of {parts} of your result" if part else "Your result"
    return words and Diagnosis("relation", (), f"{what} {words} wherever it is wrong.")


def _times(pairs):
    """In words the rational number that all results are too large by, or None."""
    if any(a.shape != b.shape for a, b in pairs):
        return None
    a, b = (np.concatenate([v.ravel() for v in side]).astype(complex) for side in zip(*pairs))
    # Fractions of small denominators only: of larger ones, one is near every number.
    rough = any(v.dtype in (np.float16, np.float32) for pair in pairs for v in pair)
    quotient = (np.vdot(b, a) / np.vdot(b, b)).real
    if not np.isfinite(quotient):
        return None
    factor = Fraction(quotient).limit_denominator(32 if rough else 1024)
    # One number is a simple multiple of another too often to mean something, and an integer more
    # often still.
    telling = (
        len(set(b.tolist())) > 1
        or factor in (2, Fraction(1, 2), 4, Fraction(1, 4))
        or ((b != np.round(b)).any() and max(abs(factor.numerator), factor.denominator) <= 10)
    )
    times = _is(lambda b: float(factor) * b)
    same = factor and telling and all(times(*pair) for pair in pairs)
    return f"is {factor} times the right one" if same else None
