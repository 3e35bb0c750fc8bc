"""What is said: which properties held, what failed with its smallest case, what was not tested."""

import json
import textwrap
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from .cases import Case
from .mistakes import Diagnosis
from .settings import QUICK


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

    def record(self) -> dict[str, Any]:
        """What goes into JSON."""
        arrays = {
            name: _numbers(a) for name, a in zip(("x", "gamma", "beta", "dy"), self.case.arrays)
        }
        return {
            "property": self.property,
            "tensor": self.tensor,
            "error": _finite(self.error),
            "share": _finite(self.share),
            "sentence": self.sentence,
            "kind": self.kind,
            "alike": self.alike,
            "where": self.where,
            "cases": self.cases,
            "failed": self.failed,
            "tried": self.tried,
            "test": self.test,
            "case": {
                "shape": self.case.x.shape,
                "dtype": self.case.dtype,
                "eps": self.case.eps,
                "layouts": self.case.layouts,
                **arrays,
            },
        }


def _finite(number):
    return number if number is None or np.isfinite(number) else str(number)


def _numbers(a):
    """The numbers of a small array as text keeps them; of a large one, none."""
    return np.vectorize(str, otypes=[object])(a).tolist() if a.size <= 64 else None


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
        return "\n".join(_lines(self))

    def to_json(self) -> str:
        """The report as JSON text."""
        mistake = self.mistake and {
            "kind": self.mistake.kind,
            "names": self.mistake.names,
            "sentence": self.mistake.sentence,
        }
        return json.dumps(
            {
                "target": self.target,
                "held": self.held,
                "ended": self.ended or None,
                "properties": self.properties,
                "kept": self.kept,
                "failures": [failure.record() for failure in self.failures],
                "mistake": mistake,
                "digits": self.digits,
                "untested": self.untested,
                "notes": self.notes,
                "seconds": round(self.seconds, 1),
            },
            indent=1,
        )

    def to_html(self) -> str:
        """The report as a page."""
        held = "no failure so far" if self.ended else "held"
        rows = "".join(f"<tr><td>{name}</td><td>{held}</td><td></td></tr>" for name in self.kept)
        failed = "".join(
            f"<tr><td>{escape(f.property)}</td><td>failed</td><td>{_in(f)}{escape(f.sentence)};"
            f" smallest case: {escape(str(f.case))}<pre>{escape(f.test)}</pre></td></tr>"
            for f in self.failures
        )
        rest = [f"<p>Which mistake: {escape(self.mistake.sentence)}</p>"] if self.mistake else []
        rest += [f"<p>{escape(note)}</p>" for note in self.notes]
        rest += [f"<p>Not tested: {escape('; '.join(self.untested))}</p>"] if self.untested else []
        return (
            '<!doctype html><html lang="en"><meta'
            f' charset="utf-8"><title>{escape(self.target)}</title>'
            f"<h1>{escape(_headline(self))}</h1><table><tr><th>property</th><th></th><th></th></tr>{failed}{rows}"
            f"</table>{''.join(rest)}</html>"
        )


def _in(failure):
    count = (
        f"{failure.failed} of {failure.tried} cases{f', {failure.where}' if failure.where else ''}"
    )
    return f"<p>{escape(count)}</p>"


def _headline(report):
    count = f"{len(report.kept)} of {len(report.properties)} properties held"
    if not report.ended:
        return f"{report.target}: {count}"
    count = f"; until then {len(report.failures)} of {len(report.properties)} properties had failed"
    return f"{report.target}: {report.ended}{count if report.properties else ''}"


def _alike(failures):
    """The failures that are told one by one, and those that need not be: a tensor is wrong
    everywhere, as in the first.
    """
    first = failures[0] if failures else None
    alike = [
        one
        for one in failures[1:]
        if first.kind == one.kind == "wrong numbers"
        and first.tensor == one.tensor
        and one.alike == one.tried
        and first.alike == first.tried
    ]
    return [one for one in failures if one not in alike], alike


def _wrapped(text, indent="    "):
    return textwrap.fill(
        text, 76, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _lines(report):
    yield _headline(report)
    if QUICK in report.untested:
        yield f"Not tried: {QUICK}"
    shown, alike = _alike(report.failures)
    for failure in shown:
        other = failure.failed - failure.alike
        yield (
            f"\nFAILED  {failure.property} ({failure.failed} of {failure.tried} cases"
            f"{f', {other} of them in another way' if other else ''})"
        )
        if failure.where:
            yield _wrapped(f"    {failure.where}")
        yield _wrapped(f"    {failure.sentence}; smallest case: {failure.case}")
    if alike:
        yield "\n" + _wrapped(
            f"FAILED  likewise, {alike[0].tensor} being wrong in every case: "
            + "; ".join(failure.property for failure in alike)
        )
    if report.failures:
        yield (
            "\nThe first of these as a test (report.failures[k].test has"
            f" all):\n\n{report.failures[0].test}"
        )
    if report.mistake:
        yield "\n" + _wrapped(f"Which mistake: {report.mistake.sentence}")
    if report.kept:
        held = "No failure in what was tried of" if report.ended else "These held"
        yield "\n" + _wrapped(f"{held}: " + "; ".join(report.kept))
    for dtype, digits in report.digits.items():
        yield f"Digits of ordinary rows, {dtype}: " + ", ".join(
            f"{name} {d:.1f}" for name, d in digits.items()
        )
    yield from map(_wrapped, report.notes)
    if rest := [what for what in report.untested if what != QUICK]:
        yield _wrapped("Not tested: " + "; ".join(rest))
