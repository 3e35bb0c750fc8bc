"""How the chapters' tests put an attempt at an exercise before its checks."""

from lnbook import exercises
from normcheck.mistakes.change import function_with


def failed(id, candidate, words="", seed=0):
    """The description of the check that ``candidate`` fails, with ``words`` in what is said; None
    if it fails none.
    """
    report = exercises.check(id, candidate, seed)
    assert report.failed is None or words in f"{report.failed[1]} {report.diagnosis}", report
    return report.failed and report.failed[0]


def solution_with(id, *changes):
    """The solution of an exercise with these (old, new) pairs changed in its source."""
    return function_with(exercises.exercises()[id].solution, changes)
