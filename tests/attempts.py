"""How the chapters' tests put an attempt at an exercise before its checks."""

from lnlib import exercises


def failed(id, candidate, words="", seed=0):
    """The description of the check that ``candidate`` fails, with ``words`` in its message; None if it fails none."""
    report = exercises.check(id, candidate, seed)
    assert report.failed is None or words in report.failed[1], report
    return report.failed and report.failed[0]
