"""The rule of naming: the same numbers, the same failure, and the right answer has neither."""

import pytest

from normcheck.mistakes.explain import explaining


@pytest.mark.parametrize(
    "answer, fails, found",
    [
        (2, lambda n: n > 1, [2]),
        (2, lambda n: n > 2, []),  # the candidate passes what the answer failed
        (1, lambda n: False, []),  # the numbers are right: what failed is something else
        (1, lambda n: True, []),
        (2, lambda n: True, []),  # the right answer fails, too
        (4, lambda n: n > 1, []),
    ],
)
def test_a_candidate_explains_what_it_gives_and_fails_and_the_right_answer_does_not(
    answer, fails, found
):
    assert list(explaining((1, 2, 3), 1, lambda n: n == answer, fails)) == found
