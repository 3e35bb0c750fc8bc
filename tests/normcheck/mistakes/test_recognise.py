"""A wrong answer of any kind: compared with changes of the solution, or by how its numbers follow
from the right ones.
"""

import numpy as np
import pytest

from lnbook.exercises import Call, Exercise, Ran, each, expect, expect_close, registry
from lnbook.exercises.run import plainly, reply
from normcheck.mistakes import change
from normcheck.mistakes.change import changed, function_of
from normcheck.mistakes.recognise import (
    Checks,
    Diagnosis,
    Failure,
    Reply,
    agree,
    combined,
    explaining,
    is_uninformative,
    recognise,
    relation,
)

A, ZERO, ROWS = np.array([[1.0, 2], [3, 4]]), np.zeros(2), np.array([0.1, 0.2, 0.7])
_R32 = ROWS.astype(np.float32)


@pytest.mark.parametrize(
    "words, pairs",
    [
        ("has the digits of float32", [(_R32.astype(float), ROWS)]),
        ("None", [(_R32, ROWS + 1e-4)]),
        ("None", [(1.123456789, 1.123457789)]),
        ("has the other sign", [(-A, A)]),
        ("is the transpose", [(A.T, A)]),
        ("None", [(A[0], A)]),
        ("has the right numbers in another shape", [(A.reshape(4, 1), A)]),
        ("None", [(A.ravel() + 1, A)]),
        ("is the other way round along its first axis", [(A[::-1], A)]),
        ("has the right numbers in another order", [(ROWS[[1, 0, 2]], ROWS)]),
        ("None", [(np.linalg.inv(np.diag([1, 1e6])), np.diag([1, 1e6]))]),
        ("is the reciprocal", [(1 / ROWS, ROWS)]),
        ("is the square of", [(ROWS**2, ROWS)]),
        ("is the square root", [(ROWS**0.5, ROWS)]),
        ("is 1 too large", [(ROWS + 1, ROWS)]),
        ("is 1 too small", [(ROWS - 1, ROWS)]),
        ("None", [(A, A)]),
        ("None", [(A, A * np.nan)]),
        ("None", [(True, False)]),
        ("Part 2 of 2 of your result is 2 times", [(("one", 6.4), ("other", 3.2))]),
        ("None", [((6.4, 1.0), (3.2,))]),
        # In every pair, and of each the same.
        ("None", [(-A, A), (A.T, A)]),
        ("None", [(2.6, 1.3), (3.9, 1.3)]),
        # One integer is often a simple multiple of another, and one number a fraction of another by
        # chance.
        ("None", [(9, 6)]),
        ("is 3/2 times", [(9, 6), (12, 8)]),
        ("is 2 times the right one", [(14, 7)]),
        ("is 10 times", [(13.0, 1.3)]),
        ("None", [(14.3, 1.3)]),
        ("None", [(ZERO + 3, ZERO)]),
        ("None", [(ZERO, ROWS[1:])]),
        ("is 1025/1024 times", [(1025 * ROWS, 1024 * ROWS)]),
        ("None", [(1026 * ROWS, 1025 * ROWS)]),
        # Of fewer digits, a fraction with a large denominator would be near any number.
        ("is 33/32 times", [(33 * _R32, 32 * _R32)]),
        ("None", [(34 * _R32, 33 * _R32)]),
        ("None", [(5, 5), (1, 3), (1, 7)]),
    ],
)
def test_how_numbers_follow_from_the_right_ones(words, pairs):
    said = str(relation(*([(value, []) for value in values] for values in zip(*pairs))))
    assert words in said, said


def replies(*results):
    return [Reply(result, []) for result in results]


@pytest.mark.parametrize(
    "result, little",
    [
        (True, True),
        (np.True_, True),
        (0, True),
        (ZERO, True),
        ((0.0, True), True),
        ((0.0, 1.0), False),
        (2.5, False),
        ("", False),
        (ZERO + 1, False),
        (Failure("E", ""), True),
        (Failure("E", "", True), False),
    ],
)
def test_what_is_uninformative(result, little):
    assert is_uninformative(replies(result)) is is_uninformative(replies(0, result)) is little


# ---- How it is found


def square(x):
    return x * x


def asking(x, judge=lambda found, x: expect_close(found, x * x, 1e-9), **options):
    return each(f"of {x}", lambda rng: Call({"x": x}), judge, **options)


FIRST, SECOND = ("x * x", "2 * x", "First."), ("x * x", "x + x", "Second.")


def told(monkeypatch, candidate, mistakes, checks, solution=square):
    """The diagnosis of a candidate for an exercise with these checks and mistakes."""
    mistakes = tuple(change(*one) for one in mistakes)
    exercise = Exercise("an-exercise", 5, "derive", solution, checks, mistakes=mistakes)
    monkeypatch.setattr(registry, "exercises", lambda: {exercise.id: exercise})
    return registry.check(exercise.id, candidate).diagnosis


def test_little_evidence_is_said_to_be_little(monkeypatch):
    nothing = "x * x", "x - x", "Nothing is left."
    found = told(monkeypatch, lambda x: 0.0, [nothing], (asking(1.0),))
    assert str(found) == "It may be this: Nothing is left."  # before "is 1 too small"


def test_a_mistake_is_compared_by_results_and_not_by_the_log(monkeypatch):
    logs = iter(range(1000))
    check = asking(
        2.5,
        lambda ran, x: expect_close(ran.results, x * x, 1e-9),
        call=lambda answer, arguments: Ran(answer(**arguments), next(logs)),
    )
    assert told(monkeypatch, lambda x: 5.0, [FIRST], (check,)).sentence == "First."


def test_a_diagnosis_that_crashes_is_a_defect_that_costs_no_report(monkeypatch):
    exercise = Exercise("an-exercise", 5, "derive", square, (asking(2.5),), lambda answer: 1 / 0)
    monkeypatch.setattr(registry, "exercises", lambda: {exercise.id: exercise})
    with pytest.warns(
        RuntimeWarning, match="no diagnosis for an-exercise: ZeroDivisionError"
    ) as warned:
        report = registry.check("an-exercise", lambda x: 0.0)
    assert warned[0].filename == __file__  # the line that asked
    assert report.failed and report.diagnosis is None
    # What the candidate raises on the way is no defect of ours.
    asks = exercise._replace(diagnose=lambda answer: reply(plainly, answer, {"x": None}))
    monkeypatch.setattr(registry, "exercises", lambda: {exercise.id: asks})
    assert registry.check("an-exercise", lambda x: np.pi * x).diagnosis is None


# ---- Comparing, and changing

WORDS = np.array(["one", None])


@pytest.mark.parametrize(
    "a, b, same",
    [
        (1.0, 1.0 + 1e-12, True),
        (1.0, 1.0 + 1e-8, False),
        (np.float32(1), 1 + 1e-7, True),
        (np.float32(1), 1.001, False),
        (np.float16(1), 1.005, True),
        (np.float16(1), 1.02, False),
        (3, 4, False),
        ([1.0, 2.0], (1.0, 2.0), True),
        ([1.0], [1.0, 2.0], False),
        ([1.0], np.ones(1), False),
        ("race", "fine", False),
        (WORDS, WORDS, True),
        (None, 0.0, False),
        (True, False, False),
        (0.0, np.False_, False),
        ({"a": 1.0}, {"a": 1.0}, True),
        ({"a": 1.0}, {"b": 1.0}, False),
        (np.array([1, np.nan]), np.array([1, np.nan]), True),
        (np.array([np.nan, 1e-12]), np.array([np.nan, 2e-12]), False),
        (np.inf, -np.inf, False),
        (np.ones(2), np.ones((1, 2)), False),
        (1 + 1j, 1 + 1j, True),
        (1e200, 2e200, False),
    ],
)
def test_agree(a, b, same):
    assert agree(a, b) is agree(b, a) is same


def test_who_explains_a_failure():
    """Numbers that are even (same) and above 5 (fails); none if the right one is either."""
    even, above = (lambda n: n % 2 == 0), (lambda n: n > 5)
    assert [*explaining(range(3, 9), 1, even, above)] == [6, 8]
    assert not [*explaining(range(3, 9), 2, even, above), *explaining([8], 7, even, above)]


def test_each_sentence_of_several_ends_with_one_mark():
    why, so = (Diagnosis("known", (), sentence, ()) for sentence in ("Why is it?", "So it is"))
    assert combined([why, None, so]).sentence == "Why is it? So it is."


def test_a_change_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="found 'y' 0 times"):
        change("y", "z", "").of(square)
    with pytest.raises(ValueError, match="found 'x' 3 times, expected 1"):
        change("x", "z", "").of(square)
    assert changed("x * x", [("x", "y")], times=None) == "y * y"
    with pytest.raises(ValueError, match="expected some"):
        changed("x * x", [("z", "y")], times=None)
    assert function_of("def twice(x):\n    return k * x\n", "twice", {"k": 2})(3) == 6


def test_expressions_agree_however_they_are_written():
    sympy = pytest.importorskip("sympy")
    x, f, (n, k) = sympy.Symbol("x"), sympy.Function("f"), sympy.symbols("n k", integer=True)
    for a, b, same in (
        (n * x * (x + 1), n * x**2 + n * x, True),
        (n * x * (x + 1), n * x**2 + x, False),
        (n, k, False),
        (x, "x", False),
        (x, 2, False),
        (sympy.Integer(2), 2, True),
        (f(x), f(x), True),
        (f(x), x, False),  # which has no value
        (n, n + (n - 2) * (n - 3), True),
        (n, 2 * n - 2, False),
        (n, 2 * n - 3, False),  # asked at 3 and at 2
        (x, x + (x - 2) * (x - 3), False),
        (sympy.KroneckerDelta(n, k), 0, False),
        (sympy.Matrix([x, n]), sympy.Matrix([x, n]), True),
        (sympy.Matrix([x, n]), sympy.Matrix([x, k]), False),
        (sympy.Matrix([x, n]), sympy.Matrix([[x, n]]), False),
    ):
        assert agree(a, b) is agree(b, a) is same, (a, b)


# ---- What is asked, and of whom


def positive(x):
    return x > 0


def recognised(
    answer,
    *mistakes,
    here=(1.5, 2.5),
    everywhere=None,
    solution=square,
    message="wrong",
    says=None,
    before=(),
    verdicts=None,
):
    """The diagnosis of an answer which fails a check that asks at ``here``, where all checks ask at
    ``everywhere``.

    ``says``: what the check says of a function, by default that of all whose replies are not the
    solution's. ``before``: the results at 1.5 of functions that an earlier check stops.
    ``verdicts``: what all checks say of a function, by default of all the same.
    """

    def replied(function, x):
        try:
            return Reply(function(x), [])
        except Exception as error:  # of a variation of the solution
            return Reply(Failure(type(error).__name__, str(error)), [])

    def replies(function, at=here):
        return [replied(function, x) for x in at]

    def wrong(function):
        return None if replies(function) == replies(solution) else message

    checks = Checks(
        replies,
        says or wrong,
        lambda function: function(1.5) not in before,
        lambda function: replies(function, everywhere or here),
        verdicts or (lambda function: [message]),
    )
    return recognise(answer, message, solution, [change(*one) for one in mistakes], checks)


def test_of_several_mistakes_those_count_that_no_earlier_check_stops():
    also = "x * x", "3 * x if x == 1.5 else 2 * x", "Also."
    near = "x * x", "2 * x * (1 + 1e-12)", "Near."
    assert recognised(lambda x: 2 * x, near, FIRST).sentence == "First."  # to the bit
    assert recognised(lambda x: 2 * x * (1 + 1e-12), FIRST).sentence == "First."  # nearly
    found = recognised(lambda x: 2 * x, FIRST, SECOND)
    assert found.kind == "one of"
    assert found.sentence == "It is one of these, which give the same here: First. Or: Second."
    assert (
        recognised(lambda x: 2 * x, FIRST, also, here=(2.5, 3.5), before=(4.5,)).sentence
        == "First."
    )
    # What says little needs more.
    assert recognised(lambda x: 0.0, ("x * x", "0 * x", "Nothing."), before=(0.0,)) is None
    assert recognised(lambda x: 0.0, ("x * x", "0 * x", "Nothing.")).kind == "may be"


def test_by_what_one_check_says_a_mistake_is_named_only_where_all_checks_say_the_same():
    """Of true and false, zeros and NaN many things come."""
    always, nothing = ("x > 0", "x > -99", "Always."), ("x * x", "x * float('nan')", "NaN.")

    def told(answer, mistake, solution, there):
        return recognised(
            answer,
            mistake,
            here=(-0.5,),
            solution=solution,
            verdicts=lambda f: [str(f(x)) for x in there],
        )

    assert (
        told(lambda x: x > -3, always, positive, (-0.5, -2)).sentence == "It may be this: Always."
    )
    assert told(lambda x: x > -3, always, positive, (-0.5, -4)) is None
    for other, kind in ((float("nan"), "may be"), (1.0, None)):
        found = told(lambda x: float("nan") if x < 0 else other, nothing, square, (-0.5, 1))
        assert (found.kind if found else None) == kind


def test_a_relation_holds_in_all_checks():
    def answer(x):
        return 3 * square(x) if x < 5 else 7 * square(x)

    assert "is 3 times the right one" in recognised(answer, everywhere=(1.5, 2.5, 4.5)).sentence
    assert recognised(answer, everywhere=(1.5, 2.5, 6.5)) is None


def test_what_a_check_says_counts_where_the_numbers_are_right():
    """Of a log, say: then all checks have to say the same of both."""

    def says(function):
        return None if function is square else "too many reads"

    again = "x * x", "x * x + 0", "Read again."
    other = "x * x", "x * x + 1", "Another."
    found = recognised(lambda x: x * x, again, other, message="too many reads", says=says)
    assert found == ("may be", (), "It may be this: Read again.", ())
    before = {"before": (2.25,), "message": "too many reads", "says": says}
    assert recognised(lambda x: x * x, again, **before) is None
    assert recognised(lambda x: x * x, again, message="other", says=says) is None


def test_an_exception_with_a_meaning_is_told_where_nothing_else_is_known():
    def ends(means, kind="DataRace"):
        return lambda x: Failure(kind, "two threads", True, means)

    known = {"message": "it ends with DataRace"}
    assert recognised(ends("Two write."), **known) == ("error", (), "Two write.", ())
    assert recognised(ends(""), **known) is None
    assert recognised(ends("Two write.", "IndexError"), **known) is None


# -----------------------------------------------------------------------------------------------


def named(x):
    return [str(x)]


def counted(x):
    return x + 0


def vector(x):
    return np.array([x, 2.0])


@pytest.mark.parametrize("others, is_told", [(0, True), (1, False)])
@pytest.mark.parametrize(
    "solution, right, wrong",
    [
        (named, "[str(x)]", "[str(x + 1)]"),
        (counted, "x + 0", "x + 1"),
        (vector, "[x, 2.0]", "[x + 1, 2.0]"),
    ],
)
def test_a_mistake_gives_the_same_in_all_calls_of_all_checks(
    monkeypatch, solution, right, wrong, others, is_told
):
    """Also of names, of which few calls have others, and of a check that comes after the one that
    fails.
    """
    checks = [
        each(
            word,
            lambda rng, of=of: [Call({"x": x}) for x in of],
            lambda found, x: expect(np.all(found == solution(x)), "wrong"),
        )
        for word, of in (("one", range(5)), ("two", range(5, 19)))
    ]

    def candidate(x):
        return solution(x + 1 if x < 19 - others else 7 * x)

    found = told(monkeypatch, candidate, [(right, wrong, "One more.")], checks, solution)
    assert (found is not None and found.sentence == "One more.") == is_told, found


def test_what_is_nearly_right_is_no_mistake_that_is_as_near():
    near = "x * x", "x * x * (1 - 3e-9)", "Too small."
    assert recognised(lambda x: x * x * (1 + 3e-9), near, message="off by 3e-9") is None
    assert recognised(lambda x: x * x * (1 - 3e-9), near).kind == "known"  # to the bit
