"""The one list of cases: every implementation of a norm's gradient is judged on it.

A case is a name, a shape, a dtype, a regime and a norm. Its arrays depend on the name alone, so a
new case changes no other. ``judge(case)`` adds the exact result and the errors an implementation
may make.
"""

import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
import zlib
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from bars import (  # noqa: F401 - some are for those who import cases
    BAR,
    conditions,
    either_way,
    expected_error,
    half_ulp,
    in_rows,
    rounded_twice,
    rounding_sizes,
    sum_kappa,
)
from pages import ROOT

from lnlib import reference, sharded
from lnlib.norms import NORMS
from normcheck.tolerance import U  # noqa: F401

try:
    import ml_dtypes  # noqa: F401 - importing it gives NumPy the dtype "bfloat16"

    HALVES = ("float16", "bfloat16")
except ImportError:
    HALVES = ("float16",)

NAMES = "y", "dx", "dgamma", "dbeta"


def parameters_of(norm, gamma, beta, groups):
    """What a norm's forward takes between x and eps."""
    return gamma, *[beta] * NORMS[norm].beta, *[groups] * NORMS[norm].grouped


def run(
    backend,
    x,
    gamma,
    beta,
    dy,
    eps=1e-5,
    out=(None, None),
    norm="layer_norm",
    groups=1,
    residual=None,
    dh=None,
    **options,
):
    """(y, dx, dgamma, dbeta) of a backend, without dbeta if the norm has no beta; the h that comes
    with a residual is the sum, rounded once.
    """
    to_y, to_dx = ({} if a is None else {"out": a} for a in out)
    forward, backward = (getattr(backend, f"{norm}_{way}") for way in ("forward", "backward"))
    options |= {} if residual is None else {"residual": residual}
    y, *h, cache = forward(x, *parameters_of(norm, gamma, beta, groups), eps, **options, **to_y)
    with np.errstate(all="ignore"):
        assert bits(h) == ([] if residual is None else bits([x + residual]))
    gradients = backward(dy, cache, **({} if dh is None else {"dh": dh}), **to_dx)
    assert len(gradients) == 2 + NORMS[norm].beta
    return y, *gradients


def cut_among_three(
    module, axis, x, gamma, beta, dy, eps=1e-5, norm="layer_norm", residual=None, dh=None, **options
):
    """The same of a module of lnlib.sharded: rows (axis 0) or features (1) on three ranks, the
    first with the least.
    """
    shape, D = x.shape, x.shape[-1]
    x, dy, residual, dh = (a if a is None else a.reshape(-1, D) for a in (x, dy, residual, dh))
    n = x.shape[axis]
    forward, backward = (getattr(module, f"{norm}_{way}") for way in ("forward", "backward"))

    def program(part):
        at, of = ((part,), slice(None)) if axis == 0 else ((slice(None), part), part)
        mine = {} if residual is None else {"residual": residual[at]}
        parameters = parameters_of(norm, gamma[of], beta[of], 1)
        y, *h, cache = yield from forward(x[at], *parameters, eps, **mine, **options)
        assert bits(h) == ([] if residual is None else bits([x[at] + residual[at]]))
        return y, *(yield from backward(dy[at], cache, dh if dh is None else dh[at]))

    found = sharded.simulate(
        [program(part) for part in sharded.widths(n // 8, n // 2 - n // 8, n - n // 2)]
    )
    y, dx = (np.concatenate([r[k] for r in found], axis).reshape(shape) for k in (0, 1))
    return (
        y,
        dx,
        *(found[0][2:] if axis == 0 else map(np.concatenate, zip(*(r[2:] for r in found)))),
    )


def cpu_cache(x, gamma, dtype, eps=1e-5):
    """What lnlib.cpu's forward keeps of rows in range; ``dtype`` is that of its arithmetic.

    To call it while tests are collected would have every process compile a kernel, in seconds.
    """
    from lnlib import cpu

    wide = x.astype("f8").reshape(-1, x.shape[-1])
    saved = [*wide.mean(axis=1), *np.zeros(len(wide)), *1 / np.sqrt(wide.var(axis=1) + eps), *gamma]
    return cpu.CpuNormCache(x, np.array(saved, dtype), eps, gamma.dtype, NORMS["layer_norm"])


def bits(results):
    return [a.tobytes() for a in results]


def read_only(a):
    view = a.view()
    view.flags.writeable = False
    return view


def share_nothing(arrays):
    """No two of them have memory in common."""
    return not any(np.shares_memory(a, b) for a, b in itertools.combinations(arrays, 2))


#: The same numbers, otherwise in memory.
VIEWS = {
    "as they are": lambda a: a,
    "Fortran order": np.asfortranarray,
    "reversed": lambda a: a[..., ::-1].copy()[..., ::-1],
    "every second": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "unaligned": lambda a: (
        np.frombuffer(bytearray(b"\0" + a.tobytes()), np.uint8)[1:].view(a.dtype).reshape(a.shape)
    ),
    "read-only": read_only,
}


def arrays(shape, dtype="float32", parameters=None, offset=0.0, seed=1):
    """x, gamma, beta and dy, four allocations; x has standard deviation 1."""
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((2, *shape))
    gamma, beta = (a.astype(parameters or dtype) for a in rng.standard_normal((2, shape[-1])))
    return (x + offset).astype(dtype), gamma, beta, dy.astype(dtype)


class Arrays(NamedTuple):
    x: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    dy: np.ndarray


# Regimes. Each returns (z, gamma, dy) in float64; x will be scale * (offset + z).


def normal(rng, shape):
    return rng.standard_normal(shape), rng.standard_normal(shape[-1]), rng.standard_normal(shape)


def zeros(rng, shape):
    return np.zeros(shape), rng.standard_normal(shape[-1]), np.ones(shape)


def constant_rows(rng, shape):
    return np.broadcast_to(rng.standard_normal((*shape[:-1], 1)), shape), *normal(rng, shape)[1:]


def alternating(rng, shape):
    return np.broadcast_to((-1.0) ** np.arange(shape[-1]), shape), *normal(rng, shape)[1:]


def outlier(rng, shape):
    z, gamma, dy = normal(rng, shape)
    z[..., 0] = 1e3
    return z, gamma, dy


def nearly_constant_upstream(rng, shape):
    """g is 1 plus a ten-thousandth: kappa is 1e4."""
    return rng.standard_normal(shape), np.ones(shape[-1]), 1 + 1e-4 * rng.standard_normal(shape)


def upstream_along_x(rng, shape):
    """g lies in the plane of 1 and xhat, where the Jacobian is nearly zero: kappa is s^2 / eps."""
    z = rng.standard_normal(shape)
    return z, np.ones(shape[-1]), z


def no_parameters(rng, shape):
    """As without gamma and beta."""
    z, _, dy = normal(rng, shape)
    return z, np.ones(shape[-1]), dy


def outlier_first_upstream(rng, shape):
    """The first upstream number stands out: a poor guess at the mean of g."""
    z, gamma, dy = normal(rng, shape)
    dy[..., 0] = 1e3
    return z, gamma, dy


def outlier_upstream_on_the_mean(rng, shape):
    """The second upstream number stands out, where x is so near the mean that its rounding is most
    of xhat.
    """
    z, gamma, dy = normal(rng, shape)
    z[..., 1] = 0
    z[..., 1] = z.sum(axis=-1) / (shape[-1] - 1)
    dy[..., 1] = 1e7
    return z, gamma, dy


class Case(NamedTuple):
    name: str
    shape: tuple
    dtype: str = "float64"
    regime: object = normal
    offset: float = 0.0  # mean over standard deviation
    scale: float = 1.0  # standard deviation
    eps: float = 1e-5
    parameters: str = ""  # dtype of gamma, beta and dy, if not x's
    norm: str = "layer_norm"
    groups: int = 1
    residual: bool = False  # whether there are a residual and a dh
    round_twice: bool = False

    @property
    def size(self):
        return math.prod(self.shape)

    def arrays(self):
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        (_, channels, _), rows, _ = NORMS[self.norm].shapes(self.shape, self.groups)
        z, gamma, dy = self.regime(rng, rows)
        beta = rng.standard_normal(channels) * (self.regime is not no_parameters)
        parameters = self.parameters or self.dtype
        return Arrays(
            (self.scale * (self.offset + z)).astype(self.dtype).reshape(self.shape),
            np.resize(gamma, channels).astype(parameters),
            beta.astype(parameters),
            dy.astype(parameters).reshape(self.shape),
        )

    def others(self):
        """What else the norm takes, but x, gamma, beta, dy and eps."""
        rng = np.random.default_rng(zlib.crc32(f"{self.name}, others".encode()))
        residual, dh = rng.standard_normal((2, *self.shape))
        residual, dh = (self.scale * residual).astype(self.dtype), dh.astype(self.dtype)
        return {
            **({"groups": self.groups} if NORMS[self.norm].grouped else {}),
            **({"residual": residual, "dh": dh} if self.residual else {}),
            **({"round_twice": True} if self.round_twice else {}),
        }


def exactly(norm, x, gamma, beta, dy, eps=1e-5, groups=1, **others):
    """The exact results of a norm, as :func:`run` has those of a backend."""
    parameters = parameters_of(norm, gamma, beta, groups)
    return getattr(reference, norm)(x, *parameters, dy, eps, **others)


class Judged(NamedTuple):
    """arrays; exact results; relative L2 error allowed to each tensor; the largest |mean| r and r
    of a row.
    """

    arrays: Arrays
    exact: reference.Exact
    kappa: dict
    bars: dict
    offset: float
    rstd: float
    others: dict


def bars(exact, gamma, dy, dtype):
    """:func:`bars.expected_error` for float32 or float64, from the arrays."""
    return expected_error(exact, conditions(exact, gamma, dy), dtype)


def float32_bars(exact, gamma, dy):
    return bars(exact, gamma, dy, "float32")


def bars_of_plain_sums(exact, gamma, beta, dy, u):
    """The bars of teaching kernels, whose statistics are plain sums in any order.

    A sum of n terms errs by at most n u times the sum of their sizes. Each statistic is one such
    sum, of values with a few roundings of their own; y holds two of them (mean, var), dx four. So
    (4 D + 20) u at most, times what is lost where terms cancel: beta against the rest of y, kappa
    in dx, terms of either sign over rows.
    """
    rows, D = dy.shape
    row = (4 * D + 20) * u
    beta = reference.to_float64(reference.to_fixed(beta))
    kappa = conditions(exact, gamma, dy)
    y = reference.to_float64(exact.y)
    sizes = {
        "dgamma": np.abs(dy * reference.to_float64(exact.xhat)).sum(axis=0),
        "dbeta": np.abs(dy.astype(np.float64)).sum(axis=0),
    }
    norm = np.linalg.norm
    bars = {
        "y": row * (norm(y - beta) + math.sqrt(rows) * norm(beta)) / norm(y),
        "dx": row * kappa["dx"],
        **{
            name: (row + rows * u) * sum_kappa(terms, getattr(exact, name))
            for name, terms in sizes.items()
        },
    }
    assert all(bar < (0.5 if name == "dx" else 0.05) for name, bar in bars.items()), bars
    return bars


@cache
def judge(case):
    """The exact results of a case, and the errors that a careful implementation owes."""
    arrays = case.arrays()
    others = case.others()
    exact = exactly(case.norm, *arrays, case.eps, **others)
    kappa = conditions(exact, arrays.gamma, arrays.dy)
    bars = expected_error(exact, kappa, case.dtype, case.parameters)
    if case.round_twice:
        bars["y"] += rounded_twice(exact, arrays.gamma, case.dtype)
    rstd = reference.to_float64(exact.rstd).ravel()
    mean = arrays.x.astype(np.float64).reshape(exact.shapes.rows).mean(axis=1)
    return Judged(
        arrays,
        exact,
        kappa,
        bars,
        float(np.max(np.abs(mean) * rstd, initial=0)),
        float(np.max(rstd, initial=0)),
        others,
    )


def errors(results, exact):
    """Relative L2 error of each tensor of ``results``: named, or y, dx, dgamma and dbeta."""
    named = results if isinstance(results, dict) else dict(zip(NAMES, results))
    return {
        name: reference.relative_error(value, getattr(exact, name)) for name, value in named.items()
    }


def check(results, exact, bars):
    """The error of each tensor of ``results`` is within its bar."""
    found = errors(results, exact)
    assert all(found[name] <= bars[name] for name in found), (found, bars)


def child(code, cache_folder=None, **environment):
    """What ``code`` prints, as JSON, in a fresh interpreter; warnings are errors.

    It compiles everything that is not in ``cache_folder``, or not where this process has it.
    """
    folder = {} if cache_folder is None else {"NUMBA_CACHE_DIR": str(cache_folder)}
    environment = {
        **os.environ,
        "PYTHONPATH": "tests:tests/lnlib/backends",
        **folder,
        **environment,
    }
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout)


@contextlib.contextmanager
def threads(n):
    """lnlib.cpu deals rows out to ``n`` threads, however few the elements and the cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lnlib.cpu.backend.PARALLEL_SIZE", 0)
        patch.setattr("lnlib.cpu.backend.number_of_threads", lambda: n)
        yield


def marks_of_threads(n, dtype, precise=False):
    """Of the kernels for several threads make check has those of float32: four seconds each to
    compile.
    """
    return pytest.mark.slow if n > 1 and (precise or dtype == "float64") else ()


#: Both sides of every limit of lnlib.cpu: 16 and 64 (vectors), LONG_ROW, CHUNK / itemsize; and wide
#: rows. (What is far has its own test.)
WIDTHS = (
    *(1, 2, 3, 7, 16, 17, 64, 255, 256, 257, 300, 511, 512, 513),
    *(1000, 1023, 1024, 2047, 2048, 2049, 2500),
)

#: Rows, or upstream gradients, out of the ordinary.
ODD = constant_rows, outlier, nearly_constant_upstream, upstream_along_x

SHAPES = ((2, 3, 8), (4, 8, 16), (4, 16, 64), (3, 5, 32))
DTYPES = ("float64", "float32", *HALVES)


def _name(shape):
    return "x".join(map(str, shape))


def in_each(name, shape, *regime, dtypes=("float64", "float32"), **fields):
    """A case in each of these dtypes, which ends its name."""
    return [Case(f"{name} {dtype}", shape, dtype, *regime, **fields) for dtype in dtypes]


LAYER_NORM = (
    *(case for shape in SHAPES for case in in_each(_name(shape), shape, dtypes=DTYPES)),
    Case("2x32x1024 float32", (2, 32, 1024), "float32"),
    *in_each("zeros", (2, 3, 8), zeros, dtypes=DTYPES),
    *in_each("D=1", (5, 1), offset=100, dtypes=DTYPES),
    *in_each("no rows", (0, 8), dtypes=DTYPES),
    *in_each("one row, no leading axis", (8,), dtypes=DTYPES),
    *(c for D in (2, 3, 5, 7, 65, 129, 1024) for c in in_each(f"D={D}", (max(4, 64 // D), D))),
    Case("D=65536 float32", (1, 65536), "float32", offset=1e4),
    Case("65536 rows float32", (65536, 2), "float32"),
    Case("8192 rows float64", (8192, 2)),
    *(c for m in (1e2, 1e4, 1e6) for c in in_each(f"offset {m:g}", (4, 7), offset=m)),
    Case("offset 1e8 float64", (4, 7), offset=1e8),
    *(
        case
        for D in (2, 3, 64, 1000, 1024)
        for offset in (1e4, 1e6)
        for case in in_each(f"D={D}, offset {offset:g}", (max(1, 256 // D), D), offset=offset)
    ),
    Case("1e8 +- 1e-3", (2, 3, 8), regime=alternating, offset=1e11, scale=1e-3),
    *in_each("offset 100", (4, 64), offset=100, dtypes=HALVES),
    *(c for size in (1e-3, 1e-1, 1e2, 1e6) for c in in_each(f"scale {size:g}", (4, 8), scale=size)),
    *in_each("float32 parameters", (4, 64), parameters="float32", dtypes=HALVES),
    *(case for regime in ODD for case in in_each(regime.__name__, (4, 8), regime)),
    *in_each("outlier_upstream_on_the_mean", (4, 8), outlier_upstream_on_the_mean),
    *in_each("outlier_first_upstream", (4, 1024), outlier_first_upstream),
    Case("eps 0", (4, 8), eps=0.0),
    Case("eps 1", (4, 8), eps=1.0),
    Case("eps 1e-12 float32", (4, 8), "float32", eps=1e-12),
)

#: A shape of x and a number of groups for each norm: (..., D), and (N, C, ...).
SHAPES_OF = {
    "layer_norm": (((2, 3, 8), 1),),
    "rms_norm": (((2, 3, 8), 1), ((3, 129), 1)),
    "group_norm": (((2, 6, 5), 3), ((3, 8), 2), ((2, 3, 2, 4), 3), ((2, 4, 33), 1)),
}


def with_others(norm, shape, groups, dtype):
    """A norm with and without a residual, parameters of their own dtype, in float32 and none."""
    name = f"{norm} {_name(shape)} in {groups}, {dtype}"
    plain = Case(name, shape, dtype, norm=norm, groups=groups)
    kinds = [
        plain,
        plain._replace(name=f"{name}, no parameters", regime=no_parameters),
        plain._replace(name=f"{name}, far from zero", offset=10.0),
    ]
    if dtype in HALVES:
        kinds += [plain._replace(name=f"{name}, float32 parameters", parameters="float32")]
        kinds += [k._replace(name=f"{k.name}, rounded twice", round_twice=True) for k in kinds]
    return [*kinds, *(k._replace(name=f"{k.name}, residual", residual=True) for k in kinds)]


CASES = (
    *LAYER_NORM,
    *(c._replace(name=f"rms_norm {c.name}", norm="rms_norm") for c in LAYER_NORM if c.size < 4096),
    *(
        case._replace(norm="group_norm", groups=3)
        for regime in (zeros, *ODD)
        for scale in (1.0, 1e6)
        for case in in_each(
            f"group_norm {regime.__name__} {scale:g}", (2, 6, 5), regime, scale=scale
        )
    ),
    *(
        case
        for norm, shapes in SHAPES_OF.items()
        for shape, groups in shapes
        for dtype in DTYPES
        for case in with_others(norm, shape, groups, dtype)
    ),
)
