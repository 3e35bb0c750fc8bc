r"""Say which mistake a wrong backward is.

A candidate is run on two probes and compared, in this order, with

1. every entry of a catalogue of mistakes, exactly, all outputs together and then one by one;
2. combinations: a least-squares fit of dx on nine terms, whose coefficients read off the mistake. With g = gamma * dy
   and r = 1 / sqrt(var + eps), means over the D features, the terms are r times

   .. math:: g,\; \overline g,\; \hat x\,\overline{g \hat x},\; dy,\; \overline{dy},\;
             \hat x\,\overline{dy\,\hat x},\; \gamma\,\overline{dy},\;
             \gamma \hat x\,\overline{dy\,\hat x},\; \gamma \hat x\,\overline{g \hat x}.

   The fit is repeated with other statistics, powers of r, stand-ins for xhat and axes, at most two at a time;
3. the catalogue again: the entry whose error points most nearly the same way.

What no output can tell apart is reported as *one of* several mistakes. Nothing here proves a backward right.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Callable, NamedTuple

import numpy as np

from .layernorm import layer_norm_forward
from .mutants import HARMLESS, MUTANTS

__all__ = ["Base", "Diagnosis", "Family", "Known", "LAYER_NORM", "diagnose"]

# Relative to the size of the right answer. The probes' rounding is a few 1e-15 times a condition number below 100;
# the smallest mistake, eps / s**2 on the first probe, is worth 1e-6. In float32 it is seen on the second probe only.
_TOLERANCE = {8: 1e-9, 4: 1e-5}


class Known(NamedTuple):
    """A mistake with a name.

    * ``name``: str, kebab-case.
    * ``wrong``: str, one line: what was got wrong.
    * ``backward``: function (dy, cache) -> outputs, or None for what only combinations contain.
    * ``hint``: str, a question whose answer repairs it; may be empty.
    """

    name: str
    wrong: str
    backward: Callable | None = None
    hint: str = ""


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, so that results can be kept
class Family:
    """What the candidates of one exercise are compared with.

    * ``outputs``: names of what a backward returns, in order; only ``dx`` is fitted with terms.
    * ``probes``: pairs (dy, cache), the first with ordinary rows, the second with rows where eps counts.
    * ``right``: function (dy, cache) -> outputs.
    * ``known``: tuple of Known.
    * ``bases``: function (dy, cache) -> pairs (names of mistakes, :class:`Base`); the first is ((), the right one).
    * ``mean``: 1 if dx contains a mean of g, 0 if it does not (RMS norm).
    """

    outputs: tuple
    probes: tuple
    right: Callable
    known: tuple
    bases: Callable
    mean: int = 1


class Base(NamedTuple):
    """The parts of dx = r (g - mean1(g) - outer mean2(g inner)); gamma is None where there is none."""

    dy: np.ndarray
    gamma: np.ndarray | None
    r: np.ndarray
    outer: np.ndarray
    inner: np.ndarray
    mean1: Callable
    mean2: Callable


class Diagnosis(NamedTuple):
    """What a wrong backward is.

    * ``kind``: "known" (an entry, exactly), "one of" (entries that agree), "combination", "nearest", or "precision"
      (float64 comes with the digits of float32); of an exercise's own mistakes also "may be" (no more than what the
      check said agrees). "relation": no mistake agrees, but the numbers are 1.1 times the right ones, say.
    * ``names``: the names of the mistakes, of the alternatives if ``kind`` is "one of".
    * ``sentence``: str for its author; also what ``str`` gives.
    """

    kind: str
    names: tuple
    sentence: str

    def __str__(self):
        return self.sentence


# ---- Mistakes by name -------------------------------------------------------------------------------

_HINTS = {
    "identity": "Shift a whole row by a constant: what happens to y, and what does your dx predict?",
    "frozen-statistics": "How many routes lead from x[i] to y[j] when j differs from i?",
    "missing-projection": "Multiply a row's deviations by 1.01: y hardly moves; does your dx know?",
    "product-of-means": "Work out both for (1, -1) times (1, -1).",
    "missing-mean": "Add up your dx along a row: what must come out?",
    "gamma-outside": "In which order do scale and normalise come forwards, and so backwards?",
    "gamma-twice-in-projection": "Count how often each gamma[i] may appear in each term.",
    "gamma-missing": "Set one gamma to 0: what must its dy contribute to dx?",
    "gamma-twice": "Who owns the scale: the caller or the layer?",
    "y-for-xhat": "Print mean and variance of the array you call xhat.",
    "centred-for-xhat": "Check the units: x in metres, what must dx be in?",
    "centred-once": "Check the units: x in metres, what must dx be in?",
    "extra-rstd-in-projection": "Scale x by 10: every term of dx must scale alike.",
    "missing-rstd": "Double the input: should the gradient stay, double or halve?",
    "rstd-inverted": "Double the input: should the gradient stay, double or halve?",
    "projection-without-xhat": "Which direction of g does sigma answer to?",
    "variance-for-std": "Double the input: should the gradient stay, halve or fall to a quarter?",
    "statistics-of-xhat": "Which array does the forward pass divide by its standard deviation?",
    "projection-times-two": "Differentiate sqrt(v) at v = 4 by hand.",
    "projection-halved": "Differentiate c**2 at c = 3 by hand.",
    "projection-added": "If one y grows, must the answer of sigma help or oppose?",
    "means-over-d-again": "Let D grow: which terms should survive?",
    "dx-over-d": "Take D = 1000: is a gradient a thousand times smaller plausible?",
    "sums-for-means": "Compare D = 4 with D = 400: does the error grow?",
    "rows-for-features": "Test with dimensions that are all different.",
    "batch-axis": "Change row 2: may the gradient of row 1 change?",
    "first-axis": "Which axes does the forward pass reduce?",
    "whole-tile": "Run one row, then the same row twice: does its gradient change?",
    "no-axis": "For three rows, how many means does the forward pass take?",
    "two-d-assumed": "Which axes does the forward pass reduce?",
    "diagonal-jacobian": "The Jacobian is a full matrix: where did what lies beside its diagonal go?",
    "norm-of-gradient": "Double dy: what must dx do?",
    "eps-dropped": "Make sigma as small as sqrt(eps).",
    "eps-outside-root": "Make sigma as small as sqrt(eps).",
    "exact-projection": "At eps > 0, how long is xhat?",
    "ddof-mismatch": "Try the smallest D that makes sense.",
    "sample-variance": "Is the variance here an estimate or a definition?",
    "dgamma-averaged": "Who divides by the number of rows, the loss or the layer? Once?",
    "dgamma-over-features": "How many gammas does the layer own?",
    "parameters-over-first-axis": "Compare the shape of each gradient with that of its parameter.",
    "parameters-keep-an-axis": "Compare the shape of each gradient with that of its parameter.",
    "dgamma-from-y": "Which intermediate does gamma multiply?",
    "dgamma-from-centred": "Which intermediate does gamma multiply?",
    "dbeta-from-g": "Move beta by a little: by how much does y move?",
    "parameters-swapped": "After one step, which parameter moved, and why?",
    "dgamma-without-xhat": "Which intermediate does gamma multiply?",
    "dbeta-with-xhat": "Move beta by a little: by how much does y move?",
    "dbeta-averaged": "Who divides by the number of rows, the loss or the layer? Once?",
    "dbeta-over-features": "How many betas does the layer own?",
    "dx-negated": "Follow your dx uphill for one small step: does the loss grow?",
}

_PLACES = {"dx": "the whole of dx", "means": "each of the two means", "mean": "the term with the mean of g",
           "projection": "the projection"}
# Names that the catalogue has for a place and a factor.
_CATALOGUE = {("means", "d"): "sums-for-means", ("means", "over-d"): "means-over-d-again",
              ("means", "d-over-rows"): "rows-for-features", ("dx", "over-d"): "dx-over-d",
              ("projection", "two"): "projection-times-two", ("projection", "half"): "projection-halved",
              ("projection", "sign"): "projection-added", ("projection", "ddof"): "ddof-mismatch",
              ("dx", "sign"): "dx-negated"}
_FACTORS = {"sign": "has the wrong sign", "two": "counts twice", "half": "counts half", "d": "is multiplied by D",
            "over-d": "is divided by D once too often", "d-over-rows": "is divided by the number of rows, not by D",
            "ddof": "is divided by D - 1, not by D", "over-rows": "is divided by the number of rows",
            "other": "is multiplied by some number that belongs nowhere"}


def _slip(place, factor):
    return _CATALOGUE.get((place, factor), f"{place}-{factor}")


_EXTRA = {
    "product-of-means": "the mean of a product is taken for the product of the means",
    "dgamma-without-xhat": "dgamma is summed from dy alone, without xhat",
    "dbeta-with-xhat": "dbeta has xhat in it",
    "dbeta-averaged": "dbeta is averaged over the rows, not summed",
    "dbeta-over-features": "dbeta is summed over the features: one number per row",
    "no-axis": "the means run over the whole array: their axis is missing",
    "first-axis": "the means run over the first axis",
    "rstd-inverted": "s is on the wrong side of the fraction: dx grows with it",
    "projection-without-xhat": "the projection is one number for a row: its outer xhat is missing",
    "first-term-missing": "the first term, the direct path, is left out",
    "mean-subtracted": "a mean is subtracted, as in layer norm",
    "gamma-missing-first": "gamma is forgotten in the first term only",
    "gamma-missing-mean": "gamma is forgotten in the term with the mean only",
    "gamma-missing-projection": "gamma is forgotten in the projection only",
    "gamma-outside-mean": "gamma is pulled out of the first mean only",
    "gamma-outside-projection": "gamma is pulled out of the projection's mean only",
    **{f"{axis}-{k}": f"the {k} mean {what}" for k in ("first", "second") for axis, what in (
        ("batch-axis", "runs over the rows, as in batch norm"),
        ("first-axis", "runs over the first axis"),
        ("whole-tile", "runs over all rows of a tile at once"),
        ("no-axis", "runs over the whole array: its axis is missing"),
        ("two-d-assumed", "reads x of shape (B, T, D) as B rows of T * D features"))},
    **{_slip(place, factor): f"{where} {what}" for (place, where), (factor, what)
       in itertools.product(_PLACES.items(), _FACTORS.items()) if (place, factor) not in _CATALOGUE},
    **{f"{output}-{factor}": f"{output} {_FACTORS[factor]}" for output, factor
       in itertools.product(("dgamma", "dbeta"), ("sign", "two", "half"))},
    "dx-negated": "the whole of dx has the wrong sign",
}


# ---- Layer norm -------------------------------------------------------------------------------------

def _mean(a):
    return a.mean(axis=-1, keepdims=True)


def _rows(a):
    return tuple(range(a.ndim - 1))


# Of the factor r in front of dx.
_POWERS = {"missing-rstd": 0, "rstd-inverted": -1, "variance-for-std": 2}
# What a mean may run over. Each keeps what broadcasts against its argument.
_AXES = {"batch-axis": lambda a: a.mean(axis=_rows(a), keepdims=True),
         "first-axis": lambda a: a.mean(axis=0, keepdims=True),
         "whole-tile": lambda a: a.sum() / a.shape[-1],
         "no-axis": lambda a: a.mean(),
         "two-d-assumed": lambda a: a.mean(axis=tuple(range(1, a.ndim)), keepdims=True)}


def _choices(dy, cache):
    """Ways to get one part of the base wrong: groups of (names of mistakes, what to replace)."""
    xhat, r, gamma, D = cache.xhat, cache.rstd, cache.gamma, dy.shape[-1]
    c = xhat / r
    var = _mean(c * c)
    eps, sigma, ratio = 1 / r**2 - var, np.sqrt(var), D / (D - 1)
    r_again, r_sample = 1 / np.sqrt(_mean(xhat * xhat) + eps), 1 / np.sqrt(ratio * var + eps)

    def statistics(name, r, outer, inner=None):
        return (name,), {"r": r, "outer": outer, "inner": outer if inner is None else inner}

    yield (statistics("eps-dropped", 1 / sigma, c / sigma),
           statistics("eps-outside-root", 1 / (sigma + eps), c / sigma, c / (sigma + eps)),
           statistics("statistics-of-xhat", r_again, xhat * r_again),
           statistics("sample-variance", r_sample, ratio * c * r_sample, c * r_sample),
           statistics("centred-for-xhat", r, c), statistics("centred-once", r, c, xhat),
           statistics("extra-rstd-in-projection", r, r * xhat, xhat),
           statistics("y-for-xhat", r, gamma * xhat),
           statistics("projection-without-xhat", r, np.ones_like(xhat), xhat),
           statistics("exact-projection", r, xhat / _mean(xhat * xhat), xhat))
    yield [((name,), {"r": r**power}) for name, power in _POWERS.items()]
    yield (("gamma-twice",), {"dy": gamma * dy}), (("gamma-missing",), {"gamma": np.ones_like(gamma)})
    axes = [((name,), {"mean1": over, "mean2": over}) for name, over in _AXES.items()]
    for name, over in _AXES.items():
        axes += [((f"{name}-first",), {"mean1": over}), ((f"{name}-second",), {"mean2": over})]
    yield axes


def _layer_norm_bases(dy, cache):
    base = Base(dy, cache.gamma, cache.rstd, cache.xhat, cache.xhat, _mean, _mean)
    yield (), base
    groups = [list(group) for group in _choices(dy, cache)]
    for names, parts in itertools.chain(*groups):
        yield names, base._replace(**parts)
    for one, other in itertools.combinations(groups, 2):
        for (names, parts), (more_names, more) in itertools.product(one, other):
            # A factor r that is gone, inverted or squared is so whatever the statistics are.
            r = {"r": parts["r"] ** _POWERS[more_names[0]]} if "r" in parts and "r" in more else {}
            yield names + more_names, base._replace(**{**parts, **more, **r})


def _probe(seed, shape, mean, sigma):
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((2, *shape))
    gamma = rng.uniform(0.5, 2, shape[-1]) * np.where(np.arange(shape[-1]) % 2, -1, 1)
    return dy, layer_norm_forward(mean + sigma * x, gamma, gamma)[1]


def _exact_projection(dy, cache):
    g, xhat, r = dy * cache.gamma, cache.xhat, cache.rstd
    along = _mean(g * xhat) / _mean(xhat * xhat)
    return r * (g - _mean(g) - xhat * along), *_right(dy, cache)[1:]


_BY_NAME = {mutant.name: mutant.backward for mutant in MUTANTS + HARMLESS}
_right = _BY_NAME["scaled-by-d"]


def _catalogue():
    yield from (Known(m.name, m.wrong, m.backward, _HINTS.get(m.name, "")) for m in MUTANTS)
    yield Known("product-of-means", _EXTRA["product-of-means"], _BY_NAME["missing-projection"],
                _HINTS["product-of-means"])
    yield Known("exact-projection", "all of g along xhat is removed; eps lets a little of it through",
                _exact_projection, _HINTS["exact-projection"])
    yield from (Known(name, wrong, None, _HINTS.get(name, "")) for name, wrong in _EXTRA.items()
                if name != "product-of-means")


#: Candidates (dy, cache) -> (dx, dgamma, dbeta), as :func:`lnlib.layernorm.layer_norm_backward`. The second probe has
#: other dimensions and a sigma comparable with sqrt(eps).
LAYER_NORM = Family(("dx", "dgamma", "dbeta"), (_probe(1, (3, 4, 7), 30.0, 10.0), _probe(2, (2, 3, 11), 1.0, 3e-3)),
                    _right, tuple(_catalogue()), _layer_norm_bases)


# ---- Reading ----------------------------------------------------------------------------------------

def _terms(base):
    """The nine terms, or three where there is no gamma, as columns."""
    dy, gamma, r, outer, inner, mean1, mean2 = base
    g = dy if gamma is None else gamma * dy
    terms = [g, mean1(g), outer * mean2(g * inner)]
    if gamma is not None:
        mean, projection = mean1(dy), outer * mean2(dy * inner)
        terms += [dy, mean, projection, gamma * mean, gamma * projection, gamma * outer * mean2(g * inner)]
    return np.stack([np.broadcast_to(r * term, dy.shape).ravel() for term in terms], axis=-1)


def _fit(dx, base, tolerance):
    """Coefficients of the nine terms, and which of them are terms of their own; None if they do not give dx."""
    columns = _terms(base)
    sizes = np.linalg.norm(columns, axis=0)
    columns = columns / sizes
    # gamma may be pulled out of a mean over the rows, and a mean over a tile is one number: such terms are parallel
    # to an earlier one, which then stands for both.
    kept = [k for k, c in enumerate(columns.T) if not (np.abs(columns.T[:k] @ c) > 1 - 1e-9).any()]
    fitted, size = np.zeros(9), np.linalg.norm(dx)
    fitted[kept] = np.linalg.lstsq(columns[:, kept], dx.ravel(), rcond=None)[0]
    fitted[np.abs(fitted) < 10 * tolerance * size] = 0  # too small to be told from rounding
    if np.linalg.norm(columns @ fitted[:len(sizes)] - dx.ravel()) > 10 * tolerance * size:
        return None
    fitted[:len(sizes)] /= sizes
    return fitted, kept


def _factors(value, rows, D, tolerance, overall=False):
    """``value`` as a product of at most two factors that mistakes are made of, and a sign; shortest first."""
    atoms = {"two": 2, "half": 1 / 2, "d": D, "over-d": 1 / D}
    atoms |= {"over-rows": 1 / rows} if overall else {"d-over-rows": D / rows, "ddof": D / (D - 1)}
    sign = ("sign",) if value < 0 else ()
    for count in (0, 1, 2):
        for names in itertools.combinations(atoms, count):
            if abs(abs(value) / np.prod([atoms[name] for name in names]) - 1) < 100 * tolerance:
                return sign + names
    return (*sign, "other")


def _read(coefficients, kept, rows, D, mean, tolerance):
    """The mistakes that the coefficients tell, as names, or None if two forms of one term are mixed."""
    forms, values = [], []
    for slot in ((0, 3), (1, 4, 6), (2, 5, 7, 8)):
        present = [(form, coefficients[k]) for form, k in zip(("g", "dy", "outside", "twice"), slot)
                   if coefficients[k]]
        if len(present) > 1:
            return None
        # Where another form is the same term, the place of gamma is free.
        form = present[0][0] if present else None
        forms.append("any" if form == "g" and slot[0] and not set(slot) <= set(kept) else form)
        values.append(present[0][1] if present else 0)
    first, of_mean, of_projection = forms
    names = [] if first else ["first-term-missing"]
    whole = values[0] if first else 1
    names += [_slip("dx", factor) for factor in _factors(whole, rows, D, tolerance, overall=True)]
    names += _gamma(first, [of_mean, of_projection])
    if not of_mean and not of_projection and mean:
        return names + ["frozen-statistics"]
    slots = {"mean": values[1], "projection": values[2]}
    read = {place: _factors(-value / whole, rows, D, tolerance) for place, value in slots.items() if value}
    if not mean:
        names += ["mean-subtracted"] if read.pop("mean", None) is not None else []
    names += [f"missing-{place}" for place in slots if place not in read and (mean or place == "projection")]
    shared = [f for f in read.get("mean", ()) if f in read.get("projection", ()) and f != "other"]
    names += [_slip("means", factor) for factor in shared]
    return names + [_slip(place, f) for place, factors in read.items() for f in factors if f not in shared]


def _gamma(first, means):
    """The mistakes that are told by where gamma stands."""
    told = {form for form in means if form not in (None, "any")}
    if first == "dy" and told <= {"dy"}:
        return ["gamma-missing"]
    if first == "g" and told == {"outside"}:
        return ["gamma-outside"]
    names = ["gamma-missing-first"] if first == "dy" else []
    for place, form in zip(("mean", "projection"), means):
        names += {"dy": [f"gamma-missing-{place}"], "outside": [f"gamma-outside-{place}"],
                  "twice": ["gamma-twice-in-projection"]}.get(form, [])
    return names


@functools.cache
def _bases(family):
    """The bases of all probes, side by side; a family's probes never change."""
    return [(names, [base, *(other[1] for other in others)])
            for (names, base), *others in zip(*(list(family.bases(*probe)) for probe in family.probes))]


def _combinations(dx, family, tolerance):
    """The shortest lists of mistakes that give ``dx`` on every probe."""
    found, fewest = [], np.inf
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
            if len(reading) < fewest:
                found, fewest = [], len(reading)
            if len(reading) == fewest and reading not in found:
                found.append(reading)
    # A wrong axis of one mean where there is no other is a wrong axis of both.
    return [r for r in found if not any(s != r and s == {name.removesuffix("-first").removesuffix("-second")
                                                         for name in r} for s in found)]


def _parameter_combinations(output, family):
    """Mistakes in a parameter's gradient, alone and combined: (names, its value on every probe)."""
    columns = []
    for dy, cache in family.probes:
        if output == "dgamma":
            what = {(): dy * cache.xhat, ("dgamma-from-y",): dy * cache.xhat * cache.gamma,
                    ("dgamma-from-centred",): dy * cache.xhat / cache.rstd, ("dgamma-without-xhat",): dy}
        else:
            what = {(): dy, ("dbeta-from-g",): dy * cache.gamma, ("dbeta-with-xhat",): dy * cache.xhat}
        reduce = [((), lambda a: a.sum(axis=_rows(a))), ((f"{output}-averaged",), lambda a: a.mean(axis=_rows(a))),
                  ((f"{output}-over-features",), lambda a: a.sum(axis=-1, keepdims=True)),
                  ((f"{output}-over-features",), lambda a: a.sum(axis=-1)),
                  (("parameters-over-first-axis",), lambda a: a.sum(axis=0)),
                  ((f"{output}-averaged", "parameters-over-first-axis"), lambda a: a.mean(axis=0))]
        shape = {(): lambda a: a, ("parameters-keep-an-axis",): lambda a: a[None]}
        factor = {(): 1, (f"{output}-sign",): -1, (f"{output}-two",): 2, (f"{output}-half",): 1 / 2}
        columns.append([(a + b + c + d, times * to(over(of))) for (a, of), (b, over), (c, to), (d, times)
                        in itertools.product(what.items(), reduce, shape.items(), factor.items())])
    return [(column[0][0], [value for _, value in column]) for column in zip(*columns)]


# ---- Comparing --------------------------------------------------------------------------------------

def _tolerance(arrays):
    return _TOLERANCE[8 if all(a.dtype.itemsize >= 8 for a in arrays) else 4]


def _same(found, expected, tolerance):
    return all(a.shape == b.shape and np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b)
               for a, b in zip(found, expected))


@functools.cache
def _values(family):
    """Right outputs, and those of every entry that has a backward: for each output, one array a probe."""
    def run(backward):
        return [list(arrays) for arrays in zip(*(map(np.asarray, backward(*probe)) for probe in family.probes))]
    return run(family.right), {known: run(known.backward) for known in family.known if known.backward}


def _run(backward, family):
    """The candidate's outputs, for each one array a probe; None for an output that is not there."""
    found = []
    for probe in family.probes:
        dy, cache = probe
        # Copies: a candidate may write to its arguments.
        fields = {name: value.copy() for name, value in cache._asdict().items() if isinstance(value, np.ndarray)}
        found.append([None if a is None else np.asarray(a) for a in backward(dy.copy(), cache._replace(**fields))])
    return [None if any(a is None for a in arrays) else list(arrays) for arrays in zip(*found)]


def _say(known):
    """The mistake as a sentence, and the question that repairs it."""
    return f"{known.wrong}. {known.hint}".rstrip()


def _one_of(what, entries):
    if len(entries) == 1:
        return Diagnosis("known", (entries[0].name,), f"Your {what} is that of a known mistake: {_say(entries[0])}")
    return Diagnosis("one of", tuple(k.name for k in entries),
                     f"Your {what} is that of one of these mistakes, which give the same numbers: "
                     + " Or: ".join(map(_say, entries)))


def _of_names(what, readings, table):
    """A diagnosis from lists of names that all give the candidate's numbers."""
    lists = [sorted(reading) for reading in readings]
    texts = [" ".join(f"({n}) {_say(table[name])}" for n, name in enumerate(names, 1)) if len(names) > 1
             else _say(table[names[0]]) for names in lists]
    names = tuple(dict.fromkeys(itertools.chain(*lists)))
    if len(lists) > 1:
        return Diagnosis("one of", names, f"Your {what} is one of these: " + " Or: ".join(texts))
    if len(names) == 1:
        return Diagnosis("known", names, f"Read off the terms of your {what}: {texts[0]}")
    return Diagnosis("combination", names, f"Your {what} makes {len(names)} mistakes at once: {texts[0]}")


def _common_factor(found, right, tolerance):
    """The number that all of ``found`` is too large by, or None."""
    factor = np.vdot(right[0], found[0]) / np.vdot(right[0], right[0])
    return factor if _same(found, [factor * a for a in right], tolerance) else None


def _nearest(output, found, family):
    """The entry whose error is nearly parallel to the candidate's on the first probe, or that there is none."""
    right, wrong = _values(family)
    k = family.outputs.index(output)
    near = []
    for known, values in wrong.items():
        if values[k][0].shape == right[k][0].shape == found[0].shape:
            mine, other = found[0] - right[k][0], values[k][0] - right[k][0]
            size = np.linalg.norm(mine) * np.linalg.norm(other)
            # An entry that is right here but for rounding has no direction.
            if np.linalg.norm(other) > 1e-9 * np.linalg.norm(right[k][0]) and np.vdot(mine, other) > 0.97 * size:
                near.append((np.linalg.norm(mine - other), np.vdot(mine, other) / size, known))
    if not near:
        return Diagnosis("nearest", (), f"Your {output} is wrong in a way that no known mistake comes near.")
    # Of errors with one direction, such as a term left out and a term counted half, the size decides.
    _, cosine, known = min(near, key=lambda one: one[0])
    return Diagnosis("nearest", (known.name,), f"Your {output} is none of the known mistakes. The nearest, by the "
                     f"direction of the error (cosine {cosine:.2f}): {_say(known)}")


def _diagnose_output(output, found, family, tolerance):
    right, wrong = _values(family)
    k = family.outputs.index(output)
    if _same(found, right[k], tolerance) or not any(a.any() for a in found):
        return None
    table = {known.name: known for known in family.known}
    readings = []
    if output != "dx":  # one parameter alone: the catalogue's entries may have mistakes in others, too
        readings = [frozenset(names) for names, values in _parameter_combinations(output, family)
                    if names and _same(found, values, tolerance)]
        readings = [names for names in readings if len(names) == min(map(len, readings))]
    entries = [known for known, values in wrong.items() if _same(found, values[k], tolerance)]
    if entries and not readings:
        return _one_of(output, entries)
    shaped = all(a.shape == b.shape for a, b in zip(found, right[k]))
    if output == "dx" and shaped:
        readings = [names for names in _combinations(found, family, tolerance) if names]
    if readings:
        return _of_names(output, readings, table)
    if _same(found, right[k], _TOLERANCE[4]):
        return Diagnosis("precision", (), f"Your {output} has the digits of float32 and no more: the formula may be "
                                          "right, but something in it is computed or kept in float32.")
    if shaped and (factor := _common_factor(found, right[k], tolerance)):
        return Diagnosis("relation", (), f"Your {output} points the right way, and is {factor:.5g} times too long.")
    return _nearest(output, found, family) if shaped and wrong else None


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
        None where no number is wrong, which proves nothing, or where there is nothing to compare: NaN, zeros, or a
        shape that belongs to no known mistake.

    Raises
    ------
    Exception
        Whatever ``backward`` raises.
    """
    found = _run(backward, family)
    given = [(output, arrays) for output, arrays in zip(family.outputs, found) if arrays is not None]
    for _, arrays in given:
        if any(a.dtype.kind not in "iuf" or not np.isfinite(a).all() for a in arrays):
            return None
    right, wrong = _values(family)
    tolerance = _tolerance([a for _, arrays in given for a in arrays])
    index = {output: family.outputs.index(output) for output, _ in given}
    is_wrong = {output: not _same(arrays, right[index[output]], tolerance) for output, arrays in given}
    if not any(is_wrong.values()):
        return None
    together = [known for known, values in wrong.items()
                if all(_same(arrays, values[index[output]], tolerance) for output, arrays in given)]
    if together:
        return _one_of(" and ".join(output for output in is_wrong if is_wrong[output]), together)
    parts = [_diagnose_output(output, arrays, family, tolerance) for output, arrays in given]
    parts = [part for part in parts if part]
    if not parts:
        return None
    kind = parts[0].kind if len(parts) == 1 else "combination"
    return Diagnosis(kind, tuple(dict.fromkeys(itertools.chain(*(p.names for p in parts)))),
                     " ".join(part.sentence for part in parts))
