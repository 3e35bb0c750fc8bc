"""A directed search for inputs that round badly: it keeps the worst, changes them a little, and
tries those.

    python tests/directed.py --seconds 3600 --seed 1 --jobs 2    the worst of each tensor
    python tests/directed.py --case '{"D": 128, ...}'            one case, as the report has it

Seconds are of processor time, so that a busy machine searches longer, not less. Of several jobs
each searches for itself, from a seed of its own: of --seed, the next, and so on.

An input is a *case*: a dict of what its rows are, from which its arrays follow. Errors are those of
a row of y or dx, and of all of dgamma or dbeta, from exact arithmetic, less what storing them in a
shorter dtype may cost, in units of u times the size of what is rounded: ||r g|| for dx, so kappa u
of the row (see ``cases.rounding_sizes``). Above one of LIMITS the search fails, with exit code 1:
README and docstrings say that nothing is.
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import sys
import time
from functools import reduce

import cases
import differential
import numpy as np
from backends import BACKENDS
from random_cases import Drawn, largest, stored

from lnlib.norms import NORMS
from lnlib.validation import COMPUTE_DTYPE

#: What no error of any backend is above, in u times the size of what is rounded: see
#: :func:`lnlib.layernorm.layer_norm_backward`.
LIMITS = {"y": 16, "dx": 64, "dgamma": 16, "dbeta": 16}

#: Of each backend, dtype and tensor so many of the worst cases are kept, to be changed.
KEPT = 6

#: Most numbers in several rows, in one, and for the interpreter of the GPU's kernels.
SIZE, LONG, INTERPRETED = 12_000, 60_000, 400

#: Both sides of what the backends count in: vectors, blocks of sums, chunks; and long rows.
EDGES = np.array((8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192))

ROWS = "normal", "lognormal", "ramp", "steps", "alternating", "few values", "waves", "sorted"
UPSTREAM = *ROWS, "constant"


# Cases


def row_of(rng, kind, size):
    """So many numbers of a kind, of mean square 1 or so."""
    j = np.arange(size)
    spread, count = rng.uniform(0.2, 2.5), int(rng.integers(2, 6))
    if kind == "lognormal":
        return np.exp(spread * rng.standard_normal(size)) * (
            rng.choice([-1, 1], size) if rng.random() < 0.5 else 1
        )
    if kind == "ramp":
        return np.linspace(-1, 1, size) ** count if size > 1 else np.ones(1)
    if kind == "steps":
        return np.repeat(rng.standard_normal(count), -(-size // count))[:size]
    if kind == "alternating":
        return np.where(j % count, 1.0, 1.0 - count)
    if kind == "few values":
        return rng.choice(rng.standard_normal(count), size)
    if kind == "waves":
        return np.sin(j * rng.uniform(0.001, 3)) + spread * np.sign(
            np.sin(j * rng.uniform(0.001, 3))
        )
    if kind == "sorted":
        return np.sort(rng.standard_normal(size))
    return np.ones(size) if kind == "constant" else rng.standard_normal(size)


def with_outliers(rng, a, count, power):
    """``count`` numbers of each row made 10**power times as large as the rest, and alike: the
    first, or any.
    """
    where = (
        np.arange(min(count, a.shape[-1]))
        if rng.random() < 0.5
        else rng.integers(a.shape[-1], size=count)
    )
    a[..., where] = 10.0**power * (rng.choice([-1, 1], len(where)) if rng.random() < 0.3 else 1)
    return a


def farthest(dtype):
    """The power of 10 up to which errors are bounded in standard deviations between a row and
    zero.
    """
    return 8 if dtype == "float64" else 6


def random_case(rng, dtype):
    edge = int(rng.choice(EDGES)) + int(rng.integers(-1, 2))
    D = (
        edge
        if rng.random() < 0.6
        else int(10 ** rng.uniform(0.3, 4 if rng.random() < 0.95 else math.log10(LONG)))
    )
    return {
        "dtype": dtype,
        "norm": str(rng.choice(list(NORMS))),
        "S": int(rng.choice([1, 2, 16, 64])),
        "D": D,
        "count": int(rng.choice([1, 2, 3, 10 ** rng.uniform(0.5, 2)])),
        "seed": int(rng.integers(2**31)),
        "equal rows": bool(rng.random() < 0.2),
        "rows": str(rng.choice(ROWS)),
        "upstream": str(rng.choice(UPSTREAM)),
        "outliers": int(rng.choice([0, 1, 2, 3, rng.integers(4, 40)])),
        "outlier": rng.uniform(0, 5),
        "dy outliers": int(rng.choice([0, 1, 2, 3, rng.integers(4, 40)])),
        "dy outlier": rng.uniform(0, 5),
        "offset": rng.uniform(-1, farthest(dtype)) if rng.random() < 0.5 else -math.inf,
        "scale": rng.uniform(-6, 6),
        "eps": rng.uniform(-12, 3) if rng.random() < 0.5 else -math.inf,
        "spread": rng.choice([0, rng.uniform(0, 4)]),
        "weights": str(rng.choice(["ones", "normal", "all alike"])),
        "beta": rng.choice([0, rng.uniform(0, 2)]),
        "along 1": rng.choice([0, 10 ** rng.uniform(-2, 4)]),
        "along xhat": rng.choice([0, 10 ** rng.uniform(-2, 4)]),
        "divided": bool(rng.random() < 0.5),
        "dy scale": rng.uniform(-6, 6),
        "threads": int(rng.choice([1, 3])),
    }


def changed(rng, case):
    """One to three of its properties drawn anew, or changed a little."""
    other = random_case(rng, case["dtype"])
    new = dict(case)
    for name in rng.choice(
        [name for name in case if name != "dtype"], int(rng.integers(1, 4)), replace=False
    ):
        value = case[name]
        if isinstance(value, float) and math.isfinite(value) and rng.random() < 0.7:
            new[name] = value + float(rng.choice([0.01, 0.1, 1])) * rng.standard_normal()
        elif name == "D" and rng.random() < 0.7:
            new[name] = max(1, value + int(rng.integers(-3, 4)))
        else:
            new[name] = other[name]
    new["offset"] = min(new["offset"], farthest(case["dtype"]))
    return new


def drawn_of(case):
    """The arrays of a case, as tests/random_cases.py has them."""
    rng = np.random.default_rng(case["seed"])
    dtype, D = case["dtype"], max(1, min(int(case["D"]), LONG))
    norm = NORMS[case["norm"]]
    S = case["S"] if norm.grouped and D % case["S"] == 0 else 1  # neighbours that share a gamma
    shape = max(1, min(case["count"], SIZE // D)), D
    narrow = dtype == "float16"
    z = np.stack([row_of(rng, case["rows"], D) for _ in range(shape[0])])
    if case["outliers"]:
        z = with_outliers(rng, z, case["outliers"], min(case["outlier"], 2 if narrow else 6))
    if case["equal rows"]:
        z[:] = z[0]
    sigma = z.std(axis=1, keepdims=True)
    z = (z - z.mean(axis=1, keepdims=True)) / np.where(sigma > 0, sigma, 1)
    offset = 10.0 ** min(case["offset"], 2 if narrow else math.inf)
    scale = 2.0 ** np.clip(case["scale"], *((-2, 2) if narrow else (-20, 20)))
    x = stored(scale * (offset + z), dtype)

    gamma = {"normal": rng.standard_normal(D), "ones": np.ones(D)}.get(
        case["weights"], np.full(D, rng.uniform(1, 2))
    )
    gamma = stored(
        gamma * 10.0 ** (min(case["spread"], 1 if narrow else 6) * rng.standard_normal(D)), dtype
    )[::S]
    wide_gamma = np.repeat(gamma.astype(np.float64), S)
    wide = x.astype(np.float64)
    c = wide - wide.mean(axis=1, keepdims=True) * norm.mean
    var = (c * c).mean(axis=1, keepdims=True)
    eps = float(var.mean() * 10.0 ** case["eps"]) or (0.0 if var.all() else 1e-5)
    xhat = c / np.sqrt(var + eps)
    beta = stored(-case["beta"] * (wide_gamma * xhat[0]), dtype)[::S]

    dy = np.stack([row_of(rng, case["upstream"], D) for _ in range(shape[0])])
    if case["dy outliers"]:
        dy = with_outliers(
            rng, dy, case["dy outliers"], min(case["dy outlier"], 3 if narrow else 6)
        )
    dy = dy + case["along 1"] + case["along xhat"] * xhat
    if case["divided"]:  # then g, and not dy, is as drawn
        dy = dy / np.where(wide_gamma == 0, 1, wide_gamma)
    if narrow:  # as large as it may be
        dy *= min(1, 0.1 * largest(dtype) / max(np.abs(dy).max(), 1e-300))
    dy = stored(dy * 2.0 ** np.clip(case["dy scale"], -20, 20) if not narrow else dy, dtype)
    if norm.grouped:
        x, dy = (a.reshape(len(x), -1, S) for a in (x, dy))
    return Drawn(
        cases.Arrays(x, gamma, beta, dy),
        eps,
        x.size <= INTERPRETED and dtype != "float64",
        case["threads"],
        json.dumps(case),
        norm.name,
    )


# Errors


def errors(results, truth, promised, compute):
    """{tensor: (error in u times the size of what is rounded, with what storing costs in both)}."""
    found = {}
    for name, value in zip(cases.NAMES, results):
        if promised.overflow[name].any() or truth.undefined.any():
            continue
        by_row = 1 if name in differential.BY_ROW else None
        value = value.astype(np.float64).reshape(truth.tensors[name][0].shape)
        wrong = differential.norm(differential.differences(value, truth.tensors[name]), by_row)
        unit = promised.roundings[name] if by_row else differential.norm(promised.alike[name])
        unit = np.maximum(unit, cases.U[compute] * promised.exact[name])
        extra = promised.extra[name]
        pair = (
            differential.quotient(np.maximum(wrong - extra, 0), unit),
            differential.quotient(wrong, unit + extra),
        )
        found[name] = pair if np.isfinite(value).all() else (math.inf, math.inf)
    return found


def tried(case, backends=tuple(BACKENDS)):
    """{(backend, dtype, tensor): (error, what to climb)} of a case."""
    drawn, found = drawn_of(case), {}
    dtype = case["dtype"]
    with np.errstate(all="ignore"):
        # In 400 bits: no number is far from 1.
        truth = differential.exactly(drawn, bits=contextlib.nullcontext)
        for precise in (False, True)[: 1 + (dtype != "float64")]:
            promised = differential.promise(drawn, truth, precise)
            compute = "float64" if precise else COMPUTE_DTYPE[dtype].name
            for backend in filter(lambda name: differential.does(name, drawn), backends):
                results = differential.results_of(drawn, backend, precise)
                for name, pair in errors(results, truth, promised, compute).items():
                    found[backend, dtype + ", precise" * precise, name] = pair
    return found


# The search


def merge(worst, found):
    """Keep the KEPT worst of each key, {key: [(climb, error, case)]}, with what is found."""
    for key, ranked in found.items():
        known = {json.dumps(entry[2]): entry for entry in [*worst.get(key, []), *ranked]}
        worst[key] = sorted(known.values(), key=lambda entry: entry[:2], reverse=True)[:KEPT]
    return worst


def climb(
    worst,
    seed,
    seconds=math.inf,
    steps=math.inf,
    backends=tuple(BACKENDS),
    dtypes=tuple(cases.DTYPES),
):
    """Go on from the worst for so long, or so many steps: the worst then, how many were tried."""
    rng, start, count, minutes = np.random.default_rng(seed), time.process_time(), 0, 0
    worst = {key: list(ranked) for key, ranked in worst.items()}
    while (spent := time.process_time() - start) < seconds and count < steps:
        if spent > 60 * (minutes + 1):  # a long search tells how far it is
            minutes += 1
            far = f"{minutes} min, {count} cases, {len(above(worst))} above the limits"
            print(f"seed {seed}: {far}", file=sys.stderr, flush=True)
        keys = [key for key in worst if key[0] in backends and key[1].partition(",")[0] in dtypes]
        if rng.random() < 0.5:  # what storing hides leads nowhere
            keys = [key for key in keys if worst[key][0][1] > 1] or keys
        if keys and rng.random() < 0.8:
            key = keys[rng.integers(len(keys))]
            case, target = changed(rng, worst[key][rng.integers(len(worst[key]))][2]), key[0]
        else:
            case, target = random_case(rng, str(rng.choice(dtypes))), str(rng.choice(backends))
        if target == "GPU":
            case["D"] = min(case["D"], INTERPRETED // case["count"])
        also = [b for b in backends if b != "GPU" or target == "GPU"]
        found = tried(case, also)
        merge(worst, {key: [(*pair[::-1], case)] for key, pair in found.items()})
        count += 1
    return worst, count


def above(worst):
    """The errors that are above their limits, each with its key and its case."""
    return [
        (error, key, case)
        for key, ranked in worst.items()
        for _, error, case in ranked
        if error > LIMITS[key[2]]
    ]


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="of processor time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--backends", nargs="+", choices=list(BACKENDS), default=list(BACKENDS))
    parser.add_argument("--dtypes", nargs="+", choices=cases.DTYPES, default=list(cases.DTYPES))
    parser.add_argument("--case", type=json.loads, help="a case, as the report has it")
    options = parser.parse_args(arguments)
    if options.case is not None:
        for key, (error, _) in tried(options.case, options.backends).items():
            print(f"{' '.join(key):40} {error:.2f}")
        return 0
    given = options.seconds, math.inf, options.backends, options.dtypes
    searches = [({}, options.seed + job, *given) for job in range(options.jobs)]
    if len(searches) > 1:
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            found = pool.starmap(climb, searches)
    else:
        found = [climb(*search) for search in searches]
    worst = reduce(merge, (worst for worst, _ in found), {})
    count = sum(count for _, count in found)
    print(f"Largest errors of {count} cases, in u times the size of what is rounded\n")
    for key in sorted(worst):
        _, error, case = max(worst[key], key=lambda entry: entry[1])
        print(f"{' '.join(key)} {error:.2f}: {json.dumps(case)}")
    failed = {key for _, key, _ in above(worst)}
    print(f"{len(failed)} of {len(worst)} above {LIMITS}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
