"""The book's exercises: one registry, one way to check an answer.

    from lnlib.exercises import check
    check("group-norm", my_function)

Each exercise is registered once, in the module of its chapter. The solution is the source; what a
reader starts from is its stub. A check answers with the checks passed and the one that failed; it
never says that everything is right, because checks cannot know that.
"""

import importlib
from typing import Callable, NamedTuple

import numpy as np

CHAPTERS = ("ch01", "ch02", "ch03", "ch04", "ch05", "ch06", "ch07", "ch08", "ch09", "ch10", "ch11", "ch12")


class Exercise(NamedTuple):
    """One exercise.

    id : kebab-case name, unique in the book.
    chapter : number of the chapter.
    title : a few words.
    stub : the function a reader completes; its docstring gives shapes, its body raises NotImplementedError.
    solution : a function that passes.
    checks : (description, test) pairs in the order of their use; ``test(candidate, rng)`` raises ``Mismatch`` or returns.
    """

    id: str
    chapter: int
    title: str
    stub: Callable
    solution: Callable
    checks: tuple


class Mismatch(Exception):
    """What an answer got wrong, in a sentence for its author."""


class Report(NamedTuple):
    """What :func:`check` found: descriptions of the checks passed, and the (description, message) that failed."""

    id: str
    passed: tuple
    failed: tuple | None
    total: int

    def __repr__(self):
        lines = [f"{self.id}: {len(self.passed)} of {self.total} checks passed"]
        lines += [f"  passed: {description}" for description in self.passed]
        if self.failed:
            lines.append(f"  FAILED: {self.failed[0]}\n    {self.failed[1]}")
            skipped = self.total - len(self.passed) - 1
            lines += [f"  (not run after that: {skipped})"] if skipped else []
        return "\n".join(lines)


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
    checks, passed, failed = registry[id].checks, [], None
    for description, test in checks:
        try:
            test(candidate, np.random.default_rng(seed))
        except Mismatch as mismatch:
            failed = description, str(mismatch)
        except NotImplementedError as unwritten:
            failed = description, f"not written yet: {unwritten}"
        except Exception as error:
            failed = description, f"your function raised {type(error).__name__}: {error}"
        if failed:
            break
        passed.append(description)
    return Report(id, tuple(passed), failed, len(checks))


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
    expect(error <= rtol, f"{name} is off by {error:.1e} (relative L2 error; {rtol:.0e} is allowed)")
