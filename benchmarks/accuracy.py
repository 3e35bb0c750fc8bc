"""How many digits do layer norms keep? Every one installed, on the same inputs, against exact
arithmetic.

Run from the repository's root: ``python -m benchmarks.accuracy`` (see benchmarks/README.md). Inputs
are float arrays made from a seed that depends on the case alone. ``lnlib.reference`` is the judge;
the sums over many rows have a judge of their own, with a bound on its error in every record.

The same eps for all: 1e-5. gamma is random where not said otherwise, beta is zero, so that the
digits of y are digits of xhat. One thread, as far as a framework lets itself be told.
"""

import argparse
import contextlib
import math
import os
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from lnbook.measure.provenance import FOLDER, digits, provenance, save
from lnlib import layernorm, reference

from . import norms
from .command import grid, installed, new_file

try:
    import ml_dtypes  # noqa: F401 - importing it gives NumPy the dtype "bfloat16"

    HALVES = ("float16", "bfloat16")
except ImportError:
    HALVES = ("float16",)

EPS = 1e-5
RESULTS = FOLDER / "accuracy" / "frameworks.json"
PACKAGES = "numpy", "ml_dtypes", "torch", "jax", "jaxlib", "flax", "tensorflow-cpu", "keras"


# The inputs


class Case(NamedTuple):
    """Inputs of one cell: the ``tensors`` judged, and ``coordinates``, its place in its regime."""

    regime: str
    coordinates: dict
    tensors: tuple
    x: np.ndarray
    gamma: np.ndarray
    dy: np.ndarray | None = None

    @property
    def beta(self):
        return np.zeros_like(self.gamma)


def rng_for(*name):
    """The generator of a case depends on its name alone, so a new case changes no other."""
    return np.random.default_rng(zlib.crc32(repr(name).encode()))


def normal_case(regime, coordinates, tensors, rows, D, dtype="float32", offset=0.0, sigma=1.0):
    """Rows sigma * (offset + N(0, 1)) with random gamma, and random dy if a gradient is judged."""
    rng = rng_for(regime, rows, D, dtype, offset, sigma)
    x = (sigma * (offset + rng.standard_normal((rows, D)))).astype(dtype)
    dy = rng.standard_normal((rows, D)).astype(dtype) if tensors != ("y",) else None
    gamma = rng.standard_normal(D).astype(dtype)
    return Case(regime, coordinates, tensors, x, gamma, dy)


OFFSETS = (0.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7)
GRADIENTS = ("dx", "dgamma", "dbeta")


def offset_cases():
    """y over mean / standard deviation, for four D; the gradients too where exact arithmetic can
    afford it.
    """
    for D, rows in ((3, 512), (64, 256), (1024, 48), (65536, 9)):
        tensors = ("y", *GRADIENTS) if D in (64, 1024) else ("y",)
        for offset in OFFSETS:
            yield normal_case("offset", {"offset": offset}, tensors, rows, D, offset=offset)


def kappa_case(along, nominal, rows=256, D=256, dtype="float32"):
    """dy with a large part along 1, along xhat (where sigma = 100 lifts the cap s**2 / eps), or
    both at an offset.
    """
    offset, sigma = {"ones": (0.0, 1.0), "xhat": (0.0, 100.0), "both": (100.0, 1.0)}[along]
    rng = rng_for("kappa", along, nominal)
    x = (sigma * (offset + rng.standard_normal((rows, D)))).astype(dtype)
    gamma = np.ones(D, dtype)
    xhat = reference.to_float64(reference.layer_norm(x, gamma, 0 * gamma, eps=EPS).xhat)
    part = {"ones": np.ones_like(xhat), "xhat": xhat, "both": 3 + xhat}[along]
    dy = (part + rng.standard_normal((rows, D)) / nominal).astype(dtype)
    kappa = reference.kappa(reference.layer_norm(x, gamma, 0 * gamma, dy, EPS), dy, gamma)
    where = {"along": along, "offset": offset, "sigma": sigma, "nominal": nominal}
    return Case("kappa", where | {"kappa": digits(kappa)}, ("dx",), x, gamma, dy)


def kappa_cases():
    for along, powers in (("ones", range(8)), ("xhat", range(8)), ("both", (2, 4, 6))):
        for power in powers:
            yield kappa_case(along, 10.0**power)


def rows_cases():
    """dgamma and dbeta, sums over ever more rows."""
    for dtype in ("float32", "bfloat16"):
        if dtype == "float32" or dtype in HALVES:
            for rows in (1000, 8192, 65536, 262144):
                yield normal_case("rows", {}, ("dgamma", "dbeta"), rows, 64, dtype)


def scale_cases():
    """sigma so large that squares overflow, and four numbers that do so between them."""
    for sigma in (1e-18, 1e18, 1e20, 1e30, 1e37):
        yield normal_case("sigma", {"sigma": sigma}, ("y", "dx"), 8, 1024, sigma=sigma)
    row = np.array([[3e20, 1e20, -2e20, 5e20]], np.float32)
    dy = np.array([[1.0, -2.0, 0.5, 3.0]], np.float32)
    where = {"row": "3e20 1e20 -2e20 5e20"}
    yield Case("sigma", where, ("y", "dx"), row, np.ones(4, np.float32), dy)


def constant_cases():
    """Constant rows, where y is 0; a constant upstream gradient, where dx is 0."""
    for value, D in ((33333334.0, 768), (3333.3, 1000), (0.1, 1024)):
        dy = rng_for("constant row", value).standard_normal((4, D)).astype(np.float32)
        x = np.full((4, D), value, np.float32)
        yield Case("constant row", {"value": value}, ("y", "dx"), x, np.ones(D, np.float32), dy)
    for offset in (0.0, 1e3):
        x = (offset + rng_for("constant g", offset).standard_normal((8, 1024))).astype(np.float32)
        dy, where = np.full_like(x, 0.1), {"offset": offset, "dy": 0.1}
        yield Case("constant g", where, ("dx",), x, np.ones(1024, np.float32), dy)


def float64_cases():
    for power in range(13):
        offset, tensors = 10.0**power, ("y", *GRADIENTS)
        yield normal_case("float64", {"offset": offset}, tensors, 16, 256, "float64", offset)


def half_cases():
    """Half-precision x, with parameters in x's dtype and in float32."""
    for dtype in HALVES:
        for parameters in (dtype, "float32"):
            for offset in (0.0, 1e1, 1e2, 1e3):
                coordinates = {"offset": offset, "parameters": parameters}
                tensors = ("y", *GRADIENTS)
                case = normal_case("half", coordinates, tensors, 48, 1024, dtype, offset)
                yield case._replace(gamma=case.gamma.astype(parameters))


def row_cases():
    """Rows that one can write down."""
    for start in (4096, 10000, 40000):
        x = np.arange(start, start + 4, dtype=np.float32)[None]
        yield Case("row", {"row": f"{start} to {start + 3}"}, ("y",), x, np.ones(4, np.float32))


def cases():
    """Every case, one at a time: the largest is 64 MiB."""
    first = offset_cases, kappa_cases, rows_cases, scale_cases
    for regime in (*first, constant_cases, float64_cases, half_cases, row_cases):
        yield from regime()


# The peers


class Peer(NamedTuple):
    """run(case) returns y, or (y, dx, dgamma, dbeta) where the case has a dy, as NumPy arrays."""

    name: str
    framework: str
    how: str
    run: Callable


def running(forward, backward, case):
    """The results of a pair of functions; see :func:`benchmarks.norms.pair`."""
    y, saved = forward(case.x, case.gamma, case.beta, EPS)
    return (y,) if case.dy is None else (y, *backward(case.dy, saved))


def lnlib_peers():
    def precise(case):
        wide = case.x.dtype == np.float64
        return None if wide else running(partial(forward, precise=True), backward, case)

    forward, backward = layernorm.layer_norm_forward, layernorm.layer_norm_backward
    run = partial(running, forward, backward)
    yield Peer("lnlib", "lnlib", "layer_norm_forward, layer_norm_backward", run)
    yield Peer("lnlib-precise", "lnlib", "the same with precise=True", precise)


def torch_peers():
    import torch

    torch.set_num_threads(1)

    def tensor(a):
        if a.dtype.name == "bfloat16":
            return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16).requires_grad_()
        return torch.from_numpy(a).requires_grad_()

    def array(t):
        t = t.detach()
        return t.float().numpy() if t.dtype == torch.bfloat16 else t.numpy()

    def both(leaves, eps):
        x, gamma, beta = leaves
        y = torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, eps)
        return y, lambda dy: torch.autograd.grad(y, leaves, dy)

    run = partial(running, *norms.pair(tensor, array, both))
    capability = torch.backends.cpu.get_cpu_capability()
    yield Peer("pytorch", "PyTorch", f"torch.nn.functional.layer_norm, CPU ({capability})", run)


def flax_peers():
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import flax.linen
    import jax

    def runner(fast):
        def apply(x, gamma, beta):
            # dtype is that of y; left alone it is the wider of x's and the parameters'.
            layer = flax.linen.LayerNorm(epsilon=EPS, use_fast_variance=fast, dtype=x.dtype)
            return layer.apply({"params": {"scale": gamma, "bias": beta}}, x)

        @jax.jit
        def both(x, gamma, beta, dy):
            y, pull_back = jax.vjp(apply, x, gamma, beta)
            return (y, *pull_back(dy))

        forward = jax.jit(apply)

        def run(case):
            wide = jax.enable_x64(True) if case.x.dtype == np.float64 else contextlib.nullcontext()
            with wide:
                arguments = (case.x, case.gamma, case.beta)
                out = (forward(*arguments),) if case.dy is None else both(*arguments, case.dy)
                return tuple(map(np.asarray, out))

        return run

    how = "flax.linen.LayerNorm under jax.jit, CPU, use_fast_variance={}, dtype that of x"
    yield Peer("flax", "Flax", how.format("True (the default)"), runner(True))
    yield Peer("flax-two-pass", "Flax", how.format("False"), runner(False))


def keras_peers():
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    import keras

    run = partial(running, *norms.tensorflow(keras.ops.layer_normalization))
    if keras.backend.backend() == "tensorflow":
        yield Peer("keras", "Keras on TensorFlow", "keras.ops.layer_normalization, CPU, eager", run)


def peers():
    """All that can be imported, lnlib first, and what is left out and why."""
    return installed(lnlib=lnlib_peers, PyTorch=torch_peers, Flax=flax_peers, Keras=keras_peers)


# The judge


class Exact(NamedTuple):
    """The exact tensors of a case: correctly rounded float64, or fixed point for float64 cases."""

    tensors: dict
    judge_error: float = 0.0


def wide_parameter_gradients(case):
    """dgamma and dbeta in float64 with exactly rounded sums over rows, and a bound on dgamma's
    relative error.

    For rows without offset, u = 2**-53 and D = 64: a pairwise sum of D terms errs by less than 16 u
    sum|term|, so c errs by less than 20 u max|c|, its mean square by less than 60 u of itself and
    xhat by less than 100 u (1 + |xhat|) while no |c| exceeds 5 sigma. The product adds u of itself,
    and fsum one rounding.
    """
    u = 2.0**-53
    x, dy = case.x.astype(np.float64), case.dy.astype(np.float64)
    c = x - x.mean(axis=1, keepdims=True)
    xhat = c / np.sqrt((c * c).mean(axis=1, keepdims=True) + EPS)
    terms = dy * xhat, dy
    dgamma, dbeta = (np.array([math.fsum(column) for column in of.T]) for of in terms)
    bound = 101 * u * np.linalg.norm(np.sum(np.abs(dy) * (1 + np.abs(xhat)), axis=0))
    return Exact({"dgamma": dgamma, "dbeta": dbeta}, bound / np.linalg.norm(dgamma))


def judge(case):
    if case.regime == "rows":  # too many for exact arithmetic
        return wide_parameter_gradients(case)
    exact = reference.layer_norm(case.x, case.gamma, case.beta, case.dy, EPS)
    tensors = {name: getattr(exact, name) for name in case.tensors}
    if case.x.dtype == np.float64:
        return Exact(tensors)
    # Rounded to float64 the exact tensor is right to 1.1e-16, a hundred-millionth of the errors
    # below. Where it is below 1e-100 it is zero, and what stands there is the judge's own rounding,
    # some 2**-400.
    rounded = {name: reference.to_float64(t) for name, t in tensors.items()}
    return Exact({name: np.where(np.abs(t) < 1e-100, 0.0, t) for name, t in rounded.items()})


def _error(value, exact):
    """Relative L2 error of a row or a tensor; inf for NaN, for Inf, and where only exact is 0."""
    if exact.dtype == object:
        return reference.relative_error(value, exact)
    value = value.astype(np.float64)
    if not np.isfinite(value).all():
        return math.inf
    if norm := np.linalg.norm(exact):
        return float(np.linalg.norm(value - exact) / norm)
    return math.inf if value.any() else 0.0


def measure(tensor, value, exact):
    """Error (median over rows for y and dx, whole for dgamma and dbeta), correct digits, and what
    went wrong, in a word.
    """
    by_row = tensor in ("y", "dx")
    error = float(np.median([*map(_error, value, exact)])) if by_row else _error(value, exact)
    wide, all_zero = value.astype(np.float64), not (exact != 0).any()
    correct = 0 - math.log10(min(max(error, 1e-17), 1.0))
    found = {"relative_error": digits(error), "correct_digits": round(correct, 2)}
    wrong = {"nan": np.isnan(wide).any(), "inf": np.isinf(wide).any()}
    wrong["zero"] = not (all_zero or wide.any())
    found["flag"] = next((word for word, seen in wrong.items() if seen), "")
    if all_zero:  # an exact zero has no relative error: how large is what stands there instead?
        found["max_abs"] = digits(float(np.max(np.abs(wide))))
    return found


def records_of(case, contestants):
    """The records of one case: one for each peer and tensor."""
    exact = judge(case)
    for peer in contestants:
        with np.errstate(all="ignore"):
            out = peer.run(case)
        if out is None:
            continue
        values = dict(zip(("y", *GRADIENTS), out))
        dtype, (rows, D) = case.x.dtype.name, case.x.shape
        record = {"regime": case.regime, "framework": peer.name, "dtype": dtype}
        record |= {"D": D, "rows": rows, **case.coordinates}
        for tensor in case.tensors:
            found = {"tensor": tensor}
            if case.regime == "rows":
                found["judge_error"] = digits(exact.judge_error, 2)
            yield record | found | measure(tensor, values[tensor], exact.tensors[tensor])


# The file and the tables


def worst(records):
    """A line for each regime, dtype and tensor, the largest error of each framework in it."""
    names, found = list(dict.fromkeys(r["framework"] for r in records)), {}
    for r in records:
        error = math.inf if r["relative_error"] is None else r["relative_error"]
        line = found.setdefault((r["regime"], r["dtype"], r["tensor"]), {})
        line[r["framework"]] = max(error, line.get(r["framework"], 0.0))
    lines = [
        [" ".join(key), *(f"{line[name]:.1e}" if name in line else "" for name in names)]
        for key, line in found.items()
    ]
    return grid("largest relative L2 error; inf: not finite, or not 0", ["", *names], lines)


def main(arguments=None):
    title = "Accuracy of layer norms against exact arithmetic"
    parser = argparse.ArgumentParser(description=title)
    default = "default: benchmarks/results/accuracy/frameworks.json"
    parser.add_argument("--out", type=new_file, default=RESULTS, help=default)
    options = parser.parse_args(arguments)
    contestants, left_out = peers()
    start = time.monotonic()
    records = [record for case in cases() for record in records_of(case, contestants)]
    rows, whole = "median over rows", "whole tensor"
    result = {
        "title": title,
        "provenance": provenance("python -m benchmarks.accuracy", PACKAGES) | {"eps": EPS},
        "peers": {p.name: {"framework": p.framework, "how": p.how} for p in contestants},
        "left_out": left_out,
        "statistics": {"y": rows, "dx": rows, "dgamma": whole, "dbeta": whole},
        "records": records,
    }
    print(*worst(records), sep="\n")
    spent = f"{len(records)} records in {time.monotonic() - start:.0f} s"
    print(f"{spent}; left out: {', '.join(left_out) or 'nobody'}")
    save(options.out, result)


if __name__ == "__main__":
    main()
