"""How many digits do layer norms keep? All on the same inputs, against exact arithmetic.

Run from the repository's root: ``python -m benchmarks.accuracy`` (see benchmarks/README.md). Inputs
are float arrays made from a seed that depends on the case alone. ``lnlib.reference`` is the judge;
the sums over many rows have a judge of their own, with a bound on its error in every record.

The same eps for all: 1e-5. gamma is random where not said otherwise, beta is zero, so that the
digits of y are digits of xhat. One thread, as far as a framework lets itself be told.
"""

import argparse
import functools
import math
import os
import time
import zlib
from functools import partial
from typing import NamedTuple

import numpy as np

import normcheck.cases
from lnbook.measure.provenance import FOLDER, digits, provenance, save
from lnlib import layernorm, reference
from normcheck.adapters import adapt
from normcheck.settings import Settings

from . import norms
from .command import across, new_file

try:
    import ml_dtypes  # noqa: F401 - importing it gives NumPy the dtype "bfloat16"

    HALVES = ("float16", "bfloat16")
except ImportError:
    HALVES = ("float16",)

EPS = 1e-5
RESULTS = FOLDER / "accuracy" / "frameworks.json"
PACKAGES = "numpy", "ml_dtypes", "torch", "jax", "jaxlib", "flax", "tensorflow-cpu", "keras"


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
    """y over mean / standard deviation, for four D; gradients where exact arithmetic is quick."""
    for D, rows in ((3, 512), (64, 256), (1024, 48), (65536, 9)):
        tensors = ("y", *GRADIENTS) if D in (64, 1024) else ("y",)
        for offset in OFFSETS:
            yield normal_case("offset", {"offset": offset}, tensors, rows, D, offset=offset)


def kappa_case(along, nominal, rows=256, D=256, dtype="float32"):
    """dy with a large part along 1, xhat (sigma = 100 lifts the cap s**2 / eps), or both."""
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


@functools.cache
def adapter(target, framework, parameters):
    """The target as normcheck calls it; of this dtype are gamma and beta."""
    return adapt(target, Settings(framework=framework, gamma_dtype=parameters))


class Peer(NamedTuple):
    """A layer norm: ``target`` is what normcheck takes of it, with arrays of ``kind``."""

    name: str
    framework: str
    how: str
    target: object
    kind: str = "numpy"

    def run(self, case):
        """y, dx, dgamma and dbeta as NumPy arrays."""
        called = adapter(self.target, self.kind, case.gamma.dtype.name)
        dy = np.ones_like(case.x) if case.dy is None else case.dy
        arrays, dtype = (case.x, case.gamma, case.beta, dy), case.x.dtype.name
        asked = normcheck.cases.Case(case.regime, *arrays, EPS, dtype, said=called.settings)
        return tuple(called.call(asked).tensors.values())


def lnlib_peers():
    forward, backward = layernorm.layer_norm_forward, layernorm.layer_norm_backward
    precise, how = partial(forward, precise=True), "the same with precise=True"
    yield Peer("lnlib", "lnlib", "layer_norm_forward, layer_norm_backward", (forward, backward))
    yield Peer("lnlib-precise", "lnlib", how, (precise, backward))


def torch_peers():
    import torch

    torch.set_num_threads(1)
    how = f"torch.nn.functional.layer_norm, CPU ({torch.backends.cpu.get_cpu_capability()})"
    yield Peer("pytorch", "PyTorch", how, torch.nn.functional.layer_norm, "torch")


def flax_peers():
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from flax.linen import LayerNorm

    how = "flax.linen.LayerNorm under jax.jit, CPU, use_fast_variance={}, dtype that of x"
    slow = norms.linen(LayerNorm, use_fast_variance=False)
    yield Peer("flax", "Flax", how.format("True (the default)"), norms.linen(LayerNorm), "jax")
    yield Peer("flax-two-pass", "Flax", how.format("False"), slow, "jax")


def keras_peers():
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    import keras

    pair, how = norms.tensorflow(keras.ops.layer_normalization), "CPU, eager"
    if keras.backend.backend() == "tensorflow":
        yield Peer("keras", "Keras on TensorFlow", f"keras.ops.layer_normalization, {how}", pair)


def peers():
    """All that can be imported, lnlib first, and what is left out and why."""
    families = {"lnlib": lnlib_peers, "PyTorch": torch_peers, "Flax": flax_peers}
    found, left_out = [], {}
    for name, family in (families | {"Keras": keras_peers}).items():
        try:
            found += family()
        except ImportError as error:
            left_out[name] = f"not installed ({error.name})"
    return found, left_out


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
    return {"dgamma": dgamma, "dbeta": dbeta}, bound / np.linalg.norm(dgamma)


def judge(case):
    """The exact tensors, correctly rounded or, of float64, in fixed point; the judge's error."""
    if case.regime == "rows":  # too many for exact arithmetic
        return wide_parameter_gradients(case)
    exact = reference.layer_norm(case.x, case.gamma, case.beta, case.dy, EPS)
    tensors = {name: getattr(exact, name) for name in case.tensors}
    if case.x.dtype == np.float64:
        return tensors, 0.0
    # Rounded to float64 the exact tensor is right to 1.1e-16, a hundred-millionth of the errors
    # below. Where it is below 1e-100 it is zero, and what stands there is the judge's own rounding,
    # some 2**-400.
    rounded = {name: reference.to_float64(t) for name, t in tensors.items()}
    return {name: np.where(np.abs(t) < 1e-100, 0.0, t) for name, t in rounded.items()}, 0.0


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
    """Error (of y and dx the median over rows), correct digits, and in a word what went wrong."""
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
    exact, judge_error = judge(case)
    dtype, (rows, D) = case.x.dtype.name, case.x.shape
    for peer in contestants:
        if peer.name == "lnlib-precise" and dtype == "float64":  # which is precise
            continue
        with np.errstate(all="ignore"):
            values = dict(zip(("y", *GRADIENTS), peer.run(case)))
        record = {"regime": case.regime, "framework": peer.name, "dtype": dtype}
        record |= {"D": D, "rows": rows, **case.coordinates}
        for tensor in case.tensors:
            found = {"tensor": tensor}
            if case.regime == "rows":
                found["judge_error"] = digits(judge_error, 2)
            yield record | found | measure(tensor, values[tensor], exact[tensor])


def worst(records):
    """A line for each regime, dtype and tensor, the largest error of each framework in it."""
    largest = {}
    for r in records:
        error = math.inf if r["relative_error"] is None else r["relative_error"]
        where = " ".join((r["regime"], r["dtype"], r["tensor"]))
        found = largest.setdefault((where, r["framework"]), r | {"where": where, "error": error})
        found["error"] = max(error, found["error"])
    title = "largest relative L2 error; inf: not finite, or not 0"
    return across(title, largest.values(), "where", lambda r: f"{r['error']:.1e}", "framework")


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
