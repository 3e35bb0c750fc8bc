"""Chapter 1: answers of readers to its exercises; the numbers in the answers to its questions."""

import numpy as np
import pytest
from attempts import failed
from questions import norm, says

from lnbook.exercises import check
from lnlib import layer_norm_forward


@pytest.mark.parametrize(
    "other",
    [
        lambda x: 2 * x + 1e12,
        lambda x: 1.0000001 * x + 1e-7,
        lambda x: np.float32(3 * x + 1e3),
        lambda x: 3 * (x + 1e3) - 5,
        lambda x: [round(3 * v, 15) + 1 for v in x],
    ],
)
def test_every_row_with_the_same_xhat_passes(other):
    report = check("same-output", other)
    assert not report.failed, report


@pytest.mark.parametrize(
    "other, words",
    [
        (lambda x: 0 * x + 5, "constant"),
        (lambda x: 3 * (x + 1e3) - 3e3, "shifted by too little"),
        (lambda x: 3 * x, "not shifted"),
        (lambda x: np.float32(3 * x), "not shifted"),
    ],
)
def test_no_other_row_passes(other, words):
    assert words in check("same-output", other).failed[1]


def test_what_the_answers_say(rng):
    for spike in (1e3, 1e6):  # 1.1
        row = np.zeros(100)
        row[0] = spike
        xhat = layer_norm_forward(row, np.ones(100), np.zeros(100), eps=0.0)[0]
        assert row.std() == pytest.approx(spike / 1000 * 9900**0.5)
        assert xhat.max() == pytest.approx(99**0.5)
    says("1.1", f"About {xhat.max():.0f} both", "990", "$-10$", 9900, r"\sqrt{99}")

    x = rng.standard_normal((3, 8)) * [[1], [3e-3], [1e-4]]  # 1.2, metres
    one, zero = np.ones(8), np.zeros(8)
    metres = layer_norm_forward(x, one, zero, eps=1e-5)[0]
    np.testing.assert_allclose(
        layer_norm_forward(1000 * x, one, zero, eps=10.0)[0], metres, rtol=1e-13
    )
    says("1.2", r"$\varepsilon = 10$", f"{1e-5**0.5 * 1000:.0f} mm")
    unchanged = layer_norm_forward(1000 * x, one, zero, eps=1e-5)[0]
    longer = [norm(a) / norm(b) for a, b in zip(unchanged, metres)]
    assert longer[0] < 1.001 and longer[1] > 1.3 and longer[2] > 10

    x = rng.standard_normal((8, 8))  # 1.3
    c = x - x.mean(axis=-1)
    i, j = 2, 5
    assert c.shape == x.shape and c[i, j] == x[i, j] - x[j].mean()
    with pytest.raises(ValueError, match="broadcast"):
        np.ones((3, 8)) - np.ones((3, 8)).mean(axis=-1)

    h, W, b = (rng.standard_normal(shape) for shape in ((5, 6), (6, 8), 8))  # 1.4
    P = np.eye(8) - 1 / 8
    before, after, only_b = h @ W + b, h @ (W @ P) + b @ P, h @ W + b @ P
    np.testing.assert_allclose(after.mean(axis=-1), 0, atol=1e-14)
    assert np.abs(only_b.mean(axis=-1)).min() > 1e-3
    np.testing.assert_allclose(
        layer_norm_forward(after, one, zero)[0],
        layer_norm_forward(before, one, zero)[0],
        rtol=1e-12,
    )


# ---- Answers of another kind


def by_bisection(sigma, radius):
    low, high, row = 0.0, 1e9 * sigma**2, sigma * np.array([1.0, -1, 1, -1])
    for _ in range(200):
        eps = (low + high) / 2
        y = layer_norm_forward(row, np.ones(4), np.zeros(4), eps)[0]
        low, high = (eps, high) if norm(y) / 2 > radius else (low, eps)
    return eps


def test_an_eps_found_by_bisection_is_right():
    assert failed("eps-for-radius", by_bisection) is None
