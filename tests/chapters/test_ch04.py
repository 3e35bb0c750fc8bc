"""Chapter 4: the numbers in the answers to its questions are computed, then looked for in their text."""

import numpy as np
from attempts import failed
from questions import norm, says

from lnlib import layer_norm_backward, layer_norm_forward
from lnlib.gradcheck import adjoint_test, central_difference, direction_test, tolerance
from lnlib.mistakes import MUTANTS

U = 2.0**-53
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

    assert not (dbeta - (dbeta + 1)).max() >= 1e-6  # 4.3
    for name, passes in (("missing-projection", False), ("missing-mean", None)):
        wrong = MUTANT[name](dy, cache)[0]
        assert (dx - wrong).max() >= 1e-6
        assert np.allclose(wrong.sum(axis=-1), 0, rtol=0, atol=1e-13) == (passes is False)
    upwards = np.where((gamma * dy).mean(axis=-1, keepdims=True) > 0, dy, -dy)
    assert (layer_norm_backward(upwards, cache)[0] - MUTANT["missing-mean"](upwards, cache)[0]).max() < 1e-6

    def centred(a):  # 4.4
        return cache.rstd * (a - a.mean(axis=-1, keepdims=True))

    limit = tolerance("float64", x.size)
    assert adjoint_test(lambda v: gamma * centred(v), lambda dy: centred(gamma * dy), v, dy) <= limit
    wrong = centred(gamma * dy), dgamma, dbeta
    assert direction_test(lambda *a: layer_norm_forward(*a)[0], (x, gamma, beta), dy, wrong, rng=rng) > 1e-3


def test_no_step_is_no_best_step():
    for step in (0.0, -1e-5):
        assert failed("best-step", lambda order, u, length, step=step: step, f"the step is {step}")
