"""Which of a property's cases failed, and the simplest rule that is true of all of them."""

import time

import numpy as np

from .layouts import in_words

#: How many values are written out, and how many more cases, and seconds, may be spent on telling
#: two rules apart.
MOST, PROBES, SECONDS = 8, 30, 3.0


def _about(value):
    return float(f"{value:.1g}")


def _distance(case):
    x = case.without_nan().x
    spread = x.std(axis=-1).mean() if x.size else 0.0
    return _about(abs(x.mean()) / spread) if spread else 0.0


def _odd(case):
    arrays, kinds = {"x": case.x, "dy": case.dy}, {"NaN": np.isnan, "Inf": np.isinf}
    found = ((kind, name) for name in arrays for kind in kinds if kinds[kind](arrays[name]).any())
    return ", ".join(f"{kind} in {name}" for kind, name in found)


#: Name of a feature -> what it is of a case. The first by which those that failed differ from those
#: that held is told.
FEATURES = {
    "layout:": lambda case: in_words(case.layouts),
    "D =": lambda case: case.width,
    "number of axes =": lambda case: case.x.ndim,
    "number of rows =": lambda case: case.rows,
    "shape": lambda case: case.x.shape,
    "eps =": lambda case: case.eps,
    "NaN or Inf:": _odd,
    "mean / sigma about": _distance,
    "size of x about": lambda case: _about(np.abs(case.without_nan().x).sum() / (case.x.size or 1)),
}

#: The feature that a property is about, which is looked at first.
ABOUT = {"any width": "D =", "many rows": "number of rows =", "any shape": "shape"}


def where(property, tried, failures, probe=None):
    """In which of the ``tried`` cases, pairs (case, whether it failed), a property failed, in
    words; nothing if in all. A rule has to hold for the ``failures`` of all properties, too.
    ``probe(n)`` is whether another width, or number of rows, fails; None if it cannot be tried.
    """
    if all(wrong for _, wrong in tried):
        return ""
    dtypes = list(dict.fromkeys(case.dtype for case, wrong in tried if wrong))
    of_these = [(case, wrong) for case, wrong in tried if case.dtype in dtypes]
    if len(of_these) < len(tried):
        failures = [case for case in failures if case.dtype in dtypes]
        more = where(property, of_these, failures, probe)
        return f"dtype {_listed(dtypes)}" + (f"; {more}" if more else "")
    about = ABOUT.get(property)
    if about in ("D =", "number of rows =") and (found := _by_rule(about, tried, failures, probe)):
        return found
    for name in sorted(FEATURES, key=lambda name: name != about):
        of = [(FEATURES[name](case), bad) for case, bad in tried]
        right, wrong = (dict.fromkeys(v for v, bad in of if bad == one) for one in (0, 1))
        if not wrong.keys() & right.keys():
            fewer = len(right) < len(wrong)
            return f"all but {name} {_listed(right)}" if fewer else f"{name} {_listed(wrong)}"
    return ""


def _by_rule(name, tried, failures, probe):
    of, known = FEATURES[name], {}
    for case, wrong in tried:
        if name == "D =" or case.rows > case.width:
            if known.setdefault(of(case), wrong) != wrong:
                return None
        elif wrong:  # there are few, and they would be told by their width
            return None
    listed = _listed(value for value, wrong in known.items() if wrong)
    found = listed and rule(known, [of(case) for case in failures], probe)
    return f"{name} {listed}, that is every one tried that is {found}" if found else ""


def _listed(values):
    texts = (f"{v:g}" if isinstance(v, float) else str(v) for v in values)
    words = [text or "as they are" for text in texts]
    more = [f"and {len(words) - MOST} more"] if len(words) > MOST + 1 else []
    return ", ".join(words[:MOST] + more if more else words)


def rule(known, failures, probe):
    """The simplest rule, in words, that is true of what is ``known`` (value -> whether it failed)
    and of all ``failures``, or nothing. If there are several, more values are tried.
    """
    if len(known) < (2 if probe else 3):
        return ""
    end, most = time.monotonic() + SECONDS, len(known) + PROBES * bool(probe)
    while rules := _true(known, failures):
        value = _untried(rules, known) if len(known) < most and time.monotonic() <= end else None
        if value is None:
            break
        known[value] = probe(value)
    # That everything failed is said already.
    return rules[0][0] if rules and rules[0][0] != "above 0" else ""


def _true(known, failures):
    """The rules that are true of what is known; None is known of a value that was not tried."""
    known = {value: wrong for value, wrong in known.items() if wrong is not None}
    values, wrong = np.array([*known]), np.array([*known.values()])
    return [
        (words, says)
        for words, says in _rules(values[wrong], values[~wrong])
        if (says(values) == wrong).all() and says(np.array(failures)).all()
    ]


def _rules(wrong, held):
    """Rules in words and as functions of an array, the simplest first. Two features and one tell
    little: a rule may leave them out.
    """
    first, high = wrong.min(), wrong.max()
    low = held[held < first].max(initial=0)
    power = 1 << int(first - 1).bit_length() >> 1
    powers = 2 ** np.arange(1, 13)
    kinds = {
        f"at most {high}": lambda v: v <= high,
        **{f"no multiple of {m}": lambda v, m=m: v % m != 0 for m in powers},
        **{f"a multiple of {m}": lambda v, m=m: v % m == 0 for m in powers},
        "a power of two": lambda v: v & v - 1 == 0,
        "no power of two": lambda v: v & v - 1 != 0,
    }
    for beyond in dict.fromkeys((0, 2, low, power)):
        if beyond == low:
            yield f"above {low}", lambda v, beyond=beyond: v > beyond
        start = f"above {beyond} and " if beyond else ""
        for words, of in kinds.items():
            yield f"{start}{words}", lambda v, beyond=beyond, of=of: (v > beyond) & of(v)


def _untried(rules, known):
    """What to try next, or None: where the first that failed begins, then what tells the rules
    apart, then where the last that failed ends.
    """
    tried = sorted(value for value, wrong in known.items() if wrong is not None)
    failed = [at for at, value in enumerate(tried) if known[value]]

    def between(at):
        """Halfway from this value to the next, one of which failed."""
        middle = sum(tried[at : at + 2]) // 2 if 0 <= at < len(tried) - 1 else None
        return None if middle in known else middle

    values = np.setdiff1d(np.arange(1, max(known)), [*known])
    votes = np.sum([says(values) for _, says in rules], axis=0)
    values, votes = (a[(votes > 0) & (votes < len(rules))] for a in (values, votes))
    halved = int(values[np.argmin(np.abs(votes - len(rules) / 2))]) if values.size else None
    return between(failed[0] - 1) or halved or between(failed[-1])
