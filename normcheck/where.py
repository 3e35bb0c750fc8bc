"""Which of the cases that were tried for a property failed, and the simplest rule that is true of
all of them.
"""

import math
import time

import numpy as np

from .layouts import in_words

#: How many values are written out, and how many more cases, and seconds, may be spent on telling
#: two rules apart.
MOST, PROBES, SECONDS = 8, 30, 3.0


def rows(case):
    return math.prod(case.x.shape[:-1])


def _digit(value):
    return float(f"{value:.1g}")


def _distance(case):
    x = case.without_nan().x
    spread = x.std(axis=-1).mean() if x.size else 0.0
    return _digit(abs(x.mean(axis=-1).mean()) / spread) if spread else 0.0


#: Name of a feature -> what it is of a case. The first by which those that failed differ from those
#: that held is told.
FEATURES = {
    "dtype": lambda case: case.dtype,
    "layout": lambda case: in_words(case.layouts),
    "D": lambda case: case.x.shape[-1],
    "number of axes": lambda case: case.x.ndim,
    "number of rows": rows,
    "shape": lambda case: case.x.shape,
    "eps": lambda case: case.eps,
    "NaN or Inf": lambda case: ", ".join(
        f"{kind} in {name}"
        for name in ("x", "dy")
        for kind, found in (("NaN", np.isnan), ("Inf", np.isinf))
        if found(getattr(case, name)).any()
    ),
    "mean / sigma, about": _distance,
    "size of x, about": lambda case: (
        _digit(np.abs(case.without_nan().x).mean()) if case.x.size else 0.0
    ),
}

#: The feature that a property is about, which is looked at first.
ABOUT = {"any width": "D", "many rows": "number of rows", "any shape": "shape"}


def where(property, tried, failures, probe=None):
    """In which of the ``tried`` cases, pairs (case, whether it failed), a property failed, in
    words; nothing if in all.

    ``failures`` are the cases whose numbers are wrong, of all properties: a rule of this one has to
    hold for them, too. ``probe(n)`` is whether a case of another width, or other number of rows,
    fails; None if the target does not take it.
    """
    failed, held = ([case for case, wrong in tried if wrong is which] for which in (True, False))
    if not held:
        return ""
    found = property in ABOUT and _by_rule(ABOUT[property], tried, failures, probe)
    if found:
        return found
    for name, of in sorted(FEATURES.items(), key=lambda feature: feature[0] != ABOUT.get(property)):
        wrong, right = (dict.fromkeys(map(of, cases)) for cases in (failed, held))
        if not wrong.keys() & right.keys():
            return (
                f"all but {name} {_listed(right)}"
                if len(right) < len(wrong)
                else f"{name} {_listed(wrong)}"
            )
    return ""


def _by_rule(name, tried, failures, probe):
    of, known = FEATURES[name], {}
    if name == "shape":
        return ""
    for case, wrong in tried:
        if (
            name == "number of rows" and case.x.shape[-1] > 3
        ):  # there are few, and they would be told by their width
            if wrong:
                return ""
        elif known.setdefault(of(case), wrong) != wrong:
            return ""
    if True not in known.values():
        return ""
    listed = _listed(value for value, wrong in known.items() if wrong)
    found = rule(known, [of(case) for case in failures], probe)
    return f"{name} {listed}: of those tried, whatever is {found}" if found else ""


def _listed(values, mark=", "):
    words = [str(value) or "as they are" for value in values]
    more = [f"and {len(words) - MOST} more"] if len(words) > MOST + 1 else []
    return mark.join(words[:MOST] + more if more else words)


def rule(known, failures, probe):
    """The simplest rule, in words, by which the values that failed are told from those that held;
    or nothing.

    ``known`` has value -> whether it failed. A rule says of all of these what is so, and of
    ``failures`` that they fail. Where several do, more values are tried until one is left, and then
    where its limit is.
    """
    if len(known) < (2 if probe else 3):
        return ""
    end, left = time.monotonic() + SECONDS, PROBES
    rules = _true(known, failures)
    while probe and rules and left and time.monotonic() < end:
        value = _gap(known, 0) or _telling(rules, known) or _gap(known, -1)
        if value is None:
            break
        left, known[value] = left - 1, probe(value)
        rules = _true(known, failures)
    return (
        rules[0][0] if rules and rules[0][0] != "above 0" else ""
    )  # that everything failed is said already


def _true(known, failures):
    """The rules that are true of what is known; None is known of a value that was not tried."""
    known = {value: wrong for value, wrong in known.items() if wrong is not None}
    return [
        (words, says)
        for words, says in _rules(known)
        if all(says(value) == wrong for value, wrong in known.items()) and all(map(says, failures))
    ]


def _rules(known):
    """Rules in words and as functions, the simplest first. Two features and one tell little: a rule
    may leave them out.
    """
    wrong, held = (
        sorted(value for value, failed in known.items() if failed is which)
        for which in (True, False)
    )
    low, high = max((v for v in held if v < wrong[0]), default=0), wrong[-1]
    power = 1 << (wrong[0] - 1).bit_length() - 1 if wrong[0] > 2 else 1
    for beyond in dict.fromkeys((0, 2, low, power)):
        start = f"above {beyond} and " if beyond else ""
        if beyond == low:
            yield f"above {low}", lambda v, b=beyond: v > b
        yield f"{start}at most {high}", lambda v, b=beyond: b < v <= high
        for m in (2**k for k in range(1, 13)):
            yield f"{start}no multiple of {m}", lambda v, m=m, b=beyond: v > b and v % m != 0
        for m in (2**k for k in range(1, 13)):
            yield f"{start}a multiple of {m}", lambda v, m=m, b=beyond: v > b and v % m == 0
        yield f"{start}a power of two", lambda v, b=beyond: v > b and v & v - 1 == 0
        yield f"{start}no power of two", lambda v, b=beyond: v > b and v & v - 1 != 0


def _telling(rules, known):
    """A value of which about half of the rules say that it fails."""
    top = min(2 * max(known), 9000)
    pool = {k * 2**n + d for k in (1, 3, 5) for n in range(14) for d in (-1, 0, 1)} | {
        v + 2**n for v in known for n in range(1, 12)
    }
    votes = {v: sum(says(v) for _, says in rules) for v in pool if 1 <= v <= top and v not in known}
    votes = {v: n for v, n in votes.items() if 0 < n < len(rules)}
    return min(votes, key=lambda v: (abs(votes[v] - len(rules) / 2), v), default=None)


def _gap(known, end):
    """A value halfway between the first or the last that failed and its neighbour that held."""
    tried = sorted(value for value, wrong in known.items() if wrong is not None)
    at = tried.index([value for value in tried if known[value]][end]) + min(2 * -end - 1, 0)
    if not 0 <= at < len(tried) - 1 or tried[at + 1] - tried[at] < 2:
        return None
    middle = (tried[at] + tried[at + 1]) // 2
    return None if middle in known else middle
