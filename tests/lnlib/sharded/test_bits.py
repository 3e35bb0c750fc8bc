"""Bits: the same on all ranks always; with fixed blocks, the same for every number of ranks."""

import itertools

import numpy as np
import pytest
from ranks import numbers, program, run

from lnlib import layernorm
from lnlib.sharded import cut, features, simulate, widths
from lnlib.sharded.groups import merge, merge_upstream
from lnlib.sharded.simulator import ORDERS

RANKS = 1, 2, 3, 4, 7, 8


def bits(arrays):
    return [a.tobytes() for a in arrays]


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("how, count, block", [("features", 520, 64), ("rows", 60, 7)])
def test_reproducible_bits_do_not_depend_on_the_number_of_ranks(how, count, block, dtype, norm):
    """Nine parts, the last of them short; on twelve ranks some have none. Neither a library's order
    nor that of memory changes anything.
    """
    arrays, found = numbers(60, 520, 1e3, dtype), set()
    for ranks, order in itertools.product((*RANKS, 12), ORDERS):
        given = [np.asarray(a, order="F" if ranks == 3 else "C") for a in arrays]
        options = {"order": order, "norm": norm, "block": block}
        found.add(tuple(bits(run(how, cut(count, ranks, block), *given, **options))))
    assert len(found) == 1


def test_rows_sharded_y_and_dx_are_those_of_one_process():
    arrays = numbers(61, 300, 10.0)
    y, cache = layernorm.layer_norm_forward(*arrays[:3])
    dx, *_ = layernorm.layer_norm_backward(arrays[3], cache)
    for ranks in RANKS:
        assert bits(run("rows", ranks, *arrays)[:3]) == bits([y, cache.xhat, dx])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("parts", [widths(5, 0, 9, 2, 44), cut(60, 3), cut(60, 4)])
def test_all_ranks_have_the_same_bits(order, parts):
    """dgamma and dbeta of rows; of features the statistics, which every rank merges for itself."""
    arrays = x, gamma, beta, _ = numbers(60, 60, 1e3, "float64")
    results = simulate([program("rows", part, *arrays) for part in parts], order=order)
    assert len({b"".join(bits(r[3:])) for r in results}) == 1
    results = simulate(
        [features.layer_norm_forward(x[:, part], gamma[part], beta[part]) for part in parts]
    )
    assert len({cache.rstd.tobytes() for _, cache in results}) == 1


@pytest.mark.parametrize("join, columns", [(merge, 4), (merge_upstream, 5)])
def test_a_merge_is_symmetric_and_an_empty_group_changes_nothing(join, columns):
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((100, columns)) for _ in range(2))
    a[:, 0], b[:, 0] = rng.integers(1, 9, (2, 100))
    assert bits([join(a, b)]) == bits([join(b, a)])
    for empty in (np.zeros_like(a), a * [0, *[np.e] * (columns - 1)]):
        empty[:, 3:] = 0
        assert np.array_equal(join(a, empty), a) and np.array_equal(join(empty, a), a)
