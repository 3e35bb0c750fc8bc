"""lnlib.validate on PyTorch and JAX, where these are installed."""

import os
import runpy

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
    with pytest.raises(TypeError, match="expected its class"):
        validate(torch.nn.LayerNorm(7), framework="torch")
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

    found = failed(Wrong.apply)
    assert "one gradient alone" in found and "dgamma is wrong" in found["one gradient alone"]
    found = failed(lambda x, gamma, beta, eps: torch.nn.functional.layer_norm(x, gamma.shape, gamma, 0 * gamma, eps))
    assert "dbeta is None" in found["ordinary rows"]


def test_jax():
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax = pytest.importorskip("jax", reason="JAX is not installed")

    def layer_norm(x, gamma, beta, eps):
        c = x - x.mean(-1, keepdims=True)
        return gamma * c * jax.lax.rsqrt((c * c).mean(-1, keepdims=True) + np.float32(eps)) + beta

    assert validate(layer_norm, framework="jax", quick=True, most_features=64, most_rows=99,
                    double_backward=True).held
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
