"""Chapter 3: answers of readers to its exercises; the numbers in the answers to its questions."""

import numpy as np
import pytest
from attempts import solution_with
from questions import backward, says

from lnbook.exercises import check, exercises


def mean(a):
    return a.mean(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "dx, words",
    [
        (lambda g, xhat, r: r * g - mean(g) - xhat * mean(g * xhat), "first term only"),
        (
            lambda g, xhat, r: r * (g - xhat * mean(g * xhat)) - mean(g),
            "missing in the term with the mean",
        ),
        (
            lambda g, xhat, r: r * (g - mean(g)) - xhat * mean(g * xhat),
            "in the projection 1/s is missing",
        ),
        (lambda g, xhat, r: g - mean(g) - r * xhat * mean(g * xhat), "the projection only"),
        (lambda g, xhat, r: g - r * (mean(g) + xhat * mean(g * xhat)), "missing in the first term"),
    ],
)
def test_forgotten_parentheses_are_told(dx, words):
    report = check("backward-dx", lambda dy, xhat, rstd, gamma: dx(gamma * dy, xhat, rstd))
    assert words in str(report.diagnosis), report


@pytest.mark.parametrize(
    "dx, name",
    [
        (
            lambda d, gamma, xhat, r: r * (gamma * d - mean(d) - xhat * mean(d * xhat)),
            "gamma-missing-means",
        ),
        (
            lambda d, gamma, xhat, r: (
                gamma * r * (gamma * d - mean(gamma * d) - xhat * mean(gamma * d * xhat))
            ),
            "gamma-again",
        ),
    ],
)
def test_one_mistake_with_gamma_is_told_as_one(dx, name):
    diagnosis = check(
        "backward-dx", lambda dy, xhat, rstd, gamma: dx(dy, gamma, xhat, rstd)
    ).diagnosis
    assert diagnosis.names == (name,) and diagnosis.kind == "known", diagnosis


@pytest.mark.parametrize(
    "answer, words",
    [
        (
            solution_with("dy-with-kappa", ("(kappa**2 - 1)", "(kappa)")),
            "has 1.732 along 1 and 0.000 along xhat",
        ),
        (
            lambda kappa, xhat, gamma: (1 + 0 * xhat) / gamma,
            "next to nothing of your g comes through",
        ),
    ],
)
def test_of_what_a_wrong_g_is_made(answer, words):
    assert words in check("dy-with-kappa", answer).failed[1]


def rules(*one):
    """An answer to lost-in-y: what is compared with what."""

    def lost(gamma, beta, tolerance, u):
        left, right = (side(np.abs(gamma), np.abs(beta), tolerance, u) for side in one)
        return (gamma == 0) | (left > right)

    return lost


@pytest.mark.parametrize(
    "rule, no",
    [
        (
            rules(lambda g, b, t, u: u**0.5 * b, lambda g, b, t, u: t * g),
            "unit roundoff has no part",
        ),
        (rules(lambda g, b, t, u: b / u, lambda g, b, t, u: t * g), "unit roundoff has no part"),
        (rules(lambda g, b, t, u: u * b, lambda g, b, t, u: g), "compares gamma with u"),
        (rules(lambda g, b, t, u: u**2 * b, lambda g, b, t, u: t * g), "exactly 0"),
        (lambda gamma, beta, tolerance, u: np.isclose(gamma, 0), "compares gamma with u"),
    ],
)
def test_features_tell_rules_apart(rule, no):
    report = check("lost-in-y", rule)
    assert report.failed and no not in str(report.diagnosis), report


def test_an_answer_may_draw_from_seed_0():
    def from_a_random_direction(kappa, xhat, gamma):
        rest = np.random.default_rng(0).standard_normal(len(xhat))
        rest -= rest.mean()
        rest -= xhat * (rest @ xhat) / (xhat @ xhat)
        return (rest / np.sqrt((rest**2).mean()) + np.sqrt(kappa**2 - 1)) / gamma

    report = check("dy-with-kappa", from_a_random_direction)
    assert not report.failed, report


def test_a_factor_left_out_of_a_rule_is_told():
    # Of 1 and of 1 - gamma the features with a gamma so small do not tell.
    assert "once it has a factor left out" in str(
        check(
            "lost-in-y",
            lambda gamma, beta, tolerance, u: (
                (gamma == 0) | ((np.abs(beta) - np.abs(gamma)) * u > tolerance)
            ),
        ).diagnosis
    )


def test_what_the_answers_say(rng):
    g = x = np.array([1.0, -1.0])  # 3.1
    dx, _, _, r, xhat = backward(g, x)
    code = r * (g - g.mean() - xhat * g.mean() * xhat.mean())
    assert (
        (xhat == x).all()
        and (g * xhat).mean() == 1
        and (dx == 0).all()
        and (code == r * [1, -1]).all()
    )

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
    says("3.4", r"small against its $\beta$")
    says(
        "3.4",
        f"{numbers / 1e6:.1f} million",
        f"{4 * numbers / 1e6:.0f} MB",
        f"{64 * 4 * numbers / 1e9:.1f} GB",
        f"{64 * 4 * numbers / 4096 / 1e6:.0f} MB",
        "4096 times less",
    )


# ---- What is lost, or taken for 0
# ----------------------------------------------------------------------


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


@pytest.mark.parametrize("block", [2, 8, 16, 32, 64, 128])
@pytest.mark.parametrize("always", [False, True])
def test_rows_after_the_last_whole_block_are_missed(block, always):
    def sums(dy, xhat):
        """Of whole blocks alone; where there are fewer rows than one, of all."""
        dy, xhat = (a.reshape(-1, dy.shape[-1]) for a in (dy, xhat))
        n = len(dy) // block * block if always or len(dy) > block else len(dy)
        return (dy * xhat)[:n].sum(axis=0), dy[:n].sum(axis=0)

    assert check("backward-parameters", sums).failed


def test_a_single_feature_keeps_its_axis():
    solution = exercises()["backward-parameters"].solution
    report = check(
        "backward-parameters", lambda dy, xhat: tuple(np.squeeze(a) for a in solution(dy, xhat))
    )
    assert report.failed and "has shape ()" in report.failed[1], report


def test_a_dy_of_zeros_is_told_to_have_no_kappa():
    report = check("dy-with-kappa", lambda kappa, xhat, gamma: 0 * gamma)
    assert "your dy is 0" in report.failed[1] and "nan" not in report.failed[1], report
