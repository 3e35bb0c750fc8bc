"""Every stub fails, every solution passes, and the checker behaves as it says."""

import math

import numpy as np
import pytest

from lnlib import layer_norm_forward
from lnlib.simt.cuda_access import cuda, float32
from lnlib.exercises import Exercise, Mismatch, call_unchanged, check, exercises, expect_close, expect_parts
from lnlib.variance import naive, recentred_short

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


def test_a_kept_axis_is_named_only_where_a_shape_lacks_its_last():
    lost = check("backward-dx", lambda dy, xhat, rstd, gamma: dy - dy.mean(axis=-1)).failed[1]
    assert "keepdims=True" in lost
    other = check("adjoint-pair", lambda jvp, vjp, u, dy: jvp(u) - vjp(dy)).failed[1]
    assert "could not be broadcast" in other and "keepdims" not in other


def along_xhat(kappa, xhat, gamma):
    rest = xhat**2 - (xhat**2).mean()
    rest -= xhat * (rest @ xhat) / (xhat @ xhat)
    return (rest / np.sqrt((rest**2).mean()) + np.sqrt(kappa**2 - 1) * xhat / np.sqrt((xhat**2).mean())) / gamma


def below_sigma(x, order):
    _, r, v = recentred_short(x, order)
    return abs(r.item()) < math.sqrt(v.item())


def never_ends(centre):
    while True:
        row = np.full(3, centre, np.float32)
        if naive(row)[2] < 0:
            return row


def all_of_lstsq(dx, dy, cache):
    return np.linalg.lstsq(np.ones((dx.size, 3)), dx.ravel())


@pytest.mark.parametrize("id, candidate, passed, words", [
    ("eps-for-radius", lambda sigma, radius: np.float32((sigma / radius) ** 2 - sigma**2), 0, "leaves float64"),
    ("eps-for-radius", lambda sigma, radius: (sigma / radius) ** 2, 0, "expected 0.9: off by 2e-01"),
    ("same-output", lambda x: 1 * x, 1, "x itself"),
    ("dy-with-kappa", along_xhat, 2, "eps > 0 lets a little of xhat through"),
    ("dy-with-kappa", lambda kappa, xhat, gamma: along_xhat(2 * kappa, xhat, gamma), 0, ", not 3"),
    ("jacobian-matrix", lambda x, eps: np.eye(len(x)) / np.sqrt(x.var() + eps), 0, "J is off by"),
    ("read-the-mistake", all_of_lstsq, 0, "found a tuple"),
    ("short-form", below_sigma, 10, "math domain error"),  # a negative v
    ("negative-variance", never_ends, 0, "still looking"),
])
def test_what_a_check_says(id, candidate, passed, words):
    report = check(id, candidate)
    assert len(report.passed) == passed and words in report.failed[1], report
    assert report.failed[1].endswith(words) or words != ", not 3", report


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


def test_a_mistake_that_an_earlier_check_stops_is_not_named():
    # In the check of four rows, rows paired once give what a running sum gives; but they do not pass the one before.
    report = check("sum-in-pairs", lambda terms: terms.sum(axis=0))
    assert len(report.passed) == 1
    assert "running sum" in str(report.diagnosis) and "paired once" not in str(report.diagnosis)


def no_barrier(x, y):
    mine, t = cuda.shared.array(33 * 32, float32), cuda.threadIdx.x
    for i in range(32):
        mine[i * 33 + t] = x[i * 32 + t]

    for i in range(32):
        y[i * 32 + t] = mine[t * 33 + i]


def test_a_kernel_that_fails_is_recognised_by_how_it_fails():
    # Lines and the name of the shared array are others than in the mistake that the exercise knows.
    assert str(check("no-conflicts", no_barrier).diagnosis).startswith("Nothing waits between the stores and the loads")


def test_a_function_that_numba_refuses_is_no_known_mistake():
    pytest.importorskip("numba")

    def rows(x, gamma, eps, y, rstd):
        for i in range(x.shape[0]):
            squares = x.dtype.type(0)
            for j in range(x.shape[1]):
                squares += x[i, j] ** 2
            rstd[i] = 1 / np.sqrt(squares / x.shape[1] + eps)
            f"{rstd[i]:.3f}"  # what Numba refuses
            for j in range(x.shape[1]):
                y[i, j] = x[i, j] * rstd[i] * gamma[j]

    report = check("rms-forward-rows", rows)
    assert len(report.passed) == 2 and report.diagnosis is None
