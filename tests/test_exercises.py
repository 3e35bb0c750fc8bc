"""Every stub fails, every solution passes, and the checker behaves as it says."""

import numpy as np
import pytest

from lnlib import layer_norm_forward
from lnlib.exercises import Exercise, Mismatch, call_unchanged, check, exercises, expect_close, expect_parts

ALL = tuple(exercises().values())
each = pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)


@each
def test_stub_fails(exercise):
    report = check(exercise.id, exercise.stub)
    assert report.failed and "not written yet" in report.failed[1]
    assert report.passed == ()


@each
@pytest.mark.parametrize("seed", range(3))
def test_solution_passes(exercise, seed):
    report = check(exercise.id, exercise.solution, seed=seed)
    assert report.failed is None, report
    assert len(report.passed) == report.total == len(exercise.checks) > 0


@each
def test_returning_nothing_fails(exercise):
    assert check(exercise.id, lambda *args, **kwargs: None).failed


def test_an_exception_is_a_failed_check():
    def broken(*args, **kwargs):
        raise KeyError("oops")

    report = check(ALL[0].id, broken)
    assert "raised KeyError: 'oops'" in report.failed[1]


def test_report_never_claims_more_than_the_checks():
    text = repr(check(ALL[0].id, ALL[0].solution))
    assert f"{len(ALL[0].checks)} of {len(ALL[0].checks)} checks passed" in text
    assert "correct" not in text


@pytest.mark.parametrize("id, candidate, error, words", [
    ("no-such", len, ValueError, ("id", "no-such", ALL[0].id)),
    (ALL[0].id, 3, TypeError, ("candidate", "int", "function")),
])
def test_bad_input(id, candidate, error, words):
    with pytest.raises(error) as caught:
        check(id, candidate)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("found, message", [
    (None, "None"), ([1.0], "shape"), ([True, False], "dtype"), ([1.0, float("nan")], "NaN"), ([1.0, 2.1], "off by"),
])
def test_expect_close_says_what_is_wrong(found, message):
    with pytest.raises(Mismatch, match=message):
        expect_close(found, [1.0, 2.0], 1e-3)
    expect_close([1.0, 2.0001], [1.0, 2.0], 1e-3)


def test_ids_are_unique(monkeypatch):
    import lnlib.exercises.ch01 as ch01

    monkeypatch.setattr(ch01, "EXERCISES", (ALL[0], Exercise(*ALL[0])))
    with pytest.raises(ValueError, match="twice"):
        exercises()


def test_call_unchanged_notices_a_changed_argument():
    assert call_unchanged(lambda x, n: x * n, x=np.ones(3), n=2).sum() == 6
    with pytest.raises(Mismatch, match="argument x"):
        call_unchanged(lambda x: x.__imul__(2), x=np.ones(3))
    _, cache = layer_norm_forward(np.arange(3.0), np.ones(3), np.zeros(3))
    with pytest.raises(Mismatch, match="argument cache"):
        call_unchanged(lambda cache: cache.xhat.fill(0), cache=cache)


@pytest.mark.parametrize("found", [None, 1.0, np.ones(2), (1,), [1, 2, 3]])
def test_expect_parts_wants_a_tuple_of_the_right_length(found):
    with pytest.raises(Mismatch, match="expected 2 arrays"):
        expect_parts(found, 2)
    assert expect_parts([1, 2], 2) == [1, 2]
