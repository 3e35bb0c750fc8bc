"""Bits: the same on all ranks always; with fixed blocks, the same for every number of ranks."""

import numpy as np
import pytest
from ranks import numbers, program, whole

from lnlib import layernorm
from lnlib.sharded import SUM, RankError, cut, features, simulate, widths
from lnlib.sharded.groups import merge, merge_upstream, products, quadruples, quintuples, tree
from lnlib.sharded.simulator import ORDERS

RANKS = 1, 2, 3, 4, 7, 8


def bits(arrays):
    return [a.tobytes() for a in arrays]


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("how, count, block", [("features", 520, 64), ("rows", 60, 7)])
def test_reproducible_bits_do_not_depend_on_the_number_of_ranks(how, count, block, dtype, norm):
    """Nine parts, the last of them short; on twelve ranks some have none. A library's order changes
    nothing.
    """
    arrays = numbers(60, 520, 1e3, dtype)
    first = None
    for ranks in (*RANKS, 12):
        for order in ORDERS:
            found = whole(
                how,
                simulate(
                    [
                        program(how, part, *arrays, norm=norm, block=block)
                        for part in cut(count, ranks, block)
                    ],
                    order=order,
                ),
            )
            first = first or bits(found)
            assert bits(found) == first, (ranks, order)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_without_blocks_bits_do_depend_on_it(dtype):
    """What the test above would not see if two orders never differed: float64 sums, not rounded to
    float32.
    """
    arrays = numbers(60, 520, 1e3, "float64")
    for how, count in (("features", 520), ("rows", 60)):
        found = {
            b"".join(
                bits(
                    whole(
                        how, simulate([program(how, part, *arrays) for part in cut(count, ranks)])
                    )
                )
            )
            for ranks in RANKS
        }
        assert len(found) > 1


def test_rows_sharded_y_and_dx_are_those_of_one_process():
    arrays = numbers(61, 300, 10.0)
    y, cache = layernorm.layer_norm_forward(*arrays[:3])
    dx, *_ = layernorm.layer_norm_backward(arrays[3], cache)
    for ranks in RANKS:
        found = whole("rows", simulate([program("rows", part, *arrays) for part in cut(61, ranks)]))
        assert bits(found[:3]) == bits([y, cache.xhat, dx])


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


def test_the_ring_adds_another_order_in_every_part_of_a_message():
    """The same number everywhere in the message comes back as several: where in a message a number
    lies decides.
    """
    values = np.random.default_rng(0).standard_normal(5)

    def program(value):
        return (yield SUM, np.full(50, value))

    for order, most in (("tree", 1), ("chain", 1), ("ring", 5)):
        totals = simulate([program(value) for value in values], order=order)
        assert len({a.tobytes() for a in totals}) == 1
        assert 1 < len(set(totals[0])) <= most if order == "ring" else len(set(totals[0])) == 1


def test_a_part_that_is_no_block_is_refused_on_all_ranks():
    arrays = numbers(60, 64)
    for how in ("rows", "features"):
        words = rf"^ranks 0, 1: ValueError: block: found 15 {how} in part 1 of ., expected 16"
        with pytest.raises(RankError, match=words):
            simulate(
                [
                    program(how, part, *arrays, block=16)
                    for part in widths(31, 29 if how == "rows" else 33)
                ]
            )
        simulate(
            [
                program(how, part, *arrays, block=16)
                for part in widths(32, 28 if how == "rows" else 32)
            ]
        )


@pytest.mark.parametrize("join, columns", [(merge, 4), (merge_upstream, 5)])
def test_a_merge_is_symmetric_and_an_empty_group_changes_nothing(join, columns):
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((100, columns)) for _ in range(2))
    a[:, 0], b[:, 0] = rng.integers(1, 9, (2, 100))
    assert bits([join(a, b)]) == bits([join(b, a)])
    for empty in (np.zeros_like(a), a * [0, *[np.e] * (columns - 1)]):
        empty[:, 3:] = 0
        assert np.array_equal(join(a, empty), a) and np.array_equal(join(empty, a), a)


def test_merged_is_what_one_group_would_be():
    """Integers of few bits: every sum, mean and product is exact, and so is the merge."""
    rng = np.random.default_rng(4)
    x, along = 4.0 * rng.integers(-8, 8, (2, 9, 32))
    for block in (1, 2, 8, 16):
        n, m, r, S = tree(merge, quadruples(x, block)).T
        assert np.array_equal(n, [32] * 9) and np.array_equal(m + r, x.mean(-1))
        assert np.array_equal(S, ((x - x.mean(-1, keepdims=True)) ** 2).sum(-1))
        n, m, r, X, Q = tree(merge_upstream, quintuples(x, along, block)).T
        assert np.array_equal(X, along.sum(-1))
        assert np.array_equal(Q, ((x - x.mean(-1, keepdims=True)) * along).sum(-1))
        assert np.array_equal(tree(np.add, products(x, along, block))[:, 1], (x * along).sum(-1))
