"""lnlib.validate on PyTorch, JAX and device arrays, where these are installed."""

import os
import runpy
import subprocess
import sys

import numpy as np
import pytest
from pages import BOOK

from lnlib.validate import TargetError, validate

pytestmark = pytest.mark.slow


def test_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def layer_norm(x, gamma, beta, eps):
        return torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, eps)

    report = validate(layer_norm, framework="torch", dtypes=("float32", "float64"), quick=True, double_backward=True)
    assert report.held and {"gradients add up", "the second derivative"} <= set(report.kept)
    assert validate(torch.nn.RMSNorm, "rms_norm", "torch", quick=True).held
    with pytest.raises(TargetError, match="expected the tensor y"):
        validate(lambda x, *_: (x, x), framework="torch")


def failed(target, framework="torch", **options):
    report = validate(target, framework=framework, quick=True, **options)
    return {failure.property: failure.sentence for failure in report.failures}


def test_wrong_functions_of_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    class Wrong(torch.autograd.Function):
        """dgamma is right where dx is wanted too, and else 0."""

        @staticmethod
        def forward(ctx, x, gamma, beta, eps):
            xhat = (x - x.mean(-1, keepdim=True)) * (x.var(-1, keepdim=True, correction=0) + eps).rsqrt()
            ctx.save_for_backward(xhat)
            ctx.rest = x, gamma, beta, eps
            return gamma * xhat + beta

        @staticmethod
        def backward(ctx, dy):
            x, gamma, beta, eps = (a.detach().requires_grad_() if isinstance(a, torch.Tensor) else a for a in ctx.rest)
            with torch.enable_grad():
                y = torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, eps)
                dx, dgamma, dbeta = torch.autograd.grad(y, (x, gamma, beta), dy)
            return dx, dgamma * ctx.needs_input_grad[0], dbeta, None

    found = failed(Wrong)  # as Wrong.apply
    assert "one gradient alone" in found and "dgamma is wrong" in found["one gradient alone"]
    found = failed(lambda x, gamma, beta, eps: torch.nn.functional.layer_norm(x, gamma.shape, gamma, 0 * gamma, eps))
    assert "dbeta is None" in found["ordinary rows"]


def test_jax():
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax = pytest.importorskip("jax", reason="JAX is not installed")

    def layer_norm(x, gamma, beta, eps):
        c = x - x.mean(-1, keepdims=True)
        return gamma * c * jax.lax.rsqrt((c * c).mean(-1, keepdims=True) + np.float32(eps)) + beta

    traced = []

    def watched(x, gamma, beta, eps):
        traced.append((x.shape, eps))
        return layer_norm(x, gamma, beta, eps)

    assert validate(watched, framework="jax", quick=True, most_features=64, most_rows=99,
                    double_backward=True, nested=True).held
    # The same shape was compiled again in every call. Eight are for one gradient alone and the derivatives.
    assert len(traced) <= len(set(traced)) + 8
    assert "ordinary rows" in failed(lambda x, gamma, beta, eps: layer_norm(x, gamma, beta, eps) * gamma, "jax",
                                     most_features=7, most_rows=15)


@pytest.mark.parametrize("name, package", [("torch", "torch"), ("jax", "jax")])
def test_the_examples_of_the_page(name, package, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.syspath_prepend(BOOK / "examples")
    found = runpy.run_path(BOOK / f"examples/validate_{name}.py")
    tests = [value for key, value in found.items() if key.startswith("test_")]
    assert tests
    for test in tests:
        test()


def test_modules_of_one_width_and_one_eps():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    nn = torch.nn
    for module, kind in ((nn.LayerNorm(768, eps=1e-6), "layer_norm"), (nn.RMSNorm(12, eps=1e-3), "rms_norm"),
                         (nn.LayerNorm(5, bias=False), "layer_norm")):
        report = validate(module, kind, "torch", quick=True, double_backward=True)
        assert report.held and "the second derivative" in report.kept and len(report.properties) > 15
        assert f"any eps but {module.eps:g}" in report.untested
        assert ("beta and dbeta" in report.untested) == (kind == "layer_norm" and module.bias is None)

    class GammaTwice(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x) * self.weight

    assert "ordinary rows" in failed(GammaTwice(24))
    for wrong, message in ((nn.Linear(3, 4), r"shapes \[\(4, 3\), \(4,\)\]"), (nn.RMSNorm(4, eps=None), "attribute eps")):
        with pytest.raises(TargetError, match=message):
            validate(wrong, framework="torch")


def test_nested_derivatives_of_pytorch():
    """Statistics that are saved without a graph: the third derivative is that of other ones (pytorch/pytorch#196700)."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def layer_norm(x, gamma, beta, eps):
        c = x - x.mean(-1, keepdim=True)
        return gamma * c / torch.sqrt((c * c).mean(-1, keepdim=True) + eps) + beta

    class Frozen(torch.autograd.Function):
        """Its second derivative is right, and takes the statistics for constants."""

        @staticmethod
        def forward(ctx, x, gamma, beta, eps):
            ctx.save_for_backward(x, gamma, beta)
            ctx.eps = eps
            return layer_norm(x, gamma, beta, eps)

        @staticmethod
        def backward(ctx, dy):
            return (*Backward.apply(dy, *ctx.saved_tensors, ctx.eps), None)

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, dy, *rest):
            ctx.rest = dy, *rest
            with torch.enable_grad():
                arguments = [a.detach().requires_grad_() for a in rest[:3]]
                return torch.autograd.grad(layer_norm(*arguments, rest[3]), arguments, dy)

        @staticmethod
        def backward(ctx, *v):
            dy, *arguments, eps = ctx.rest
            with torch.enable_grad():
                dy, *inputs = (a.detach().requires_grad_() for a in (dy, *arguments))
                found = torch.autograd.grad(layer_norm(*inputs, eps), inputs, dy, create_graph=True)
                product = sum((a * b).sum() for a, b in zip(v, found))
                gradients = torch.autograd.grad(product, (dy, *inputs), create_graph=True, allow_unused=True)
            return (*gradients, None)

    options = {"framework": "torch", "dtypes": ("float64",), "quick": True, "double_backward": True, "nested": True}
    assert validate(layer_norm, **options).held
    assert validate(lambda x, gamma, eps: gamma * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps), "rms_norm",
                    **options).held
    assert [failure.property for failure in validate(Frozen.apply, **options).failures] == ["nested derivatives"]


SIMULATED = """
from numba import cuda
from lnlib import layer_norm_forward, layer_norm_backward
from lnlib.validate import validate
def forward(x, gamma, beta, eps):
    y, cache = layer_norm_forward(*(a.copy_to_host() for a in (x, gamma, beta)), eps)
    return cuda.to_device(y), cache
def backward(dy, cache):
    return tuple(map(cuda.to_device, layer_norm_backward(dy.copy_to_host(), cache)))
report = validate((forward, backward), framework="numba", quick=True)
print(report.held, "memory in any order" in report.kept)
"""


def test_numba_device_arrays():
    pytest.importorskip("numba.cuda", reason="Numba has no CUDA target here")
    ran = subprocess.run([sys.executable, "-c", SIMULATED], env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
                         capture_output=True, text=True)
    assert ran.stdout.split() == ["True", "True"], ran.stderr[-2000:]


def test_tensors_have_the_strides_that_pytorch_gives_and_dy_those_of_what_was_done_to_y():
    """NumPy gives arrays without rows strides of 0; a dy that y.sum() makes has them, and no caller made it."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def strict(x, gamma, beta, eps):
        assert x.stride(-1) == 1
        return torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, eps)

    assert not failed(strict, contiguous=True, most_features=7, most_rows=15)
    assert set(failed(strict, most_features=7, most_rows=15)) == {"memory in any order"}

    class AsX(torch.autograd.Function):
        """dy is walked with the strides of x."""

        @staticmethod
        def forward(ctx, x, gamma, beta, eps):
            ctx.save_for_backward(x, gamma, beta)
            ctx.eps = eps
            return torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, eps)

        @staticmethod
        def backward(ctx, dy):
            x, gamma, beta = (a.detach().requires_grad_() for a in ctx.saved_tensors)
            with torch.enable_grad():
                y = torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, ctx.eps)
            return (*torch.autograd.grad(y, (x, gamma, beta), dy.as_strided(x.shape, x.stride())), None)

    found = validate(AsX, framework="torch", quick=True, contiguous=True, most_features=7, most_rows=15).failures
    assert [failure.property for failure in found] == ["memory in any order"] and set(found[0].case.layouts) == {"dy"}
