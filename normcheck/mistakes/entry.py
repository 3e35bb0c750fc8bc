"""One mistake: what the catalogue, the exercises and the graded tasks list."""

from collections.abc import Callable
from typing import NamedTuple

from lnlib import validation

from .change import function_with


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
