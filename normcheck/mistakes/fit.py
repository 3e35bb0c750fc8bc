r"""Say which mistake a wrong backward is.

A candidate is run on two probes and compared, in this order, with

1. every entry of a catalogue of mistakes, exactly, all outputs together and then one by one;
2. combinations: a least-squares fit of dx on nine terms, whose coefficients read off the mistake.
   With g = gamma * dy and r = 1 / sqrt(var + eps), means over the D features, the terms are r times

   .. math:: g,\; \overline g,\; \hat x\,\overline{g \hat x},\; dy,\; \overline{dy},\;
             \hat x\,\overline{dy\,\hat x},\; \gamma\,\overline{dy},\;
             \gamma \hat x\,\overline{dy\,\hat x},\; \gamma \hat x\,\overline{g \hat x}.

   The fit is repeated with other statistics, powers of r, stand-ins for xhat and axes, at most two
   at a time;
3. the catalogue again: the entry whose error points most nearly the same way.

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
from .recognise import (
    BESIDE,
    FITTED,
    PARALLEL,
    READ,
    TOLERANCE,
    Diagnosis,
    agree,
    combined,
    explaining,
)

# ---- Reading
# ----------------------------------------------------------------------------------------

#: What :func:`_terms` gives, times r.
_TERMS = (
    "g",
    "mean(g)",
    "xhat mean(g xhat)",
    "dy",
    "mean(dy)",
    "xhat mean(dy xhat)",
    "gamma mean(dy)",
    "gamma xhat mean(dy xhat)",
    "gamma xhat mean(g xhat)",
)


def _terms(base):
    """The nine terms, or three where there is no gamma, as columns."""
    dy, gamma, r, outer, inner, mean1, mean2 = base
    g = dy if gamma is None else gamma * dy
    terms = [g, mean1(g), outer * mean2(g * inner)]
    if gamma is not None:
        mean, projection = mean1(dy), outer * mean2(dy * inner)
        terms += [
            dy,
            mean,
            projection,
            gamma * mean,
            gamma * projection,
            gamma * outer * mean2(g * inner),
        ]
    return np.stack([np.broadcast_to(r * term, dy.shape).ravel() for term in terms], axis=1)


def _fit(dx, base, tolerance):
    """Coefficients of the nine terms, and which of them are terms of their own; None if they do not
    give dx.
    """
    columns = _terms(base)
    sizes = np.linalg.norm(columns, axis=0)
    columns = columns / sizes
    # gamma may be pulled out of a mean over the rows, and a mean over a tile is one number: such
    # terms are parallel to an earlier one, which then stands for both.
    kept = [k for k, c in enumerate(columns.T) if not (np.abs(columns.T[:k] @ c) > 1 - 1e-9).any()]
    fitted, size = np.zeros(len(_TERMS)), np.linalg.norm(dx)
    fitted[kept] = np.linalg.lstsq(columns[:, kept], dx.ravel(), rcond=None)[0]
    fitted[np.abs(fitted) < FITTED * tolerance * size] = 0  # too small to be told from rounding
    if np.linalg.norm(columns @ fitted[: len(sizes)] - dx.ravel()) > FITTED * tolerance * size:
        return None
    fitted[: len(sizes)] /= sizes
    return fitted, kept


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
    """The shortest lists of mistakes that give ``dx`` on every probe: dict, names -> how they were
    read.
    """
    found, fewest = {}, np.inf
    for names, bases in _bases(family):
        readings = set()
        for a, base in zip(dx, bases):
            fit = _fit(a, base, tolerance)
            read = fit and _read(*fit, a.size // a.shape[-1], a.shape[-1], family.mean, tolerance)
            readings.add(None if read is None else frozenset(read))
            if None in readings or len(readings) > 1:
                break  # the rest would change nothing
        else:
            reading = frozenset(names) | readings.pop()
            if reading & PARTLY_SCALED and reading & _ABSENT:
                continue
            if len(reading) < fewest:
                found, fewest = {}, len(reading)
            if len(reading) == fewest:
                found.setdefault(reading, _fitted(names, fit[0]))
    # A wrong axis of one mean where there is no other is a wrong axis of both.
    return {
        r: how
        for r, how in found.items()
        if not any(
            s != r and s == {name.removesuffix("-first").removesuffix("-second") for name in r}
            for s in found
        )
    }


def _fitted(names, coefficients):
    """The fit in words: which parts were replaced, and the coefficients of the terms on the last
    probe.
    """
    sums = " ".join(f"{value:+.4g} {term}" for value, term in zip(coefficients, _TERMS) if value)
    return f"dx / r = {sums or '0'}" + (f", with {' and '.join(names)}" if names else "")


def _parameter_combinations(output, family):
    """Mistakes in a parameter's gradient, alone and combined: (names, its value on every probe)."""
    columns = []
    for dy, cache in family.probes:
        if output == "dgamma":
            what = {
                (): dy * cache.xhat,
                ("dgamma-from-y",): dy * cache.xhat * cache.gamma,
                ("dgamma-from-centred",): dy * cache.xhat / cache.rstd,
                ("dgamma-without-xhat",): dy,
            }
        else:
            what = {
                (): dy,
                ("dbeta-from-g",): dy * cache.gamma,
                ("dbeta-with-xhat",): dy * cache.xhat,
            }
        reduce = [
            ((), lambda a: a.sum(axis=leading(a))),
            ((f"{output}-averaged",), lambda a: a.mean(axis=leading(a))),
            ((f"{output}-over-features",), lambda a: a.sum(axis=-1, keepdims=True)),
            ((f"{output}-over-features",), lambda a: a.sum(axis=-1)),
            (("parameters-over-first-axis",), lambda a: a.sum(axis=0)),
            ((f"{output}-averaged", "parameters-over-first-axis"), lambda a: a.mean(axis=0)),
        ]
        shape = {(): lambda a: a, ("parameters-keep-an-axis",): lambda a: a[None]}
        factor = {(): 1, (f"{output}-sign",): -1, (f"{output}-two",): 2, (f"{output}-half",): 1 / 2}
        columns.append(
            [
                (a + b + c + d, times * to(over(of)))
                for (a, of), (b, over), (c, to), (d, times) in itertools.product(
                    what.items(), reduce, shape.items(), factor.items()
                )
            ]
        )
    return [(column[0][0], [value for _, value in column]) for column in zip(*columns)]


# ---- Comparing
# --------------------------------------------------------------------------------------


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
    found = []
    for probe in family.probes:
        dy, cache = probe
        # Copies: a candidate may write to its arguments.
        fields = {
            name: value.copy()
            for name, value in cache._asdict().items()
            if isinstance(value, np.ndarray)
        }
        outputs = validation.require_kind(
            "backward",
            backward(dy.copy(), cache._replace(**fields)),
            (tuple, list),
            f"one that returns a tuple ({', '.join(family.outputs)})",
        )
        if len(outputs) < len(family.outputs) or any(
            a is not None for a in outputs[len(family.outputs) :]
        ):
            raise ValueError(
                f"backward: found {len(outputs)} outputs, expected {len(family.outputs)}: "
                f"{', '.join(family.outputs)}"
            )
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
    yours = f"Your {what} {'are those' if ' and ' in what else 'is that'}"
    if len(entries) == 1:
        return Diagnosis(
            "known", (entries[0].name,), f"{yours} of a known mistake: {entries[0].says}", because
        )
    return Diagnosis(
        "one of",
        tuple(k.name for k in entries),
        f"{yours} of one of these mistakes, which give the same numbers: "
        + " Or: ".join(entry.says for entry in entries),
        because,
    )


def _of_names(what, readings, table):
    """A diagnosis from lists of names (a dict, names -> how they were read) that all give the
    candidate's numbers.
    """
    because = tuple(f"{what}: {how}" for how in readings.values())
    lists = [sorted(reading) for reading in readings]
    texts = [
        (
            " ".join(f"({n}) {table[name].says}" for n, name in enumerate(names, 1))
            if len(names) > 1
            else table[names[0]].says
        )
        for names in lists
    ]
    names = tuple(dict.fromkeys(itertools.chain(*lists)))
    if len(lists) > 1:
        return Diagnosis(
            "one of", names, f"Your {what} is one of these: " + " Or: ".join(texts), because
        )
    if len(names) == 1:
        return Diagnosis("known", names, f"Read off the terms of your {what}: {texts[0]}", because)
    return Diagnosis(
        "combination",
        names,
        f"Your {what} makes {len(names)} mistakes at once: {texts[0]}",
        because,
    )


def _not_linear(backward, family, found, tolerance):
    """The :class:`Diagnosis` of each output that is not -2 times as large where dy is, by name: no
    sum of terms is it.
    """
    twice = _run(
        backward, replace(family, probes=tuple((-2 * dy, cache) for dy, cache in family.probes))
    )
    return {
        output: Diagnosis(
            "known",
            ("not-linear",),
            f"Your {output} is not linear in dy: where dy is -2 times as large, "
            f"{output} is not. Where does dy stand in your formula?",
            (f"{output}: for -2 dy not -2 times it",),
        )
        for output in found.keys() & twice
        if not agree([-2 * v for v in found[output]], twice[output], tolerance=FITTED * tolerance)
    }


def _common_factor(found, right, tolerance):
    """The number that all of ``found`` is too large by, or None."""
    factor = np.vdot(right[0], found[0]) / np.vdot(right[0], right[0])
    return factor if agree(found, [factor * a for a in right], tolerance=tolerance) else None


def _nearest(output, found, right, wrong):
    """The entry whose error is nearly parallel to the candidate's on the first probe, or that there
    is none.
    """
    near = []
    for known, values in wrong.items():
        if values[0].shape == right[0].shape == found[0].shape:
            mine, other = found[0] - right[0], values[0] - right[0]
            along, size = np.vdot(mine, other), np.linalg.norm(mine) * np.linalg.norm(other)
            # What is not on the entry's line must be small beside the candidate, too, or all that
            # are far from a large right result would be near each other.
            if along > PARALLEL * size and (
                np.linalg.norm(mine - along / np.vdot(other, other) * other)
                < BESIDE * np.linalg.norm(found[0])
            ):
                near.append((np.linalg.norm(mine - other), along / size, known))
    if not near:
        return Diagnosis(
            "nearest", (), f"Your {output} is wrong in a way that no known mistake comes near."
        )
    # Of errors with one direction, such as a term left out and a term counted half, the size
    # decides.
    _, cosine, known = min(near, key=lambda one: one[0])
    return Diagnosis(
        "nearest",
        (known.name,),
        f"Your {output} is none of the known mistakes. The nearest, by the "
        f"direction of the error (cosine {cosine:.2f}): {known.says}",
    )


def _diagnose_output(output, found, family, tolerance):
    same = functools.partial(agree, found, tolerance=tolerance)
    right, wrong = _values(family)
    right, wrong, readings = (
        right[output],
        {known: values[output] for known, values in wrong.items()},
        {},
    )
    if same(right) or not any(a.any() for a in found):
        return None
    if (
        output != "dx"
    ):  # one parameter alone: the catalogue's entries may have mistakes in others, too
        lists = [
            names
            for names, values in _parameter_combinations(output, family)
            if names and same(values)
        ]
        readings = {
            names: f"the sum with {' and '.join(sorted(names))}"
            for names in lists
            if len(names) == min(map(len, lists))
        }
    entries = list(
        explaining(
            wrong,
            None,
            lambda known: same(wrong.get(known, right)),
            lambda known: known in wrong and not agree(wrong[known], right, tolerance=tolerance),
        )
    )
    if entries and not readings:
        return _one_of(output, entries)
    shaped = all(a.shape == b.shape for a, b in zip(found, right))
    if output == "dx" and shaped:
        readings = {
            names: how for names, how in _combinations(found, family, tolerance).items() if names
        }
    if readings:
        return _of_names(output, readings, {known.name: known for known in family.known})
    if agree(found, right, tolerance=TOLERANCE[4]):
        return Diagnosis(
            "precision",
            (),
            f"Your {output} has the digits of float32 and no more: the formula may be "
            "right, but something in it is kept in float32, or is a quotient of "
            "differences, or is missing and as small as that.",
        )
    if shaped and (factor := _common_factor(found, right, tolerance)):
        return Diagnosis(
            "relation",
            (),
            f"Your {output} points the {'right' if factor > 0 else 'other'} way, and "
            f"is {abs(factor):.5g} times as long as it should be.",
        )
    return _nearest(output, found, right, wrong) if shaped and wrong else None


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
    are_wrong = [
        output for output in found if not agree(found[output], right[output], tolerance=tolerance)
    ]
    if not are_wrong:
        return None
    together = [
        known
        for known, values in wrong.items()
        if all(agree(found[output], values[output], tolerance=tolerance) for output in found)
    ]
    if together:
        return _one_of(" and ".join(are_wrong), together)
    bent = _not_linear(backward, family, found, tolerance)
    parts = [
        bent.get(output) or _diagnose_output(output, found[output], family, tolerance)
        for output in found
    ]
    kinds = {part.kind for part in parts if part}
    return combined(parts, "nearest" if kinds == {"nearest"} else "combination", end="")
