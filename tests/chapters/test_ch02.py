"""Chapter 2's exercises refuse likely mistakes, and name them."""

import numpy as np
import pytest
from questions import backward, norm, says

from lnlib.exercises import check
from lnlib.exercises.ch02 import eigenvalues_solution


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


@pytest.mark.parametrize("id, candidate, message", [
    ("eigenvalues", lambda x, eps: np.roll(eigenvalues_solution(x, eps), 1), "another order"),
    ("eigenvalues", lambda x, eps: eigenvalues_solution(x, 2 * eps), "off by"),
    ("rms-jacobian", rms(lambda sym: sym.xhat[sym.i] * sym.xhat[sym.j] / (4 * sym.s)), "off by"),
    ("rms-jacobian",
     rms(lambda sym: sym.xhat[sym.i] * sym.xhat[sym.j] / (sym.D * sym.s) - (sym.D - 4) * sym.xhat[sym.j]),
     "off by"),
    ("rms-jacobian", rms(lambda sym: sym.x[sym.i] * sym.x[sym.j] / (sym.D * sym.s**3)), "still contains x;"),
    ("rms-jacobian", rms(other_s), "another symbol"),
    ("rms-jacobian", rms(lambda sym: (1 + sym.xhat[sym.i] * sym.xhat[sym.j]) / (sym.D * sym.s)), "layer norm's"),
    ("eps-outside", eps_outside(lambda sigma, s: sigma / s), "upside down"),
    ("eps-outside", eps_outside(lambda sigma, s: 1, eps_inside=True), "inside the root"),
])
def test_a_mistake_is_named(id, candidate, message):
    report = check(id, candidate)
    assert report.failed and message in f"{report.failed[1]} {report.diagnosis}", report


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
