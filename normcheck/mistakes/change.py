"""What a mistake is; texts and functions with some lines changed, as wrong answers are written."""

import csv
import functools
import inspect
import linecache
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lnlib import validation


def changed(text, changes, times=1):
    """``text`` with the (old, new) pairs of ``changes`` replaced, in order. Each ``old`` must occur
    ``times`` times, or at least once if ``times`` is None; else ValueError: a change that changes
    nothing, or more than meant, is no change.
    """
    for old, new in changes:
        found = text.count(old)
        if found != times if times else not found:
            raise ValueError(f"changes: found {old!r} {found} times, expected {times or 'some'}")
        text = text.replace(old, new)
    return text


@functools.cache
def function_with(function, changes):
    """``function`` with these (old, new) pairs changed in its source, each of which occurs once.

    :func:`inspect.getsource` finds the new source, as :mod:`simt` needs it. Errors: see `changed`.
    """
    source = changed(textwrap.dedent(inspect.getsource(function)), changes)
    return function_of(source, function.__name__, function.__globals__)


def function_of(source, name, names):
    """The function ``name`` that ``source`` defines, among copies of the globals ``names``."""
    return executed(source, name, names)[name]


def executed(source, name, names):
    """The globals ``names``, and what ``source`` adds to them; :mod:`inspect` finds its lines."""
    file = f"<{name} {hash(source):x}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    names = dict(names)
    exec(compile(source, file, "exec"), names)
    return names


def table(name, module=__file__):
    """The rows of a table beside a module's file, by default in this folder, as dicts."""
    with Path(module).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


class Mistake(NamedTuple):
    """A mistake that people make, with a question that leads on.

    * ``name``: str, kebab-case; empty where the changes say it all.
    * ``wrong``: str: what was got wrong, in a sentence for its author; it may end with the
      question.
    * ``question``: str, a question whose answer repairs it; may be empty.
    * ``backward``: function (dy, cache) -> outputs with this mistake, or None.
    * ``changes``: (old, new) pairs that turn the right answer's source into the wrong one's; each
      ``old`` occurs in it.
    * ``killed_by``: frozenset of ids of the gradient tests that must kill it, written down by hand.
    """

    name: str
    wrong: str
    question: str = ""
    backward: Callable | None = None
    changes: tuple = ()
    killed_by: frozenset = frozenset()

    @property
    def says(self):
        """The sentence, and the question."""
        return f"{self.wrong}. {self.question}" if self.question else self.wrong

    def of(self, solution):
        """The wrong answer: ``solution`` with the changes, as a function."""
        return function_with(validation.require_callable("solution", solution), self.changes)


def change(old, new, says):
    """The :class:`Mistake` of writing ``new`` where the right answer has ``old``."""
    for name, value in (("old", old), ("new", new), ("says", says)):
        validation.require_kind(name, value, str, "text")
    return Mistake("", says, changes=((old, new),))
