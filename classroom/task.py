"""What a graded task is, and which known mistake a wrong answer is."""

import itertools
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from lnlib.exercises import Exercise


class Task(NamedTuple):
    """One graded task: one function to write.

    id : name of the task; its variants share it.
    chapter : number of the chapter.
    minutes : what a student needs.
    points : whole number, split evenly over the checks.
    text : Markdown, shapes and definitions included.
    stub, solution : sources of the function, without imports; NumPy is np.
    name : the function's name.
    example : source of an expression, arguments of the public example, in brackets.
    exercise : its checks take a candidate that returns arrays, numbers, strings, and tuples, lists or dicts of them.
    mistakes : (old, new, says): the solution with a text replaced is wrong; says names the mistake to its author.
    variant : what was drawn.
    bits : whether results are judged to the bit.
    """

    id: str
    chapter: int
    minutes: int
    points: int
    text: str
    stub: str
    solution: str
    name: str
    example: str
    exercise: Exercise
    mistakes: tuple
    variant: object
    bits: bool = False

    def score(self, passed):
        """The points for so many passed checks."""
        return round(float(Fraction(self.points * passed, len(self.exercise.checks))), 2)


def function(source, name):
    """The function ``name`` that ``source`` defines, with NumPy as np."""
    namespace = {"np": np}
    exec(compile(source, f"<{name}>", "exec"), namespace)
    return namespace[name]


def task(id, chapter, minutes, points, title, text, stub, body, name, example, checks, mistakes, variant, bits=False):
    """A :class:`Task`. ``stub`` ends with its docstring; ``body`` is the solution's, indented by four."""
    stub, solution = stub.strip("\n") + "\n", stub.strip("\n") + "\n" + body.strip("\n") + "\n"
    stub += '    raise NotImplementedError("write this function")\n'
    exercise = Exercise(id, chapter, title, function(stub, name), function(solution, name), tuple(checks))
    return Task(id, chapter, minutes, points, f"## {title}\n\n{text.strip()}\n", stub, solution, name, example,
                exercise, tuple(mistakes), variant, bits)


def wrong(task, *mistakes):
    """The solution of ``task`` with these of its mistakes, as a function."""
    source = task.solution
    for old, new, says in mistakes:
        if old not in source:
            raise ValueError(f"mistake: found no {old!r} in the solution of {task.id} ({says})")
        source = source.replace(old, new)
    return function(source, task.name)


def diagnose(task, calls):
    """Which known mistake, single or two at once, gives the same results: a sentence or None.

    calls : (arguments, result) pairs, as recorded while a check failed. Yes, no or a word says too little.
    """
    calls = list(calls)
    if not any(map(_telling, (result for _, result in calls))) or _gives(task, task.exercise.solution, calls):
        return None
    for number in 1, 2:
        found = []
        for chosen in itertools.combinations(task.mistakes, number):
            try:
                mutant = wrong(task, *chosen)
            except ValueError:  # one replacement took the other's text away
                continue
            if _gives(task, mutant, calls):
                found.append(", and ".join(says for _, _, says in chosen))
        if found:
            # Three that cannot be told apart are no diagnosis.
            return f"It looks as if {', or '.join(found)}." if len(found) <= 2 else None
    return None


def _telling(result):
    if isinstance(result, (tuple, list)):
        return any(map(_telling, result))
    return isinstance(result, (int, float, np.ndarray, np.generic)) and np.asarray(result).dtype.kind in "iuf"


def _gives(task, function, calls):
    return all(_same(_call(function, args), result, task.bits) for args, result in calls)


def _call(function, args):
    """The result for a copy of ``args``; None where it raises."""
    try:
        with np.errstate(all="ignore"):
            return function(*(a.copy() if isinstance(a, np.ndarray) else a for a in args))
    except Exception:
        return None


def _same(a, b, bits=False):
    """Equal values: structure and text exactly, floats to the digits of the coarser dtype, or to the bit."""
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(_same(*pair, bits) for pair in zip(a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key], bits) for key in a)
    if not all(isinstance(v, (np.ndarray, np.generic, bool, int, float)) for v in (a, b)):
        return type(a) is type(b) and a == b
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or not all(v.dtype.kind in "biuf" for v in (a, b)):
        return False
    if bits or not all(v.dtype.kind == "f" for v in (a, b)):
        return bool(np.array_equal(a, b)) and (not bits or a.dtype == b.dtype)
    # The same arithmetic in another order: some hundred roundings of the coarser of the two.
    u = max(float(np.finfo(v.dtype).eps) for v in (a, b))
    scale = np.max(np.abs(b[np.isfinite(b)]), initial=0)
    return bool(np.allclose(a, b, rtol=1e3 * u, atol=1e3 * u * scale, equal_nan=True))
