"""The first cases of the random differential test, and that it sees what is wrong. ``make
differential`` has more.
"""

import differential
import numpy as np
import pytest

from lnlib import layernorm, validation

CASES, TOGETHER = 200, 10


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, CASES, TOGETHER))
def test_random_cases(first):
    _, failed = differential.run(range(first, first + TOGETHER))
    assert not failed, "\n".join(differential.tell(*failure) for failure in failed)


def test_cases_depend_on_their_number_alone():
    a, b, other = (differential.draw(number) for number in (7, 7, 8))
    assert a.story == b.story != other.story
    assert all(np.array_equal(left, right) for left, right in zip(a.arrays, b.arrays))


def killed_by(n):
    """Whether one of n cases tells that the NumPy backend is wrong."""
    return any(
        share > 1
        for number in range(n)
        for share in differential.try_case(number, ("numpy",))[1].values()
    )


WRONG = {
    "the residual is dropped": (
        layernorm,
        "centred",
        lambda a: a - np.mean(a, axis=-1, keepdims=True),
    ),
    "no row that is too small is done again": (
        validation,
        "RANGE",
        {"float32": (-1, 1e30), "float64": (-1, 1e290)},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("module, name, wrong", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_seen(module, name, wrong, monkeypatch):
    monkeypatch.setattr(module, name, wrong)
    assert killed_by(200)
