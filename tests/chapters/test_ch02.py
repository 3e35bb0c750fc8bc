"""Chapter 2's exercises refuse likely mistakes, and name them."""

import numpy as np
import pytest

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
