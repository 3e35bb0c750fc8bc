"""Every mistake that an exercise knows is told as itself, and says nothing that solves the exercise."""

import inspect
import re

import numpy as np
import pytest

from lnlib.exercises import check, exercises

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
        assert len(mistake.says.split()) <= 30 and mistake.says[0].isupper() and mistake.says[-1] in ".?"
        for answer in answers:
            assert len(answer) < 8 or answer not in squeezed(mistake.says), (answer, mistake.says)
