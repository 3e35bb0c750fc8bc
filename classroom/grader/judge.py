"""One submission judged: questions go into its sandbox, and answers are judged here.

The expected answers never leave this process.
First all public examples are called, then the checks. Until then no hidden input was in the
submission's process, so students may see whatever came out of it; of what came later they see words
of ``TOLD`` alone. Otherwise a submission could hand its author the hidden inputs: in what it
returns, raises or prints, or in the number it exits with.

Of a task the grader uses ``id``, ``name`` (of the function) and ``names`` (of its parameters),
``title``, ``points``, ``checks``, ``score(passed)``, ``diagnose(calls, fails)``, and of the public
example ``shown()`` and ``rtol``.
"""

import contextlib
import time
import warnings
from typing import NamedTuple

import numpy as np

from lnbook.exercises.run import Mismatch, Raised, here, verdict

from .compare import difference
from .launch import Limits
from .notebook import NO_NOTES, Gone, Notebook, Seconds, Slow
from .text import plain

_CALLS = 20  # of a failed check, that are looked at for a diagnosis
NOT_RUN, NOT_WRITTEN = "not run", "not written yet"
NOT_JUDGED = "the grader could not judge this answer"
#: All that students are told of a failed check: how its message begins.
TOLD = NOT_RUN, NOT_JUDGED, str(Slow())
#: And of how a submission's process ended while checks ran.
ENDED = {
    "too slow": "a check took too long, so your submission was stopped",
    "crashed": "the process of your submission ended or crashed during a check",
    "tampered": "the process of your submission sent something that is no answer during a check",
}


class Assignment(NamedTuple):
    """tasks : as drawn; of variants the first student's.  seed : of the checks, new each grading.
    key : changes with what is asked and how it is judged.  title : to be read.  variants : function
    (student) -> their own tasks, or KeyError; None where all have the same.
    """

    tasks: tuple
    seed: int
    key: str
    title: str = "Assignment"
    variants: object = None

    def of(self, student):
        """What is asked of one student."""
        if self.variants is None:
            return self
        return Assignment(self.variants(student), self.seed, f"{self.key}/{student}")


class Checked:
    """One check of a task, asked and judged: ``message`` is what is wrong, None if nothing.

    ``call(args)`` makes a call: it returns the result and the positions of changed arguments, or
    raises as ``make`` of :func:`lnbook.exercises.run.verdict`. :class:`Gone` and :class:`Slow` go
    through; whatever else is raised costs this check alone.
    """

    def __init__(self, task, number, seed, call):
        self._task, self._check = task, task.checks[number]
        self._seed, self._calls = (seed, number), []

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
            self.message = NOT_WRITTEN
        except (Gone, Slow):
            raise
        except Exception as error:
            self.message = _not_judged(error)

    def _verdict(self, make):
        with warnings.catch_warnings(action="ignore"):
            return verdict(self._check, np.random.default_rng(self._seed), make)

    def diagnosis(self):
        """Which known mistake this is, or None. One that crashes is our defect: a warning."""
        if not self.message:
            return None
        try:
            with warnings.catch_warnings(action="ignore"):
                return self._task.diagnose(
                    self._calls[:_CALLS], lambda function: self._verdict(here(function))
                )
        except Exception as error:
            warnings.warn(  # noqa: B028
                f"no diagnosis for {self._task.id}: {type(error).__name__}: {error}", RuntimeWarning
            )
            return None


def _not_judged(error):
    return f"{NOT_JUDGED} ({type(error).__name__}: {error!s:.200})"


def judge_example(task, call):
    """What is wrong with the result of the public example, None if nothing; whether the checks are
    worth a try; and how the process ended, or None.
    """
    arguments, expected = task.shown()
    try:
        result, changed = call(arguments)
    except NotImplementedError:
        return NOT_WRITTEN, True, None
    except (Mismatch, Raised) as error:
        return plain(str(error)), True, None
    except (Gone, Slow) as error:
        return str(error), False, error if isinstance(error, Gone) else None
    except Exception as error:
        return _not_judged(error), True, None
    try:
        with warnings.catch_warnings(action="ignore"):
            wrong = difference(result, expected, task.rtol)
    except Exception as error:
        wrong = _not_judged(error)
    if changed and not wrong:
        wrong = "your function changed its arguments; work on new arrays"
    return wrong and plain(wrong), True, None


def judge_task(task, notebook, seed):
    """(title, message or None) of every check, a diagnosis, how the process ended."""
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
    return [(check.title, NOT_RUN) for check in task.checks[first:]]


def result(state, note, tasks, output="", printed=0, notes=NO_NOTES, public=None):
    """What is kept of a submission; ``tasks`` are (task, example, checks, diagnosis).

    public : what students see of ``note``, ``output`` and ``printed``; all of it, where nothing
    else is said.
    """
    judged = [
        {
            "id": task.id,
            "of": task.points,
            "example": example,
            "checks": checks,
            "diagnosis": diagnosis,
            "points": task.score(sum(message is None for _, message in checks)),
        }
        for task, example, checks, diagnosis in tasks
    ]
    seen = {"note": note, "output": output, "printed": printed}
    return {"state": state, "tasks": judged, **notes, **seen, "public": public or seen}


def nothing_ran(assignment, state, note):
    """The result of a submission of which nothing ran."""
    return result(state, note, [(task, NOT_RUN, not_run(task), None) for task in assignment.tasks])


def looks(found):
    """Why somebody should look at a submission, in sentences: no points are lost in silence.

    found : a result.
    """
    if found["state"] != "graded":
        yield f"{found['state']}: {found['note']}"
    for name in found["missing"]:
        other = found["proposed"].get(name)
        yield f"there is no function {name}" + (f"; {other} may be meant" if other else "")
    for task in found["tasks"]:
        for words in (task["example"], *dict(task["checks"]).values()):
            if words and words.startswith(NOT_JUDGED):
                yield f"{task['id']}: {words}"
    if found["missing"]:
        yield from (f"code cell {number}: {text}" for number, text in found["errors"])


class _Process:
    """A submission's process, which is started again where a task ended it.

    ``first`` is how it ended first, or None; ``output`` what it printed, ``notes`` what its cells
    did.
    """

    def __init__(self, *start):
        self._start, self._notebook, self._hopeless = start, None, False
        self.first, self.notes, self.output = None, NO_NOTES, ("", 0)

    def ask(self, question, otherwise):
        """What ``question(notebook)`` gives, the last part left out; else ``otherwise``."""
        if self._notebook is None and not self._hopeless:
            try:
                self._notebook = Notebook(*self._start)
                self.notes = self._notebook.notes
            except Gone as found:  # its cells do this, so they would do it again
                self.first, self._hopeless = self.first or found, True
        if self._notebook is None:
            return otherwise
        *answer, gone = question(self._notebook)
        self.output = self._notebook.output
        if gone:
            self.first, self._notebook = self.first or gone, None
        return answer

    def close(self):
        if self._notebook is not None:
            self._notebook.close()


def judge(data, assignment, seconds=Seconds(), limits=Limits()):
    """Judge a notebook's bytes; a dict of plain values that JSON can hold.

    A crash or a hang in one function ends the process and costs that task; the next task gets a new
    process, as long as the time for the whole submission lasts.
    """
    tasks, deadline = assignment.tasks, time.monotonic() + seconds.wall
    wanted = {task.name: task.names for task in tasks}
    with contextlib.closing(_Process(data, wanted, deadline, seconds, limits)) as process:
        examples = []
        for task in tasks:

            def example(notebook, task=task):
                return judge_example(task, lambda args: notebook.call(task.name, args))

            examples.append(process.ask(example, (NOT_RUN, None)))
        before, (output, printed) = process.first, process.output
        judged = []
        for task, (example, goes_on) in zip(tasks, examples):
            found = not_run(task), None
            if goes_on:

                def checks(notebook, task=task):
                    return judge_task(task, notebook, assignment.seed)

                found = process.ask(checks, found)
            judged.append((task, example, *found))
    first = process.first
    note = str(before) if before else ENDED[first.state] if first else None
    public = {"note": note, "output": output, "printed": printed}
    how = (first.state, str(first)) if first else ("graded", None)
    return result(*how, judged, *process.output, process.notes, public)
