"""The atlas: rows and gradients are where they claim to be, and every line lies on its map."""

import numpy as np
import pytest

from lnlib import layer_norm_backward, layer_norm_forward, reference, regimes, variance
from lnlib.layernorm import layer_norm_backward_steps
from lnlib.regimes import agreement, parts, rows, upstream
from lnlib.rounding import FORMATS, round_to


def rng():
    return np.random.default_rng(0)


# Rows


@pytest.mark.parametrize("dtype", list(FORMATS))
@pytest.mark.parametrize("ratio, sigma", [(0, 1.0), (3, 1e-2), (-50, 30.0)])
def test_rows_have_the_mean_and_the_deviation_asked_for(ratio, sigma, dtype):
    """Rounding moves an element by u (1.01 |ratio| + 5) sigma at most (|z| < 5 here), mean and
    sigma no more.

    The mean may be 1 % off on purpose. In float64 the measurement itself has a few roundings more:
    1e-14.
    """
    x = rows(rng(), 7, 100, ratio, sigma, dtype)
    assert x.shape == (7, 100) and x.dtype == ("float64" if dtype == "float64" else "float32")
    wide = x.astype(np.float64)
    rounded = FORMATS[dtype].u * (1.01 * abs(ratio) + 5) + 1e-14
    means = wide.mean(axis=-1) / sigma
    assert np.abs(means - ratio).max() < 0.01 * abs(ratio) + rounded
    assert np.abs(wide.std(axis=-1) / sigma - 1).max() < rounded
    assert ratio == 0 or np.ptp(means) > 0.005 * abs(ratio)  # no mean is round
    assert np.array_equal(round_to(x, dtype), x)  # numbers of the format
    assert len(np.unique(x[:, 0])) > 1  # rows differ
    assert np.array_equal(rows(rng(), 7, 100, ratio), rows(rng(), 7, 100, ratio, 1.0, "float32"))


# Upstream gradients and kappa


def exact_xhat(x, eps):
    D = x.shape[-1]
    return reference.to_float64(reference.layer_norm(x, np.ones(D), np.zeros(D), eps=eps).xhat)


@pytest.mark.parametrize("shape", [(5, 16), (3, 2, 3)])
@pytest.mark.parametrize(
    "ones, along, rest", [(0, 0, 1), (2, -3, 0.5), (1e3, 1, 0), (0, 1e3, 1e-2)]
)
def test_upstream_has_the_parts_asked_for(ones, along, rest, shape):
    """Each part is found by projection, to 1e-14 of the largest: a few roundings of numbers of that
    size.
    """
    xhat = exact_xhat(rows(rng(), np.prod(shape[:-1]), shape[-1], 3, dtype="float64"), 0.1).reshape(
        shape
    )
    g = upstream(rng(), xhat, ones, along, rest, "float64")
    found_ones = g.mean(axis=-1, keepdims=True)
    found_along = np.sum(g * xhat, axis=-1, keepdims=True) / np.sum(
        xhat * xhat, axis=-1, keepdims=True
    )
    left = g - found_ones - found_along * xhat
    atol = 1e-14 * max(abs(ones), abs(along), rest)
    assert np.allclose(found_ones, ones, rtol=0, atol=atol)
    assert np.allclose(found_along, along, rtol=0, atol=atol)
    assert np.allclose(np.sqrt(np.mean(left**2, axis=-1)), rest, rtol=0, atol=atol)
    narrow = upstream(rng(), xhat, ones, along, rest, "bfloat16")
    assert narrow.dtype == np.float32 and np.array_equal(narrow, round_to(g, "bfloat16"))


def kappa(ones, along, rest, energy):
    """By the eigenvalues of the Jacobian, as the docstring of ``parts`` has it."""
    a = along**2 * energy / (1 + energy)
    return np.sqrt((ones**2 + a + rest**2) / (a / (1 + energy) ** 2 + rest**2))


@pytest.mark.parametrize("energy", [0.01, 1.0, 1e5])
@pytest.mark.parametrize(
    "ones, along, rest, D",
    [
        (0, 0, 1, 16),
        (1, 1, 1, 16),
        (1e4, 0, 1, 16),
        (0, 1e3, 1, 16),
        (-5, 100, 0.1, 64),
        (3, 1, 0, 2),
        (0, 1, 0, 2),
    ],
)
def test_kappa_is_that_of_the_judge(ones, along, rest, D, energy):
    """float64 rounds x and g; seen in dx that is at most kappa**2 u relative to kappa: 1e-6 for
    kappa 1e5.
    """
    eps = 1e-3
    x = rows(rng(), 3, D, 2.0, np.sqrt(energy * eps), "float64")
    dy = upstream(rng(), exact_xhat(x, eps), ones, along, rest, "float64")
    exact = reference.layer_norm(x, np.ones(D), np.zeros(D), dy, eps)
    expected = kappa(ones, along, rest, energy)
    assert reference.kappa(exact, dy, np.ones(D)) == pytest.approx(
        expected, rel=1e-12 + 4 * expected**2 * 2**-53, abs=0
    )


@pytest.mark.parametrize("towards", ["ones", "along"])
def test_parts_reach_their_target(towards):
    for energy in (0.5, 1e3, 1e12):
        for target in (1.0, 1.25, 0.99 * (1 + energy)):
            found = parts(target, energy, towards)
            assert kappa(**found, energy=energy) == pytest.approx(target, rel=1e-12, abs=0)
            assert found["rest"] == 1 and found["along" if towards == "ones" else "ones"] == 0


# Maps


def test_forward_maps_measure_what_they_say():
    """Algorithms of known error: right in float64 (1e-15), 0.1 % off, zero (1), NaN in one row of
    three, in two.
    """
    seen = []

    def right(x, eps):
        seen.append((x.copy(), eps))
        return variance.normalise(x, "recentred", eps)

    def spoilt(count):
        def f(x, eps):
            y = variance.normalise(x, "recentred", eps)
            y[:count] = np.nan
            return y

        return f

    algorithms = {
        "right": right,
        "off": lambda x, eps: 1.001 * right(x, eps),
        "zero": lambda x, eps: 0 * x,
        "one": spoilt(1),
        "two": spoilt(2),
    }
    ratios, energies = [0, 1e3], [0.1, 10, 1e4]
    maps = regimes.forward_errors(
        algorithms, ratios, energies, D=8, count=3, eps=1e-3, dtype="float64", rng=rng()
    )
    assert {m.shape for m in maps.values()} == {(3, 2)}
    assert maps["right"].max() < 1e-15
    assert np.allclose(maps["off"], 1e-3, rtol=1e-9, atol=0)
    assert (maps["zero"] == 1).all() and maps["one"].max() < 1e-15 and np.isinf(maps["two"]).all()
    cells = [(ratio, energy) for energy in energies for ratio in ratios]
    for (a, eps), (b, _), (ratio, energy) in zip(seen[::2], seen[1::2], cells, strict=True):
        assert np.array_equal(a, b) and a.shape == (3, 8) and eps == 1e-3
        assert np.allclose(a.var(axis=-1) / eps, energy)
        assert np.allclose(a.mean(axis=-1) / a.std(axis=-1), ratio, rtol=0.011, atol=1e-12)


def test_backward_maps_measure_what_they_say():
    """In float64 the library's own error is near kappa u; the targets of kappa are met to kappa**2
    u, as above.
    """
    seen = []

    def library(x, gamma, beta, dy, eps):
        seen.append(reference.kappa(reference.layer_norm(x, gamma, beta, dy, eps), dy, gamma))
        assert np.allclose(x.var(axis=-1) / eps, 100) and gamma.min() >= 0.5 and gamma.max() <= 2
        assert eps == options.get("eps", 1e-5)
        return layer_norm_backward(dy, layer_norm_forward(x, gamma, beta, eps)[1])

    def off(x, gamma, beta, dy, eps):
        return (1.1 * library(x, gamma, beta, dy, eps)[0],)

    kappas = [1, 50, 1e4]
    for towards, cells in (("ones", 3), ("along", 2)):  # along xhat, 1e4 cannot be
        seen.clear()
        options = {"D": 16, "count": 3, "dtype": "float64", "rng": rng()}
        options |= {"eps": 1e-4} if towards == "ones" else {}
        ways = {"library": library, "off": off}
        maps = regimes.backward_errors(ways, kappas, [0, 1, 10, 100], 100.0, towards, **options)
        assert maps["library"].shape == (3, 4)
        assert np.isfinite(maps["library"][:cells]).all() and np.isnan(maps["off"][cells:]).all()
        assert np.nanmax(maps["library"]) < 1e-11
        assert np.allclose(maps["off"][:cells], 0.1, rtol=1e-6, atol=0)
        # Ratios outside, kappas inside, two algorithms.
        assert np.allclose(seen, np.tile(np.repeat(kappas[:cells], 2), 4), rtol=1e-6, atol=0)


def test_agreement_counts_the_cells_between_10_u_and_a_tenth():
    u = FORMATS["float32"].u
    predicted = np.array([9 * u, 10 * u, 11 * u, 1e-3, 0.09, 0.09, 0.1, 0.11, np.nan])
    measured = np.array([1.0, 1.0, 22 * u, 3e-3, 0.36, np.nan, 0.0, 0.0, 1e-3])
    assert agreement(measured, predicted) == (pytest.approx(3), 3)
    assert [*map(type, agreement(measured, predicted))] == [
        float,
        int,
    ]  # so they are printed as numbers
    assert agreement(measured, predicted, "bfloat16") == (pytest.approx(4), 1)
    nothing, cells = agreement(measured, 0)
    assert np.isnan(nothing) and cells == 0


# Lines on their maps. The lines are derived to within a factor of about 2, so the median of
# measured / predicted must be within 3 of 1: a line that is 10 times too high or too low, or has a
# wrong exponent, fails.

RATIOS = 10.0 ** np.linspace(0, 7, 15)
ENERGIES = 10.0 ** np.linspace(-2, 6, 5)


def assert_agrees(measured, predicted, dtype="float32", least=8):
    ratio, cells = agreement(measured, predicted, dtype)
    assert cells >= least and 1 / 3 < ratio < 3, (ratio, cells)


@pytest.mark.slow
@pytest.mark.parametrize("D", [64, pytest.param(256, marks=pytest.mark.slow)])
@pytest.mark.parametrize("order", ["sequential", "accumulators", "pairwise"])
def test_the_naive_variance_loses_u_ratio_squared(order, D):
    maps = regimes.forward_errors(
        {
            name: lambda x, eps, name=name: variance.normalise(x, name, eps, order)
            for name in ("naive", "clipped")
        },
        RATIOS,
        ENERGIES,
        D=D,
        rng=rng(),
    )
    predicted = regimes.naive_loss(RATIOS, ENERGIES[:, None], D, order)
    for measured in maps.values():
        assert_agrees(measured, predicted)


@pytest.mark.parametrize("D", [64, pytest.param(256, marks=pytest.mark.slow)])
def test_a_rounded_mean_loses_u_ratio_whatever_the_variance(D):
    lines = {
        ("two-pass", "sequential"): "sequential",
        ("two-pass", "accumulators"): "accumulators",
        ("two-pass", "pairwise"): "pairwise",
        ("corrected", "sequential"): "sequential",
        ("corrected", "pairwise"): "pairwise",
        ("welford", "sequential"): "sequential",
        ("chan", "pairwise"): "pairwise",
        ("shifted", "pairwise"): "exact",
        ("neumaier", "sequential"): "exact",
        ("wide", "pairwise"): "exact",
    }
    algorithms = {
        key: lambda x, eps, key=key: variance.normalise(x, key[0], eps, key[1]) for key in lines
    }
    maps = regimes.forward_errors(algorithms, RATIOS, ENERGIES[::2], D=D, rng=rng())
    for key, order in lines.items():
        assert_agrees(maps[key], regimes.mean_loss(RATIOS, D, order), least=20)

    # The same with the variance of a judge: what is lost is the mean.
    def perfect_variance(x, eps):
        return variance.normalise(
            x, "wide", eps, var=np.var(x.astype(np.float64), axis=-1, keepdims=True)
        )

    maps = regimes.forward_errors(
        {"perfect": perfect_variance}, RATIOS, ENERGIES[::2], D=D, rng=rng()
    )
    assert_agrees(maps["perfect"], regimes.mean_loss(RATIOS, D, "exact"), least=20)


def library(x, gamma, beta, dy, eps):
    return layer_norm_backward(dy, layer_norm_forward(x, gamma, beta, eps)[1])


def chain_rule(x, gamma, beta, dy, eps):
    return layer_norm_backward_steps(dy, x, gamma, x.dtype.type(eps))


@pytest.mark.slow
@pytest.mark.parametrize("dtype, eps, powers", [("float32", 1e-5, 7), ("float64", 1e-12, 15)])
@pytest.mark.parametrize("towards", ["ones", "along"])
def test_the_backward_loses_kappa_u(towards, dtype, eps, powers):
    kappas = 10.0 ** np.arange(powers)
    algorithms = {"library": library, "chain rule": chain_rule}
    energies = 10.0 ** np.arange(1, powers + 1, 2)
    for D in (64, 256):
        found = [
            regimes.backward_errors(
                algorithms, kappas, 0.0, energy, towards, D=D, eps=eps, dtype=dtype, rng=rng()
            )
            for energy in energies
        ]
        for name in algorithms:
            wide = name == "library" and dtype == "float32"
            measured = np.concatenate([maps[name] for maps in found], axis=1)
            predicted = regimes.backward_loss(kappas[:, None], towards, dtype, wide)
            assert_agrees(measured, predicted, dtype)


def test_the_roundings_of_the_backward_are_those_counted():
    """Of an element, of a row where it is not wide: as the docstring has them."""
    g, centred, xhat, product, rstd, mean = 1, 2, 2, 1, 4 * 2.75, 2
    along = g + centred + xhat + product + rstd + mean
    counted = {False: (g + centred, along), True: (g, g + xhat)}
    for wide, roundings in counted.items():
        lost = [regimes.backward_loss(1, towards, wide=wide) for towards in ("ones", "along")]
        assert (np.ravel(lost) / (regimes.TAU * 2.0**-24)) ** 2 == pytest.approx(roundings)


def test_how_many_roundings_a_sum_amounts_to():
    partial = np.arange(1, 193) / 192
    assert regimes.sum_roundings(192, "sequential") == pytest.approx((partial**2).sum(), rel=0.01)
    for order, roundings in {"accumulators": 1 + 8 / 3, "pairwise": 2, "exact": 1}.items():
        assert regimes.sum_roundings(192, order) == roundings


# Boundaries: on one side it happens, on the other it does not


@pytest.mark.parametrize("terms", [16, 256])
@pytest.mark.parametrize("ratio", [0, 3])
def test_sums_of_squares_overflow_from_the_line_on(ratio, terms):
    """In float16, on rows of +sigma and -sigma about the mean, whose squares add up to the
    formula's exactly.

    5 % in sigma either side is 10 % in squares. Adding 256 terms in sequence is off by
    0.4 u sqrt(256 / 3) = 0.2 % typically, a square by 0.05 %.
    """
    for factor, overflows in ((0.95, False), (1.05, True)):
        sigma = factor * regimes.overflow_sigma(ratio, "float16", terms)
        total = np.zeros(())
        for square in round_to((sigma * (ratio + np.resize([1.0, -1.0], terms))) ** 2, "float16"):
            total = round_to(total + square, "float16")
        assert np.isinf(total) == overflows
