"""Chapter 5: its exercises tell weak answers from good ones; the numbers in its answers."""

import numpy as np
import pytest
from attempts import failed
from questions import backward, norm, says

from lnbook.exercises import ch05, check
from lnlib import layer_norm_backward, layer_norm_forward
from lnlib.layernorm import rms_norm_forward
from normcheck.mistakes import HARMLESS, MUTANTS
from normcheck.mistakes.catalogue import forward_keeping_x

MUTANT = {mutant.name: mutant.backward for mutant in MUTANTS}


@pytest.mark.parametrize("mutant", MUTANTS + HARMLESS, ids=lambda m: m.name)
def test_survivor_is_judged_by_the_catalogue(mutant):
    # A mutant is an answer exactly if its entry says so.
    killers = {"sum-dx-zero", "dx-orthogonal-xhat", "gamma-one"} & mutant.killed_by
    assert (failed("survivor", mutant.backward) is None) == (
        not killers and "adjoint" in mutant.killed_by
    )


def test_rms_mutants_are_wrong_and_different():
    rng = np.random.default_rng(1)
    x, dy = rng.standard_normal((2, 3, 4, 7))
    _, cache = rms_norm_forward(0.01 * x, rng.standard_normal(7))
    groups = [ch05.RMS_RIGHT, *ch05.RMS_MUTANTS.values()]
    results = [backward(dy, cache) for group in groups for backward in group.values()][
        1:
    ]  # the two right ones agree

    def same(a, b):
        return all(u.shape == v.shape and np.allclose(u, v, rtol=1e-6) for u, v in zip(a, b))

    assert not any(same(a, b) for i, a in enumerate(results) for b in results[:i])


def rms_test(shape=(3, 4, 7), shapes=True):
    """An answer to write-the-test."""

    def candidate(backward):
        rng = np.random.default_rng(3)
        x, v_x, dy = rng.standard_normal((3, *shape))
        gamma, v_g = rng.standard_normal((2, shape[-1]))
        x, v_x = 0.01 * x, 0.01 * v_x
        dx, dgamma = backward(dy, rms_norm_forward(x, gamma)[1])
        if shapes and (dx.shape, dgamma.shape) != (x.shape, gamma.shape):
            return False
        terms = dy * rms_norm_forward(x + 1e-30j * v_x, gamma + 1e-30j * v_g)[0].imag / 1e-30
        return abs(terms.sum() - (dx * v_x).sum() - (dgamma * v_g).sum()) <= 1e-9 * np.linalg.norm(
            terms
        )

    return candidate


@pytest.mark.parametrize(
    "candidate, words",
    [
        (rms_test((5, 7)), "one leading axis"),
        (rms_test(shapes=False), "without looking at their shapes"),
    ],
)
def test_a_weak_test_is_told_what_it_does_not_see(candidate, words):
    report = check("write-the-test", candidate)
    assert (
        report.failed and words in str(report.diagnosis) and "Or:" not in str(report.diagnosis)
    ), report


def test_a_good_test_is_accepted():
    assert failed("write-the-test", rms_test()) is None


# Questions: the numbers in the answers are computed, then looked for in their text


def test_what_the_answers_say(rng):
    x = rng.standard_normal((3, 7))  # 5.1
    seen, sizes = rng.standard_normal(7), []
    for beta in (0.0, 0.5, seen):
        y = layer_norm_forward(x, np.ones(7), beta + np.zeros(7))[0]
        sizes.append(norm(backward(y, x, eps=1e-5)[0]))
    shows = []
    for beta in (0.0, 0.5):
        y, cache = forward_keeping_x(x, np.ones(7), beta + np.zeros(7))
        right = layer_norm_backward(y, cache)[0]
        off = {name: norm(wrong(y, cache)[0] - right) for name, wrong in MUTANT.items()}
        shows.append({name for name in off if off[name] > 1e-3 * norm(cache.rstd * y)})
    assert shows[0] | {"missing-mean", "mean-twice"} == shows[1] != shows[0]
    assert sizes[1] == pytest.approx(sizes[0], rel=1e-6, abs=0) and sizes[0] < 1e-3 < 0.5 < sizes[2]
    # J beta.
    assert norm(backward(seen + 0 * x, x, eps=1e-5)[0]) == pytest.approx(sizes[2], rel=1e-3, abs=0)

    let_through = []  # 5.2
    for shape in ((6, 6), (1, 7), (2, 3, 6), (3, 4, 7)):
        x, dy = rng.standard_normal((2, *shape))
        right, _, _, r, xhat = backward(dy, x)
        rows = x.size // shape[-1]
        wrong = r * (
            dy - (dy.sum(-1, keepdims=True) + xhat * (dy * xhat).sum(-1, keepdims=True)) / rows
        )
        let_through += [shape] if np.allclose(wrong, right) else []
    assert let_through == [(6, 6), (2, 3, 6)]
    says("5.2", "$(6, 6)$ and $(2, 3, 6)$:")

    for D, rows in ((768, 12), (768, 1200), (20_000, 12)):  # 5.3
        x, dy = rng.standard_normal((2, rows, D))
        _, cache = layer_norm_forward(x, np.ones(D), np.zeros(D))
        right = layer_norm_backward(dy, cache)[0]
        error = norm(MUTANT["missing-projection"](dy, cache)[0] - right) / norm(right)
        # The part is chi-squared with one degree of freedom for each row: 2 / rows is its relative
        # variance.
        assert abs(error**2 * D - 1) < 4 * (2 / rows) ** 0.5
        assert (error < 1e-2) == (D > 10_000)
    says("5.3", f"{100 * 768**-0.5:.0f} %", "$D = 10^4$")

    assert abs((767 / 768) ** 0.5 - 1) < 1e-3  # 5.4
    assert f"{abs((1 + 1e-5) ** -0.5 - 1 / (1 + 1e-5)):.0e}" == "5e-06"
    flat = 1e-5**0.5
    assert flat / (flat + 1e-5) > 0.99
    says(
        "5.4",
        f"{(3 / 4) ** 0.5:.2f}",
        f"{flat / (flat**2 + 1e-5) ** 0.5:.2f}",
        r"$5 \cdot 10^{-6}$",
    )
