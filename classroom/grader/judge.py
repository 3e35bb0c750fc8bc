"""One submission judged: the questions of the checks go into its sandbox, what comes back is judged here.

The expected answers never leave this process. What a submission can do is to answer, or not.

Of a task the grader uses ``id``, ``name`` (of the function), ``title``, ``points``, ``checks``, ``score(passed)`` and
``diagnose(calls, fails)``.
"""

import contextlib
import time
import warnings
from typing import NamedTuple

import numpy as np

from lnlib.exercises.run import Mismatch, here, verdict

from .launch import Limits
from .notebook import NO_NOTES, Gone, Notebook, Seconds, Slow, plain

_CALLS = 20  # of a failed check, that are looked at for a diagnosis


class Assignment(NamedTuple):
    """tasks : as drawn.  seed : private, of the checks.  key : a text that changes with what is asked and how it is
    judged."""

    tasks: tuple
    seed: int
    key: str


class Checked:
    """One check of a task, asked and judged: ``message`` is what is wrong, None if nothing.

    ``call(args)`` makes a call: it returns the result and the positions of changed arguments, or raises as ``make``
    of :func:`lnlib.exercises.run.verdict`. Whatever else it raises, :class:`Gone` and :class:`Slow`, goes through.
    """

    def __init__(self, task, number, seed, call):
        self._task, self._check, self._seed, self._calls = task, task.checks[number], (seed, number), []

        def make(check, arguments):
            result, changed = call(tuple(arguments.values()))
            if changed:  # over there only: data that expected answers come from stays as drawn
                name = dict(enumerate(arguments)).get(changed[0], "?")
                raise Mismatch(f"your function changed its argument {name}; work on new arrays")
            self._calls.append((arguments, result))
            return result

        try:
            self.message = self._verdict(make)
        except NotImplementedError:
            self.message = "not written yet"

    def _verdict(self, make):
        with _quietly():
            return verdict(self._check, np.random.default_rng(self._seed), make)

    def diagnosis(self):
        """Which known mistake this is, in words, or None. One that crashes is our defect: it is warned of."""
        if not self.message:
            return None
        try:
            with _quietly():
                return self._task.diagnose(self._calls[:_CALLS], lambda function: self._verdict(here(function)))
        except Exception as error:
            warnings.warn(f"no diagnosis for {self._task.id}: {type(error).__name__}: {error}", RuntimeWarning)
            return None


@contextlib.contextmanager
def _quietly():
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def judge_task(task, notebook, seed):
    """(title, message or None) of every check, a diagnosis or None, and how the process ended, or None."""
    checks, diagnosis, gone = [], None, None
    for number, check in enumerate(task.checks):
        try:
            checked = Checked(task, number, seed, lambda args: notebook.call(task.name, args))
        except (Gone, Slow) as error:
            gone = error if isinstance(error, Gone) else None
            checks.append((check.title, str(error)))
            break
        checks.append((check.title, checked.message and plain(checked.message)))
        diagnosis = diagnosis or checked.diagnosis()
    return [*checks, *not_run(task, len(checks))], diagnosis, gone


def not_run(task, first=0):
    """Checks of a task, from ``first`` on, that were not run."""
    return [(check.title, "not run") for check in task.checks[first:]]


def result(state, note, tasks, output="", printed=0, notes=NO_NOTES):
    """What is kept of a submission; ``tasks`` are (task, checks, diagnosis)."""
    judged = [{"id": task.id, "of": task.points, "checks": checks, "diagnosis": diagnosis,
               "points": task.score(sum(message is None for _, message in checks))}
              for task, checks, diagnosis in tasks]
    return {"state": state, "note": note, "tasks": judged, "output": output, "printed": printed, **notes}


def nothing_ran(assignment, state, note):
    """The result of a submission of which nothing ran."""
    return result(state, note, [(task, not_run(task), None) for task in assignment.tasks])


def judge(data, assignment, seconds=Seconds(), limits=Limits()):
    """Judge a notebook's bytes; a dict of plain values that JSON can hold.

    A crash or a hang in one function ends the process and costs that task; the next task gets a new process, as long
    as the time for the whole submission lasts.
    """
    deadline, names = time.monotonic() + seconds.wall, [task.name for task in assignment.tasks]
    judged, notebook, first, hopeless = [], None, None, False
    notes, output = NO_NOTES, ("", 0)
    try:
        for task in assignment.tasks:
            checks, diagnosis, gone = not_run(task), None, None
            if notebook is None and not hopeless:
                try:
                    notebook = Notebook(data, names, deadline, seconds, limits)
                    notes = notebook.notes
                except Gone as found:  # its cells do this, so they would do it again
                    gone, hopeless = found, True
            if notebook is not None:
                checks, diagnosis, gone = judge_task(task, notebook, assignment.seed)
                output = notebook.output
            if gone:
                first, notebook = first or gone, None
            judged.append((task, checks, diagnosis))
    finally:
        if notebook is not None:
            notebook.close()
    return result(first.state if first else "graded", str(first) if first else None, judged, *output, notes)
