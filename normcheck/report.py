"""What is said: which properties held, what failed with its smallest case, what was not tested."""

import json
import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from .cases import ARGUMENTS, QUICK, Case
from .mistakes import Diagnosis


@dataclass(frozen=True)
class Failure:
    """One property that did not hold, and the smallest case that was found to show it.

    * ``property``: its name. ``tensor``: "y", "dx", "dgamma" or "dbeta", or empty.
    * ``error``: relative error of the worst row of y or dx (in L2), or of the worst number of
      dgamma or dbeta; ``share``: that in units of what any right formula may lose there. None where
      it is not a number that is wrong.
    * ``case``: :class:`~normcheck.cases.Case`, whose ``x``, ``gamma``, ``beta``, ``dy`` and ``eps``
      show it.
    * ``failed``, ``tried``: in how many of the cases tried it failed.
    * ``kind``: "wrong numbers", "no finite numbers", or the sentence without its numbers;
      ``alike``: in how many of the cases tried the same tensor was wrong in this way.
    * ``cases``: all that failed, in words; ``where``: what they have and the others have not, or
      empty if all failed.
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

    def like(self, other: "Failure") -> bool:
        """Whether the numbers of one tensor are wrong in every case of both."""
        everywhere = all(f.kind == "wrong numbers" and f.alike == f.tried for f in (self, other))
        return everywhere and self.tensor == other.tensor

    def record(self) -> dict[str, Any]:
        """What goes into JSON: of large arrays no numbers, of others as text keeps them."""
        case, found = self.case, dict(vars(self))
        for name in "error", "share":
            found[name] = str(found[name]) if found[name] in (math.inf, -math.inf) else found[name]
        found["case"] = {name: getattr(case, name) for name in ("dtype", "eps", "layouts")}
        found["case"] |= {"shape": case.x.shape} | {
            name: np.vectorize(str, otypes=[object])(a).tolist() if a.size <= 64 else None
            for name, a in zip(ARGUMENTS, case.arrays)
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
    * ``mistake``: :class:`~normcheck.mistakes.Diagnosis` of what is wrong, or None.
    * ``notes``: tuple of str: what is no failure and worth knowing.
    * ``ended``: why the run ended before everything was tried, or empty; such a run has not held.
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

    @property
    def held(self) -> bool:
        return not self.failures and not self.ended

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of the properties that held."""
        failed = {failure.property for failure in self.failures}
        return tuple(name for name in self.properties if name not in failed)

    def __str__(self) -> str:
        return "\n".join(
            text if tag in ("h1", "pre") else _wrapped(text) for tag, text in _parts(self)
        )

    def to_json(self) -> str:
        """The report as JSON text."""
        found = vars(self) | {
            "held": self.held,
            "kept": self.kept,
            "ended": self.ended or None,
            "failures": [failure.record() for failure in self.failures],
            "seconds": round(self.seconds, 1),
        }
        if told := self.mistake:
            found["mistake"] = {one: getattr(told, one) for one in ("kind", "names", "sentence")}
        return json.dumps(found, indent=1)

    def to_html(self) -> str:
        """The report as a page, with the test of every failure."""
        body = "\n".join(
            f"<{tag}>{escape(text.strip())}</{tag}>" for tag, text in _parts(self, all_tests=True)
        )
        title = f'<meta charset="utf-8"><title>{escape(self.target)}</title>'
        return f'<!doctype html><html lang="en">{title}\n{body}\n</html>'


def _wrapped(text):
    keep = {"break_long_words": False, "break_on_hyphens": False}
    start = "\n" if text.startswith("\n") else ""
    return start + textwrap.fill(text.strip("\n"), 76, subsequent_indent="    ", **keep)


def _parts(report: Report, all_tests: bool = False) -> Iterator[tuple[str, str]]:
    """What is said, part by part, each with the tag that HTML has for it. If a tensor is wrong
    everywhere, that is told at length only once.
    """
    count = f"{len(report.kept)} of {len(report.properties)} properties held"
    if report.ended:
        failed = f"{len(report.failures)} of {len(report.properties)} properties had failed"
        count = f"{report.ended}{f'; until then {failed}' if report.properties else ''}"
    yield "h1", f"{report.target}: {count}"
    if QUICK in report.untested:
        yield "p", f"Not tried: {QUICK}"
    failures = report.failures
    alike = [] if all_tests else [one for one in failures[1:] if one.like(failures[0])]
    for failure in failures:
        if failure in alike:
            continue
        other = failure.failed - failure.alike
        count = f"{failure.failed} of {failure.tried} cases"
        count += f", {other} of them in another way" if other else ""
        yield "h2", f"\nFAILED  {failure.property} ({count})"
        if failure.where:
            yield "p", f"    {failure.where}"
        yield "p", f"    {failure.sentence}; smallest case: {failure.case}"
        if all_tests:
            yield "pre", failure.test
    if alike:
        names = "; ".join(failure.property for failure in alike)
        yield "p", f"\nFAILED  likewise, {alike[0].tensor} being wrong in every case: {names}"
    if failures and not all_tests:
        said = (
            "The first of these as a test, in which target, or forward and backward, are yours"
            " (report.failures[k].test has all):"
        )
        yield from [("p", f"\n{said}"), ("pre", f"\n{failures[0].test}")]
    if report.mistake:
        yield "p", f"\nWhich mistake: {report.mistake.sentence}"
    if report.kept:
        held = "No failure in what was tried of" if report.ended else "These held"
        yield "p", f"\n{held}: {'; '.join(report.kept)}"
    for dtype, digits in report.digits.items():
        said = ", ".join(f"{name} {d:.1f}" for name, d in digits.items())
        yield "p", f"Digits of ordinary rows, {dtype}: {said}"
    yield from (("p", note) for note in report.notes)
    if rest := [what for what in report.untested if what != QUICK]:
        yield "p", f"Not tested: {'; '.join(rest)}"
