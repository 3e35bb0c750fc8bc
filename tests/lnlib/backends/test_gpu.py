"""lnlib.gpu beyond the table: every width, and what it promises about memory, devices and streams.

Where there is no GPU, lnlib.gpu runs its kernels in simt. The last part needs a GPU.
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
from test_gpu_kernels import judge_rounding, rounded_and_back, to_round

from lnlib import gpu, layernorm, reference
from lnlib.gpu import backend, devices
from simt.cuda_access import cuda

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
    """Nothing is copied; x and gamma in the cache are the caller's; the bits are those of NumPy."""
    x, gamma, beta, dy = ON_DEVICE
    expected = run(X, GAMMA, BETA, DY)
    y, cache = gpu.layer_norm_forward(x, gamma, beta)
    results = y, *gpu.layer_norm_backward(dy, cache)
    assert {type(a) for a in results} == {OnDevice} and type(cache.statistics) is OnDevice
    assert bits(a.array for a in results) == bits(expected)
    assert [a.shape for a in results] == [a.shape for a in expected]
    assert cache.x is x and cache.gamma is gamma and cache.device and cache.dtype == np.float32
    known = backend._known_given.cache_info, backend._known_upstream.cache_info
    hits = [look().hits for look in known]
    into_y, into_dx = OnDevice(np.empty_like(X)), OnDevice(np.empty_like(X))
    y, cache = gpu.layer_norm_forward(x, gamma, beta, out=into_y)
    assert y is into_y and bits([y.array]) == bits(expected[:1])
    dx, *_ = gpu.layer_norm_backward(dy, cache, out=into_dx)
    assert dx is into_dx and bits([dx.array]) == bits(expected[1:2])
    assert [look().hits - n for look, n in zip(known, hits)] == [1, 1]  # are checked once


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
    """It survives a change of x, gamma and beta; and no result shares memory with another."""
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
    """Though 1e-60 is 0 in float32, a constant row gives beta, also scaled; eps = 0 is 0 / 0."""
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
    """The bars of the interpreter, for NumPy arrays. (Fused multiply-add rounds less.)"""
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
    """Results are arrays of the caller's library, of the right dtypes, with the bits of NumPy's."""
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


@pytest.mark.parametrize("dtype, widths", [("f4", [4, 1, 1, 4]), ("f2", [8, 1, 4, 8])])
def test_width_of_an_access_is_one_that_every_array_allows(dtype, widths):
    memory = np.zeros(24, "f4")
    memory = memory[-memory.ctypes.data % 16 // 4 :]
    host = types.SimpleNamespace(address=lambda a: a.ctypes.data)
    arrays = [memory[n : n + 8].view(dtype) for n in (0, 1, 2, 4)]  # 4 bytes behind, 8, 16
    assert [backend.width_of_access(host, 8, memory.view(dtype), a) for a in arrays] == widths


@needs_gpu
def test_on_the_gpu_misaligned_arrays(library):
    """A view that begins 4 bytes behind its memory: width 1, and no "misaligned address"."""
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
    """A tensor with a graph, a transposed one; bfloat16; and a tensor on the host."""
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
    """The caller's, else the one that the array names, else the default one: 0, also named 1."""
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
    """All three kernels are launched there. (No result is read before the stream is done.)"""
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
    """x arrives on PyTorch's current stream, late: on another one, a kernel would find zeros."""
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
    edges = edges[:1] if "LN_CAPABILITY" in os.environ else edges  # each takes a minute to compile
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
