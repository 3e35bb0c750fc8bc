"""Which known mistake a wrong answer is, where mistakes are changes of the solution.

The answer and every mistake are asked the same questions; the mistakes that reply as the answer did
explain it.
"""

import functools
import itertools
import re
from typing import NamedTuple

import numpy as np

from .compare import agree, is_numbers
from .diagnosis import Diagnosis
from .relation import relation
from .slips import EVERYWHERE, slips


class Reply(NamedTuple):
    """What came of one call: what was returned (or a :class:`Failure`), and the arrays among the
    arguments after it.
    """

    result: object
    left: list


class Failure(NamedTuple):
    """The exception that a call ended with; ``telling`` if few other wrong answers end with it.

    ``means``: what is true of whatever ends with it; may be empty.
    """

    kind: str
    message: str
    telling: bool = False
    means: str = ""


def matches(mine, right, wrong, replies, fails):
    """Those of ``wrong`` (a dict, name -> function) that explain the replies ``mine``; to the bit,
    if one does.

    ``right`` are the solution's replies, ``replies(function)`` yields a function's own, and
    ``fails(function)`` says whether it fails the check that the answer failed: what passes that
    check does not explain it.
    """
    # Of what is nearly right, other mistakes are as near.
    explains = {bits: [] for bits in (True, False) if not agree(mine, right, bits, times=30)}
    for name, function in (
        wrong.items() if explains else ()
    ):  # asked once each, and no more than it takes
        left = [*explains]
        for a, b in itertools.zip_longest(mine, replies(function)):
            left = [bits for bits in left if agree(a, b, bits)]
            if not left:
                break
        for bits in left:
            explains[bits].append(name)
    found = ([name for name in names if fails(wrong[name])] for names in explains.values())
    return next(filter(None, found), [])


def says_little(mine):
    """Whether a wrong answer of another kind may well reply the same: True and False, zeros, NaN,
    or errors only.
    """

    def little(result):
        if isinstance(result, Failure):
            return not result.telling
        if isinstance(result, (tuple, list)):
            return all(map(little, result))
        return (
            isinstance(result, (bool, np.bool_))
            or is_numbers(result)
            and not np.any(np.nan_to_num(result, posinf=0, neginf=0))
        )

    return all(little(result) for result, _ in mine)


def _is_names(result):
    return isinstance(result, (list, tuple, set)) and all(isinstance(name, str) for name in result)


def recognise(
    answer, message, solution, mistakes, replies, message_of, passes_before, everywhere, verdicts
):
    """The :class:`Diagnosis` of an answer, which fails a check that says ``message`` of it, or
    None.

    ``replies`` as for :func:`matches`, to two draws of the failed check. ``message_of(function)``
    is what that check says of a function, None if it passes, ``passes_before(function)`` says
    whether it passes the checks before, as the answer did, and ``everywhere(function)`` yields its
    replies to all checks that call it as this one does, in two draws. ``verdicts(function)`` is
    what all checks say of a function, in two draws.

    A mistake is named only if it has what the answer has: the same numbers, or where those say
    little the same verdicts of all checks; and if it fails where the answer fails, and nowhere
    before.
    """
    mine, right = list(replies(answer)), list(replies(solution))
    wrong = {mistake: mistake.of(solution) for mistake in mistakes}
    found = matches(mine, right, wrong, replies, message_of)
    because = [f"replies as {_change(mistake)}, to all {len(mine)} calls" for mistake in found]
    mine_all = functools.cache(lambda: list(everywhere(answer)))  # asked where needed, and once
    little, names = says_little(mine), all(_is_names(r) for r, _ in mine)
    # What gives the same in one check alone, or nearly always, is another mistake.
    found = [m for m in found if agree(mine_all(), list(everywhere(wrong[m])))]
    passing = [mistake for mistake in found if passes_before(wrong[mistake])]
    because += [f"refuted by an earlier check: {_change(m)}" for m in found if m not in passing]
    found = passing
    says = list(dict.fromkeys(mistake.says for mistake in found))
    if says and not little:
        together = "It is one of these, which give the same here: " + " Or: ".join(says)
        return Diagnosis(
            "one of" if len(says) > 1 else "known",
            (),
            together if len(says) > 1 else says[0],
            tuple(because),
        )
    # What holds of the few numbers of one check may be an accident of them.
    if (
        not says
        and relation(mine, right)
        and (simple := relation(mine_all(), list(everywhere(solution))))
    ):
        return simple
    if not little and (
        slip := _slip(mine_all, mine, right, solution, replies, message_of, everywhere)
    ):
        return slip
    # What a message says of the numbers says nothing where these could be compared, and were not
    # the same.
    if not found and not (
        mine and (names or re.search(r"off by|found -?\d|\d of \d+ numbers", message))
    ):
        found = [
            m
            for m, function in wrong.items()
            if message_of(function) == message
            and passes_before(function)
            and not _partly(mine, right, replies(function))
        ]
        because += [f"the failed check says the same of {_change(mistake)}" for mistake in found]
    if found:  # by the little that was replied, or by what one check said
        said = verdicts(answer)
        found = [m for m in found if verdicts(wrong[m]) == said]
    says = list(dict.fromkeys(mistake.says for mistake in found))
    if says:
        return Diagnosis("may be", (), "It may be this: " + " Or: ".join(says), tuple(because))
    failure = next(
        (
            result
            for result, _ in mine
            if isinstance(result, Failure) and result.means and result.kind in message
        ),
        None,
    )
    return (
        Diagnosis("error", (), failure.means, (f"ends with {failure.kind}",)) if failure else None
    )


def _slip(mine_all, mine, right, solution, replies, message_of, everywhere):
    """The :class:`Diagnosis` of an answer whose numbers are, in all checks, those of a variation of
    the solution.
    """
    if agree(mine, right, bits=True) or any(isinstance(result, Failure) for result, _ in mine):
        return None
    if all(_is_names(r) for r, _ in mine) and len({tuple(r) for r, _ in mine_all()}) < 3:
        return None  # names that hardly change: many slips end with them
    if all(isinstance(result, str) for result, _ in mine):
        return None  # one word of a few says less still
    said, bits = {}, agree(mine, right)  # what is right to rounding is told by its bits
    for words, function in slips(solution):  # asked once each: there may be a hundred
        same = (agree(a, b, bits) for a, b in itertools.zip_longest(mine, replies(function)))
        if words.removesuffix(EVERYWHERE) not in said and all(same) and message_of(function):  # noqa: SIM102
            if agree(mine_all(), list(everywhere(function))):
                said[words] = f"replies as the solution with {words}"
    if not said:
        return None
    return Diagnosis(
        "slip",
        (),
        f"The book's solution gives your numbers once it has {', or '.join(list(said)[:3])}. "
        "Where could that be in yours?",
        tuple(said.values()),
    )


def _partly(mine, right, known):
    """Whether some wrong numbers are the same and others are not: then a check says the same of
    both by chance.
    """
    same = [
        agree(a.result, c.result)
        for a, b, c in zip(mine, right, known)
        if is_numbers(a.result) and not says_little([a]) and not agree(a.result, b.result)
    ]
    return any(same) and not all(same)


def _change(mistake):
    return ", and ".join(f"the solution with {new!r} for {old!r}" for old, new in mistake.changes)
