"""Chapter 2's exercises refuse likely mistakes, and name them."""

import numpy as np
import pytest
from questions import backward, norm, says

from lnbook.exercises import check


def at_right_angles(x, gamma):
    v, c = np.arange(7.0) ** 2, x - x.mean()
    v -= v.mean()
    return (v - c * (v @ c) / (c @ c)) / gamma


@pytest.mark.parametrize(
    "dy, words",
    [
        (lambda x, gamma: (x - x.mean()) / abs(gamma), "a fraction of"),
        (at_right_angles, "all of gamma"),
        (lambda x, gamma: (x - x.mean()) / (gamma + 1e-5), "0.000 is along 1 and 1.000 along xhat"),
    ],
)
def test_a_direction_that_gets_through_is_refused(dy, words):
    assert words in check("null-direction", dy).failed[1]


# Questions: the numbers in the answers are computed, then looked for in their text


def test_what_the_answers_say(rng):
    x = rng.standard_normal(9) + 2  # 2.1
    claimed = 2 * x / 9 - 2 * x.mean()
    assert claimed.sum() == pytest.approx(2 * x.mean() - 2 * 9 * x.mean())
    shift = (np.var(x + 1e-3) - np.var(x)) / 1e-3
    assert abs(shift) < 1e-10 and abs(claimed.sum()) > 1

    x = rng.standard_normal(1000)  # 2.2
    for g, low, high in ((np.ones(1000), 0.9, 1.0), (rng.standard_normal(1000), 0.02, 0.09)):
        dx, _, _, r, xhat = backward(g, x)
        diagonal = r * g * (1 - 1 / 1000 - xhat**2 / 1000)
        assert low < norm(diagonal - dx) / norm(r * g) < high

    x, w = rng.standard_normal((2, 6))  # 2.3
    for gamma, share in ((np.ones(6), True), (rng.uniform(0.5, 1.5, 6), False)):
        first, second = backward(w, x, gamma), backward(w + 7, x, gamma)
        assert np.allclose(first[0], second[0], rtol=0, atol=1e-13) == share
        np.testing.assert_allclose(second[1] - first[1], 7 * first[4], rtol=1e-12)
        np.testing.assert_allclose(second[2] - first[2], 7, rtol=1e-13)

    short, long = backward(w, x)[0], backward(w, 10 * x)[0]  # 2.4
    assert norm(short) / norm(long) == pytest.approx(10)
    assert norm(short) / norm(x) / (norm(long) / norm(10 * x)) == pytest.approx(100)
    says("2.4", "a tenth", "a hundredth", "100 times as far")
