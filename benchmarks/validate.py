"""Do the layer norms that people use hold what :mod:`normcheck` asks? Every one installed, the same
cases.

Run from the repository's root: ``python -m benchmarks.validate`` (see benchmarks/README.md).
"""

import argparse
import time
import warnings

from lnbook.measure.provenance import FOLDER, digits, provenance, save
from lnlib import cpu, gpu, layernorm
from normcheck import validate

from .command import installed, new_file

RESULTS = FOLDER / "validate" / "frameworks.json"
TWICE = {"double_backward": True}
ON_JAX = {"framework": "jax", "dtypes": ("float32",), **TWICE}
PACKAGES = ("numpy", "numba", "ml_dtypes", "torch", "jax", "jaxlib", "flax", "keras")
#: What is kept of a failure.
FAILURE = ("property", "tensor", "error", "failed", "tried", "sentence", "case", "test")


def lnlib_targets():
    """(name, target, options) of the backends of this library, and of RMS norm."""
    wide = {"dtypes": ("float32", "float64", "float16", "bfloat16")}
    # The interpreter of CUDA kernels takes seconds for a large case; JAX and torch.compile compile
    # every shape.
    few = {"dtypes": ("float32",), "most_features": 130, "most_rows": 100, "quick": True}
    backends = {"lnlib.layernorm": layernorm, "lnlib.cpu": cpu, "lnlib.gpu, interpreted": gpu}
    for name, backend in backends.items():
        target = backend.layer_norm_forward, backend.layer_norm_backward
        yield name, target, few if backend is gpu else wide
    rms_norm = layernorm.rms_norm_forward, layernorm.rms_norm_backward
    yield "lnlib.layernorm, RMS norm", rms_norm, {**wide, "kind": "rms_norm"}


def torch_targets():
    import torch

    torch.set_num_threads(1)
    F = torch.nn.functional
    wide = {"framework": "torch", "dtypes": ("float32", "float64", "float16", "bfloat16")}

    # Every new eps would be compiled anew, and after a few of them PyTorch stops compiling.
    torch._dynamo.config.recompile_limit = 1000

    def layer_norm(x, gamma, beta):
        return F.layer_norm(x, gamma.shape, gamma, beta, 1e-5)

    def rms_norm(x, gamma):
        return F.rms_norm(x, gamma.shape, gamma, 1e-5)

    yield "torch.nn.LayerNorm", torch.nn.LayerNorm, {**wide, **TWICE}
    yield "torch.nn.RMSNorm", torch.nn.RMSNorm, {**wide, **TWICE, "kind": "rms_norm"}
    small = {**wide, "dtypes": ("float32",), "quick": True, "eps": 1e-5}
    yield "torch.compile, layer norm", torch.compile(layer_norm, dynamic=True), small
    compiled = torch.compile(rms_norm, dynamic=True)
    yield "torch.compile, RMS norm", compiled, {**small, "kind": "rms_norm"}


def flax_targets():
    import flax.linen

    options = {**ON_JAX, "most_features": 130, "most_rows": 300}
    for fast in (True, False):

        def layer_norm(x, gamma, beta, eps, fast=fast):
            layer = flax.linen.LayerNorm(epsilon=eps, use_fast_variance=fast, dtype=x.dtype)
            return layer.apply({"params": {"scale": gamma, "bias": beta}}, x)

        yield f"flax.linen.LayerNorm, use_fast_variance={fast}", layer_norm, options

    def rms_norm(x, gamma, eps):
        return flax.linen.RMSNorm(epsilon=eps, dtype=x.dtype).apply({"params": {"scale": gamma}}, x)

    yield "flax.linen.RMSNorm", rms_norm, {**options, "kind": "rms_norm"}


def keras_targets():
    import keras

    def layer_norm(x, gamma, beta, eps):
        return keras.ops.layer_normalization(x, gamma, beta, axis=-1, epsilon=eps)

    if keras.backend.backend() == "jax":
        options = {**ON_JAX, "most_features": 130, "most_rows": 300}
        yield "keras.ops.layer_normalization on JAX", layer_norm, options


def record(name, target, options):
    """One record of the results: what held, what failed with its smallest case, the digits of
    ordinary rows.
    """
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the frameworks
        report = validate(target, **options)
    seconds = round(time.monotonic() - started, 1)
    failures = [
        {name: getattr(f, name) for name in FAILURE}
        | {"error": None if f.error is None else digits(f.error), "case": str(f.case)}
        for f in report.failures
    ]
    asked = {"name": name, "kind": options.get("kind", "layer_norm"), "dtypes": options["dtypes"]}
    asked["quick"] = options.get("quick", False)
    found = {"held": len(report.kept), "properties": len(report.properties)}
    found |= {name: getattr(report, name) for name in ("digits", "notes", "untested")}
    return asked | found | {"failures": failures, "seconds": seconds}


def main(arguments=None):
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--out", type=new_file, default=RESULTS, help="where the results go")
    options = parser.parse_args(arguments)
    peers = {"PyTorch": torch_targets, "Flax": flax_targets, "Keras": keras_targets}
    found, left_out = installed(lnlib=lnlib_targets, **peers)
    made, records = provenance("python -m benchmarks.validate", PACKAGES), []
    for name, target, given in found:
        one = record(name, target, given)
        records.append(one | {"date": made["date"], "commit": made["commit"]})
        held = f"{one['held']} of {one['properties']} held"
        print(f"{name}: {held}, {one['seconds']:.0f} s", flush=True)
        save(options.out, {"provenance": made, "left_out": left_out, "records": records})


if __name__ == "__main__":
    main()
