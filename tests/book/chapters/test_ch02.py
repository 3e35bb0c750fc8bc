"""Chapter 2's exercises refuse likely mistakes, and name them."""

import numpy as np
import pytest
from attempts import failed
from questions import backward, norm, says

from lnbook.exercises import check
from lnbook.exercises.ch02 import eigenvalues_solution


def mean(a):
    return a.mean(axis=-1, keepdims=True)


def eps_outside(factor, eps_inside=False):
    """The solution with another factor on its last term, or eps inside the root."""

    def candidate(dy, x, gamma, eps):
        c, g = x - mean(x), gamma * dy
        sigma = np.sqrt(mean(c * c))
        s = np.sqrt(sigma**2 + eps) if eps_inside else sigma + eps
        return (g - mean(g) - factor(sigma, s) * c / s * mean(g * c / s)) / s

    return candidate


def rms(term):
    def candidate():
        from sympy import KroneckerDelta

        from lnlib import symbolic as sym

        return KroneckerDelta(sym.i, sym.j) / sym.s - term(sym)

    return candidate


def other_s(sym):
    from sympy import Symbol

    return sym.xhat[sym.i] * sym.xhat[sym.j] / (sym.D * Symbol("s"))


def jacobian(dx):
    """An answer from a function of D, c, s, xhat and I."""

    def candidate(x, eps=1e-5):
        c = x - x.mean()
        s = np.sqrt((c * c).mean() + eps)
        return dx(len(x), c, s, c / s, np.eye(len(x)))

    return candidate


def quotient(x, eps=1e-5):
    h = 1e-6 * np.eye(len(x))
    ahead, behind = (
        (rows - mean(rows)) / np.sqrt(rows.var(axis=-1, keepdims=True) + eps)
        for rows in (x + h, x - h)
    )
    return (ahead - behind).T / 2e-6


def slope_one(dy, x, gamma, eps):
    c, g = x - mean(x), gamma * dy
    s = np.sqrt(mean(c * c)) + eps
    dvar = -(g * c).sum(axis=-1, keepdims=True) / s**2
    return (g - mean(g)) / s + dvar * 2 * c / x.shape[-1]


def bracket(dy, x, gamma, eps):
    c, g = x - mean(x), gamma * dy
    sigma = np.sqrt(mean(c * c))
    return g / (sigma + eps) - mean(g) - c / sigma * mean(g * c / (sigma + eps))


def sigma_in_both(dy, x, gamma, eps):
    c, g = x - mean(x), gamma * dy
    sigma = np.sqrt(mean(c * c))
    return (g - mean(g) - c / sigma * mean(g * c / sigma)) / (sigma + eps)


SLOW = [
    ("eigenvalues", lambda x, eps: np.roll(eigenvalues_solution(x, eps), 1), "another order"),
    ("eigenvalues", lambda x, eps: eigenvalues_solution(x, 2 * eps), "off by"),
    (
        "eigenvalues",
        lambda x, eps: np.append(0.0, eigenvalues_solution(x, eps)[2:].tolist() + [1.0]),
        "number 2, 7 of 7 is off",
    ),
    ("rms-jacobian", rms(lambda sym: sym.xhat[sym.i] * sym.xhat[sym.j] / (4 * sym.s)), "off by"),
    (
        "rms-jacobian",
        rms(
            lambda sym: (
                sym.xhat[sym.i] * sym.xhat[sym.j] / (sym.D * sym.s) - (sym.D - 4) * sym.xhat[sym.j]
            )
        ),
        "off by",
    ),
    (
        "rms-jacobian",
        rms(lambda sym: sym.x[sym.i] * sym.x[sym.j] / (sym.D * sym.s**3)),
        "still contains x;",
    ),
    ("rms-jacobian", rms(other_s), "another symbol"),
    ("eps-outside", eps_outside(lambda sigma, s: sigma / s), "upside down"),
    ("eps-outside", eps_outside(lambda sigma, s: 1, eps_inside=True), "inside the root"),
]


@pytest.mark.parametrize(
    "id, candidate, words",
    [
        *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW),
        (
            "jacobian-matrix",
            jacobian(lambda D, c, s, h, I: (I - 1 / D - np.outer(h, h) / (h @ h)) / s),  # noqa: E741
            "all of the",
        ),
        (
            "null-direction",
            lambda x, gamma: 5 * (x - x.mean()) / np.abs(gamma),
            "The signs of gamma",
        ),
        ("null-direction", lambda x, gamma: 2 * gamma, "the same for every x"),
        (
            "jacobian-matrix",
            jacobian(lambda D, c, s, h, I: (I - 1 / (D - 1) - np.outer(h, h) / (D - 1)) / s),  # noqa: E741
            "a divisor one too small",
        ),
        ("eps-outside", bracket, "first term only"),
        ("rms-jacobian", rms(lambda sym: sym.mean(sym.g, sym.xhat)), "contains a mean; write"),
        ("eps-outside", sigma_in_both, "sigma stands for s"),
    ],
)
def test_a_likely_slip_has_words(id, candidate, words):
    assert failed(id, candidate, words)


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


def test_a_slope_taken_for_1_is_one_mistake():
    diagnosis = check("eps-outside", slope_one).diagnosis
    assert (
        diagnosis.names == ("slope-one",)
        and "were 1" in str(diagnosis)
        and "at once" not in str(diagnosis)
    )


def test_a_difference_quotient_is_not_taken_for_float32():
    assert "of a difference quotient" in check("jacobian-matrix", quotient).failed[1]


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


@pytest.mark.parametrize("of_sample", [False, True])
def test_a_sample_variance_is_named_where_eps_is_outside(of_sample):
    """In the forward pass alone, or in both."""

    def answer(dy, x, gamma, eps):
        D, c, g = x.shape[-1], x - x.mean(axis=-1, keepdims=True), gamma * dy
        sigma = x.std(axis=-1, keepdims=True, ddof=1)
        along = (g * c).sum(axis=-1, keepdims=True) / (D - of_sample) / sigma
        return (g - g.mean(axis=-1, keepdims=True) - c * along / (sigma + eps)) / (sigma + eps)

    report = check("eps-outside", answer)
    assert report.failed and "divides by D - 1" in str(report.diagnosis), report
