"""Say which mistake a wrong backward is.

A candidate is run on two probes. What explains its numbers is said by ``explaining`` of
:mod:`~normcheck.mistakes.recognise`, which is asked of

1. every entry of a catalogue of mistakes, all outputs together and then one by one;
2. the formula of dx (:class:`~normcheck.mistakes.Formula`) with one mistake, and with two: other
   statistics, powers of 1/s, stand-ins for xhat, axes, places of gamma, and factors; and the
   sums of dgamma and dbeta with up to four.

What no output can tell apart is reported as *one of* several mistakes. Nothing here proves a
backward right.
"""

import functools
import itertools
from dataclasses import replace

import numpy as np

from lnlib import validation

from .families import LAYER_NORM, Family
from .formula import leading
from .recognise import MADE_AGAIN, TOLERANCE, Diagnosis, agree, combined, explaining

# ---- Mistakes, alone and together

#: 1/s on some of the terms only; on all but the projection it is ``centred-once``.
_PARTLY_SCALED = {"rstd-on-first-only", "rstd-missing-mean"} | {
    "rstd-on-projection-only",
    "rstd-missing-first",
}
#: Without one of its terms, dx does not say what else is wrong there: of several names for one
#: formula, those of _NOT_TOLD are not told beside these.
_ABSENT = {"first-term-missing", "missing-mean", "missing-projection", "frozen-statistics"}
#: Where means run over rows, gamma may stand on either side of them.
_ONE_SIDE = {"gamma-outside-mean", "gamma-outside-projection", "gamma-again"}
_NOT_TOLD = _PARTLY_SCALED | _ONE_SIDE | {"gamma-missing-means"}
_NOT_TOLD |= {"sums-for-means", "rows-for-features"}


def _is_told(settings, right):
    """Whether several mistakes at once, name -> fields, are told by these names, not by others."""
    absent = _ABSENT & settings.keys()
    no_means = ("frozen-statistics" if right.mean else "missing-projection") in absent
    for name, other in itertools.permutations(settings, 2):
        fields = {"mean1", "mean2"} | ({"outer", "inner"} if name in _PARTLY_SCALED else set())
        if name in _PARTLY_SCALED | _ONE_SIDE and fields & settings[other].keys():
            return False
    return not absent or not any(
        name in _NOT_TOLD
        or name.startswith("means-")
        or name.endswith(("-first", "-second"))
        and (name != "gamma-missing-first" or no_means)
        for name in settings.keys() - absent
    )


@functools.cache
def _made(family, count):
    """What ``count`` mistakes at once make of dx: pairs (names, dx on every probe)."""
    rights = [family.formula(*probe) for probe in family.probes]
    # Of each probe, a list of the groups: name -> fields.
    settings = [
        [
            {name: right.fields(change) for name, change in group.items()}
            for group in family.groups.values()
        ]
        for right in rights
    ]
    made = []
    for groups in itertools.combinations(range(len(family.groups)), count):
        for names in itertools.product(*(settings[0][k] for k in groups)):
            chosen = [{name: of[k][name] for k, name in zip(groups, names)} for of in settings]
            if _is_told(chosen[0], rights[0]):
                values = [right.changed(*some.values()).dx() for right, some in zip(rights, chosen)]
                made.append((frozenset(names), values))
    return made


_TIMES = {"sign": -1, "two": 2, "half": 1 / 2}
_SUMS = {
    "dgamma": {
        (): lambda dy, cache: dy * cache.xhat,
        ("dgamma-from-y",): lambda dy, cache: dy * cache.xhat * cache.gamma,
        ("dgamma-from-centred",): lambda dy, cache: dy * cache.xhat / cache.rstd,
        ("dgamma-without-xhat",): lambda dy, cache: dy,
    },
    "dbeta": {
        (): lambda dy, cache: dy,
        ("dbeta-from-g",): lambda dy, cache: dy * cache.gamma,
        ("dbeta-with-xhat",): lambda dy, cache: dy * cache.xhat,
    },
}


def _sums(output, family):
    """Mistakes in a parameter's gradient, alone and combined: (names, its value on every probe)."""
    averaged, over_features = (f"{output}-averaged",), (f"{output}-over-features",)
    first_axis = ("parameters-over-first-axis",)
    reduced = [
        ((), lambda a: a.sum(axis=leading(a))),
        (averaged, lambda a: a.mean(axis=leading(a))),
        (over_features, lambda a: a.sum(axis=-1, keepdims=True)),
        (over_features, lambda a: a.sum(axis=-1)),
        (first_axis, lambda a: a.sum(axis=0)),
        (averaged + first_axis, lambda a: a.mean(axis=0)),
    ]
    shaped = [((), lambda a: a), (("parameters-keep-an-axis",), lambda a: a[None])]
    times = [((), 1), *(((f"{output}-{name}",), n) for name, n in _TIMES.items())]
    for some in itertools.product(_SUMS[output].items(), reduced, shaped, times):
        (_, what), (_, over), (_, to), (_, factor) = some
        if names := frozenset(itertools.chain(*(names for names, _ in some))):
            values = [factor * to(over(what(*probe))) for probe in family.probes]
            yield names, values


# ---- Comparing


@functools.cache
def _values(family):
    """Right outputs, and those of every entry that has a backward, as :func:`_run` has them."""
    return _run(family.right, family), {
        known: _run(known.backward, family) for known in family.known if known.backward
    }


def _array(output):
    """As an array; of objects, with nothing to compare, where parts of several shapes stand in
    place of one output.
    """
    try:
        return np.asarray(output)
    except ValueError:
        return np.array(None)


def _run(backward, family):
    """The outputs that are there, by name: of each one array a probe."""
    found, names = [], ", ".join(family.outputs)
    for dy, cache in family.probes:
        # Copies: a candidate may write to its arguments.
        fields = {n: v.copy() for n, v in cache._asdict().items() if isinstance(v, np.ndarray)}
        outputs = backward(dy.copy(), cache._replace(**fields))
        expected = f"one that returns a tuple ({names})"
        validation.require_kind("backward", outputs, (tuple, list), expected)
        count, more = len(family.outputs), outputs[len(family.outputs) :]
        if len(outputs) < count or any(a is not None for a in more):
            raise ValueError(f"backward: found {len(outputs)} outputs, expected {count}: {names}")
        found.append([None if a is None else _array(a) for a in outputs])
    return {
        output: arrays
        for output, *arrays in zip(family.outputs, *found)
        if all(a is not None for a in arrays)
    }


def _one_of(what, entries):
    because = tuple(
        f"{what}: the numbers of the catalogue's {entry.name}, on every probe" for entry in entries
    )
    yours = f"Your {what} {'are those' if ' and ' in what else 'is that'} of"
    kind, of = "known", "a known mistake"
    if len(entries) > 1:
        kind, of = "one of", "one of these mistakes, which give the same numbers"
    says = " Or: ".join(entry.says for entry in entries)
    return Diagnosis(kind, tuple(k.name for k in entries), f"{yours} {of}: {says}", because)


def _of_names(what, found, table):
    """A diagnosis from sets of names that all give the candidate's numbers: of the smallest."""
    fewest = min(map(len, found))
    lists = [sorted(names) for names in dict.fromkeys(found) if len(names) == fewest]
    texts = [
        " ".join(
            f"({n}) {table[name].says}" if names[1:] else table[name].says
            for n, name in enumerate(names, 1)
        )
        for names in lists
    ]
    names = tuple(dict.fromkeys(itertools.chain(*lists)))
    if len(lists) > 1:
        kind, start = "one of", f"Your {what} is one of these"
    elif len(names) == 1:
        kind, start = "known", f"Read off the terms of your {what}"
    else:
        kind, start = "combination", f"Your {what} makes {len(names)} mistakes at once"
    because = tuple(f"{what}: the formula with {' and '.join(names)}" for names in lists)
    return Diagnosis(kind, names, f"{start}: {' Or: '.join(texts)}", because)


def _explaining(candidates, found, right, tolerance):
    """Those of the ``candidates``, pairs (what it is, its numbers), that explain what was
    ``found``.
    """
    explained = explaining(
        candidates,
        (None, right),
        lambda one: agree(found, one[1], tolerance=tolerance),
        lambda one: not agree(one[1], right, tolerance=tolerance),
    )
    return [what for what, _ in explained]


def _not_linear(output, found, twice, tolerance):
    """The diagnosis of an output that is not -2 times as large where dy is: no sum of terms is it,
    though some may give its numbers on the probes.
    """
    if twice is None or agree([-2 * v for v in found], twice, tolerance=MADE_AGAIN * tolerance):
        return None
    return Diagnosis(
        "known",
        ("not-linear",),
        f"Your {output} is not linear in dy: where dy is -2 times as large, {output} is not. Where"
        " does dy stand in your formula?",
        (f"{output}: for -2 dy not -2 times it",),
    )


def _diagnose_output(output, found, family, tolerance):
    right, entries = _values(family)
    right = right[output]
    if not any(a.any() for a in found):
        return None
    table = {known.name: known for known in family.known}
    if output != "dx":
        # One parameter alone: the entries of the catalogue may have mistakes in others, too.
        names = _explaining(_sums(output, family), found, right, tolerance)
        if names:
            return _of_names(output, names, table)
    entries = [(known, values[output]) for known, values in entries.items()]
    if explained := _explaining(entries, found, right, tolerance):
        return _one_of(output, explained)
    for count in (1, 2) if output == "dx" else ():
        if names := _explaining(_made(family, count), found, right, MADE_AGAIN * tolerance):
            return _of_names(output, names, table)
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

    Raises
    ------
    Exception
        Whatever ``backward`` raises.
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
    right, wrong = _values(family)
    tolerance = TOLERANCE[8 if all(a.dtype.itemsize >= 8 for a in arrays) else 4]
    right = {o: right[o] for o in found}
    entries = [(known, {o: values[o] for o in found}) for known, values in wrong.items()]
    if together := _explaining(entries, found, right, tolerance):
        are_wrong = [o for o in found if not agree(found[o], right[o], tolerance=tolerance)]
        return _one_of(" and ".join(are_wrong), together)
    probes = tuple((-2 * dy, cache) for dy, cache in family.probes)
    twice = _run(backward, replace(family, probes=probes))
    return combined(
        [
            _not_linear(output, found[output], twice.get(output), tolerance)
            or _diagnose_output(output, found[output], family, tolerance)
            for output in found
        ],
        end="",
    )
