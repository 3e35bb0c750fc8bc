"""Chapter 14: its exercises refuse wrong answers and say why; the numbers in its answers."""

import itertools
import math
import re
import runpy

import numpy as np
import pytest
from pages import BOOK, CHAPTERS, read
from questions import percent, says

import simt
from lnbook.exercises import ch14
from lnlib import gpu
from lnlib.summation import sum_rows

# Exercises: each attempt is a mistake a reader may make


def test_the_variant_without_complaint_is_right():
    x, out = np.arange(192, dtype=np.float32), np.zeros(192, np.float32)
    simt.launch(ch14.two_sides, 1, 64, x, out)
    assert np.array_equal(out.reshape(3, 64)[:, 0], x.reshape(3, 64).sum(axis=1))
    assert np.ptp(out.reshape(3, 64), axis=1).max() == 0


# Questions: the numbers in the answers are computed, then looked for in their text


def test_question_1_bytes_in_half_precision():
    def equal(itemsize):  # G/N at which 3 arrays and the partial sums move as much as 5 arrays
        return (5 - 3) * itemsize / 16

    says("14.1", f"{5 * 2}, and $6 + 16\\,G/N$", f"1/{1 / equal(2):.0f}", f"1/{1 / equal(4):.0f}")
    p = gpu.steps.STEPS["fused-partials"].predict
    assert (p(64, 128, 32).bytes - p(64, 128, 16).bytes) / (64 * 128) == 16 * 16 / 64
    half, single = (16 / 64 / (3 * itemsize + 16 / 64) for itemsize in (2, 4))
    says("14.1", f"{percent(half)} of", percent(single))


def test_question_2_integers_do_not_round():
    rng = np.random.default_rng(11)
    terms = np.prod(rng.integers(-3, 4, (2, 100_000, 4)), axis=0).astype(np.float32)
    assert 9 * 100_000 < 2**24
    for order in (terms, rng.permutation(terms), rng.permutation(terms)):
        assert np.array_equal(sum_rows(order, "sequential"), terms.sum(axis=0, dtype=float))
    # A block of rows that every run misses leaves equal bits, and only the exact sum shows it.
    assert np.array_equal(
        sum_rows(terms[32:], "sequential"), sum_rows(rng.permutation(terms[32:]), "sequential")
    )
    assert not np.array_equal(sum_rows(terms[32:], "sequential"), terms.sum(axis=0, dtype=float))


def test_question_3_three_blocks_have_an_order():
    assert 8192 // 512 == 16  # "a sixteenth"
    parts = np.random.default_rng(12).standard_normal((3, 64), np.float32)
    for G, results in ((1, 1), (2, 1), (3, 2)):
        orders = [
            sum_rows(np.array([np.zeros(64, np.float32), *order]), "sequential")
            for order in itertools.permutations(parts[:G])
        ]
        assert (len(np.unique(orders, axis=0)) > 1) == (results > 1)
    says("14.3", "$G = 1$", "$G = 2$", "From 3")


def test_question_4_a_register_more():
    def fit(registers, block):
        warp = 8 * math.ceil(registers / 8) * 32
        blocks = 4 * (16384 // warp) // (block // 32)
        return warp, blocks, blocks * block

    (before, blocks, threads), (after, fewer, left) = fit(80, 256), fit(81, 256)
    says("14.4", f"{before}$ registers", f"These are {blocks} blocks, with {threads} threads")
    says("14.4", f"a warp {after}, so", f"for {fewer} whole blocks, with {left} threads")
    assert 1 - left / threads == pytest.approx(1 / 3)
    (_, twelve, more), (_, ten, less) = fit(80, 64), fit(81, 64)
    says("14.4", f"{twelve} blocks fit before and {ten} after, with {more} and {less} threads")


# The kernel that is the reader's


def test_the_example_has_the_kernels_of_the_page():
    example = (BOOK / "examples" / "layer_norm_backward_cuda.py").read_text(encoding="utf-8")
    (page,) = [path for path in CHAPTERS if path.stem.startswith("14")]
    cells = [
        cell.source
        for cell in read(page).cells
        if re.search(r"^def (add_parts|backward_kernel)\(", cell.source, re.M)
    ]
    assert len(cells) == 2 and all(f"\n\n\n{cell}\n\n\n" in example for cell in cells)
    # Of the ladder come the stored times, so its kernel must be this one, bit by bit.
    kernel = runpy.run_path(str(BOOK / "examples" / "layer_norm_backward_cuda.py"))
    x, dy = np.random.default_rng(13).standard_normal((2, 7, 200), np.float32)
    gamma, mean = np.ones(200, np.float32), x.mean(axis=1)
    given = [dy.ravel(), x.ravel(), mean, np.ones_like(mean), gamma]
    made = [
        [simt.uninitialised(n, np.float32) for n in (7 * 200, 3 * 200, 3 * 200)] for _ in range(2)
    ]
    for arrays, factory in zip(
        made, (kernel["backward_kernel"](64, 1), gpu.ladder.fused_partials(64, 1, 4))
    ):
        simt.launch(factory, 3, 64, *given, *arrays, 7, 200)
    assert all(map(np.array_equal, *made))
