"""A random differential test: every backend against exact arithmetic, on cases that nobody has
chosen.

    python tests/differential.py --cases 10000 --seed 1 --jobs 2    the worst of each tensor
    python tests/differential.py --case 1000123                     one case

A run of seed s has the cases from s * 10**6 on. The exit code is 1 if any case fails.
"""

import argparse
import contextlib
import math
import multiprocessing
import sys
import traceback
from typing import NamedTuple

import cases
import numpy as np
import pytest
from backends import BACKENDS
from random_cases import draw, largest

from lnlib import reference
from lnlib.norms import NORMS
from lnlib.validation import COMPUTE_DTYPE

IN_ONE_PROCESS = "NumPy", "CPU", "GPU"

BY_ROW = "y", "dx"


# The exact results


class Truth(NamedTuple):
    """Exact results, each as a pair of float64 arrays: the numbers rounded, and what rounding
    left. Those of x's shape are in rows.
    """

    tensors: dict
    xhat: np.ndarray
    rstd: np.ndarray
    undefined: np.ndarray  #: (rows,), whether a row's variance and eps are 0


@contextlib.contextmanager
def bits_for(dtype):
    """Fractional bits enough for products of float64 numbers of the size of 1e-150."""
    with pytest.MonkeyPatch.context() as patch:
        if dtype == "float64":
            patch.setattr(reference, "BITS", 1300)
        yield


def pair(fixed):
    """Fixed-point numbers as float64 high + low; what is too large becomes the largest."""
    most = int(largest("float64")) << reference.BITS
    fixed = np.array([min(max(n, -most), most) for n in fixed.ravel()], object).reshape(fixed.shape)
    high = reference.to_float64(fixed)
    return high, reference.to_float64(fixed - reference.to_fixed(high))


def exactly(drawn, chunk=20_000, bits=bits_for):
    """The truth about a case. Rows are taken in chunks: a million of them at once would need
    gigabytes.
    """
    x, gamma, beta, dy = drawn.arrays
    h, *_ = drawn.in_rows
    (N, _, _), (rows, D), _ = drawn.shapes
    mean, G = NORMS[drawn.norm].mean, drawn.groups
    undefined = (h == h[:, :1] * mean).all(axis=1) & (drawn.eps == 0)
    eps = drawn.eps or float(
        D == 1 and mean
    )  # of one number, every row is undefined that has a mean
    others, parts, sums = dict(drawn.others), [], [0, 0]

    def replaced(a, by):
        """With other numbers in the rows that are undefined: what comes of them is not read."""
        by = np.broadcast_to(by, (rows, D)).astype(a.dtype)
        return np.where(undefined[:, None], by, a.reshape(rows, D)).reshape(a.shape)

    x = replaced(x, (np.arange(D) + 1) % 2)
    if "residual" in others:
        others["residual"] = replaced(others["residual"], 0)
    with bits(x.dtype.name):
        step = max(1, chunk // (G * D))
        for part in (slice(start, start + step) for start in range(0, N, step)):
            mine = {n: a if n == "round_twice" else a[part] for n, a in others.items()}
            exact = cases.exactly(drawn.norm, x[part], gamma, beta, dy[part], eps, G, **mine)
            found = *pair(exact.y), *pair(exact.dx), pair(exact.xhat)[0]
            parts.append([*(a.reshape(-1, D) for a in found), pair(exact.rstd)[0].reshape(-1, 1)])
            sums = [sums[0] + exact.dgamma, sums[1] + exact.dbeta]
        y, y_low, dx, dx_low, xhat, rstd = map(np.concatenate, zip(*parts))
        tensors = {
            "y": (y, y_low),
            "dx": (dx, dx_low),
            "dgamma": pair(sums[0]),
            "dbeta": pair(sums[1]),
        }
    return Truth(tensors, xhat, rstd, undefined)


# What is promised


class Promise(NamedTuple):
    """Of each tensor; ``exact``, ``roundings`` and ``extra`` are norms, of each row where the
    tensor has rows.
    """

    exact: dict
    #: u ||size||, see cases.rounding_sizes, of each row of dgamma's and dbeta's terms, too
    roundings: dict
    alike: dict  #: roundings of all rows together that have the same x
    column: dict  #: u ||size|| of the terms in dgamma's or dbeta's largest column, else 0
    extra: dict  #: half ulps of what is stored in another dtype, and underflow
    overflow: dict  #: whether a number may be Inf or NaN


def unit_of(a, axis=None):
    """The largest of |a|, but 1 where that is 0 or infinite."""
    most = np.max(np.abs(a), axis=axis, keepdims=True, initial=0)
    return np.where((most > 0) & (most < np.inf), most, 1)


def norm(a, axis=None):
    """Euclidean norm; its squares neither overflow nor underflow. Infinite if a number is."""
    unit = unit_of(a, axis)
    return (unit * np.sqrt(np.sum((a / unit) ** 2, axis=axis, keepdims=True))).squeeze(axis)


def of_channels(drawn, a):
    """Sums of what is in rows over all but the channels."""
    return a.reshape(drawn.shapes.whole).sum(axis=(0, 2))


def underflow(drawn, truth, compute):
    """What products that underflow leave, in the sizes of :func:`cases.rounding_sizes`; each loses
    up to half of eta.

    xhat loses eta itself, and eta in a rstd that is subnormal: |c| eta, and c is xhat / r. y is a
    product and a sum from there, dgamma a sum of products. To dx, g and what is subtracted from it
    come with a factor of r.
    """
    _, gamma, dy = drawn.in_rows
    eta = float(np.finfo(compute).smallest_subnormal)
    xhat = eta * (1 + np.abs(truth.xhat) / truth.rstd)
    g = norm(gamma * dy, 1)[:, None]
    return {
        "y": 2 * eta + np.abs(gamma) * xhat,
        "dx": 4 * eta * (1 + truth.rstd) * (1 + g + 0 * dy),
        "dgamma": of_channels(drawn, eta + np.abs(dy) * xhat),
        "dbeta": 0.0,
    }


def storing(exact, dtype):
    """What rounding to ``dtype`` may change: half an ulp. ml_dtypes rounds float64 to float32
    before.
    """
    half = np.spacing(np.abs(exact.astype(dtype))).astype(np.float64) / 2
    return half + cases.U["float32"] * np.abs(exact) if dtype == "bfloat16" else half


def may_overflow(drawn, truth, compute, roundings):
    """Where a result with its error, or a product of the formulas on the way to it, leaves the
    range.

    Beyond the range a result is Inf. A product, gamma xhat or gamma dy, or the sum of the sizes of
    what is added up over rows, may lose the number to Inf or NaN (in dx the row), but leaves no
    finite number that is wrong.
    """
    _, gamma, dy = drawn.in_rows
    on_the_way = {
        "y": gamma * truth.xhat,
        "dx": np.max(np.abs(gamma * dy), axis=1, keepdims=True),
        "dgamma": of_channels(drawn, np.abs(dy * truth.xhat)),
        "dbeta": of_channels(drawn, np.abs(dy)),
    }
    found, dh = {}, drawn.others.get("dh", np.zeros(1)).astype(np.float64)
    added = {"dx": np.abs(dh).reshape(-1, dy.shape[1] if dh.size > 1 else 1)}
    for name, (exact, _) in truth.tensors.items():
        error = 12 * roundings[name][:, None] if name in BY_ROW else 12 * norm(roundings[name])
        found[name] = (np.abs(on_the_way[name]) >= 0.999 * largest(compute)) | (
            np.abs(exact) + added.get(name, 0) + error >= 0.999 * largest(drawn.dtype_of(name))
        )
    return found


def sizes_of(drawn, xhat, rstd, gamma, dy):
    mean, S = NORMS[drawn.norm].mean, drawn.shapes.whole[2]
    return cases.rounding_sizes(xhat, rstd, gamma, dy, mean, S)


def of_equal_rows(drawn, truth, roundings, u):
    """Of each tensor the roundings of all rows together that have the same x: they have the same
    xhat and r, too.

    So these errors do not average out over them. A row's error is in its own elements of y and dx,
    where squares add up; in dgamma one error of xhat comes with the sum of their dy, if that is
    more than what the products have.
    """
    x, _, dy = drawn.in_rows
    group = np.arange(len(x))[:, None] % drawn.groups  # others' terms are in other sums
    rows = np.hstack([x, group])
    _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)

    def added(a):
        sums = np.zeros((len(first), *a.shape[1:]))
        np.add.at(sums, kind.ravel(), a)
        return sums

    found = dict(roundings)
    for name in BY_ROW:
        unit = unit_of(roundings[name])
        found[name] = unit * np.sqrt(added((roundings[name] / unit) ** 2))
    unit = unit_of(dy)
    sizes = sizes_of(drawn, truth.xhat[first], truth.rstd[first], 1, added(dy / unit))
    common = u * norm(unit * sizes["dgamma"], 1)
    return found | {"dgamma": max(roundings["dgamma"], common, key=weighed)}


def promise(drawn, truth, precise):
    """What is promised of a case by arithmetic in the dtype of x, or in float64."""
    _, gamma, dy = drawn.in_rows
    compute = "float64" if precise else COMPUTE_DTYPE[drawn.dtype_of("y")].name
    sizes = sizes_of(drawn, truth.xhat, truth.rstd, gamma, dy)
    sizes["y"] = np.hypot(sizes["y"], truth.tensors["y"][0])  # beta is added
    lost = underflow(drawn, truth, compute)
    exact, roundings, extra = {}, {}, {}
    for name, (high, _) in truth.tensors.items():
        axis = 1 if name in BY_ROW else None
        dtype = drawn.dtype_of(name)
        half_ulps = storing(high, dtype) if dtype != compute else 0 * high
        exact[name], roundings[name] = norm(high, axis), cases.U[compute] * norm(sizes[name], 1)
        if name == "y" and "round_twice" in drawn.others:
            half_ulps = half_ulps + cases.either_way(truth.xhat, sizes["xhat"], gamma, dtype)
        extra[name] = norm(half_ulps + lost[name], axis)
    alike = of_equal_rows(drawn, truth, roundings, cases.U[compute])
    most = {
        name: cases.U[compute] * np.max(norm(sizes[name].reshape(drawn.shapes.whole[0], -1), 0))
        for name in ("dgamma", "dbeta")
    }
    column = dict.fromkeys(BY_ROW, 0) | most
    overflow = may_overflow(drawn, truth, compute, roundings)
    return Promise(exact, roundings, alike, column, extra, overflow)


def weighed(alike, column=0):
    """u times the sizes of what is rounded, 4 times, and 12 times more for what has most of it and
    errs together: 16 in all, as :func:`lnlib.layernorm.layer_norm_backward` says.

    The longest path, to dx along xhat, has 19 roundings in float64
    (:func:`lnlib.regimes.backward_loss`): typically 0.42 u sqrt(19) = 1.8 u together. Over many
    rows this averages, for those of different x are independent: 4 u, as in cases.judge. In one
    row, a few numbers of which may be all that counts, it does not, and behind an outlier, or where
    numbers alternate, roundings have one sign. A sum over rows is as long a path: by halves each of
    2**20 numbers is part of 20 sums, 1.9 u together, and where a block of 32 is added one after the
    other, 0.42 u sqrt(1/32 + ... + 32/32) = 1.7 u. Many columns average; a single one does not.
    """
    return 4 * norm(alike) + 12 * max(np.max(alike, initial=0), column)


def bounds(promised, name, compute):
    """What the error of a tensor may be, and of each of its rows: the bar of :mod:`cases`, or what
    is weighed.
    """
    exact, roundings, alike, column, extra = (p[name] for p in promised[:5])
    bar = cases.BAR[compute]
    yield None, max(bar * norm(exact), weighed(alike, column)) + norm(extra)
    if name in BY_ROW:
        yield 1, np.maximum(bar * exact, 12 * roundings) + extra


# Judging


def differences(value, exact):
    """value - exact, and 0 where value is not finite."""
    high, low = exact
    return np.where(np.isfinite(value), (value - high) - low, 0.0)


def quotient(a, b):
    """The largest of a / b, where 0 / 0 is 0."""
    with np.errstate(all="ignore"):
        return float(np.max(np.where(np.equal(a, 0), 0.0, np.divide(a, b)), initial=0))


def shares(drawn, results, truth, promised, compute):
    """Of each tensor the largest error / bound, of it and of its rows; inf if it is finite where it
    may not be.
    """
    found = {}
    for name, value in zip(cases.NAMES, results):
        value = value.astype(np.float64).reshape(truth.tensors[name][0].shape)
        wrong = differences(value, truth.tensors[name])
        lost = ~np.isfinite(value) & ~promised.overflow[name]
        if name in BY_ROW:
            lost[truth.undefined], wrong[truth.undefined] = np.isfinite(value[truth.undefined]), 0
        elif name == "dgamma":
            nan = truth.undefined.reshape(-1, drawn.groups).any(axis=0)
            nan = np.repeat(nan, len(value) // drawn.groups)
            lost[nan], wrong[nan] = np.isfinite(value[nan]), 0
        limits = bounds(promised, name, compute)
        most = max(quotient(norm(wrong, axis), limit) for axis, limit in limits)
        found[name] = math.inf if lost.any() else most
    return found


# Running


def results_of(drawn, backend, precise):
    options = {"precise": True} if precise else {}
    with cases.threads(drawn.threads) if drawn.threads > 1 else contextlib.nullcontext():
        options |= {"groups": drawn.groups} if NORMS[drawn.norm].grouped else {}
        how = {"norm": drawn.norm} | drawn.others | options
        return BACKENDS[backend].run(*drawn.arrays, drawn.eps, **how)


def does(backend, drawn):
    """Whether a backend has the norm and what is added to it; the GPU's is for few cases alone."""
    row, others = BACKENDS[backend], drawn.others
    return (
        drawn.norm in row.norms
        and drawn.dtype_of("y") in row.dtypes
        and row.residual >= ("residual" in others)
        and row.round_twice >= ("round_twice" in others)
        and (backend != "GPU" or drawn.interpreted)
    )


def try_case(number, backends=IN_ONE_PROCESS):
    """The number, and {(backend, dtype, tensor): error / bound} of this case."""
    drawn, found = draw(number), {}
    dtype, truth = drawn.dtype_of("y"), exactly(drawn)
    for precise in (False, True)[: 1 + (dtype != "float64")]:
        compute = "float64" if precise else COMPUTE_DTYPE[dtype].name
        with np.errstate(all="ignore"):
            promised = promise(drawn, truth, precise)
        for backend in filter(lambda backend: does(backend, drawn), backends):
            try:
                results = results_of(drawn, backend, precise)
                with np.errstate(all="ignore"):
                    judged = shares(drawn, results, truth, promised, compute)
            except Exception:
                traceback.print_exc()
                judged = {"y": math.inf}
            for name, share in judged.items():
                found[drawn.norm, backend + ", precise" * precise, dtype, name] = share
    return number, found


def tell(number, key, share):
    return f"{number} {' '.join(key)}: {share:.6g} times its bound\n    {draw(number).story}"


def run(numbers, jobs=1):
    """Of each key the worst share and its case; and what failed."""
    worst, failed = {}, []
    with contextlib.ExitStack() as stack:
        outcomes = map(try_case, numbers)
        if jobs > 1:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(jobs))
            outcomes = pool.imap_unordered(try_case, numbers, 10)
        for number, found in outcomes:
            for key, share in found.items():
                worst[key] = max(worst.get(key, (-1, 0)), (share, number))
                failed += [(number, key, share)] * (share > 1)
    return worst, sorted(failed)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--case", type=int, help="the number of a single case")
    options = parser.parse_args(arguments)
    for name, least in (("cases", 1), ("seed", 0), ("jobs", 1), ("case", 0)):
        if (found := getattr(options, name)) is not None and found < least:
            parser.error(f"--{name}: found {found}, expected at least {least}")
    first = options.seed * 10**6
    numbers = range(first, first + options.cases) if options.case is None else [options.case]
    worst, failed = run(numbers, options.jobs)
    print(f"Largest error / bound, and its case, of {len(numbers)} cases\n")
    for key, (share, number) in sorted(worst.items()):
        print(f"{' '.join(key):44} {share:.3f} ({number})")
    for failure in failed:
        print("FAILED", tell(*failure))
    print(f"{len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
