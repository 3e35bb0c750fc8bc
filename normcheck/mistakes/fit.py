r"""Say which mistake a wrong backward is.

A candidate is run on two probes. What explains its numbers is said by
:func:`~normcheck.mistakes.recognise.explaining`, which is asked of

1. every entry of a catalogue of mistakes, all outputs together and then one by one;
2. combinations: a least-squares fit of dx on nine terms, whose coefficients read off the mistake.
   With g = gamma * dy and r = 1 / sqrt(var + eps), means over the D features, the terms are r times

   .. math:: g,\; \overline g,\; \hat x\,\overline{g \hat x},\; dy,\; \overline{dy},\;
             \hat x\,\overline{dy\,\hat x},\; \gamma\,\overline{dy},\;
             \gamma \hat x\,\overline{dy\,\hat x},\; \gamma \hat x\,\overline{g \hat x}.

   The fit is repeated with other statistics, powers of r, stand-ins for xhat and axes, at most two
   at a time.

What no output can tell apart is reported as *one of* several mistakes. Nothing here proves a
backward right.
"""

import functools
import itertools
from dataclasses import replace

import numpy as np

from lnlib import validation

from .catalogue import leading
from .entries import slip
from .families import LAYER_NORM, PARTLY_SCALED, Family
from .recognise import FITTED, READ, TOLERANCE, Diagnosis, agree, combined, explaining

# ---- Reading

#: What :func:`_terms` gives, times r.
_TERMS = (
    *("g", "mean(g)", "xhat mean(g xhat)"),
    *("dy", "mean(dy)", "xhat mean(dy xhat)"),
    *("gamma mean(dy)", "gamma xhat mean(dy xhat)", "gamma xhat mean(g xhat)"),
)


def _terms(base):
    """The nine terms, or three where there is no gamma, as columns."""
    dy, gamma, r, outer, inner, mean1, mean2 = base
    g = dy if gamma is None else gamma * dy
    terms = [g, mean1(g), outer * mean2(g * inner)]
    if gamma is not None:
        mean, projection = mean1(dy), outer * mean2(dy * inner)
        terms += [dy, mean, projection, gamma * mean, gamma * projection, gamma * terms[2]]
    return np.stack([np.broadcast_to(r * term, dy.shape).ravel() for term in terms], axis=1)


def _fit(dx, base, tolerance):
    """Coefficients of the nine terms, which of them are terms of their own, and the dx that they
    give; None if that is another.
    """
    columns = _terms(base)
    sizes = np.linalg.norm(columns, axis=0)
    columns = columns / sizes
    # gamma may be pulled out of a mean over the rows, and a mean over a tile is one number: such
    # terms are parallel to an earlier one, which then stands for both.
    kept = [k for k, c in enumerate(columns.T) if not (np.abs(columns.T[:k] @ c) > 1 - 1e-9).any()]
    fitted, small = np.zeros(len(_TERMS)), FITTED * tolerance * np.linalg.norm(dx)
    fitted[kept] = np.linalg.lstsq(columns[:, kept], dx.ravel(), rcond=None)[0]
    fitted[np.abs(fitted) < small] = 0  # too small to be told from rounding
    given = columns @ fitted[: len(sizes)]
    if np.linalg.norm(given - dx.ravel()) > small:
        return None
    fitted[: len(sizes)] /= sizes
    return fitted, kept, given.reshape(dx.shape)


def _factors(value, rows, D, tolerance, overall=False):
    """``value`` as a product of at most two factors that mistakes are made of, and a sign; shortest
    first.
    """
    atoms = {"two": 2, "half": 1 / 2, "d": D, "over-d": 1 / D}
    atoms |= {"over-rows": 1 / rows} if overall else {"d-over-rows": D / rows, "ddof": D / (D - 1)}
    sign = ("sign",) if value < 0 else ()
    for count in (0, 1, 2):
        for names in itertools.combinations(atoms, count):
            if abs(abs(value) / np.prod([atoms[name] for name in names]) - 1) < READ * tolerance:
                return sign + names
    return (*sign, "other")


def _read(coefficients, kept, rows, D, mean, tolerance):
    """The mistakes that the coefficients tell, as names, or None if two forms of one term are
    mixed.
    """
    forms, values = [], []
    for slot in ((0, 3), (1, 4, 6), (2, 5, 7, 8)):
        present = [
            (form, coefficients[k])
            for form, k in zip(("g", "dy", "outside", "twice"), slot)
            if coefficients[k]
        ]
        if len(present) > 1:
            return None
        # Where another form is the same term, the place of gamma is free.
        form = present[0][0] if present else None
        forms.append("any" if form == "g" and slot[0] and not set(slot) <= set(kept) else form)
        values.append(present[0][1] if present else 0)
    first, of_mean, of_projection = forms
    names = [] if first else ["first-term-missing"]
    whole = values[0] if first else 1
    names += [slip("dx", factor) for factor in _factors(whole, rows, D, tolerance, overall=True)]
    names += _gamma(first, [of_mean, of_projection])
    if not of_mean and not of_projection and mean:
        return names + ["frozen-statistics"]
    slots = {"mean": values[1], "projection": values[2]}
    read = {
        place: _factors(-value / whole, rows, D, tolerance)
        for place, value in slots.items()
        if value
    }
    if not mean:
        names += ["mean-subtracted"] if read.pop("mean", None) is not None else []
    names += [
        f"missing-{place}"
        for place in slots
        if place not in read and (mean or place == "projection")
    ]
    shared = [f for f in read.get("mean", ()) if f in read.get("projection", ()) and f != "other"]
    names += [slip("means", factor) for factor in shared]
    return names + [
        slip(place, f) for place, factors in read.items() for f in factors if f not in shared
    ]


def _gamma(first, means):
    """The mistakes that are told by where gamma stands."""
    told = {form for form in means if form not in (None, "any")}
    if first == "dy" and told <= {"dy"}:
        return ["gamma-missing"]
    if first == "g" and told == {"outside"}:
        return ["gamma-outside"]
    if first == "g" and means == ["dy", "dy"]:
        return ["gamma-missing-means"]
    names = ["gamma-missing-first"] if first == "dy" else []
    for place, form in zip(("mean", "projection"), means):
        names += {
            "dy": [f"gamma-missing-{place}"],
            "outside": [f"gamma-outside-{place}"],
            "twice": ["gamma-twice-in-projection"],
        }.get(form, [])
    return names


#: Without one of its terms, dx does not say which of them 1/s was on.
_ABSENT = {"first-term-missing", "missing-mean", "missing-projection", "frozen-statistics"}


@functools.cache
def _bases(family):
    """The bases of all probes, side by side; a family's probes never change."""
    return [
        (names, [base, *(other[1] for other in others)])
        for (names, base), *others in zip(*(list(family.bases(*probe)) for probe in family.probes))
    ]


def _combinations(dx, family, tolerance):
    """Lists of mistakes that are read off ``dx``, the same on every probe: ((names, how they were
    read), the dx that they give).
    """
    for names, bases in _bases(family):
        fits, readings = [], set()
        for a, base in zip(dx, bases):
            fits.append(_fit(a, base, tolerance))
            rows, D = a.size // a.shape[-1], a.shape[-1]
            read = fits[-1] and _read(*fits[-1][:2], rows, D, family.mean, tolerance)
            readings.add(None if read is None else frozenset(read))
            if None in readings or len(readings) > 1:
                break  # the rest would change nothing
        else:
            reading = frozenset(names) | readings.pop()
            if reading and not (reading & PARTLY_SCALED and reading & _ABSENT):
                yield (reading, _fitted(names, fits[-1][0])), [given for *_, given in fits]


def _shortest(readings):
    """Those with the fewest names, with how they were read first; a wrong axis of one mean where
    there is no other is a wrong axis of both.
    """

    def of_both(names):
        return {name.removesuffix("-first").removesuffix("-second") for name in names}

    fewest, found = min(len(names) for names, _ in readings), {}
    for names, how in readings:
        if len(names) == fewest:
            found.setdefault(names, how)
    return {
        names: how
        for names, how in found.items()
        if not any(names != other == of_both(names) for other in found)
    }


def _fitted(names, coefficients):
    """The fit in words: which parts were replaced, and the coefficients of the terms on the last
    probe.
    """
    sums = " ".join(f"{value:+.4g} {term}" for value, term in zip(coefficients, _TERMS) if value)
    return f"dx / r = {sums or '0'}" + (f", with {' and '.join(names)}" if names else "")


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
    """Mistakes in a parameter's gradient, alone and combined: ((names, how), its value on every
    probe).
    """
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
            yield (names, f"the sum with {' and '.join(sorted(names))}"), values


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


def _of_names(what, readings, table):
    """A diagnosis from lists of names (a dict, names -> how they were read) that all give the
    candidate's numbers.
    """
    lists = [sorted(reading) for reading in readings]
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
    because = tuple(f"{what}: {how}" for how in readings.values())
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
    if twice is None or agree([-2 * v for v in found], twice, tolerance=FITTED * tolerance):
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
        readings = _explaining(_sums(output, family), found, right, tolerance)
        if readings:
            return _of_names(output, _shortest(readings), table)
    entries = [(known, values[output]) for known, values in entries.items()]
    if explained := _explaining(entries, found, right, tolerance):
        return _one_of(output, explained)
    if output != "dx" or any(a.shape != b.shape for a, b in zip(found, right)):
        return None
    combinations = _combinations(found, family, tolerance)
    readings = _explaining(combinations, found, right, FITTED * tolerance)
    return _of_names(output, _shortest(readings), table) if readings else None


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
