"""lnlib.gpu beyond the table: every width, the traffic of its kernels, and the host's promises.

Where there is no GPU, lnlib.gpu runs its kernels in simt, and so do most of these tests on any
machine: launched directly, their accesses can be counted. The last part needs a GPU.
"""

import contextlib
import copy
import ctypes
import functools
import inspect
import os
import pickle
import struct
import subprocess
import sys
import threading
import types
import warnings
from collections import Counter
from concurrent import futures
from typing import NamedTuple

import cases
import numpy as np
import pytest
import test_all_backends
from cases import VIEWS, arrays, bits
from pages import ROOT

import simt
from lnlib import gpu, layernorm, reference
from lnlib.gpu import backend, devices, kernels, plans
from lnlib.gpu.backend import scaled_eps, width_of_access
from lnlib.gpu.plans import Plan
from lnlib.rounding import round_to
from simt import source as simt_source
from simt.cuda_access import bfloat16, cuda, widened

U = cases.U["float32"]


run = functools.partial(cases.run, gpu)


# Every width

# A row of one lane up to one that no block can keep; both sides of 32 lanes, of multiples of 4, of
# 1024.
WIDTHS = {
    **dict.fromkeys((1, 2, 3, 31, 32, 33, 100, 127), (1, 7, 33, 130)),
    **dict.fromkeys((768, 1000, 1024, 1027), (1, 7)),
    4096: (1, 2),
    5120: (1, 2),
    20000: (1,),
}


def far_and_near(far):
    """Rows whose mean is ``far`` standard deviations from 0, and every second one, whose mean is
    small.
    """

    def regime(rng, shape):
        z, gamma, dy = cases.normal(rng, shape)
        z[::2] += far
        return z, gamma, dy

    return regime


EVERY = [
    (N, D, far, "float32", False)
    for D, rows in WIDTHS.items()
    for N in rows
    for far in (1e6, 0)[: 1 + (N == 1)]
]
# float16 numbers end at 65504 and are 0.06 apart at 100. Of the rest, the longest row is float32's
# business, and where rows are long there is one: how rows are added up does not depend on D, and
# shorter ones show it in every dtype.
SOME = [
    (1, 33),
    *((min(rows[-1], 7) if D < 4096 else 1, D) for D, rows in WIDTHS.items() if D < 20000),
]
EVERY += [
    (N, D, far, dtype, precise)
    for N, D in SOME
    for far, dtype, precise in (
        (100, "float16", False),
        (100, "float16", True),
        (1e6, "float32", True),
        *((4, dtype, precise) for dtype in cases.HALVES[1:] for precise in (False, True)),
    )
]


def judge(case, precise):
    test_all_backends.test_gradients(
        test_all_backends.IMPLEMENTATIONS[f"GPU backend{', precise' * precise}"], case
    )


@pytest.mark.slow
@pytest.mark.parametrize("N, D, far, dtype, precise", EVERY)
def test_agrees_with_exact_arithmetic(N, D, far, dtype, precise):
    judge(cases.Case(f"{N}x{D} {dtype} {far}", (N, D), dtype, far_and_near(far)), precise)


# The kernels by themselves


def flat(array):
    """As kernels get it."""
    return array.reshape(-1).view(devices.in_kernels(array.dtype.name))


def unwritten(size, dtype):
    return simt.uninitialised(size, np.dtype(devices.in_kernels(np.dtype(dtype).name))).view(dtype)


def launch_forward(plan, x, gamma, beta, eps=1e-5, real=np.float32, rows=None, y=None, **options):
    """y, the statistics and the launch; y is more than rows * D numbers if ``y`` is."""
    rows, D = x.shape[0] if rows is None else rows, x.shape[1]
    kernel = backend._forward_kernel(plan, np.dtype(real), x.dtype)
    y = unwritten(x.size, x.dtype) if y is None else y
    statistics = simt.uninitialised(4 * rows, real)
    ran = simt.launch(
        kernel,
        plan.blocks,
        plan.threads * plan.rows,
        flat(x),
        flat(gamma),
        flat(beta),
        flat(y),
        statistics,
        np.int32(rows),
        np.int32(D),
        *scaled_eps(eps, np.dtype(real)),
        **options,
    )
    return y, statistics, ran


def launch_backward(plan, dy, x, statistics, gamma, rows=None, outputs=None, **options):
    """(dx, partial_dgamma, partial_dbeta) and the launch."""
    rows, D = x.shape[0] if rows is None else rows, x.shape[1]
    real = statistics.dtype
    kernel = backend._backward_kernel(plan, real, x.dtype)
    outputs = outputs or (
        unwritten(x.size, x.dtype),
        *(simt.uninitialised(plan.partials * D, real) for _ in range(2)),
    )
    ran = simt.launch(
        kernel,
        plan.blocks,
        plan.threads * plan.rows,
        flat(dy),
        flat(x),
        statistics,
        flat(gamma),
        *map(flat, outputs),
        np.int32(rows),
        np.int32(D),
        np.int32(plan.partials),
        **options,
    )
    return outputs, ran


def launch_add(partial_dgamma, partial_dbeta, D, dtype=np.float32, **options):
    """dgamma, dbeta and the last launch: of one chunk of partial sums, or of the sums of
    several.
    """
    partials, real = partial_dgamma.size // D, partial_dgamma.dtype
    columns, lanes, chunks = plans.plan_add(partials)
    into = dtype if chunks == 1 else real
    kernel = backend._kernel(kernels.add_partials, columns, lanes, real, np.dtype(into))
    dgamma, dbeta = (unwritten(chunks * D, into) for _ in range(2))
    ran = simt.launch(
        kernel,
        -(-D // columns) * chunks,
        columns * lanes,
        partial_dgamma,
        partial_dbeta,
        flat(dgamma),
        flat(dbeta),
        np.int32(partials),
        np.int32(D),
        **options,
    )
    return (dgamma, dbeta, ran) if chunks == 1 else launch_add(dgamma, dbeta, D, dtype, **options)


def rounded_and_back(values, kept, numbers, n):
    i = cuda.grid(1)
    if i < n:
        kept[i] = bfloat16(values[i])
        numbers[i] = widened(kept[i])


def to_round(dtype):
    """Any bits of a float32; what lies in the middle of two bfloat16, and next to it; NaN, Inf, the
    largest.
    """
    rng = np.random.default_rng(3)
    any_bits = rng.integers(0, 2**32, 300, dtype=np.uint64).astype(np.uint32).view("f4")
    middle = (rng.integers(0, 2**16, 100) << 16 | 0x8000).astype(np.uint32).view("f4")
    some = np.concatenate(
        [
            any_bits,
            middle,
            np.array([0, -0.0, np.nan, np.inf, -np.inf, 3.4e38, 3.39e38, 1e-45], "f4"),
        ]
    )
    some = some.astype(dtype)
    return np.concatenate(
        [some, np.nextafter(some, np.inf, dtype=dtype), np.nextafter(some, -np.inf, dtype=dtype)]
    )


def judge_rounding(values, kept, numbers):
    """Both as lnlib.rounding has it, which rounds once; and the bits are the upper half of a
    float32.
    """
    expected = round_to(values.astype("f8"), "bfloat16").astype("f4")
    assert np.array_equal(numbers, expected, equal_nan=True)
    assert np.array_equal((kept.astype(np.uint32) << 16).view("f4"), expected, equal_nan=True)
    assert np.array_equal(np.signbit(numbers), np.signbit(expected) & ~np.isnan(expected))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_bfloat16_is_rounded_once(dtype):
    values = to_round(dtype)
    kept, numbers = np.zeros(values.size, np.uint16), np.zeros(values.size, "f4")
    simt.launch(
        rounded_and_back, -(-values.size // 128), 128, values, kept, numbers, np.int32(values.size)
    )
    judge_rounding(values, kept, numbers)


class Kind(NamedTuple):
    """D, and the part of a plan that belongs to it."""

    D: int
    threads: int
    chunks: int
    width: int
    rows: int
    twice: bool = False

    def plan(self, blocks, partials=0):
        return Plan(*self[1:5], blocks, partials, self.twice)

    def forward(self, N):
        """Forward gives a row a warp at least."""
        if self.threads < 32:
            return Plan(32, -(-self.D // (32 * self.width)), self.width, 4, -(-N // 4))
        return self.plan(-(-N // self.rows))

    def backward(self, N):
        """Partial sums of several turns each, if there are so many rows, and a block that does more
        than one.
        """
        if self.rows > 1:
            return self.plan(1, min(-(-N // self.rows), 2 if self.chunks == 1 else 1))
        return self.plan(BLOCKS, min(N, PARTIALS))


# Every kernel, for rows that end within a chunk, and short enough for many of them.
KINDS = {
    "four warps, a row each": Kind(100, 32, 1, 4, 4),
    "four warps, one by one": Kind(67, 32, 3, 1, 4),
    "a warp, two rows": Kind(44, 16, 1, 4, 2),
    "four warps, four rows each": Kind(60, 8, 2, 4, 16),
    "a warp, four rows, one by one": Kind(39, 8, 5, 1, 4),
    "four warps, a long row each": Kind(260, 32, 3, 4, 4),
    "a block": Kind(260, 64, 2, 4, 1),
    "a block, one by one": Kind(131, 64, 3, 1, 1),
    "read twice": Kind(260, 64, 2, 4, 1, True),
    "read twice, one by one": Kind(131, 64, 3, 1, 1, True),
    "long": Kind(540, 64, 0, 4, 1),
    "long, one by one": Kind(131, 64, 0, 1, 1),
}


def each(kinds):
    """Chunks of one number, and what adds little to others, are for the long sweeps."""
    return pytest.mark.parametrize(
        "kind",
        [
            pytest.param(
                kind,
                id=name,
                marks=pytest.mark.slow if kind.width == 1 or "long" in name or kind.D == 60 else (),
            )
            for name, kind in kinds.items()
        ],
    )


every_kind, of_forward = (
    each(KINDS),
    each({name: kind for name, kind in KINDS.items() if kind.threads >= 32}),
)
PARTIALS, BLOCKS = 3, 2  # one block does two rows of partial sums


def launch_all(kind, x, gamma, beta, dy, eps=1e-5, real=np.float32):
    """(y, dx, dgamma, dbeta) by three launches of the kernels of this kind."""
    N = x.shape[0]
    y, statistics, _ = launch_forward(kind.forward(N), x, gamma, beta, eps, real)
    (dx, *partials), _ = launch_backward(kind.backward(N), dy, x, statistics, gamma)
    dgamma, dbeta, _ = launch_add(*partials, kind.D, gamma.dtype)
    return y.reshape(x.shape), dx.reshape(x.shape), dgamma, dbeta


@pytest.mark.parametrize(
    "real, dtype, offset",
    [
        (np.float32, "float32", 1e6),
        (np.float32, "float16", 0),
        (np.float64, "float32", 0),
        *((np.float64, dtype, 0) for dtype in cases.HALVES[1:]),
    ],
)
@every_kind
def test_every_kernel(kind, real, dtype, offset):
    """Seven rows, three partial sums: some have three terms, some two; every number of a result is
    written.
    """
    judged = cases.judge(
        cases.Case(f"7x{kind.D} {dtype} {offset}", (7, kind.D), dtype, offset=offset)
    )
    cases.check(launch_all(kind, *judged.arrays, real=real), judged.exact, judged.bars)


@pytest.mark.parametrize("name", ["a warp, two rows", "a warp, four rows, one by one"])
def test_rows_of_a_warp_are_asked_each_for_itself_whether_g_is_constant(name):
    """Where it is, dx is 0 to the last bit. Of four rows, no two pairs of neighbours are alike."""
    kind, constant = KINDS[name], np.array([True, False, False, True])
    x, gamma, beta, dy = arrays((4, kind.D))
    gamma, dy[constant] = np.full_like(gamma, 1.7), np.float32(0.1)
    found, exact = launch_all(kind, x, gamma, beta, dy), reference.layer_norm(x, gamma, beta, dy)
    cases.check(found, exact, cases.float32_bars(exact, gamma, dy))
    assert found[1].any(axis=1).tolist() == [False, True, True, False]


@every_kind
def test_every_kernel_sees_one_g_that_differs(kind):
    """It is a row's last; or in the first lane, behind the element with which all are compared."""
    x, gamma, beta, dy = arrays((4, kind.D))
    for place in (-1, 1 if kind.width == 4 else kind.threads):
        gamma[:] = dy[:] = 1
        dy[:, place] = 3
        exact = reference.layer_norm(x, gamma, beta, dy)
        cases.check(
            launch_all(kind, x, gamma, beta, dy), exact, cases.float32_bars(exact, gamma, dy)
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "sigma, eps, exponent",
    [(3e19, 1e-5, 64), (5e37, 1e-5, 125), (1e-36, 0.0, -120), (1e-22, 1e-44, -73), (1.0, 1e42, 70)],
)
@every_kind
def test_every_kernel_out_of_range(kind, sigma, eps, exponent):
    """Scaling by a power of two rounds nothing; dx of a row of 2^e times as large is 1 / 2^e of
    it.
    """
    x, gamma, beta, dy = arrays((3, kind.D))
    x = (sigma * x.astype("float64")).astype("float32")
    y, dx, dgamma, dbeta = launch_all(kind, x, gamma, beta, dy, eps)
    exact = reference.layer_norm(
        np.ldexp(x, -exponent), gamma, beta, dy, float(np.ldexp(eps, -2 * exponent))
    )
    cases.check(
        (y, np.ldexp(dx, exponent), dgamma, dbeta), exact, cases.float32_bars(exact, gamma, dy)
    )


@pytest.mark.slow
@every_kind
def test_every_kernel_on_constants(kind):
    """A constant row gives beta and no dgamma, a constant g gives no dx; exactly, of numbers whose
    mean rounds.

    Though the last row's g, which may be in the same warp, is not constant.
    """
    x, gamma, beta, dy = arrays((5, kind.D))
    x[:3] = np.array([[0.1], [-33333334.0], [1e-40]])
    y, _, dgamma, _ = launch_all(kind, x[:3], gamma, beta, dy[:3])
    assert (y == beta).all() and not dgamma.any()
    dy[:4] = np.array([[0.1], [-3.3], [1e3 / 3], [3e38]])
    _, dx, _, _ = launch_all(kind, x, np.full(kind.D, 1.7, "f4"), beta, dy)
    assert not dx[:3].any()
    # 3e38 * 1.7 is out of range, the rest is scaled by 2^-90 and still constant.
    assert not dx[3].any() and dx[4].all()


@every_kind
def test_every_kernel_keeps_large_upstreams(kind):
    """Where only the sums overflow, dx is what it is of a smaller dy, times a power of two: no bit
    differs.
    """
    x, gamma, beta, dy = arrays((3, kind.D))
    dy += np.float32(1)  # so that they do: D * 2^125
    x *= np.float32(2**30)  # dx is much smaller than dy
    ordinary, large = (
        launch_all(kind, x, np.ones_like(gamma), beta, np.ldexp(dy, k))[1] for k in (0, 125)
    )
    assert np.array_equal(large, np.ldexp(ordinary, 125)) and np.isfinite(large).all()
    # Only the sum of g overflows, or only that of g * xhat.
    sign = np.resize(np.float32([1, -1]), x.shape)
    nearly = np.ones_like(x)
    nearly[:, 2] += np.float32(2 * U)
    for dy in (nearly, sign) if kind.D % 2 == 0 else ():
        ordinary, large = (
            launch_all(kind, sign, np.ones_like(gamma), beta, np.ldexp(dy, k))[1] for k in (0, 122)
        )
        assert np.array_equal(large, np.ldexp(ordinary, 122)) and np.isfinite(large).all()


@pytest.mark.slow
@pytest.mark.parametrize("bad", [np.nan, pytest.param(np.inf, marks=pytest.mark.slow)])
@every_kind
def test_every_kernel_keeps_nan_in_its_row(kind, bad):
    """Every lane and warp must leave the loops together, or the interpreter reports a barrier not
    all reach.
    """
    x, gamma, beta, dy = arrays((5, kind.D))
    clean = launch_all(kind, x, gamma, beta, dy)
    broken_x, broken_dy = x.copy(), dy.copy()
    broken_x[1, kind.D - 1] = broken_dy[1, 3] = bad
    others = [0, 2, 3, 4]
    y, dx, dgamma, dbeta = launch_all(kind, broken_x, gamma, beta, dy)
    assert np.isnan(y[1]).all() and np.isnan(dx[1]).all() and np.isnan(dgamma).all()
    assert bits([y[others], dx[others], dbeta]) == bits(
        [clean[0][others], clean[1][others], clean[3]]
    )
    y, dx, dgamma, dbeta = launch_all(kind, x, gamma, beta, broken_dy)
    assert not np.isfinite(dx[1]).any() and not np.isfinite(dgamma[3]) and not np.isfinite(dbeta[3])
    columns = np.arange(kind.D) != 3
    assert bits([y, dx[others], dgamma[columns], dbeta[columns]]) == bits(
        [clean[0], clean[1][others], clean[2][columns], clean[3][columns]]
    )


def rounds(ran, threads):
    """How often the statistics were summed: 5 steps of 2 shuffles each time."""
    return sum(event[2] == "shfl_xor_sync" for event in ran.events) / (10 * threads)


@pytest.mark.slow
@of_forward
def test_rounds_of_the_statistics(kind):
    """One for a mean of less than half a standard deviation, two for a larger one, and never all
    six.

    Six that do not end leave a mean that has moved after the residual was computed.
    """
    N = kind.rows
    x, gamma, beta, _ = arrays((N, kind.D))
    x -= x.mean(1, keepdims=True)
    count = {}
    rows = {
        "centred": x,
        "0.4 sigma": x + np.float32(0.4),
        "0.6 sigma": x + np.float32(0.6),
        "1e6": x + np.float32(1e6),
        "constant": x * 0 + np.float32(1 / 3),
        "zeros": x * 0,
        "two neighbours": np.where(x > 0, *np.float32([1, 1 + 2 * U])),
        "just large": x * np.float32(3e19),
        "large": x * np.float32(1e30),
        "large, far": (x + 10) * np.float32(1e30),
        "small, far": (x + 1000) * np.float32(1e-30),
        "small, very far": 1e-9 + 1e-16 * x.astype("f8"),
        "squares vanish": 1e-25 * (1 + x.astype("f8")),
        "squares vanish, far": 1e-25 * (1 + 1e-5 * x.astype("f8")),
        "squares overflow": 1e20 + 1e13 * x.astype("f8"),
        "sum overflows": x * 0 + np.float32(3e38),
    }
    for name, x in rows.items():
        x = x.astype("float32")
        _, statistics, ran = launch_forward(
            kind.plan(1), x, gamma, beta, 0.0 if "small" in name else 1e-5, log=True
        )
        count[name] = rounds(ran, kind.threads * kind.rows)
        mean, residual = statistics.reshape(N, 4)[:, :2].astype("f8").T
        scale = statistics.reshape(N, 4)[:, 3].astype("f8")
        scaled = x.astype("f8") * scale[:, None]
        # The mean is known to some u of the standard deviation, not of the mean; see BAR for the 4.
        off = np.abs(mean + residual - scaled.mean(1))
        assert (
            (off <= 4 * U * np.maximum(scaled.std(1), 0)).all()
            or name == "constant"
            and not off.any()
        ), name
    assert count["centred"] == count["0.4 sigma"] == 1
    assert (
        count["0.6 sigma"]
        == count["1e6"]
        == count["squares vanish"]
        == count["squares vanish, far"]
        == 2
    )
    assert (
        count["just large"] == count["large"] == 2 and count["zeros"] == 1
    )  # scaled, from 0; no better guess than 0
    assert max(count.values()) < kernels.ROUNDS, count


# Traffic

MOVERS = {
    function.__name__
    for pair in kernels.ACCESS.values()
    for function in map(simt_source.plain, pair)
}


def uses(ran, array, kind):
    """How often each element of an array is used by the functions that move a chunk, and
    otherwise.
    """
    size = 2 if array.dtype == np.float16 else 4
    counts = {True: np.zeros(array.size, int), False: np.zeros(array.size, int)}
    for a in ran.accesses:
        if a.array == kind[0] and a.kind == kind[1]:
            first = a.address // size
            counts[a.site[0] in MOVERS][first : first + a.size // size] += 1
    return counts[True], counts[False]


def chunks_only(ran, width):
    """The sectors of x, y, dy and dx that functions which move a chunk ask for, and the sizes of
    these accesses.
    """
    moved = [a for a in ran.accesses if a.array in ("x", "y", "dy", "dx") and a.site[0] in MOVERS]
    return simt.sectors(ran._replace(accesses=moved)), {a.size for a in moved}


# D, width, rows. Whole warps have whole chunks, so that each request is a full one. 128 is a row of
# half a warp in backward, 512 of one, 1024 of two, 4096 of eight. Rows are as many as a block does
# at a time, or a multiple.
def traffic(*more):
    """Rows whose launches are counted, D, width, N and dtype, and what a test adds to each."""
    few = [
        (512, 4, 20, "float32"),
        (128, 4, 40, "float32"),
        (1024, 4, 10, "float32"),
        (1024, 4, 10, "float16"),
    ]
    return [
        *((*case, *more) for case in few),
        *(
            pytest.param(*case, *more, marks=pytest.mark.slow)
            for case in ((1024, 1, 10, "float32"), (4096, 4, 4, "float32"))
        ),
    ]


@functools.cache
def logged(D, width, N, dtype="float32", long=False):
    """A forward and a backward launch and the second stage, with logs; the backward plan, and the
    arrays.
    """
    x, gamma, beta, dy = arrays((N, D), dtype, "float32")
    x -= x.mean(1, keepdims=True)
    forward = plans.plan_forward(N, D, width)
    backward = plans.plan_backward(N, D, width)
    if long:
        forward, backward = Plan(64, 0, width, 1, N), Plan(64, 0, width, 1, 2, 2)
    y, statistics, first = launch_forward(forward, x, gamma, beta, log=True)
    (dx, *partials), second = launch_backward(backward, dy, x, statistics, gamma, log=True)
    dgamma, dbeta, third = launch_add(*partials, D, log=True)
    return first, second, third, backward, (x, y, dy, dx)


@pytest.mark.slow
@pytest.mark.parametrize("D, width, N, dtype", traffic())
def test_compulsory_traffic(D, width, N, dtype):
    """Forward 8 bytes an element, backward 12 and 16 for each element of a partial sum: to the
    byte; of half x half.

    What is left are gamma, beta and their gradients, whose part is 1 / rows, and 16 bytes of
    statistics a row.
    """
    forward, backward, add, plan, _ = logged(D, width, N, dtype)
    assert plan.partials < N
    row, array, partial = 4 * D, np.dtype(dtype).itemsize * N * D, 4 * plan.partials * D
    assert simt.compulsory(forward) == {
        ("x", "load"): array,
        ("y", "store"): array,
        ("gamma", "load"): row,
        ("beta", "load"): row,
        ("statistics", "store"): 16 * N,
    }
    assert simt.compulsory(backward) == {
        ("x", "load"): array,
        ("dy", "load"): array,
        ("dx", "store"): array,
        ("gamma", "load"): row,
        ("statistics", "load"): 16 * N,
        ("partial_dgamma", "store"): partial,
        ("partial_dbeta", "store"): partial,
    }
    assert simt.compulsory(add) == {
        ("partial_dgamma", "load"): partial,
        ("partial_dbeta", "load"): partial,
        ("dgamma", "store"): row,
        ("dbeta", "store"): row,
    }


@pytest.mark.slow
@pytest.mark.parametrize("D, width, N, dtype", traffic())
def test_every_element_moves_once(D, width, N, dtype):
    """x, y, dy and dx; but every thread has the first element of a row of dy, which is in the first
    cache.
    """
    forward, backward, _, plan, (x, y, dy, dx) = logged(D, width, N, dtype)
    for ran, name, kind, array in (
        (forward, "x", "load", x),
        (forward, "y", "store", y),
        (backward, "x", "load", x),
        (backward, "dy", "load", dy),
        (backward, "dx", "store", dx),
    ):
        moved, others = uses(ran, array, (name, kind))
        assert (moved == 1).all(), (name, kind)
        expected = np.zeros((N, D), int)
        if name == "dy":
            expected[:, 0] = plan.threads
        assert np.array_equal(others.reshape(N, D), expected), (name, kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    "D, width, N, dtype, long",
    [*traffic(False), (512, 4, 4, "float32", True), (512, 1, 4, "float32", True)],
)
def test_full_requests(D, width, N, dtype, long):
    """A warp asks for 32 * 16 bytes at once, 16 sectors, where it can; else for 32 * 4, 4 sectors;
    half of half.
    """
    forward, backward, add, _, _ = logged(D, width, N, dtype, long)
    for ran in (forward, backward):
        traffic, sizes = chunks_only(ran, width)
        assert (
            sizes
            == {np.dtype(dtype).itemsize * width}
            == {t.sectors_per_request for t in traffic.values()}
        )
    assert {
        t.efficiency for (name, _), t in simt.sectors(add).items() if name.startswith("partial")
    } == {1.0}
    for ran in (forward, backward, add):
        assert not any(a.kind == "atomic" for a in ran.accesses)
        assert all(n == wavefronts for n, wavefronts in simt.bank_conflicts(ran).values())


@pytest.mark.slow
@pytest.mark.parametrize("width", [4, 1])
def test_traffic_of_the_kernels_for_long_rows(width):
    """x is read for each round and once more, x and dy twice; the partial sums of all rows but the
    first return.
    """
    N, D = 4, 512
    forward, backward, _, plan, (x, y, dy, dx) = logged(D, width, N, long=True)
    for ran, name, kind, times in (
        (forward, "x", "load", 2),
        (forward, "y", "store", 1),
        (backward, "x", "load", 2),
        (backward, "dy", "load", 2),
        (backward, "dx", "store", 1),
    ):
        assert (uses(ran, x, (name, kind))[0] == times).all(), (name, kind)
    sums = np.zeros(plan.partials * D, "f4")
    for name in ("partial_dgamma", "partial_dbeta"):
        assert (uses(backward, sums, (name, "store"))[0] == N // plan.partials).all()
        assert (uses(backward, sums, (name, "load"))[0] == N // plan.partials - 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("width", [4, 1])
def test_traffic_of_rows_that_are_read_twice(width):
    """The partial sums are written once and never read."""
    x, gamma, beta, dy = arrays((4, 512))
    _, statistics, _ = launch_forward(plans.plan_forward(4, 512, width), x, gamma, beta)
    plan = Plan(64, 8 // width, width, 1, 2, 2, True)
    (_, *sums), ran = launch_backward(plan, dy, x, statistics, gamma, log=True)
    for name, kind, times in (("x", "load", 2), ("dy", "load", 2), ("dx", "store", 1)):
        assert (uses(ran, x, (name, kind))[0] == times).all()
    for name in ("partial_dgamma", "partial_dbeta"):
        assert (uses(ran, sums[0], (name, "store"))[0] == 1).all() and not any(
            uses(ran, sums[0], (name, "load"))[0]
        )


@pytest.mark.parametrize(
    "name, real, ahead",
    [
        ("four warps, four rows each", "f4", True),
        ("four warps, four rows each", "f8", False),
        ("a warp, two rows", "f8", True),
        ("four warps, a long row each", "f4", False),
        ("a warp, four rows, one by one", "f8", False),
    ],
)
def test_short_rows_are_asked_for_ahead(name, real, ahead):
    """Once each; the next before dx of these is written, where registers have room: 8 numbers, 4 in
    float64.
    """
    kind = KINDS[name]
    x, gamma, beta, dy = arrays((2 * kind.rows, kind.D))
    _, statistics, _ = launch_forward(kind.forward(len(x)), x, gamma, beta, real=np.dtype(real))
    _, ran = launch_backward(kind.plan(1, 1), dy, x, statistics, gamma, log=True)
    loads = [(n, a) for n, a in enumerate(ran.accesses) if (a.array, a.kind) == ("x", "load")]
    assert sum(a.size for _, a in loads) == x.nbytes
    next_row = min(n for n, a in loads if a.address >= x.nbytes // 2)
    assert ahead == (next_row < min(n for n, a in enumerate(ran.accesses) if a.array == "dx"))


# The same result, whatever the launch


@pytest.mark.slow
@every_kind
def test_sums_do_not_depend_on_the_blocks(kind):
    """A partial sum has certain rows, whichever block does it; so all three results are the same
    bit for bit.
    """
    x, gamma, beta, dy = arrays((7, kind.D))
    _, statistics, _ = launch_forward(kind.forward(7), x, gamma, beta)
    results = [
        launch_backward(kind.plan(blocks, 5), dy, x, statistics, gamma)[0] for blocks in (1, 2, 5)
    ]
    assert all(bits(result) == bits(results[0]) for result in results)
    # A sum of them all is another order of additions, so this could have failed. (dx is a row's
    # own.)
    other = launch_backward(kind.plan(2, 1), dy, x, statistics, gamma)[0]
    assert bits(other[:1]) == bits(results[0][:1])
    assert kind.rows == 16 or bits(other[1:2]) != bits([launch_add(*results[0][1:], kind.D)[0]])


@pytest.mark.slow
def test_rows_do_not_depend_on_other_rows():
    """y and dx of a row are the same alone, bit for bit: a batch can be cut anywhere."""
    for D in (33, 100, 600):
        x, gamma, beta, dy = arrays((7, D))
        y, dx, _, _ = run(x, gamma, beta, dy)
        for rows in (slice(0, 1), slice(2, 7)):
            assert bits(run(x[rows], gamma, beta, dy[rows])[:2]) == bits([y[rows], dx[rows]])


GUARD = np.float32(12345.0)


@every_kind
def test_nothing_is_written_outside_the_results(kind):
    """Arrays of two rows more, of NaN to be read and of one number to be written, before and after.

    Blocks and warps that have no row, and lanes beyond a row's end, must neither use nor touch
    them. Accesses beyond an array are errors of the interpreter in any case.
    """
    N, D = 5, kind.D
    x, gamma, beta, dy = arrays((N, D))
    expected = launch_all(kind, x, gamma, beta, dy)
    beyond = np.full((2, D), np.nan, "f4")
    x, dy = np.concatenate([x, beyond]), np.concatenate([dy, beyond])
    margin = 2 * D * 4  # whole chunks of 16 bytes, as the allocation of a GPU

    def guarded(size):
        whole = np.full(size + 2 * margin, GUARD)
        return whole, whole[margin : margin + size]

    buffers = [guarded(size) for size in (x.size, x.size, (PARTIALS + 2) * D, (PARTIALS + 2) * D)]
    y, dx, partial_dgamma, partial_dbeta = (view for _, view in buffers)
    _, statistics, _ = launch_forward(kind.forward(N), x, gamma, beta, rows=N, y=y)
    assert np.isfinite(statistics).all() and statistics.size == 4 * N
    partials = kind.backward(N).partials
    plan = kind.plan(3, partials)
    launch_backward(
        plan, dy, x, statistics, gamma, rows=N, outputs=(dx, partial_dgamma, partial_dbeta)
    )
    for (whole, view), used in zip(buffers, (N * D, N * D, partials * D, partials * D)):
        assert (
            (view[used:] == GUARD).all()
            and (whole[:margin] == GUARD).all()
            and (whole[-margin:] == GUARD).all()
        )
    sums = launch_add(partial_dgamma[: partials * D], partial_dbeta[: partials * D], D)[:2]
    assert bits([y[: N * D], dx[: N * D], *sums]) == bits(expected)


@pytest.mark.parametrize("partials", [1, 2, 3, 5, 31, 33, 64, 1024, 1025, 2100])
@pytest.mark.parametrize("D", [1, 7, 8, 40])
def test_add_partials(D, partials):
    """Every number of lanes, and more terms than a block has, in two launches: integers, so sums
    are exact.
    """
    a, b = np.random.default_rng(partials).integers(-99, 100, (2, partials, D)).astype("f4")
    dgamma, dbeta, _ = launch_add(a.reshape(-1), b.reshape(-1), D)
    assert np.array_equal(dgamma, a.sum(0)) and np.array_equal(dbeta, b.sum(0))


@pytest.mark.slow
def test_chunks_of_partial_sums(monkeypatch):
    """40 partial sums, 32 of them a chunk: one launch makes them, one adds chunks, and one what
    that leaves.
    """
    monkeypatch.setattr(plans, "plan_add", lambda partials: (32, 1, -(-partials // plans.TERMS)))
    monkeypatch.setattr(plans, "ROWS_ADDED", 1)
    monkeypatch.setattr(cuda, "is_available", lambda: False, raising=False)
    launch, launched = devices.Interpreter.launch, []
    monkeypatch.setattr(
        devices.Interpreter,
        "launch",
        lambda self, work, *arrays: (
            launched.append(work.blocks),
            as_prepared(work, arrays),
            launch(self, work, *arrays),
        ),
    )
    backend.backward_work.cache_clear()
    a = arrays((40, 516))
    results = run(*a)
    backend.backward_work.cache_clear()
    exact = reference.layer_norm(*a)
    cases.check(results, exact, cases.float32_bars(exact, a[1], a[3]))
    assert launched[2:] == [17 * 2, 17]
    half, real = np.dtype("f2"), np.dtype("f4")
    adds = backend.backward_work(40, 516, 4, real, half, half, half, half, 2)[2]
    backend.backward_work.cache_clear()
    assert [(chunks, work.arrays[-1]) for chunks, work in adds] == [
        (2, (real, 2 * 516)),
        (1, (half, 516)),
    ]


# Plans

# Among them both sides of where a thread has as many numbers as it keeps.
PLAN_WIDTHS = sorted(
    {
        *range(1, 200),
        *range(250, 20000, 61),
        50000,
        10**6,
        *(n * 2**k + j for n in (1, 3) for k in range(15) for j in (-1, 0, 1, 4)),
    }
    - {0}
)


@pytest.mark.parametrize("width, asked, kept", [(4, 16, 16), (1, 16, 12), (4, 8, 8), (1, 8, 6)])
def test_plans_cover_the_row(width, asked, kept):
    """16 numbers a thread for float32, 8 for float64: as many registers; a quarter less where
    chunks are of one.

    In backward half as many, of 8 threads on, where 512 threads can then keep the row.
    """
    for D in PLAN_WIDTHS:
        if D % width:
            continue
        for most, least, plan in (
            (1024, 32, plans.plan_forward(77, D, width, asked)),
            (512, 8, plans.plan_backward(77, D, width, asked, 3)),
        ):
            T, V, W, R = plan[:4]
            assert plan.twice == (least == 8 and most * kept < D <= 2 * most * kept)
            assert T in (8, 16, 32, 64, 128, 256, 512, 1024) and least <= T and width == W
            assert (1 if T > 32 else 4 if least == 32 else 128 // T) == R
            if most * kept >= D:
                half = least == 8 and most * kept // 2 >= D
                assert most >= T and T * V * W >= D and (kept // 2 if half else kept) >= V * W
                # The fewest threads that can, and no chunk that nobody needs.
                assert (least if half else 32) == T or T // 2 * (kept // 2 if half else kept) < D
                assert T * (V - 1) * W < D
            elif plan.twice:
                assert T == 512 and 2 * kept >= V * W and T * V * W >= D > T * (V - 1) * W
            else:
                assert (T, V) == (1024, 0)
            assert 32 <= T * R <= 1024


def test_plans_cover_the_rows():
    for rows in (1, 2, 3, 4, 5, 63, 64, 65, 131, 132, 133, 1000, 8192, 10**6, 2**31 - 1):
        for D in (1, 60, 100, 200, 512, 516, 1024, 4096, 8192, 20000):
            width = 4 if D % 4 == 0 else 1
            plan = plans.plan_forward(rows, D, width)
            assert (plan.blocks - 1) * plan.rows < rows <= plan.blocks * plan.rows
            for multiprocessors in (1, 2, 40, 132):
                plan = plans.plan_backward(rows, D, width, multiprocessors=multiprocessors)
                turns = -(-rows // plan.rows)
                assert 1 <= plan.partials <= turns <= plan.partials * plans.ROWS_ADDED
                assert plan.blocks <= plan.partials  # nobody idles
                # All run at once; at least one block a multiprocessor is allowed whatever it needs.
                assert plan.blocks <= multiprocessors * max(
                    1, plans.RESIDENT // (plan.threads * plan.rows)
                )
                # Whole rounds: no block has two partial sums more than another.
                assert plan.partials == turns or plan.partials % plan.blocks == 0


def test_plan_of_the_second_stage():
    """8 columns are a sector; a block is at least a warp and at most 256 threads; lanes are a power
    of two.
    """
    for partials in range(1, 3000):
        columns, lanes, chunks = plans.plan_add(partials)
        assert chunks == -(-partials // (lanes * plans.TERMS)) and (chunks == 1) == (
            partials <= 1024
        )
        assert columns >= 8 and columns % 8 == 0 and 32 <= columns * lanes <= 256
        assert lanes & (lanes - 1) == 0 and lanes // 2 < partials and lanes >= min(partials, 32)
    # A partial sum has 64 rows at most. A multiprocessor has 512 threads, in four blocks of 128 or
    # one of 512.
    for arguments, expected in (
        ((64, 8192, 4), (512, 4, 4, 1, 1, 1)),
        ((65, 8192, 4), (512, 4, 4, 1, 1, 2)),
        ((10**6, 4096, 4), (512, 2, 4, 1, 1, 15625)),
        ((10**6, 512, 4, 16, 100), (64, 2, 4, 1, 800, 16000)),
        ((10**6, 256, 4, 16, 100), (32, 2, 4, 4, 400, 4000)),
        ((10**6, 20000, 4, 16, 100), (1024, 0, 4, 1, 100, 15700)),
    ):
        assert plans.plan_backward(*arguments) == (*expected, False)
    assert plans.plan_forward(0, 100, 4) == (32, 1, 4, 4, 0, 0, False)
    # No rows, no launch but this.
    assert plans.plan_backward(0, 100, 4)[4:] == (0, 0, False) and plans.plan_add(0) == (32, 1, 1)
    assert plans.plan_backward(0, 10000, 4)[4:] == (0, 0, True)


def test_which_kernel():
    """Rows that are read twice have one of their own. All constants of a kernel are of its
    arithmetic.
    """
    for real in "float32", "float64":
        dtypes = np.dtype(real), np.dtype("f4")
        made = [backend._forward_kernel(Plan(64, chunks, 4, 1, 1), *dtypes) for chunks in (0, 2)]
        made += [backend._backward_kernel(Plan(32, 2, 4, 4, 1), *dtypes)]
        made += [
            backend._backward_kernel(Plan(64, *those), *dtypes)
            for those in ((0, 4, 1, 1), (2, 4, 1, 1), (2, 4, 1, 1, 1, True))
        ]
        assert [kernel.__qualname__.partition(".")[0] for kernel in made] == [
            "forward_long",
            "forward",
            "backward",
            "backward_long",
            "backward",
            "backward_twice",
        ]
        seen, left = set(), [simt_source.plain(kernel) for kernel in made]
        while left:
            function = left.pop()
            seen.add(function)
            for value in inspect.getclosurevars(function).nonlocals.values():
                assert (
                    not isinstance(value, (float, np.floating)) or type(value).__name__ == real
                ), function
                called = simt_source.plain(value)
                left += [called] if called and called not in seen else []
        assert len(seen) > 20
    with pytest.raises(TypeError, match="^arrays: found .*, which the kernel is compiled for"):
        devices.Interpreter().launch(
            backend.forward_work(3, 8, 4, *dtypes[1:] * 3, 1e-5), *arrays((3, 8))
        )


def test_width():
    """Rows begin where four numbers may be read at once only if D is a multiple of 4 and the array
    begins so.
    """
    machine = types.SimpleNamespace(address=lambda array: array.address)

    def width(D, *addresses, dtype="f4"):
        return width_of_access(
            machine,
            D,
            *(types.SimpleNamespace(address=a, dtype=np.dtype(dtype)) for a in addresses),
        )

    assert [width(D, 0, 256, 512) for D in (4, 8, 1024, 1, 2, 3, 6, 1027)] == [
        4,
        4,
        4,
        1,
        1,
        1,
        1,
        1,
    ]
    assert [width(1024, 512, address, 0) for address in (16, 32, 4, 8, 12, 2, 260)] == [
        4,
        4,
        1,
        1,
        1,
        1,
        1,
    ]
    # Four numbers of half precision are 8 bytes.
    assert [width(1024, 512, address, 0, dtype="f2") for address in (16, 8, 24, 4, 2, 260)] == [
        4,
        4,
        4,
        1,
        1,
        1,
    ]


def as_prepared(work, arrays):
    """What a GPU is told of arrays and numbers beforehand is what comes."""
    assert work.arrays == tuple((a.dtype, a.size) for a in arrays)
    assert all(isinstance(number, np.generic) for number in work.numbers)


@pytest.mark.parametrize("misaligned", [*range(4), None])
def test_each_misaligned_array_counts(misaligned, monkeypatch):
    """x, gamma, beta, y in forward, dy, x, gamma, dx in backward: one that begins elsewhere, and
    width is 1.
    """
    asked_for, asked, launched = [], Counter(), []
    for name in ("plan_forward", "plan_backward"):
        plan = getattr(plans, name)
        monkeypatch.setattr(
            plans,
            name,
            lambda rows, D, *rest, plan=plan: asked_for.append(rest) or plan(rows, D, *rest),
        )

    class Machine(devices.Interpreter):
        def address(self, array):
            asked[len(asked_for)] += 1
            return (
                super().address(array)
                if misaligned is None
                else 4 * (asked[len(asked_for)] == misaligned + 1)
            )

        def launch(self, work, *arrays):
            as_prepared(work, arrays)
            launched.append(work.kernel.__qualname__.partition(".")[0])
            super().launch(work, *arrays)

    monkeypatch.setattr(devices, "Interpreter", Machine)
    monkeypatch.setattr(cuda, "is_available", lambda: False, raising=False)
    for kept in (backend.forward_work, backend.backward_work):
        kept.cache_clear()
    a = arrays((3, 8))
    assert cases.errors({"y": run(*a)[0]}, reference.layer_norm(*a))["y"] <= cases.BAR["float32"]
    run(*arrays((3, 8), "float16", "float32"), precise=True)  # float64 takes two registers
    width = 4 if misaligned is None else 1
    assert asked_for[:2] == [(width, 16), (width, 16, 2)]
    assert [kept for _, kept, *_ in asked_for[2:]] == [8, 8]
    # A single partial sum is the result, if it has the dtype.
    assert launched == ["forward", "backward"] * 2 + ["add_partials"]


# The host


class TorchsSize(tuple):
    def __repr__(self):
        return f"torch.Size({list(self)})"


class TorchsDtype(NamedTuple):
    numpys: np.dtype
    itemsize = property(lambda self: self.numpys.itemsize)

    def __str__(self):
        return f"torch.{self.numpys}"


class OnDevice:
    """An array on a device that is not there; what libraries of GPU arrays show to one another."""

    def __init__(self, array, read_only=False, at=0):
        self.array, self.read_only, self.at = array, read_only, at

    shape = property(lambda self: TorchsSize(self.array.shape))
    dtype = property(lambda self: TorchsDtype(self.array.dtype))

    @property
    def __cuda_array_interface__(self):
        dense = self.array.flags.c_contiguous
        return {
            "version": 3,
            "shape": self.array.shape,
            "typestr": self.array.dtype.str,
            "strides": None if dense else self.array.strides,
            "data": (self.array.ctypes.data, self.read_only),
        }


class InGraph(OnDevice):
    """PyTorch's tensors refuse where a gradient is required, with this kind of error."""

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("use detach()")


class OnHost(OnDevice):
    """PyTorch's tensors on the host have the attribute, and this is how they say that they are not
    on the device.
    """

    @property
    def __cuda_array_interface__(self):
        raise AttributeError("not on a device")

    def __array__(self, dtype=None, copy=None):
        return self.array


class Pretended(devices.Interpreter):
    """The interpreter in the place of a GPU."""

    device = 0

    def empty(self, shape, dtype):
        return OnDevice(np.empty(shape, dtype))

    def launch(self, work, *arrays):
        super().launch(work, *(getattr(a, "array", a) for a in arrays))

    def device_of(self, array):
        return array.at

    def put(self, array):
        raise AssertionError("an array on the device is not copied")

    get = put


@pytest.fixture
def interpreted(monkeypatch):
    """No GPU, whatever the machine has; and the interpreter for arrays on the device."""
    monkeypatch.setattr(cuda, "is_available", lambda: False, raising=False)
    monkeypatch.setattr(devices, "Gpu", Pretended)


X, GAMMA, BETA, DY = arrays((3, 8))
ON_DEVICE = [OnDevice(a) for a in (X, GAMMA, BETA, DY)]
# Good enough for what is refused.
CACHE = gpu.GpuLayerNormCache(X, np.ones((3, 4), "f4"), GAMMA, X.dtype, False)
DEVICE_CACHE = gpu.GpuLayerNormCache(
    ON_DEVICE[0], OnDevice(CACHE.statistics), ON_DEVICE[1], X.dtype, True
)
FORWARD = {"x": X, "gamma": GAMMA, "beta": BETA}
DEVICE_FORWARD = dict(zip(FORWARD, ON_DEVICE))
HALF = X.astype("f2")


def refused():
    """(function, arguments, the bad one's name, error, what was found, what was expected)

    What lnlib.validation refuses everywhere is in test_contract.py. Here: that every argument gets
    there.
    """
    forward, backward = gpu.layer_norm_forward, gpu.layer_norm_backward
    instead = "lnlib.layernorm and lnlib.cpu take float64"
    for x in (X.astype("f8"), X.tolist()):
        yield (
            forward,
            {**FORWARD, "x": x},
            "x",
            TypeError,
            f"found dtype {np.asarray(x).dtype.name}",
            instead,
        )
    for function, good in ((forward, FORWARD), (backward, {"dy": DY, "cache": CACHE})):
        yield (
            function,
            {**good, "out": ON_DEVICE[0]},
            "out",
            TypeError,
            "found OnDevice",
            "expected a NumPy array",
        )

    # Arrays here and there.
    here, there = "found an array on the device", "expected an array on the device, where x is"
    device_backward = {"dy": ON_DEVICE[3], "cache": DEVICE_CACHE}
    for name in ("gamma", "beta"):
        yield (
            forward,
            {**FORWARD, name: DEVICE_FORWARD[name]},
            name,
            TypeError,
            here,
            "expected one on the host, where x is",
        )
        yield (
            forward,
            {**DEVICE_FORWARD, name: FORWARD[name]},
            name,
            TypeError,
            "found ndarray",
            there,
        )
    yield backward, {**device_backward, "dy": DY}, "dy", TypeError, "found ndarray", there
    yield (
        backward,
        {"dy": ON_DEVICE[3], "cache": CACHE},
        "dy",
        TypeError,
        here,
        "one on the host, where x is",
    )
    for function, good in ((forward, DEVICE_FORWARD), (backward, device_backward)):
        yield function, {**good, "out": X}, "out", TypeError, "found ndarray", there
        yield (
            function,
            {**good, "out": OnDevice(X, read_only=True)},
            "out",
            ValueError,
            "found a read-only array",
            "that can be written",
        )

        for name in ("gamma", "beta", "out") if function is forward else ("dy", "out"):
            elsewhere = OnDevice(
                {**DEVICE_FORWARD, "dy": good.get("dy"), "out": ON_DEVICE[0]}[name].array, at=1
            )
            yield (
                function,
                {**good, name: elsewhere},
                name,
                ValueError,
                "found an array on device 1",
                "expected one on device 0, where x is",
            )
    # What a device array may not be.
    for name, a in (("x", X), ("gamma", GAMMA), ("beta", BETA), ("dy", DY), ("out", X)):
        function, good = (backward, device_backward) if name == "dy" else (forward, DEVICE_FORWARD)
        bad = [
            (OnDevice(a.astype("f8")), TypeError, "found dtype float64", instead),
            (
                OnDevice(np.repeat(a, 2, -1)[..., ::2]),
                ValueError,
                "found strides",
                "a C-contiguous array",
            ),
            (InGraph(a), TypeError, "found InGraph", "use detach()"),
        ]
        if name == "x":
            bad += [(OnDevice(np.ones((2, 0), "f4")), ValueError, "found shape (2, 0)", "expected")]
        else:
            bad += [
                (OnDevice(a.astype("f2")), TypeError, "found dtype float16", "expected float32"),
                (
                    OnDevice(np.array([a, a])),
                    ValueError,
                    f"found shape {(2, *a.shape)}",
                    f"expected {a.shape}",
                ),
            ]
        for value, error, found, expected in bad:
            yield function, {**good, name: value}, name, error, found, expected
    half = {"x": OnDevice(HALF), "gamma": OnDevice(GAMMA), "beta": OnDevice(BETA)}
    yield (
        forward,
        {**half, "out": OnDevice(X)},
        "out",
        TypeError,
        "found dtype float32",
        "expected float16, the dtype of x",
    )
    yield (
        forward,
        {**half, "beta": OnDevice(BETA.astype("f2"))},
        "beta",
        TypeError,
        "found dtype float16",
        "expected float32, the dtype of gamma",
    )


@pytest.mark.parametrize("function, arguments, name, error, found, expected", list(refused()))
def test_bad_input_is_refused_by_name(
    function, arguments, name, error, found, expected, interpreted
):
    with pytest.raises(error) as caught:
        function(**arguments)
    message = str(caught.value)
    assert type(caught.value) is error
    assert message.startswith(f"{name}: ") and found in message and expected in message, message


def test_arrays_on_the_device_stay_there(interpreted):
    """Nothing is copied; x and gamma in the cache are the caller's; the bits are those that NumPy
    arrays give.
    """
    x, gamma, beta, dy = ON_DEVICE
    expected = run(X, GAMMA, BETA, DY)
    y, cache = gpu.layer_norm_forward(x, gamma, beta)
    results = y, *gpu.layer_norm_backward(dy, cache)
    assert {type(a) for a in results} == {OnDevice} and type(cache.statistics) is OnDevice
    assert bits(a.array for a in results) == bits(expected)
    assert [a.shape for a in results] == [a.shape for a in expected]
    assert cache.x is x and cache.gamma is gamma and cache.device and cache.dtype == np.float32
    into_y, into_dx = OnDevice(np.empty_like(X)), OnDevice(np.empty_like(X))
    y, cache = gpu.layer_norm_forward(x, gamma, beta, out=into_y)
    assert y is into_y and bits([y.array]) == bits(expected[:1])
    dx, *_ = gpu.layer_norm_backward(dy, cache, out=into_dx)
    assert dx is into_dx and bits([dx.array]) == bits(expected[1:2])


def test_a_host_array_that_could_be_elsewhere(interpreted):
    """It is an array like any other (a PyTorch tensor, say); results are NumPy's."""
    results = run(*(OnHost(a) for a in (X, GAMMA, BETA, DY)))
    assert bits(results) == bits(run(X, GAMMA, BETA, DY)) and {type(a) for a in results} == {
        np.ndarray
    }


def test_no_rows_on_the_device(interpreted):
    x, gamma = OnDevice(np.ones((0, 8), "f4")), OnDevice(GAMMA)
    y, cache = gpu.layer_norm_forward(x, gamma, gamma)
    dx, dgamma, dbeta = gpu.layer_norm_backward(x, cache)
    assert y.shape == dx.shape == (0, 8) and not dgamma.array.any() and not dbeta.array.any()


def test_what_cannot_be_pickled_is_named():
    """Numba's arrays hold a pointer into a process. What the interpreter began it finishes, near a
    GPU too.
    """
    numbas = type("DeviceNDArray", (OnDevice,), {"__module__": "numba.cuda.cudadrv.devicearray"})
    cache = CACHE._replace(statistics=numbas(CACHE.statistics))
    for fails in (pickle.dumps, copy.deepcopy):
        with pytest.raises(
            TypeError,
            match="^cache: found Numba's device arrays, which cannot be pickled; pickle the",
        ):
            fails(cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "is_available", lambda: True, raising=False)
        assert bits(gpu.layer_norm_backward(DY, pickle.loads(pickle.dumps(CACHE)))) == bits(
            gpu.layer_norm_backward(DY, CACHE)
        )


@pytest.mark.skipif(cuda.is_available(), reason="needs a machine without a GPU")
def test_device_arrays_without_a_device():
    """The interpreter is not for them; the error says what is missing."""
    with pytest.raises((ImportError, AttributeError), match="CUDA"):
        gpu.layer_norm_forward(*ON_DEVICE[:3])


# Promises about memory and about rows


@pytest.mark.parametrize("precise", [False, True])
def test_the_cache_shares_no_memory_with_its_arguments(precise):
    """It survives whatever happens to x, gamma and beta; and no result shares memory with
    another.
    """
    x, gamma, beta, dy = (a.copy() for a in (X, GAMMA, BETA, DY))
    y, cache = gpu.layer_norm_forward(x, gamma, beta, precise=precise)
    expected = gpu.layer_norm_backward(dy, cache)
    assert cache.statistics.dtype == (
        np.float64 if precise else np.float32
    ) and cache.statistics.shape == (3, 4)
    assert not cache.device and cache.backend == "gpu" and cache.dtype == np.float32
    assert cases.share_nothing(
        [x, gamma, beta, dy, y, *expected, *(a for a in cache if isinstance(a, np.ndarray))]
    )
    assert gpu.layer_norm_backward(dy, cache._replace(dtype=np.dtype("f2")))[1].dtype == "f2"
    x *= 3
    gamma[:] = 7
    beta[:] = y[:] = np.nan
    assert bits(gpu.layer_norm_backward(dy, cache)) == bits(expected)


@pytest.mark.parametrize("kind", ["as they are", "Fortran order", "every second"])
def test_out(kind):
    """It is returned itself, with the same bits, whatever its strides; the rest of its memory is
    left alone.
    """
    into_y, into_dx = VIEWS[kind](np.full_like(X, 5)), VIEWS[kind](np.full_like(X, 5))
    y, dx, *_ = run(X, GAMMA, BETA, DY, out=(into_y, into_dx))
    assert y is into_y and dx is into_dx
    assert bits([y, dx]) == bits(run(X, GAMMA, BETA, DY)[:2])
    for a in (into_y, into_dx):
        if a.base is not None and not a.flags.f_contiguous:
            assert (a.base[..., 1::2] == 5).all()


def test_out_may_be_an_argument_on_the_host():
    """All of them are copied before anything is computed."""
    x, dy = X.copy(), DY.copy()
    y, cache = gpu.layer_norm_forward(x, GAMMA, BETA, out=x)
    dx, dgamma, dbeta = gpu.layer_norm_backward(dy, cache, out=dy)
    assert y is x and dx is dy and bits([y, dx, dgamma, dbeta]) == bits(run(X, GAMMA, BETA, DY))


def test_a_positive_eps_stays_positive():
    """Though 1e-60 is 0 in float32, a constant row gives beta, also where it is scaled; eps = 0 is
    0 / 0.
    """
    x = np.float32([[3, 3, 3, 3], [1e30, 1e30, 1e30, 1e30], [1e-40, 1e-40, 1e-40, 1e-40]])
    one = np.ones(4, "f4")
    with np.errstate(all="raise"):
        for eps in (1e-44, 1e-60, 1e-300, 1e-5, 1e60):
            y, cache = gpu.layer_norm_forward(x, one, one, eps)
            assert (y == 1).all() and not gpu.layer_norm_backward(x * 0 + 1, cache)[0][:2].any()
        assert np.isnan(gpu.layer_norm_forward(x, one, one, 0.0)[0]).all()


# Without Numba

BLOCKED = """
import sys
sys.modules["numba"] = sys.modules["llvmlite"] = None
import lnlib
assert not {name for name in sys.modules if name.startswith(("lnlib.gpu", "simt", "lnlib.cuda"))}
import numpy as np
from lnlib import gpu, layernorm
from simt.cuda_access import cuda, load4, store4
assert cuda.implementation is None and not cuda.is_available()
for access, values in ((load4, ()), (store4, (1.0,) * 4)):
    try:
        access(np.zeros(4), 0, *values)
    except NotImplementedError:
        continue
    raise AssertionError(f"{access.__name__} does nothing outside a kernel, and does not say so")
rng = np.random.default_rng(0)
for N, D, dtype, precise in ((5, 100, "f4", False), (5, 33, "f4", True), (2, 600, "f2", False)):
    x, dy = rng.standard_normal((2, N, D)).astype(dtype)
    gamma, beta = rng.standard_normal((2, D)).astype(dtype)
    def run(backend):
        y, cache = backend.layer_norm_forward(x, gamma, beta, precise=precise)
        return y, *backend.layer_norm_backward(dy, cache)
    for a, b in zip(run(gpu), run(layernorm)):
        assert a.dtype == b.dtype == dtype and a.shape == b.shape
        a, b = a.astype("f8"), b.astype("f8")
        print(np.linalg.norm(a - b) / np.linalg.norm(b) / np.finfo(dtype).eps)
assert not [name for name in sys.modules if name.startswith(("numba.", "llvmlite."))]
"""


@pytest.mark.slow
def test_without_numba():
    """The browser's case: the same kernels and the same results. ``import lnlib`` loads nothing of
    them.

    The bar of float32 is 2e-7, 1.7 of its eps, for each of two results; that of float16 half an ulp
    of each element.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKED], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    differences = [float(line) for line in done.stdout.split()]
    assert len(differences) == 12 and max(differences) <= 3.4


# On a GPU

needs_gpu = pytest.mark.skipif(not cuda.is_available(), reason="needs a GPU")


class Library(NamedTuple):
    """How a library moves arrays to the device and back, its type of arrays, and streams that wait
    for no other.
    """

    put: object
    get: object
    kind: type
    pointer: object
    stream: object  # makes one
    handle: object  # its number
    current: object  # makes it the current stream in a with statement, or None
    wait: object


def _numba():
    return Library(
        lambda a: cuda.to_device(a),
        lambda a: a.copy_to_host(),
        type(cuda.device_array(1)),
        lambda a: a.__cuda_array_interface__["data"][0],
        lambda: cuda.stream(),
        int,
        None,
        lambda s: s.synchronize(),
    )


def _torch(torch):
    return Library(
        lambda a: torch.from_numpy(np.array(a)).to("cuda"),
        lambda a: a.cpu().numpy(),
        torch.Tensor,
        lambda a: a.data_ptr(),
        lambda: torch.cuda.Stream(),
        lambda s: s.cuda_stream,
        torch.cuda.stream,
        lambda s: s.synchronize(),
    )


def _cupy(cupy):
    return Library(
        cupy.asarray,
        cupy.asnumpy,
        cupy.ndarray,
        lambda a: a.data.ptr,
        lambda: cupy.cuda.Stream(non_blocking=True),
        lambda s: s.ptr,
        lambda s: s,
        lambda s: s.synchronize(),
    )


def imported(name):
    """A library of GPU arrays, or a skip."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip(name)
        if name == "torch" and not module.cuda.is_available():
            pytest.skip("this PyTorch has no CUDA")
    return module


@pytest.fixture(params=["numba", "torch", "cupy"])
def library(request):
    if request.param == "numba":
        return _numba()
    return (_torch if request.param == "torch" else _cupy)(imported(request.param))


DEVICE_CASES = [
    cases.Case(f"device {N}x{D} {dtype} {offset}", (N, D), dtype, offset=offset)
    for N, D in (
        (1, 1),
        (7, 3),
        (130, 100),
        (33, 127),
        (7, 1027),
        (70, 1024),
        (5, 5120),
        (3, 9000),
        (3, 20000),
        (2, 16383),
    )
    for dtype, offset in (
        ("float32", 0),
        ("float32", 1e6),
        ("float16", 100),
        *((dtype, 4) for dtype in cases.HALVES[1:]),
    )
]


@needs_gpu
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("case", DEVICE_CASES, ids=[case.name for case in DEVICE_CASES])
def test_on_the_gpu_agrees_with_exact_arithmetic(case, precise):
    """NumPy arrays that go to the GPU and back: the bars of the interpreter. (Fused multiply-add
    rounds less.)
    """
    judge(case, precise)


@needs_gpu
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize(
    "shape, dtype, parameters",
    [
        ((5, 33), "float32", None),
        ((2, 3, 1024), "float32", None),
        ((130, 64), "float16", "float32"),
        ((4, 100), "float16", None),
        ((3, 20000), "float32", None),
        ((64,), "float32", None),
        ((2, 0, 1027), "float32", None),
        ((0, 20000), "float32", None),
    ],
)
def test_on_the_gpu_arrays_stay_there(library, shape, dtype, parameters, precise):
    """Results are arrays of the caller's library, of the dtypes of the contract, and the bits are
    those of NumPy.
    """
    a = arrays(shape, dtype, parameters)
    x, gamma, beta, dy = (library.put(b) for b in a)
    y, cache = gpu.layer_norm_forward(x, gamma, beta, precise=precise)
    assert (
        cache.x is x
        and cache.gamma is gamma
        and isinstance(cache.statistics, library.kind)
        and cache.device
    )
    results = y, *gpu.layer_norm_backward(dy, cache)
    assert all(isinstance(b, library.kind) for b in results)
    found, expected = [library.get(b) for b in results], run(*a, precise=precise)
    assert [(b.shape, b.dtype) for b in found] == [(b.shape, b.dtype) for b in expected]
    assert bits(found) == bits(expected)
    assert bits(library.get(b) for b in (x, gamma, beta, dy)) == bits(a)
    into_y, into_dx = library.put(a[0]), library.put(a[0])
    assert gpu.layer_norm_forward(x, gamma, beta, precise=precise, out=into_y)[0] is into_y
    assert gpu.layer_norm_backward(dy, cache, out=into_dx)[0] is into_dx
    assert bits(map(library.get, (into_y, into_dx))) == bits(expected[:2])


@needs_gpu
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_on_the_gpu_bfloat16_is_rounded_once(dtype):
    values = to_round(dtype)
    kept, numbers = np.zeros(values.size, np.uint16), np.zeros(values.size, "f4")
    on_device = [cuda.to_device(a) for a in (values, kept, numbers)]
    cuda.jit(rounded_and_back)[128, 32](  # below 128 blocks Numba warns
        *on_device, np.int32(values.size)
    )
    judge_rounding(values, *(a.copy_to_host() for a in on_device[1:]))


@needs_gpu
def test_on_the_gpu_misaligned_arrays(library):
    """A view that begins 4 bytes behind the beginning of memory: width 1, and no "misaligned
    address".
    """
    a = arrays((7, 100))
    flat = [library.put(np.concatenate([np.zeros(1, "f4"), b.reshape(-1)])) for b in a]
    x, gamma, beta, dy = (b[1:].reshape(c.shape) for b, c in zip(flat, a))
    assert library.pointer(x) % 16 == 4
    y, cache = gpu.layer_norm_forward(x, gamma, beta)
    results = [library.get(b) for b in (y, *gpu.layer_norm_backward(dy, cache))]
    exact = reference.layer_norm(*a)
    cases.check(results, exact, cases.float32_bars(exact, a[1], a[3]))


@needs_gpu
def test_on_the_gpu_what_pytorch_has_of_its_own():
    """A tensor with a graph, a transposed one; bfloat16, and a tensor on the host, which is an
    array on the host.
    """
    torch = imported("torch")
    x, one = torch.ones(8, 8, device="cuda"), torch.ones(8, device="cuda")
    for bad, error, found in (
        (x.clone().requires_grad_(), TypeError, "found Tensor"),
        (x[:, ::2].T, ValueError, "found strides"),
    ):
        with pytest.raises(error, match=f"^x: {found}"):
            gpu.layer_norm_forward(bad, one, one)
    on_device = [torch.from_numpy(a).to("cuda", torch.bfloat16) for a in (X, GAMMA, BETA, DY)]
    y, cache = gpu.layer_norm_forward(*on_device[:3])
    found = y, *gpu.layer_norm_backward(on_device[3], cache)
    expected = run(*(a.cpu().float().numpy().astype("bfloat16") for a in on_device))
    assert bits(a.cpu().view(torch.int16).numpy() for a in found) == bits(
        a.view("i2") for a in expected
    )
    y, _ = gpu.layer_norm_forward(*(torch.from_numpy(a) for a in (X, GAMMA, BETA)))
    assert type(y) is np.ndarray and bits([y]) == bits([gpu.layer_norm_forward(X, GAMMA, BETA)[0]])


def test_which_stream():
    """The caller's, else the one that the array names, else the default one: 0, which 1 names,
    too.
    """
    ours = types.SimpleNamespace(handle=np.int64(9))  # Numba's, of this version; of another
    theirs = types.SimpleNamespace(handle=types.SimpleNamespace(value=9))
    default = types.SimpleNamespace(handle=types.SimpleNamespace(value=None))
    for named, given, expected in (
        (7, 5, 5),
        (7, ours, 9),
        (7, theirs, 9),
        (7, default, 0),
        (7, None, 7),
        (7, 0, 0),
        (1, None, 0),
        (2, None, 2),
        (None, None, 0),
    ):
        x = types.SimpleNamespace(__cuda_array_interface__={"stream": named})
        found = devices.stream_of(x, given)
        assert found == expected and type(found) is int, (named, given)
    assert devices.stream_of(None, None) == 0 and devices.stream_of(None, 2) == 2


def test_a_gpu_and_the_library_of_x(monkeypatch):
    """Memory is Numba's own where there is no x, or where its library is neither CuPy nor
    PyTorch.
    """

    def made_by(name):
        return lambda shape, dtype, **where: (name, shape, dtype, *where.items())

    said, on_the_way = [], []

    class Numbas(np.ndarray):
        def copy_to_host(self, stream):
            said.append(("from", self.dtype.name, stream))
            host = np.array(self)
            if stream:  # a copy on a stream is over when the stream has been waited for
                on_the_way.append((host, host.copy()))
                host[...] = 0
            return host

    def to_device(a, stream):
        return said.append(("to", a.dtype.name, a.flags.c_contiguous, stream)) or a.view(Numbas)

    @contextlib.contextmanager
    def on_device(number):
        said.append(number)
        yield
        said.append("left")

    class Stream(NamedTuple):
        number: int

        def synchronize(self):
            said.append("waited")
            for host, arrived in on_the_way:
                host[...] = arrived

    numba = types.SimpleNamespace(
        device_array=made_by("numba"),
        get_current_device=lambda: types.SimpleNamespace(id=77),
        external_stream=Stream,
        to_device=to_device,
        gpus={n: types.SimpleNamespace(MULTIPROCESSOR_COUNT=2 * n) for n in (5, 77)},
    )
    monkeypatch.setattr(devices, "cuda", numba)
    monkeypatch.setattr(devices, "device_of", {1000: 5, 0: None}.get)
    monkeypatch.setattr(devices, "on_device", on_device)

    def array(name, address=0, stream=1, **more):
        interface = {"stream": stream, "data": (address, False)}
        monkeypatch.setitem(
            sys.modules,
            name,
            types.SimpleNamespace(
                empty=made_by(name),
                float16="torch's",
                _C=types.SimpleNamespace(),
                cuda=types.SimpleNamespace(
                    current_stream=lambda device: types.SimpleNamespace(cuda_stream=device + 1)
                ),
            ),
        )
        return type(
            "array",
            (),
            {"__module__": f"{name}.core", "__cuda_array_interface__": interface, **more},
        )()

    half = np.dtype("f2")
    assert devices.Gpu(array("cupy", None)).empty((2, 3), half) == ("cupy", (2, 3), half)
    assert devices.Gpu(array("other")).empty((2, 3), half) == ("numba", (2, 3), half, ("stream", 0))
    here = devices.Gpu(array("other", 1000, 9))
    assert (here.device, here.multiprocessors, here.stream) == (5, 10, 9)
    assert here.empty(1, half) == ("numba", 1, half, ("stream", Stream(9)))
    # PyTorch's are asked without their interface, which takes long; a version may have no short way
    # to its stream.
    x = array(
        "torch",
        get_device=lambda self: 5,
        data_ptr=lambda self: 1000,
        new_empty=lambda self, shape, dtype: ("torch", shape, dtype),
    )
    torchs = devices.Gpu(x)
    assert torchs.empty((2, 3), half) == ("torch", (2, 3), "torch's")
    assert (torchs.device, torchs.stream, devices.Gpu(x, 3).stream) == (5, 6, 3)
    sys.modules["torch"]._C._cuda_getCurrentRawStream = lambda device: device + 2
    assert devices.Gpu(x).stream == 7
    machine = devices.Gpu()
    assert (machine.device, machine.multiprocessors) == (77, 154)
    assert machine.device_of(x) == 5 and machine.device_of(array("other")) == 77
    torchs.launch(
        types.SimpleNamespace(launch=lambda *launched: said.append(launched)),
        x,
        array("other", None),
    )
    with here as entered:
        assert entered is here
    assert said == [(5, 6, [1000, 0]), 5, "left"]
    # NumPy's arrays, there and back. To Numba bfloat16 is 16 bits.
    for stream, expected in ((0, 0), (9, Stream(9))):
        said.clear()
        machine, a = (
            devices.Gpu(None, stream),
            np.arange(6).reshape(2, 3).astype(cases.HALVES[-1]).T,
        )
        found = np.zeros_like(a)
        machine.get(machine.put(a), found)
        name = devices.in_kernels(cases.HALVES[-1])
        assert said == [
            ("to", name, True, expected),
            ("from", name, expected),
            *["waited"] * bool(stream),
        ]
        assert bits([found]) == bits([a])


def test_a_tensor_is_asked_itself():
    """PyTorch's on a GPU is described without its interface, which is asked only for what is wrong
    with it.
    """

    def tensor(**more):
        return type(
            "Tensor",
            (),
            {
                "__module__": "torch",
                "is_cuda": True,
                "is_contiguous": lambda self: True,
                "requires_grad": False,
                "shape": (2, 8),
                "dtype": "torch.float32",
                **more,
            },
        )()

    assert backend._on_device(tensor()) and not backend._on_device(tensor(is_cuda=False))
    assert backend._seen("out", tensor(), True) == ((2, 8), np.dtype("f4"), True)
    assert backend._seen("x", tensor(dtype="torch.bfloat16"), True).dtype == cases.HALVES[-1]
    wrong = {
        "strides": {"is_contiguous": lambda self: False},
        "graph": {"requires_grad": True},
        "float8": {"dtype": "torch.float8_e4m3fn"},
    }
    for which, more in wrong.items():

        def interface(self, which=which):
            if which == "graph":
                raise RuntimeError("use detach()")
            return {
                "typestr": "|u1" if which == "float8" else "<f4",
                "shape": (2, 8),
                "strides": (64, 8),
                "data": (0, False),
            }

        bad = tensor(__cuda_array_interface__=property(interface), **more)
        with pytest.raises(
            (TypeError, ValueError), match=f"^x: found .*{'without a ' * (which == 'graph')}{which}"
        ):
            backend._seen("x", bad, True)


@pytest.mark.parametrize(
    "there, expected",
    [(True, "bfloat16"), (False, "x: found bfloat16, which NumPy knows only where")],
)
def test_a_tensor_of_bfloat16_before_anybody_imported_ml_dtypes(there, expected):
    """In a process of its own: NumPy knows the name only after that import."""
    code = (
        "import sys; from lnlib.gpu import backend\nassert 'ml_dtypes' not in sys.modules\nif not"
        f" {there}: sys.modules['ml_dtypes'] = None\ninterface = {{'typestr': '<V2', 'shape': (2,"
        " 8), 'data': (0, False)}\nTensor = type('Tensor', (), {'__module__': 'torch',"
        " 'is_cuda': True, 'is_contiguous': lambda self: True, 'requires_grad': False, 'shape':"
        " (2, 8), 'dtype': 'torch.bfloat16', '__cuda_array_interface__': interface})\ntry:"
        " print(backend._seen('x', Tensor(), True).dtype)\nexcept TypeError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith(expected), done.stdout + done.stderr


@pytest.mark.parametrize(
    "device, available, interpreted, expected",
    [
        (True, False, True, "gpu"),
        (False, True, False, "gpu"),
        (False, True, True, None),
        (False, False, False, None),
    ],
)
def test_where_kernels_run(device, available, interpreted, expected, monkeypatch):
    """On a GPU if there is one, or if x is on one; but what the interpreter began it finishes."""
    monkeypatch.setattr(devices, "Gpu", lambda *given: ("gpu", *given))
    monkeypatch.setattr(devices, "Interpreter", lambda *given: (None, *given))
    monkeypatch.setattr(cuda, "is_available", lambda: available, raising=False)
    given = {"interpreted": True} if interpreted else {}
    assert devices.machine_for(device, "x", 7, **given) == (expected, "x" if device else None, 7)


def test_the_parameters_of_a_launch():
    """As a kernel's are laid out: seven words an array, the fifth its address; numbers where their
    size divides the place. A thread of the host has its own: the driver reads them while another
    thread writes its addresses.
    """
    parameters = devices.Parameters(
        ((np.dtype("f2"), 6), (np.dtype("f4"), 3)),
        (np.int32(-2), np.float32(1.5), np.int32(7), np.float64(0.1)),
    )
    parameters.words[4], parameters.words[11] = 1000, 2000
    expected = b"".join(
        struct.pack("=QQqqQqq", 0, 0, n, size, at, n, size)
        for n, size, at in ((6, 2, 1000), (3, 4, 2000))
    )
    expected += struct.pack("=ifi4xd", -2, 1.5, 7, 0.1)
    assert bytes(parameters.words) == expected and parameters.size.value == len(expected)
    assert parameters.places == [4, 11]
    assert list(parameters.extra) == [
        1,
        ctypes.addressof(parameters.words),
        2,
        ctypes.addressof(parameters.size),
        None,
    ]
    with futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(
            lambda: (ctypes.addressof(parameters.words), parameters.words[4])
        ).result()
    assert other == (other[0], 0) and other[0] != ctypes.addressof(parameters.words)


@pytest.fixture
def streams(monkeypatch):
    """The numbers of the streams on which kernels are launched."""
    used, launch = [], devices.Gpu.launch

    def noted(self, *arguments):
        used.append(int(self.stream))
        launch(self, *arguments)

    monkeypatch.setattr(devices.Gpu, "launch", noted)
    return used


@needs_gpu
@pytest.mark.parametrize("given", ["as a number", "as the current one"])
def test_on_the_gpu_the_callers_stream(library, given, streams):
    """All three kernels are launched there. (No result is read before that stream has been waited
    for.)
    """
    a = arrays((70, 1000))
    expected = run(*a)
    streams.clear()
    inputs = [library.put(b) for b in a]
    cuda.synchronize()
    stream = library.stream()
    if given == "as a number":
        y, cache = gpu.layer_norm_forward(*inputs[:3], stream=library.handle(stream))
        results = y, *gpu.layer_norm_backward(inputs[3], cache, stream=library.handle(stream))
    elif library.current is None:
        pytest.skip("Numba has no current stream")
    else:
        with library.current(stream):
            y, cache = gpu.layer_norm_forward(*inputs[:3])
            results = y, *gpu.layer_norm_backward(inputs[3], cache)
    library.wait(stream)
    assert streams == [library.handle(stream)] * 3
    assert bits(library.get(b) for b in results) == bits(expected)


@needs_gpu
def test_on_the_gpu_threads_do_not_mix_up_their_arrays():
    """Four threads launch the same kernels, each with its own arrays."""
    inputs = [arrays((5, 64), seed=seed) for seed in range(4)]
    expected = [bits(run(*a)) for a in inputs]
    start = threading.Barrier(4)

    def work(a):
        start.wait()
        return [bits(run(*a)) for _ in range(5)]

    with futures.ThreadPoolExecutor(4) as pool:
        for found, known in zip(pool.map(work, inputs), expected):
            assert found == [known] * 5


@needs_gpu
def test_on_the_gpu_another_device_than_the_current_one():
    """Arrays on device 1 stay there, while device 0 is current before and after; gamma of device 0
    is refused.
    """
    if len(cuda.gpus) < 2:
        pytest.skip("needs a second GPU")
    a = arrays((6, 100))
    expected = run(*a)
    with cuda.gpus[1]:
        x, gamma, beta, dy = (cuda.to_device(b) for b in a)
    with cuda.gpus[0]:
        elsewhere = cuda.to_device(a[1])
        y, cache = gpu.layer_norm_forward(x, gamma, beta)
        results = y, *gpu.layer_norm_backward(dy, cache)
        assert cuda.get_current_device().id == 0
        for bad in ({"gamma": elsewhere}, {"beta": elsewhere}):
            with pytest.raises(
                ValueError,
                match=f"^{list(bad)[0]}: found an array on device 0, expected one on device 1",
            ):
                gpu.layer_norm_forward(**{"x": x, "gamma": gamma, "beta": beta} | bad)
        with pytest.raises(
            ValueError, match="^dy: found an array on device 0, expected one on device 1"
        ):
            gpu.layer_norm_backward(cuda.to_device(a[3]), cache)
    with cuda.gpus[1]:
        assert bits(b.copy_to_host() for b in results) == bits(expected)


@needs_gpu
def test_on_the_gpu_kernels_wait_for_the_callers_work():
    """x arrives on PyTorch's current stream after a long wait: on another stream, a kernel would
    find zeros.
    """
    torch = imported("torch")
    a = arrays((70, 1000))
    expected = run(*a)
    late, gamma, beta, dy = (torch.from_numpy(b).to("cuda") for b in a)
    x = torch.zeros_like(late)
    gpu.layer_norm_forward(x, gamma, beta)  # is compiled
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # cycles: a tenth of a second
        x.copy_(late)
        y, cache = gpu.layer_norm_forward(x, gamma, beta)
        results = y, *gpu.layer_norm_backward(dy, cache)
    stream.synchronize()
    assert bits(b.cpu().numpy() for b in results) == bits(expected)


@needs_gpu
@pytest.mark.parametrize(
    "shape, dtype",
    [
        ((2000, 768), "float32"),
        ((700, 1027), "float32"),
        ((5000, 64), "float32"),
        ((2000, 1024), "float16"),
        ((300, 20000), "float32"),
    ],
)
def test_on_the_gpu_100_runs_are_equal(shape, dtype):
    """Bit for bit, with all of the GPU at work. In the interpreter of PTX, two, of fewer rows, each
    with another order of warps.
    """
    interpreted, library = "LN_CAPABILITY" in os.environ, _numba()
    shape = (shape[0] // 8, shape[1]) if interpreted else shape
    x, gamma, beta, dy = (library.put(b) for b in arrays(shape, dtype))
    first = None
    for _ in range(2 if interpreted else 100):
        y, cache = gpu.layer_norm_forward(x, gamma, beta)
        found = bits(library.get(b) for b in (y, *gpu.layer_norm_backward(dy, cache)))
        first = first or found
        assert found == first


@needs_gpu
@pytest.mark.parametrize(
    "shape", [(8192, 1024), (2048, 4096), (300, 16384), (300, 12289), (100_000, 32)]
)
def test_on_the_gpu_many_rows(shape):
    """Too many for exact arithmetic: lnlib.layernorm in float64 judges, whose own error is 10^8
    times smaller.

    kappa of dx, of normal gamma and dy, is about 1, and dgamma and dbeta are sums of terms of
    either sign, whose condition is ||terms|| / ||sum||, about 1 too: each bar is 4 u times 1.5.
    (That of y, 3.4 u, is less.)
    """
    a = arrays(shape)
    wide = cases.run(layernorm, *(b.astype("f8") for b in a))
    for found, expected in zip(run(*a), wide, strict=True):
        assert np.linalg.norm(found.astype("f8") - expected) <= 6 * U * np.linalg.norm(expected)
