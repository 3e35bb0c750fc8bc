"""What is said: which properties held, what failed with its smallest case, what was not tried."""

import builtins
import json
import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from lnlib.rounding import FORMATS

from .cases import Case
from .checks import ORDINARY, asked
from .mistakes import Diagnosis

#: The version of the JSON, whose keys and types ``report.schema.json`` in this folder describes. It
#: changes where a key goes away or changes its meaning, not where one comes.
VERSION = 1

#: So many causes are told at length in the text; JSON and the page have all.
MOST = 5

META = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
STYLE = """\
body { font: 16px/1.4 sans-serif; max-width: 60em; margin: auto; padding: 1em }
h1, h2, p, pre { overflow-wrap: anywhere }
pre { background: #f4f4f4; padding: 1em; white-space: pre-wrap }
td, th { padding: 0.2em 1%; text-align: left; color: #000; font-size: min(1em, 3.5vw) }"""

#: The kinds of failures of which a number tells by how much; and two properties that fail where dy
#: is changed, because two backwards are given the same.
NUMBERS = {"wrong numbers", "no finite numbers"}
SAME_DY = {"arguments unchanged", "gradients add up"}


@dataclass(frozen=True)
class Failure:
    """One property that did not hold, and the smallest case that was found to show it.

    * ``property``: its name. ``tensor``: "y", "dx", "dgamma", "h" and so on, or empty.
    * ``error``: relative error of the worst row of y or dx (in L2), or of the worst number of
      dgamma or dbeta; ``share``: that in units of what any right formula may lose there. None where
      it is not a number that is wrong.
    * ``case``: :class:`~normcheck.cases.Case`, whose ``x``, ``gamma``, ``beta``, ``dy`` and ``eps``
      show it.
    * ``failed``, ``tried``: in how many of the cases tried it failed.
    * ``kind``: "wrong numbers", "no finite numbers", or the sentence without its numbers;
      ``alike``: in how many of the cases tried the same tensor was wrong in this way;
      ``tensors``: all that were wrong in one of them.
    * ``cases``: all that failed, in words; ``where``: what only they have, or empty if all failed.
    """

    property: str
    tensor: str
    error: float | None
    share: float | None
    case: Case
    sentence: str
    failed: int
    tried: int
    test: str = ""
    kind: str = ""
    alike: int = 0
    where: str = ""
    cases: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()

    def __str__(self) -> str:
        other = self.failed - self.alike
        some = f"{self.failed} of {self.tried} cases" if self.failed < self.tried else ""
        more = f"in {other} of them something else is wrong" if other else ""
        words = "; ".join(filter(None, (some, more, self.where)))
        return f"{self.property} ({words})" if words else self.property

    @builtins.property  # "property" is a field
    def smallest(self) -> str:
        return f"Smallest case: {self.case}: {self.sentence}"

    def joins(self, first: "Failure") -> bool:
        """Whether it seems to have the same cause: the same wrong numbers, or the same is said."""
        both = {self.property, first.property}
        if both == SAME_DY:
            return "dy" in (self.tensor, first.tensor)
        if not {self.kind, first.kind} <= NUMBERS:
            return self.kind == first.kind
        ordinary = all(asked(name) is ORDINARY for name in both)
        return ordinary and set(self.tensors) <= set(first.tensors)

    def record(self) -> dict[str, Any]:
        """What goes into JSON: of large arrays no numbers, of others as text keeps them."""
        case, found = self.case, dict(vars(self))
        for name in "error", "share":
            found[name] = str(found[name]) if found[name] in (math.inf, -math.inf) else found[name]
        found["case"] = {name: getattr(case, name) for name in ("dtype", "eps", "layouts")}
        found["case"] |= {"shape": case.x.shape} | {
            name: np.vectorize(str, otypes=[object])(a).tolist() if a.size <= 64 else None
            for name, a in ((name, getattr(case, name)) for name in case.said.arguments)
        }
        return found


@dataclass(frozen=True)
class Report:
    """The outcome of :func:`normcheck.validate`.

    * ``held``: whether no property failed. ``properties``: the names of all that were tried.
    * ``failures``: tuple of :class:`Failure`, one for each property that did not hold.
    * ``untested``: tuple of str: what could not be tested, and why.
    * ``digits``: correct digits of each tensor, by dtype, of the ordinary rows: dict, dtype ->
      dict, tensor -> float.
    * ``mistake``: :class:`~normcheck.mistakes.Diagnosis` of what is wrong, or None; ``unnamed``:
      how many mistakes were looked up in vain, in a sentence, or empty.
    * ``notes``: tuple of str: what is no failure and worth knowing.
    * ``table``: how each property did in each dtype: dict, property -> dict, dtype -> dict of
      ``tried`` and ``failed``, numbers of cases, ``digits``, the fewest correct ones, and
      ``share``, the largest that held; None where it is not numbers that are asked for.
    * ``ended``: why the run ended before everything was tried, or empty; such a run has not held.
    * ``missed``: how many of the cases were not reached, because the time was over, or empty.
    """

    target: str
    properties: tuple[str, ...]
    failures: tuple[Failure, ...]
    untested: tuple[str, ...]
    digits: dict[str, dict[str, float]] = field(default_factory=dict)
    mistake: Diagnosis | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    ended: str = ""
    table: dict[str, dict[str, dict]] = field(default_factory=dict)
    missed: str = ""
    unnamed: str = ""

    @property
    def held(self) -> bool:
        return not self.failures and not self.ended

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of the properties that held."""
        failed = {failure.property for failure in self.failures}
        return tuple(name for name in self.properties if name not in failed)

    @property
    def told(self) -> str:
        """Which mistake it is, or that it is none that is known, in words; or empty."""
        return str(self.mistake or self.unnamed)

    @property
    def verdict(self) -> str:
        """One of "held", "held, with limits" (digits are lost far from zero), "failed", "ended"."""
        lost = any("loses digits" in note for note in self.notes)
        held = "held, with limits" if lost else "held"
        return "ended" if self.ended else held if self.held else "failed"

    @property
    def causes(self) -> list[list[Failure]]:
        """The failures; those that seem to have one cause are together."""
        found: list[list[Failure]] = []
        for failure in self.failures:
            known = next((some for some in found if failure.joins(some[0])), [])
            found += [] if known else [known]
            known.append(failure)
        return found

    def __str__(self) -> str:
        whole = "h1", "pre"
        return "\n".join(text if tag in whole else _wrapped(text) for tag, text in _parts(self))

    def to_json(self) -> str:
        """The report as JSON text, see ``report.schema.json``."""
        found = {"version": VERSION, "verdict": self.verdict} | vars(self)
        found |= {
            "held": self.held,
            "kept": self.kept,
            **{name: found[name] or None for name in ("ended", "missed", "unnamed")},
            "failures": [failure.record() for failure in self.failures],
            "causes": [[one.property for one in some] for some in self.causes],
            "seconds": round(self.seconds, 1),
        }
        if told := self.mistake:
            found["mistake"] = {one: getattr(told, one) for one in ("kind", "names", "sentence")}
        return json.dumps(found, indent=1)

    def to_html(self, other: "Report | None" = None) -> str:
        """The report as a page, with a test for each failure; of two, first how they compare."""
        body = [f"<pre>{escape(beside(self, other))}</pre>"] if other else []
        for one in (self, other) if other else (self,):
            said = _parts(one, everything=True)
            first, *more = [f"<{tag}>{escape(text.strip())}</{tag}>" for tag, text in said]
            body += [first, _picture(one.table), *more]
        head = f"{META}<title>{escape(self.target)}</title><style>{STYLE}</style>"
        return "\n".join([f'<!doctype html><html lang="en">{head}', *body, "</html>"])


class Interrupted(KeyboardInterrupt):
    """A run that was stopped; ``report`` has what was found until then, not made smaller."""

    def __init__(self, report):
        super().__init__("interrupted; .report has what was found until then")
        self.report = report


def name_of(target):
    """The name of a target as its author wrote it."""
    if isinstance(target, (tuple, list)):
        return " and ".join(map(name_of, target))
    return getattr(target, "__qualname__", type(target).__name__)


def _wrapped(text):
    keep = {"break_long_words": False, "break_on_hyphens": False}
    start = "\n" if text.startswith("\n") else ""
    return start + textwrap.fill(text.strip("\n"), 76, subsequent_indent="    ", **keep)


def _picture(table):
    """A table of HTML: property by dtype, with words in each cell, which is coloured by them."""
    dtypes = list(dict.fromkeys(dtype for row in table.values() for dtype in row))

    def cell(dtype, tried=0, failed=0, digits=None, share=None):
        if failed:
            words, right = f"failed in {failed} of {tried}", 0.0
            if digits is not None:
                words += f", {digits:.1f} digits"
                right = -digits / math.log10(FORMATS[dtype].u) / 2  # and what failed not green
        else:
            words, right = "held" if tried else "not tried", 1.0
            if share is not None:
                words += f", error at most {100 * share:.0f} % of what a right formula may lose"
                right = 1 - share / 2  # what held is never red
        colour = f"hsl({120 * right:.0f} 70% {70 if failed else 85}%)" if tried else "#eee"
        return f'<td style="background: {colour}">{words}</td>'

    rows = [
        f"<tr><th>{escape(name)}</th>{''.join(cell(d, **row.get(d, {})) for d in dtypes)}</tr>"
        for name, row in table.items()
    ]
    head = "".join(f"<th>{dtype}</th>" for dtype in dtypes)
    return "\n".join([f"<table><tr><th></th>{head}</tr>", *rows, "</table>"])


def _headline(report):
    tried, limits = len(report.properties), ", with limits" * ("limits" in report.verdict)
    missed = f"; {report.missed} were not reached" if report.missed else ""
    count = f"{len(report.kept)} of {tried} properties held{limits}{missed}"
    if report.ended:
        until = f"; until then {len(report.failures)} of {tried} properties had failed"
        count = report.ended + until * bool(tried)
    return f"{report.target}: {count}"


def _parts(report: Report, everything: bool = False) -> Iterator[tuple[str, str]]:
    """What is said, part by part, each with the tag that HTML has for it: which mistake it is, what
    failed, for each cause with the smallest case, and the first as a test; what held.
    """
    yield "h1", _headline(report)
    yield from _wrong(report, len(report.causes) if everything else MOST)
    for failure in report.failures if everything else ():
        yield from [("h2", failure.property), ("p", failure.smallest), ("pre", failure.test)]
    if report.failures and not everything:
        test = report.failures[0].test
        more = " --html and --json write the tests of all failures." * bool(report.failures[1:])
        yield "p", f"\nThis test shows the first failure.{more}"
        yield "pre", f"\n{test}"
    if report.properties:
        held = "No failure until then in" if report.ended else "Held"
        start = "\n" if report.failures else ""
        yield "p", f"{start}{held}: {'; '.join(report.kept) or 'nothing'}"
    if report.digits:
        told = (
            f"{dtype} {', '.join(f'{name} {d:.1f}' for name, d in digits.items())}"
            for dtype, digits in report.digits.items()
        )
        yield "p", f"Digits of ordinary rows: {'; '.join(told)}"
    yield from (("p", note) for note in report.notes)
    if report.untested:
        yield "p", f"Not tried: {'; '.join(report.untested)}"


def _wrong(report, most):
    """Which mistake it is, and what failed, for so many causes with the smallest case."""
    if told := report.told:
        yield "p", told if told[-1] in ".?" else f"{told}."
    causes = report.causes
    for first, *others in causes[:most]:
        start = f"{len(others) + 1} properties, probably for one reason: " if others else ""
        yield "p", f"\nFAILED  {start}{'; '.join(map(str, (first, *others)))}"
        yield "p", f"    {first.smallest}"
    if rest := [str(failure) for some in causes[most:] for failure in some]:
        yield "p", f"\nFAILED  in other ways: {'; '.join(rest)}"


def beside(one: Report, other: Report) -> str:
    """Two reports side by side: what failed in each, digits, and what one of them alone held."""
    both, lines = {"A": one, "B": other}, list[str]()
    for name, report in both.items():
        told = [text for _, text in _wrong(report, MOST)]
        lines += ["\n" * bool(lines) + f"{name}: {_headline(report)}", *told]
    for dtype in {**one.digits, **other.digits}:
        lines.append(f"\nDigits of ordinary rows, {dtype}:")
        digits = {name: report.digits.get(dtype, {}) for name, report in both.items()}
        for tensor in {**digits["A"], **digits["B"]}:
            told = (f"{name} {of[tensor]:.1f}" for name, of in digits.items() if tensor in of)
            lines.append(f"    {tensor}: {', '.join(told)}")
    for name, held, lost, failed in ("A", one, "B", other), ("B", other, "A", one):
        only = [one.property for one in failed.failures if one.property in held.kept]
        lines.append(f"\nHeld by {name}, failed by {lost}: {'; '.join(only) or 'nothing'}")
    return "\n".join(map(_wrapped, lines))
