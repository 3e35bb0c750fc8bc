"""A submission in its sandbox: its cells run there, and its functions are called from here."""

import contextlib
import difflib
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lnbook.exercises import run

from . import wire
from .sandbox import Sandbox
from .text import plain

_HERE = Path(__file__).parent
_INSIDE = {
    f"/grader/{name}": _HERE / name for name in ("child.py", "compare.py", "forms.py", "wire.py")
} | {
    f"/packages/book/{name}": Path(run.__file__).parents[2] / name
    for name in ("lnlib", "normcheck", "simt", "lnbook")
}
_GRACE = 2  # seconds; the child's own alarm comes first and costs less than a new process
_PART = 2**23  # bytes of a submission that are sent at a time
NO_NOTES = {"cells": 0, "errors": [], "twice": [], "missing": [], "proposed": {}}
_ALIKE = 0.6  # of difflib's ratio, its own default for a close match


class Seconds(NamedTuple):
    """wall : for a whole submission.  call : for each call of a function, and each code cell."""

    wall: int = 60
    call: int = 10


class Gone(Exception):
    """The submission's process is no more; ``state`` in a word, the message in a sentence."""

    def __init__(self, state, message):
        super().__init__(message)
        self.state = state


class Slow(Exception):
    """The submission's function was interrupted; it would be again."""

    def __str__(self):
        return "a call of your function took too long and was stopped"


def proposed(missing, functions):
    """Which of a student's functions may be meant by those missing: dict name -> name.

    missing, functions : dict, name -> names of the parameters. A function is proposed once: for the
    name whose parameters it has, else for the most alike.
    """
    found, left = {}, dict(functions)
    for name, parameters in missing.items():
        same = [other for other, names in left.items() if names == list(parameters)]
        fits = same or [o for o, names in left.items() if len(names) == len(parameters)]
        plain_names = {_letters(other): other for other in fits}
        alike = difflib.get_close_matches(_letters(name), plain_names, 1, _ALIKE)
        chosen = plain_names[alike[0]] if alike else same[0] if len(same) == 1 else None
        if chosen:
            found[name] = chosen
            del left[chosen]
    return found


def _letters(name):
    return name.lower().replace("_", "")


class Notebook:
    """A submission's process, its cells run; ``notes`` says what happened. Close it."""

    def __init__(self, data, parameters, deadline, seconds, limits):
        """parameters : dict, name of a function that is wanted -> names of its parameters."""
        self._deadline, self._seconds, self._gone = deadline, seconds, None
        self._sandbox = Sandbox("/grader/child.py", _INSIDE, limits)
        try:
            self._send(data)
            kind, *rest = self._ask(("run", list(parameters), seconds.call), seconds.wall)
            while kind == "cell":  # one begins; where it stops the alarm there, this ends it
                kind, *rest = self._answer(seconds.call + _GRACE)
            if kind == "not a notebook" and rest:
                self._end("not a notebook", f"it cannot be read: {plain(rest[0])}")
            self.notes = self._notes(parameters, *rest) if kind == "ran" else self._garbage()
        except BaseException:
            self.close()
            raise

    def call(self, name, args):
        """The result of calling function ``name``, and positions of changed arguments."""
        if self._gone:
            raise self._gone
        seconds = self._seconds.call
        kind, *rest = self._ask(("call", name, args, seconds), seconds + _GRACE)
        if kind == "missing":
            raise run.Mismatch(f"there is no function {name} after the last cell")
        if kind == "slow":
            raise Slow
        if kind == "not sent" and len(rest) == 1:
            not_sent(plain(*rest))
        if kind == "raised" and len(rest) == 2:
            raise_again(*map(plain, rest))
        if kind != "returned" or len(rest) != 2 or not isinstance(rest[1], list):
            self._garbage()
        result, changed = rest
        return result, [i for i in changed if isinstance(i, int)]

    @property
    def output(self):
        """The first of what it printed, and how many bytes it printed in all."""
        return self._sandbox.output, self._sandbox.printed

    def close(self):
        self._sandbox.close()

    @contextlib.contextmanager
    def _or_end(self):
        """What is sent or received within this, or it is the end."""
        try:
            yield
        except TimeoutError:
            self._end("too slow", "it took too long and was stopped")
        except EOFError:
            # Its pipes close a moment before it has ended, and only then it is known how.
            self._end("crashed", self._sandbox.close(patience=1.0) or "it closed its pipe")
        except wire.WireError as error:
            self._end("tampered", f"its process sent what is no answer: {error}")

    def _send(self, data):
        with self._or_end():
            for start in range(0, len(data), _PART):
                part = np.frombuffer(data[start : start + _PART], np.uint8)
                self._sandbox.write(wire.encode(("part", part)), self._deadline)

    def _ask(self, message, seconds):
        frame = wire.encode(message)  # of a question that cannot be asked no submission is guilty
        with self._or_end():
            self._sandbox.write(frame, min(time.monotonic() + seconds, self._deadline))
        return self._answer(seconds)

    def _answer(self, seconds):
        until = min(time.monotonic() + seconds, self._deadline)
        with self._or_end():
            found = wire.receive(lambda number: self._sandbox.read(number, until))
        if not isinstance(found, tuple) or not found or not isinstance(found[0], str):
            self._garbage()
        return found

    def _end(self, state, message):
        self.close()
        self._gone = Gone(state, message)
        raise self._gone

    def _garbage(self):
        self._end("tampered", "its process sent what is no answer")

    def _notes(self, parameters, *rest):
        """What the cells did, in the form it must have: it comes from the submission's process."""
        try:
            (found,) = rest
            errors = [(int(number), plain(text)) for number, text in found["errors"]][:20]
            missing = [name for name in parameters if name in found["missing"]]
            # globals() takes any text for a name, and the instructor reads these in a table: no
            # formula there.
            functions = {
                plain(name): [*map(plain, names)]
                for name, names in found["functions"]
                if plain(name).isidentifier()
            }
            return {
                "cells": int(found["cells"]),
                "errors": errors,
                "missing": missing,
                "proposed": proposed({name: parameters[name] for name in missing}, functions),
                "twice": [name for name in parameters if int(found["defined"][name]) > 1],
            }
        except Exception:  # whatever an unforeseen form raises
            self._garbage()


def not_sent(words):
    """Raise what is said of a result that cannot be sent."""
    raise run.Mismatch(f"your function returned {words}")


def raise_again(kind, words):
    """Raise what a function raised in another process, as the runner knows it."""
    if kind == "NotImplementedError":
        raise NotImplementedError
    raise run.Raised(kind, words, f"your function raised {words}")
