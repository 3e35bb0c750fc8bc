"""lnlib.cpu beyond the table of backends: memory, threads, the cache, and rows left to NumPy."""

import functools
import itertools
import math
from unittest import mock

import cases
import numpy as np
import pytest
from cases import WIDTHS, arrays, bits, read_only, threads

from lnlib import cpu, layernorm, reference
from lnlib.cpu import backend, kernels

LINE = 64

run = functools.partial(cases.run, cpu)


# Memory


def at(array, items):
    """A copy that begins ``items`` items behind the beginning of a cache line."""
    buffer = np.empty(array.nbytes + 2 * LINE, np.uint8)
    start = -buffer.ctypes.data % LINE + items * array.itemsize
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Guarded:
    """Arrays inside larger buffers of one pattern; ``intact()``: is it there still, around them?"""

    def __init__(self, *shapes, dtype, items=0):
        self.buffers, self.arrays = [], []
        for shape in shapes:
            size = math.prod(shape) * np.dtype(dtype).itemsize
            buffer = np.full(size + 20 * LINE, 0xA5, np.uint8)
            start = -buffer.ctypes.data % LINE + 9 * LINE + items * np.dtype(dtype).itemsize
            self.arrays.append(buffer[start : start + size].view(dtype).reshape(shape))
            self.buffers.append((buffer, start, start + size))

    def intact(self):
        return all(
            (buffer[:start] == 0xA5).all() and (buffer[stop:] == 0xA5).all()
            for buffer, start, stop in self.buffers
        )


#: A norm, and whether there are a residual and dh.
KINDS = pytest.mark.parametrize(
    "kind",
    [
        {"norm": norm, **others}
        for norm in ("layer_norm", "rms_norm")
        for others in ({}, {"residual": True, "dh": True})
    ],
    ids=lambda kind: ", ".join(map(str, kind.values())),
)


def others_of(kind, x):
    """Of ``cases.run``: a norm, a residual and dh."""
    made = np.random.default_rng(9).standard_normal((2, *x.shape)).astype(x.dtype)
    return kind | {name: a for name, a in zip(("residual", "dh"), made) if name in kind}


@pytest.mark.slow
@KINDS
@pytest.mark.parametrize("items", [0, 1, 15])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_written_or_streamed_outside_the_results(dtype, items, kind):
    """Of h, y, dx, statistics, dgamma and dbeta; by one thread and by three; near, and once far."""
    far = 7300, 300
    assert 2 * 4 * math.prod(far) >= kernels.OUT_OF_CACHE_BYTES
    for rows, D in (*itertools.product((1, 3, 20), WIDTHS), far):
        x, gamma, beta, dy = arrays((rows, D), dtype)
        others = others_of(kind, x)
        r, dh, rms = others.get("residual"), others.get("dh"), kind["norm"] == "rms_norm"
        guarded = Guarded(
            *((rows, D), (3 * rows + D,), (rows, D), (D,), (D,), (rows, D)),
            dtype=dtype,
            items=items,
        )
        y, saved, dx, dgamma, dbeta, h = guarded.arrays
        with threads(1):
            expected = bits(run(x, gamma, beta, dy, **others))
        h = x if r is None else h
        beta, dbeta = (None, None) if rms else (beta, dbeta)
        found = [a for a in (y, dx, dgamma, dbeta) if a is not None]
        forward, backward = (x, r, gamma, beta, 1e-5, h, y, saved), (dy, h, saved, dh, dx)
        assert kernels.forward_serial(*forward) == 0
        assert kernels.backward_serial(*backward, dgamma, dbeta) == (0, 0)
        assert guarded.intact() and bits(found) == expected
        assert r is None or np.array_equal(h, x + r)
        y[...] = dx[...] = np.nan
        assert kernels.forward_threads(*forward, 3) == 0
        assert kernels.backward_threads(*backward, dgamma, dbeta, 3) == (0, 0)
        assert guarded.intact() and bits([y, dx]) == expected[:2]


@KINDS
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_out(dtype, precise, kind):
    """It is returned, all of it is written, nothing beside it; the bits are those without it."""
    if precise and dtype == "float64":
        pytest.skip("float64 is precise")
    for shape in ((7,), (5, 300), (2, 3, 2500), (0, 4)):
        a = arrays(shape, dtype)
        options = others_of(kind, a[0]) | {"precise": precise}
        guarded = Guarded(shape, shape, dtype=dtype, items=3)
        results = run(*a, **options, out=guarded.arrays)
        assert results[0] is guarded.arrays[0] and results[1] is guarded.arrays[1]
        assert guarded.intact() and bits(results) == bits(run(*a, **options))


#: An ``out`` that uses memory of an argument. The square makes a transposed view and its base one
#: shape.
OVERLAPS = {
    "x": lambda a: (a, a["x"]),
    "x, shifted by a row": lambda a: ({**a, "x": a["long"][1:]}, a["long"][:-1]),
    "x, by its last element": lambda a: (
        {**a, "x": a["flat"][255:511].reshape(16, 16)},
        a["flat"][:256].reshape(16, 16),
    ),
    "x, transposed": lambda a: ({**a, "x": a["x"].T}, a["x"]),
    "x, read-only": lambda a: ({**a, "x": read_only(a["x"])}, a["x"]),
    "gamma": lambda a: ({**a, "gamma": a["long"][3]}, a["long"][:16]),
    "beta": lambda a: ({**a, "beta": a["long"][15]}, a["long"][:16]),
    "dy": lambda a: (a, a["dy"]),
    "dy, transposed": lambda a: ({**a, "dy": a["dy"].T}, a["dy"]),
    "residual": lambda a: ({**a, "residual": a["dy"]}, a["dy"]),
    "residual, transposed": lambda a: ({**a, "residual": a["dy"].T}, a["dy"]),
    "dh, in backward": lambda a: ({**a, "dh": a["dy"], "dy": a["x"] + a["dy"]}, a["dy"]),
    "x, in backward": lambda a: (a, a["x"]),
    "the cache, in backward": lambda a: (a, None),
}


@pytest.mark.parametrize("kind", OVERLAPS)
@pytest.mark.parametrize(
    "dtype, n",
    [
        pytest.param(dtype, n, marks=cases.marks_of_threads(n, dtype))
        for dtype in cases.DTYPES
        for n in (1, 2)
    ],
)
def test_out_over_an_argument_is_refused(dtype, kind, n):
    """And nothing is written."""
    a = dict(
        zip(("x", "gamma", "beta", "dy"), arrays((16, 16), dtype)),
        long=arrays((17, 16), dtype)[0],
        flat=arrays((512,), dtype)[0],
    )
    a, out = OVERLAPS[kind](a)
    with threads(n):
        cache = cpu.layer_norm_forward(a["x"], a["gamma"], a["beta"])[1]
        if out is None:
            # x of one row: statistics and gamma are more than that
            x, a["dy"] = a["x"][:1], a["dy"][:1]
            cache = cpu.layer_norm_forward(x, a["gamma"], a["beta"])[1]
            out = cache.saved.view(dtype)[:16].reshape(1, 16)
        before = out.tobytes()
        with pytest.raises(
            ValueError, match="^out: found memory that an input uses too, expected an array"
        ):
            if "dy" in kind or "backward" in kind:
                cpu.layer_norm_backward(a["dy"], cache, a.get("dh"), out=out)
            else:
                of = {"residual": a.get("residual"), "out": out}
                cpu.layer_norm_forward(a["x"], a["gamma"], a["beta"], **of)
    assert out.tobytes() == before


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_out_may_lie_between_or_beside_the_arguments(dtype):
    """Between two rows of x that are not neighbours, or where x ends, no memory is shared."""
    long = arrays((20, 16), dtype)[0]
    gamma, beta = arrays((16,), dtype)[1:3]
    for x, out in ((long[::3][:2], long[1:3]), (long[:5], long[5:10]), (long[5:10], long[:5])):
        expected = cpu.layer_norm_forward(x.copy(), gamma, beta)[0]
        assert np.array_equal(cpu.layer_norm_forward(x, gamma, beta, out=out)[0], expected)


@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_results_do_not_depend_on_where_arrays_lie(dtype, rows):
    """Bit for bit, for every place of every array in its cache line, and run after run."""
    line = LINE // np.dtype(dtype).itemsize
    for D in (64, 255, 256, 300, 1000, 2048, 2500):
        a = arrays((rows, D), dtype)
        expected = bits(run(*a))
        for k in range(line):
            moved = [at(array, k * step % line) for array, step in zip(a, (1, 3, 5, 7))]
            out = [at(a[0], k * step % line) for step in (11, 13)]
            assert bits(run(*moved, out=out)) == expected, (D, k)


# The cache


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_what_the_cache_shares(dtype):
    """x is the caller's where its docstring says so, else a copy; no result is another's."""
    for D in (1, 5, 300):
        x, gamma, beta, dy = arrays((2, 2, D), dtype)
        y, cache = cpu.layer_norm_forward(x, gamma, beta)
        assert cache.x is x and cache.dtype == gamma.dtype
        assert np.array_equal(cache.gamma, gamma.astype(cache.saved.dtype))
        wide = x.astype(np.float64)
        mean, variance = wide.mean(axis=-1).ravel(), wide.var(axis=-1).ravel()
        assert np.allclose(cache.statistics[0] + cache.statistics[1], mean, rtol=1e-5, atol=1e-5)
        assert np.allclose(cache.statistics[2], 1 / np.sqrt(variance + 1e-5), rtol=1e-5, atol=0)
        assert cases.share_nothing(
            [x, gamma, beta, dy, y, cache.saved, *cpu.layer_norm_backward(dy, cache)]
        )

    x, gamma, beta, r = arrays((4, 6), dtype)
    _, h, cache = cpu.rms_norm_forward(x, gamma, residual=r)
    squares = ((x + r).astype(np.float64) ** 2).mean(axis=-1)
    assert cache.x is h and cases.share_nothing([x, r, gamma, h, cache.saved])
    rms = [0 * squares, squares / (squares + 1e-5), 1 / np.sqrt(squares + 1e-5)]
    assert np.allclose(cache.statistics, rms, rtol=1e-5, atol=0)
    for kind in (x[:, ::-1], x[::2], np.asfortranarray(x), read_only(x)):
        cache = cpu.layer_norm_forward(kind, gamma, beta)[1]
        assert not np.shares_memory(cache.x, x) and np.array_equal(cache.x, kind)
        assert cache.x.flags.carray


CHANGES = {
    "rows in another order": lambda x: x[::-1],
    "a NaN": lambda x: np.concatenate([x.ravel()[:-1], [np.nan]]).reshape(x.shape),
    "an Inf": lambda x: np.concatenate([x.ravel()[:-1], [np.inf]]).reshape(x.shape),
    "the last element": (
        lambda x: np.concatenate([x.ravel()[:-1], [x[-1, -1] + 1]]).reshape(x.shape)
    ),
}


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "dtype, precise, n",
    [
        *(
            pytest.param(dtype, False, n, marks=cases.marks_of_threads(n, dtype))
            for dtype in cases.DTYPES
            for n in (1, 3)
        ),
        pytest.param("float32", True, 1, marks=pytest.mark.slow),
    ],
)
def test_a_changed_x_is_refused(dtype, precise, n, change, norm):
    """By a thread of several too. The smallest of these changes moves one mean by 1/2500, or one
    mean square by more: of float32 this is 26 times the limit, 256 u.
    """
    for shape in ((4, 3), (20, 300), (20, 2500)):
        with threads(n):
            x, gamma, beta, dy = arrays(shape, dtype, offset=0.5)
            forward, backward = (getattr(cpu, f"{norm}_{way}") for way in ("forward", "backward"))
            parameters = cases.parameters_of(norm, gamma, beta, 1)
            _, cache = forward(x, *parameters, precise=precise)
            x[...] = CHANGES[change](x.astype(np.float64))
            with pytest.raises(
                ValueError, match="^cache: found x changed since forward .* expected the same"
            ):
                backward(dy, cache)


def test_the_sums_stay_precise_where_a_row_is_left_to_numpy():
    x, gamma, beta, dy = arrays((20, 300), offset=1e4)
    dy[3, 5] = np.inf
    mine, numpy_s = (
        cases.run(backend, x, gamma, beta, dy, precise=True)[2:] for backend in (cpu, layernorm)
    )
    assert bits(mine) == bits(numpy_s) and np.isfinite(mine[0][6:]).all()
    assert bits(mine) != bits(cases.run(layernorm, x, gamma, beta, dy)[2:])


REGIMES = {
    "normal": lambda z: z,
    "constant": lambda z: z[:, :1] + 0 * z,
    "outlier": lambda z: np.where(np.arange(z.shape[1]) == z.shape[1] // 2, 1e4, z),
    "first elements far from the rest": lambda z: np.where(np.arange(z.shape[1]) < 16, z + 1e4, z),
    "steps": lambda z: np.where(np.arange(z.shape[1]) < z.shape[1] // 3, 1 / 3, -0.7) + 0 * z,
    "growing": lambda z: np.broadcast_to(np.exp(np.linspace(0, 20, z.shape[1])), z.shape),
    "small": lambda z: 1e-9 * z,
    "large": lambda z: 1e12 * z,
    "squares overflow float32": lambda z: 1e30 * z,
    "squares overflow float64": lambda z: 1e200 * z,
    "sums overflow": lambda z: np.sign(z[:, :1]) * (1.7e308 + 0 * z),
    "with NaN": lambda z: np.where(z == z[0, 0], np.nan, z),
    "with Inf": lambda z: np.where(z == z[0, 0], np.inf, z),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype, precise, offsets",
    [
        ("float32", False, (0, 1e3, 1e7)),
        ("float32", True, (0, 1e7)),
        ("float64", False, (0, 1e7, 1e14)),
        *((dtype, False, (0, 10)) for dtype in cases.HALVES),
    ],
)
def test_an_unchanged_x_is_never_refused(dtype, precise, offsets):
    for D in (1, 2, 7, 64, 300, 2500, 65536):
        z = np.random.default_rng(D).standard_normal((4, D))
        one = np.ones(D, dtype)
        for regime in REGIMES.values():
            for offset in offsets:
                with np.errstate(over="ignore"):
                    x = (regime(z) + offset).astype(dtype)
                for norm in ("layer_norm", "rms_norm"):
                    run(x, one, one, x, precise=precise, norm=norm)


@pytest.mark.parametrize(
    "number, shape, turns", [(2, (33_333, 3), 0), (2, (50_000, 2), 2), (1, (50_000, 2), 0)]
)
def test_threads_are_used_from_a_hundred_thousand_numbers(number, shape, turns, monkeypatch):
    with threads(2):
        run(*arrays((50_000, 2)))
    monkeypatch.setattr(backend, "number_of_threads", lambda: number)
    lock = mock.MagicMock()
    monkeypatch.setattr(backend, "ONE_CALL", lock)
    run(*arrays(shape))
    assert lock.__enter__.call_count == turns


@KINDS
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("D", [3, 300, 2500])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30, "constant"])
def test_rows_left_to_numpy_touch_no_other(bad, D, n, kind):
    """NaN, Inf, squares that overflow, and 0 / 0: three rows of 40, in the first block and in the
    last. A NaN of dh does not leave its row to NumPy.
    """
    x, gamma, beta, dy = arrays((40, D))
    options = others_of(kind, x)
    rows, eps = [0, 17, 39], 0.0 if bad == "constant" else 1e-5
    others = np.setdiff1d(np.arange(40), rows)
    if "residual" in kind:
        options["residual"][rows], options["dh"][5, 0] = 0, np.nan
    broken = x.copy()
    if bad == "constant":
        broken[rows] = kind["norm"] == "layer_norm"
    elif bad == 1e30:
        broken[rows] *= np.float32(bad)
    else:
        broken[rows, D // 2] = bad
    with threads(n):
        clean, found = (run(a, gamma, beta, dy, eps, **options) for a in (x, broken))
    expected = cases.run(layernorm, broken, gamma, beta, dy, eps, **options)
    for a, b, c in zip(found[:2], clean[:2], expected[:2]):
        assert bits([a[others]]) == bits([b[others]])
        assert np.array_equal(a[rows], c[rows], equal_nan=True)
    # dgamma and dbeta: those of the other rows, and these rows once. Terms are added 16 at a time,
    # then in float64: each of 15 additions, of the term's two roundings and of the last one leaves
    # at most u of the sum of the terms' sizes. Twice that, for two.
    bound = 36 * cases.U["float32"] * np.abs(dy).sum(axis=0)
    for mine, numpy_s in zip(found[3:], expected[3:]):
        assert (np.abs(mine - numpy_s) <= bound).all()
    if bad == 1e30:
        bound *= math.sqrt(D)  # |xhat| < sqrt(D)
        assert (np.abs(found[2] - expected[2]) <= bound).all()
    else:
        assert np.isnan(found[2]).any()
        assert np.array_equal(np.isnan(found[2]), np.isnan(expected[2]))


def test_sums_over_rows_of_a_constant():
    """A block of 16 equal float32 is added one after another, and every block and column is rounded
    the same way.

    Rounded to nearest the 16 partial sums c, 2 c, ... 16 c of c in [1, 2) lose half an ulp at most:
    2 c and 4 c nothing, or what 3 c did; 3 c half an ulp of 2 or 4, the others to 15 c half an ulp
    of up to 16. The worst of all c is 4.5 u of the sum, and the float64 total is rounded once more,
    by u. (The bar is 3.4 u: roundings that average.)
    """
    for c in np.random.default_rng(0).uniform(1, 2, 40).astype("f4"):
        for rows in (16, 48, 160):
            x, gamma, beta, _ = arrays((rows, 8))
            dbeta = run(x, gamma, beta, np.full_like(x, c))[3]
            assert (
                np.abs(dbeta.astype(float) / (rows * float(c)) - 1).max()
                <= 5.5 * cases.U["float32"]
            )


def test_precise_is_rounded_once():
    """Half an ulp of each element; float64 inside leaves 1e-16 * 1e7 (the offset), 2 % of 6e-8."""
    x, gamma, beta, dy = arrays((2, 2500), offset=1e7)
    exact = reference.layer_norm(x, gamma, beta, dy)
    for a, b in zip(
        run(x, gamma, beta, dy, precise=True), (exact.y, exact.dx, exact.dgamma, exact.dbeta)
    ):
        ulp = np.spacing(np.abs(reference.to_float64(b)).astype(a.dtype)).astype(float)
        assert np.abs(reference.to_float64(reference.to_fixed(a) - b) / ulp).max() <= 0.52


@pytest.mark.slow
@KINDS
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("shape", [(36000, 64), (7500, 300), (1100, 2100)])
def test_what_is_streamed_has_the_same_bits(shape, precise, kind):
    """Parts of a batch that are near have the same y and dx as the whole, which is far. Their
    dgamma and dbeta are added in float64: all results are rounded once.
    """
    x, gamma, beta, dy = arrays(shape)
    options = others_of(kind, x)
    step = shape[0] // 3 // kernels.ROW_BLOCK * kernels.ROW_BLOCK
    assert 4 * x[:step].nbytes < kernels.OUT_OF_CACHE_BYTES <= 2 * x.nbytes

    def results_of(rows):
        mine = {name: a if name == "norm" else a[rows] for name, a in options.items()}
        return run(x[rows], gamma, beta, dy[rows], precise=precise, **mine)

    with threads(1):
        results = results_of(slice(None))
        parts = [results_of(slice(i, i + step)) for i in range(0, shape[0], step)]
    for k in (0, 1):
        assert np.array_equal(results[k], np.concatenate([part[k] for part in parts]))
    for k in range(2, len(results)):
        of_all, *of_parts = (r[k].astype(float) for r in (results, *parts))
        sizes = abs(of_all) + sum(map(abs, of_parts))
        assert np.all(abs(of_all - sum(of_parts)) <= cases.U["float32"] * sizes)


@pytest.mark.parametrize("dtype", cases.HALVES)
def test_results_beyond_half_precision_are_infinite(dtype):
    """Rounding them is no error, whatever np.seterr says."""
    largest = float(np.finfo(np.float16).max if dtype == "float16" else 3e38)
    x, big = np.array([[0, 1e-3, -1e-3]]).astype(dtype), np.full(3, largest).astype(dtype)
    with np.errstate(all="raise"):
        y, dx, _, _ = run(x, big, big, np.array([[1, -1, 1]]).astype(dtype), 0.0)
        assert np.isinf(y.astype(float)).any() and not np.isfinite(dx.astype(float)).all()


def test_an_outlier_that_comes_first_is_in_no_other_element():
    """The guess at the mean of g is that outlier; times the mean of c, u / 3 of sigma, it would be
    in all of dx.

    Eight roundings of each number, independent of one another: 2.8 u of r g in each row, and 4 u
    with a reserve.
    """
    rng = np.random.default_rng(1)
    x = (0.4 + rng.standard_normal((20, 2000))).astype("float32")
    dy = rng.standard_normal((20, 2000)).astype("float32")
    gamma, dy[:, 0] = np.ones(2000, "float32"), 1e8
    dx = cases.run(cpu, x, gamma, gamma, dy)[1]
    exact = reference.layer_norm(x, gamma, gamma, dy)
    wrong = np.linalg.norm(dx - reference.to_float64(exact.dx), axis=1)
    sizes = np.linalg.norm(reference.to_float64(exact.rstd) * dy.astype("float64"), axis=1)
    assert (wrong / sizes).max() < 4 * cases.U["float32"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("D", [250, 3000])
def test_outliers_of_one_kind_are_no_guess_at_the_mean_of_g(D, dtype):
    """Three features of every row, the first, middle and last, are alike and 9 standard deviations
    away (30 in long rows).

    dy has a part along xhat, and so the three numbers of g agree. Subtracted from all others, they
    would make each sum so many times as large, and dx as many times as wrong. Bounds are those of
    every row: 12 kappa u. The second sums do not add to dbeta again, which is 8 rows: 7 u and a
    last rounding.
    """
    rng = np.random.default_rng(3)
    x = rng.standard_normal((8, D))
    x[:, [0, D // 2, -1]] = 1e4
    xhat = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    x, dy, one = (
        x.astype(dtype),
        (xhat + 0.5 * rng.standard_normal(x.shape)).astype(dtype),
        np.ones(D, dtype),
    )
    exact = reference.layer_norm(x, one, one, dy)
    _, dx, _, dbeta = cases.run(cpu, x, one, one, dy)
    wrong = np.linalg.norm(dx - reference.to_float64(exact.dx), axis=1)
    sizes = np.linalg.norm(reference.to_float64(exact.rstd) * dy.astype("float64"), axis=1)
    assert (wrong / sizes).max() <= 12 * cases.U[dtype]
    terms = dy.astype("longdouble")
    assert (abs(dbeta - terms.sum(axis=0)) <= 8 * cases.U[dtype] * abs(terms).sum(axis=0)).all()


def test_the_mean_of_a_row_of_steps_is_that_of_all_of_them():
    """Sums of 1000 chunks, of which each loses up to u / 2 of a sum that is 0.4 sigma D for long,
    with one sign.

    y owes what a row of any length does: its chunks have 14 additions, after that nothing is lost,
    and its own roundings are 5.
    """
    D = 1000 * (kernels.SUM_BLOCK_BYTES // 8)
    x = np.repeat([[0.4, 0.4, 0.4, -1.2]], D // 4, axis=1) * np.pi
    one, zero = np.ones(D), np.zeros(D)
    y = cpu.layer_norm_forward(x, one, zero)[0]
    wide = x.astype(np.longdouble)  # four values: exact enough where it is float64, too
    values, mean = wide[0, :: D // 4], wide[0, :: D // 4].mean()
    exact = (wide - mean) / np.sqrt(((values - mean) ** 2).mean() + np.longdouble(1e-5))
    assert np.linalg.norm((y - exact).astype(float)) <= 20 * cases.U["float64"] * np.linalg.norm(y)


def test_the_squares_of_an_outlier_swallow_no_others():
    """Two outliers come first; the squares of 128 numbers after them are 0.4 ulp of the sum so far.

    In a chunk, 8 squares are added one after another and the partial sums in 5 levels at most (of
    32 numbers: 512 bits times 4), a square and the sum of the chunks are rounded: 15 u. The root
    halves that and what / D and + eps add, its rounding and that of 1 / are 2 u more: 10.5 u. A
    plain sum would lose 0.4 ulp, 0.8 u, of each chunk of 128.
    """
    x = np.full((1, 2**17), math.sqrt(0.4 * np.spacing(2.0**21) / 128))
    x[:, ::2] *= -1
    x[:, :2] = 1024, -1024
    ones = np.ones(x.shape[1])
    rstd = cpu.layer_norm_forward(x, ones, ones, eps=0.0)[1].statistics[2, 0]
    exact = math.sqrt(len(ones) / math.fsum(x[0] ** 2))  # its mean is 0; five roundings: 3.5 u
    assert abs(rstd / exact - 1) <= (10.5 + 3.5) * cases.U["float64"]
