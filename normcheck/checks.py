"""What is asked of a target. Of each property: which scripts are executed in a case, and what is
found wrong with their outcomes, worst first.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .cases import UNWRITTEN, WRITTEN_OVER, drawer
from .judge import BY_ROW, Verdict, derivatives, judge
from .targets import Raised, Script, TargetError

#: How often a call is repeated where the same answer is wanted.
TIMES, QUICK_TIMES = 10, 3

#: What differs between two cases in which the same is wrong: numbers, shapes, addresses.
_NUMBERS = re.compile(r"0x[0-9a-f]+|[(\[]?\d[\d\s.,()\[\]]*(e[+-]?\d+)?")


class Finding(NamedTuple):
    """One thing that is wrong: in which tensor, by how much (if a number is), and in words; and
    the script that showed it.
    """

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


def misshapen(name, value, case):
    """What is wrong with an array before one looks at its numbers; empty if nothing is."""
    shape = shape_of(name, case)
    if value is None:
        return f"{name} is None"
    if value.shape != shape:
        return f"{name} has shape {value.shape}, expected {shape}"
    if value.dtype.kind != "f" and value.dtype.name != "bfloat16":
        return f"{name} has dtype {value.dtype.name}, expected {case.dtype}"
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
            found.append(Finding(name, verdict, where + numbers_in_words(name, verdict)))
    return sorted(found, key=lambda one: -one.verdict.share if one.verdict else -np.inf)


def numbers_in_words(name, verdict):
    """One wrong tensor in words: of what was judged, its worst row or number."""
    place = f"{'row' if name in BY_ROW else 'feature'} {verdict.at}"
    if not verdict.finite:
        return f"{name} is not finite in {place}"
    if np.isinf(verdict.part):
        return f"{name} is not 0 in {place}, as it should be"
    # two digits, or as many as it takes to read as more than 1
    told = (f"{verdict.share:.{digits}g}" for digits in range(2, 18))
    times = next(text for text in told if float(text) > 1)
    return (
        f"{name} is wrong in {place}, by {verdict.part:.2g} of its size there, {times} times what"
        " any right formula may lose"
    )


# How a target is asked: functions of it and a case, which give scripts


def once(target, case):
    return [target.once(case)]


def with_filled_memory(target, case):
    script = target.once(case)
    return [script._replace(first=[*target.spelt("filled", case), *script.first])]


def several_times(target, case):
    return once(target, case) * (QUICK_TIMES if target.settings.quick else TIMES)


def any_order(target, case):
    """Three forwards, the last of the first's shape; the backwards in the opposite order; the first
    forward again. What is kept for all calls, or for all of one shape, belongs to a later call when
    it is needed or looked at.
    """
    draw, shape = drawer(target.settings), case.x.shape
    narrow = draw(case.property, (3, shape[-1]), case.dtype, case.eps, offset=-2.5)
    other = draw(case.property, shape, case.dtype, case.eps, offset=0.5)
    cases = {"": case, "2": narrow, "3": other}
    forwards = [line for s, one in cases.items() for line in target.spelt("forward", one, s)]
    backwards = [
        line for s in reversed(cases) for line in target.spelt("backward", cases[s], s)
    ]  # what they return the last forward may write over
    again = f"again = {target.called(case, *target.settings.arguments[:-1])}"
    return [target.script(case, forwards, [*backwards, again], cases=cases)]


def written_over(target, case):
    """Parameters change in place, and nothing that was kept of the arrays is right any more."""
    draw = drawer(target.settings)
    other = draw("written over", case.x.shape, case.dtype, case.eps, offset=-2.5)
    forward, backward = (target.spelt(part, case) for part in ("forward", "backward"))
    over = [target.spelt("overwrite", case, a=name)[0] for name in target.settings.arguments]
    cases = {"": case, "2": other}
    lines = [*forward, *backward, *over, *forward]
    return [target.script(case, lines, backward, cases=cases, judged={"": other})]


def without_gradients(target, case):
    return [target.script(case, target.spelt("only_y", case), results=("y",), wanted=())]


def one_gradient_alone(target, case):
    """Others may be left out, this one may not change."""
    for name in target.settings.arguments[:-1]:
        lines = target.spelt("alone", case, a=name)
        yield target.script(case, lines, results=(f"d{name}",), wanted=(name,))


def added(target, case):
    lines = target.spelt("added", case)
    return [target.script(case, lines, results=target.settings.tensors[1:])]


#: The property of each kind of derivative -> its template, and what its results are called.
DERIVATIVES = {
    "the second derivative": (
        "second",
        {f"of_{a}": f"the gradient of <v, dx> with respect to {a}" for a in ("x", "gamma", "dy")},
    ),
    "the gradient of a JVP": (
        "jvp",
        {f"of_{a}": f"the gradient of <dy, JVP> with respect to {a}" for a in ("x", "gamma")}
        | {"along": "the JVP"},
    ),
}


def derivative(target, case):
    """A derivative of derivatives, along a random v."""
    part, names = DERIVATIVES[case.property]
    wanted = ("x", "gamma", "dy") if part == "second" else ()
    options = {"results": tuple(names), "wanted": wanted, "more": ("v",)}
    return [target.script(case, target.spelt(part, case), **options)]


# What is found wrong with outcomes: functions of settings, triples (script, case, outcome), and
# words on how they were asked


def numbers(settings, seen, where):
    return [
        finding._replace(script=script)
        for script, case, outcome in seen
        for finding in compare(outcome.tensors, case, settings, where=where)
    ]


def same_every_time(settings, seen, where):
    """Right, or wrong in the same way every time. Bits may differ: atomics add in any order."""

    def bits(one):
        return [None if a is None else a.tobytes() for a in one[-1].tensors.values()]

    first, *others = seen
    for time, again in enumerate(others, 2):
        words = where.format(time)
        found = numbers(settings, [first, again], words) if bits(first) != bits(again) else []
        if found:
            return found
    return []


def rows_apart(settings, seen, where):
    """A row of x with NaN or Inf has no finite y, one of dy no finite dx; all others are right."""
    ((_, case, outcome),) = seen
    found, finite = [], {name: finite_rows(getattr(case, name)) for name in ("x", "dy")}
    right = {"y": finite["x"], "dx": finite["x"] & finite["dy"]}
    for tensor, name in ("y", "x"), ("dx", "dy"):
        value = outcome.tensors[tensor]
        found += compare({tensor: value}, case.without_nan(), settings, right[tensor])
        if not found and finite_rows(value)[~finite[name]].any():
            sentence = f"a row of {name} that holds NaN or Inf has a finite {tensor}"
            found.append(Finding(tensor, None, sentence))
    return found


def finite_rows(a):
    return np.isfinite(a.astype(np.float64)).all(axis=-1).ravel()


def results_alike(settings, seen, where):
    ((_, case, outcome),) = seen
    found = {name: misshapen(name, a, case) for name, a in outcome.tensors.items()}
    for name, dtype in outcome.dtypes.items():
        if not found[name] and dtype != case.dtype:
            found[name] = (
                f"{name} has dtype {dtype}, expected {case.dtype}, the dtype of the arguments"
            )
    return [Finding(name, None, sentence) for name, sentence in found.items() if sentence]


def arguments_kept(settings, seen, where):
    ((_, _, outcome),) = seen
    return [Finding(name, None, f"the argument {name} is changed") for name in outcome.changed]


def right_derivatives(settings, seen, where):
    ((_, case, outcome),) = seen
    found, exact = [], derivatives(case, settings)
    for name, words in DERIVATIVES[case.property][1].items():
        right, slack = exact[name]
        wrong = np.linalg.norm(outcome.tensors[name] - right)
        if not wrong <= slack:
            share = wrong / np.linalg.norm(right)
            found.append(Finding(name, None, f"{words} is wrong by {share:.2g} of its size"))
    return found


class Property(NamedTuple):
    """What is asked for a property, and what is found in the outcomes; ``where`` it was seen, in
    words.

    * ``conditional``: whether it says nothing where numbers are wrong in the plainest way of asking
      for them. ``of_numbers``: whether its cases are there for their numbers alone.
    """

    asks: Callable = once
    finds: Callable = numbers
    where: str = ""
    conditional: bool = True
    of_numbers: bool = False


#: The properties that are there for something else than the numbers of one call, and memory in any
#: order.
PROPERTIES = {
    "memory in any order": Property(of_numbers=True),
    "NaN stays in its row": Property(finds=rows_apart),
    "shapes and dtypes of results": Property(finds=results_alike, conditional=False),
    "arguments unchanged": Property(finds=arguments_kept, conditional=False),
    "the same answer twice": Property(
        several_times,
        same_every_time,
        "call {} gives other numbers than the first: ",
        conditional=False,
    ),
    "calls in any order": Property(
        any_order, where="where three forwards come before their backwards, "
    ),
    UNWRITTEN: Property(with_filled_memory, where="where fresh memory is not 0 but filled, "),
    WRITTEN_OVER: Property(
        written_over, where="where a second call has other numbers in the same arrays, "
    ),
    "y without gradients": Property(without_gradients),
    "one gradient alone": Property(
        one_gradient_alone, where="where no other gradient is asked for, "
    ),
    "gradients add up": Property(added, where="half of what two backwards add up to: "),
    **dict.fromkeys(DERIVATIVES, Property(derivative, right_derivatives)),
}
ORDINARY = Property(conditional=False, of_numbers=True)


def asked(property):
    return PROPERTIES.get(property, ORDINARY)


def check(target, case):
    """What is wrong with a target in one case, worst first; what it raises is a finding, too."""
    of, script, seen = asked(case.property), None, []
    try:
        with np.errstate(all="ignore"):
            for script in of.asks(target, case):
                outcomes = zip(script.judged.values(), target.outcomes(script))
                seen += [(script, *one) for one in outcomes]
            found = of.finds(target.settings, seen, of.where)
    except (Raised, TargetError) as error:
        found = [Finding("", None, str(error), script)]
    return [one if one.script else one._replace(script=script) for one in found]
