"""Sums over rows: each order adds as it says, and loses what its line says."""

import math

import numpy as np
import pytest

from lnlib.rounding import FORMATS, TAU, round_to
from lnlib.summation import ROW_ORDERS, row_sum_errors, row_sum_loss, running_sums, sum_rows

DTYPES = ("float32", "bfloat16")


def terms(rows, columns=3, dtype="float32", seed=0):
    return round_to(np.random.default_rng(seed).standard_normal((rows, columns), np.float32), dtype)


def one_after_another(a, dtype):
    total = np.float32(0)
    for term in a:
        total = round_to(np.float32(total + term), dtype)
    return float(total)


# Each order against the plainest loop


@pytest.mark.parametrize("dtype", DTYPES)
def test_running_sums_round_every_partial_sum(dtype):
    a = terms(300, dtype=dtype)
    sums = running_sums(a, dtype)
    assert sums.dtype == np.float32 and sums.shape == a.shape
    for n in (1, 2, 50, 300):
        assert sums[n - 1].tolist() == [one_after_another(column[:n], dtype) for column in a.T]


def test_every_midpoint_is_rounded_to_even():
    """0 + a in bfloat16, of rows that are float32: all exponents, and signs of zero."""
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32)
    bits[::3] = bits[::3] & 0xFFFF0000 | 0x8000  # midpoints
    a = bits.view(np.float32)
    a = a[np.isfinite(a)]
    upper = (a.view(np.uint32) & 0xFFFF0000).view(np.float32)
    two = np.stack([upper, round_to(a - upper, "bfloat16")])  # exact sums, most of them a again
    assert np.array_equal(running_sums(two, "bfloat16")[1], round_to(two.sum(axis=0), "bfloat16"))
    assert np.signbit(running_sums(np.float32([[-0.0, -1e-45, 0.0]]), "bfloat16")).tolist() == [
        [True, True, False]
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 5, 127, 128, 129, 1000])
def test_orders_in_plain_python(rows, dtype):
    """The shape of each sum, spelled out for one column at a time."""
    a = terms(rows, dtype=dtype)

    def pairwise(column):
        column = list(column)
        while len(column) > 1:
            half = len(column) // 2
            column = [
                float(round_to(np.float32(column[i] + column[i + half]), dtype))
                for i in range(half)
            ] + column[2 * half :]
        return float(column[0])

    def blocks(column):
        return pairwise(
            np.float32([one_after_another(column[i : i + 128], dtype) for i in range(0, rows, 128)])
        )

    def random(column):
        return one_after_another(column[np.random.default_rng(5).permutation(rows)], dtype)

    def wide(column):
        return float(round_to(np.float64(math.fsum(column)), dtype))

    plain = {
        "sequential": lambda column: one_after_another(column, dtype),
        "pairwise": pairwise,
        "blocks": blocks,
        "random": random,
        "wide": wide,
    }
    for order, function in plain.items():
        found = sum_rows(a, order, dtype, np.random.default_rng(5))
        assert found.dtype == np.float32 and found.shape == (3,)
        assert found.tolist() == [function(np.float32(column)) for column in a.T], order


@pytest.mark.parametrize("dtype", DTYPES)
def test_neumaier_recovers_what_a_running_sum_loses(dtype):
    """2 of 4 numbers vanish beside the large one: 1 + L = L. bfloat16 holds 2**30 and 2 as float32
    does.
    """
    a = np.float32([[1], [2.0**30], [1], [-(2.0**30)]])
    assert sum_rows(a, "sequential", dtype) == 0
    assert sum_rows(a, "neumaier", dtype) == 2


# Lines on their measurements

COUNTS = {"float32": (1000, 10_000, 100_000), "bfloat16": (100, 1000, 10_000)}


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_the_lines(dtype):
    """Root mean squares over 64 columns are good to 9 %, the derivation to a factor of about 2, so
    2 allows no more.

    Sequential and pairwise are a factor of 6 and more apart, so none may take the other's place;
    blocks lie between.
    """
    errors = row_sum_errors(ROW_ORDERS, COUNTS[dtype], 64, dtype, rng=np.random.default_rng(0))
    for order, measured in errors.items():
        ratio = measured / row_sum_loss(COUNTS[dtype], order, dtype)
        assert (ratio > 0.5).all() and (ratio < 2).all(), (order, ratio)


N = np.array([1, 100, 128, 256, 1000])  # blocks have 128 rows


@pytest.mark.parametrize(
    "order, roundings",
    [
        ("sequential", N / 2),
        ("random", N / 2),
        ("pairwise", np.log2(N)),
        ("wide", 1),
        ("blocks", [1 / 2, 50, 64, 65, 64 + np.log2(1000 / 128)]),
    ],
)
def test_the_lines_count_the_roundings_of_the_total(order, roundings):
    """Their number, where partial sums are smaller than the total in proportion; squares add up."""
    lost = (row_sum_loss(N, order) / (TAU * FORMATS["float32"].u)) ** 2
    assert lost == pytest.approx(np.broadcast_to(roundings, N.shape), rel=1e-14, abs=0)
