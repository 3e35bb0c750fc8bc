"""Say which mistake a wrong backward is: of layer norm, RMS norm, or layer norm with eps outside
the root.

A candidate is run on the two probes of its family. What explains its numbers is said by
``explaining`` of :mod:`~normcheck.mistakes.recognise`, which is asked of

1. every entry of a catalogue of mistakes, all outputs together and then one by one;
2. the formula of dx (:class:`~normcheck.mistakes.Formula`) with one mistake, and with two: other
   statistics, powers of 1/s, stand-ins for xhat, axes, places of gamma, and factors; and the
   sums of dgamma and dbeta with up to four.

What no output can tell apart is reported as *one of* several mistakes. Nothing here proves a
backward right.
"""

import functools
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lnlib import validation
from lnlib.layernorm import rms_norm_forward

from .catalogue import ENTRIES, changed, forward_keeping_x
from .change import Mistake, table
from .formula import Formula, compiled, group_formula, groups_of, layer_norm_formula, rows_of
from .recognise import MADE_AGAIN, TOLERANCE, Diagnosis, agree, combined, explaining

# ---- What a backward is compared with


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, so that results can be kept
class Family:
    """What the candidates of one exercise are compared with.

    * ``outputs``: names of what a backward returns, in order; of ``dx`` alone there is a formula.
    * ``probes``: pairs (dy, cache), the first with ordinary rows, the second with rows where eps
      counts.
    * ``known``: tuple of :class:`Mistake`.
    * ``formula``: function (dy, cache) -> the right :class:`Formula` of dx.
    * ``groups``: dict of dicts, name of a mistake -> change of the formula.
    """

    outputs: tuple
    probes: tuple
    known: tuple
    formula: Callable
    groups: dict

    def right(self, dy, cache):
        """The right outputs."""
        return changed("", self.formula, len(self.outputs))(dy, cache)


#: Of two probes the shapes, and the sigmas of their rows: the second is comparable with sqrt(eps).
SHAPES, SIGMAS = ((3, 4, 7), (2, 3, 11)), (10.0, 3e-3)
#: mean / sigma of their rows.
OFFSET = 3.0


def _drawn(offset=OFFSET, axes=3):
    """dy, gamma and x of each."""
    for seed, (shape, sigma) in enumerate(zip(SHAPES, SIGMAS)):
        rng = np.random.default_rng(seed)
        x, dy = rng.standard_normal((2, *shape[-axes:]))
        yield dy, rng.standard_normal(shape[-1]), sigma * (offset + x)


#: Candidates (dy, cache) -> (dx, dgamma, dbeta), as :func:`lnlib.layernorm.layer_norm_backward`.
LAYER_NORM = Family(
    ("dx", "dgamma", "dbeta"),
    tuple((dy, forward_keeping_x(x, gamma, gamma)[1]) for dy, gamma, x in _drawn()),
    ENTRIES,
    layer_norm_formula,
    groups_of("layer"),
)


def _known(norm, formula=None, outputs=3):
    """Its mistakes; with a ``formula`` those that are no change of dx alone have backwards."""
    for row in rows_of(norm):
        whole = formula and row["change"] and not row["group"]
        backward = changed(row["change"], formula, outputs) if whole else None
        yield Mistake(row["name"], row["wrong"], row["question"], backward)


def _rms_formula(dy, cache):
    return layer_norm_formula(dy, cache)._replace(mean=0)


#: Candidates (dy, cache) -> (dx, dgamma), as :func:`lnlib.layernorm.rms_norm_backward`, of
#: matrices.
RMS_NORM = Family(
    ("dx", "dgamma"),
    tuple((dy, rms_norm_forward(x, gamma)[1]) for dy, gamma, x in _drawn(0.0, axes=2)),
    tuple(_known("rms", _rms_formula, 2)),
    _rms_formula,
    groups_of("rms"),
)


class GroupCache(NamedTuple):
    """What the backward of a group norm is given: arrays (N, L, C), (N, 1, C) and (C,)."""

    xhat: np.ndarray
    rstd: np.ndarray
    gamma: np.ndarray
    groups: int


#: Candidates (dy, GroupCache) -> (dx, dgamma, dbeta); the probes are those of a target, which has
#: so many groups.
GROUP_NORM = Family(
    LAYER_NORM.outputs, (), tuple(_known("group", group_formula)), group_formula, groups_of("group")
)


class OutsideCache(NamedTuple):
    """What a backward with eps outside the root is given; gamma is None where there is none."""

    x: np.ndarray
    gamma: np.ndarray | None
    eps: float


def _outside_formula(dy, cache):
    c = cache.x - cache.x.mean(axis=-1, keepdims=True)
    sigma = np.sqrt((c * c).mean(axis=-1, keepdims=True))
    s = sigma + cache.eps
    return Formula(dy, cache.gamma, 1 / s, c / sigma, c / s, c / s)


def outside_family(with_gamma):
    """Candidates (dy, OutsideCache) -> (dx,), eps added outside the root, with gamma or without."""
    validation.require_bool("with_gamma", with_gamma)
    probes = tuple(
        (dy, OutsideCache(x, gamma if with_gamma else None, SIGMAS[1])) for dy, gamma, x in _drawn()
    )
    groups = {k: v for k, v in groups_of("outside").items() if with_gamma or k != "gamma"}
    return Family(("dx",), probes, tuple(_known("outside")), _outside_formula, groups)


# ---- Mistakes, alone and together

#: Several pairs of mistakes may be one formula: where a term is missing, or means run over rows, it
#: does not say whether gamma, 1/s or a factor is wrong in one term or in all. What is wrong in some
#: of the terms only is told where nothing else gives the numbers.
_IN_SOME_TERMS = re.compile(
    "means-.*|sums-for-means|rows-for-features|gamma-missing-means|gamma-outside-.*|gamma-again"
    "|rstd-(on|missing)-.*|.*-(first|second)"
)


@functools.cache
def _made(family, count):
    """What ``count`` mistakes at once make of dx: pairs (names, dx on every probe)."""
    rights = [family.formula(*probe) for probe in family.probes]
    fields = {
        name: [right.fields(change) for right in rights]
        for group in family.groups.values()
        for name, change in group.items()
    }
    made = []
    for groups in itertools.combinations(family.groups.values(), count):
        for names in itertools.product(*groups):
            chosen = zip(rights, *(fields[name] for name in names))
            values = [right.changed(*some).dx() for right, *some in chosen]
            made.append((frozenset(names), values))
    return made


#: What may be wrong in a parameter's gradient, step by step, as ``sums.csv`` has it: what is summed
#: over which axes, the shape, a factor. ``{}`` stands for the gradient, ``a`` for the last step.
_STEPS = "what", "over", "shape", "times"


def _sums(output, family):
    """Mistakes in a parameter's gradient, alone and combined: (names, its value on every probe)."""
    rows = [row for row in table("sums.csv") if row["of"] in ("", output)]
    known = [family.formula(*probe).names() for probe in family.probes]
    for some in itertools.product(*([row for row in rows if row["step"] == of] for of in _STEPS)):
        names = frozenset(" ".join(row["name"] for row in some).replace("{}", output).split())
        if names:
            yield names, [_stepwise([row["formula"] for row in some], dict(one)) for one in known]


def compared(family):
    """The names of all mistakes that a backward is held against."""
    known = {one.name for one in family.known if one.backward}.union(*family.groups.values())
    return known.union(*(names for o in family.outputs[1:] for names, _ in _sums(o, family)))


def _stepwise(formulas, names):
    for formula in formulas:
        names |= eval(compiled(f"a={formula}"), names)
    return names["a"]


# ---- Comparing


@functools.cache
def _values(family):
    """Right outputs, and those of every entry that has a backward, as :func:`_run` has them."""
    wrong = {frozenset([k.name]): _run(k.backward, family) for k in family.known if k.backward}
    return _run(family.right, family), wrong


def _array(output):
    """As an array; of objects, with nothing to compare, where it has parts of several shapes."""
    try:
        return np.asarray(output)
    except ValueError:
        return np.array(None)


def _run(backward, family):
    """The outputs that are there, by name: of each one array a probe."""
    found, count, names = [], len(family.outputs), ", ".join(family.outputs)
    for dy, cache in family.probes:
        # Copies: a candidate may write to its arguments.
        fields = {n: v.copy() for n, v in cache._asdict().items() if isinstance(v, np.ndarray)}
        outputs = backward(dy.copy(), cache._replace(**fields))
        expected = f"one that returns a tuple ({names})"
        validation.require_kind("backward", outputs, (tuple, list), expected)
        if len(outputs) < count or any(a is not None for a in outputs[count:]):
            raise ValueError(f"backward: found {len(outputs)} outputs, expected {count}: {names}")
        found.append([None if a is None else _array(a) for a in outputs])
    return {
        output: arrays
        for output, *arrays in zip(family.outputs, *found)
        if all(a is not None for a in arrays)
    }


def _told(what, found, family, read_off=True):
    """A diagnosis from sets of names that all give the candidate's numbers: of the smallest."""

    def size(names):
        return len(names), len(names) > 1 and sum(map(bool, map(_IN_SOME_TERMS.fullmatch, names)))

    best = min(map(size, found))
    fewest = best[0]
    lists = [sorted(names) for names in dict.fromkeys(found) if size(names) == best]
    says = {known.name: known.says for known in family.known}
    kind = "one of" if lists[1:] else "known" if fewest == 1 else "combination"
    of = f"Your {what} {'are those' if ' and ' in what else 'is that'} of"
    start = {
        ("known", True): f"Read off the terms of your {what}",
        ("known", False): f"{of} a known mistake",
        ("one of", True): f"Your {what} is one of these",
        ("one of", False): f"{of} one of these mistakes, which give the same numbers",
        ("combination", True): f"Your {what} makes {fewest} mistakes at once",
    }[kind, read_off]

    def in_words(names):
        numbered = (f"({n}) {says[name]}" for n, name in enumerate(names, 1))
        return " ".join(numbered) if names[1:] else says[names[0]]

    by = "the formula with {}" if read_off else "the numbers of the catalogue's {}, on every probe"
    because = tuple(f"{what}: {by.format(' and '.join(names))}" for names in lists)
    names = tuple(dict.fromkeys(itertools.chain(*lists)))
    return Diagnosis(kind, names, f"{start}: {' Or: '.join(map(in_words, lists))}", because)


def _explaining(candidates, found, right, tolerance):
    """Those of the ``candidates``, pairs (names, numbers), that explain what was ``found``."""
    explained = explaining(
        candidates,
        (None, right),
        lambda one: agree(found, one[1], tolerance=tolerance),
        lambda one: not agree(one[1], right, tolerance=tolerance),
    )
    return [names for names, _ in explained]


def _candidates(output, family):
    """Candidates for one output, in groups of which the first that explains it is told: pairs
    (names, numbers); how many tolerances they may be off; and whether they are its terms.
    """
    if output != "dx":
        # One parameter alone: the entries of the catalogue may have mistakes in others, too.
        yield _sums(output, family), 1, True
    yield ((names, values[output]) for names, values in _values(family)[1].items()), 1, False
    for count in (1, 2) if output == "dx" else ():
        yield _made(family, count), MADE_AGAIN, True


def _diagnose_output(output, found, twice, family, tolerance):
    if not any(a.any() for a in found):
        return None
    # No sum of terms is it, though some may give its numbers on the probes. Of one, -2 is exact.
    if twice is not None and not agree([-2 * v for v in found], twice):
        says = f"Your {output} is not linear in dy: where dy is -2 times as large, {output} is not."
        says += " Where does dy stand in your formula?"
        return Diagnosis("known", ("not-linear",), says, (f"{output}: for -2 dy not -2 times it",))
    right = _values(family)[0][output]
    for candidates, times, read_off in _candidates(output, family):
        if names := _explaining(candidates, found, right, times * tolerance):
            return _told(output, names, family, read_off)
    return None


def diagnose(backward, family=LAYER_NORM):
    """Say which mistake a backward is.

    Parameters
    ----------
    backward : function (dy, cache) -> outputs
        Called on copies of the family's probes. An output that is None is not looked at.
    family : Family
        What to compare with; layer norm's by default.

    Returns
    -------
    diagnosis : Diagnosis or None
        None where no number is wrong, which proves nothing, or where there is nothing to compare:
        NaN, zeros, too few digits (float16), or a shape that belongs to no known mistake.

    Whatever ``backward`` raises is raised.
    """
    validation.require_callable("backward", backward)
    validation.require_kind("family", family, Family, "a Family")
    found = _run(backward, family)
    arrays = list(itertools.chain(*found.values()))
    if any(
        a.dtype.kind not in "iuf" or a.dtype == np.float16 or not np.isfinite(a).all()
        for a in arrays
    ):
        return None
    right, entries = _values(family)
    tolerance = TOLERANCE[8 if all(a.dtype.itemsize >= 8 for a in arrays) else 4]
    right = {o: right[o] for o in found}
    whole = ((name, {o: values[o] for o in found}) for name, values in entries.items())
    if together := _explaining(whole, found, right, tolerance):
        are_wrong = [o for o in found if not agree(found[o], right[o], tolerance=tolerance)]
        return _told(" and ".join(are_wrong), together, family, read_off=False)
    probes = tuple((-2 * dy, cache) for dy, cache in family.probes)
    twice = _run(backward, replace(family, probes=probes))
    return combined([_diagnose_output(o, found[o], twice.get(o), family, tolerance) for o in found])
