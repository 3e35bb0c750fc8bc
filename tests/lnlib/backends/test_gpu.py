"""lnlib.gpu beyond the table: every width, the traffic of its kernels, and the host's promises.

Where there is no GPU, lnlib.gpu runs its kernels in simt, and so do most of these tests on any
machine: launched directly, their accesses can be counted. The last part needs a GPU.
"""

import functools
import os
import subprocess
import sys
import types
import warnings
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
from lnlib.gpu.backend import scaled_eps
from lnlib.gpu.plans import Plan
from lnlib.rounding import round_to
from simt.cuda_access import bfloat16, cuda, widened

U = cases.U["float32"]


run = functools.partial(cases.run, gpu)


# Every width

# {D: rows} of lengths beyond those of test_all_backends.py, up to one that no block can keep.
WIDTHS = {1027: 7, 4096: 2, 5120: 1, 20000: 1}


def judge(case, precise):
    test_all_backends.test_gradients(
        test_all_backends.IMPLEMENTATIONS[f"GPU{', precise' * precise}"], case
    )


@pytest.mark.slow
@pytest.mark.parametrize("D, N", WIDTHS.items())
@pytest.mark.parametrize(
    "offset, dtype, precise",
    # float16 numbers end at 65504 and are 0.06 apart at 100.
    [(1e6, "float32", False), (1e6, "float32", True), (100, "float16", False)],
)
def test_agrees_with_exact_arithmetic(N, D, offset, dtype, precise):
    judge(cases.Case(f"{N}x{D} {dtype} {offset}", (N, D), dtype, offset=offset), precise)


# The kernels by themselves


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
    """Any bits of a float32; what lies in the middle of two bfloat16, and next to it; NaN, Inf, the
    largest.
    """
    rng = np.random.default_rng(3)
    any_bits = rng.integers(0, 2**32, 300, dtype=np.uint64).astype(np.uint32).view("f4")
    middle = (rng.integers(0, 2**16, 100) << 16 | 0x8000).astype(np.uint32).view("f4")
    ends = np.array([0, -0.0, np.nan, np.inf, -np.inf, 3.4e38, 3.39e38, 1e-45], "f4")
    some = np.concatenate([any_bits, middle, ends]).astype(dtype)
    beside = (np.nextafter(some, way, dtype=dtype) for way in (np.inf, -np.inf))
    return np.concatenate([some, *beside])


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
    """Seven rows, three partial sums: some have three terms, some two; every number of a result is
    written.
    """
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
    """Every number of lanes, and more terms than a block has, in two launches: integers, so sums
    are exact.
    """
    a = np.random.default_rng(partials).integers(-99, 100, (partials, D)).astype("f4")
    assert np.array_equal(launch_add(a.reshape(-1), partials)[0], a.sum(0))


# The host


class OnDevice:
    """An array on a device that is not there; what libraries of GPU arrays show to one another."""

    def __init__(self, array, read_only=False, at=0):
        self.array, self.read_only, self.at = array, read_only, at
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, k):
        return OnDevice(self.array[k])

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
CACHE = gpu.GpuNormCache(X, np.ones((3, 4), "f4"), GAMMA, X.dtype, False)
DEVICE_CACHE = gpu.GpuNormCache(
    ON_DEVICE[0], OnDevice(CACHE.statistics), ON_DEVICE[1], X.dtype, True
)
FORWARD = {"x": X, "gamma": GAMMA, "beta": BETA}
DEVICE_FORWARD = dict(zip(FORWARD, ON_DEVICE))


def refused():
    """(function, arguments, the bad one's name, error, what was found, what was expected)

    What every backend refuses is in test_contract.py. Here: arrays here and there, and what a
    device array may not be.
    """
    forward, backward = gpu.layer_norm_forward, gpu.layer_norm_backward
    double = "lnlib.layernorm and lnlib.cpu take float64"
    here, there = "found an array on the device", "expected an array on the device, where x is"
    on_device = {"dy": ON_DEVICE[3], "cache": DEVICE_CACHE}
    host = "one on the host, where x is"
    of_host = (({"gamma": DEVICE_FORWARD["gamma"]}, TypeError, here, host),)
    of_device = (
        ({"beta": BETA}, TypeError, "found ndarray", there),
        ({"out": OnDevice(X, read_only=True)}, ValueError, "found a read-only", "can be written"),
        ({"gamma": OnDevice(GAMMA, at=1)}, ValueError, "an array on device 1", "one on device 0"),
        ({"x": OnDevice(X.astype("f8"))}, TypeError, "found dtype float64", double),
        ({"x": OnDevice(X[:, ::2])}, ValueError, "found strides", "a C-contiguous array"),
    )
    of_backward = (({"cache": CACHE}, "dy", TypeError, here, host),)
    for good, rows in ((FORWARD, of_host), (DEVICE_FORWARD, of_device)):
        for change, *told in rows:
            yield (forward, good | change, *change, *told)
    for change, *told in of_backward:
        yield (backward, on_device | change, *told)


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


@pytest.mark.parametrize("name", [*cases.HALVES[1:], "float8"])
def test_a_dtype_that_the_protocol_has_no_name_for_is_what_the_array_calls_it(name):
    a = OnDevice(np.zeros(3, "V2"))
    a.dtype = f"torch.{name}"
    if name in cases.HALVES:
        assert backend.description("a", a).dtype == np.dtype(name)
    else:
        with pytest.raises(TypeError, match="^a: found dtype float8, expected float32"):
            backend.description("a", a)


@pytest.mark.skipif(cuda.is_available(), reason="needs a machine without a GPU")
def test_device_arrays_without_a_device():
    """The interpreter is not for them; the error says what is missing."""
    with pytest.raises((ImportError, AttributeError), match="CUDA"):
        gpu.layer_norm_forward(*ON_DEVICE[:3])


# Promises about memory and about rows


@pytest.mark.parametrize("precise, real", [(False, "f4"), (True, "f8")])
def test_the_cache_shares_no_memory_with_its_arguments(precise, real):
    """It survives whatever happens to x, gamma and beta; and no result shares memory with
    another.
    """
    x, gamma, beta, dy = (a.copy() for a in (X, GAMMA, BETA, DY))
    y, cache = gpu.layer_norm_forward(x, gamma, beta, precise=precise)
    expected = gpu.layer_norm_backward(dy, cache)
    assert cache.statistics.dtype == real and cache.statistics.shape == (3, 4)
    kept = [a for a in cache if isinstance(a, np.ndarray)]
    assert not cache.device and cases.share_nothing([x, gamma, beta, dy, y, *expected, *kept])
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
from simt.cuda_access import cuda
assert cuda.implementation is None and not cuda.is_available()
rng = np.random.default_rng(0)
x, gamma, beta, dy = (rng.standard_normal(s, "f4") for s in ((5, 100), 100, 100, (5, 100)))
def run(backend):
    y, cache = backend.layer_norm_forward(x, gamma, beta)
    return y, *backend.layer_norm_backward(dy, cache)
for a, b in zip(run(gpu), run(layernorm)):
    print(np.linalg.norm(a - b) / np.linalg.norm(b) / np.finfo("f4").eps)
assert not [name for name in sys.modules if name.startswith(("numba.", "llvmlite."))]
"""


@pytest.mark.slow
def test_without_numba():
    """The browser's case: the same kernels and the same results. ``import lnlib`` loads nothing of
    them.

    The bar of float32 is 2e-7, 1.7 of its eps, for each of two results.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKED], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    differences = [float(line) for line in done.stdout.split()]
    assert len(differences) == 4 and max(differences) <= 3.4


# On a GPU

needs_gpu = pytest.mark.skipif(not cuda.is_available(), reason="needs a GPU")


class Library(NamedTuple):
    """How a library moves arrays to the device and back, its type of arrays, and streams that wait
    for no other.
    """

    put: object
    get: object
    kind: type
    stream: object  # makes one
    handle: object  # its number
    current: object = None  # makes it the current stream in a with statement


def _numba():
    kind = type(cuda.device_array(1))
    return Library(cuda.to_device, lambda a: a.copy_to_host(), kind, cuda.stream, int)


def _torch(torch):
    def put(a):
        return torch.from_numpy(np.array(a)).to("cuda")

    streams = torch.cuda.Stream, lambda s: s.cuda_stream, torch.cuda.stream
    return Library(put, lambda a: a.cpu().numpy(), torch.Tensor, *streams)


def _cupy(cupy):
    def stream():
        return cupy.cuda.Stream(non_blocking=True)

    streams = stream, lambda s: s.ptr, lambda s: s
    return Library(cupy.asarray, cupy.asnumpy, cupy.ndarray, *streams)


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


DEVICE_SHAPES = [
    *((1, 1), (7, 3), (130, 100), (33, 127), (7, 1027), (70, 1024)),
    *((5, 5120), (3, 9000), (3, 20000), (2, 16383), (17, 64), (3, 12296), (2, 40000)),
]
DEVICE_DTYPES = ("float32", 0), ("float32", 1e6), ("float16", 100), (cases.HALVES[-1], 4)
DEVICE_NORMS = [  # and whether there are a residual and a dh
    *(("rms_norm", "float32", added) for added in (False, True)),
    *((norm, cases.HALVES[-1], True) for norm in ("rms_norm", "layer_norm")),
]
DEVICE_CASES = [
    cases.Case(f"device {N}x{D} {dtype} {offset}", (N, D), dtype, offset=offset)
    for N, D in DEVICE_SHAPES
    for dtype, offset in DEVICE_DTYPES
] + [
    cases.Case(f"device {N}x{D} {n} {t} {r}", (N, D), t, parameters="float32", norm=n, residual=r)
    for N, D in DEVICE_SHAPES
    for n, t, r in DEVICE_NORMS
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
        *((shape, "float32", None) for shape in ((5, 33), (2, 3, 1024), (3, 20000), (64,))),
        *((shape, "float32", None) for shape in ((2, 0, 1027), (0, 20000))),
        ((130, 64), "float16", "float32"),
        ((4, 100), "float16", None),
    ],
)
def test_on_the_gpu_arrays_stay_there(library, shape, dtype, parameters, precise):
    """Results are arrays of the caller's library, of the dtypes of the contract, and the bits are
    those of NumPy.
    """
    a = arrays(shape, dtype, parameters)
    x, gamma, beta, dy = (library.put(b) for b in a)
    y, cache = gpu.layer_norm_forward(x, gamma, beta, precise=precise)
    assert cache.x is x and cache.gamma is gamma and cache.device
    assert isinstance(cache.statistics, library.kind)
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
    assert x.__cuda_array_interface__["data"][0] % 16 == 4
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
        (x.clone().requires_grad_(), TypeError, "found a tensor with a graph"),
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
    for named, given, expected in (
        *((7, 5, 5), (7, ours, 9), (7, theirs, 9), (7, 0, 0)),
        *((7, None, 7), (1, None, 0), (None, None, 0)),
    ):
        x = types.SimpleNamespace(__cuda_array_interface__={"stream": named})
        assert devices.stream_of(x, given) == expected, (named, given)


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
    stream.synchronize()
    assert streams == [library.handle(stream)] * 3
    assert bits(library.get(b) for b in results) == bits(expected)


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
        *((shape, "float32") for shape in ((2000, 768), (700, 1027), (5000, 64), (300, 20000))),
        ((2000, 1024), "float16"),
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
@pytest.mark.parametrize("dtype", ["float32", cases.HALVES[-1]])
def test_on_the_gpu_same_row_same_bits(dtype):
    """On both sides of every length where a plan changes: alone, among others, with neighbours in
    its warp that are done again.
    """
    edges = 128, 256, 512, 4096, 8192, 16384, 32768
    for D in [D + step for D in edges for step in (0, 1, 4, 8)]:
        x, gamma, beta, dy = arrays((5, D), dtype)
        x[1], x[3] = x[1] + 100, x[3] * np.array(1e25, dtype)
        for norm in ("layer_norm", "rms_norm"):
            whole = cases.run(gpu, x, gamma, beta, dy, norm=norm)
            for rows in (slice(2, 3), slice(1, 4)):
                some = cases.run(gpu, x[rows], gamma, beta, dy[rows], norm=norm)
                assert bits(some[:2]) == bits(a[rows] for a in whole[:2]), (D, norm)


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
