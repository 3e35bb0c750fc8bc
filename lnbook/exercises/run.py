"""A check asks, then judges; here an answer is run between the two, whoever asks.

Arguments are not checked: checks are written by authors, and tests run each of them.

    asked = [*check.ask(rng)]        # the calls to make, as data
    found = call for call in asked   # made here, in a sandbox, or by another process
    check.judge(found, asked)        # returns, or raises Mismatch

So the page, :func:`lnbook.exercises.check`, the grader's parent process and a notebook's hidden
tests have one runner, :func:`verdict`; and a known mistake is asked the same questions by handing
it the same calls.
"""

import contextlib
import copy
import itertools
import linecache
import re
import sys
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .expect import Mismatch


class Call:
    """One call of an answer.

    * ``arguments``: dict, name -> value, in the order in which they are passed.
    * ``about``: dict of what only the judge needs to know, such as the right result.
    """

    def __init__(self, arguments, **about):
        self.arguments, self.about = arguments, about


class Ran(NamedTuple):
    """What a call gave where results alone say too little; known mistakes are compared by
    ``results``.

    * ``results``: what was returned or filled.
    * ``log``: how it came about, for the judge.
    """

    results: object
    log: object


def plainly(answer, arguments):
    """The usual way to call an answer: with the values in order."""
    return answer(*arguments.values())


def quietly(answer, arguments):
    """The same without NumPy's warnings, where to divide by 0 or to overflow is no mistake yet."""
    with np.errstate(all="ignore"):
        return answer(*arguments.values())


class Check(NamedTuple):
    """One thing that is checked about an answer.

    * ``title``: a few words.
    * ``ask``: function (rng) -> the :class:`Call` to make, or several.
    * ``judge``: function (found, asked), which raises :class:`Mismatch` or returns. ``found``
      yields the results one by one; a call is made when its result is taken.
    * ``call``: function (answer, arguments) -> result; it works on copies.
    * ``replay``: the same while known mistakes are looked for, where ``call`` would be slow.
    * ``unchanged``: whether the arguments must come back as they were.
    """

    title: str
    ask: Callable
    judge: Callable
    call: Callable = plainly
    replay: Callable | None = None
    unchanged: bool = False


def cases(names, *rows):
    """What a check asks that draws nothing: a call for each row of values of these arguments."""
    return lambda rng: [Call(dict(zip(names.split(), row))) for row in rows]


def each(title, ask, judge, **options):
    """A :class:`Check` whose ``judge(result, ...)`` looks at one call alone.

    It is handed by name the arguments of the call and what is known about it, which wins where both
    have a name.
    """

    def judge_all(found, asked):
        for result, call in zip(found, asked):
            judge(result, **(call.arguments | call.about))

    return Check(title, ask, judge_all, **options)


def unchanged(title, ask):
    """A :class:`Check` that arguments are left alone, whatever is returned."""
    return each(title, ask, lambda result, **arguments: None, unchanged=True)


class Raised(Exception):
    """The answer raised an exception: ``kind`` is its name, ``message`` its text, ``words`` a
    sentence for its author.

    ``telling`` says that few other wrong answers end with this kind and message, and ``means`` is
    what is true of all that do.
    """

    def __init__(self, kind, message, words, telling=False, means=""):
        super().__init__(words)
        self.kind, self.message, self.telling, self.means = kind, message, telling, means


def raised(error, answer, message=None, **about):
    """The :class:`Raised` of an exception that ``answer`` ended with: what, where, and what it
    usually means. ``message`` is its text, if not all of it counts.
    """
    words = f"your function raised {type(error).__name__}: {error}"
    file = getattr(getattr(answer, "__code__", None), "co_filename", None)
    frames = reversed(traceback.extract_tb(error.__traceback__))
    line = next((frame.line for frame in frames if frame.filename == file), "")
    if line:
        words += f"; in its line `{line}`"
    shapes = [re.findall(r"\d+", shape) for shape in re.findall(r"\(([\d,]+)\)", str(error))]
    lost = any(a[:-1] == b for a, b in itertools.permutations(shapes, 2))
    if lost and "could not be broadcast" in str(error):
        words += "; a mean over the last axis keeps that axis, of length 1, only with keepdims=True"
    return Raised(type(error).__name__, str(error) if message is None else message, words, **about)


def questions(check, rng):
    """The calls that a check makes, as a list."""
    asked = check.ask(rng)
    return [asked] if isinstance(asked, Call) else [*asked]


def verdict(check, rng, make):
    """What a check finds wrong, in words; None if nothing.

    ``make(check, arguments)`` makes a call: it returns the result, or raises Mismatch, Raised or,
    of an answer that is not written, NotImplementedError. Whatever else it raises goes through.
    """
    asked, failure, results = questions(check, rng), [], []

    def found():
        for call in asked:
            try:
                result = make(check, call.arguments)
            except BaseException as error:  # not the judge's: told from its own below
                failure.append(error)
                raise
            results.append(result)
            yield result

    try:
        check.judge(found(), asked)
    except Exception as error:
        if error in failure and not isinstance(error, (Mismatch, Raised)):
            raise
        if isinstance(error, (Mismatch, Raised)):
            return str(error)
        if any(result is None for result in results):
            return "the result is None; is a return missing?"
        # A result that no judge foresaw.
        return f"your result is not of the form asked for ({type(error).__name__}: {error})"
    return None


def here(answer):
    """How :func:`verdict` makes calls in this process."""
    return lambda check, arguments: reply(check.call, answer, arguments, check.unchanged)[0]


#: Seconds that a call of an answer may take, and when the last began.
SECONDS, _BEGAN = 10, [0.0]


class Late(BaseException):
    """A call of an answer was not over in time. No ``except Exception`` of the answer keeps it."""


@contextlib.contextmanager
def ending_loops(answer):
    """Here a call ends with :class:`Late` if a loop of the answer or of its module still runs after
    :data:`SECONDS`. Other code is not slowed. Nothing ends in Python 3.11, nor what is compiled.
    """
    tools, names = getattr(sys, "monitoring", None), getattr(answer, "__globals__", None)
    if not tools or names is None or tools.get_tool(4):
        yield
        return
    jump, file, _BEGAN[0] = tools.events.JUMP, answer.__code__.co_filename, time.monotonic()

    def turn(code, start, to):
        frame = sys._getframe(1)
        own = frame.f_globals is names or code.co_filename == file
        if own and time.monotonic() > _BEGAN[0] + SECONDS:
            line = linecache.getline(code.co_filename, frame.f_lineno).strip() or "a loop"
            raise Late(f"your function had not returned after {SECONDS} s; it was at `{line}`")
        return None if own else tools.DISABLE  # another's jump costs nothing any more

    tools.use_tool_id(4, __name__)
    tools.register_callback(4, jump, turn)
    tools.restart_events()
    tools.set_events(4, jump)
    try:
        yield
    finally:
        tools.set_events(4, 0)
        tools.free_tool_id(4)


def reply(call, answer, arguments, unchanged=False):
    """The result of one call, and the arguments as the answer left them."""
    given, _BEGAN[0] = copy.deepcopy(arguments), time.monotonic()
    try:
        result = call(answer, given)
    except (Mismatch, NotImplementedError, Raised):
        raise
    except Exception as error:
        raise raised(error, answer) from error
    if unchanged:
        for name, value in given.items():
            if not all(map(np.array_equal, _arrays(arguments[name]), _arrays(value))):
                raise Mismatch(f"your function changed its argument {name}; work on new arrays")
    return result, given


def _arrays(value):
    if isinstance(value, (tuple, list)) and any(isinstance(a, np.ndarray) for a in value):
        return [a for a in value if isinstance(a, np.ndarray)]
    return [] if isinstance(value, (tuple, np.random.Generator)) else [value]
