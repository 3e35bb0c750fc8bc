"""Chapter 3: answers of readers to its exercises; the numbers in the answers to its questions."""

import numpy as np
import pytest
from questions import backward, says

from lnbook.exercises import check, exercises


def test_what_the_answers_say(rng):
    g = x = np.array([1.0, -1.0])  # 3.1
    dx, _, _, r, xhat = backward(g, x)
    code = r * (g - g.mean() - xhat * g.mean() * xhat.mean())
    assert (xhat == x).all()
    assert (g * xhat).mean() == 1
    assert (dx == 0).all()
    assert (code == r * [1, -1]).all()

    dy, x = rng.standard_normal((2, 3, 5))  # 3.2
    for rows in (dy[:1], x[:1]), (dy[[0, 0]], x[[0, 0]]):
        _, dgamma, _, _, xhat = backward(*rows)
        assert np.allclose((rows[0] * xhat).mean(axis=0), dgamma) == (len(xhat) == 1)
    says("3.2", "Only test 3")

    gamma = np.array([1.0, 0.5, 0.0, 2.0, -1.0])  # 3.3
    other = dy + [0, 0, 9, 0, 0]
    assert np.array_equal(backward(dy, x, gamma)[0], backward(other, x, gamma)[0])
    dx, dgamma, *_ = backward(dy, x, gamma)
    assert np.abs(dx[:, 2]).min() > 1e-2 and abs(dgamma[2]) > 0.1

    numbers = 8 * 1024 * 4096  # 3.4
    says("3.4", r"small compared with its $\beta$")
    says(
        "3.4",
        f"{numbers / 1e6:.1f} million",
        f"{4 * numbers / 1e6:.0f} MB",
        f"{64 * 4 * numbers / 1e9:.1f} GB",
        f"{64 * 4 * numbers / 4096 / 1e6:.0f} MB",
        "4096 times less",
    )


# ---- What is lost, or taken for 0


@pytest.mark.parametrize(
    "which, words",
    [("gamma", "Your dx is 0 where gamma is 0"), ("dy", "Your dx is 0 where dy is 0")],
)
def test_a_feature_that_counts_for_nothing_in_y_still_has_a_gradient(which, words):
    """What question 3.3 asks."""
    solution = exercises()["backward-dx"].solution

    def switched_off(dy, xhat, rstd, gamma):
        return np.where({"gamma": gamma, "dy": dy}[which] == 0, 0, solution(dy, xhat, rstd, gamma))

    report = check("backward-dx", switched_off)
    assert (
        report.failed and f"a {which} of 0" in report.failed[1] and words in str(report.diagnosis)
    ), report
