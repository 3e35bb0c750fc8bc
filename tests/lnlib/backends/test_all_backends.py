"""One table: every implementation of a norm's gradient on every case of ``cases.py`` it claims.

A new backend is a row of ``backends.BACKENDS``, another implementation one of ``IMPLEMENTATIONS``:
what it computes, which cases it claims, and how its error bars follow from those of
``cases.judge``.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import cases
import numpy as np
import pytest
from backends import BACKENDS, NARROW, Backend

from lnlib import cpu, layernorm, reference
from lnlib.norms import NORMS


def results(backend, judged, case, **options):
    """Those of a backend: y is judged too."""
    found = backend.run(*judged.arrays, case.eps, norm=case.norm, **judged.others, **options)
    return dict(zip(cases.NAMES, found))


def steps(judged, case):
    x, gamma, _, dy = judged.arrays
    found = layernorm.layer_norm_backward_steps(dy, x, gamma, case.eps)
    return dict(zip(cases.NAMES[1:], found, strict=True))


# Bars: how the errors allowed to an implementation follow from those of the best possible one.


def recentred(case, judged):
    return judged.bars


def rounded_once(case, judged):
    """float64 inside: half an ulp of each element, and what float64 itself may lose (see
    cases.judge).
    """
    bars = {}
    for name, kappa in judged.kappa.items():
        dtype = case.parameters or case.dtype if name in ("dgamma", "dbeta") else case.dtype
        exact = getattr(judged.exact, name)
        bars[name] = cases.half_ulp(exact, dtype) + max(
            cases.BAR["float64"], 4 * kappa * cases.U["float64"]
        )
    if case.round_twice:
        bars["y"] += cases.rounded_twice(judged.exact, judged.arrays.gamma, case.dtype)
    return bars


def rounded_mean(case, judged):
    """The mean is rounded before it is subtracted.

    That moves xhat of a row by t = u |mean| r along 1, and so dx by t kappa and dgamma by t times
    its condition: (1 + |mean| r) u instead of u, with the |mean| r of the worst row. Rows are added
    one after the other (NumPy blocks an axis only if it is contiguous), so a sum over rows has the
    error sqrt(rows) u instead of sqrt(log2(rows)) u.
    """
    u, rows = cases.U[case.dtype], math.prod(case.shape[:-1])
    return {
        "dx": judged.bars["dx"] + 4 * u * judged.kappa["dx"] * judged.offset,
        "dgamma": (
            judged.bars["dgamma"]
            + 4 * u * judged.kappa["dgamma"] * (judged.offset + math.sqrt(rows))
        ),
        "dbeta": judged.bars["dbeta"] + 4 * u * judged.kappa["dbeta"] * math.sqrt(rows),
    }


class Implementation(NamedTuple):
    results: Callable
    bars: Callable
    backend: Backend
    skip: tuple = ()  # beginnings of the names of cases it cannot do

    def claims(self, case):
        _, norms, dtypes, residual, round_twice, size = self.backend
        return (
            case.norm in norms
            and case.dtype in dtypes
            and residual >= case.residual
            and round_twice >= case.round_twice
            and case.size <= size
            and not case.name.startswith(self.skip)
        )


#: A mean that is rounded before it is subtracted leaves a constant row slightly above or below
#: zero.
NOT_RECENTRED = ("constant_rows",)

WIDE = Backend(steps, ("layer_norm",), ("float64", "float32"), residual=False)

IMPLEMENTATIONS = {
    **{n: Implementation(partial(results, b), recentred, b) for n, b in BACKENDS.items()},
    **{
        f"{n}, precise": Implementation(
            partial(results, b, precise=True), rounded_once, b._replace(dtypes=NARROW)
        )
        for n, b in BACKENDS.items()
    },
    "step by step": Implementation(steps, rounded_mean, WIDE, skip=NOT_RECENTRED),
}


def marks(name, case):
    """Large cases are not for ``make check``; for the GPU's kernels, interpreted, small ones."""
    return pytest.mark.slow if case.size >= (2**8 if name.startswith("GPU") else 2**16) else ()


ROWS = [
    pytest.param(implementation, case, id=f"{name} | {case.name}", marks=marks(name, case))
    for name, implementation in IMPLEMENTATIONS.items()
    for case in cases.CASES
    if implementation.claims(case)
]


@pytest.mark.parametrize("implementation, case", ROWS)
def test_gradients(implementation, case):
    judged = cases.judge(case)
    cases.check(
        implementation.results(judged, case), judged.exact, implementation.bars(case, judged)
    )


#: Numbers in a row, on both sides of where a backend changes how it adds or deals out a row.
EDGES = {
    "NumPy": (1, 8, 9, 128, 129, 8193),
    "CPU": cases.WIDTHS,
    "GPU": (48, 49, 68, 385),
    "rows sharded": (9,),
    "features sharded": (9, 300),
}

#: A factor that takes a row out of the range in which squares are safe.
OUT_OF_RANGE = {"float64": 1e200, "float32": 1e25, "bfloat16": 1e25, "float16": 1}


@pytest.mark.parametrize(
    "name, norm, dtype, precise, D",
    [
        pytest.param(name, norm, dtype, precise, D, marks=pytest.mark.slow if name == "GPU" else ())
        for name, b in BACKENDS.items()
        for norm in b.norms
        for dtype in b.dtypes
        for precise in (False, True)[: 1 + (dtype != "float64")]
        for D in EDGES[name]
    ],
)
def test_same_row_same_bits(name, norm, dtype, precise, D):
    """A row's y and dx do not depend on the batch it stands in, and gradients of parameters have
    the same bits in every run: with threads, too, and in rows that are done again, scaled.
    """
    S, groups = 2 - D % 2, 1 + NORMS[norm].grouped
    shape = (20, 2 * D // S, S) if groups == 2 else (5 if name == "GPU" else 20, D)
    case = cases.Case("same bits", shape, dtype, offset=3.0, norm=norm, groups=groups)
    x, gamma, beta, dy = case.arrays()
    x[2], x[3] = x[2] + 1e4, x[3] * np.array(OUT_OF_RANGE[dtype], dtype)
    others = case.others() | ({"precise": True} if precise else {})

    def results(rows):
        return BACKENDS[name].run(x[rows], gamma, beta, dy[rows], norm=norm, **others)

    whole = results(slice(None))
    numbers = (2, 3) if name == "GPU" else (1, 2, 3, 17)  # an interpreter takes 50 ms a call
    for rows in [slice(i, i + n) for n in numbers for i in range(0, 6, n)]:
        assert cases.bits(results(rows)[:2]) == cases.bits(a[rows] for a in whole[:2])
    found = {1: whole}
    for threads in (1, 3, 3, 64) if name == "CPU" else (1,):
        with cases.threads(threads):
            again = results(slice(None))
        assert cases.bits(again[:2]) == cases.bits(whole[:2])
        assert cases.bits(again) == cases.bits(found.setdefault(threads, again))


def repeated(kind, dtype, distinct):
    """Rows that will stand one below the other many times: the exact sums are those of one copy,
    times that.
    """
    rng = np.random.default_rng(5)
    x, dy = rng.standard_normal((2, distinct, 3))
    dy = {"either sign": dy, "one sign": np.abs(dy) + 0.1, "constant": np.full_like(dy, 0.1)}[kind]
    return x.astype(dtype), np.ones(3, dtype), np.zeros(3, dtype), dy.astype(dtype)


LONG = {
    "NumPy": (layernorm, 1, {}),
    "CPU": (cpu, 1, {}),
    "CPU, threads": (cpu, 3, {}),
    "CPU, precise": (cpu, 1, {"precise": True}),
}


@pytest.mark.parametrize(
    "rows, distinct",
    [(100_000, 1), (100_000, 1000), pytest.param(10**6, 1000, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("kind", ["either sign", "one sign", "constant"])
@pytest.mark.parametrize(
    "name, dtype",
    [
        pytest.param(name, dtype, marks=cases.marks_of_threads(LONG[name][1], dtype))
        for name in LONG
        for dtype in ("float64", "float32")
        if (name, dtype) != ("CPU, precise", "float64")
    ],
)
def test_sums_do_not_lose_more_over_more_rows(name, dtype, kind, rows, distinct):
    """The bars are those of few rows. Errors of equal rows are equal, so their condition is that of
    one copy.
    """
    backend, threads, options = LONG[name]
    x, gamma, beta, dy = repeated(kind, dtype, distinct)
    copies = rows // distinct
    tall = np.tile(x, (copies, 1)), gamma, beta, np.tile(dy, (copies, 1))
    with cases.threads(threads):
        *_, dgamma, dbeta = cases.run(backend, *tall, **options)
    exact = reference.layer_norm(x, gamma, beta, dy)
    bars = cases.bars(exact, gamma, dy, dtype)
    exact = exact._replace(dgamma=exact.dgamma * copies, dbeta=exact.dbeta * copies)
    cases.check({"dgamma": dgamma, "dbeta": dbeta}, exact, bars)


INFINITE = {
    "x": lambda a: a.x[2, 1:2],
    "dy": lambda a: a.dy[2, 1:2],
    "gamma": lambda a: a.gamma[1:2],
}


@pytest.mark.parametrize("where", INFINITE)
@pytest.mark.parametrize("D", [5, *(pytest.param(D, marks=pytest.mark.slow) for D in (300, 2500))])
@pytest.mark.parametrize("options", [{}, {"precise": True}])
@pytest.mark.parametrize(
    "name, dtype", [(name, dtype) for name, b in BACKENDS.items() for dtype in b.dtypes]
)
def test_nan_and_inf_go_no_further(name, dtype, options, D, where):
    """What lnlib.validation promises, at every element of y, dx, dgamma and dbeta; the others keep
    their bits.

    But a sum over rows of the CPU backend, which adds a row last that is left to NumPy: two orders
    of three additions differ by at most 2 * 3 u of the sum of the terms' sizes, and |xhat| is below
    sqrt(D).
    """
    if options and dtype == "float64" or D > 300 and name == "GPU":
        pytest.skip("float64 is precise; the GPU is an interpreter")
    a = cases.Case("nan and inf", (4, D), dtype).arrays()
    run = partial(BACKENDS[name].run, **options)
    clean = run(*a)
    row, column = np.arange(4)[:, None] == 2, np.arange(D) == 1
    lost = {
        "x": (row, row, True, False),
        "dy": (False, row, column, column),
        "gamma": (column, True, False, False),
    }[where]
    allowed = 6 * cases.U[dtype] * math.sqrt(D) * np.abs(a.dy.astype(float)).sum(axis=0)
    for value in (np.inf, -np.inf, np.nan):
        INFINITE[where](a)[:] = value
        for found, before, place in zip(run(*a), clean, lost, strict=True):
            place = np.broadcast_to(place, found.shape)
            found, before = found.astype(float), before.astype(float)
            assert not np.isfinite(found[place]).any() and np.isfinite(found[~place]).all()
            assert where != "x" or np.isnan(found[place]).all()
            if name == "CPU" and found.ndim == 1:
                assert (np.abs(found - before) <= allowed)[~place].all()
            else:
                assert np.array_equal(found[~place], before[~place])
