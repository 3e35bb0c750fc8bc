"""Where a target's numbers were wrong, where they held, and whether two results are the same."""

import itertools
from typing import NamedTuple

import numpy as np

from lnlib.rounding import FORMATS

from .checks import asked, is_float, misshapen, shape_of
from .judge import BY_ROW, judge, truth
from .layouts import SAME_NUMBERS, SAME_ROWS
from .mistakes.recognise import NEARLY, TOLERANCE
from .targets import Raised, TargetError

#: Layouts with numbers that lie in one place: who reads beyond it, reads what is not the caller's.
IN_ONE_PLACE = {SAME_ROWS, SAME_NUMBERS}

FAR = "rows far from zero"


class Shown(NamedTuple):
    """A case, the target's tensors there, and the names of those that are wrong."""

    case: object
    tensors: dict
    wrong: frozenset = frozenset()


def results(target, case):
    """The tensors of a target, or None where it has none, or has not written all of them."""
    try:
        outcome = target.call(case)
    except (Raised, TargetError):
        return None
    return None if outcome.memory else outcome.tensors


def of_numbers(case):
    """Whether the case is there for its numbers: some, and all finite."""
    return asked(case.property).of_numbers and case.x.size and case.finite


def failed(target, tried):
    """:class:`Shown` of failures in which numbers are wrong: nothing else can have a mistake's
    name. Or the shapes of parameters' gradients: there are mistakes that are told by them.
    """
    settings = target.settings
    for case, found in itertools.chain(*tried.values()):
        tensors = found and of_numbers(case) and results(target, case)
        wrong = frozenset(
            name
            for name, value in (tensors or {}).items()
            if wrong_in(tensors, case, settings, [name])
            and not (misshapen(name, value, case) and (name in BY_ROW or not is_float(value)))
        )
        if wrong:
            yield Shown(case, tensors, wrong)


def passed(tried):
    """Cases that held."""
    return [
        case
        for case, wrong in itertools.chain(*tried.values())
        if not wrong and of_numbers(case) and not IN_ONE_PLACE & set(case.layouts.values())
    ]


def same(a, b, case, settings, names=None, times=1):
    """Whether two results, or these tensors, are the same but for rounding, or ``times`` that."""
    if a is None or b is None:
        return False
    tolerance = TOLERANCE[FORMATS[case.dtype].bits // 8]
    for name in names or settings.tensors:
        one, other = a.get(name), b.get(name)
        if getattr(one, "shape", None) != getattr(other, "shape", None):
            return False
        if one is None or one.shape != shape_of(name, case):
            continue
        if not is_float(one) or not is_float(other):
            return False
        slack = truth(case, settings).slack[name]
        one, other = (v.astype(np.float64).reshape(len(slack), -1) for v in (one, other))
        finite = np.isfinite(other)
        if not np.array_equal(np.isfinite(one), finite):
            return False
        error, size = (
            np.linalg.norm(np.where(finite, v, 0), axis=-1) for v in (one - other, other)
        )
        if (error > times * (slack + tolerance * size)).any():
            return False
    return True


def alike(a, b, case, settings, names):
    """Whether two results lose digits alike, tensor by tensor."""

    def lost(tensors, name):
        if tensors is None or misshapen(name, tensors[name], case):
            return np.inf
        return max(1.0, judge(name, tensors[name], case, settings).share)

    both = (sorted(lost(of, name) for of in (a, b)) for name in names)
    return all(more < NEARLY * less for less, more in both)


def wrong_in(tensors, case, settings, names):
    """Whether one of the tensors with these names is wrong."""
    return any(
        misshapen(name, tensors[name], case) or judge(name, tensors[name], case, settings).share > 1
        for name in names
    )
