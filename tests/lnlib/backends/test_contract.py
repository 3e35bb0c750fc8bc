"""What every backend promises: bad input is refused by name, good input of every kind works,
nothing leaks.
"""

import copy
import functools
import itertools
import pickle
import warnings
from collections import namedtuple
from fractions import Fraction

import cases
import numpy as np
import pytest

from lnlib import cpu, gpu, reference, validation
from lnlib import layernorm as ln

X = np.random.default_rng(1).standard_normal((2, 3))
GAMMA, BETA, DY = np.array([1.0, -2.0, 0.5]), np.array([0.1, 0.2, 0.3]), np.cos(X)
WIDE, SINGLE, HALF = (
    {"x": X.astype(dtype), "gamma": GAMMA.astype(dtype), "beta": BETA.astype(dtype)}
    for dtype in ("f8", "f4", "f2")
)
GOOD = {ln: WIDE, cpu: WIDE, gpu: SINGLE}  # the GPU takes no float64
CACHE = ln.layer_norm_forward(**WIDE)[1]
# A forward would compile or interpret its kernels while tests are collected.
CPU_CACHE = cases.cpu_cache(X, GAMMA, "f8")
GPU_CACHE = gpu.GpuLayerNormCache(
    X.astype("f4"), np.zeros((2, 4), "f4"), SINGLE["gamma"], np.dtype("f4"), False
)
RMS_CACHE = ln.rms_norm_forward(X, GAMMA)[1]
OtherCache = namedtuple("OtherCache", "x gamma")
SameName = namedtuple("LayerNormCache", "xhat rstd gamma dtype beyond")
OtherCache.backend = SameName.backend = "somewhere else"

# Every function with good arguments; a row of the table replaces one of them.
LAYER_NORM_FORWARDS = [
    (backend.layer_norm_forward, {**good, "eps": 1e-5}) for backend, good in GOOD.items()
]
FORWARDS = *LAYER_NORM_FORWARDS, (ln.rms_norm_forward, {"x": X, "gamma": GAMMA, "eps": 1e-5})

# And the caches it takes, and somebody else's: a kind of cache, not its fields, says which forward
# it came from.
NUMPY = (
    "LayerNormCache or PreciseLayerNormCache of backend 'numpy'",
    (RMS_CACHE, CPU_CACHE, GPU_CACHE),
)
BACKWARDS = (
    (ln.layer_norm_backward, {"dy": DY, "cache": CACHE}, *NUMPY),
    (ln.layer_norm_jvp, {"v": DY, "cache": CACHE}, *NUMPY),
    (ln.layer_norm_double_backward, {"v": DY, "dy": DY, "cache": CACHE}, *NUMPY),
    (
        ln.rms_norm_backward,
        {"dy": DY, "cache": RMS_CACHE},
        "RMSNormCache of backend 'numpy'",
        (CACHE, CPU_CACHE),
    ),
    (
        cpu.layer_norm_backward,
        {"dy": DY, "cache": CPU_CACHE},
        "CpuLayerNormCache of backend 'cpu'",
        (CACHE, RMS_CACHE, GPU_CACHE),
    ),
    (
        gpu.layer_norm_backward,
        {"dy": DY.astype("f4"), "cache": GPU_CACHE},
        "GpuLayerNormCache of backend 'gpu'",
        (CACHE, RMS_CACHE, CPU_CACHE),
    ),
)
FUNCTIONS = *FORWARDS, *(row[:2] for row in BACKWARDS)

# What no array argument may be: (what was found, value made from a good array).
NOT_AN_ARRAY = (
    ("dtype int64", lambda a: np.ones(a.shape, int)),
    ("dtype int64", lambda a: np.ones(a.shape, int).tolist()),
    ("dtype bool", lambda a: np.ones(a.shape, bool)),
    ("dtype object", lambda a: a.astype(object)),
    ("dtype object", lambda a: None),
    ("dtype str", lambda a: "x"),
    ("dtype complex64", lambda a: a.astype("c8")),
    ("dtype void", lambda a: np.zeros(a.shape, [("re", "f8")])),
    ("a masked array", np.ma.array),
    ("in foreign byte order", lambda a: a.astype(a.dtype.newbyteorder())),
    ("a ragged list", lambda a: [[1.0], [1.0, 2.0]]),
)

# What is no eps.
EPS = (
    (-1e-5, ValueError, "found -1e-05"),
    (10**400, ValueError, "found inf"),
    (np.True_, TypeError, "found bool"),
    (np.array(1e-5), TypeError, "found ndarray of shape ()"),
    (1e-5 + 0j, TypeError, "found complex"),
)

# What ``out`` may not be, for a float64 x of shape (2, 3).
OUT = (
    ([[0.0] * 3] * 2, TypeError, "found list", "expected a NumPy array"),
    (np.empty((2, 3), "f4"), TypeError, "found dtype float32", "expected float64, the dtype of x"),
    (
        np.empty((2, 3), "c16"),
        TypeError,
        "found dtype complex128",
        "expected float64, the dtype of x",
    ),
    (
        np.empty((2, 3), np.dtype("f8").newbyteorder()),
        TypeError,
        "found dtype float64 in foreign byte order",
        "expected one of float64",
    ),
    (
        np.ma.masked_array(np.empty((2, 3))),
        TypeError,
        "found a masked array",
        "expected an ordinary array",
    ),
    (np.empty((3, 2)), ValueError, "found shape (3, 2)", "expected (2, 3), the shape of x"),
    (np.empty((1, 2, 3)), ValueError, "found shape (1, 2, 3)", "expected (2, 3), the shape of x"),
    *(
        (
            out,
            ValueError,
            "found an array that is read-only, not C-contiguous or not aligned",
            "row after row",
        )
        for out in (
            cases.read_only(np.empty((2, 3))),
            np.empty((3, 2)).T,
            np.empty((4, 3))[::2],
            np.empty((2, 3))[:, ::-1],
            np.empty(49, np.uint8)[1:].view("f8").reshape(2, 3),
        )
    ),
)


def bad_rows():
    """(function, good arguments, the bad one's name, its value, error, what was found, what was
    expected).
    """
    for function, good in FUNCTIONS:
        for name in set(good) & {"x", "gamma", "beta", "dy", "v"}:
            for found, make in NOT_AN_ARRAY:
                yield (
                    function,
                    good,
                    name,
                    make(good[name]),
                    ValueError if "ragged" in found else TypeError,
                    found,
                    "expected",
                )

    for function, good in FORWARDS:
        for x, found in (
            (np.float64(1), "found a 0-d array"),
            (1.0, "found a 0-d array"),
            (np.ones((2, 0)), "found shape (2, 0)"),
            ([], "found shape (0,)"),
        ):
            yield function, good, "x", x, ValueError, found, "expected"
        none = np.ones((1, 2, 0), good["x"].dtype)
        yield (
            function,
            {**good, **dict.fromkeys(set(good) & {"gamma", "beta"}, none[0, 0])},
            "x",
            none,
            ValueError,
            "found shape (1, 2, 0)",
            "expected",
        )
        for name in set(good) & {"gamma", "beta"}:
            for shape in ((4,), (2,), (1,), (), (1, 3)):
                value = np.ones(shape, good["x"].dtype)
                yield (
                    function,
                    good,
                    name,
                    value,
                    ValueError,
                    f"found shape {shape}",
                    "expected (3,)",
                )
            for others, dtype, expected in (
                (SINGLE, "f8", "float32"),
                (SINGLE, "f2", "float32"),
                (SINGLE, "c16", "float32"),
                (WIDE, "f4", "float64"),
                (WIDE, "f2", "float64"),
                (HALF, "f8", "float16 or float32"),
            ):
                if others is WIDE and function is gpu.layer_norm_forward:
                    continue
                yield (
                    function,
                    {key: others[key] for key in good if key != "eps"},
                    name,
                    GAMMA.astype(dtype),
                    TypeError,
                    f"found dtype {np.dtype(dtype).name}",
                    f"expected {expected}",
                )
        for eps, error, found in EPS:
            yield function, good, "eps", eps, error, found, "expected"
    for function, good in LAYER_NORM_FORWARDS:  # noqa: B007
        for gamma, beta, expected in ((HALF, SINGLE, "float16"), (SINGLE, HALF, "float32")):
            yield (
                function,
                {**HALF, "gamma": gamma["gamma"]},
                "beta",
                beta["beta"],
                TypeError,
                f"found dtype {beta['beta'].dtype}",
                f"expected {expected}, the dtype of gamma",
            )
        for value in (1, "yes", None, np.ones(2, bool)):
            yield (
                function,
                HALF,
                "precise",
                value,
                TypeError,
                f"found {type(value).__name__}",
                "expected True or False",
            )
        if function is not gpu.layer_norm_forward:
            yield (
                function,
                WIDE,
                "precise",
                True,
                ValueError,
                "found True with x of dtype float64",
                "expected x of dtype float32, float16 or bfloat16",
            )

    for function, good, kinds, others in BACKWARDS:
        mine = good["cache"]
        for cache, found in (
            (tuple(mine), "found tuple"),
            ((X, mine), "found tuple"),
            (None, "found NoneType"),
            *(
                (other, f"found {type(other).__name__} of backend {other.backend!r}")
                for other in (*others, OtherCache(X, GAMMA), SameName(*CACHE))
            ),
        ):
            yield function, good, "cache", cache, TypeError, found, f"expected the {kinds}"
    mixed = {**SINGLE, "x": HALF["x"]}
    for backend in GOOD:
        cache = (
            cases.cpu_cache(mixed["x"], mixed["gamma"], "f4")
            if backend is cpu
            else backend.layer_norm_forward(**mixed)[1]
        )
        yield (
            backend.layer_norm_backward,
            {"cache": cache},
            "dy",
            DY,
            TypeError,
            "found dtype float64",
            "expected float16 or float32",
        )

    for function, good in FUNCTIONS:
        for row in (
            OUT if function.__module__.startswith(cpu.__name__) else ()
        ):  # the GPU's are in test_gpu.py
            yield function, good, "out", *row


def row_id(row):
    function, _, name, _, _, found, expected = row
    return f"{function.__module__}.{function.__name__} {name}: {found}, {expected}".removeprefix(
        "lnlib."
    )


BAD = {
    name: list(rows)
    for name, rows in itertools.groupby(
        sorted(bad_rows(), key=row_id),
        key=lambda row: f"{row[0].__module__}.{row[0].__name__}".removeprefix("lnlib."),
    )
}


def refusal(function, good, name, value, error, found, expected):
    """What is wrong with how a bad value is refused; None if nothing."""
    try:
        function(**{**good, name: value})
    except Exception as caught:
        said = str(caught)  # of that class, not of a subclass that NumPy happened to raise
        right = (
            type(caught) is error
            and said.startswith(f"{name}: ")
            and found in said
            and expected in said
        )
        return None if right else f"{type(caught).__name__}: {said}"
    return "accepted"


@pytest.mark.parametrize("function", BAD)
def test_bad_input_is_refused_by_name(function):
    assert not {row_id(row): wrong for row in BAD[function] if (wrong := refusal(*row))}


def test_the_good_arguments_of_the_table_are_good():
    for function, good in FUNCTIONS:
        function(**good)


class Device:
    """What the protocol of device arrays says of a NumPy array."""

    def __init__(self, array, writeable=True, dtype="", **changed):
        if dtype:
            self.dtype = dtype
        self.__cuda_array_interface__ = {
            "typestr": array.dtype.str,
            "shape": array.shape,
            "strides": array.strides,
            "data": (0, not writeable),
            **changed,
        }


# (require_..., bad argument, further ones): the message for an array and for its description are
# the same.
@pytest.mark.parametrize(
    "require, name, bad, rest",
    [
        (validation.require_x, None, np.ones(()), ()),
        (validation.require_x, None, np.ones((2, 0)), ()),
        (validation.require_x, None, np.ones((2, 3), int), ()),
        (validation.require_like_x, "dy", np.ones((3, 2)), ((2, 3), X.dtype)),
        (validation.require_like_x, "dy", np.ones((2, 3), "f4"), ((2, 3), X.dtype)),
        (validation.require_out, None, np.ones((3, 2)), (X,)),
        (validation.require_out, None, np.ones((2, 3), "f4"), (X,)),
        (validation.require_out, None, cases.read_only(np.ones((2, 3))), (X,)),
    ],
)
def test_what_is_required_of_a_device_array(require, name, bad, rest):
    messages = []
    for value in (
        bad,
        gpu.backend.description("a", Device(bad, bad.flags.writeable), (bad.dtype.name,)),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            require(*(() if name is None else (name,)), value, *rest)
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]


def test_descriptions():
    """Good ones pass through every function; strides are those of rows, where there is more than
    nothing.
    """
    names = tuple(validation.COMPUTE_DTYPE)
    x, gamma, out = (gpu.backend.description("a", Device(a), names) for a in (X, GAMMA, X))
    assert (x.shape, x.dtype, x.writeable) == ((2, 3), np.dtype("f8"), True)
    assert validation.require_x(x) is x and validation.require_parameters(gamma, gamma, x) == (
        gamma,
        gamma,
    )
    assert validation.require_like_x("dy", x, x.shape, x.dtype) is x
    validation.require_out(out, x)
    assert gpu.backend.description("a", Device(np.ones((2, 0, 3))[..., ::2]), names).shape == (
        2,
        0,
        2,
    )
    assert gpu.backend.description("a", Device(X.T, strides=None), names).shape == (
        3,
        2,
    )  # in C order, as it says
    # What the protocol has no name for is what the array calls it; all else is what the protocol
    # says.
    assert gpu.backend.description("a", Device(X, dtype="torch.bfloat16"), names).dtype == np.dtype(
        "f8"
    )
    if "bfloat16" in cases.HALVES:
        for called in "bfloat16", "torch.bfloat16", np.dtype("bfloat16"):
            half = Device(np.zeros(3, "V2"), dtype=called)
            assert gpu.backend.description("a", half, names).dtype == np.dtype("bfloat16")
    with pytest.raises(TypeError, match="^a: found dtype float64, expected singles$"):
        gpu.backend.description("a", Device(X, dtype=X.dtype), ("float32",), "singles")
    with pytest.raises(TypeError, match="^a: found dtype void16, expected doubles$"):
        gpu.backend.description("a", Device(np.zeros(3, "V2")), names, "doubles")
    with pytest.raises(TypeError, match="^a: found dtype float8_e4m3fn, expected doubles$"):
        gpu.backend.description(
            "a", Device(np.zeros(3, "V1"), dtype="torch.float8_e4m3fn"), names, "doubles"
        )
    for bad, error, message in (
        (X.T, ValueError, r"a: found strides \(8, 24\), expected a C-contiguous array"),
        (X.astype("f4"), TypeError, r"a: found dtype float32, expected doubles"),
        (
            X.astype(">f8"),
            TypeError,
            r"a: found dtype float64 in foreign byte order, expected doubles",
        ),
    ):
        with pytest.raises(error, match=f"^{message}$"):
            gpu.backend.description("a", Device(bad), ("float64",), "doubles")


# Good input


def run_all(x, gamma, beta, dy, eps=1e-5):
    """Every result of every function of the NumPy backend, as one flat list of arrays."""
    y, cache = ln.layer_norm_forward(x, gamma, beta, eps)
    z, rms_cache = ln.rms_norm_forward(x, gamma, eps)
    return [
        y,
        *ln.layer_norm_backward(dy, cache),
        ln.layer_norm_jvp(dy, cache),
        *ln.layer_norm_double_backward(dy, dy, cache),
        z,
        *ln.rms_norm_backward(dy, rms_cache),
    ]


run_cpu = functools.partial(cases.run, cpu)
run_gpu = functools.partial(cases.run, gpu)


def taken(run, *arrays):
    """The GPU takes no float64."""
    return [a.astype("f4") if run is run_gpu else a for a in arrays]


every_backend = pytest.mark.parametrize("run", [run_all, run_cpu])
every_backend_and_the_gpu = pytest.mark.parametrize("run", [run_all, run_cpu, run_gpu])
plain_backends_and_dtypes, every_backend_and_dtype = (
    pytest.mark.parametrize(
        "run, dtype",
        [
            (run, dtype)
            for run in runs
            for dtype in cases.DTYPES
            if run is not run_gpu or dtype != "float64"
        ],
    )
    for runs in ((functools.partial(cases.run, ln), run_cpu, run_gpu), (run_all, run_cpu, run_gpu))
)


def equal(a, b):
    return all(
        np.array_equal(p, q, equal_nan=True) and p.dtype == q.dtype
        for p, q in zip(a, b, strict=True)
    )


VIEWS = cases.VIEWS | {
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "rows reversed": lambda a: a[::-1].copy()[::-1],
    "broadcast rows": lambda a: np.broadcast_to(a[:1], a.shape),
    "broadcast features": lambda a: np.broadcast_to(a[..., :1], a.shape),
    "one field of records": lambda a: np.rec.fromarrays([a, a + 1], names="a, b")["a"],
    "a list": lambda a: (
        a.tolist() if a.dtype == "f8" else list(a)
    ),  # a list of rows keeps their dtype
}


@pytest.mark.parametrize("kind", VIEWS)
@every_backend_and_the_gpu
def test_any_strides(kind, run):
    """A view gives, bit for bit, what its contiguous copy gives. (NumPy adds 300 in blocks only if
    contiguous.)

    The GPU backend copies whatever it is given to the device first, and the interpreter takes time
    for each number.
    """
    rng = np.random.default_rng(2)
    shape = (4, 36) if run is run_gpu else (4, 5, 300)
    arrays = taken(run, *rng.standard_normal((2, shape[-1])), *rng.standard_normal((2, *shape)))
    gamma, beta, x, dy = map(VIEWS[kind], arrays)
    assert equal(
        run(x, gamma, beta, dy), run(*(np.array(a, order="C") for a in (x, gamma, beta, dy)))
    )


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
    assert [a.shape for a in results] == shapes[: len(results)]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (0, 0, 3)])
@every_backend_and_dtype
def test_no_rows(shape, dtype, run):
    empty, gamma = np.ones(shape, dtype), np.ones(3, dtype)
    for a in run(empty, gamma, gamma, empty):
        assert a.shape in (shape, (3,)) and a.dtype == dtype
        assert not a.astype(float).any()  # a sum over no rows is zero


@pytest.mark.parametrize(
    "kind", [float, np.float64, np.float32, np.float16, np.longdouble, Fraction, int, np.uint8]
)
@every_backend_and_the_gpu
def test_eps_of_any_real_scalar_type(kind, run):
    arrays = taken(run, X, GAMMA, BETA, DY)
    assert equal(run(*arrays, kind(2)), run(*arrays, 2.0))


@every_backend
def test_eps_is_not_rounded_to_float32(run):
    """float32's 1e-5 is another number than 1e-5, and a float64 result shows it."""
    x = np.array([[0.0, 1e-3, 2e-3]])
    assert not equal(run(x, GAMMA, BETA, x), run(x, GAMMA, BETA, x, np.float32(1e-5)))


# Promises about results


@pytest.mark.parametrize(
    "dtype, parameters",
    [(dtype, dtype) for dtype in cases.DTYPES] + [(dtype, "float32") for dtype in cases.HALVES],
)
@every_backend
def test_dtypes_and_shapes(dtype, parameters, run):
    """y and dx are like x, dgamma and dbeta like gamma; float32 parameters go with half-precision
    x.
    """
    x, gamma, beta, dy = (
        X.astype(dtype),
        GAMMA.astype(parameters),
        BETA.astype(parameters),
        DY.astype(dtype),
    )
    # y, dx, dgamma, dbeta; y_dot; grad_x, grad_gamma, grad_dy; z, and dx and dgamma of RMS norm
    for a, kind in zip(run(x, gamma, beta, dy), "xxggxxgxxxg"):
        like = gamma if kind == "g" else x
        assert a.dtype == like.dtype and a.shape == like.shape


@pytest.mark.parametrize("backend", [ln, cpu, gpu])
@pytest.mark.parametrize("dtype", cases.HALVES)
def test_float32_parameters_and_upstream_for_half_x(dtype, backend):
    """Neither gamma nor dy is rounded to x's dtype; dgamma and dbeta are float32, and as good."""
    rng = np.random.default_rng(1)
    gamma, beta, x, dy = (
        rng.standard_normal(shape).astype("f4") for shape in (100, 100, (5, 100), (5, 100))
    )
    results = cases.run(backend, x.astype(dtype), gamma, beta, dy)
    exact = reference.layer_norm(x.astype(dtype), gamma, beta, dy)
    assert [a.dtype for a in results] == [dtype, dtype, "float32", "float32"]
    rounded = {
        name: cases.half_ulp(getattr(exact, name), dtype) + cases.BAR["float32"]
        for name in ("y", "dx")
    }
    cases.check(results, exact, cases.float32_bars(exact, gamma, dy) | rounded)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_inputs_are_not_modified(dtype):
    rng = np.random.default_rng(4)
    (x, dy), (gamma, beta) = (
        rng.standard_normal(shape).astype(dtype) for shape in ((2, 5, 4), (2, 4))
    )
    _, cache = ln.layer_norm_forward(x, gamma, beta)
    before = [a.tobytes() for a in (x, gamma, beta, dy, *cache[:3])]
    for run in (run_all, run_cpu, *[run_gpu] * (dtype != "float64")):
        run(*map(cases.read_only, (x, gamma, beta, dy)))
    (
        ln.layer_norm_backward(dy, cache),
        ln.layer_norm_double_backward(dy, x, cache),
        ln.layer_norm_jvp(dy, cache),
    )
    assert [a.tobytes() for a in (x, gamma, beta, dy, *cache[:3])] == before


@pytest.mark.parametrize("D", [1, 4])
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_nothing_shares_memory_with_an_argument(dtype, D):
    """Nor does one result with another: a training loop writes into all of them."""
    x, gamma, beta, dy = (
        np.full(shape, 2.0).astype(dtype) for shape in ((1, D), (D,), (D,), (1, D))
    )
    caches = [ln.layer_norm_forward(x, gamma, beta)[1], ln.rms_norm_forward(x, gamma)[1]]
    fields = [field for cache in caches for field in cache[:3]]
    results = run_all(x, gamma, beta, dy) + [*ln.layer_norm_backward(dy, caches[0])]
    assert cases.share_nothing([x, gamma, beta, dy, *fields, *results])


def test_size_of_the_cache():
    """rows * D of xhat, rows of rstd, D of gamma: 4 * 8 * 16 + 4 * 8 + 16 = 560 numbers."""
    x, gamma = np.ones((4, 8, 16)), np.ones(16)
    _, cache = ln.layer_norm_forward(x, gamma, gamma)
    assert sum(np.size(field) for field in cache if isinstance(field, np.ndarray)) == 560
    # ... and no larger array is kept alive behind one of them.
    for field in cache[:3]:
        assert (field if field.base is None else field.base).size <= field.size
    assert cache.dtype == x.dtype and cache.backend == "numpy" and cache[4:] == (None,)
    assert (
        cache.xhat.shape == (4, 8, 16)
        and cache.rstd.shape == (4, 8, 1)
        and cache.gamma.shape == (16,)
    )
    for rstd in (
        cache.rstd,
        ln.rms_norm_forward(0 * x, gamma)[1].rstd,
    ):  # of rows without a variance, or a square
        assert (rstd == 1 / np.sqrt(1e-5)).all()


@pytest.mark.parametrize("dtype", [*cases.DTYPES, "complex128"])
def test_nan_stays_in_its_row_of_every_function(dtype):
    """Of the NumPy backend: the other rows of y_dot, of the double backward and of RMS norm are
    what they are.
    """
    rng = np.random.default_rng(5)
    x, dy = rng.standard_normal((2, 3, 4)).astype(dtype)
    gamma = dy[0].copy()
    broken = x.copy()
    broken[1, 2] = np.nan
    for a, b in zip(run_all(broken, gamma, gamma, dy), run_all(x, gamma, gamma, dy), strict=True):
        assert a.ndim < 2 or equal([a[[0, 2]]], [b[[0, 2]]])


#: Constant rows: values whose sum and mean are rounded, and the ends of the range.
CONSTANTS = {
    dtype: (0.1, -3.3, 1e3 / 3, 1.0, 12345.678, *more)
    for dtype, more in {
        "float16": (),
        "bfloat16": (),
        "float64": (1.7e308, 1e160, 5e-324),
        "float32": (3.4e38, 1e38, -1e20, 33333334.0, 1e-40, 1e-45),
    }.items()
}


def constant_rows(run, dtype):
    """Rows of one number each, of every width that one of the loops treats in its own way."""
    for D in (
        (1, 3, 7, 129, 600) if run.args == (gpu,) else (*cases.WIDTHS, 65536)
    ):  # the GPU is an interpreter
        yield np.array(CONSTANTS[dtype]).astype(dtype)[:, None] * np.ones(D, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("precise", [False, True])
@plain_backends_and_dtypes
def test_constant_rows_give_beta(dtype, run, precise):
    """Exactly: recentring removes what rounding the mean leaves. So xhat is 0, and dgamma, and dx
    of dy = 1.
    """
    if precise and dtype == "float64":
        pytest.skip("float64 is precise")
    for x in constant_rows(run, dtype):
        three, beta = np.full(x.shape[1], 3, dtype), np.linspace(-1, 2, x.shape[1]).astype(dtype)
        for eps in (1e-5, 1e-44):
            y, dx, dgamma, _ = run(x, three, beta, np.ones_like(x), eps, precise=precise)
            assert (
                np.array_equal(y, np.broadcast_to(beta, x.shape))
                and not dgamma.any()
                and not dx.any()
            )


@plain_backends_and_dtypes
def test_constant_upstream_gives_no_dx(dtype, run):
    """g = gamma * dy with one value a row is along 1, which the Jacobian kills: dx is exactly 0."""
    for dy in constant_rows(run, dtype):
        dy, rng = dy[:5], np.random.default_rng(7)
        x, gamma = (
            rng.standard_normal(dy.shape).astype(dtype),
            np.full(dy.shape[1], 1.7).astype(dtype),
        )
        with cases.threads(1):  # rows do not depend on who does them
            assert not run(x, gamma, gamma, dy)[1].any()
        if run.args == (ln,):  # moving a row along 1 moves nothing
            assert not ln.layer_norm_jvp(dy, ln.layer_norm_forward(x, gamma, gamma)[1]).any()


# The extremes of each dtype: squares underflow, or are subnormal.
# tests/lnlib/backends/test_range.py has the other end.
TINY = {
    "float64": (1e-200, 5e-324),
    "float32": (1e-30, 1e-45),
    "float16": (1e-7, 6e-8),
    "bfloat16": (1e-30, 1e-40),
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["warn", "raise"])
@every_backend_and_dtype
def test_no_warnings(dtype, setting, run):
    """Not on any legal input, whatever np.seterr says: results that are zero, NaN or Inf are
    results.
    """
    nonzero = np.ones((2, 3), dtype)
    inputs = [
        np.zeros((2, 3), dtype),
        nonzero,
        *(nonzero * np.array(t, dtype) for t in TINY[dtype]),
        np.arange(6).reshape(2, 3).astype(dtype) * np.array(TINY[dtype][0], dtype),
        np.array([[np.nan, 1, 2], [np.inf, -np.inf, 0]], dtype),
        np.array([[np.finfo(np.float16).max, 1, 2], [-6e4, 6e4, 0]]).astype(dtype),
    ]
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


# For the CPU the read-only arrays are compiled for.
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize(
    "backend", [pytest.param(b, marks=pytest.mark.slow if b is cpu else ()) for b in GOOD]
)
def test_caches_can_be_pickled(backend, precise):
    """And copied: backward gives the same bits, also where the arrays come back read-only, as from
    memory maps.
    """
    x, gamma, beta = (a.astype("f4") for a in (X, GAMMA, BETA))
    cache, buffers = backend.layer_norm_forward(x, gamma, beta, precise=precise)[1], []
    pickled = pickle.dumps(cache, protocol=5, buffer_callback=buffers.append)
    again = [
        pickle.loads(pickle.dumps(cache, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ]
    again += [copy.deepcopy(cache)]
    again += [pickle.loads(pickled, buffers=[bytes(b.raw()) for b in buffers])]
    dy = np.random.default_rng(2).standard_normal(x.shape).astype("f4")
    expected = cases.bits(backend.layer_norm_backward(dy, cache))
    assert len(buffers) >= 2 and all(
        cases.bits(backend.layer_norm_backward(dy, other)) == expected for other in again
    )


def test_what_is_required_is_returned_as_it_is_used():
    """Names and flags are compared and kept: a tuple that can be gone through twice, and Python's
    own True.
    """
    assert validation.require_several("names", iter("ab")) == ("a", "b")
    assert (
        validation.require_callable("f", len) is len
        and validation.require_rng(rng := np.random.default_rng()) is rng
    )
    assert validation.require_cache(CACHE, ln.LayerNormCache) is CACHE
    assert validation.require_dtype_name(np.float32, ("float32",)) == "float32"
    assert validation.require_numbers("n", [2, 3], least=2).dtype == np.float64
    assert validation.require_number("n", 2, least=2, above=1) == 2
    with pytest.raises(ValueError, match="^n: found 2.0, expected a finite number > 2$"):
        validation.require_number("n", 2, above=2)
    for n in 1, 3:
        assert (
            validation.require_count("n", n, most=3) == n
            and type(validation.require_count("n", np.int8(n))) is int
        )
    assert sorted(validation.REAL_NUMBERS) == sorted(
        ["bfloat16", *(np.dtype(code).name for code in "efdbhilBHIL")]
    )
    assert type(validation.require_several("names", ["a"])) is tuple
    assert (
        validation.require_bool("log", np.True_) is True
        and validation.require_precise(np.False_, X) is False
    )
