"""Chapter 9: its other backward passes are what they say, and its claims hold."""

import math

import numpy as np
import pytest
from attempts import failed
from questions import percent, plain, says

from lnbook import forms, frameworks
from lnbook.exercises import ch09
from lnbook.figures import breaking
from lnlib import layer_norm_backward, layer_norm_forward, reference, regimes, summation
from lnlib.gradcheck import complex_step
from lnlib.reference import relative_error
from lnlib.rounding import FORMATS, TAU, round_to
from lnlib.summation import sum_rows

U = 2.0**-24
F4 = np.float32


def parameters(D, dtype=F4):
    return np.ones(D, dtype), np.zeros(D, dtype)


def library(x, gamma, beta, dy, eps=1e-5, precise=False):
    return layer_norm_backward(dy, layer_norm_forward(x, gamma, beta, eps, precise=precise)[1])


def affine(x, gamma, beta, dy, eps):
    return frameworks.pytorch_backward(dy, frameworks.pytorch_forward(x, gamma, beta, eps)[1])


def test_bars_of_the_cancellation_are_digits():
    exact = {"g": np.full(30, 1e4), "left": np.ones(30)}
    above, below = breaking.cancellation({n: v + 1e-3 for n, v in exact.items()}, exact).axes
    assert [text.get_text() for text in below.texts] == ["7.0 digits", "3.0 digits"]
    assert [bar.get_x() for bars in below.containers for bar in bars] == pytest.approx([1e-3] * 2)
    assert [line.get_ydata()[0] for line in above.lines] == [1e4, 1]


# lnbook.forms


@pytest.mark.parametrize("eps", [1e-5, 1.0])
def test_three_forms_of_one_function(rng, eps):
    """In float64, D = 7, ratio 2: ten roundings, times kappa or a product with the mean, both below
    20: 200 u.
    """
    x, g = 2 + rng.standard_normal((3, 7)), rng.standard_normal((3, 7))
    exact = reference.layer_norm(x, *parameters(7, float), g, eps).dx
    mean = x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    xhat = (x - mean) * rstd
    for found in (
        forms.centred(g, xhat, rstd),
        forms.affine(g, x, mean, rstd),
        forms.reorthogonalised(g, xhat, rstd, eps),
    ):
        assert relative_error(found, exact) < 200 * 2**-53
    narrow = [a.astype(F4) for a in (g, x, mean, rstd, xhat)]
    assert forms.affine(*narrow[:4]).dtype == F4
    assert forms.reorthogonalised(narrow[0], narrow[4], narrow[3]).dtype == F4
    assert forms.centred(narrow[0], narrow[4], narrow[3]).dtype == F4


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_saved_statistics_are_rounded_once(rng, dtype):
    """Half a spacing of the format at most; the exact values come from integers."""
    x = (50 + rng.uniform(0.1, 10, (40, 1)) * rng.standard_normal((40, 64))).astype(F4)
    mean, rstd = forms.saved_statistics(x, dtype, eps=0.01)
    assert mean.dtype == rstd.dtype == F4 and mean.shape == rstd.shape == (40, 1)
    exact = reference.to_float64(reference.layer_norm(x, *parameters(64), eps=0.01).rstd)
    for found, right in ((mean, x.astype(float).mean(axis=-1, keepdims=True)), (rstd, exact)):
        assert np.array_equal(round_to(found, dtype), found)
        off = np.abs(found - right) / right
        assert off.max() <= FORMATS[dtype].u * (1 + 1e-6) and off.max() > FORMATS[dtype].u / 4


def test_eps_outside_is_differentiated_right(rng):
    """Against the complex step of the forward function, which needs no formula: 1e-13 is a hundred
    roundings.
    """
    x, g = 3 + rng.standard_normal((2, 3, 5)), rng.standard_normal((2, 3, 5))
    for eps in (1e-5, 0.5):
        numeric = complex_step(lambda a: forms.eps_outside_forward(a, eps), x, dy=g)
        assert relative_error(forms.eps_outside_backward(g, x, eps), numeric) < 1e-13


# What the page says


@pytest.mark.slow
def test_the_lines_lie_on_the_map(rng):
    """The page's map: both medians within the fifth to five that theory lines promise, in fact
    within 2.
    """
    ratios, kappas = np.logspace(0, 6, 13), np.logspace(0, 7, 15)
    maps = regimes.backward_errors(
        {"lnlib": library, "affine": affine}, kappas, ratios, 1e8, "along", rng=rng
    )
    cancelled = regimes.backward_loss(kappas[:, None], "along", wide=True)
    shifted = np.hypot(
        regimes.backward_loss(kappas[:, None], "along"),
        kappas[:, None] * regimes.mean_loss(ratios, 256, "pairwise"),
    )
    for name, line, least in (("lnlib", cancelled, 100), ("affine", shifted, 60)):
        quotient, cells = regimes.agreement(maps[name], line)
        assert 0.5 < quotient < 2 and cells >= least
    # Offset does not matter to a recentred xhat: a row of the map is flat but for chance, over six
    # decades. Of four rows' median, twice its mean in either direction is far out.
    rows = maps["lnlib"][2:11]
    assert (rows.max(axis=1) < 3 * rows.min(axis=1)).all()
    assert (maps["affine"][2:11, -1] > 1e4 * maps["affine"][2:11, 0]).all()
    # At kappa 1 the g of the map has no part along xhat: the shift costs nothing, the affine form
    # something.
    assert (maps["affine"][0, 6:11] < 0.5 * shifted[0, 6:11]).all()


@pytest.mark.parametrize("sigma, zero", [(10, False), (100, True)])
def test_two_features_leave_only_eps(sigma, zero):
    """g along xhat: kappa is 1 + E, and from E = 1/u on dx is zero in float32; precise=True rounds
    dx once.

    In float64 kappa u is 1e9 * 1e-16 at sigma = 100: 1e-7, and a few such.
    """
    pair = np.array([[-1, 1]], F4)
    x, energy = F4(sigma) * pair, sigma**2 / 1e-5
    exact = reference.layer_norm(x, *parameters(2), pair)
    assert reference.kappa(exact, pair, np.ones(2)) == pytest.approx(1 + energy, rel=1e-9, abs=0)
    assert (energy > 1 / U) == zero
    assert (library(x, *parameters(2), pair)[0] == 0).all() == zero
    assert (
        relative_error(library(x, *parameters(2), pair, precise=True)[0], exact.dx)
        < U + 4 * energy * 2**-53
    )


def test_constant_rows_and_the_place_of_eps():
    x, g = np.full((1, 4), 3.0), np.array([[1.0, 0, 0, 0]])
    assert (forms.eps_outside_forward(x) == 0).all()
    with np.errstate(invalid="ignore"):
        assert np.isnan(forms.eps_outside_backward(g, x)).all()
    inside, _, _ = library(x, *parameters(4, float), g)
    assert np.allclose(inside, (g - 0.25) / np.sqrt(1e-5), rtol=1e-15, atol=0)


def test_the_kink_of_a_clipped_variance():
    """Three branches one step of the offset apart. Known exactly: raw is a multiple of 16, the
    spacing at 12000**2.
    """
    row, g, one = np.array([[0, 1, 2, 3]], F4), np.array([[4, 0, 0, 0]], F4), np.ones(4, F4)
    caches = {k: frameworks.flax_forward(row + F4(k), one, 0 * one)[1] for k in range(12002, 12006)}
    raw = {k: cache[2].item() for k, cache in caches.items()}
    assert raw == {12002: 0, 12003: 16, 12004: 0, 12005: -16}
    dx = {k: frameworks.flax_backward(g, cache)[0] for k, cache in caches.items()}
    r = 1 / np.sqrt(1e-5)
    assert np.allclose(dx[12005], r * (g - 1), rtol=1e-6, atol=0)  # no third term
    assert np.spacing(F4(12003**2)) == 16
    assert 4e7 < np.abs(dx[12004]).max() / np.abs(dx[12003]).max() < 6e7
    c = row - 1.5
    # Half of the third term, as the sum of two products with x and m: u * 12000 / 0.5 of the
    # smallest element, each.
    assert np.allclose(dx[12004], -(r**3) / 2 * c * (g * c).mean(), rtol=2 * U * 12000 / 0.5)
    assert np.abs(dx[12003]).max() < 1


@pytest.mark.slow
def test_the_affine_form_loses_more_to_the_same_mean(rng):
    D = 256
    g = rng.standard_normal((64, D)).astype(F4)
    for ratio, low, high in ((0, 0.8, 1.25), (1e3, 2, 20), (1e5, 2, 20)):
        x = regimes.rows(rng, 64, D, ratio)
        mean, rstd = forms.saved_statistics(x)
        exact = reference.layer_norm(x, *parameters(D), g).dx
        centred = relative_error(forms.centred(g, (x - mean) * rstd, rstd), exact)
        # The mean is rounded once, g is random: delta sqrt(2 / D), beside a few roundings.
        assert 0.5 < centred / (TAU * U * np.hypot(2, ratio * np.sqrt(2 / D))) < 2
        assert low < relative_error(forms.affine(g, x, mean, rstd), exact) / centred < high
        assert relative_error(library(x, *parameters(D), g)[0], exact) < 2e-7


@pytest.mark.slow
def test_a_long_running_sum_in_bfloat16_stagnates(rng):
    """From 2**8 on numbers are 2 apart: a term below 1 vanishes, seven in ten. At 2**10 they are 8
    apart: nearly all.

    So no sum of normal terms gets far beyond 2**10, however many are added.
    """
    terms = round_to(rng.standard_normal((2**18, 8), F4), "bfloat16")
    sums = summation.running_sums(terms, "bfloat16")
    still = np.diff(sums, axis=0) == 0
    assert still[np.abs(sums[:-1]) >= 2**8].mean() > 0.65
    assert np.abs(sums).max() < 1.1 * 2**10 < np.abs(terms.cumsum(axis=0)).max()
    assert (np.abs(sums[10**5 :]) >= 2**8).mean() > 0.4


@pytest.mark.parametrize("gamma", [1, 0.1, 0.01, 0.001])
def test_xhat_from_a_saved_y_and_its_gradients(rng, gamma):
    """tau u sqrt(1 + 1/gamma**2) with beta normal; 16384 independent roundings, so theory is good
    to a tenth.
    """
    D, gamma = 256, F4(gamma)
    x, beta = regimes.rows(rng, 64, D, 0), rng.standard_normal(D).astype(F4)
    g = rng.standard_normal((64, D)).astype(F4)
    y, cache = layer_norm_forward(x, gamma * parameters(D)[0], beta)
    again = (round_to(y, "bfloat16") - beta) / gamma
    exact = reference.layer_norm(x, gamma * parameters(D)[0], beta, g)
    assert 0.8 < relative_error(again, exact.xhat) / (TAU * 2**-8 * np.hypot(1, 1 / gamma)) < 1.25
    dx = relative_error(forms.centred(gamma * g, again, cache.rstd), exact.dx)
    # dx meets two means of a random g, 1 / sqrt(D) = 1/16 each.
    if gamma < 1:
        assert dx < relative_error((g * again).sum(axis=0, dtype=float), exact.dgamma) / 4


# Exercises


def recursive(terms):
    half = len(terms) // 2
    return recursive(terms[:half]) + recursive(terms[half:]) if half else terms[0]


def rows_of(t):
    """An answer to rows-until that takes t u for a typical rounding."""

    def answer(tolerance, u, in_pairs):
        roundings = (tolerance / (t * u)) ** 2
        return np.exp2(roundings) if in_pairs else 2 * roundings

    return answer


@pytest.mark.parametrize(
    "id, answer",
    [
        # A constant in g changes dx by its rounding alone.
        ("constant-rows", lambda g, x, eps: ch09.safe_backward_solution(g + 100, x, eps)),
        ("sum-in-pairs", recursive),
        ("rows-until", rows_of(0.42)),  # NumPy's 2 to a large power overflows
        ("rows-until", rows_of(TAU)),
    ],
)
def test_another_right_answer_is_accepted(id, answer):
    with np.errstate(over="ignore"):
        assert failed(id, answer) is None


@pytest.mark.slow
@pytest.mark.parametrize("order", ["sequential", "pairwise"])
@pytest.mark.parametrize("factor", [0.25, 4])
def test_rows_until_is_measured(monkeypatch, order, factor):
    """Were the errors of either order four times what theory says, or a quarter, the second check
    would notice.
    """

    def other_sums(a, name, dtype):
        exact, found = (sum_rows(a, o, dtype).astype(float) for o in ("wide", name))
        return exact + (factor if name == order else 1) * (found - exact)

    monkeypatch.setattr(ch09, "sum_rows", other_sums)
    assert failed("rows-until", ch09.rows_until_solution, "measured") == "measured in bfloat16"


# Questions: the numbers in the answers are computed, then looked for in their text


def test_question_1_three_losses():
    rng = np.random.default_rng(5)
    x = regimes.rows(rng, 8, 256, 0, math.sqrt(1e8 * 1e-5), "float64")
    y, cache = layer_norm_forward(x, *plain(x))
    t, w = rng.standard_normal((2, 8, 256))
    gradients = y - t, -1e-3 * w, y + 1e-3 * w
    dx = [np.linalg.norm(layer_norm_backward(g, cache)[0]) for g in gradients]
    kappa = [np.linalg.norm(cache.rstd * g) / size for g, size in zip(gradients, dx)]
    # w and t are random: 8 * 256 entries scatter norms by 2 %.
    assert np.allclose(kappa, [math.sqrt(2), 1, 1000], rtol=0.05, atol=0)
    assert np.allclose(np.divide(dx, dx[0]), [1, 1e-3, 1e-3], rtol=0.05, atol=0)
    # (b): y in float32 has lost a rounding, and y - t a thousand times as much of g; the backward
    # pass adds nothing.
    rounded = y.astype(np.float32).astype(float)
    lost_of_y = relative_error(rounded, y)
    lost_of_g = relative_error(rounded - (y + 1e-3 * w), gradients[1])
    assert 2.5 < math.log10(lost_of_g / lost_of_y) < 3.5
    exact = layer_norm_backward(gradients[1], cache)[0]
    lost_of_dx = relative_error(layer_norm_backward(rounded - (y + 1e-3 * w), cache)[0], exact)
    assert 0.9 < lost_of_dx / lost_of_g < 1.1
    says("9.1", "1000", "three digits")


@pytest.mark.slow
def test_question_2_statistics_in_bfloat16():
    rng, D = np.random.default_rng(6), 4096
    dy = rng.standard_normal((64, D), np.float32)
    x = (rng.uniform(1, 2, (64, 1)) * regimes.rows(rng, 64, D, 50)).astype(np.float32)
    exact = reference.layer_norm(x, *plain(x), dy)
    mean, rstd = forms.saved_statistics(x, "bfloat16")
    xhat = (x - mean) * rstd
    one = TAU * FORMATS["bfloat16"].u
    shift = 50 * one
    in_dx = shift * math.sqrt(2 / D), one
    printed = [part / TAU * 0.42 for part in in_dx]  # the answer rounds tau
    says(
        "9.2",
        f"{shift:.2f}",
        percent(shift),
        *(f"{part:.4f}" for part in printed),
        f"{math.hypot(*printed):.4f}",
    )
    # 64 roundings of a mean and of rstd scatter their root mean square by some 10 %.
    assert 0.7 < relative_error((dy * xhat).sum(axis=0, dtype=float), exact.dgamma) / shift < 1.4
    found = relative_error(forms.centred(dy, xhat, rstd), exact.dx)
    assert 0.7 < found / math.hypot(*in_dx) < 1.4 and found < 0.01


def test_question_3_gamma_stays_zero():
    rng = np.random.default_rng(7)
    x, dy = rng.standard_normal((2, 30, 16))
    gamma, beta = np.zeros(16), rng.standard_normal(16)
    for _ in range(3):
        y, cache = layer_norm_forward(x, gamma, beta)
        safe = np.where(abs(gamma) < 1e-3, 1e-3, gamma)
        xhat = (y - beta) / safe
        dgamma = (dy * xhat).sum(axis=0)
        assert not dgamma.any() and abs(layer_norm_backward(dy, cache)[1]).min() > 0
        gamma = gamma - 0.1 * dgamma
    assert not gamma.any()

    gamma = np.full(16, -5e-4)  # below the limit, too, and it becomes positive
    y, cache = layer_norm_forward(x, gamma, beta)
    xhat = (y - beta) / np.where(abs(gamma) < 1e-3, 1e-3, gamma)
    assert np.all((dy * xhat).sum(axis=0) * layer_norm_backward(dy, cache)[1] < 0)
    says("9.3", "the wrong sign")


def test_question_4_a_sum_of_ones():
    n = 2**20
    ones = np.ones((n, 1), np.float32)
    (stops,) = sum_rows(ones[:1000], "sequential", "bfloat16")
    says("9.4", f"{stops:.0f}", f"{stops + 1:.0f}")
    assert sum_rows(np.full((2, 1), stops / 2, np.float32), "sequential", "bfloat16") == stops
    above = round_to(stops + np.arange(1.0, 3), "bfloat16")
    assert above.tolist() == [stops, stops + 2]
    assert sum_rows(ones, "pairwise", "bfloat16") == n == sum_rows(ones, "sequential")
    assert np.float32(2**24) + np.float32(1) == 2**24 > np.float32(2**24 - 1)
