"""Chapter 1: answers of readers to its exercises; the numbers in the answers to its questions."""

import numpy as np
import pytest
from questions import norm, says

from lnlib import layer_norm_forward
from lnlib.exercises import check, exercises


def test_an_untouched_stub_is_told_in_a_line():
    def stub(sigma, radius):
        raise NotImplementedError("solve the formula of the radius")

    assert repr(check("eps-for-radius", stub)) == "eps-for-radius: not written yet: solve the formula of the radius"


@pytest.mark.parametrize("eps, said, told", [
    (lambda sigma, radius: sigma**2 * (radius**2 - 1), "negative", "Your eps is negative"),
    (lambda sigma, radius: sigma**2 - (sigma / radius) ** 2, "negative", "the other sign"),
    (lambda sigma, radius: (sigma * radius) ** 2 / (1 - radius**2), "lands at", "upside down"),
    (lambda sigma, radius: radius**-2 - 1, "lands at", "does not depend on sigma")])
def test_what_is_said_of_an_eps(eps, said, told):
    report = check("eps-for-radius", eps)
    assert said in report.failed[1] and told in str(report.diagnosis), report


@pytest.mark.parametrize("other", [
    lambda x: 2 * x + 1e12, lambda x: 1.0000001 * x + 1e-7, lambda x: np.float32(3 * x + 1e3),
    lambda x: 3 * (x + 1e3) - 5, lambda x: [round(3 * v, 15) + 1 for v in x]])
def test_every_row_with_the_same_xhat_passes(other):
    report = check("same-output", other)
    assert not report.failed, report


@pytest.mark.parametrize("other, words", [
    (lambda x: 0 * x + 5, "constant"), (lambda x: 3 * (x + 1e3) - 3e3, "shifted by too little"),
    (lambda x: 3 * x, "not shifted"), (lambda x: np.float32(3 * x), "not shifted"),
    (lambda x: (1 + 1e-9) * x + 5, "scaled by too little"),
    (lambda x: x + 1e6, "not scaled"), (lambda x: 2 * x + 1e14, "off by"),
    (lambda x: 3 * (x + 1e-6 * np.arange(8)) + 1, "off by"),
    (lambda x: 2 * x[::-1] + 1, "in other places"), (lambda x: np.sort(x) / 3 - 5, "in other places"),
    (lambda x: 5 - x, "the other sign"), (lambda x: -2 * x + 3, "the other sign"), (lambda x: -x, "the other sign")])
def test_no_other_row_passes(other, words):
    assert words in check("same-output", other).failed[1]


def test_a_shift_that_is_there_is_not_denied():
    report = check("same-output", lambda x: 1e9 * x + 1)
    assert "shifted by too little to be told from rounding" in report.failed[1] and report.diagnosis is None, report
    report = check("same-output", lambda x: np.float32(2 * x + 1e-5))
    assert "or by too little to be told from rounding" in report.failed[1], report
    assert str(report.diagnosis).startswith("It may be this"), report


def groups_of(x, groups, shape=None, mean=True, over=-1, eps=1e-5):
    parts = x.reshape(shape or (*x.shape[:-1], groups, -1))
    c = parts - parts.mean(axis=-1, keepdims=True) * mean
    return (c / np.sqrt((c * c).mean(axis=over, keepdims=True) + eps)).reshape(x.shape)


def over_the_rows(x, groups, eps=1e-5):
    parts = x.reshape(*x.shape[:-1], groups, -1)
    rows = tuple(range(x.ndim - 1))
    return ((parts - parts.mean(rows)) / np.sqrt(parts.var(rows) + eps)).reshape(x.shape)


def interleaved(x, groups, eps=1e-5):
    parts = [layer_norm_forward(x[..., k::groups], *np.ones((2, x.shape[-1] // groups)) - [[0], [1]], eps)[0]
             for k in range(groups)]
    return np.stack(parts, axis=-1).reshape(x.shape)


@pytest.mark.parametrize("answer, words", [
    (lambda x, groups, eps=0: groups_of(x, groups), "Your eps is 1e-5"),
    (lambda x, groups, eps=1e-5: groups_of(x, groups, mean=False, eps=eps), "as in RMSNorm"),
    (lambda x, groups, eps=1e-5: groups_of(x, groups, (groups, -1), eps=eps), "across its rows"),
    (lambda x, groups, eps=1e-5: groups_of(x, groups, over=(-2, -1), eps=eps), "one common sigma"),
    (over_the_rows, "run over the rows"), (interleaved, "others lie between them")])
def test_what_is_said_of_groups(answer, words):
    assert words in str(check("group-norm", answer).diagnosis)


def test_a_single_row_has_one_axis():
    def with_rows(x, groups, eps=1e-5):
        return groups_of(x, groups, (-1, x.shape[-2], groups, x.shape[-1] // groups), eps=eps)

    assert check("group-norm", with_rows).failed[0] == "a single row"


def shaped(kind, shape):
    """An answer to statistics-shape that is wrong for this kind: ``shape`` or what it makes of N, C and groups."""
    right = exercises()["statistics-shape"].solution

    def answer(asked, of, groups=2):
        return right(asked, of, groups) if asked != kind else shape(*of[:2], groups) if callable(shape) else shape
    return answer


@pytest.mark.parametrize("kind, shape, words", [
    ("group", lambda N, C, groups: (N, C // groups, 1, 1, 1), "have changed places"),
    ("group", lambda N, C, groups: (N, 1, C // groups, 1, 1), "over the groups"),
    ("group", lambda N, C, groups: (N, 2, 1, 1, 1), "whatever groups is"),
    ("group", lambda N, C, groups: (N, 1, 1, 1, 1), "all groups share"),
    ("group", lambda N, C, groups: (N, C // 3, 1, 1, 1), "None"),
    ("batch", lambda N, C, _: (N, C, 1, 1), "inside each image"),
    ("batch", lambda N, C, _: (1, 1, 1, 1), "all channels"),
    ("layer", lambda N, C, _: (1, 1, 1, 1), "all images"), ("layer", lambda N, C, _: (N, C, 1, 1), "of its own")])
def test_a_wrong_axis_is_told_and_no_number_of_images(kind, shape, words):
    diagnosis = str(check("statistics-shape", shaped(kind, shape)).diagnosis)
    assert words in diagnosis and "too" not in diagnosis, diagnosis


@pytest.mark.parametrize("kind, shape, words", [
    ("batch", (1, 6, 5, 1), "a mean over N and W"), ("layer", (2, 6, 5, 7), "a mean over nothing"),
    ("group", (1, 2, 3, 5, 7), "a mean over N"), ("group", (2, 6, 1, 1, 1), "found (2, 6, 1, 1, 1)")])
def test_what_a_shape_averages_over_is_told(kind, shape, words):
    said = check("statistics-shape", shaped(kind, shape)).failed[1]
    assert said.endswith(words), said


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
    np.testing.assert_allclose(layer_norm_forward(1000 * x, one, zero, eps=10.0)[0], metres, rtol=1e-13)
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
    np.testing.assert_allclose(layer_norm_forward(after, one, zero)[0], layer_norm_forward(before, one, zero)[0],
                               rtol=1e-12)
