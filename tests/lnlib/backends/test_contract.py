"""What every backend promises: bad input is refused by name, good input of every kind works,
nothing leaks.
"""

import copy
import functools
import pickle
from fractions import Fraction

import cases
import numpy as np
import pytest

from lnlib import cpu, gpu
from lnlib import layernorm as ln
from lnlib.norms import RMS_NORM

X = np.random.default_rng(1).standard_normal((2, 3))
GAMMA, BETA, DY = np.array([1.0, -2.0, 0.5]), np.array([0.1, 0.2, 0.3]), np.cos(X)
WIDE, SINGLE, HALF = (
    {"x": X.astype(dtype), "gamma": GAMMA.astype(dtype), "beta": BETA.astype(dtype)}
    for dtype in ("f8", "f4", "f2")
)
GOOD = {ln: WIDE, cpu: WIDE, gpu: SINGLE}  # the GPU takes no float64
CACHE = ln.layer_norm_forward(**WIDE)[1]
# A forward would compile or interpret its kernels while tests are collected.
CACHES = {
    ln: CACHE,
    cpu: cases.cpu_cache(X, GAMMA, "f8"),
    gpu: gpu.GpuNormCache(
        X.astype("f4"), np.zeros((2, 4), "f4"), SINGLE["gamma"], np.dtype("f4"), False
    ),
}


def bad_calls(backend):
    """(function, good arguments, {the bad one: its value}, error, what was found, what was
    expected). test_bad_calls.py has more for every function.
    """
    good, cache = GOOD[backend], CACHES[backend]
    x, gamma = good["x"], good["gamma"]
    dtype = x.dtype.name
    for change, *told in (
        ({"x": x.astype(int)}, TypeError, "found dtype int64", "expected"),
        ({"x": np.ma.array(x)}, TypeError, "found a masked array", "expected"),
        ({"x": x.astype(x.dtype.newbyteorder())}, TypeError, "foreign byte order", "expected"),
        ({"x": [[1.0], [1.0, 2.0]]}, TypeError, "found list, which gives no array", "expected"),
        ({"x": np.ones((2, 0), dtype)}, ValueError, "found shape (2, 0)", "expected"),
        ({"gamma": gamma.astype("f2")}, TypeError, "found dtype float16", f"expected {dtype}"),
    ):
        yield (backend.layer_norm_forward, good, change, *told)
    for other in (c for of, c in CACHES.items() if of is not backend):
        told = TypeError, f"of backend {other.backend!r}", type(cache).__name__
        yield (backend.layer_norm_backward, {"dy": x, "cache": cache}, {"cache": other}, *told)
    if backend is cpu:
        single = {"residual": x.astype("f4")}, TypeError, "found dtype float32", "expected float64"
        yield (cpu.layer_norm_forward, good, *single)
        single = {"dh": x.astype("f4")}, *single[1:]
        yield (cpu.layer_norm_backward, {"dy": x, "cache": cache}, *single)
        of_rms = cache._replace(norm=RMS_NORM)
        told = TypeError, "from layer_norm_forward", "that rms_norm_forward returned"
        yield (cpu.rms_norm_backward, {"dy": x, "cache": of_rms}, {"cache": cache}, *told)
        for out, error, found, expected in OUT:
            yield (backend.layer_norm_forward, good, {"out": out}, error, found, expected)


# What ``out`` may not be, for a float64 x of shape (2, 3).
UNFIT = "found an array that is read-only, not C-contiguous or not aligned"
OUT = (
    ([[0.0] * 3] * 2, TypeError, "found list", "expected a NumPy array"),
    (np.empty((2, 3), "f4"), TypeError, "found dtype float32", "expected float64, the dtype of x"),
    (np.empty((3, 2)), ValueError, "found shape (3, 2)", "expected (2, 3), the shape of x"),
    (cases.read_only(np.empty((2, 3))), ValueError, UNFIT, "row after row"),
    (np.empty((3, 2)).T, ValueError, UNFIT, "row after row"),
    (np.empty(49, np.uint8)[1:].view("f8").reshape(2, 3), ValueError, UNFIT, "row after row"),
)


@pytest.mark.parametrize("backend", GOOD, ids=lambda backend: backend.__name__)
def test_bad_input_is_refused_by_name(backend):
    for function, good, change, error, found, expected in bad_calls(backend):
        (name,) = change
        with pytest.raises(error) as caught:
            function(**good | change)
        # Of that class, not of a subclass that NumPy happened to raise.
        assert type(caught.value) is error, (function, name)
        said = str(caught.value)
        assert said.startswith(f"{name}: ") and found in said and expected in said, said


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
    "broadcast rows": lambda a: np.broadcast_to(a[:1], a.shape),
    "broadcast features": lambda a: np.broadcast_to(a[..., :1], a.shape),
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


@pytest.mark.parametrize("shape", [(6,), (2, 2, 6), (2, 1, 2, 1, 6)])
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


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3)])
@every_backend_and_dtype
def test_no_rows(shape, dtype, run):
    empty, gamma = np.ones(shape, dtype), np.ones(3, dtype)
    for a in run(empty, gamma, gamma, empty):
        assert a.shape in (shape, (3,)) and a.dtype == dtype
        assert not a.astype(float).any()  # a sum over no rows is zero


@pytest.mark.parametrize("kind", [np.float64, np.float16, Fraction, np.uint8])
@every_backend_and_the_gpu
def test_eps_of_any_real_scalar_type(kind, run):
    arrays = taken(run, X, GAMMA, BETA, DY)
    assert equal(run(*arrays, kind(2)), run(*arrays, 2.0))


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
    x = X.astype(dtype)
    gamma = GAMMA.astype(parameters)
    beta = BETA.astype(parameters)
    dy = DY.astype(dtype)
    # y, dx, dgamma, dbeta; y_dot; grad_x, grad_gamma, grad_dy; z, and dx and dgamma of RMS norm
    for a, kind in zip(run(x, gamma, beta, dy), "xxggxxgxxxg"):
        like = gamma if kind == "g" else x
        assert a.dtype == like.dtype and a.shape == like.shape


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_inputs_are_not_modified(dtype):
    rng = np.random.default_rng(4)
    (x, dy), (gamma, beta) = (
        rng.standard_normal(shape).astype(dtype) for shape in ((2, 5, 4), (2, 4))
    )
    _, cache = ln.layer_norm_forward(x, gamma, beta)
    before = [a.tobytes() for a in cache[:3]]
    for run in (run_all, run_cpu, *[run_gpu] * (dtype != "float64")):
        run(*map(cases.read_only, (x, gamma, beta, dy)))
    for call in (ln.layer_norm_backward, ln.layer_norm_jvp):
        call(cases.read_only(dy), cache)
    ln.layer_norm_double_backward(cases.read_only(dy), cases.read_only(x), cache)
    assert [a.tobytes() for a in cache[:3]] == before


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
    assert [field.shape for field in cache[:3]] == [(4, 8, 16), (4, 8, 1), (16,)]
    assert cache.dtype == x.dtype and cache.backend == "numpy" and cache.beyond is None
    # ... and no larger array is kept alive behind one of them.
    for field in cache[:3]:
        assert (field if field.base is None else field.base).size <= field.size
    for rstd in (cache.rstd, ln.rms_norm_forward(0 * x, gamma)[1].rstd):  # nothing but eps
        assert (rstd == 1 / np.sqrt(1e-5)).all()


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
    # The GPU is an interpreter.
    for D in (1, 3, 7, 129) if run.args == (gpu,) else (*cases.WIDTHS, 65536):
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
            assert np.array_equal(y, np.broadcast_to(beta, x.shape))
            assert not dgamma.any()
            assert not dx.any()


@plain_backends_and_dtypes
def test_constant_upstream_gives_no_dx(dtype, run):
    """g = gamma * dy with one value a row is along 1, which the Jacobian kills: dx is exactly 0."""
    for dy in constant_rows(run, dtype):
        dy, rng = dy[:5], np.random.default_rng(7)
        x = rng.standard_normal(dy.shape).astype(dtype)
        gamma = np.full(dy.shape[1], 1.7).astype(dtype)
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
@every_backend_and_dtype
def test_no_warnings(dtype, run):
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
    few = inputs[::3] if run is run_gpu else inputs  # the GPU is an interpreter
    with np.errstate(all="raise"):
        for x in few:
            for dy in few:
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
    again = pickle.loads(pickled, buffers=[bytes(b.raw()) for b in buffers])
    assert len(buffers) >= 2
    dy = np.random.default_rng(2).standard_normal(x.shape).astype("f4")
    expected = cases.bits(backend.layer_norm_backward(dy, cache))
    for other in (again, pickle.loads(pickle.dumps(cache)), copy.deepcopy(cache)):
        assert cases.bits(backend.layer_norm_backward(dy, other)) == expected
