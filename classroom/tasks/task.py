"""What a graded task is, and which of its mistakes a wrong answer makes."""

import contextlib
import copy
import itertools
import re
from fractions import Fraction

import numpy as np

from lnbook.exercises.registry import replied
from lnbook.exercises.run import Call, each, plainly
from normcheck.mistakes import change
from normcheck.mistakes.change import changed, function_of
from normcheck.mistakes.recognise import is_numbers, matches

#: The tasks by id.
TASKS = {}


class Task:
    """One graded task: one function to write. A subclass is a task, an object of it a variant,
    drawn from ``random``.

    A subclass has an ``id`` that begins with the chapter's number, or with ``own-``, ``minutes``
    that a student needs, ``points``, a whole number that is split evenly over the checks, and

    * ``draw(random)``, which sets ``variant``, what was drawn; ``statement``, Markdown with shapes
      and definitions; ``head`` and ``body``, the solution's source before and after the end of its
      docstring, without imports, NumPy being np; ``example``, source of the public example's
      arguments in brackets; and ``title``, where it is not the class's docstring;
    * ``cases()``, of each check its title and what else ``ask`` takes; ``ask(rng, ...)``, its one
      :class:`lnbook.exercises.run.Call` or several; ``judge(found, **about)`` of one result, as in
      :func:`lnbook.exercises.run.each`: arrays, numbers, strings, and tuples, lists or dicts of
      them;
    * ``slips()``, (old, new, says): the solution with a text replaced is wrong; says names the
      mistake to its author.

    It may set ``rtol``, the relative L2 error that ``judge`` allows for float64 results of the
    public example, if they need not be exact; and ``tolerance``, a sentence on where it allows
    more.

    An object has, made of these, ``name`` and ``names`` (of the function and its arguments),
    ``text``, ``stub``, ``solution``, ``checks`` and ``mistakes``.
    """

    rtol, tolerance = 0.0, ""

    def __init_subclass__(cls):
        if hasattr(cls, "id"):  # else what some tasks have in common
            TASKS[cls.id] = cls
        cls.title = cls.__doc__.rstrip(".")

    def __init__(self, random):
        self.draw(random)
        head = self.head + "\n"
        self.name, names = re.match(r"def (\w+)\((.*)\):", head).groups()
        self.names = names.split(", ")
        self.text = f"## {self.title}\n\n{self.statement.strip()}\n"
        self.stub = head + '    raise NotImplementedError("write this function")\n'
        self.solution = head + self.body.strip("\n") + "\n"
        self.checks = tuple(self._check(*case) for case in self.cases())
        self.mistakes = tuple(change(*slip) for slip in self.slips())

    def _check(self, title, *case):
        return each(title, lambda rng: self.ask(rng, *case), self.judge)

    @classmethod
    def chapter(cls):
        """The chapter's number; None of a task of somebody's own."""
        found = re.match(r"ch(\d+)-", cls.id)
        return int(found[1]) if found else None

    def call(self, named, **more):
        """A :class:`lnbook.exercises.run.Call` of the arguments ``names``; about it, ``more``."""
        return Call({name: (named | more)[name] for name in self.names}, **more)

    def solved(self, named, **more):
        """As :meth:`call`, with what the solution returns as ``expected``."""
        call = self.call(named, **more)
        call.about["expected"] = self.function()(*call.arguments.values())
        return call

    def shown(self):
        """The public example: its arguments, a tuple, and what it must give."""
        arguments = eval(self.example, {"np": np})
        return arguments, _tidy(self.function()(*copy.deepcopy(arguments)))

    def score(self, passed):
        """The points for so many passed checks."""
        return round(float(Fraction(self.points * passed, len(self.checks))), 2)

    def mistaken(self, *mistakes):
        """The solution with these mistakes; ValueError where one takes another's text."""
        return changed(
            self.solution, [pair for mistake in mistakes for pair in mistake.changes], times=None
        )

    def function(self, *mistakes):
        """The solution, with these of its mistakes, as a function."""
        return function_of(self.mistaken(*mistakes), self.name, {"np": np})

    def diagnose(self, calls, fails):
        """Which known mistake, single or two at once, gives the same results: a sentence or None.

        calls : (arguments, result) pairs of a failed check.
        fails : function -> whether it fails that check, too.
        """
        if not any(_telling(result) for _, result in calls):
            return None

        def replies(function):
            return (replied(plainly, function, arguments).result for arguments, _ in calls)

        mine, right = [result for _, result in calls], [*replies(self.function())]
        wrong = {}
        for chosen in itertools.chain(
            *(itertools.combinations(self.mistakes, number) for number in (1, 2))
        ):
            with contextlib.suppress(ValueError):
                wrong[chosen] = self.function(*chosen)
        found = matches(mine, right, wrong, replies, fails)
        fewest = min(map(len, found), default=0)
        says = {
            ", and ".join(mistake.wrong for mistake in chosen): None
            for chosen in found
            if len(chosen) == fewest
        }
        # Three that cannot be told apart are no diagnosis.
        return f"It looks as if {', or '.join(says)}." if 1 <= len(says) <= 2 else None


def listed(text):
    """Mistakes, (old, new, says), of a text of "`old` -> `new`: says", a line each or two."""
    found = re.findall(r"`([^`]*)` -> `([^`]*)`:([^`]+)", text)
    return [(old, new, " ".join(says.split())) for old, new, says in found]


def _tidy(value):
    """A result without the rounding errors of zeros."""
    if isinstance(value, tuple):
        return tuple(map(_tidy, value))
    return (
        np.where(abs(value) < 1e-12, 0, value)
        if getattr(value, "dtype", None) == np.float64
        else value
    )


def _telling(result):
    """Whether there is a number in it: yes, no or a word says too little."""
    if isinstance(result, (tuple, list)):
        return any(map(_telling, result))
    return is_numbers(result) and np.asarray(result).dtype.kind != "b"
