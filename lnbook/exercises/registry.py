"""All exercises by id; the checks of one, run in order; and which mistake an answer makes."""

import contextlib
import importlib
import itertools
import pkgutil
import re
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lnlib import validation
from normcheck.mistakes import Mistake
from normcheck.mistakes.recognise import Checks, Failure, Reply, recognise

from . import run
from .expect import Mismatch
from .mistakes import by_exercise
from .report import Report


class Exercise(NamedTuple):
    """One exercise. Its title and its stub stand on its chapter's page.

    * ``id``: kebab-case name, unique in the book.
    * ``minutes``: what a reader needs who has just read the chapter, rounded to five.
    * ``trains``: one or two of "derive", "implement", "test" and "measure".
    * ``solution``: a function that passes.
    * ``checks``: :class:`lnbook.exercises.run.Check` tuples, in order: see :meth:`with_checks`.
    * ``diagnose``: function (answer) -> :class:`normcheck.mistakes.Diagnosis` or None, called where
      a check failed. It calls the answer through ``lnbook.exercises.run.reply``, so that the
      answer's exceptions are told from its own.
    * ``mistakes``: wrong answers that readers give (:func:`normcheck.mistakes.change`), compared
      where ``diagnose`` is None or says nothing.
    * ``free``: whether other results are right, too, so that no answer is told how its own follow
      from the solution's.
    """

    id: str
    minutes: int
    trains: str
    solution: Callable
    checks: tuple[run.Check, ...] = ()
    diagnose: Callable | None = None
    mistakes: tuple[Mistake, ...] = ()
    free: bool = False

    @property
    def chapter(self) -> int:
        """The chapter's number, of the module in which the solution stands."""
        return int(self.solution.__module__.rpartition("ch")[2])

    def with_checks(self, *checks: run.Check, diagnose: Callable | None = None) -> "Exercise":
        """The same exercise with these checks, and with what tells its mistakes beside the list."""
        return self._replace(checks=checks, diagnose=diagnose)


_PACKAGE = __name__.rpartition(".")[0]


def _chapters():
    modules = pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__)
    return sorted(module.name for module in modules if re.fullmatch(r"ch\d+", module.name))


def _of(chapter):
    module = importlib.import_module(f"{_PACKAGE}.{chapter}")
    mistakes = by_exercise(module.MISTAKES)
    found = [one._replace(mistakes=mistakes.pop(one.id, ())) for one in module.EXERCISES]
    if mistakes:
        raise ValueError(f"{chapter}.MISTAKES: found {[*mistakes]}, expected ids of its exercises")
    return found


def exercises() -> dict[str, Exercise]:
    """All exercises of the book, in order, by id."""
    found = {}
    for exercise in (one for chapter in _chapters() for one in _of(chapter)):
        if exercise.id in found:
            raise ValueError(f"exercise id {exercise.id!r} is registered twice")
        found[exercise.id] = exercise
    return found


def _exercise(id):
    """As ``exercises()[id]``, but only chapters that name the id are imported: all of them take a
    browser a second.
    """
    for chapter in _chapters():
        if f'"{id}"' in pkgutil.get_data(_PACKAGE, f"{chapter}.py").decode():
            for exercise in _of(chapter):
                if exercise.id == id:
                    return exercise
    found = exercises()
    validation.require_choice("id", id, found)
    return found[id]


def check(id: str, candidate: Callable, seed: int = 0) -> Report:
    """Run an exercise's checks on ``candidate`` in order, up to the first that fails; return a
    :class:`Report`.

    ``seed`` draws the test data. An exception raised by the candidate is a failed check, not an
    error, and so, from Python 3.12 on, is a loop that does not end.
    """
    exercise = _exercise(id)
    validation.require_callable("candidate", candidate)
    validation.require_count("seed", seed, least=0)
    passed: list[str] = []
    failed, written, diagnosis = None, True, None
    with run.ending_loops(candidate):
        for checked in exercise.checks:
            try:
                message = run.verdict(checked, _rng(seed), run.here(candidate))
            except NotImplementedError as unwritten:
                message, written = f"not written yet: {unwritten}", False
            except run.Late as late:
                return Report(id, tuple(passed), (checked.title, str(late)), len(exercise.checks))
            if message:
                failed = checked.title, message
                break
            passed.append(checked.title)
        if failed and written:
            with contextlib.suppress(run.Late):  # of a later check
                diagnosis = _diagnosis(exercise, candidate, len(passed), message, seed)
    return Report(id, tuple(passed), failed, len(exercise.checks), diagnosis, written)


def _rng(seed):
    """A generator that no answer has by chance: default_rng(0) may draw in an answer, and must not
    draw its data.
    """
    return np.random.default_rng([seed, 1607_06450])


def _diagnosis(exercise, candidate, passed, message, seed):
    """Which mistake it is, if that can be told. A diagnosis that crashes is our defect: it is
    warned of, and costs the reader no more than itself.
    """
    try:
        # What mistakes and variations of the solution warn of is no word on the answer.
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Numbers that are those of the exercise's own list say most.
            own = _by_changes(exercise, candidate, passed, message, seed)
            if own and own.kind in ("known", "one of"):
                return own
            told = None
            # A candidate may not get through it.
            with contextlib.suppress(Mismatch, NotImplementedError, run.Raised):
                told = exercise.diagnose and exercise.diagnose(candidate)
            return told or own
    except Exception as error:
        said = f"no diagnosis for {exercise.id}: {type(error).__name__}: {error}"
        warnings.warn(said, RuntimeWarning, stacklevel=3)
        return None


def _by_changes(exercise, candidate, passed, message, seed):
    # Asked in the quicker way that a check may have for this; the first that failed comes after
    # those passed.
    checks = [checked._replace(call=checked.replay or checked.call) for checked in exercise.checks]
    failed = checks[passed]
    # Two draws: in one, by chance, another mistake may give the same numbers.
    asked = [call for draw in (seed, seed + 1) for call in run.questions(failed, _rng(draw))]

    def replies(function):
        for call in asked:
            yield replied(failed.call, function, call.arguments)

    def message_of(function, checked=failed, draw=seed):
        try:
            return run.verdict(checked, _rng(draw), run.here(function))
        except NotImplementedError as unwritten:
            return str(unwritten)

    def passes_before(function):
        return not any(message_of(function, checked) for checked in checks[:passed])

    everything = [*itertools.product(checks, (seed, seed + 1))]

    def verdicts(function):
        return [message_of(function, checked, draw) for checked, draw in everything]

    def everywhere(function):
        for checked, draw in everything:
            if checked.call is failed.call:  # the result of another way to call is another thing
                for call in run.questions(checked, _rng(draw)):
                    yield replied(checked.call, function, call.arguments)

    asks = Checks(replies, message_of, passes_before, everywhere, verdicts)
    told = recognise(candidate, message, exercise.solution, exercise.mistakes, asks)
    return None if told and told.kind == "relation" and exercise.free else told


def replied(call, function, arguments):
    """The :class:`normcheck.mistakes.recognise.Reply` of ``function`` to these arguments: what it
    raises is one, too.
    """
    try:
        result, given = run.reply(call, function, arguments)
    except (Mismatch, NotImplementedError) as error:
        return Reply(Failure(type(error).__name__, str(error)), [])
    except run.Raised as raised:
        return Reply(Failure(raised.kind, raised.message, raised.telling, raised.means), [])
    result = result.results if isinstance(result, run.Ran) else result
    return Reply(result, [a for a in given.values() if isinstance(a, np.ndarray)])
