"""The run: every case through the target, the failures shrunk, the report."""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from .adapters import adapt
from .cases import FAR_SHAPE, NEAR, Case, all_cases, drawer, far, not_tested
from .checks import TIMES, able, asked, check, judged, misshapen, observed, of_pytorch, of_two_axes
from .isolate import find, isolated
from .judge import BY_ROW, judge
from .naming import name
from .paste import MOST, as_test, fails_alone
from .report import Failure, Interrupted, Report, name_of
from .settings import Settings
from .shrink import shrink
from .targets import Raised, TargetError
from .tolerance import near_zero
from .where import SECONDS, where


def validate(
    target: Any,
    kind: str = "layer_norm",
    framework: str = "numpy",
    dtypes: tuple[str, ...] = ("float32",),
    quick: bool = False,
    *,
    seconds: float = math.inf,
    case: str = "",
    isolate: bool = False,
    watch: Callable[[Case], Any] | None = None,
    **options: Any,
) -> Report:
    """Try a layer norm, RMS norm or group norm, forward and backward, on everything known to go
    wrong; ``str`` of the report says what held, what failed, and what was not tested.

    ``target`` is, for "numpy", a pair of functions: ``forward(x, gamma, beta, eps) -> (y, saved)``
    and ``backward(dy, saved) -> (dx, dgamma, dbeta)``; RMS norm has no beta and no dbeta. For
    "torch" and "jax" it is a differentiable function ``f(x, gamma, beta, eps) -> y``; for "torch"
    also a module, or a class of modules. It may be a name, as the command has it:
    "module:forward,backward". ``options`` are the other fields of :class:`normcheck.Settings`.

    * ``seconds``: how long a run may take. It tries a case of each property first; what it did not
      reach is said. It finishes what it has begun, a case or looking for the mistake's name.
    * ``case``: if not empty, only cases with this in their name are tried, which is the property
      and the case as the report has them: "any width: x of shape (2, 33), float32, eps = 1e-05".
    * ``isolate``: whether the target runs in a process of its own. Then a report says so if the
      target ended the process, or took more than a minute for one case. A script asks for it below
      ``if __name__ == "__main__":``, because the other process imports the script.
    * ``watch`` is called with each case before the target is called (not with ``isolate``).

    Raises :class:`Interrupted`, a KeyboardInterrupt with the report on what was tried until then,
    TypeError if the target is of a wrong kind, like one NumPy function, and :class:`TargetError`
    if it does not run on ordinary rows, is not what it was said to be, or cannot be isolated.
    """
    if not seconds > 0:
        raise ValueError(f"seconds: found {seconds!r}, expected a number above 0")
    options |= {"kind": kind, "framework": framework, "dtypes": dtypes, "quick": quick}
    if isolate:
        return isolated(validate, target, {**options, "seconds": seconds, "case": case})
    found = find(target) if isinstance(target, str) else target
    adapted = adapt(found, Settings(**options), target)
    adapted.watch = watch or adapted.watch
    return Run(adapted, seconds, case).report(name_of(found))


class Run:
    """What was found until now. ``tried``: property -> pairs (case, findings). ``unjudged``: names
    of properties with cases in which the plain numbers are wrong already.
    """

    def __init__(self, target, seconds, part):
        self.target, self.seconds = target, seconds
        self.settings = target.settings  # what is known of a target need not be said
        self.tried, self.unjudged, self.digits, self.table = {}, [], {}, {}
        cases = all_cases(self.settings, target.layouts, tuple(able(target)))
        first = {case.dtype: case for case in reversed(cases)}
        self.ordinary = {dtype: first[dtype] for dtype in self.settings.dtypes if dtype in first}
        self.cases = [case for case in cases if part in f"{case.property}: {case}"]
        if not self.cases:
            raise ValueError(f"case: found {part!r}, expected a part of the name of a case")
        self.untested = [f"cases without {part!r} in their name"] if part else []
        self.missed = ""
        if seconds < math.inf:  # the first of each property, then the second of each
            of_one = {}
            for case in self.cases:
                of_one.setdefault((case.property, case.dtype), []).append(case)
            turns = itertools.chain(*itertools.zip_longest(*of_one.values()))
            self.cases = [case for case in turns if case]

    def left(self, share=1.0):
        """How many seconds are left of this share of the time."""
        return self.started + share * self.seconds - time.monotonic()

    @property
    def failed(self):
        """property -> pairs (case, findings) of those that failed."""
        found = {name: [one for one in tried if one[1]] for name, tried in self.tried.items()}
        return {name: wrong for name, wrong in found.items() if wrong}

    def report(self, called):
        self.started = time.monotonic()

        def said(failures, **more):
            if self.unjudged:
                names = ", ".join(dict.fromkeys(self.unjudged))
                self.untested.append(f"{names}, because the plain numbers are wrong there already")
            return Report(
                called,
                # What some of its cases could not tell did not hold.
                tuple(p for p in self.tried if p in self.failed or p not in self.unjudged),
                # first a property that never held, with a case of three features or more
                tuple(sorted(failures, key=lambda f: (f.case.width < 3, -f.failed / f.tried))),
                (*self.untested, *not_tested(self.settings), *self.target.lacks),
                self.digits,
                table=self.table,
                missed=self.missed,
                seconds=time.monotonic() - self.started,
                **more,
            )

        try:
            for dtype, case in self.ordinary.items():
                self.digits[dtype] = self.ordinary_digits(case)
            for at, case in enumerate(self.cases):
                if at and self.left(0.5 if self.failed else 1) < 0:  # failures are made small, too
                    self.untested.append(self.not_reached(at))
                    break
                self.try_one(case)
            look = self.failed and self.left() > 0
            mistake, unnamed = name(self.target, self.tried) if look else (None, "")
            if mistake and self.missed:  # a case that was not reached may speak against it
                mistake = mistake._replace(sentence=f"So far: {mistake.sentence}")
            failures = list(self.failures())
            fast = self.settings.quick or self.left() < 0
            notes = [f"Numbers drawn with seed={self.settings.seed}"] * bool(self.settings.seed)
            notes += of_pytorch(self.target)
            if not fast:
                notes += [*self.digit_loss_by_offset(), *observed(self.target)]
            return said(failures, mistake=mistake, unnamed=unnamed, notes=tuple(notes))
        except KeyboardInterrupt as stopped:
            failed = self.failed.items()
            failures = [self.failure(name, *as_drawn(cases), as_test) for name, cases in failed]
            raise Interrupted(said(failures, ended="interrupted")) from stopped

    def not_reached(self, at):
        known = {*self.tried, *self.unjudged}
        none = [p for p in dict.fromkeys(c.property for c in self.cases[at:]) if p not in known]
        among = f", among them all of {', '.join(none)}" if none else ""
        self.missed = f"{len(self.cases) - at} of {len(self.cases)} cases"
        return f"{self.missed}, because {self.seconds:g} seconds were over{among}"

    def ordinary_digits(self, case):
        """Digits of each tensor; what does not run on ordinary rows cannot be tried."""
        try:
            outcome = self.target.call(case)
        except Raised as error:
            advice = "" if self.settings.groups else of_two_axes(self.target, case)
            raise TargetError(f"target: {error}, on {case}{advice}") from error
        return {name: round(v.digits, 2) for name, v in self.verdicts(outcome, case).items()}

    def verdicts(self, outcome, case):
        return {
            name: judge(name, value, case, self.settings)
            for name, value in outcome.tensors.items()
            if not misshapen(name, value, case)
        }

    def try_one(self, case):
        property, plain = case.property, {"property": "ordinary rows", "layouts": {}}
        if asked(property).conditional and any(
            check(self.target, replace(one.without_nan(), **plain))
            for one in (case, *judged(self.target, case))
        ):
            self.unjudged.append(property)
            return
        seen = []
        found = check(self.target, case, seen)
        self.tried.setdefault(property, []).append((case, found))
        none = {"tried": 0, "failed": 0, "digits": None, "share": None}
        cell = self.table.setdefault(property, {}).setdefault(case.dtype, none)
        cell["tried"] += 1
        cell["failed"] += bool(found)
        if asked(property).of_numbers and seen:
            verdicts = self.verdicts(seen[0], case).values()
            # None where as much as is there may be lost.
            digits = [v.digits for v in verdicts if v.error < 1 or v.share > 1]
            shares = [v.share for v in verdicts if v.share <= 1]
            for name, worst, some in ("digits", min, digits), ("share", max, shares):
                known = some if cell[name] is None else [cell[name], *some]
                cell[name] = worst(known, default=None)

    def digit_loss_by_offset(self):
        """Where each tensor begins to lose more than any right formula may lose near zero, as rows
        move away from it; nothing is said of what lies beyond a distance that failed.
        """
        for dtype in self.settings.dtypes:
            if self.settings.rms or dtype in ("float16", "bfloat16"):
                continue
            D = self.settings.shapes(self.settings.shape(FAR_SHAPE)).rows[1]
            begins, lost = {}, near_zero(D, self.settings.accumulated_in(dtype))
            draw = partial(drawer(self.settings), "digits", FAR_SHAPE, dtype, sigma=1.0)
            for offset in (*NEAR[1:], *far(self.settings, dtype)):
                case = draw(offset=offset)
                if not self.settings.takes(case.x.shape) or check(self.target, case):
                    break
                for tensor, verdict in self.verdicts(self.target.call(case), case).items():
                    if verdict.error > lost:
                        words = f"{tensor} from {offset:g} ({verdict.digits:.1f} digits)"
                        begins.setdefault(tensor, words)
            if begins:
                yield f"{dtype} loses digits as mean / sigma grows: {', '.join(begins.values())}"

    # Failures

    def failures(self):
        """Each property that failed, with its smallest case."""
        # If the first call of all was right, others may be wrong by what the target keeps of it.
        first_is_right = not self.tried.get(self.cases[0].property, [(None, None)])[0][1]
        before = first_is_right and "calls in any order" in (*self.failed, *self.unjudged)
        of_numbers = [cases for name, cases in self.failed.items() if asked(name).of_numbers]
        wrong = [case for case, _ in itertools.chain(*of_numbers)]
        for at, (property, cases) in enumerate(self.failed.items()):
            seconds = min(SECONDS, max(0.0, self.left() / (2 * len(self.failed) - at)))
            tried = [(case, bool(found)) for case, found in self.tried[property]]
            probe = partial(self.probe, cases[0][0]) if seconds == SECONDS else None
            place = where(property, tried, wrong, probe)
            case, finding, steady = self.smallest(cases, seconds)
            test = partial(as_test, steady=steady)
            alone = seconds == SECONDS and before and test(case, finding, self.target)
            needed = before and not (alone and fails_alone(alone, finding))
            test = partial(test, before=needed)
            yield self.failure(property, case, finding, test, place)

    def probe(self, case, n):
        """Whether another width, or number of rows, fails; None if the target does not take it."""
        shape = (case.rows, n) if case.property == "any width" else (n, case.width)
        case = drawer(self.settings)(case.property, shape, case.dtype)
        if case.x.shape != shape or not self.settings.takes(shape):
            return None
        return bool(check(self.target, case))

    def smallest(self, failed, seconds):
        """The smallest case found so soon in which the same is wrong, what it is, and whether every
        call shows it. Others fail in another way: a simpler number may be a 0 that something
        divides by.
        """
        case, finding = as_drawn(failed)

        def alike(smaller):
            return next((one for one in check(self.target, smaller) if one.like(finding)), None)

        row = finding.verdict.at if finding.verdict and finding.tensor in BY_ROW else 0
        case = shrink(case, alike, self.settings.takes, row, seconds)
        if case.x.size > MOST:  # one as drawn is told in a few lines
            again = case.again(case.x.shape).laid_out(case.layouts)
            case = again if alike(again) else case
        shown = [alike(case) for _ in range(TIMES)]
        return case, next(filter(None, shown), finding), all(shown)

    def failure(self, property, case, finding, test, place=""):
        cases, verdict = self.failed[property], finding.verdict
        return Failure(
            property=property,
            tensor=finding.tensor,
            error=verdict and verdict.part,
            share=verdict and verdict.share,
            case=case,
            sentence=finding.sentence,
            failed=len(cases),
            tried=len(self.tried[property]),
            test=test(case, finding, self.target),
            kind=finding.kind,
            alike=sum(any(map(finding.like, others)) for _, others in cases),
            where=place,
            cases=tuple(str(one) for one, _ in cases),
            tensors=tuple(dict.fromkeys(one.tensor for _, others in cases for one in others)),
        )


def as_drawn(failed):
    """The first case that failed, if possible of three features or more, and what was found."""
    case, found = next((one for one in failed if one[0].width > 2), failed[0])
    return case, found[0]


def assert_valid(target: Any, **options: Any) -> Report:
    """The report of :func:`validate`; ``AssertionError`` with it unless all properties held."""
    __tracebackhide__ = True  # of pytest
    report = validate(target, **options)
    assert report.held, str(report)
    return report
