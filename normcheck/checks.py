"""What is asked of a target: a check takes a target and a case, and returns what was found wrong,
worst first.
"""

import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .cases import UNWRITTEN, WRITTEN_OVER, draw, drawer
from .judge import BY_ROW, Verdict, derivatives, judge
from .targets import Outcome, Raised, TargetError

#: How often a call is repeated where the same answer is wanted.
TIMES, QUICK_TIMES = 10, 3

#: What differs between two cases in which the same is wrong: numbers, shapes, addresses.
_NUMBERS = re.compile(r"0x[0-9a-f]+|[(\[]?\d[\d\s.,()\[\]]*(e[+-]?\d+)?")


class Finding(NamedTuple):
    """One thing that is wrong: in which tensor, by how much (if a number is), and in words."""

    tensor: str
    verdict: Verdict | None
    sentence: str

    @property
    def share(self):
        return self.verdict.share if self.verdict else np.inf

    @property
    def kind(self):
        """What is wrong, whatever the case: two findings with the same tensor and kind show the
        same failure.

        Wrong numbers are one kind, NaN and Inf another; else it is the sentence without its
        numbers, so that exceptions are the same failure if they have the same type and say the
        same.
        """
        if self.verdict is None:
            return _NUMBERS.sub("#", self.sentence)
        return "wrong numbers" if self.verdict.finite else "no finite numbers"

    def like(self, other):
        return (self.tensor, self.kind) == (other.tensor, other.kind)


def call(target, case):
    return target.calls([case])[0]


def of_two_axes(target, case):
    """Advice on a target that raises here and not where all rows are on one axis; or nothing."""
    flat = case.with_rows(lambda a: a.reshape(-1, case.width))
    try:
        call(target, flat)
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


def compare(outcome, case, settings, rows=slice(None), where=""):
    """The findings on the numbers of an outcome; their sentences begin with ``where``."""
    found = []
    for name, value in outcome.tensors.items():
        if sentence := misshapen(name, value, case):
            found.append(Finding(name, None, where + sentence))
            continue
        verdict = judge(name, value, case, settings, rows)
        if verdict.share > 1:
            found.append(Finding(name, verdict, where + numbers_in_words(name, verdict)))
    return sorted(found, key=lambda finding: -finding.share)


def numbers_in_words(name, verdict):
    """One wrong tensor in words: of what was judged, its worst row or number."""
    place = f"{'row' if name in BY_ROW else 'feature'} {verdict.at}"
    if not verdict.finite:
        return f"{name} is not finite in {place}"
    if np.isinf(verdict.part):
        return f"{name} is not 0 in {place}, as it should be"
    return (
        f"{name} is wrong in {place}, by {verdict.part:.2g} of its size there, {verdict.share:.2g}"
        " times what any right formula may lose"
    )


# What is asked of results and calls


def rows_apart(target, case):
    """A row of x with NaN or Inf has no finite y, one of dy no finite dx; all others are right."""
    outcome, clean, found = call(target, case), case.without_nan(), []
    whole = {name: whole_rows(getattr(case, name)) for name in ("x", "dy")}
    others = {"y": whole["x"], "dx": whole["x"] & whole["dy"]}
    for tensor, name in ("y", "x"), ("dx", "dy"):
        one = Outcome({tensor: outcome.tensors[tensor]}, {})
        found += compare(one, clean, target.settings, others[tensor])
        if not found and whole_rows(outcome.tensors[tensor])[~whole[name]].any():
            sentence = f"a row of {name} that holds NaN or Inf has a finite {tensor}"
            found.append(Finding(tensor, None, sentence))
    return found


def whole_rows(a):
    """Which rows of an array have finite numbers only."""
    return np.isfinite(a.astype(np.float64)).all(axis=-1).ravel()


def results_alike(target, case):
    outcome, found = call(target, case), {}
    for name in target.settings.tensors:
        found[name] = misshapen(name, outcome.tensors[name], case)
        if not found[name] and outcome.dtypes[name] != case.dtype:
            found[name] = (
                f"{name} has dtype {outcome.dtypes[name]}, expected {case.dtype}, the dtype of the"
                " arguments"
            )
    return [Finding(name, None, sentence) for name, sentence in found.items() if sentence]


def arguments_kept(target, case):
    changed = call(target, case).changed
    return [Finding(name, None, f"the argument {name} is changed") for name in changed]


def repeatable(target, case):
    """Right, or wrong in the same way every time. Bits may differ: atomics add in any order."""

    def bits(outcome):
        return [None if a is None else a.tobytes() for a in outcome.tensors.values()]

    first = call(target, case)
    for time in range(2, 1 + (QUICK_TIMES if target.settings.quick else TIMES)):
        again, where = call(target, case), f"call {time} gives other numbers than the first: "
        found = [
            f for one in (first, again) for f in compare(one, case, target.settings, where=where)
        ]
        if found and bits(first) != bits(again):
            return found
    return []


# Ways to call a target: pairs of an outcome and its case, whose numbers are compared


def in_order(target, case):
    """The cases of :func:`any_order`: the last has the first's shape."""
    draw, shape = drawer(target.settings), case.x.shape
    return (
        case,
        draw(case.property, (3, shape[-1]), case.dtype, case.eps, offset=-2.5),
        draw(case.property, shape, case.dtype, case.eps, offset=0.5),
    )


def any_order(target, case):
    """Three forwards, the last of the first's shape; the backwards in the opposite order; the first
    forward again. What is kept for all calls, or for all of one shape, belongs to a later call when
    it is needed or looked at.
    """
    cases = in_order(target, case)
    return zip(target.calls(cases), cases)


def all_written(target, case):
    with target.poisoned():
        return [(call(target, case), case)]


def written_over(target, case):
    """The case whose numbers are in the arrays of this one when they are handed over again."""
    return drawer(target.settings)("written over", case.x.shape, case.dtype, case.eps, offset=-2.5)


def numbers_written_over(target, case):
    """Parameters change in place, and nothing that was kept of the arrays is right any more."""
    other = written_over(target, case)
    return [(target.written_over(case, other), other)]


def one_gradient_alone(target, case):
    """Others may be left out, this one may not change."""
    return [(target.alone(case, name), case) for name in target.settings.arguments[:-1]]


#: Property -> how the target is called, and where findings were seen, in words.
CALLS = {
    "calls in any order": (any_order, "where three forwards come before their backwards, "),
    UNWRITTEN: (all_written, "where fresh memory is not 0 but filled, "),
    WRITTEN_OVER: (
        numbers_written_over,
        "where a second call has other numbers in the same arrays, ",
    ),
    "y without gradients": (lambda target, case: [(target.only_y(case), case)], ""),
    "one gradient alone": (one_gradient_alone, "where no other gradient is asked for, "),
    "gradients add up": (
        lambda target, case: [(target.added(case), case)],
        "half of what two backwards add up to: ",
    ),
}


# Derivatives of derivatives


def random_like(name, case):
    return draw(name, case.x.shape, case.dtype, offset=0.0, sigma=1.0).x


#: The property of each kind of derivative -> what its parts are called.
DERIVATIVES = {
    "the second derivative": [
        f"the gradient of <v, dx> with respect to {name}" for name in ("x", "gamma", "dy")
    ],
    "the gradient of a JVP": [
        *(f"the gradient of <dy, JVP> with respect to {name}" for name in ("x", "gamma")),
        "the JVP",
    ],
    "nested derivatives": [
        "the third derivative, the gradient of <u, gradient of <v, dx>> with respect to x,"
    ],
}


def exact_derivatives(case, settings):
    """The random v and u of a case, and the exact parts of the derivatives of its property, each
    with the error allowed to it. The JVP along v, and the gradients of <dy, JVP>, are those of <v,
    dx>.
    """
    v, u = (random_like(name, case) for name in ("v", "u"))
    parts = derivatives(case, v, u, settings)
    return v, u, parts[3:] if case.property == "nested derivatives" else parts[:3]


def right_derivatives(target, case):
    """The gradients of the product of v and dx, for a random v: asked for one way or another; or
    the gradient of the product of u and these, which saved statistics without a graph get wrong.
    """
    v, u, exact = exact_derivatives(case, target.settings)
    found = {
        "the second derivative": lambda: target.second(case, v),
        "the gradient of a JVP": lambda: target.forward_mode(case, v),
        "nested derivatives": lambda: target.third(case, v, u),
    }[case.property]()
    wrongs = []
    for name, value, (right, slack) in zip(DERIVATIVES[case.property], found, exact):
        wrong = np.linalg.norm(value - right)
        if not wrong <= slack:
            share = wrong / np.linalg.norm(right)
            wrongs.append(Finding("", None, f"{name} is wrong by {share:.2g} of its size"))
    return wrongs


#: Property -> what is asked, for those that are not answered by comparing numbers.
ASKED = {
    "NaN stays in its row": rows_apart,
    "shapes and dtypes of results": results_alike,
    "arguments unchanged": arguments_kept,
    "the same answer twice": repeatable,
    **dict.fromkeys(DERIVATIVES, right_derivatives),
}

#: The properties that are there for something else than the numbers of one call.
CHECKS = {*CALLS, *ASKED}

#: Properties that say nothing where the numbers are wrong in the plainest way of asking for them.
CONDITIONAL_ON_NUMBERS = {"memory in any order", "NaN stays in its row", *CALLS, *DERIVATIVES}


def plain(case):
    """The case of a property of :data:`CONDITIONAL_ON_NUMBERS` without what it is there for."""
    return replace(case.without_nan(), property="", layouts={})


def check(target, case):
    """What is wrong with a target in one case, worst first; what it raises is a finding, too."""
    once = lambda target, case: [(call(target, case), case)], ""  # noqa: E731
    calls, where = CALLS.get(case.property, once)
    try:
        with np.errstate(all="ignore"):
            if case.property in ASKED:
                return ASKED[case.property](target, case)
            return [
                finding
                for outcome, one in calls(target, case)
                for finding in compare(outcome, one, target.settings, where=where)
            ]
    except (Raised, TargetError) as error:
        return [Finding("", None, str(error))]
