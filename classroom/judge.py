"""One submission judged: its notebook runs in a sandbox; from here its functions are called, and results checked.

The expected answers never leave this process. What a submission can do is to answer, or not.
"""

import inspect
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lnlib.exercises import Mismatch

from . import wire
from .sandbox import Limits, Sandbox
from .tasks import diagnose

_HERE = Path(__file__).parent
_INSIDE = {"/grader/child.py": _HERE / "child.py", "/grader/wire.py": _HERE / "wire.py"}
_GRACE = 2  # seconds; the child's own alarm comes first and costs less than a new process
_TEXT = 600
_CALLS = 20  # of a failed check, that are looked at for a diagnosis


NO_NOTES = {"cells": 0, "errors": [], "twice": []}


class Seconds(NamedTuple):
    """wall : for a whole submission.  call : for each call of a function, and each code cell."""

    wall: int = 60
    call: int = 10


class Gone(Exception):
    """The submission's process is no more; ``state`` in a word, the message in a sentence."""

    def __init__(self, state, message):
        super().__init__(message)
        self.state = state


class Raised(Exception):
    """The submission's function raised this."""


class Slow(Mismatch):
    """The submission's function was interrupted; it would be again."""


class Notebook:
    """A submission's process, its cells run; ``notes`` says what happened in them. Close it whatever happens."""

    def __init__(self, data, names, deadline, seconds, limits):
        self._deadline, self._seconds, self._gone = deadline, seconds, None
        self._sandbox = Sandbox("/grader/child.py", _INSIDE, limits)
        try:
            kind, *rest = self._ask(("run", np.frombuffer(data, np.uint8), list(names), seconds.call), seconds.wall)
            if kind == "not a notebook" and rest:
                self._end("not a notebook", f"this is no notebook: {_plain(rest[0])}")
            self.notes = self._notes(names, *rest) if kind == "ran" else self._garbage()
        except BaseException:
            self.close()
            raise

    def call(self, name, args, kwargs):
        """The result of calling function ``name``, and the positions of the arguments it changed."""
        self.still_there()
        kind, *rest = self._ask(("call", name, args, kwargs, self._seconds.call), self._seconds.call + _GRACE)
        if kind == "missing":
            raise Mismatch(f"there is no function {name} after the last cell")
        if kind == "slow":
            raise Slow(f"a call of your function took more than {self._seconds.call} seconds")
        if kind == "raised" and len(rest) == 2:
            type_name, text = map(_plain, rest)
            raise NotImplementedError if type_name == "NotImplementedError" else Raised(text)
        if kind != "returned" or len(rest) != 2 or not isinstance(rest[1], list):
            self._garbage()
        result, changed = rest
        return result, [i for i in changed if isinstance(i, int)]

    def still_there(self):
        """Raise Gone if it is not: a check may have swallowed it."""
        if self._gone:
            raise self._gone

    @property
    def output(self):
        """The first of what it printed, and how many bytes it printed in all."""
        return self._sandbox.output, self._sandbox.printed

    def close(self):
        return self._sandbox.close()

    def _ask(self, message, seconds):
        until = min(time.monotonic() + seconds, self._deadline)
        try:
            self._sandbox.write(wire.encode(message), until)
            head = self._sandbox.read(wire.HEAD_SIZE, until)
            found = wire.decode(head + self._sandbox.read(sum(wire.sizes(head)), until))
        except TimeoutError:
            self._end("too slow", "it took too long and was stopped")
        except EOFError:
            # Its pipes close a moment before it has ended, and only then it is known how.
            self._end("crashed", self._sandbox.close(patience=1.0) or "it closed its pipe")
        except wire.WireError as error:
            self._end("tampered", f"its process sent what is no answer: {error}")
        if not isinstance(found, tuple) or not found or not isinstance(found[0], str):
            self._garbage()
        return found

    def _end(self, state, message):
        self.close()
        self._gone = Gone(state, message)
        raise self._gone

    def _garbage(self):
        self._end("tampered", "its process sent what is no answer")

    def _notes(self, names, *rest):
        """What the cells did, in the form it must have: it comes from the submission's process."""
        try:
            (found,) = rest
            errors = [(int(number), _plain(text)) for number, text in found["errors"]][:20]
            return {"cells": int(found["cells"]), "errors": errors,
                    "twice": [name for name in names if int(found["defined"][name]) > 1]}
        except Exception:  # whatever an unforeseen form raises
            self._garbage()


def _plain(text):
    """One short line without control characters; nothing if it is no text, which could take long to write out."""
    return "".join(c if c.isprintable() else " " for c in text[:_TEXT]) if isinstance(text, str) else ""


class _Candidate:
    """A function of the submission as the checks call it."""

    def __init__(self, notebook, task):
        self._notebook, self._name = notebook, task.name
        self._parameters = list(inspect.signature(task.exercise.stub).parameters)
        self.calls, self.slow = [], False

    def __call__(self, *args, **kwargs):
        # What was changed over there is changed over there only: data that expected answers come from stays as drawn.
        try:
            result, changed = self._notebook.call(self._name, args, kwargs)
        except Slow:
            self.slow = True
            raise
        if changed:
            name = (self._parameters + ["?"] * 99)[changed[0]] if 0 <= changed[0] < 99 else "?"
            raise Mismatch(f"your function changed its argument {name}; work on new arrays")
        self.calls.append((wire.decode(wire.encode((*args, *kwargs.values()))), result))
        return result


def _run(test, candidate, rng):
    """None if the check passed, else a message; Gone goes through."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            test(candidate, rng)
    except Gone:
        raise
    except Mismatch as mismatch:
        return str(mismatch)
    except NotImplementedError:
        return "not written yet"
    except Raised as error:
        return f"your function raised {error}"
    except Exception as error:  # a result of an unforeseen form; the check could not even look at it
        return f"your result is not of the form asked for ({type(error).__name__}: {error})"
    return None


def not_run(task, first=0):
    """Checks of a task, from ``first`` on, that were not run."""
    return [(description, "not run") for description, _ in task.exercise.checks[first:]]


def _judge_task(task, notebook, seed):
    """(description, message or None) of every check, a diagnosis or None, and how the process ended, or None."""
    checks, diagnosis = [], None
    for number, (description, test) in enumerate(task.exercise.checks):
        candidate = _Candidate(notebook, task)
        try:
            message = _run(test, candidate, np.random.default_rng([seed, number]))
            notebook.still_there()
        except Gone as gone:
            return [*checks, (description, str(gone)), *not_run(task, number + 1)], diagnosis, gone
        checks.append((description, message and _plain(message)))
        if candidate.slow:
            return [*checks, *not_run(task, number + 1)], diagnosis, None
        if message and not diagnosis and candidate.calls:
            diagnosis = _diagnosis(task, candidate.calls[:_CALLS])
    return checks, diagnosis, None


def _diagnosis(task, calls):
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return diagnose(task, calls)
    except Exception:  # of results of an unforeseen form; the failed check has its message
        return None


def judge(data, tasks, seed, seconds=Seconds(), limits=Limits()):
    """Judge a notebook's bytes; a dict of plain values that JSON can hold.

    A crash or a hang in one function ends the process and costs that task; the next task gets a new process, as long
    as the time for the whole submission lasts.
    """
    deadline, names = time.monotonic() + seconds.wall, [task.name for task in tasks]
    judged, notebook, first, hopeless = [], None, None, False
    notes, output = NO_NOTES, ("", 0)
    try:
        for task in tasks:
            gone = None
            if notebook is None and not hopeless:
                try:
                    notebook = Notebook(data, names, deadline, seconds, limits)
                    notes = notebook.notes
                except Gone as found:  # its cells do this, so they would do it again
                    gone, hopeless = found, True
            if notebook is None:
                checks, diagnosis = not_run(task), None
            else:
                checks, diagnosis, gone = _judge_task(task, notebook, seed)
                output = notebook.output
            if gone:
                first, notebook = first or gone, None
            passed = sum(message is None for _, message in checks)
            judged.append({"id": task.id, "of": task.points, "checks": checks, "diagnosis": diagnosis,
                           "points": task.score(passed)})
    finally:
        if notebook is not None:
            notebook.close()
    return {"state": first.state if first else "graded", "note": str(first) if first else None, "tasks": judged,
            "output": output[0], "printed": output[1], **notes}
