"""The first cases of the random differential test; ``make differential`` has more."""

import differential
import pytest

CASES, TOGETHER = 200, 10


@pytest.mark.slow
@pytest.mark.parametrize("first", (*range(0, CASES, TOGETHER), 65005135))  # equal terms
def test_random_cases(first):
    _, failed = differential.run(range(first, first + TOGETHER))
    assert not failed, "\n".join(differential.tell(*failure) for failure in failed)
