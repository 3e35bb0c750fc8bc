"""Every mistake that an exercise knows is told as itself, and says nothing that solves the exercise."""

import inspect
import re

import numpy as np
import pytest

from lnlib.exercises import (Exercise, Mismatch, Mistake, check, exercises, expect, expect_close, mistakes, note,
                             of_small_error, uncompiled)
from lnlib.exercises.mistakes import agree

ALL = tuple(exercises().values())
each = pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)


@each
def test_there_are_mistakes(exercise):
    assert exercise.diagnose or len(exercise.mistakes) >= 2


@pytest.mark.parametrize("exercise, mistake", [(e, m) for e in ALL for m in e.mistakes],
                         ids=lambda v: getattr(v, "id", None) or re.sub(r"\s+", " ", v.new)[:40])
def test_a_mistake_is_told(exercise, mistake):
    assert inspect.getsource(exercise.solution).count(mistake.old) == 1
    report = check(exercise.id, mistake.of(exercise.solution))
    assert report.failed, "it passes"
    # A family of backwards has words of its own.
    assert report.diagnosis and (mistake.says in str(report.diagnosis) or exercise.diagnose), report


@each
def test_nothing_said_gives_the_answer_away(exercise):
    def squeezed(text):
        return re.sub(r"\s", "", text)

    lines = inspect.getsource(exercise.solution).split("\n", 1)[1].splitlines()
    answers = {squeezed(re.sub(r"^return |^[\w, ]+ [-+*/|]?= ", "", line.strip())) for line in lines} - {""}
    for mistake in exercise.mistakes:
        assert len(mistake.says.split()) <= 30 and mistake.says[-1] in ".?"
        assert mistake.says[0].isupper() or mistake.says.startswith("eps "), mistake.says
        for answer in answers:
            assert len(answer) < 8 or answer not in squeezed(mistake.says), (answer, mistake.says)


# ---- The same mistakes in other words ------------------------------------------------------------------

def m(a):
    return a.mean(axis=-1, keepdims=True)


def var_with_ddof(x, groups, eps=1e-5):
    parts = np.stack(np.split(x, groups, axis=-1), axis=-2)
    return ((parts - m(parts)) / np.sqrt(parts.var(axis=-1, keepdims=True, ddof=1) + eps)).reshape(x.shape)


def one_sided(f, x, h):
    steps = h * np.eye(x.size).reshape(x.size, *x.shape)
    return np.array([(f(x + step) - f(x)) / h for step in steps]).reshape(x.shape)


def unbiased(x):
    return ((x - m(x)) ** 2).sum(axis=-1, keepdims=True) / (x.shape[-1] - 1)


def no_absolute_value(jvp, vjp, u, dy):
    a, b = dy * jvp(u), vjp(dy) * u
    size = max(np.linalg.norm(a), abs(np.sum(a))) + max(np.linalg.norm(b), abs(np.sum(b)))
    return (np.sum(a) - np.sum(b)) / size


def half_projection():
    from sympy import KroneckerDelta
    from lnlib.symbolic import D, i, j, s, xhat
    return (KroneckerDelta(i, j) - xhat[i] * xhat[j] / D / 2) / s


def sign_kept(gamma, beta, tolerance, u=2.0**-24):
    return (gamma == 0) | (u * beta / np.where(gamma == 0, 1, gamma) > tolerance)


def no_projection(dy, cache):
    g, leading = cache.gamma * dy, tuple(range(dy.ndim - 1))
    return cache.rstd * (g - m(g)), (dy * cache.xhat).sum(axis=leading), dy.sum(axis=leading)


def mean_moved(x, eps=1e-5):
    from lnlib.variance import wide
    mean, _, v = wide(x)
    return (x - (mean + m(x - mean))) / np.sqrt(v + np.float32(eps))


def columns(order, sign=1):
    def coefficients(dx, dy, cache):
        g, h = cache.gamma * dy, cache.xhat
        terms = (g, sign * m(g) * np.ones_like(g), sign * h * m(g * h))
        return np.linalg.lstsq(np.stack([(cache.rstd * terms[k]).ravel() for k in order], -1), dx.ravel())[0]
    return coefficients


@pytest.mark.parametrize("id, candidate, kind, words", [
    ("eps-for-radius", lambda sigma, radius: sigma / radius**2 - sigma, "known", "grows like sigma"),
    ("group-norm", var_with_ddof, "known", "one less than the size"),
    ("jacobian-matrix", lambda x, eps=1e-5: np.eye(len(x)) / np.sqrt(np.var(x) + eps)
     - np.full(len(x), 1 / len(x) / np.sqrt(np.var(x) + eps)), "known", "stands for the variance"),
    ("eigenvalues", lambda x, eps: np.concatenate(([0, 0], np.full(len(x) - 2, (x.var() + eps) ** -0.5))), "known",
     "0 for every eps"),
    ("rms-jacobian", half_projection, "known", "counts half"),
    ("central-difference", one_sided, "known", "one side"),
    ("complex-safe-variance", unbiased, "known", "D - 1"),
    ("best-step", lambda order, u, length: length * np.exp(np.log(u) / (1 + order)), "known",
     "both errors are equal"),
    # Only the sign of the rounding error differs, so the numbers do not; what the check says does.
    ("adjoint-pair", no_absolute_value, "known", "negative"),
    # Other numbers than the mistake's, the same verdict:
    ("same-output", lambda x: 7 * x, "may be", "scaled, and that is all"),
    ("same-output", lambda x: x - 5, "may be", "shifted, and that is all"),
    ("null-direction", lambda x, gamma: 3 * (x - x.mean()), "may be", "if gamma were 1"),
    ("probe-for-eps", lambda eps: (np.arange(4.0), np.zeros(4), np.ones(4), np.arange(4.0)), "may be", "gamma is 0"),
    ("write-the-test", lambda backward: True, None, ""),
    ("same-output", lambda x: x.copy(), None, ""),
    ("lost-in-y", sign_kept, "known", "signs of gamma and beta differ"),
    ("lost-in-y", lambda gamma, beta, tol, u: (gamma == 0) | (u * abs(beta) < tol * abs(gamma)), None, ""),
    # Every mistake that fails where it fails is refuted by the check before.
    ("survivor", no_projection, None, ""),
    ("repair-the-mean", mean_moved, "known", "added to m"),
    ("read-the-mistake", columns((1, 2, 0)), "relation", "another order"),
    ("read-the-mistake", columns((0, 1, 2), -1), "known", "carry a sign"),
    ("short-form", lambda x, order: True, "may be", "Every row is trusted"),
])
def test_a_mistake_in_other_words(id, candidate, kind, words):
    report = check(id, candidate)
    assert report.failed and (report.diagnosis.kind if report.diagnosis else None) == kind, report
    assert words in str(report.diagnosis), report


# ---- What has no name ----------------------------------------------------------------------------------

def _of(id, change):
    solution = exercises()[id].solution
    return id, lambda *args: change(solution(*args))


@pytest.mark.parametrize("answer, words", [
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
])
def test_simple_relations_are_told(answer, words):
    report = check(*answer)
    assert report.failed and report.diagnosis.kind == "relation" and words in str(report.diagnosis), report


@pytest.mark.parametrize("answer", [
    _of("group-norm", lambda a: 3.14159 * a), _of("group-norm", lambda a: a + a**2),
    _of("eigenvalues", lambda a: a * np.nan), _of("eigenvalues", lambda a: None), _of("group-norm", lambda a: "text"),
    _of("statistics-shape", lambda a: (2, 2, 2, 2)), ("group-norm", lambda x, groups, eps=1e-5: x.no_such_name)])
def test_what_is_none_of_them_is_not_named(answer):
    report = check(*answer)
    assert report.failed and report.diagnosis is None, report


def test_a_transpose_and_an_inverse():
    a = np.array([[1.0, 2], [3, 4]])
    for b, words in ((a.T, "transpose"), (np.linalg.inv(a), "inverse"), (a[::-1], "other way round")):
        assert words in str(mistakes._relation([(b, [])], [(a, [])]))
    assert mistakes._relation([(a, [])], [(a, [])]) is None
    # One integer is often a simple multiple of another.
    assert mistakes._relation([(9, [])], [(6, [])]) is None
    assert "3/2" in str(mistakes._relation([(9, []), (12, [])], [(6, []), (8, [])]))
    # Of float32, a fraction with a large denominator would be near any number.
    b = np.array([1, 2], np.float32)
    assert mistakes._relation([(np.float32(1.0371) * b, [])], [(b, [])]) is None
    assert "3/2" in str(mistakes._relation([(np.float32(1.5) * b, [])], [(b, [])]))
    # Arguments that were changed are not a result.
    assert mistakes._relation([(1.0, [2 * a])], [(1.0, [a])]) is None
    assert "2 times" in str(mistakes._relation([(None, [a, 2 * a])], [(None, [a, a])]))


# ---- How it is found -----------------------------------------------------------------------------------

def square(x):
    return x * x


def fill(x, y):
    y[:] = 2 * x


def _exercise(solution, test, *known):
    return Exercise("an-exercise", 1, "An exercise", solution, solution, (("a check", test),),
                    mistakes=tuple(Mistake(*one) for one in known))


def _told(exercise, candidate):
    def run(answer):
        try:
            exercise.checks[0][1](answer, np.random.default_rng(0))
        except Mismatch as mismatch:
            return str(mismatch)
    return mistakes.recognise(exercise, run, candidate)


def test_mistakes_that_agree_are_one_of():
    exercise = _exercise(square, lambda candidate, rng: expect_close(candidate(2.5), 6.25, 1e-9),
                         ("x * x", "2 * x", "First."), ("x * x", "x + x", "Second."), ("x * x", "x + 1", "Third."))
    found = _told(exercise, lambda x: 5.0)
    assert found.kind == "one of" and "First." in str(found) and "Second." in str(found) and "Third" not in str(found)
    assert _told(exercise, lambda x: 3.5 + 1e-12).sentence == "Third."


def test_a_mistake_that_passes_the_check_is_not_meant():
    def test(candidate, rng):
        expect_close(candidate(2.0), 4.0, 1e-9)
        candidate(3.0)
        expect(candidate.__name__ != "named", "not this name")

    def named(x):
        return 2 * x

    assert _told(_exercise(square, test, ("x * x", "2 * x", "Twice.")), named) is None


def test_right_numbers_are_no_mistake():
    def test(candidate, rng):
        expect_close(candidate(2.0), 4.0, 1e-9)
        expect(getattr(candidate, "py_func", candidate) is square, "it must be square itself")

    found = _told(_exercise(square, test, ("x * x", "x**2", "A power.")), lambda x: x * x)
    assert found.kind == "may be"


def test_little_evidence_is_said_to_be_little():
    always = [check("write-the-test", mistake.of(exercises()["write-the-test"].solution)).diagnosis
              for mistake in exercises()["write-the-test"].mistakes]
    assert {diagnosis.kind for diagnosis in always} == {"may be"}  # True and False are all there is
    exercise = _exercise(square, lambda candidate, rng: expect_close(candidate(1.0), 1.0, 1e-9),
                         ("x * x", "x - x", "Nothing is left."))
    assert str(_told(exercise, lambda x: 0.0)) == "It may be this: Nothing is left."  # before "is 1 too small"


def test_an_error_of_the_same_size_is_not_the_same_mistake():
    exercise = _exercise(square, lambda candidate, rng: expect_close(candidate(1.7), 2.89, 1e-9),
                         ("x * x", "2 * x * x", "Twice."))
    assert _told(exercise, lambda x: 1e-5 * np.pi) is None


def test_what_an_earlier_check_stops_is_not_named_beside_others():
    exercise = _exercise(square, lambda candidate, rng: expect_close(candidate(2.5), 6.25, 1e-9),
                         ("x * x", "2 * x", "First."), ("x * x", "x + x + 0 / x", "Second."))

    def run(answer):
        return "wrong" if answer(2.5) != 6.25 else None

    def at_zero(answer):
        try:
            return answer(0.0) == 0
        except ZeroDivisionError:
            return False

    assert mistakes.recognise(exercise, run, lambda x: 5.0, at_zero).sentence == "First."
    assert mistakes.recognise(exercise, run, lambda x: 5.0).kind == "one of"


def test_what_an_earlier_check_stops_may_not_be_it():
    exercise = _exercise(square, lambda candidate, rng: expect(candidate(2.5) == 6.25, "wrong"),
                         ("x * x", "2 * x", "First."), ("x * x", "x - x", "Second."))

    def run(answer):
        return "wrong" if answer(2.5) != 6.25 else None

    def other(x):  # neither's numbers
        return 2 * np.pi

    assert "First. Or: Second." in str(mistakes.recognise(exercise, run, other))
    assert "First" not in str(mistakes.recognise(exercise, run, other, lambda answer: answer(5) == 0))
    assert mistakes.recognise(exercise, run, other, lambda answer: False) is None
    # Zeros say little: that they agree does not outweigh the check before.
    assert str(mistakes.recognise(exercise, run, lambda x: 0.0)) == "It may be this: Second."
    assert "Second" not in str(mistakes.recognise(exercise, run, lambda x: 0.0, lambda answer: False))


def test_an_exact_relation_comes_before_the_nearest_entry_of_a_family():
    diagnosis = check("backward-dx", lambda *args: exercises()["backward-dx"].solution(*args) ** 2).diagnosis
    assert exercises()["backward-dx"].diagnose(lambda *args: exercises()["backward-dx"].solution(*args) ** 2) \
        .kind == "nearest"
    assert diagnosis.kind == "relation" and "is the square," in str(diagnosis)


def test_what_a_function_fills_is_its_result():
    def test(candidate, rng):
        y = np.zeros(3)
        candidate(np.arange(3.0), y)
        expect_close(y, 2 * np.arange(3.0), 1e-9)

    exercise = _exercise(fill, test, ("2 * x", "x", "Once."), ("2 * x", "x**3", "Cubed."))
    assert _told(exercise, lambda x, y: y.__setitem__(slice(None), x * x * x)).sentence == "Cubed."
    assert "3 times" not in str(_told(exercise, lambda x, y: y.__setitem__(slice(None), 7 * x)))


def test_a_kernel_is_compared_by_what_its_test_notes():
    from lnlib import simt
    from lnlib.simt.cuda_access import cuda

    def kernel(x, y):
        t = cuda.threadIdx.x
        y[t] = x[t] + x[t]

    def other(x, y):
        y[cuda.threadIdx.x] = x[cuda.threadIdx.x] * x[cuda.threadIdx.x]

    def test(candidate, rng):
        x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
        simt.launch(candidate, 1, 4, x, y)
        note(y)
        expect_close(y, 2 * x, 1e-6)

    kernel.__globals__["cuda"] = cuda
    exercise = _exercise(kernel, test, ("x[t] + x[t]", "x[t]", "Once."), ("x[t] + x[t]", "x[t] ** 2", "Squared."))
    assert _told(exercise, other).sentence == "Squared."


def test_uncompiled_is_the_answer_only_while_a_mistake_is_looked_for():
    seen = []

    def test(candidate, rng):
        seen.append(uncompiled(candidate) is candidate)
        expect_close(candidate(2.0), 4.0, 1e-9)

    assert uncompiled(square) is None
    _told(_exercise(square, test, ("x * x", "3 * x", "Thrice.")), lambda x: 6.0)
    assert seen and all(seen)
    assert note("kept nowhere") is None and mistakes._trace is None


@pytest.mark.parametrize("a, b, same", [
    (1.0, 1.0 + 1e-12, True), (1.0, 1.0 + 1e-8, False), (np.float32(1), 1 + 1e-7, True), (3, 3, True), (3, 4, False),
    ([1.0, 2.0], (1.0, 2.0), True), ([1.0], [1.0, 2.0], False), ("race", "race", True), ("race", "fine", False),
    (None, None, True), (None, 0.0, False), (True, False, False), (0.0, np.False_, False),
    ({"a": 1.0}, {"a": 1.0}, True),
    ({"a": 1.0}, {"b": 1.0}, False), (np.array([1, np.nan]), np.array([1, np.nan]), True), (np.nan, 1.0, False),
    (np.inf, -np.inf, False), (np.ones(2), np.ones((1, 2)), False), (1 + 1j, 1 + 1j, True)])
def test_agree(a, b, same):
    assert agree(a, b) is agree(b, a) is same


def test_a_change_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="found 0 times"):
        Mistake("y", "z", "").of(square)
    with pytest.raises(ValueError, match="found 3 times"):
        Mistake("x", "z", "").of(square)


@pytest.mark.parametrize("error, array, words", [
    (1e-7, np.float64(np.float32(0.1)), "has no more"), (1e-7, 0.1, "a step in float32"), (1e-3, 0.1, ""),
    (1e-7, np.float32(0.1), ""), (1e-11, 0.1, "")])
def test_a_small_error_says_whose_size_it_has(error, array, words):
    said = of_small_error(error, np.asarray(array))
    assert words in said and bool(words) == bool(said)


@pytest.mark.parametrize("id", ["backward-dx", "eps-outside", "constant-rows"])
def test_float32_work_returned_as_float64_says_so(id):
    solution = exercises()[id].solution

    def candidate(*args):
        return solution(*(a.astype(np.float32) if isinstance(a, np.ndarray) else a for a in args)).astype(float)

    report = check(id, candidate)
    assert "right to the digits of float32" in report.failed[1] and "leaves float64" in report.failed[1], report
