"""Chapter 4: the numbers in the answers to its questions are computed, then looked for in their
text.
"""

import numpy as np
import pytest
from attempts import failed
from questions import norm, says

from lnlib import gradcheck, layer_norm_backward, layer_norm_forward
from lnlib.gradcheck import (
    adjoint_test,
    central_difference,
    direction_test,
    longest_chain,
    tolerance,
)
from normcheck.mistakes import MUTANTS

U = 2.0**-53


@pytest.mark.parametrize("D", [1, 7, 64, 4096])
def test_the_formula_of_the_page_is_that_of_the_code(D):
    expected = (gradcheck.ARITHMETIC + 2 * longest_chain(D) ** 0.5) * U
    assert tolerance("float64", D) == pytest.approx(expected, rel=1e-15, abs=0)


def quotients(f, x, h):
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        gradient[i] = (f(up) - f(down)) / (2 * h)
    return gradient


def centred(a):
    return a - a.mean(axis=-1, keepdims=True)


def slopes(draw, h=1e-30):
    """An answer to one-direction; ``draw`` makes directions of arguments and generator."""

    def candidate(f, args, dy, grads, rng):
        vs = draw(args, rng)
        moved = f(*(a + 1j * h * v for a, v in zip(args, vs)))
        return (dy * moved.imag).sum() / h, sum((g * v).sum() for g, v in zip(grads, vs))

    return candidate


def mismatch(of_terms):
    """An answer to adjoint-pair, of both lists of products."""
    return lambda jvp, vjp, v, dy: of_terms(dy * jvp(v), vjp(dy) * v)


def sizes(a, b, of=lambda t: max(np.linalg.norm(t), abs(t.sum()))):
    return of(a) + of(b)


def gap(a, b):
    return abs(a.sum() - b.sum())


@pytest.mark.parametrize(
    "id, candidate",
    [
        ("central-difference", quotients),
        ("central-difference", lambda f, x, h: quotients(f, x, h / 2)),
        ("adjoint-pair", mismatch(lambda a, b: gap(a, b) / sizes(a, b) if sizes(a, b) else 0.0)),
        ("one-direction", slopes(lambda args, rng: [rng.uniform(0, 1, a.shape) for a in args])),
    ],
)
def test_another_right_answer_is_accepted(id, candidate):
    assert not failed(id, candidate)


MUTANT = {mutant.name: mutant.backward for mutant in MUTANTS}


def test_what_the_answers_say(rng):
    rounding = 4 * U / np.array([1e-12, 1e-13])  # 4.1
    assert 1e-4 < rounding[0] < 1e-3 < rounding[1] < 1e-2 and 1e-12**2 / 6 < 1e-20
    best = (12 * U) ** (1 / 3)
    assert 0.9e-5 < best < 1.2e-5 and f"{best**2 / 6 + 4 * U / best:.0e}" == "6e-11"
    says("4.1", "$10^{-3}$", "near $10^{-5}$", r"$6 \cdot 10^{-11}$")

    x, dy, v = rng.standard_normal((3, 4, 8))  # 4.2
    gamma, beta = rng.uniform(0.5, 1.5, 8), rng.standard_normal(8)
    y, cache = layer_norm_forward(x, gamma, beta)
    dx, dgamma, dbeta = layer_norm_backward(dy, cache)
    quotient = central_difference(lambda a: layer_norm_forward(a, gamma, beta)[0], x, 1e-5, dy=dy)
    assert norm(quotient - dx) / norm(dx) < 1e-9
    says("4.2", f"After 24 of them it is {0.95**-24:.1f} times", f"at {0.95**-24:.1f} times")

    assert not (dbeta - (dbeta + 1)).max() >= 1e-6  # 4.3
    for name, passes in (("missing-projection", False), ("missing-mean", None)):
        wrong = MUTANT[name](dy, cache)[0]
        assert (dx - wrong).max() >= 1e-6
        assert np.allclose(wrong.sum(axis=-1), 0, rtol=0, atol=1e-13) == (passes is False)
    upwards = np.where((gamma * dy).mean(axis=-1, keepdims=True) > 0, dy, -dy)
    assert (
        layer_norm_backward(upwards, cache)[0] - MUTANT["missing-mean"](upwards, cache)[0]
    ).max() < 1e-6

    def centred(a):  # 4.4
        return cache.rstd * (a - a.mean(axis=-1, keepdims=True))

    limit = tolerance("float64", x.size)
    found = adjoint_test(lambda v: gamma * centred(v), lambda dy: centred(gamma * dy), v, dy)
    assert found <= limit
    wrong = centred(gamma * dy), dgamma, dbeta
    assert (
        direction_test(lambda *a: layer_norm_forward(*a)[0], (x, gamma, beta), dy, wrong, rng=rng)
        > 1e-3
    )
