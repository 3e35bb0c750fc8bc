"""Every solution passes, every mistake that an exercise knows is told as itself, and the checker
behaves as it says.
"""

import functools
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest

from lnbook.exercises import Mismatch, check, exercises, expect_close
from normcheck.mistakes.change import function_with

ALL = tuple(exercises().values())
each = pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)


@each
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_solution_passes(exercise, seed):
    report = check(exercise.id, exercise.solution, seed=seed)
    assert report.failed is None, report
    assert len(report.passed) == report.total == len(exercise.checks) > 0


def interpreted(exercise):
    """The mark of what runs an exercise's kernels many times, or long loops in Python."""
    return (
        pytest.mark.slow
        if exercise.chapter in (13, 14) or exercise.id in ("short-form", "lane-sum")
        else ()
    )


@pytest.mark.parametrize("exercise", [pytest.param(e, marks=interpreted(e), id=e.id) for e in ALL])
def test_no_result_fails(exercise):
    report = check(exercise.id, lambda *args, **kwargs: None)
    assert report.failed and report.failed[1], report


def test_there_are_mistakes_and_what_an_exercise_trains():
    for exercise in ALL:
        assert exercise.diagnose or len(exercise.mistakes) >= 2, exercise.id
        trains = exercise.trains.split(", ")
        assert 1 <= len({*trains}) == len(trains) <= 2, exercise.id
        assert {*trains} <= {"derive", "implement", "test", "measure"}, exercise.id


@functools.cache
def with_mistake(exercise, mistake):
    return check(exercise.id, mistake.of(exercise.solution))


@pytest.mark.parametrize(
    "exercise, mistake",
    [
        pytest.param(e, m, marks=interpreted(e) if k else ())
        for e in ALL
        for k, m in enumerate(e.mistakes)
    ],
    ids=lambda v: getattr(v, "id", None) or re.sub(r"\s+", " ", v.changes[0][1])[:40],
)
def test_a_mistake_is_told(exercise, mistake):
    report = with_mistake(exercise, mistake)
    assert report.failed, "it passes"
    # What a tolerance lets pass is told by a number.
    assert mistake.says in str(report.diagnosis) or "% too large. At your D" in str(
        report.diagnosis
    ), report
    assert report.explain().startswith(report.diagnosis.kind)


#: The checks of these need no other attempts: some registered mistake is stopped by each.
NEED_NO_OTHERS = """
statistics-shape null-direction lost-in-y complex-safe-variance probe-for-eps
test-buffers survivors safe-eps largest-sigma rescue digits-of-dx sum-in-pairs
rms-norm-cost free-operations step-peak lane-sum rms-forward-rows warp-sum
coalesced no-conflicts layer-backward
"""


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=interpreted(exercises()[id])) for id in NEED_NO_OTHERS.split()]
)
def test_each_check_stops_a_mistake(id):
    exercise = exercises()[id]
    stopped = {with_mistake(exercise, mistake).failed[0] for mistake in exercise.mistakes}
    assert stopped == {one.title for one in exercise.checks}


def test_an_exception_is_a_failed_check():
    def broken(*args, **kwargs):
        raise KeyError("oops")

    report = check(ALL[0].id, broken)
    assert "raised KeyError: 'oops'" in report.failed[1]


@pytest.mark.parametrize(
    "found, message",
    [
        (None, "None"),
        ([1.0], "shape"),
        ([True, False], "dtype"),
        ([1.0, float("nan")], "NaN"),
        ([1.0, 2.1], "off by"),
    ],
)
def test_expect_close_says_what_is_wrong(found, message):
    with pytest.raises(Mismatch, match=message):
        expect_close(found, [1.0, 2.0], 1e-3)
    expect_close([1.0, 2.0001], [1.0, 2.0], 1e-3)
    with pytest.raises(Mismatch, match=r"allowed\)$"):  # not for want of digits of float32
        expect_close(np.float32([1.0, 2.00001]), [1.0, 2.0], 1e-6)


def test_a_mistake_that_an_earlier_check_stops_is_not_named():
    # In the check of four rows, rows paired once give what a running sum gives; but they do not
    # pass the one before.
    report = check("sum-in-pairs", lambda terms: terms.sum(axis=0))
    assert len(report.passed) == 1
    assert "running sum" in str(report.diagnosis) and "paired once" not in str(report.diagnosis)


# ---- The same mistakes in other words


def m(a):
    return a.mean(axis=-1, keepdims=True)


def var_with_ddof(x, groups, eps=1e-5):
    parts = np.stack(np.split(x, groups, axis=-1), axis=-2)
    return ((parts - m(parts)) / np.sqrt(parts.var(axis=-1, keepdims=True, ddof=1) + eps)).reshape(
        x.shape
    )


def no_projection(dy, cache):
    g, leading = cache.gamma * dy, tuple(range(dy.ndim - 1))
    return cache.rstd * (g - m(g)), (dy * cache.xhat).sum(axis=leading), dy.sum(axis=leading)


def columns(order, sign=1):
    def coefficients(dx, dy, cache):
        g, h = cache.gamma * dy, cache.xhat
        terms = (g, sign * m(g) * np.ones_like(g), sign * h * m(g * h))
        return np.linalg.lstsq(
            np.stack([(cache.rstd * terms[k]).ravel() for k in order], -1), dx.ravel()
        )[0]

    return coefficients


def of(id, change):
    """An exercise, and its solution with a change of what it returns."""
    solution = exercises()[id].solution
    return id, lambda *args: change(solution(*args))


@pytest.mark.parametrize(
    "id, candidate, kind, words",
    [
        ("group-norm", var_with_ddof, "known", "one less than the size"),
        # Other numbers than the mistake's: no name, but what the check says.
        ("same-output", lambda x: 7 * x, None, ""),
        ("null-direction", lambda x, gamma: 3 * (x - x.mean()), None, ""),
        ("write-the-test", lambda backward: True, "may be", "accepts everything"),
        ("same-output", lambda x: x.copy(), None, ""),
        # With the right step in some calls by chance, and in others not:
        (
            "best-step",
            lambda order, u, length: (
                length * 10.0 ** np.round(np.log10((u / order) ** (1 / (order + 1))))
            ),
            None,
            "",
        ),
        # Zeros that another mistake returns as well, which earlier checks refute.
        ("survivor", no_projection, "one of", "Your dx is that of"),
        ("read-the-mistake", columns((0, 1, 2), -1), "known", "have the other sign"),
        ("short-form", lambda x, order: True, "may be", "Every row is trusted"),
        (*of("group-norm", lambda a: 3 * a), "relation", "is 3 times the right one"),
        (*of("best-step", lambda h: 1 / h), "relation", "reciprocal"),
        (*of("one-direction", lambda two: tuple(map(abs, two))), "relation", "the other sign"),
        # What is none of them has no name.
        (*of("group-norm", lambda a: 3.14159 * a), None, ""),
        (*of("eigenvalues", lambda a: a * np.nan), None, ""),
        ("group-norm", lambda x, groups, eps=1e-5: x.no_such_name, None, ""),
        (*of("statistics-shape", lambda shape: (1, *shape[1:])), None, ""),
    ],
)
def test_a_mistake_in_other_words(id, candidate, kind, words):
    report = check(id, candidate)
    assert report.failed and (report.diagnosis.kind if report.diagnosis else None) == kind, report
    assert words in str(report.diagnosis), report


@pytest.mark.parametrize(
    "id, old, new",
    [
        # The same as a known mistake's in the check that fails, and other names or numbers in the
        # next ones.
        ("survivors", "naive_loss(ratio, var / eps,", "naive_loss(ratio, eps,"),
        ("digits-left", "u * ratio**2, u * ratio]", "u * ratio**2, u * u]"),
        ("jacobian-matrix", "xhat = c / s", "xhat = eps / s"),
        # It is not the local arrays that are read too early.
        ("layer-backward", "= dgamma[k]\n", "+= dgamma[k]\n"),
        # Put back to rounding only.
        ("central-difference", "shift[i] = h", "shift[i], x[i] = h, x[i] + h - 2 * h + h"),
        # As near to what is right as a known mistake is, on the other side.
        ("constant-rows", "direction * along) / s", "direction * along) / s * (1 + 1e-9)"),
    ],
)
def test_what_agrees_with_a_mistake_here_and_there_is_not_named(id, old, new):
    report = check(id, function_with(exercises()[id].solution, ((old, new),)))
    assert report.failed and (report.diagnosis is None or report.diagnosis.kind != "known"), report


def test_a_mistake_that_is_tried_warns_of_nothing():
    """The means of no rows are NumPy's warning, under the name of the book's solution."""

    def means(dy, xhat):
        rows = tuple(range(dy.ndim - 1))
        return (dy * xhat).mean(axis=rows), dy.mean(axis=rows)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = check("backward-parameters", means)
    assert "averaged" in str(report.diagnosis) and not caught, caught


def test_a_check_imports_its_own_chapter_only():
    """All chapters' take a browser a second."""
    code = (
        "import sys; from lnbook.exercises import check; check('backward-dx', lambda *a: 1)\n"
        "print(sorted(m[-4:] for m in sys.modules if m.startswith('lnbook.exercises.ch')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "['ch03']\n"
