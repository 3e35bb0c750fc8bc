"""What every backend promises: bad input is refused by name, good input of every kind works, nothing leaks."""

import warnings
from collections import namedtuple
from fractions import Fraction

import cases
import numpy as np
import pytest

from lnlib import contract, cpu, gpu, reference
from lnlib import layernorm as ln

X = np.random.default_rng(1).standard_normal((2, 3))
GAMMA, BETA, DY = np.array([1.0, -2.0, 0.5]), np.array([0.1, 0.2, 0.3]), np.cos(X)
CACHE = ln.layer_norm_forward(X, GAMMA, BETA)[1]
RMS_CACHE = ln.rms_norm_forward(X, GAMMA)[1]
CPU_CACHE = cpu.layer_norm_forward(X, GAMMA, BETA)[1]
SINGLE = [a.astype("f4") for a in (X, GAMMA, BETA, DY)]  # the GPU takes no float64
GPU_CACHE = gpu.layer_norm_forward(*SINGLE[:3])[1]
HALF = X.astype("f2"), GAMMA.astype("f4"), BETA.astype("f4")

OtherCache = namedtuple("OtherCache", "x gamma")
OtherCache.backend = "somewhere else"
SameName = namedtuple("LayerNormCache", "xhat rstd gamma dtype")
SameName.backend = "somewhere else"

# Every function with good arguments; a row of the table replaces one of them.
FORWARD = ln.layer_norm_forward, {"x": X, "gamma": GAMMA, "beta": BETA, "eps": 1e-5}
RMS_FORWARD = ln.rms_norm_forward, {"x": X, "gamma": GAMMA, "eps": 1e-5}
BACKWARD = ln.layer_norm_backward, {"dy": DY, "cache": CACHE}
RMS_BACKWARD = ln.rms_norm_backward, {"dy": DY, "cache": RMS_CACHE}
JVP = ln.layer_norm_jvp, {"u": DY, "cache": CACHE}
DOUBLE = ln.layer_norm_double_backward, {"u": DY, "dy": DY, "cache": CACHE}
CPU_FORWARD = cpu.layer_norm_forward, {"x": X, "gamma": GAMMA, "beta": BETA, "eps": 1e-5}
CPU_BACKWARD = cpu.layer_norm_backward, {"dy": DY, "cache": CPU_CACHE}
GPU_FORWARD = gpu.layer_norm_forward, dict(zip(("x", "gamma", "beta", "eps"), (*SINGLE[:3], 1e-5)))
GPU_BACKWARD = gpu.layer_norm_backward, {"dy": SINGLE[3], "cache": GPU_CACHE}
FORWARDS = FORWARD, RMS_FORWARD, CPU_FORWARD, GPU_FORWARD
BACKWARDS = BACKWARD, RMS_BACKWARD, JVP, DOUBLE, CPU_BACKWARD, GPU_BACKWARD

# The caches a function takes, and somebody else's: a kind of cache, not its fields, says which forward it came from.
LAYER_NORM_KINDS = "LayerNormCache or PreciseLayerNormCache of backend 'numpy'", (RMS_CACHE, CPU_CACHE, GPU_CACHE)
RMS_NORM_KINDS = "RMSNormCache of backend 'numpy'", (CACHE, CPU_CACHE)
CPU_KINDS = "CpuLayerNormCache of backend 'cpu'", (CACHE, RMS_CACHE, GPU_CACHE)
GPU_KINDS = "GpuLayerNormCache of backend 'gpu'", (CACHE, RMS_CACHE, CPU_CACHE)

# What no array argument may be: (value made from a good array, error, what was found).
NOT_AN_ARRAY = {
    "integers": (lambda a: np.ones(a.shape, int), TypeError, "found dtype int64"),
    "bool": (lambda a: np.ones(a.shape, bool), TypeError, "found dtype bool"),
    "object": (lambda a: a.astype(object), TypeError, "found dtype object"),
    "fractions": (lambda a: np.full(a.shape, Fraction(1, 2)), TypeError, "found dtype object"),
    "strings": (lambda a: a.astype(str), TypeError, "found dtype str"),
    "one string": (lambda a: "x", TypeError, "found dtype str"),
    "None": (lambda a: None, TypeError, "found dtype object"),
    "complex64": (lambda a: a.astype("c8"), TypeError, "found dtype complex64"),
    "longdouble": (lambda a: a.astype(np.longdouble), TypeError, f"found dtype {np.dtype(np.longdouble).name}"),
    "dates": (lambda a: np.zeros(a.shape, "M8[s]"), TypeError, "found dtype datetime64"),
    "records": (lambda a: np.zeros(a.shape, [("re", "f8")]), TypeError, "found dtype void"),
    "masked": (lambda a: np.ma.array(a), TypeError, "found a masked array"),
    "foreign byte order": (lambda a: a.astype(a.dtype.newbyteorder()), TypeError, "foreign byte order"),
    "list of integers": (lambda a: np.ones(a.shape, int).tolist(), TypeError, "found dtype int64"),
    "ragged list": (lambda a: [[1.0], [1.0, 2.0]], ValueError, "found a ragged list"),
}
if np.dtype(np.longdouble) == np.float64:  # longdouble is an alias on some platforms
    del NOT_AN_ARRAY["longdouble"]

EPS = {
    "negative": (-1e-5, ValueError, "found -1e-05"),
    "infinite": (np.inf, ValueError, "found inf"),
    "minus infinity": (-np.inf, ValueError, "found -inf"),
    "NaN": (np.nan, ValueError, "found nan"),
    "too large an int": (10**400, ValueError, "found inf"),
    "1-d array": (np.array([1e-5]), TypeError, "found ndarray of shape (1,)"),
    "0-d array": (np.array(1e-5), TypeError, "found ndarray of shape ()"),
    "list": ([1e-5], TypeError, "found list"),
    "bool": (True, TypeError, "found bool"),
    "NumPy bool": (np.True_, TypeError, "found bool"),
    "string": ("1e-5", TypeError, "found str"),
    "None": (None, TypeError, "found NoneType"),
    "complex": (1e-5 + 0j, TypeError, "found complex"),
}


def read_only(a):
    a.flags.writeable = False
    return a


# What ``out`` may not be, for a float64 x of shape (2, 3).
OUT = (
    ("a list", [[0.0] * 3] * 2, TypeError, "found list", "expected a NumPy array"),
    ("True", True, TypeError, "found bool", "expected a NumPy array"),
    ("float32", np.empty((2, 3), "f4"), TypeError, "found dtype float32", "expected float64, the dtype of x"),
    ("complex", np.empty((2, 3), "c16"), TypeError, "found dtype complex128", "expected float64, the dtype of x"),
    ("foreign byte order", np.empty((2, 3), np.dtype("f8").newbyteorder()), TypeError,
     "found dtype float64 in foreign byte order", "expected one of float64"),
    ("masked", np.ma.masked_array(np.empty((2, 3))), TypeError, "found a masked array", "expected an ordinary array"),
    ("transposed shape", np.empty((3, 2)), ValueError, "found shape (3, 2)", "expected (2, 3), the shape of x"),
    ("one axis more", np.empty((1, 2, 3)), ValueError, "found shape (1, 2, 3)", "expected (2, 3), the shape of x"),
    ("flat", np.empty(6), ValueError, "found shape (6,)", "expected (2, 3), the shape of x"),
    *((kind, out, ValueError, "found an array that is read-only, not C-contiguous or not aligned", "row after row")
      for kind, out in (("read-only", read_only(np.empty((2, 3)))), ("Fortran order", np.empty((3, 2)).T),
                        ("every second row", np.empty((4, 3))[::2]), ("reversed", np.empty((2, 3))[:, ::-1]),
                        ("unaligned", np.empty(49, np.uint8)[1:].view("f8").reshape(2, 3)))),
)


def bad_rows():
    """(function, its arguments, the bad one's name, error, what was found, what was expected)."""
    for function, good in (*FORWARDS, *BACKWARDS):
        for argument in set(good) & {"x", "gamma", "beta", "dy", "u"}:
            for kind, (make, error, found) in NOT_AN_ARRAY.items():
                yield kind, function, {**good, argument: make(good[argument])}, argument, error, found, "expected"

    for function, good in FORWARDS:
        for kind, x, found in (("0-d", np.float64(1), "found a 0-d array"), ("a float", 1.0, "found a 0-d array"),
                               ("D = 0", np.ones((2, 0)), "found shape (2, 0)"), ("empty", [], "found shape (0,)")):
            yield kind, function, {**good, "x": x}, "x", ValueError, found, "expected"
        for argument in set(good) & {"gamma", "beta"}:
            for kind, shape in (("too long", (4,)), ("too short", (2,)), ("length 1", (1,)), ("0-d", ()),
                                ("2-d", (1, 3))):
                yield (kind, function, {**good, argument: np.ones(shape, good["x"].dtype)}, argument, ValueError,
                       f"found shape {shape}", "expected (3,)")
            for x_dtype, dtype, expected in (("f4", "f8", "float32"), ("f4", "f2", "float32"),
                                             ("f4", "c16", "float32"), ("f8", "f4", "float64"),
                                             ("f8", "f2", "float64"), ("f2", "f8", "float16 or float32")):
                if x_dtype == "f8" and function is gpu.layer_norm_forward:
                    continue
                arguments = {name: value if name == "eps" else value.astype(x_dtype) for name, value in good.items()}
                yield (f"{dtype} for {x_dtype} x", function, {**arguments, argument: GAMMA.astype(dtype)}, argument,
                       TypeError, f"found dtype {np.dtype(dtype).name}", f"expected {expected}")
        for kind, (eps, error, found) in EPS.items():
            yield kind, function, {**good, "eps": eps}, "eps", error, found, "expected"
    half = X.astype("f2")
    for function, good in (FORWARD, CPU_FORWARD, GPU_FORWARD):
        for gamma, beta in (("f2", "f4"), ("f4", "f2")):
            arguments = {"x": half, "gamma": GAMMA.astype(gamma), "beta": BETA.astype(beta)}
            yield (f"{beta} for {gamma} gamma", function, arguments, "beta", TypeError,
                   f"found dtype {np.dtype(beta).name}", f"expected {np.dtype(gamma).name}, the dtype of gamma")

        arguments = {"x": half, "gamma": GAMMA.astype("f2"), "beta": BETA.astype("f2")}
        for kind, precise in (("a number", 1), ("a string", "yes"), ("None", None), ("an array", np.ones(2, bool))):
            yield (kind, function, {**arguments, "precise": precise}, "precise", TypeError,
                   f"found {type(precise).__name__}", "expected True or False")
        if good["x"].dtype == "f8":
            yield ("with float64 x", function, {**good, "precise": True}, "precise", ValueError,
                   "found True with x of dtype float64", "expected x of dtype float32, float16 or bfloat16")

    for function, good in BACKWARDS:
        for argument in set(good) - {"cache"}:
            for kind, shape in (("transposed", (3, 2)), ("one row", (3,)), ("would broadcast", (1, 3)), ("0-d", ()),
                                ("one axis more", (1, 2, 3)), ("no rows", (0, 3))):
                yield (kind, function, {**good, argument: np.ones(shape, good[argument].dtype)}, argument, ValueError,
                       f"found shape {shape}", "expected (2, 3)")
            name = good[argument].dtype.name
            for dtype in {"f8", "f4", "f2"} - {good[argument].dtype.str[1:]}:
                yield (f"{dtype} for {name} x", function, {**good, argument: DY.astype(dtype)}, argument, TypeError,
                       f"found dtype {np.dtype(dtype).name}", f"expected {name}")
        mine = good["cache"]
        kinds, others = {id(RMS_CACHE): RMS_NORM_KINDS, id(CPU_CACHE): CPU_KINDS, id(GPU_CACHE): GPU_KINDS}.get(
            id(mine), LAYER_NORM_KINDS)
        elsewhere = "of backend 'somewhere else'"
        for kind, cache, found in (
                ("plain tuple", tuple(mine), "found tuple"), ("None", None, "found NoneType"),
                *((f"a {type(other).__name__}", other, f"found {type(other).__name__} of backend {other.backend!r}")
                  for other in others),
                ("another backend's", OtherCache(X, GAMMA), f"found OtherCache {elsewhere}"),
                ("a namesake", SameName(*CACHE), f"found LayerNormCache {elsewhere}"),
                ("x itself", X, "found ndarray"), ("its fields", mine._asdict(), "found dict"),
                ("the whole result", (X, mine), "found tuple")):
            yield kind, function, {**good, "cache": cache}, "cache", TypeError, found, f"expected the {kinds}"
    for backend in (ln, cpu, gpu):
        yield ("f8 for float16 x", backend.layer_norm_backward,
               {"dy": DY, "cache": backend.layer_norm_forward(*HALF)[1]}, "dy", TypeError,
               "found dtype float64", "expected float16 or float32")

    # Of what the NumPy backend takes, complex128 is not for these. (Nor is float64 for the GPU: see test_gpu.py.)
    for function, good in (CPU_FORWARD, CPU_BACKWARD, GPU_FORWARD, GPU_BACKWARD):
        for argument in set(good) & {"x", "gamma", "beta", "dy"}:
            yield ("complex128", function, {**good, argument: good[argument].astype("c16")}, argument, TypeError,
                   "found dtype complex128", "expected float")
        for kind, out, error, found, expected in OUT if function.__module__ == cpu.__name__ else ():
            yield kind, function, {**good, "out": out}, "out", error, found, expected  # the GPU's are in test_gpu.py


def name_of(function):
    return f"{function.__module__}.{function.__name__}".removeprefix("lnlib.")


BAD = sorted(bad_rows(), key=lambda row: (name_of(row[1]), row[3], row[0]))


@pytest.mark.parametrize("function, arguments, name, error, found, expected", [row[1:] for row in BAD],
                         ids=[f"{name_of(row[1])} {row[3]}: {row[0]}" for row in BAD])
def test_bad_input_is_refused_by_name(function, arguments, name, error, found, expected):
    with pytest.raises(error) as caught:
        function(**arguments)
    message = str(caught.value)
    assert type(caught.value) is error  # not a subclass that NumPy happened to raise
    assert message.startswith(f"{name}: ") and found in message and expected in message, message


def test_the_good_arguments_of_the_table_are_good():
    for function, good in (*FORWARDS, *BACKWARDS):
        function(**good)


class Device:
    """What the protocol of device arrays says of a NumPy array."""

    def __init__(self, array, writeable=True):
        self.__cuda_array_interface__ = {"typestr": array.dtype.str, "shape": array.shape, "strides": array.strides,
                                         "data": (0, not writeable)}


# (require_..., bad argument, further ones): the message for an array and for its description are the same.
@pytest.mark.parametrize("require, name, bad, rest", [
    (contract.require_x, None, np.ones(()), ()), (contract.require_x, None, np.ones((2, 0)), ()),
    (contract.require_x, None, np.ones((2, 3), int), ()),
    (contract.require_like_x, "dy", np.ones((3, 2)), ((2, 3), X.dtype)),
    (contract.require_like_x, "dy", np.ones((2, 3), "f4"), ((2, 3), X.dtype)),
    (contract.require_out, None, np.ones((3, 2)), (X,)), (contract.require_out, None, np.ones((2, 3), "f4"), (X,)),
    (contract.require_out, None, read_only(np.ones((2, 3))), (X,)),
])
def test_what_is_required_of_a_device_array(require, name, bad, rest):
    messages = []
    for value in (bad, contract.describe("a", Device(bad, bad.flags.writeable), (bad.dtype.name,))):
        with pytest.raises((TypeError, ValueError)) as caught:
            require(*(() if name is None else (name,)), value, *rest)
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]


def test_descriptions():
    """Good ones pass through every function; strides are those of rows, where there is more than nothing."""
    names = tuple(contract.COMPUTE_DTYPE)
    x, gamma, out = (contract.describe("a", Device(a), names) for a in (X, GAMMA, X))
    assert (x.shape, x.dtype, x.writeable) == ((2, 3), np.dtype("f8"), True)
    assert contract.require_x(x) is x and contract.require_parameters(gamma, gamma, x) == (gamma, gamma)
    assert contract.require_like_x("dy", x, x.shape, x.dtype) is x
    contract.require_out(out, x)
    assert contract.describe("a", Device(np.ones((2, 0, 3))[..., ::2]), names).shape == (2, 0, 2)
    for bad, error, message in (
            (X.T, ValueError, r"a: found strides \(8, 24\), expected a C-contiguous array"),
            (X.astype("f4"), TypeError, r"a: found dtype float32, expected doubles"),
            (X.astype(">f8"), TypeError, r"a: found dtype float64 in foreign byte order, expected doubles")):
        with pytest.raises(error, match=f"^{message}$"):
            contract.describe("a", Device(bad), ("float64",), "doubles")


# Good input

def run_all(x, gamma, beta, dy, eps=1e-5):
    """Every result of every function of the NumPy backend, as one flat list of arrays."""
    y, cache = ln.layer_norm_forward(x, gamma, beta, eps)
    z, rms_cache = ln.rms_norm_forward(x, gamma, eps)
    return [y, *ln.layer_norm_backward(dy, cache), ln.layer_norm_jvp(dy, cache),
            *ln.layer_norm_double_backward(dy, dy, cache), z, *ln.rms_norm_backward(dy, rms_cache)]


def run_cpu(x, gamma, beta, dy, eps=1e-5):
    """Those of the CPU backend, which are the first four of the same list."""
    y, cache = cpu.layer_norm_forward(x, gamma, beta, eps)
    return [y, *cpu.layer_norm_backward(dy, cache)]


def run_gpu(x, gamma, beta, dy, eps=1e-5):
    """And those of the GPU backend, which takes no float64."""
    y, cache = gpu.layer_norm_forward(x, gamma, beta, eps)
    return [y, *gpu.layer_norm_backward(dy, cache)]


def taken(run, *arrays):
    return [a.astype("f4") if run is run_gpu else a for a in arrays]


every_backend = pytest.mark.parametrize("run", [run_all, run_cpu])
every_backend_and_the_gpu = pytest.mark.parametrize("run", [run_all, run_cpu, run_gpu])
every_backend_and_dtype = pytest.mark.parametrize("run, dtype", [
    (run, dtype) for run in (run_all, run_cpu, run_gpu) for dtype in cases.DTYPES
    if run is not run_gpu or dtype in ("float32", "float16")])


def equal(a, b):
    return all(np.array_equal(p, q, equal_nan=True) and p.dtype == q.dtype for p, q in zip(a, b, strict=True))


# 300 features: NumPy adds them in blocks only where they are contiguous.
A = np.random.default_rng(2).standard_normal((4, 5, 300))
VIEWS = {
    "transposed": A.transpose(1, 0, 2),
    "features first": A.transpose(2, 1, 0),
    "reversed": A[::-1, :, ::-1],
    "every second": A[:, ::2, ::2],
    "Fortran order": np.asfortranarray(A),
    "Fortran order, 2-d": np.asfortranarray(A[0]),
    "broadcast rows": np.broadcast_to(A[0, 0], (4, 300)),
    "broadcast features": np.broadcast_to(A[:, :1, 0], (4, 300)),
    "one field of records": np.rec.fromarrays([A, A + 1], names="a, b")["a"],
    "unaligned": np.frombuffer(b"\0" + A.tobytes(), np.uint8)[1:].view("f8").reshape(A.shape),
}


@pytest.mark.parametrize("kind", VIEWS)
@every_backend
def test_any_strides(kind, run):
    """A view gives, bit for bit, what its contiguous copy gives."""
    x = VIEWS[kind]
    D = x.shape[-1]
    gamma, beta = np.linspace(-1, 2, 2 * D)[::-2], np.broadcast_to(0.25, D)
    assert equal(run(x, gamma, beta, x[::-1]),
                 run(x.copy(), gamma.copy(), beta.copy(), np.ascontiguousarray(x[::-1])))


@every_backend
def test_read_only_and_lists(run):
    arrays = [X.copy(), GAMMA.copy(), BETA.copy(), DY.copy()]
    for a in arrays:
        a.flags.writeable = False
    expected = run(X, GAMMA, BETA, DY)
    assert equal(run(*arrays), expected)
    assert equal(run(*(a.tolist() for a in arrays)), expected)


@every_backend_and_the_gpu
def test_subclasses_come_back_as_plain_arrays(run):
    class Tagged(np.ndarray):
        pass

    arrays = taken(run, X, GAMMA, BETA, DY)
    results = run(*(a.view(Tagged) for a in arrays))
    assert equal(results, run(*arrays))
    assert {type(a) for a in results} == {np.ndarray}


@pytest.mark.parametrize("shape", [(6,), (1, 6), (4, 6), (2, 2, 6), (2, 1, 2, 1, 6)])
@every_backend_and_the_gpu
def test_any_leading_shape(shape, run):
    """Leading axes are only a way to write rows: the results are those of (rows, D), reshaped."""
    rng = np.random.default_rng(3)
    x, dy, gamma, beta = taken(run, *rng.standard_normal((2, *shape)), *rng.standard_normal((2, 6)))
    flat = run(x.reshape(-1, 6), gamma, beta, dy.reshape(-1, 6))
    results = run(x, gamma, beta, dy)
    assert equal([a.reshape(b.shape) for a, b in zip(results, flat)], flat)
    shapes = [shape, shape, (6,), (6,), shape, shape, (6,), shape, shape, shape, (6,)]
    assert [a.shape for a in results] == shapes[:len(results)]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (0, 0, 3)])
@every_backend_and_dtype
def test_no_rows(shape, dtype, run):
    empty, gamma = np.ones(shape, dtype), np.ones(3, dtype)
    for a in run(empty, gamma, gamma, empty):
        assert a.shape in (shape, (3,)) and a.dtype == dtype
        assert not a.astype(float).any()  # a sum over no rows is zero


@pytest.mark.parametrize("kind", [float, np.float64, np.float32, np.float16, np.longdouble, Fraction])
@every_backend_and_the_gpu
def test_eps_of_any_real_scalar_type(kind, run):
    arrays = taken(run, X, GAMMA, BETA, DY)
    assert equal(run(*arrays, kind(0.5)), run(*arrays, 0.5))


@pytest.mark.parametrize("zero", [0, 0.0, -0.0, np.int64(0), np.uint8(0)])
def test_eps_zero(zero):
    """Rows then lie on the sphere of radius sqrt(D); about four roundings, which squaring doubles: 8u of D."""
    _, cache = ln.layer_norm_forward(X, GAMMA, BETA, zero)
    assert np.abs((cache.xhat**2).sum(axis=-1) - 3).max() <= 3 * 8 * cases.U["float64"]


@every_backend_and_the_gpu
def test_int_eps(run):
    arrays = taken(run, X, GAMMA, BETA, DY)
    assert equal(run(*arrays, 2), run(*arrays, 2.0))


@every_backend
def test_eps_is_not_rounded_to_float32(run):
    """float32's 1e-5 is another number than 1e-5, and a float64 result shows it."""
    x = np.array([[0.0, 1e-3, 2e-3]])
    assert not equal(run(x, GAMMA, BETA, x), run(x, GAMMA, BETA, x, np.float32(1e-5)))


# Promises about results

@pytest.mark.parametrize("dtype, parameters", [(dtype, dtype) for dtype in cases.DTYPES]
                         + [(dtype, "float32") for dtype in cases.HALVES])
@every_backend
def test_dtypes_and_shapes(dtype, parameters, run):
    """y and dx are like x, dgamma and dbeta like gamma; float32 parameters go with half-precision x."""
    x, gamma, beta, dy = X.astype(dtype), GAMMA.astype(parameters), BETA.astype(parameters), DY.astype(dtype)
    # y, dx, dgamma, dbeta; y_dot; grad_x, grad_gamma, grad_dy; z, and dx and dgamma of RMS norm
    for a, kind in zip(run(x, gamma, beta, dy), "xxggxxgxxxg"):
        like = gamma if kind == "g" else x
        assert a.dtype == like.dtype and a.shape == like.shape


@pytest.mark.parametrize("backend, dtype", [*((backend, dtype) for backend in (ln, cpu) for dtype in cases.HALVES),
                                            (gpu, "float16")])
def test_float32_upstream_for_half_x(dtype, backend):
    """dy may arrive in the compute dtype; dx has x's dtype nevertheless."""
    x, gamma, dy = X.astype(dtype), GAMMA.astype("f4"), DY.astype("f4")
    cache = backend.layer_norm_forward(x, gamma, gamma)[1]
    dx, dgamma, _ = backend.layer_norm_backward(dy, cache)
    exact = reference.layer_norm(x, gamma, gamma, dy)
    assert dx.dtype == dtype and dgamma.dtype == np.float32
    assert reference.relative_error(dgamma, exact.dgamma) <= 2e-7  # dy was not rounded to x's dtype


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_inputs_are_not_modified(dtype):
    rng = np.random.default_rng(4)
    arrays = [a.astype(dtype) for a in (rng.standard_normal((5, 4)), *rng.standard_normal((2, 4)),
                                        rng.standard_normal((5, 4)))]
    before = [a.tobytes() for a in arrays]
    _, cache = ln.layer_norm_forward(*arrays[:3])
    cache_before = [a.tobytes() for a in cache[:3]]
    run_all(*arrays)
    run_cpu(*arrays)
    ln.layer_norm_backward(arrays[3], cache)
    ln.layer_norm_double_backward(arrays[3], arrays[0], cache)
    ln.layer_norm_jvp(arrays[3], cache)
    assert [a.tobytes() for a in arrays] == before
    assert [a.tobytes() for a in cache[:3]] == cache_before


@pytest.mark.parametrize("D", [1, 4])
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_nothing_shares_memory_with_an_argument(dtype, D):
    """Nor does one result with another: a training loop writes into all of them."""
    x, gamma, beta, dy = (np.full(shape, 2.0).astype(dtype) for shape in ((1, D), (D,), (D,), (1, D)))
    caches = [ln.layer_norm_forward(x, gamma, beta)[1], ln.rms_norm_forward(x, gamma)[1]]
    fields = [field for cache in caches for field in cache[:3]]
    results = run_all(x, gamma, beta, dy) + [*ln.layer_norm_backward(dy, caches[0])]
    owned = [x, gamma, beta, dy, *fields, *results]
    for i, a in enumerate(owned):
        assert not any(np.shares_memory(a, b) for b in owned[:i])


def test_the_cache_survives_changes_of_the_arguments():
    x, gamma, beta = X.copy(), GAMMA.copy(), BETA.copy()
    for forward, backward in ((lambda: ln.layer_norm_forward(x, gamma, beta)[1], ln.layer_norm_backward),
                              (lambda: ln.rms_norm_forward(x, gamma)[1], ln.rms_norm_backward)):
        cache = forward()
        expected = backward(DY, cache)
        x *= 3
        gamma[:] = 7
        beta[:] = np.nan
        assert equal(backward(DY, cache), expected)
        x[:], gamma[:], beta[:] = X, GAMMA, BETA


def test_size_of_the_cache():
    """rows * D of xhat, rows of rstd, D of gamma: 4 * 8 * 16 + 4 * 8 + 16 = 560 numbers."""
    x, gamma = np.ones((4, 8, 16)), np.ones(16)
    _, cache = ln.layer_norm_forward(x, gamma, gamma)
    assert sum(np.size(field) for field in cache if isinstance(field, np.ndarray)) == 560
    # ... and no larger array is kept alive behind one of them.
    for field in cache[:3]:
        assert (field if field.base is None else field.base).size <= field.size
    assert cache.dtype == x.dtype and cache.backend == "numpy" and len(cache) == 4
    assert cache.xhat.shape == (4, 8, 16) and cache.rstd.shape == (4, 8, 1) and cache.gamma.shape == (16,)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@every_backend_and_dtype
def test_nan_and_inf_stay_in_their_row(dtype, bad, run):
    """The other rows are what they are without it, bit for bit, and not a warning is given.

    Nor do sums over rows change, but that the CPU backend, which leaves the row to NumPy, adds it last: two
    orders of three additions differ by at most 2 * 2 u of the sum of the terms' sizes.
    """
    rng = np.random.default_rng(5)
    x, dy = (rng.standard_normal((3, 4)).astype(dtype) for _ in range(2))
    gamma, beta = (rng.standard_normal(4).astype(dtype) for _ in range(2))
    clean = run(x, gamma, beta, dy)
    broken = x.copy()
    broken[1, 2] = bad
    for a, b in zip(run(broken, gamma, beta, dy), clean, strict=True):
        if a.ndim == 2:
            assert equal([a[[0, 2]]], [b[[0, 2]]])
    y, dx, dgamma, dbeta = run(broken, gamma, beta, dy)[:4]
    assert np.isnan(y[1]).all() and np.isnan(dx[1]).all() and np.isnan(dgamma).all()  # never silently a number

    def same_sums(found, expected, terms):
        allowed = 4 * cases.U[dtype] * np.abs(terms.astype(float)).sum(axis=0) if run is run_cpu else 0.0
        return (np.abs(found.astype(float) - expected.astype(float)) <= allowed).all()

    assert same_sums(dbeta, clean[3], dy)  # dbeta does not see x
    broken = dy.copy()
    broken[1, 2] = bad
    y, dx, dgamma, dbeta = run(x, gamma, beta, broken)[:4]
    assert equal([y, dx[[0, 2]]], [clean[0], clean[1][[0, 2]]])
    # The GPU backend subtracts no mean before it multiplies by xhat: Inf - Inf in most places, Inf in some.
    assert (~np.isfinite(dx[1]) if run is run_gpu else np.isnan(dx[1])).all()
    assert not np.isfinite(dgamma[2]) and not np.isfinite(dbeta[2])
    others = [0, 1, 3]
    terms = dy[:, others] * 2  # |xhat| < sqrt(D)
    assert same_sums(dgamma[others], clean[2][others], terms) and same_sums(dbeta[others], clean[3][others], terms)


@pytest.mark.parametrize("D", [1, 2, 3, 7, 10, 129, 1000])
@every_backend_and_dtype
def test_constant_rows_give_beta(dtype, D, run):
    """Exactly, for values whose sum and mean are rounded: recentring removes what rounding the mean leaves."""
    x = np.array([0.1, -3.3, 1e3 / 3, 0.0, 12345.678]).astype(dtype)[:, None] * np.ones(D, dtype)
    beta = np.linspace(-1, 2, D).astype(dtype)
    dy = np.random.default_rng(6).standard_normal(x.shape).astype(dtype)
    y, _, dgamma, _ = run(x, np.full(D, 3, dtype), beta, dy)[:4]
    assert np.array_equal(y, np.broadcast_to(beta, x.shape))
    assert not dgamma.any()  # xhat is 0


@pytest.mark.parametrize("D", [1, 2, 3, 7, 10, 129, 1000])
@every_backend_and_dtype
def test_constant_upstream_gives_no_dx(dtype, D, run):
    """g = gamma * dy with one value a row is along 1, which the Jacobian kills: dx is exactly 0."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((5, D)).astype(dtype)
    dy = np.array([0.1, -3.3, 1e3 / 3, 1.0, 0.7]).astype(dtype)[:, None] * np.ones(D, dtype)
    gamma = np.full(D, 1.7).astype(dtype)
    _, dx, _, _, *y_dot = run(x, gamma, gamma, dy)[:5]
    assert not dx.any() and not np.any(y_dot)  # moving a row along 1 moves nothing


@pytest.mark.parametrize("eps", [1e-5, 1e-30])
@every_backend_and_dtype
def test_one_feature(dtype, eps, run):
    x = np.array([[0.1], [-3.0], [1e3]]).astype(dtype)
    gamma, beta, dy = np.array([2.0]).astype(dtype), np.array([0.3]).astype(dtype), (x + 1).astype(dtype)
    y, dx, dgamma, dbeta, *more = run(x, gamma, beta, dy, eps)[:8]
    assert (y == beta).all() and (dx == 0).all() and (dgamma == 0).all()
    # One rounding of the sum of three terms, or of its storage: 2u, of the sum of the terms' sizes.
    total = dy.astype(float).sum()
    assert abs(dbeta.astype(float)[0] - total) <= 2 * cases.U[dtype] * np.abs(dy.astype(float)).sum()
    assert not any(a.any() for a in more)


# The extremes of each dtype: squares underflow, or are subnormal. tests/backends/test_range.py has the other end.
TINY = {"float64": (1e-200, 5e-324), "float32": (1e-30, 1e-45), "float16": (1e-7, 6e-8), "bfloat16": (1e-30, 1e-40)}


@pytest.mark.parametrize("setting", ["warn", "raise"])
@every_backend_and_dtype
def test_no_warnings(dtype, setting, run):
    """Not on any legal input, whatever np.seterr says: results that are zero, NaN or Inf are results."""
    nonzero = np.ones((2, 3), dtype)
    inputs = [np.zeros((2, 3), dtype), nonzero, *(nonzero * np.array(t, dtype) for t in TINY[dtype]),
              np.arange(6).reshape(2, 3).astype(dtype) * np.array(TINY[dtype][0], dtype),
              np.array([[np.nan, 1, 2], [np.inf, -np.inf, 0]], dtype),
              np.array([[np.finfo(np.float16).max, 1, 2], [-6e4, 6e4, 0]]).astype(dtype)]
    with warnings.catch_warnings(), np.errstate(all=setting):
        warnings.simplefilter("error")
        for x in inputs:
            for dy in inputs:
                for eps in (1e-5, 0):  # a constant row with eps = 0 is 0/0: NaN, silently
                    run(x, nonzero[0], inputs[3][0], dy, eps)


@every_backend_and_the_gpu
def test_constant_row_with_eps_zero_is_nan_in_that_row_only(run):
    x = np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 3.0]])
    y, dx = run(*taken(run, x, GAMMA, BETA, DY), 0)[:2]
    assert np.isnan(y[0]).all() and np.isnan(dx[0]).all()
    assert np.isfinite(y[1]).all() and np.isfinite(dx[1]).all()
