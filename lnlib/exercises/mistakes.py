"""Which known mistake a wrong answer is, for exercises of any kind.

A mistake is a change of the solution: a wrong answer that readers give. The solution goes through the failed check
again; then the answer and every mistake are called as it was called, and what they return is compared.

Kernels take more. One that :mod:`lnlib.simt` runs is not called from Python, so its test hands what it filled to
:func:`note` before it judges. A test that compiles the answer with Numba takes ``uncompiled(candidate)`` first: a
function to be called as it is while a mistake is looked for, else None.
"""

import copy
import functools
import inspect
import itertools
import linecache
import textwrap
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ..diagnose import Diagnosis

# Two spellings of one formula differ by a few roundings times a condition number; mistakes by more.
_TOLERANCE = {2: 1e-2, 4: 1e-5, 8: 1e-9}
_MOST_CALLS = 500  # of which a record is kept, so that a check with many calls stays quick
_trace = None  # a _Trace while a mistake is looked for


class Mistake(NamedTuple):
    """A wrong answer that readers give.

    old : part of the solution's source that occurs in it once.
    new : what stands there in the wrong answer.
    says : what this answer does, in a sentence that teaches and does not give the right one away.
    """

    old: str
    new: str
    says: str

    def of(self, solution):
        """The wrong answer, as a function. Its source can be had, as :mod:`lnlib.simt` needs it."""
        return _changed(solution, self.old, self.new)


@functools.cache
def _changed(solution, old, new):
    source = textwrap.dedent(inspect.getsource(solution))
    if source.count(old) != 1:
        raise ValueError(f"old: found {source.count(old)} times in {solution.__name__}, expected once: {old!r}")
    source = source.replace(old, new)
    file = f"<{solution.__name__} with {new!r} for {old!r}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    names = dict(solution.__globals__)
    exec(compile(source, file, "exec"), names)
    return names[solution.__name__]


class _Recorder:
    """A function that keeps its arguments and what it filled or returned."""

    def __init__(self, function):
        functools.update_wrapper(self, function, updated=())
        self.py_func = function  # what lnlib.simt runs; it calls no kernel from Python

    def __call__(self, *args, **kwargs):
        if _trace is not None and len(_trace.calls) < _MOST_CALLS:
            _trace.calls.append(copy.deepcopy((args, kwargs)))
        return self.py_func(*args, **kwargs)


class _Raised(NamedTuple):
    kind: str
    message: str


class _Trace:
    """The calls of an answer in a check, and what the check noted."""

    def __init__(self):
        self.calls, self.noted = [], []


def note(*values):
    """Keep copies of the values for the comparison with known mistakes; without effect where none is looked for."""
    if _trace is not None and len(_trace.noted) < _MOST_CALLS:
        _trace.noted.append(copy.deepcopy(values))


def uncompiled(candidate):
    """The candidate, to be called as it is, while a mistake is looked for; None otherwise."""
    return candidate if isinstance(candidate, _Recorder) else None


def _traced(run, function):
    """What happened in the failed check with ``function``, and the message that came of it (None if it passed)."""
    global _trace
    _trace = _Trace()
    try:
        message = run(_Recorder(function))
        return _trace, message
    finally:
        _trace = None


def _answers(function, calls):
    """What the function returns, or raises, on copies of the arguments, and what it leaves in arrays there."""
    for args, kwargs in copy.deepcopy(calls):
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            result = _Raised(type(error).__name__, str(error))
        yield result, [a for a in (*args, *kwargs.values()) if isinstance(a, np.ndarray)]


def recognise(exercise, run, candidate, passes_before=lambda answer: True):
    """The mistake that explains the failed check, or None.

    ``run`` is a function that runs the failed check on an answer and returns its message, None if it passes.
    ``passes_before`` says whether an answer passes the checks before it, as the candidate did.
    """
    trace, message = _traced(run, candidate)
    model, _ = _traced(run, exercise.solution)
    # A check ends with its first mismatch; all that it would have asked says more.
    mine, right = ((list(_answers(f, model.calls)) for f in (candidate, exercise.solution)) if model.calls
                   else (trace.noted, model.noted[:len(trace.noted)]))
    wrong = {mistake: mistake.of(exercise.solution) for mistake in exercise.mistakes}

    def same(function, bits):
        theirs = _answers(function, model.calls) if model.calls else _traced(run, function)[0].noted
        return all(agree(a, b, bits) for a, b in itertools.zip_longest(mine, theirs))

    found = []
    for bits in (True, False):
        if mine and not found and not agree(mine, right, bits):
            # A mistake that passes the check which the candidate failed does not explain it.
            found = [mistake for mistake, function in wrong.items()
                     if same(function, bits) and _traced(run, function)[1]]
    little = _says_little(mine)
    if len(found) > 1 or little:
        found = [mistake for mistake in found if passes_before(wrong[mistake])] or ([] if little else found)
    says = list(dict.fromkeys(mistake.says for mistake in found))
    if says and not little:
        together = "It is one of these, which give the same here: " + " Or: ".join(says)
        return Diagnosis("one of", (), together) if len(says) > 1 else Diagnosis("known", (), says[0])
    relation = None if says else _relation(mine, right)
    if relation:
        return relation
    # The size of an error says nothing where the numbers could be compared, and were not the same.
    if not says and not (mine and "off by" in message):
        told = [mistake for mistake, function in wrong.items()
                if _traced(run, function)[1] == message and passes_before(function)]
        says = list(dict.fromkeys(mistake.says for mistake in told))
    return Diagnosis("may be", (), "It may be this: " + " Or: ".join(says)) if says else None


def _says_little(records):
    """Whether a wrong answer of another kind may well give the same: True and False, zeros, or errors only."""
    return all(isinstance(result, (bool, np.bool_, _Raised)) or _numbers(result) and not np.any(result)
               for result, *_ in records)


# ---- Comparing --------------------------------------------------------------------------------------

def agree(a, b, bits=False):
    """Whether two results are the same: to rounding, or to the last bit."""
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(agree(x, y, bits) for x, y in zip(a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(agree(a[key], b[key], bits) for key in a)
    if hasattr(a, "free_symbols") or hasattr(b, "free_symbols"):
        return _same_expression(a, b)
    if not (_numbers(a) and _numbers(b)):
        return type(a) is type(b) and bool(np.all(a == b))
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or (a.dtype.kind == "b") != (b.dtype.kind == "b") or (bits and a.dtype != b.dtype):
        return False
    if bits or not {a.dtype.kind, b.dtype.kind} & set("fc"):
        return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    finite = np.isfinite(a)
    if not (np.array_equal(finite, np.isfinite(b)) and np.array_equal(a[~finite], b[~finite], equal_nan=True)):
        return False
    digits = min(x.real.dtype.itemsize for x in (a, b) if x.dtype.kind in "fc")
    a, b = (np.where(finite, x, 0).astype(complex).ravel() for x in (a, b))
    return bool(np.linalg.norm(a - b) <= _TOLERANCE.get(digits, 1e-9) * np.linalg.norm(b))


def _numbers(value):
    number = isinstance(value, (np.ndarray, np.generic, int, float, complex))
    return number and np.asarray(value).dtype.kind in "biufc"


def _same_expression(a, b):
    """Whether two SymPy expressions agree, at numbers: integer symbols once different and once equal."""
    from sympy import Indexed, sympify

    def at(expression, trial):
        symbols = sorted((s for s in expression.free_symbols if s.is_Symbol), key=str)
        whole = {s: 2 if trial else n for n, s in enumerate((s for s in symbols if s.is_integer), 3)}
        expression = expression.subs(whole).doit()
        rest = sorted(expression.atoms(Indexed), key=str) + [s for s in symbols if not s.is_integer]
        draw = {s: np.random.default_rng(list(f"{s}{trial}".encode())).uniform(0.5, 2) for s in rest}
        return complex(expression.subs(draw))

    a, b = sympify(a), sympify(b)
    if getattr(a, "shape", ()) != getattr(b, "shape", ()):
        return False
    if getattr(a, "shape", ()):
        return all(map(_same_expression, a, b))
    return a == b or all(agree(at(a, trial), at(b, trial)) for trial in (0, 1))


# ---- What has no name --------------------------------------------------------------------------------

def _leaves(value):
    """The arrays and numbers in a record, in order; None stands for what is neither."""
    if isinstance(value, (tuple, list)):
        return list(itertools.chain(*map(_leaves, value)))
    return [np.asarray(value) if _numbers(value) and not isinstance(value, (bool, np.bool_)) else None]


def _matrix(a, b):
    return a.ndim == 2 and b.ndim == 2


def _is_inverse(a, b):
    square = _matrix(a, b) and a.shape == b.shape == b.T.shape
    return square and np.linalg.cond(b) < 1e6 and agree(a, np.linalg.inv(b))


def _of_float32(a, b):
    return a.dtype == b.dtype == float and np.array_equal(a, a.astype(np.float32)) and \
        np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


# In this order: what is both, a sign and a reciprocal of 1, say, has the first name.
_RELATIONS = (
    ("has the digits of float32 and no more", _of_float32),
    ("has the other sign", lambda a, b: agree(a, -b)),
    ("is the transpose", lambda a, b: _matrix(a, b) and agree(a, b.T)),
    ("has the right numbers in another shape",
     lambda a, b: a.shape != b.shape and a.size == b.size and agree(a.ravel(), b.ravel())),
    ("is the other way round along its first axis", lambda a, b: a.ndim > 0 and agree(a, b[::-1])),
    ("has the right numbers in another order",
     lambda a, b: a.ndim == 1 and a.shape == b.shape and agree(np.sort(a), np.sort(b))),
    ("is the inverse", _is_inverse),
    ("is the reciprocal", lambda a, b: b.all() and agree(a, 1 / b)),
    ("is the square", lambda a, b: agree(a, b * b)),
    ("is the square root", lambda a, b: (b >= 0).all() and agree(a, np.sqrt(b))),
    ("is 1 too large", lambda a, b: agree(a, b + 1)),
    ("is 1 too small", lambda a, b: agree(a, b - 1)),
)


def _relation(mine, right):
    """How wrong numbers follow from the right ones, if they do in a simple way, the same in every call."""
    pairs = []
    # The arrays among the arguments are results only where nothing is returned.
    returned = any(record[0] is not None for record in right)
    for my_call, right_call in zip(mine, right):
        found, expected = (_leaves(call[0] if returned else call) for call in (my_call, right_call))
        if len(found) != len(expected) or any((a is None) != (b is None) for a, b in zip(found, expected)):
            return None
        pairs += [(a, b) for a, b in zip(found, expected) if a is not None and not agree(a, b)]
    if not pairs or not all(x.dtype.kind in "if" and np.isfinite(x).all() for pair in pairs for x in pair):
        return None
    words = [words for words, related in _RELATIONS if all(related(a, b) for a, b in pairs)]
    factor = None if words else _factor(pairs)
    if factor:
        words = [f"is {factor} times it"]
    start = "Compared with what the book's solution returns, your result"
    return Diagnosis("relation", (), f"{start} {words[0]}, wherever the two differ.") if words else None


def _factor(pairs):
    """The rational number that all results are too large by, or None."""
    if any(a.shape != b.shape for a, b in pairs):
        return None
    a, b = (np.concatenate([pair[k].ravel() for pair in pairs]).astype(float) for k in (0, 1))
    # Fractions of small denominators only: of larger ones, one is near every number.
    rough = any(x.dtype.itemsize < 8 for pair in pairs for x in pair)
    factor = Fraction(float(a @ b / (b @ b))).limit_denominator(32 if rough else 1024) if b.any() else 0
    # An integer is a simple multiple of another too often to mean something, if it is only one.
    telling = len(set(b.tolist())) > 1 or (b != np.round(b)).any() or factor in (2, Fraction(1, 2), 4, Fraction(1, 4))
    fits = factor and telling and all(agree(a, (float(factor) * b).astype(a.dtype)) for a, b in pairs)
    return factor if fits else None
