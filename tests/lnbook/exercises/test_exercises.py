"""Every solution passes, every mistake that an exercise knows is told as itself, and the checker
behaves as it says.
"""

import functools
import inspect
import math
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest

from lnbook.exercises import (
    Mismatch,
    check,
    exercises,
    expect_close,
    expect_parts,
    of_small_error,
    registry,
    run,
)
from lnlib import rms_norm_forward
from lnlib.variance import naive, recentred_short
from normcheck.mistakes.change import function_with
from normcheck.mistakes.compare import agree
from normcheck.mistakes.slips import slips
from simt.cuda_access import FULL, cuda, float32

ALL = tuple(exercises().values())
each = pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)


@each
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
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


ODD = {}, "text", (), True, np.ones((2, 2, 2, 2)), np.array(["a"])


@pytest.mark.parametrize("exercise", [pytest.param(e, marks=interpreted(e), id=e.id) for e in ALL])
@pytest.mark.parametrize(
    "odd", [None, *(pytest.param(odd, marks=pytest.mark.slow) for odd in ODD)], ids=repr
)
def test_an_odd_result_fails(exercise, odd):
    report = check(exercise.id, lambda *args, **kwargs: odd)
    assert report.failed and report.failed[1], report


def test_there_are_mistakes_and_what_an_exercise_trains():
    for exercise in ALL:
        assert exercise.diagnose or len(exercise.mistakes) >= 2, exercise.id
        trains = exercise.trains.split(", ")
        assert 1 <= len({*trains}) == len(trains) <= 2, exercise.id
        assert {*trains} <= {"derive", "implement", "test", "measure"}, exercise.id


def test_eps_is_the_same_where_it_is_not_given():
    """Of solutions; readers see it in the stub, and checks may always give one."""
    found = {
        e.id: inspect.signature(e.solution).parameters["eps"].default
        for e in ALL
        if "eps" in inspect.signature(e.solution).parameters
    }
    assert len(found) > 5 and {*found.values()} <= {1e-5, inspect.Parameter.empty}, found


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
    assert report.explain().startswith(report.diagnosis.kind) and report.diagnosis.because


# The checks of these need no other attempts: some registered mistake is stopped by each.
@pytest.mark.parametrize(
    "id",
    [
        pytest.param(id, marks=interpreted(exercises()[id]))
        for id in (
            "statistics-shape",
            "null-direction",
            "lost-in-y",
            "complex-safe-variance",
            "probe-for-eps",
            "test-buffers",
            "survivors",
            "safe-eps",
            "largest-sigma",
            "rescue",
            "digits-of-dx",
            "sum-in-pairs",
            "rms-norm-cost",
            "free-operations",
            "step-peak",
            "lane-sum",
            "shared-lines",
            "rms-forward-rows",
            "warp-sum",
            "coalesced",
            "no-conflicts",
            "choose-partials",
        )
    ],
)
def test_each_check_stops_a_mistake(id):
    exercise = exercises()[id]
    stopped = {with_mistake(exercise, mistake).failed[0] for mistake in exercise.mistakes}
    assert stopped == {one.title for one in exercise.checks}


def test_nothing_said_gives_the_answer_away():
    def squeezed(text):
        return re.sub(r"\s", "", text)

    for exercise in ALL:
        lines = inspect.getsource(exercise.solution).split("\n", 1)[1].splitlines()
        answers = {
            squeezed(re.sub(r"^return |^[\w, ]+ [-+*/|]?= ", "", line.strip())) for line in lines
        } - {""}
        for mistake in exercise.mistakes:
            assert len(mistake.says.split()) <= 30 and mistake.says[-1] in ".?"
            assert mistake.says[0].isupper() or mistake.says.startswith("eps "), mistake.says
            for answer in answers:
                assert len(answer) < 8 or answer not in squeezed(mistake.says), (
                    answer,
                    mistake.says,
                )


def test_an_exception_is_a_failed_check():
    def broken(*args, **kwargs):
        raise KeyError("oops")

    report = check(ALL[0].id, broken)
    assert "raised KeyError: 'oops'" in report.failed[1]


def test_a_kept_axis_is_named_only_where_a_shape_lacks_its_last():
    lost = check("backward-dx", lambda dy, xhat, rstd, gamma: dy - dy.mean(axis=-1)).failed[1]
    assert "keepdims=True" in lost
    other = check("adjoint-pair", lambda jvp, vjp, v, dy: jvp(v) - vjp(dy)).failed[1]
    assert "could not be broadcast" in other and "keepdims" not in other


def along_a_cube(kappa, xhat, gamma):
    """Of three numbers with one in the middle nothing is left of xhat**3 but rounding."""
    basis = np.stack([np.ones(len(xhat)), xhat], axis=1)
    g = xhat**3 - basis @ np.linalg.lstsq(basis, xhat**3, rcond=None)[0]
    return (g / np.linalg.norm(g) + np.sqrt((kappa**2 - 1) / len(xhat))) / gamma


def digits_by_a_naive_sigma(x):
    ratio = abs(x.mean()) / np.sqrt((x * x).mean() - x.mean() ** 2)
    return tuple(-np.log10(np.clip([2.0**-24 * ratio**2, 2.0**-24 * ratio], 2.0**-24, 1)))


def along_xhat(kappa, xhat, gamma):
    rest = xhat**2 - (xhat**2).mean()
    rest -= xhat * (rest @ xhat) / (xhat @ xhat)
    return (
        rest / np.sqrt((rest**2).mean()) + np.sqrt(kappa**2 - 1) * xhat / np.sqrt((xhat**2).mean())
    ) / gamma


def below_sigma(x, order):
    _, r, v = recentred_short(x, order)
    return abs(r.item()) < math.sqrt(v.item())


def never_ends(centre):
    while True:
        row = np.full(3, centre, np.float32)
        if naive(row)[2] < 0:
            return row


def alone(value, width):
    return value


def all_of_lstsq(dx, dy, cache):
    return np.linalg.lstsq(np.ones((dx.size, 3)), dx.ravel())


@pytest.mark.parametrize(
    "id, candidate, passed, words",
    [
        (
            "eps-for-radius",
            lambda sigma, radius: np.float32((sigma / radius) ** 2 - sigma**2),
            0,
            "leaves float64",
        ),
        (
            "eps-for-radius",
            lambda sigma, radius: (sigma / radius) ** 2,
            0,
            "expected 0.9: off by 2e-01",
        ),
        ("same-output", lambda x: 1 * x, 1, "x itself"),
        ("same-output", lambda x: x.mean() * x + 1, 0, "with the other sign"),
        (
            "same-output",
            lambda x: (2 + x.mean()) * x + 1,
            0,
            "with the other sign",
        ),  # near zero it is right
        ("warp-sum", alone, 0, "lane 0 gets its own number, "),
        (
            "same-output",
            lambda x: np.linspace(0.5, 1.5, len(x)) * x + 1,
            0,
            "the same two for all of x",
        ),
        ("dy-with-kappa", along_a_cube, 0, "next to nothing of your g comes through"),
        ("dy-with-kappa", along_xhat, 2, "eps > 0 lets a little of xhat through"),
        (
            "dy-with-kappa",
            lambda kappa, xhat, gamma: along_xhat(2 * kappa, xhat, gamma),
            0,
            ", not 3",
        ),
        (
            "jacobian-matrix",
            lambda x, eps: np.eye(len(x)) / np.sqrt(x.var() + eps),
            0,
            "J is off by",
        ),
        ("read-the-mistake", all_of_lstsq, 0, "found a tuple"),
        ("short-form", below_sigma, 7, "math domain error"),  # a negative v
        pytest.param("negative-variance", never_ends, 0, "still looking", marks=pytest.mark.slow),
    ],
)
def test_what_a_check_says(id, candidate, passed, words):
    report = check(id, candidate)
    assert len(report.passed) == passed and words in report.failed[1], report
    assert words != ", not 3" or ", not 3; for each 1" in report.failed[1], report


def test_report_never_claims_more_than_the_checks():
    text = repr(check(ALL[0].id, ALL[0].solution))
    assert f"{len(ALL[0].checks)} of {len(ALL[0].checks)} checks passed" in text
    assert "correct" not in text


@pytest.mark.parametrize(
    "id, candidate, error, words",
    [
        ("no-such", len, ValueError, ("id", "no-such", ALL[0].id)),
        (ALL[0].id, 3, TypeError, ("candidate", "int", "function")),
    ],
)
def test_bad_input(id, candidate, error, words):
    with pytest.raises(error) as caught:
        check(id, candidate)
    assert all(word in str(caught.value) for word in words)


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


def test_ids_are_unique(monkeypatch):
    import lnbook.exercises.ch01 as ch01

    monkeypatch.setattr(ch01, "EXERCISES", (ALL[0], ALL[0]))
    with pytest.raises(ValueError, match="twice"):
        exercises()


@pytest.mark.parametrize("found", [None, 1.0, np.ones((2, 3)), np.ones(3), (1,), [1, 2, 3]])
def test_expect_parts_wants_a_tuple_of_the_right_length(found):
    with pytest.raises(Mismatch, match="expected 2 arrays"):
        expect_parts(found, 2)
    assert expect_parts([1, 2], 2) == [1, 2] == expect_parts(np.array([1, 2]), 2).tolist()


def test_a_mistake_that_an_earlier_check_stops_is_not_named():
    # In the check of four rows, rows paired once give what a running sum gives; but they do not
    # pass the one before.
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
    assert str(check("no-conflicts", no_barrier).diagnosis).startswith(
        "Nothing waits between the stores and the loads"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "id, change, means",
    [
        ("warp-sum", ("width // 2", "width / 2"), "Which division of integers gives an integer?"),
        ("warp-sum", ("FULL, ", "(1 << width) - 1, "), "whose mask leaves it out"),
        (
            "warp-sum",
            ("while distance", "while cuda.laneid % width == 0 and distance"),
            "Which condition keeps lanes away?",
        ),
        ("second-stage", ("float32(0)", "0"), "Which number should be float32(...)?"),
        (
            "second-stage",
            ("value += parts", "value += total[c] + parts"),
            "Which line should write to it",
        ),
        ("second-stage", ("part * D + c", "G * part * D + c"), "An index lies outside its array"),
        (
            "second-stage",
            ("cuda.grid(1)", "cuda.blockIdx.x * 32 + cuda.threadIdx.x"),
            "Threads of two blocks use one",
        ),
        ("second-stage", ("cuda.grid(1)", "cuda.blockIdx.x"), "Two threads store to one place"),
        (
            "no-conflicts",
            ("cuda.syncthreads()", "if lane:\n        cuda.syncthreads()"),
            "Which condition stands before it?",
        ),
        (
            "no-conflicts",
            (
                "lane]\n    cuda.syncthreads()",
                "lane]\n        cuda.syncthreads()\n        y[r] = tile[0]",
            ),
            "one place",
        ),
    ],
)
def test_a_kernel_that_fails_in_a_way_of_its_own_is_told_what_the_error_means(id, change, means):
    exercise = exercises()[id]
    report = check(id, function_with(exercise.solution, (change,)))
    assert report.diagnosis.kind == "error" and means in str(report.diagnosis), report
    assert len(str(report.diagnosis).split()) <= 30


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


# ---- The same mistakes in other words
# ------------------------------------------------------------------


def m(a):
    return a.mean(axis=-1, keepdims=True)


def var_with_ddof(x, groups, eps=1e-5):
    parts = np.stack(np.split(x, groups, axis=-1), axis=-2)
    return ((parts - m(parts)) / np.sqrt(parts.var(axis=-1, keepdims=True, ddof=1) + eps)).reshape(
        x.shape
    )


def no_absolute_value(jvp, vjp, v, dy):
    a, b = dy * jvp(v), vjp(dy) * v
    size = max(np.linalg.norm(a), abs(np.sum(a))) + max(np.linalg.norm(b), abs(np.sum(b)))
    return (np.sum(a) - np.sum(b)) / size


def sign_kept(gamma, beta, tolerance, u=2.0**-24):
    return (gamma == 0) | (u * beta / np.where(gamma == 0, 1, gamma) > tolerance)


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


@pytest.mark.parametrize(
    "id, candidate, kind, words",
    [
        ("group-norm", var_with_ddof, "known", "one less than the size"),
        ("adjoint-pair", no_absolute_value, "known", "negative"),
        # Other numbers than the mistake's, the same verdict:
        ("same-output", lambda x: 7 * x, "may be", "scaled, and that is all"),
        ("same-output", lambda x: x - 5, "may be", "shifted, and that is all"),
        ("null-direction", lambda x, gamma: 3 * (x - x.mean()), "may be", "if gamma were 1"),
        (
            "probe-for-eps",
            lambda eps: (np.arange(4.0), np.zeros(4), np.ones(4), np.arange(4.0)),
            "may be",
            "gamma is 0 or",
        ),
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
        (
            "eps-for-radius",
            lambda sigma, radius: min(1.0, sigma**2 * (1 / radius**2 - 1)),
            "relation",
            "is 1 where the right",
        ),
        # Zeros that another mistake returns as well, which earlier checks refute.
        (
            "backward-parameters",
            lambda dy, xhat: tuple(
                sum(a.reshape(-1, a.shape[-1])) if a.size else 0.0 for a in (dy * xhat, dy)
            ),
            None,
            "",
        ),
        ("digits-left", digits_by_a_naive_sigma, None, ""),
        ("lost-in-y", sign_kept, "known", "signs of gamma and beta differ"),
        (
            "lost-in-y",
            lambda gamma, beta, tol, u: (gamma == 0) | (u * abs(beta) < tol * abs(gamma)),
            "slip",
            "a comparison turned round",
        ),
        ("survivor", no_projection, "one of", "Your dx is that of"),
        ("read-the-mistake", columns((1, 2, 0)), "relation", "another order"),
        ("read-the-mistake", columns((0, 1, 2), -1), "known", "have the other sign"),
        ("short-form", lambda x, order: True, "may be", "Every row is trusted"),
    ],
)
def test_a_mistake_in_other_words(id, candidate, kind, words):
    report = check(id, candidate)
    assert report.failed and (report.diagnosis.kind if report.diagnosis else None) == kind, report
    assert words in str(report.diagnosis), report


def sent_first(value, width):
    distance = 16
    while distance > 16 // width:
        value += cuda.shfl_xor_sync(FULL, value, distance)
        distance //= 2
    return value


def rms_test(tolerance, of_dx=1, of_dgamma=1):
    def is_right(backward):
        x, u, dy = np.random.default_rng(1).standard_normal((3, 2, 3, 5)) / 50
        gamma, v = np.random.default_rng(2).standard_normal((2, 5))
        dx, dgamma = backward(dy, rms_norm_forward(x, gamma)[1])
        if dx.shape != x.shape or dgamma.shape != gamma.shape:
            return False
        h = 1e-30j
        slope = (
            dy * rms_norm_forward(x + of_dx * h * u, gamma + of_dgamma * h * v)[0]
        ).sum().imag / 1e-30
        return bool(
            abs((of_dx * dx * u).sum() + (of_dgamma * dgamma * v).sum() - slope)
            <= tolerance * abs(slope)
        )

    return is_right


def same_x(layer):
    rng = np.random.default_rng(1)
    x, dy = rng.standard_normal((2, 4, 7))
    gamma, beta = rng.standard_normal((2, 7))
    first = layer(x, gamma, beta, dy, 1e-5)
    kept = [a.copy() for a in first]
    layer(x, gamma + 1, beta, dy, 1e-5)
    return all(map(np.array_equal, first, kept))


@pytest.mark.parametrize(
    "id, candidate, words",
    [
        ("warp-sum", alone, "In groups of 8 your lane 0 adds up the numbers of these lanes: 0. "),
        ("warp-sum", sent_first, "these lanes: 0, 4, 8, 12, 16, 20, 24, 28. "),
        ("write-the-test", rms_test(0.3), "a dx that is 30 % too large"),
        ("write-the-test", rms_test(1e-9, of_dx=0), "Your test does not look at dx."),
        ("write-the-test", rms_test(1e-9, of_dgamma=0), "Your test does not look at dgamma."),
        ("test-buffers", same_x, "has the x and dy of the first"),
    ],
)
def test_what_an_answer_does_is_read_off(id, candidate, words):
    report = check(id, candidate)
    assert report.failed and words in str(report), report


# ---- What has no name
# ----------------------------------------------------------------------------------


def _of(id, change):
    solution = exercises()[id].solution
    return id, lambda *args: change(solution(*args))


@pytest.mark.parametrize(
    "answer, words",
    [
        (_of("group-norm", lambda a: 3 * a), "is 3 times it"),
        (_of("group-norm", lambda a: -a / 7), "is -1/7 times it"),
        (_of("group-norm", lambda a: -a), "has the other sign"),
        (_of("group-norm", lambda a: a.astype(np.float32).astype(float)), "digits of float32"),
        (_of("group-norm", lambda a: a[None]), "another shape"),
        (_of("jacobian-matrix", lambda a: a**2), "is the square,"),
        (_of("eigenvalues", lambda a: np.roll(a, 1)), "another order"),
        (_of("best-step", lambda h: 1 / h), "reciprocal"),
        (_of("best-step", lambda h: h + 1), "1 too large"),
        (_of("eps-for-radius", lambda eps: 768 / 767 * eps), "is 768/767 times"),
    ],
)
def test_simple_relations_are_told(answer, words):
    report = check(*answer)
    assert (
        report.failed and report.diagnosis.kind == "relation" and words in str(report.diagnosis)
    ), report


@pytest.mark.parametrize(
    "answer",
    [
        _of("group-norm", lambda a: 3.14159 * a),
        _of("group-norm", lambda a: a + a**2),
        _of("eigenvalues", lambda a: a * np.nan),
        _of("eigenvalues", lambda a: None),
        _of("group-norm", lambda a: "text"),
        _of("statistics-shape", lambda a: (2, 2, 2, 2)),
        ("group-norm", lambda x, groups, eps=1e-5: x.no_such_name),
    ],
)
def test_what_is_none_of_them_is_not_named(answer):
    report = check(*answer)
    assert report.failed and report.diagnosis is None, report


@pytest.mark.parametrize(
    "error, array, words",
    [
        (1e-7, np.float64(np.float32(0.1)), "has no more"),
        (1e-7, 0.1, "a step in float32"),
        (1e-3, 0.1, ""),
        (1e-7, np.float32(0.1), "is float32"),
        (1e-10, 0.1, "difference quotient"),
        (1e-12, 0.1, ""),
    ],
)
def test_a_small_error_says_whose_size_it_has(error, array, words):
    said = of_small_error(error, np.asarray(array))
    assert words in said and bool(words) == bool(said)


@pytest.mark.parametrize("id", ["backward-dx", "eps-outside", "constant-rows"])
def test_float32_work_returned_as_float64_says_so(id):
    solution = exercises()[id].solution

    def candidate(*args):
        return solution(
            *(a.astype(np.float32) if isinstance(a, np.ndarray) else a for a in args)
        ).astype(float)

    report = check(id, candidate)
    assert (
        "right to the digits of float32" in report.failed[1]
        and "leaves float64" in report.failed[1]
    ), report


@pytest.mark.parametrize(
    "id, old, new",
    [
        # The same as a known mistake's in the check that fails, and other names or numbers in the
        # next ones.
        ("survivors", "naive_loss(ratio, var / eps,", "naive_loss(ratio, eps,"),
        ("digits-left", "u * ratio**2, u * ratio]", "u * ratio**2, u * u]"),
        ("jacobian-matrix", "xhat = c / s", "xhat = eps / s"),
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


#: Of these, one of many answers is right, a size is free, or the tolerance is that of a rough rule.
FREE = {
    "same-output",
    "null-direction",
    "dy-with-kappa",
    "one-direction",
    "survivor",
    "probe-for-eps",
    "digits-left",
    *(e.id for e in ALL if e.id.startswith("input-")),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "exercise", [e for e in ALL if e.id not in FREE], ids=lambda exercise: exercise.id
)
def test_no_slip_in_a_solution_passes_unless_it_changes_nothing(exercise):
    """Of up to 25, drawn; what passes gives the solution's numbers in all calls."""
    some = slips(exercise.solution)
    for words, function in [some[k] for k in np.random.default_rng(5).permutation(len(some))[:25]]:
        if any(message(one, function) for one in exercise.checks):
            continue
        for one in exercise.checks:
            for call in run.questions(one, np.random.default_rng(1)):
                replies = [
                    registry.replied(one.replay or one.call, f, call.arguments)
                    for f in (function, exercise.solution)
                ]
                assert agree(*replies), words


def message(one, function):
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run.verdict(one, np.random.default_rng(1), run.here(function))


def test_an_exact_relation_comes_before_the_nearest_entry_of_a_family():
    exercise = exercises()["backward-dx"]

    def turned(*args):  # linear in dy, so that it may be near an entry
        return exercise.solution(*args)[::-1]

    diagnosis = check("backward-dx", turned).diagnosis
    assert exercise.diagnose(turned).kind == "nearest"
    assert diagnosis.kind == "relation" and "the other way round" in str(diagnosis)


def test_a_check_imports_its_own_chapter_only():
    """All chapters' take a browser a second."""
    code = (
        "import sys; from lnbook.exercises import check; check('backward-dx', lambda *a: 1)\n"
        "print(sorted(m[-4:] for m in sys.modules if m.startswith('lnbook.exercises.ch')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "['ch03']\n"
