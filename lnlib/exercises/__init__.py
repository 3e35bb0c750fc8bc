"""The book's exercises: one registry, one way to check an answer.

    from lnlib.exercises import check
    check("group-norm", my_function)

Each exercise is registered once, in the module of its chapter. The solution is the source; what a
reader starts from is its stub. A check answers with the checks passed and the one that failed; it
never says that everything is right, because checks cannot know that. Where an answer is wrong, it
says which mistake that is: of a backward by its terms (:mod:`lnlib.diagnose`), else by comparison with
the exercise's own list of mistakes.
"""

import contextlib
import html
import importlib
import itertools
import re
import traceback
from typing import Callable, NamedTuple

import numpy as np

from .mistakes import Mistake, note, recognise, uncompiled  # noqa: F401  (the chapters take them from here)

CHAPTERS = ("ch01", "ch02", "ch03", "ch04", "ch05", "ch06", "ch07", "ch08", "ch09", "ch10", "ch11", "ch12")


class Exercise(NamedTuple):
    """One exercise.

    id : kebab-case name, unique in the book.
    chapter : number of the chapter.
    title : a few words.
    stub : the function a reader completes; its docstring gives shapes, its body raises NotImplementedError.
    solution : a function that passes.
    checks : (description, test) pairs, in order; ``test(candidate, rng)`` raises ``Mismatch`` or returns.
    diagnose : function (candidate) -> :class:`lnlib.diagnose.Diagnosis` or None, called where a check failed.
    mistakes : wrong answers that readers give (``Mistake`` tuples), compared where ``diagnose`` is None or says nothing.
    """

    id: str
    chapter: int
    title: str
    stub: Callable
    solution: Callable
    checks: tuple
    diagnose: Callable | None = None
    mistakes: tuple = ()


class Mismatch(Exception):
    """What an answer got wrong, in a sentence for its author."""


class Report(NamedTuple):
    """What :func:`check` found; text where it is printed, HTML in a notebook.

    passed : descriptions of the checks passed.
    failed : (description, message) of the one that failed, or None.
    total : number of checks; those after the one that failed were not run.
    diagnosis : which mistake it is, a :class:`lnlib.diagnose.Diagnosis`, or None.
    written : False if the stub was returned as it is.
    """

    id: str
    passed: tuple
    failed: tuple | None
    total: int
    diagnosis: tuple | None = None
    written: bool = True

    @property
    def _skipped(self):
        return self.total - len(self.passed) - 1 if self.failed else 0

    def __repr__(self):
        lines = [f"{self.id}: {len(self.passed)} of {self.total} checks passed"]
        lines += [f"  passed: {description}" for description in self.passed]
        if self.failed:
            lines.append(f"  FAILED: {self.failed[0]}\n    {self.failed[1]}")
            lines += [f"  (not run after that: {self._skipped})"] if self._skipped else []
        lines += [f"  DIAGNOSIS: {self.diagnosis}"] if self.diagnosis else []
        return "\n".join(lines)

    def html(self):
        """The report as HTML: a heading and lists, every state in words, so that a screen reader reads all of it."""
        def items(head, *texts):
            return f"<p>{head}</p><ul>{''.join(f'<li>{html.escape(t)}</li>' for t in texts)}</ul>" if texts else ""

        parts = [f"<h4>{html.escape(self.id)}: {len(self.passed)} of {self.total} checks passed</h4>",
                 items("Passed:", *self.passed)]
        if self.failed:
            parts.append(items("Failed:", ": ".join(self.failed)))
            parts += [f"<p>Not run after that: {self._skipped}.</p>"] if self._skipped else []
        parts += [f"<p><strong>Diagnosis.</strong> {html.escape(str(self.diagnosis))}</p>"] if self.diagnosis else []
        return f'<section aria-label="Report on {html.escape(self.id)}">{"".join(parts)}</section>'

    def _repr_html_(self):
        # None leaves an untouched stub to the text: a page of stubs needs no headings for them.
        return self.html() if self.written else None


def exercises():
    """All exercises of the book, in order, by id."""
    found = {}
    for chapter in CHAPTERS:
        for exercise in importlib.import_module(f"{__name__}.{chapter}").EXERCISES:
            if exercise.id in found:
                raise ValueError(f"exercise id {exercise.id!r} is registered twice")
            found[exercise.id] = exercise
    return found


def check(id, candidate, seed=0):
    """Run an exercise's checks on ``candidate`` in order, up to the first that fails; return a :class:`Report`.

    ``seed`` draws the test data. An exception raised by the candidate is a failed check, not an error.
    """
    registry = exercises()
    if id not in registry:
        raise ValueError(f"id: found {id!r}, expected one of {', '.join(registry)}")
    if not callable(candidate):
        raise TypeError(f"candidate: found {type(candidate).__name__}, expected a function")
    exercise, passed, failed, written = registry[id], [], None, True
    for description, test in exercise.checks:
        try:
            message = _run(test, candidate, seed)
        except NotImplementedError as unwritten:
            message, written = f"not written yet: {unwritten}", False
        if message:
            failed = description, message
            break
        passed.append(description)
    diagnosis = _diagnosis(exercise, candidate, len(passed), seed) if failed and written else None
    return Report(id, tuple(passed), failed, len(exercise.checks), diagnosis, written)


def _run(test, candidate, seed):
    """What one check finds wrong, None if nothing. That a stub is not written is an exception."""
    try:
        test(candidate, np.random.default_rng(seed))
    except Mismatch as mismatch:
        return str(mismatch)
    except NotImplementedError:
        raise
    except Exception as error:
        return _in_words(error, candidate)
    return None


def _in_words(error, candidate):
    """What the candidate raised, where, and what it usually means."""
    words = f"your function raised {type(error).__name__}: {error}"
    file = getattr(getattr(candidate, "__code__", None), "co_filename", None)
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if lines and lines[-1].line:
        words += f"; in its line `{lines[-1].line}`"
    shapes = [re.findall(r"\d+", shape) for shape in re.findall(r"\(([\d,]+)\)", str(error))]
    if "could not be broadcast" in str(error) and any(a[:-1] == b for a, b in itertools.permutations(shapes, 2)):
        words += "; a mean over the last axis keeps that axis, of length 1, only with keepdims=True"
    return words


def _diagnosis(exercise, candidate, passed, seed):
    """Which mistake it is, if that can be told; what goes wrong on the way is in the failed check already."""
    def run(answer, k=passed):  # the first that failed comes after those passed
        return _run(exercise.checks[k][1], answer, seed)

    def passes_before(answer):
        return not any(run(answer, k) for k in range(passed))

    told = None
    with np.errstate(all="ignore"):
        if exercise.diagnose is not None:
            with contextlib.suppress(Exception):
                told = exercise.diagnose(candidate)
        # An exact match is worth more than the nearest entry of a catalogue.
        if told is None or told.kind == "nearest":
            with contextlib.suppress(Exception):
                told = recognise(exercise, run, candidate, passes_before) or told
    return told


def expect(condition, message):
    """Raise :class:`Mismatch` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise Mismatch(message)


def _arrays(value):
    return [a for a in value if isinstance(a, np.ndarray)] if isinstance(value, tuple) else [np.asarray(value)]


def call_unchanged(candidate, **arguments):
    """``candidate`` of the values, in this order; it must leave them as they were, caches included."""
    before = {name: [a.copy() for a in _arrays(value)] for name, value in arguments.items()}
    result = candidate(*arguments.values())
    for name, value in arguments.items():
        same = all(map(np.array_equal, before[name], _arrays(value)))
        expect(same, f"your function changed its argument {name}; work on new arrays")
    return result


def expect_parts(found, number, what="arrays"):
    """Return ``found`` if it is a tuple or list of ``number`` things, else raise :class:`Mismatch`."""
    expect(isinstance(found, (tuple, list)) and len(found) == number,
           f"found {type(found).__name__}, expected {number} {what}, separated by commas, after return")
    return found


def expect_close(found, expected, rtol, name="the result"):
    """Raise :class:`Mismatch` unless ``found`` has the shape of ``expected`` and lies within ``rtol`` of it in L2 norm."""
    expected = np.asarray(expected)
    expect(found is not None, f"{name} is None; is a return missing?")
    found = np.asarray(found)
    expect(found.shape == expected.shape, f"{name} has shape {found.shape}, expected {expected.shape}")
    expect(found.dtype.kind in "iuf", f"{name} has dtype {found.dtype}, expected real numbers")
    expect(np.isfinite(found).all(), f"{name} contains NaN or Inf")
    error = np.linalg.norm(found - expected) / max(np.linalg.norm(expected), np.finfo(float).tiny)
    expect(error <= rtol, f"{name} is off by {error:.1e} (relative L2 error; {rtol:.0e} is allowed)"
                          + of_small_error(error, found))


def of_small_error(error, *arrays):
    """What to add to a message on float64 arrays whose relative error is of the size that float32 makes."""
    arrays = [np.asarray(a) for a in arrays]
    if error > 1e-5 or any(a.dtype != np.float64 for a in arrays):
        return ""
    if all(np.array_equal(a, a.astype(np.float32)) for a in arrays):
        return "; it is right to the digits of float32, and has no more: somewhere your work leaves float64"
    return "; so small an error is that of a step in float32, or of a small term such as eps" if error > 1e-9 else ""
