"""The run: every case through the target, the failures shrunk, the report."""

import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from lnlib.validation import require_kind

from .adapters import adapt
from .cases import FAR_SHAPE, NEAR, Case, all_cases, drawer, far
from .checks import (
    CHECKS,
    CONDITIONAL_ON_NUMBERS,
    TIMES,
    call,
    check,
    misshapen,
    of_two_axes,
    plain,
)
from .judge import BY_ROW, judge
from .naming import name
from .paste import MOST, as_test, seeded
from .report import Failure, Report
from .settings import Settings
from .shrink import shrink, starting_at
from .targets import Raised, TargetError
from .where import where


def progress(cases):
    """The cases, with a progress bar after a second where tqdm is installed and somebody looks."""
    try:
        from tqdm import tqdm
    except ImportError:
        return cases
    return tqdm(cases, delay=1, leave=False, disable=None, unit=" cases")


class Interrupted(KeyboardInterrupt):
    """A run that was stopped; ``report`` has what was found until then, with cases as they were
    drawn.
    """

    def __init__(self, report):
        super().__init__("interrupted; .report has what was found until then")
        self.report = report


def validate(
    target: Any,
    kind: str = "layer_norm",
    framework: str = "numpy",
    dtypes: tuple[str, ...] = ("float32",),
    quick: bool = False,
    *,
    watch: Callable[[Case], Any] | None = None,
    **options: Any,
) -> Report:
    """Try a layer norm or RMS norm over the last axis, forward and backward, on everything known to
    go wrong.

    Parameters
    ----------
    target : pair of functions, or what the framework calls a layer
        For "numpy", "cupy" and "numba" (on arrays of that library): ``forward(x, gamma, beta, eps)
        -> (y, saved)`` and ``backward(dy, saved) -> (dx, dgamma, dbeta)``; RMS norm has no beta and
        no dbeta. For "torch" and "jax": a differentiable function ``f(x, gamma, beta, eps) -> y``;
        for "torch" also a module, or a class of modules.
    kind : "layer_norm" or "rms_norm"
    framework, dtypes, quick, and more
        See :class:`normcheck.Settings`.
    watch : function, optional
        Called with each case before it is tried.

    Returns
    -------
    report : Report
        ``str(report)`` says what held, what failed with the smallest case, and what was not tested.

    Raises
    ------
    Interrupted
        A KeyboardInterrupt, with the report on what was tried until then.
    TargetError
        If the target does not run on ordinary rows at all, or is not what it was said to be.
    """
    started = time.monotonic()
    adapted = adapt(target, Settings(kind, framework, dtypes, quick, **options))
    return _Run(adapted, watch or (lambda case: None)).report(name_of(target), started)


class _Run:
    """What was found until now.

    * ``tried``: property -> pairs (case, whether it failed). ``failed``: property -> pairs (case,
      findings). ``unjudged``: property -> why it says nothing.
    """

    def __init__(self, target, watch):
        self.target, self.watch = target, watch
        self.settings = target.settings  # what is known of a target need not be said
        self.tried, self.failed, self.unjudged, self.digits = {}, {}, {}, {}

    def report(self, called, started):
        notes = ()
        try:
            self.digits |= ordinary_digits(self.target, self.watch)
            self.try_all()
            mistake = self.mistake() if self.failed else None
            failures = list(self.failures())
            if not self.settings.quick:
                notes = tuple(digit_loss_by_offset(self.target, self.watch))
        except KeyboardInterrupt as error:
            found = tuple(
                failure_of(property, *several[0], several, self.tried[property], self.target)
                for property, several in self.failed.items()
            )
            stopped = Report(called, tuple(self.tried), found, (), self.digits, ended="interrupted")
            raise Interrupted(stopped) from error
        return Report(
            called,
            tuple(self.tried),
            tuple(sorted(failures, key=severity)),
            (*self.unjudged.values(), *self.settings.not_tested(), *self.target.lacks),
            self.digits,
            mistake,
            notes,
            seconds=time.monotonic() - started,
        )

    def try_all(self):
        self.cases = list(all_cases(self.settings, self.target.layouts, self.target.able))
        for case in progress(self.cases):
            self.watch(case)
            property = case.property
            if property in CONDITIONAL_ON_NUMBERS and check(self.target, plain(case)):
                self.unjudged[property] = f"{property}: the numbers are wrong as they are"
                continue
            found = check(self.target, case)
            self.tried.setdefault(property, []).append((case, bool(found)))
            if found:
                self.failed.setdefault(property, []).append((case, found))

    def mistake(self):
        """Which known mistake it is, or None."""
        failed = {property: [case for case, _ in cases] for property, cases in self.failed.items()}
        return name(with_callback(self.target, self.watch), failed)

    def failures(self):
        """Each property that failed, with its smallest case."""
        # Where the first call of all was right, what is wrong with others may be what the target
        # keeps of it.
        first = self.cases[0]
        first_is_wrong = any(case is first for case, _ in self.failed.get(first.property, ()))
        before = not first_is_wrong and "calls in any order" in (*self.failed, *self.unjudged)
        wrong = [
            case
            for property, several in self.failed.items()
            if property not in CHECKS
            for case, _ in several
        ]
        for property, cases in self.failed.items():
            tried = self.tried[property]
            place = where(property, tried, wrong, partial(self.probe, property))
            yield explain(self.target, property, cases, tried, self.watch, before, place)

    def probe(self, property, n):
        """Whether another width, or number of rows, fails; None if the target does not take it."""
        shape = (2, n) if property == "any width" else (n, 3)
        case = drawer(self.settings)(property, shape, self.failed[property][0][0].dtype)
        self.watch(case)
        if case.x.shape != shape or not self.settings.takes(shape):
            return None
        return bool(check(self.target, case))


def name_of(target):
    """The name of a target as its author wrote it."""
    if isinstance(target, (tuple, list)):
        return " and ".join(map(name_of, target))
    return getattr(target, "__qualname__", type(target).__name__)


def with_callback(target, watch):
    """What :func:`name` needs of a target; ``watch`` is called with each case before it is
    tried.
    """

    def calls(cases):
        watch(cases[0])
        return target.calls(cases)

    return SimpleNamespace(settings=target.settings, layouts=target.layouts, calls=calls)


def ordinary_digits(target, watch):
    """Correct digits of each tensor of the first case of every dtype. What does not run there
    cannot be tried.
    """
    found = {}
    for case in all_cases(target.settings):
        if case.dtype not in found:
            watch(case)
            try:
                outcome = call(target, case)
            except Raised as error:
                raise TargetError(
                    f"target: {error}, on {case}{of_two_axes(target, case)}"
                ) from error
            found[case.dtype] = {
                name: round(judge(name, value, case, target.settings).digits, 2)
                for name, value in outcome.tensors.items()
                if not misshapen(name, value, case)
            }
    return found


def digit_loss_by_offset(target, watch):
    """Where the digits of each tensor begin to go as rows move away from zero, in words: from ten
    times the expected error on.

    What is wrong at some distance has failed there, and nothing is said of what is farther away.
    """
    for dtype in target.settings.dtypes:
        if target.settings.rms or dtype in ("float16", "bfloat16"):
            continue
        begins = {}
        for offset in (*NEAR[1:], *far(target.settings, dtype)):
            case = drawer(target.settings)("digits", FAR_SHAPE, dtype, offset=offset, sigma=1.0)
            if not target.settings.takes(case.x.shape):
                continue
            watch(case)
            if check(target, case):
                break
            for tensor, value in call(target, case).tensors.items():
                verdict = judge(tensor, value, case, target.settings)
                if verdict.units > 10:
                    begins.setdefault(
                        tensor, f"{tensor} from {offset:g} ({verdict.digits:.1f} digits)"
                    )
        if begins:
            yield f"{dtype} loses digits as mean / sigma grows: {', '.join(begins.values())}"


def severity(failure):
    """What to show first: a property that never held, with a case of three features or more."""
    return failure.case.x.shape[-1] < 3, -failure.failed / failure.tried


def explain(target, property, failed, tried, watch, before=False, place=""):
    """The failure of one property: a case that showed it, made as small as can be while the same is
    wrong.

    It is the first of three features or more, if there is one. A smaller case may fail in another
    way: a simpler number may be a 0 that something divides by, and a target that refuses many rows
    may refuse x of one axis for another reason.
    """
    case, (finding, *_) = next((one for one in failed if one[0].x.shape[-1] > 2), failed[0])

    def alike(smaller):
        watch(smaller)
        return next((one for one in check(target, smaller) if one.like(finding)), None)

    if finding.tensor in BY_ROW and finding.verdict:
        worst = starting_at(case, finding.verdict.at)
        case = worst if alike(worst) else case
    case = shrink(case, lambda smaller: alike(smaller) is not None, target.settings.takes)
    if case.x.size > MOST:
        case = next(filter(alike, seeded(case)), case)
    shown = [alike(case) for _ in range(TIMES)]
    found = [next(filter(None, shown), finding)]
    test = partial(as_test, steady=all(shown), before=before)
    return failure_of(property, case, found, failed, tried, target, test, place)


def failure_of(property, case, found, failed, tried, target, test=as_test, place=""):
    finding, verdict = found[0], found[0].verdict
    return Failure(
        property=property,
        tensor=finding.tensor,
        error=verdict and verdict.part,
        share=verdict and verdict.share,
        case=case,
        sentence=finding.sentence,
        failed=len(failed),
        tried=len(tried),
        test=test(case, finding, target),
        kind=finding.kind,
        alike=sum(any(map(finding.like, others)) for _, others in failed),
        where=place,
        cases=tuple(str(one) for one, _ in failed),
    )


def assert_valid(target: Any, **options: Any) -> Report:
    """Raise ``AssertionError`` with the report unless every property of :func:`validate` held;
    returns the report.
    """
    report = require_kind("report", validate(target, **options), Report, "a Report")
    assert report.held, f"\n{report}"
    return report
