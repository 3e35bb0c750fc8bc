"""Of each property: which scripts ask for it in a case, and what is wrong with their outcomes."""

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .cases import drawer, noted, stored
from .judge import BY_ROW, Verdict, derivatives, judge, truth
from .mistakes.change import table
from .targets import Raised, Script, TargetError

#: How often a call is repeated where the same answer is wanted.
TIMES = 10

#: What differs between two cases in which the same is wrong: numbers, shapes, addresses.
_NUMBERS = re.compile(r"0x[0-9a-f]+|[(\[]?\d[\d\s.,()\[\]]*(e[+-]?\d+)?")


class Finding(NamedTuple):
    """One thing that is wrong: where, by how much (or None), in words; the script that tells it."""

    tensor: str
    verdict: Verdict | None
    sentence: str
    script: Script | None = None

    @property
    def kind(self):
        """What is wrong, whatever the case: wrong numbers, NaN and Inf, or else the sentence
        without its numbers, so that exceptions are alike if they have one type and say the same.
        """
        if self.verdict is None:
            return _NUMBERS.sub("#", self.sentence)
        return "wrong numbers" if self.verdict.finite else "no finite numbers"

    def like(self, other):
        """Whether both show the same failure."""
        return (self.tensor, self.kind) == (other.tensor, other.kind)


def of_two_axes(target, case):
    """Advice on a target that raises here and not where all rows are on one axis; or nothing."""
    flat = case.with_rows(lambda a: a.reshape(-1, case.width))
    try:
        target.call(flat)
    except (Raised, TargetError):
        return ""
    return (
        f". It runs on x of shape {flat.x.shape}; expected any number of axes: try a function"
        " around it that reshapes x and dy to (-1, D), and y and dx back"
    )


def shape_of(name, case):
    return case.x.shape if name in BY_ROW else case.gamma.shape


def is_float(array):
    return array is not None and (array.dtype.kind == "f" or array.dtype.name == "bfloat16")


def misshapen(name, value, case):
    """What is wrong with an array before one looks at its numbers; empty if nothing is."""
    shape = shape_of(name, case)
    if value is None:
        return f"{name} is None"
    if value.shape != shape:
        return f"{name} has shape {value.shape}, expected {shape}"
    if not is_float(value):
        return f"{name} has dtype {value.dtype.name}, expected {case.dtype_of(name)}"
    return ""


def compare(tensors, case, settings, rows=slice(None), where=""):
    """What is wrong with the numbers of tensors, worst first, in sentences that begin so."""
    found = []
    for name, value in tensors.items():
        if sentence := misshapen(name, value, case):
            found.append(Finding(name, None, where + sentence))
            continue
        verdict = judge(name, value, case, settings, rows)
        if verdict.share > 1:
            words = numbers_in_words(name, verdict, settings.groups)
            found.append(Finding(name, verdict, where + words))
    return sorted(found, key=lambda one: -one.verdict.share if one.verdict else -np.inf)


def numbers_in_words(name, verdict, groups=None):
    """One wrong tensor in words: of what was judged, its worst row or number."""
    of_row = "sample {} and its group {}".format(*divmod(verdict.at, groups)) if groups else ""
    of_row = of_row or f"row {verdict.at}"
    place = of_row if name in BY_ROW else f"{'channel' if groups else 'feature'} {verdict.at}"
    if not verdict.finite:
        return f"{name} is not finite in {place}"
    if np.isinf(verdict.part):
        return f"{name} is not 0 in {place}, as it should be"
    # two digits, or as many as it takes to read as more than 1
    told = (f"{verdict.share:.{digits}g}" for digits in itertools.count(2))
    times = next(text for text in told if float(text) > 1)
    return (
        f"{name} is wrong in {place}: its relative error there is {verdict.part:.2g}, {times} times"
        " what a right formula may lose"
    )


# What is found wrong with the last outcome: functions of settings, the case, its outcomes so far,
# and words on how they were asked


def numbers(settings, case, seen, where):
    return compare(seen[-1].tensors, case, settings, where=where)


def same_every_time(settings, case, seen, where):
    """Right, or wrong in the same way every time. Bits may differ: atomics add in any order."""
    both = (seen[k].tensors.values() for k in (0, -1))
    first, again = ([None if a is None else a.tobytes() for a in some] for some in both)
    words = where.format(len(seen))
    return [
        finding
        for outcome in (seen[0], seen[-1])
        if first != again
        for finding in compare(outcome.tensors, case, settings, where=words)
    ]


def rows_apart(settings, case, seen, where):
    """A row of x with NaN or Inf has no finite y, one of dy no finite dx; all others are right."""
    found, finite = [], {name: finite_rows(getattr(case, name), case) for name in ("x", "dy")}
    right, clean = {"x": finite["x"], "dy": finite["x"] & finite["dy"]}, case.without_nan()
    for tensor, name in ("y", "x"), ("dx", "dy"):
        value = seen[-1].tensors[tensor]
        found += compare({tensor: value}, clean, settings, right[name])
        if not found and finite_rows(value, case)[~finite[name]].any():
            sentence = f"a row of {name} that holds NaN or Inf has a finite {tensor}"
            found.append(Finding(tensor, None, sentence))
    return found


def finite_rows(a, case):
    return np.isfinite(a.astype(np.float64)).reshape(case.shapes.rows).all(axis=-1)


def results_alike(settings, case, seen, where):
    found = {name: misshapen(name, a, case) for name, a in seen[-1].tensors.items()}
    for name, dtype in seen[-1].dtypes.items():
        if not found[name] and dtype != (right := case.dtype_of(name)):
            of = "x" if not settings.dtype_of(name, "") else "gamma"
            of = "as you said" if name == "y" and settings.y_dtype else f"the dtype of {of}"
            found[name] = f"{name} has dtype {dtype}, expected {right}, {of}"
    return [Finding(name, None, sentence) for name, sentence in found.items() if sentence]


def orders(case, settings):
    """y rounded once, y of an xhat that was rounded before, and where these differ; all flat."""
    xhat, gamma = truth(case, settings).xhat, case.spread(case.plain.gamma)
    both = (gamma * a for a in (xhat, stored(xhat, case.dtype)))
    once, twice = (stored(a, case.dtype_of("y")).ravel() for a in both)
    return once, twice, np.flatnonzero(once != twice)


def rounded_as_said(settings, case, seen, where):
    """Where the two orders give other numbers, y is nearly always that of the one that is meant."""
    *both, at = orders(case, settings)
    y = seen[-1].tensors["y"].ravel()
    once, twice = (np.count_nonzero(y[at] == one[at]) for one in both)
    if (twice if settings.round_twice else once) >= 0.9 * at.size:
        return []
    once, twice = once / at.size, twice / at.size
    words = f"in {once:.0%} of these places, and has xhat rounded before gamma in {twice:.0%}"
    return [Finding("y", None, f"where the two orders differ, y is rounded once {words}")]


def same_bits(settings, case, seen, where):
    found = [name for name in settings.tensors if name in BY_ROW and seen[1:]]
    arrays = [[np.atleast_1d(one.tensors[name]) for one in seen[-2:]] for name in found]
    words = "a row of {} has different bits among {} rows and among {}"
    return [
        Finding(name, None, words.format(name, len(a), len(b)))
        for name, (a, b) in zip(found, arrays)
        if a[: len(b)].tobytes() != b[: len(a)].tobytes()
    ]


def observed(target):
    """What is worth knowing, and no failure, of :data:`ORDER` and :data:`BATCH`."""
    said = target.settings
    for dtype in said.dtypes:
        wanted = said.round_twice is None, not said.batch_invariant
        for case in noted(dtype, drawer(said), *wanted):
            if said.takes(case.x.shape) and (found := check(target, case)):
                yield f"{case.property}, {dtype}: {found[0].sentence}"


#: Checks of PyTorch's own, each the name of a template, and what is said of them.
OF_PYTORCH = {
    "gradcheck": "torch.autograd.gradcheck {}. It needs arithmetic in float64, and never tries"
    " other dtypes, a dy with strides, many rows or rows far from zero.",
    "opcheck": "torch.library.opcheck {}. It compares no number with a right one.",
}


def of_pytorch(target):
    """What PyTorch's own checks say of a target, and what they cannot see."""
    said = replace(target.settings, gamma_dtype=None, dy_dtype=None, y_dtype=None)
    case = drawer(said)("gradcheck", (2, 3), "float64")
    for part, words in OF_PYTORCH.items() if said.gradcheck else ():
        if getattr(target, part):
            try:
                target.outcomes(target.script(case, part, results=()))
                yield words.format(f"passes on {case}")
            except Raised as error:
                yield words.format(f"{str(error).rstrip(',')}, on {case}")


def arguments_kept(settings, case, seen, where):
    return [Finding(name, None, f"the argument {name} is changed") for name in seen[-1].changed]


def right_derivatives(settings, case, seen, where):
    found, exact = [], derivatives(case, settings)
    for name, words in DERIVATIVES[case.property].items():
        right, slack = exact[name]
        wrong = np.linalg.norm(seen[-1].tensors[name] - right)
        if not wrong <= slack:
            share = wrong / np.linalg.norm(right)
            found.append(Finding(name, None, f"{words} is wrong by {share:.2g} of its size"))
    return found


class Property(NamedTuple):
    """What is asked for a property, and what is found in the outcomes: a row of ``properties.csv``.

    * ``parts``: of the script, as ``script`` of an adapter takes them. ``finds``: what is wrong.
    * ``results``, ``wanted``, ``more``: of the script, if not those of an ordinary call.
    * ``where`` something wrong was seen, in words.
    * ``conditional``: whether it says nothing where numbers are wrong in the plainest way of asking
      for them. ``of_numbers``: whether its cases are there for their numbers alone.
    """

    parts: str = "forward | backward"
    finds: Callable = numbers
    where: str = ""
    conditional: bool = False
    of_numbers: bool = True
    results: tuple[str, ...] | None = None
    wanted: tuple[str, ...] | None = None
    more: tuple[str, ...] | None = None


#: Kinds of derivatives, and what their results are.
SECOND, OF_JVP = "the second derivative", "the gradient of a JVP"
_WITH = "the gradient of <{}> with respect to {}"
DERIVATIVES = {
    SECOND: {f"of_{a}": _WITH.format("v, dx", a) for a in ("x", "gamma", "dy")},
    OF_JVP: {f"of_{a}": _WITH.format("dy, JVP", a) for a in ("x", "gamma")} | {"along": "the JVP"},
}


def _property(row):
    lists = {key: None if row[key] == "-" else (*row[key].split(),) for key in _LISTS}
    flags = {key: row[key] == "yes" for key in ("conditional", "of_numbers")}
    return Property(row["parts"], globals()[row["finds"]], row["where"], **flags, **lists)


_LISTS = "results", "wanted", "more"
#: The properties that are there for something else than the numbers of one call, and memory in any
#: order.
PROPERTIES = {row["name"]: _property(row) for row in table("properties.csv", __file__)}
ORDINARY = Property()


def asked(property):
    return PROPERTIES.get(property, ORDINARY)


def able(target):
    """The properties that not every target has, of those that this one can be asked for."""
    wanted = {SECOND: target.settings.double_backward, OF_JVP: target.settings.forward_mode}
    for property, of in PROPERTIES.items():
        own = re.search("overwrite|filled|only_y|alone|added|second|jvp", of.parts)
        if own and getattr(target, own[0]) and wanted.get(property, True):
            yield property


def scripts(target, case):
    """The scripts that ask for the property of a case."""
    of, settings, cases = asked(case.property), target.settings, {"": case}
    if of.parts == "alone":  # the others may be left out, this one may not change
        return [
            target.script(case, of.parts, a=a, results=(f"d{a}",), wanted=(a,))
            for a in settings.inputs
            if a in ("x", "r") or not settings.residual  # h hangs on these alone
        ]
    if of.finds is same_bits:
        few = (case.with_rows(lambda a, n=n: a[:n]) for n in (1, 8, 64) if n < len(case.x))
        return [target.script(case, of.parts, cases | {"2": some}) for some in few]
    # other numbers in arrays of one shape, or of one width
    three = 3, *case.x.shape[1 if settings.groups else -1 :]
    for s, shape, offset in ("2", case.x.shape, 0.5), ("3", three, -2.5):
        if s in of.parts:
            cases[s] = case.again(shape, offset=offset)
    judged = {"": cases["2"]} if "overwrite2" in of.parts else cases
    options = {key: value for key in _LISTS if (value := getattr(of, key)) is not None}
    script = target.script(case, of.parts, cases, judged=judged, **options)
    return [script] * (TIMES if of.finds is same_every_time else 1)


def judged(target, case):
    """The other cases whose numbers are judged in one that asks for its property."""
    try:
        found = [one for script in scripts(target, case) for one in script.judged.values()]
        return [one for one in found if one is not case]
    except (Raised, TargetError):  # which the call says again
        return ()


def check(target, case, seen=None):
    """What is wrong with a target in one case, worst first; outcomes are added to ``seen``."""
    of, script, found, seen = asked(case.property), None, [], [] if seen is None else seen
    try:
        with np.errstate(all="ignore"):
            for script in scripts(target, case):
                for one, outcome in zip(script.judged.values(), target.outcomes(script)):
                    seen.append(outcome)
                    new = [Finding(name, None, words) for name, words in outcome.memory]
                    new = new or of.finds(target.settings, one, seen, of.where)
                    found += [finding._replace(script=script) for finding in new]
    except (Raised, TargetError) as error:
        found = [Finding("", None, str(error), script)]
    return found
