"""Chapter 7: what its page says beyond test_variance, and what its exercises refuse."""

import re
import sys
from itertools import permutations

import numpy as np
import pytest
from attempts import solution_with
from questions import norm, says

from lnbook import exercises
from lnbook.exercises import ch07, run
from lnlib import layer_norm_forward, reference
from lnlib.variance import ALGORITHMS, naive, normalise, recentred, recentred_short

U = 2.0**-24


def mean(a):
    return a.mean(axis=-1, keepdims=True)


# ---- The page


def test_orders_of_five_numbers():
    found = [naive(1e8 + np.array(p))[2].item() for p in permutations(range(5))]
    assert set(found) == {0.0, 2.0} and found.count(2.0) == 96


@pytest.mark.parametrize("offset", [1e2, 1e4, 1e7])
def test_subtracting_the_mean_is_exact_and_adding_the_residual_is_lost(offset):
    """The derivation of the cure begins with the first; the second is why the mean stays in two
    parts.
    """
    rng = np.random.default_rng(0)
    x = (offset + rng.standard_normal((8, 1024)) + rng.random((8, 1))).astype(np.float32)
    m, r, _ = recentred(x)
    assert (reference.to_fixed(x - m) == reference.to_fixed(x) - reference.to_fixed(m)).all()
    # m + r is m or a neighbour of m, so what it misses is of the order of r itself, spacing / 4 in
    # the mean.
    assert np.abs(m + r - m).max() <= np.spacing(m).max()
    missed = np.abs((m + r).astype(float) - m - r)
    assert np.median(missed) > 0.05 * np.spacing(np.float32(offset))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_neighbours_break_all_but_the_recentred_mean(name):
    x = np.array([[33_333_334, 33_333_336]], np.float32)
    # Mean 33333335, which is no float, and variance 1: xhat is -1 and 1, up to eps / 2 = 84 u.
    off = np.abs(normalise(x, name) - [-1, 1]).max()
    if name == "recentred":
        assert off < 100 * U
    else:
        # A mean rounded to either element leaves a zero where 1 is right: off by 1 up to a few u,
        # or NaN.
        assert not off < 1 - 8 * U


def test_the_residual_is_rounded_too():
    """The docstring of recentred: below the spacing r is many sigma, and what it is rounded by
    shows.
    """
    x = np.full((1, 10007), 16777213, np.float32)  # a spacing of 1
    x[0, 0] += 1
    r = recentred(x)[1].item()
    assert abs(r) > 50 * x.std(dtype=float)
    error = reference.relative_error(
        normalise(x), reference.layer_norm(x, np.ones(10007), np.zeros(10007)).y
    )
    # r, and nothing else, is rounded by up to u |r|.
    assert 20 * U < error <= U * abs(r) / x.std(dtype=float)


@pytest.mark.parametrize("centre", [1e4, 65536.0, 1e6])
def test_a_third_of_the_variances_is_negative_and_a_third_zero(centre):
    rows = np.float32(centre + np.random.default_rng(0).uniform(-0.9, 0.9, (3000, 3)))
    v = naive(rows)[2]
    assert 0.2 < (v < 0).mean() < 0.45 and 0.2 < (v == 0).mean() < 0.45


def test_the_negative_row_stays_within_reach_of_any_centre():
    """Rounding to float32 moves a number by up to 1/32 at 1e6; the exercise allows any centre."""
    for centre in np.geomspace(1e4, 1e6, 300):
        row = ch07.negative_row_solution(centre)
        assert np.abs(row.astype(float) - centre).max() <= 1 and naive(row)[2] < 0


# ---- The exercises


def digits(naive_loss, mean_loss=lambda q: U * abs(q), low=U, high=1.0):
    """An answer to digits-left with its formulas and its limits as switches."""

    def candidate(x):
        q = x.mean(dtype=float) / x.std(dtype=float)
        with np.errstate(all="ignore"):
            return tuple(-np.log10(np.clip([naive_loss(q), mean_loss(q)], low, high)))

    return candidate


def in_float32(x):
    """An answer to digits-left whose u, ratio and logarithm are rounded to float32."""
    ratio, u = abs(x.mean()) / x.std(), np.float32(U)
    return tuple(-np.log10(np.clip(loss, u, np.float32(1))) for loss in (u * ratio**2, u * ratio))


def in_float64(x, eps=1e-5):
    c = x - mean(x.astype(float))
    return c / np.sqrt(mean(c * c) + eps)


def short(rule):
    def candidate(x, order):
        m, r, v = recentred_short(x, order)
        with np.errstate(all="ignore"):
            return bool(rule(m.item(), r.item(), v.item()))

    return candidate


@pytest.mark.parametrize(
    "id, candidate, message",
    [
        ("negative-variance", lambda centre: np.float32([centre, centre + 1]), r"shape \(2,\)"),
        ("digits-left", digits(lambda q: U * q**2, lambda q: U * q**2), "two-pass: predicted"),
        ("repair-the-mean", solution_with("repair-the-mean", ("(eps)", "(1e-5)")), "is off by"),
        (
            "short-form",
            short(lambda m, r, v: abs(r) < min(v, abs(v) ** 0.5)),
            r"residual is 0\.\d+ sigma, and you say False",
        ),
    ],
)
def test_a_wrong_answer_is_refused(id, candidate, message):
    report = exercises.check(id, candidate)
    assert report.failed, report
    assert "your function raised" not in report.failed[1]
    assert re.search(message, report.failed[1]), report


@pytest.mark.parametrize(
    "id, candidate",
    [
        ("digits-left", digits(lambda q: U * (1 + q**2), lambda q: U * np.hypot(1, q))),
        ("digits-left", in_float32),
        ("repair-the-mean", lambda x, eps: in_float64(x, eps).astype(np.float32)),
        ("short-form", lambda x, order: abs(recentred_short(x, order)[1]) < x.std()),
        # A wrong v is small against r**2, whatever its sign.
        ("short-form", short(lambda m, r, v: abs(r) < abs(v) ** 0.5)),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_another_right_answer_is_accepted(id, candidate, seed):
    report = exercises.check(id, candidate, seed=seed)
    assert report.failed is None, report


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 ends no loop")
@pytest.mark.parametrize("most, passed", [(0, 0), (2e5, 2)])
def test_a_loop_without_end_is_ended(most, passed, monkeypatch):
    def answer(centre):
        while centre > most:
            pass
        return ch07.negative_row_solution(centre)

    monkeypatch.setattr(run, "SECONDS", 0.1)
    report = exercises.check("negative-variance", answer)
    assert len(report.passed) == passed and sys.monitoring.get_tool(4) is None
    assert "had not returned after 0.1 s; it was at `" in report.failed[1]


# Questions: the numbers in the answers are computed, then looked for in their text


@pytest.mark.slow
def test_what_the_answers_say(rng):
    formats = np.array([2.0**-53, 2.0**-24, 2.0**-8])  # 6.1
    left = -np.log10(formats * 1000**2)
    assert round(left[0]) == 10 and round(left[1]) == 1 and left[2] < 0
    assert 0.9e8 < formats[0] ** -0.5 < 1e8
    says(
        "7.1",
        f"${U * 1e6:.2f}$",
        "ten digits, one, and none",
        "$10^8$",
        *(formats**-0.5)[1:].astype(int),
    )
    noise = rng.standard_normal((64, 1024))
    for dtype, u in (("float64", 2.0**-53), ("float32", U)):  # measured: within a factor of ten
        x = (1000 + noise).astype(dtype)
        error = reference.relative_error(
            naive(x)[2].astype(float), x.astype(float).var(axis=-1, keepdims=True)
        )
        assert 0.1 < error / (u * 1e6) < 10

    far = (1e4 + rng.random((64, 1)) + noise).astype(np.float32)  # 6.2
    exact = reference.layer_norm(far, np.ones(1024), np.zeros(1024)).y
    mean = far.mean(axis=-1, keepdims=True, dtype=float)
    ordered = np.sort(far, axis=-1).mean(axis=-1, keepdims=True)
    errors = []
    for c in (far - ordered, far - mean.astype(np.float32), (far - mean).astype(np.float32)):
        assert c.dtype == np.float32
        v = (c * c).mean(axis=-1, keepdims=True)
        errors.append(reference.relative_error(c / np.sqrt(v + np.float32(1e-5)), exact))
    assert min(errors[:2]) > 1e-4 and errors[2] < 3 * U
    assert 1e-4 < reference.relative_error(normalise(far, "two-pass"), exact) < 1e-3
    assert round(np.spacing(np.float32(1e4)) / 2, 4) == 5e-4
    says("7.2", "Only change 3", r"$5 \cdot 10^{-4}$")

    rows = 1e6 + rng.random((64, 1)) + noise  # 6.3
    one, zero = np.ones(1024), np.zeros(1024)
    wanted = layer_norm_forward(rows, one, zero)[0]
    assert np.spacing(np.float32(1e6)) == 1 / 16
    says("7.3", f"{1 / 16 / 12**0.5:.3f}", "About 2 %", "$1/16$", "$1/32$", "$10^{-7}$")
    for shift, low, high in ((0, 0.015, 0.022), (1e6, 1e-8, 1e-7)):
        stored = (rows - shift).astype(np.float32)
        y = layer_norm_forward(stored, one.astype(np.float32), zero.astype(np.float32))[0]
        assert low < norm(y - wanted) / norm(wanted) < high

    def pairwise(a):  # 6.4
        half = len(a) // 2
        return a[0] if len(a) == 1 else pairwise(a[:half]) + pairwise(a[half:])

    def moved(D, constants):
        a = constants.astype(np.float32)
        return (pairwise(np.broadcast_to(a, (D, a.size))) / np.float32(D) != a).mean()

    constants = rng.standard_normal(5000)
    assert moved(1024, constants) == 0 == moved(768, np.arange(1, 1000))
    # The share of one sample of 5000 scatters by 0.005.
    assert abs(moved(768, constants) - 1 / 7) < 0.02
    says("7.4", "one random constant in seven")
