"""Half formats without a package for them: exhaustive over their numbers and over what lies
between.
"""

import cases
import numpy as np
import pytest

from lnlib.rounding import FORMATS, TAU, round_to, spacing

HALVES = ("bfloat16", "float16")
CARRIERS = ("float32", "float64")


def numbers(name):
    """All numbers of a half format in the order of their 65,536 bit patterns, NaN left out, as
    float32: exact.
    """
    patterns = np.arange(2**16, dtype=np.uint16)
    values = (
        patterns.view(np.float16)
        if name == "float16"
        else (patterns.astype(np.uint32) << 16).view(np.float32)
    )
    return values[~np.isnan(values)].astype(np.float32)


def ladder(name):
    """The finite numbers from 0 up, and the one after the largest: where Inf would stand. Position
    i is pattern i.
    """
    values = numbers(name).astype(np.float64)
    values = values[np.isfinite(values) & ~np.signbit(values)]
    return np.append(values, 2 * values[-1] - values[-2])


@pytest.mark.parametrize("name", HALVES)
def test_spacing_is_the_way_to_the_next_number(name):
    values = ladder(name)
    assert np.array_equal(spacing(values[:-1], name), np.diff(values)) and values[0] == 0


# The table


@pytest.mark.parametrize("name", [name for name in FORMATS if name in cases.DTYPES])
def test_the_table_against_the_dtypes_themselves(name):
    info = cases.ml_dtypes.finfo(name) if name == "bfloat16" else np.finfo(name)
    form = FORMATS[name]
    assert form.bits == np.dtype(name).itemsize * 8
    assert form.precision == info.nmant + 1
    assert form.u == cases.U[name] == float(info.eps) / 2
    assert form.largest == float(info.max)
    assert form.smallest_normal == float(info.smallest_normal)
    assert form.smallest_subnormal == float(info.smallest_subnormal)


def test_typical_is_the_rms_of_roundings():
    """200,000 numbers spread evenly on a logarithmic scale: the sample's root mean square is good
    to 0.1 %.
    """
    a = 2.0 ** np.random.default_rng(0).uniform(-10, 10, 200_000)
    for name in (*HALVES, "float32"):
        relative = (round_to(a, name) - a) / a / FORMATS[name].u
        assert np.abs(relative).max() <= 1
        assert np.sqrt(np.mean(relative**2)) == pytest.approx(TAU, rel=0.01, abs=0)


# Every number, every midpoint, and what lies next to the midpoints


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("name", HALVES)
def test_every_number_of_the_format_stays(name, carrier):
    values = numbers(name).astype(carrier)
    found = round_to(values, name)
    assert len(found) > 63000 and np.array_equal(found, values)
    assert np.array_equal(np.signbit(found), np.signbit(values))  # zeros keep their sign


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("name", HALVES)
def test_every_midpoint(name, carrier, sign):
    """A midpoint goes to the neighbour whose last bit is 0; next to it, to the nearer one; from the
    top to Inf.

    A midpoint has one bit more than the format, so float32 holds it, and numbers next to it,
    exactly.
    """
    steps = ladder(name)
    midpoints = ((steps[:-1] + steps[1:]) / 2).astype(carrier)
    steps[-1] = np.inf
    even = np.where(np.arange(len(midpoints)) % 2 == 0, steps[:-1], steps[1:])
    for a, expected in (
        (midpoints, even),
        (np.nextafter(midpoints, np.zeros((), carrier)), steps[:-1]),
        (np.nextafter(midpoints, np.array(np.inf, carrier)), steps[1:]),
    ):
        assert np.array_equal(round_to(sign * a, name), sign * expected)


# Against casts


def everywhere(dtype, size=200_000):
    """Random bit patterns without NaN: every exponent, subnormals too; and again with exponents
    near zero.
    """
    bits = np.random.default_rng(1).integers(0, 2**64, size, np.uint64)
    a = (
        bits.view(np.float64)
        if dtype == "float64"
        else (bits >> 32).astype(np.uint32).view(np.float32)
    )
    a = a[~np.isnan(a)]
    return np.append(
        a, np.ldexp(np.frexp(a)[0], np.frexp(a)[1] // (40 if dtype == "float64" else 5))
    )


@pytest.mark.parametrize(
    "carrier, name",
    [
        ("float32", "float16"),
        ("float64", "float16"),
        ("float64", "float32"),
        ("float32", "bfloat16"),
    ],
)
def test_against_casts(carrier, name):
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    a = everywhere(carrier)
    with np.errstate(over="ignore", under="ignore"):
        assert np.array_equal(round_to(a, name), a.astype(name).astype(carrier))


# Shapes


def test_nan_and_inf():
    for name in FORMATS:
        found = round_to(np.array([np.nan, np.inf, -np.inf]), name)
        assert np.array_equal(found, [np.nan, np.inf, -np.inf], equal_nan=True)
