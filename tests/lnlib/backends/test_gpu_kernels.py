"""The kernels of lnlib.gpu, launched directly in simt with every kind of plan: right results, the
traffic that cannot be avoided, and the same sums whatever the launch.
"""

from typing import NamedTuple

import cases
import numpy as np
import pytest
from cases import arrays, bits

import simt
from lnlib import reference
from lnlib.gpu import backend, devices, kernels, plans
from lnlib.gpu.backend import scaled_eps
from lnlib.gpu.plans import Plan
from lnlib.rounding import round_to
from simt.cuda_access import bfloat16, cuda, widened

U = cases.U["float32"]


def flat(array):
    """As kernels get it."""
    return array.reshape(-1).view(devices.in_kernels(array.dtype.name))


def unwritten(size, dtype):
    return simt.uninitialised(size, np.dtype(devices.in_kernels(np.dtype(dtype).name))).view(dtype)


def launch_forward(plan, x, gamma, beta, eps=1e-5, real=np.float32, residual=None, **options):
    """y, the statistics and the launch; of RMS norm if beta is None. With ``residual``, which are
    two arrays, the sum goes into the second.
    """
    rows, D = x.shape
    flags = beta is not None, residual is not None
    kernel = backend._kernel(kernels.forward, *plan[:4], *flags, np.dtype(real), x.dtype)
    y, statistics = unwritten(x.size, x.dtype), simt.uninitialised(4 * rows, real)
    beta, residual = (x if beta is None else beta), residual or (x, y)
    arrays = *map(flat, (x, gamma, beta, y)), statistics, *map(flat, residual)
    numbers = np.int32(rows), np.int32(D), *scaled_eps(eps, np.dtype(real))
    shape = plan.blocks, plan.threads * plan.rows
    ran = simt.launch(kernel, *shape, *arrays, *numbers, **options)
    return y, statistics, ran


def launch_backward(plan, dy, x, statistics, gamma, centred=True, dh=None, **options):
    """dx, the partial sums of dgamma and then dbeta, and the launch."""
    rows, D = x.shape
    real = statistics.dtype
    make = (kernels.backward_twice, *plan[:3]) if plan.twice else (kernels.backward, *plan[:4])
    kernel = backend._kernel(*make, centred, dh is not None, real, x.dtype)
    outputs = unwritten(x.size, x.dtype), unwritten(plan.partials * (1 + centred) * D, real)
    arrays = flat(dy), flat(x), statistics, flat(gamma), *map(flat, outputs)
    arrays = *arrays, flat(dy if dh is None else dh)
    numbers = np.int32(rows), np.int32(D), np.int32(plan.partials)
    shape = plan.blocks, plan.threads * plan.rows
    ran = simt.launch(kernel, *shape, *arrays, *numbers, **options)
    return *outputs, ran


def launch_add(sums, partials, dtype=np.float32, **options):
    """The sums of all rows, and the last launch: of one chunk of partial sums, or of the sums of
    several.
    """
    width, real = sums.size // partials, sums.dtype
    columns, lanes, chunks = plans.plan_add(partials)
    into = dtype if chunks == 1 else real
    kernel = backend._kernel(kernels.add_partials, columns, lanes, real, np.dtype(into))
    added = unwritten(chunks * width, into)
    shape, numbers = (-(-width // columns) * chunks, columns * lanes), (partials, width)
    ran = simt.launch(kernel, *shape, sums, flat(added), *map(np.int32, numbers), **options)
    return (added, ran) if chunks == 1 else launch_add(added, chunks, dtype, **options)


def rounded_and_back(values, kept, numbers, n):
    i = cuda.grid(1)
    if i < n:
        kept[i] = bfloat16(values[i])
        numbers[i] = widened(kept[i])


def to_round(dtype):
    """Any bits of a float32; the middle of two bfloat16, and next to it; NaN, Inf, the largest."""
    rng = np.random.default_rng(3)
    any_bits = rng.integers(0, 2**32, 300, dtype=np.uint64).astype(np.uint32).view("f4")
    middle = (rng.integers(0, 2**16, 100) << 16 | 0x8000).astype(np.uint32).view("f4")
    ends = np.array([0, -0.0, np.nan, np.inf, -np.inf, 3.4e38, 3.39e38, 1e-45], "f4")
    some = np.concatenate([any_bits, middle, ends]).astype(dtype)
    beside = (np.nextafter(some, way, dtype=dtype) for way in (np.inf, -np.inf))
    return np.concatenate([some, *beside])


def judge_rounding(values, kept, numbers):
    """Both as lnlib.rounding has it, rounded once; the bits are the upper half of a float32."""
    expected = round_to(values.astype("f8"), "bfloat16").astype("f4")
    assert np.array_equal(numbers, expected, equal_nan=True)
    assert np.array_equal((kept.astype(np.uint32) << 16).view("f4"), expected, equal_nan=True)
    assert np.array_equal(np.signbit(numbers), np.signbit(expected) & ~np.isnan(expected))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_bfloat16_is_rounded_once(dtype):
    values = to_round(dtype)
    kept, numbers = np.zeros(values.size, np.uint16), np.zeros(values.size, "f4")
    shape = -(-values.size // 128), 128
    simt.launch(rounded_and_back, *shape, values, kept, numbers, np.int32(values.size))
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
    "a warp, four rows, eight at once": Kind(120, 8, 2, 8, 4),
    "four warps, a long row each": Kind(260, 32, 3, 4, 4),
    "a block": Kind(260, 64, 2, 4, 1),
    "a block, one by one": Kind(131, 64, 3, 1, 1),
    "read twice": Kind(260, 64, 2, 4, 1, True),
    "read twice, one by one": Kind(131, 64, 3, 1, 1, True),
    "long": Kind(540, 64, 0, 4, 1, True),
    "long, one by one": Kind(131, 64, 0, 1, 1, True),
}

#: make check leaves out chunks of one number, and what adds little to others.
SLOW = {name for name, kind in KINDS.items() if kind.width == 1 or "long" in name or kind.D == 60}
every_kind = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=name, marks=pytest.mark.slow if name in SLOW else ())
        for name, kind in KINDS.items()
    ],
)
PARTIALS, BLOCKS = 3, 2  # one block does two rows of partial sums


def launch_all(kind, x, gamma, beta, dy, eps=1e-5, real=np.float32):
    """(y, dx, dgamma, dbeta) by three launches of the kernels of this kind."""
    N = x.shape[0]
    y, statistics, _ = launch_forward(kind.forward(N), x, gamma, beta, eps, real)
    plan = kind.backward(N)
    dx, sums, _ = launch_backward(plan, dy, x, statistics, gamma)
    added, _ = launch_add(sums, plan.partials, gamma.dtype)
    return y.reshape(x.shape), dx.reshape(x.shape), *added.reshape(2, kind.D)


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
    """Seven rows, three partial sums of three terms or two; every number of a result is written."""
    judged = cases.judge(
        cases.Case(f"7x{kind.D} {dtype} {offset}", (7, kind.D), dtype, offset=offset)
    )
    cases.check(launch_all(kind, *judged.arrays, real=real), judged.exact, judged.bars)


@every_kind
def test_every_kernel_without_a_mean_and_with_a_residual(kind):
    """RMS norm of h = x + residual, rounded once; dh is added to dx before that is rounded. A row
    has the same bits alone, and as what two calls give.
    """
    N, (x, gamma, residual, dy) = 7, arrays((7, kind.D), "float16", "float32")
    residual, dh = np.resize(residual, x.shape).astype("f2"), (dy[::-1] * 3).astype("f2")
    h = np.zeros_like(x)
    y, statistics, _ = launch_forward(kind.forward(N), x, gamma, None, residual=(residual, h))
    assert bits([h]) == bits([x + residual])
    found = []
    for other in (dh, None):
        plan = kind.backward(N)
        dx, sums, _ = launch_backward(plan, dy, h, statistics, gamma, False, other)
        found += [dx, launch_add(sums, plan.partials)[0]]
    assert bits(found[1:2]) == bits(found[3:])
    exact = reference.rms_norm(h, gamma, dy)
    exact_dh = exact.dx + reference.to_fixed(dh)
    for a, right in ((y, exact.y), (found[2], exact.dx), (found[0], exact_dh)):
        assert reference.relative_error(a.reshape(x.shape), right) <= cases.U["float16"]
    assert reference.relative_error(found[1], exact.dgamma) <= 8 * U
    alone, _, _ = launch_forward(kind.forward(1), h[4:5], gamma, None)
    assert bits([alone]) == bits([y.reshape(x.shape)[4]])


@pytest.mark.slow
@pytest.mark.parametrize(
    "sigma, eps, exponent", [(5e37, 1e-5, 125), (1e-36, 0.0, -120), (1.0, 1e42, 70)]
)
@every_kind
def test_every_kernel_out_of_range(kind, sigma, eps, exponent):
    """Scaling by a power of two rounds nothing; dx of a row 2^e times as large is 1 / 2^e of it."""
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
    """Where only the sums overflow, dx is that of a smaller dy times 2^e: no bit differs."""
    x, gamma, beta, dy = arrays((3, kind.D))
    dy += np.float32(1)  # so that they do: D * 2^125
    x *= np.float32(2**30)  # dx is much smaller than dy
    ordinary, large = (
        launch_all(kind, x, np.ones_like(gamma), beta, np.ldexp(dy, k))[1] for k in (0, 125)
    )
    assert np.array_equal(large, np.ldexp(ordinary, 125)) and np.isfinite(large).all()
    # Only the sum of g overflows, or only that of g * xhat.
    sign, one = np.resize(np.float32([1, -1]), x.shape), np.ones_like(gamma)
    nearly = np.ones_like(x)
    nearly[:, 2] += np.float32(2 * U)
    for dy in (nearly, sign) if kind.D % 2 == 0 else ():
        ordinary, large = (launch_all(kind, sign, one, beta, np.ldexp(dy, k))[1] for k in (0, 122))
        assert np.array_equal(large, np.ldexp(ordinary, 122)) and np.isfinite(large).all()


@pytest.mark.slow
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@every_kind
def test_every_kernel_keeps_nan_in_its_row(kind, bad):
    """Every lane and warp must leave the loops together, or the interpreter reports a barrier."""
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


# Traffic


@pytest.mark.slow
@pytest.mark.parametrize(
    "D, width, N, dtype",
    [(512, 4, 20, "float32"), (128, 4, 40, "float32"), (1024, 4, 10, "float16")],
)
def test_compulsory_traffic(D, width, N, dtype):
    """Forward 8 bytes an element, backward 12 and 16 for each element of a partial sum: to the
    byte; of half x half. 128 is a row of half a warp in backward, 512 of one, 1024 of two.

    What is left are gamma, beta and their gradients, whose part is 1 / rows, and 16 bytes of
    statistics a row. No bank is asked twice.
    """
    x, gamma, beta, dy = arrays((N, D), dtype, "float32")
    x -= x.mean(1, keepdims=True)
    plan = plans.plan_backward(N, D, width)
    y, statistics, forward = launch_forward(
        plans.plan_forward(N, D, width), x, gamma, beta, log=True
    )
    dx, sums, backward = launch_backward(plan, dy, x, statistics, gamma, log=True)
    _, add = launch_add(sums, plan.partials, log=True)
    assert plan.partials < N
    row, array, partial = 4 * D, np.dtype(dtype).itemsize * N * D, 8 * plan.partials * D
    both = {(name, "load"): array for name in ("x", "dy")}
    sums = {("partial_sums", "store"): partial}
    assert simt.compulsory(forward) == {
        ("x", "load"): array,
        ("y", "store"): array,
        ("statistics", "store"): 16 * N,
        **{(name, "load"): row for name in ("gamma", "beta")},
    }
    assert simt.compulsory(backward) == both | sums | {
        ("dx", "store"): array,
        ("gamma", "load"): row,
        ("statistics", "load"): 16 * N,
    }
    assert simt.compulsory(add) == {("partial_sums", "load"): partial, ("sums", "store"): 2 * row}
    for ran in (forward, backward, add):
        assert not any(a.kind == "atomic" for a in ran.accesses)
        assert all(n == wavefronts for n, wavefronts in simt.bank_conflicts(ran).values())
        for (name, _), found in simt.sectors(ran).items():
            assert found.efficiency > 0.9 or name not in ("x", "y", "dx"), name


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
        launch_backward(kind.plan(blocks, 5), dy, x, statistics, gamma)[:2] for blocks in (1, 2, 5)
    ]
    assert all(bits(result) == bits(results[0]) for result in results)
    # A sum of them all is another order of additions, so this could have failed. (dx is a row's
    # own.)
    other = launch_backward(kind.plan(2, 1), dy, x, statistics, gamma)[:2]
    assert bits(other[:1]) == bits(results[0][:1])
    assert kind.rows == 16 or bits(other[1:]) != bits([launch_add(results[0][1], 5)[0]])


@pytest.mark.parametrize("partials", [1, 2, 3, 5, 31, 33, 64, 1024, 1025, 2100])
@pytest.mark.parametrize("D", [1, 7, 8, 40])
def test_add_partials(D, partials):
    """Every number of lanes, and more terms than a block has, in two launches; sums are exact."""
    a = np.random.default_rng(partials).integers(-99, 100, (partials, D)).astype("f4")
    assert np.array_equal(launch_add(a.reshape(-1), partials)[0], a.sum(0))
