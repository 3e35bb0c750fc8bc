"""The book's exercises, and one way to check an answer::

    from lnbook.exercises import check
    check("group-norm", my_function)

In the order in which to read it:

- ``ch01`` and the others: the exercises of a chapter: its solutions, its checks, the mistakes that
  readers make. What a reader starts from, the stub, stands on the chapter's page.
- :mod:`~lnbook.exercises.run`: a check asks, then judges; between the two an answer is run.
- :mod:`~lnbook.exercises.expect`: what a judge says of a result.
- :mod:`~lnbook.exercises.report`: what came of it, as text and as HTML.
- :mod:`~lnbook.exercises.mistakes`: the tables in which the mistakes of exercises are written.
- :mod:`~lnbook.exercises.gradients`: what the exercises that ask for a backward have in common.
- :mod:`~lnbook.exercises.kernels`: how answers that fill arrays are run: loops over rows, and CUDA
  kernels in the interpreter.
- :mod:`~lnbook.exercises.sharded_layers`: the layers that an exercise of chapter 12 tests.
- :mod:`~lnbook.exercises.registry`: all exercises by id, the checks of one run in order, and which
  mistake an answer makes.

Solutions check no argument: they are what a reader is asked to write, and no more.

A report never says that everything is right, because checks cannot know that. Where an answer is
wrong, it says which mistake that is (:mod:`normcheck.mistakes`): of a backward by its terms, else
by comparison with the exercise's own list.
"""

from .expect import (
    Mismatch,
    expect,
    expect_array,
    expect_close,
    expect_number,
    expect_parts,
    of_small_error,
)
from .mistakes import changes
from .registry import Exercise, check, exercises
from .report import Report
from .run import Call, Check, Ran, each, unchanged

__all__ = [
    "Call",
    "Check",
    "Exercise",
    "Mismatch",
    "Ran",
    "Report",
    "changes",
    "check",
    "each",
    "exercises",
    "expect",
    "expect_array",
    "expect_close",
    "expect_number",
    "expect_parts",
    "of_small_error",
    "unchanged",
]
