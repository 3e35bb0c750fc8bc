"""normcheck on PyTorch, JAX and device arrays, where these are installed."""

import dataclasses
import functools
import os
import runpy
import subprocess
import sys

import numpy as np
import pytest
from pages import BOOK

from normcheck import TargetError, validate

pytestmark = pytest.mark.slow


def test_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def layer_norm(x, gamma, beta, eps):
        return torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, eps)

    report = validate(
        layer_norm,
        framework="torch",
        dtypes=("float32", "float64"),
        quick=True,
        double_backward=True,
    )
    assert report.held and {"gradients add up", "the second derivative"} <= set(report.kept)
    assert validate(torch.nn.RMSNorm, "rms_norm", "torch", quick=True).held
    with pytest.raises(TargetError, match="expected the tensor y"):
        validate(lambda x, *_: (x, x), framework="torch")


def with_backward(torch, backward):
    """PyTorch's layer norm with the gradients that ``backward(gradients, x, dy)`` returns;
    ``gradients(dy)`` are right.
    """

    class Function(torch.autograd.Function):
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
            return *backward(lambda dy: torch.autograd.grad(y, (x, gamma, beta), dy), x, dy), None

    return Function


def failed(target, framework="torch", **options):
    report = validate(target, framework=framework, quick=True, **options)
    return {failure.property: failure.sentence for failure in report.failures}


def test_wrong_functions_of_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    class Wrong(torch.autograd.Function):
        """dgamma is right where dx is wanted too, and else 0."""

        @staticmethod
        def forward(ctx, x, gamma, beta, eps):
            xhat = (x - x.mean(-1, keepdim=True)) * (
                x.var(-1, keepdim=True, correction=0) + eps
            ).rsqrt()
            ctx.save_for_backward(xhat)
            ctx.rest = x, gamma, beta, eps
            return gamma * xhat + beta

        @staticmethod
        def backward(ctx, dy):
            x, gamma, beta, eps = (
                a.detach().requires_grad_() if isinstance(a, torch.Tensor) else a for a in ctx.rest
            )
            with torch.enable_grad():
                y = torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, eps)
                dx, dgamma, dbeta = torch.autograd.grad(y, (x, gamma, beta), dy)
            return dx, dgamma * ctx.needs_input_grad[0], dbeta, None

    found = failed(Wrong)  # as Wrong.apply
    assert "one gradient alone" in found and "dgamma is wrong" in found["one gradient alone"]
    found = failed(
        lambda x, gamma, beta, eps: torch.nn.functional.layer_norm(
            x, gamma.shape, gamma, 0 * gamma, eps
        )
    )
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

    assert validate(
        watched,
        framework="jax",
        quick=True,
        most_features=64,
        most_rows=99,
        double_backward=True,
        nested=True,
    ).held
    # The same shape was compiled again in every call. Nine are for y or one gradient alone and the
    # derivatives.
    assert len(traced) <= len(set(traced)) + 9
    assert "ordinary rows" in failed(
        lambda x, gamma, beta, eps: layer_norm(x, gamma, beta, eps) * gamma,
        "jax",
        most_features=7,
        most_rows=15,
    )


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
    for module, kind in (
        (nn.LayerNorm(768, eps=1e-6), "layer_norm"),
        (nn.RMSNorm(12, eps=1e-3), "rms_norm"),
        (nn.LayerNorm(5, bias=False), "layer_norm"),
    ):
        report = validate(module, kind, "torch", quick=True, double_backward=True)
        assert (
            report.held and "the second derivative" in report.kept and len(report.properties) > 15
        )
        assert f"any eps but {module.eps:g}" in report.untested
        assert ("beta and dbeta" in report.untested) == (
            kind == "layer_norm" and module.bias is None
        )

    class GammaTwice(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x) * self.weight

    assert "ordinary rows" in failed(GammaTwice(24))
    for wrong, message in (
        (nn.Linear(3, 4), r"shapes \[\(4, 3\), \(4,\)\]"),
        (nn.RMSNorm(4, eps=None), "attribute eps"),
    ):
        with pytest.raises(TargetError, match=message):
            validate(wrong, framework="torch")


def test_nested_derivatives_of_pytorch():
    """Statistics that are saved without a graph: the third derivative is that of other ones
    (pytorch/pytorch#196700).
    """
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
                gradients = torch.autograd.grad(
                    product, (dy, *inputs), create_graph=True, allow_unused=True
                )
            return (*gradients, None)

    options = {
        "framework": "torch",
        "dtypes": ("float64",),
        "quick": True,
        "double_backward": True,
        "nested": True,
    }
    assert validate(layer_norm, **options).held
    assert validate(
        lambda x, gamma, eps: gamma * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps),
        "rms_norm",
        **options,
    ).held
    assert [failure.property for failure in validate(Frozen.apply, **options).failures] == [
        "nested derivatives"
    ]


SIMULATED = """
from numba import cuda
from lnlib import layer_norm_forward, layer_norm_backward
from normcheck import validate
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
    ran = subprocess.run(
        [sys.executable, "-c", SIMULATED],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.stdout.split() == ["True", "True"], ran.stderr[-2000:]


def small(target, **options):
    """What failed of a small part of the run, by property: its sentence."""
    return failed(target, most_features=7, most_rows=15, **options)


def test_parameters_go_by_their_names_and_have_a_number_for_each_feature():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    nn = torch.nn

    class BiasFirst(nn.Module):
        def __init__(self, D, epsilon=1e-5):
            super().__init__()
            self.bias, self.weight, self.variance_epsilon = (
                nn.Parameter(torch.zeros(D)),
                nn.Parameter(torch.ones(D)),
                epsilon,
            )

        def forward(self, x):
            return nn.functional.layer_norm(
                x, x.shape[-1:], self.weight, self.bias, self.variance_epsilon
            )

    class Swapped(BiasFirst):
        """Its names say the other way round what they are."""

        def forward(self, x):
            return nn.functional.layer_norm(
                x, x.shape[-1:], self.bias, self.weight, self.variance_epsilon
            )

    class OneGain(nn.Module):
        def __init__(self, D, eps=1e-5):
            super().__init__()
            self.g, self.eps = nn.Parameter(torch.ones(1)), eps

        def forward(self, x):
            return self.g * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    class NoEps(BiasFirst):
        def __init__(self, D):
            super().__init__(D)

    assert (
        not small(BiasFirst) and not small(BiasFirst(5, 1e-3)) and "ordinary rows" in small(Swapped)
    )
    for wrong in (OneGain, OneGain(7)):
        with pytest.raises(
            TargetError,
            match=r"found a (parameter g|module with parameters) of shapes? .*\(1,\).*, expected ",
        ):
            small(wrong, kind="rms_norm")
    with pytest.raises(
        TargetError, match="found a class that takes D, expected an argument eps or epsilon"
    ):
        small(NoEps)
    with pytest.raises(TargetError, match='kind="rms_norm" or beta=False'):
        small(nn.RMSNorm)
    assert not small(NoEps, eps=1e-5)


def test_a_module_is_the_same_in_every_call():
    """What one keeps for its backward belongs to the last call."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    class Keeping(torch.nn.LayerNorm):
        def forward(self, x):
            self.kept = y = torch.nn.functional.layer_norm(
                x, x.shape[-1:], self.weight, self.bias, self.eps
            )
            if y.requires_grad:
                y.register_hook(lambda dy: dy + (self.kept is not y))
            return y + 0

    assert set(small(Keeping)) == set(small(Keeping(7))) == {"calls in any order"}


def test_what_is_run_where_no_gradient_is_asked_for():
    """A function of its own for inference, or for evaluation."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    class Inference(torch.nn.LayerNorm):
        def forward(self, x):
            return super().forward(x) * (1 + (not torch.is_grad_enabled()))

    class Evaluation(torch.nn.LayerNorm):
        def forward(self, x):
            return super().forward(x) * (2 - self.training)

    assert set(small(Inference)) == set(small(Evaluation)) == {"y without gradients"}


def test_what_jax_runs_where_nothing_is_differentiated():
    """Of a custom_vjp it is the function itself; elsewhere its forward rule."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    from normcheck.adapters import adapt
    from normcheck.cases import draw
    from normcheck.checks import check
    from normcheck.settings import Settings

    def layer_norm(x, gamma, beta, eps):
        c = x - x.mean(-1, keepdims=True)
        return gamma * c * jax.lax.rsqrt((c * c).mean(-1, keepdims=True) + eps) + beta

    wrong = jax.custom_vjp(lambda *given: 2 * layer_norm(*given))
    wrong.defvjp(
        lambda *given: (layer_norm(*given), given),
        lambda given, dy: jax.vjp(layer_norm, *given)[1](dy),
    )
    target = adapt(wrong, Settings(framework="jax"))
    case = draw("y without gradients", (2, 3, 7), "float32")
    assert (
        not check(target, dataclasses.replace(case, property=""))
        and check(target, case)[0].tensor == "y"
    )
    assert not check(adapt(layer_norm, target.settings), case)


def test_what_is_compiled_is_compiled_for_every_case():
    """PyTorch gives up after eight shapes, and runs the function as it is: right, in this case."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from normcheck.adapters import adapt
    from normcheck.cases import draw
    from normcheck.settings import Settings

    @functools.partial(torch.compile, backend="eager", dynamic=False)
    def target(x, gamma, beta, eps):
        return torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, eps) * (
            1 + torch.compiler.is_compiling()
        )

    adapted, limit = (
        adapt(target, Settings(framework="torch")),
        torch._dynamo.config.recompile_limit,
    )
    for D in range(2, 2 + limit + 3):
        (outcome,) = adapted.calls([case := draw("any width", (2, D), "float32")])
        dbeta = case.dy.sum(axis=0)
        np.testing.assert_allclose(outcome.tensors["dbeta"], 2 * dbeta, rtol=1e-4, atol=1e-4)
    assert torch._dynamo.config.recompile_limit == limit


def test_the_gradient_of_a_jvp():
    """PyTorch's own layer norm has a JVP whose gradient is that of another function
    (pytorch/pytorch#196700).
    """
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def layer_norm(x, gamma, beta, eps):
        c = x - x.mean(-1, keepdim=True)
        return gamma * c / torch.sqrt((c * c).mean(-1, keepdim=True) + eps) + beta

    def stopped(x, gamma, beta, eps):
        c = x - x.mean(-1, keepdim=True)
        return gamma * c / torch.sqrt((c * c).mean(-1, keepdim=True) + eps).detach() + beta

    options = {"dtypes": ("float64",), "forward_mode": True}
    assert not small(layer_norm, **options) and "the gradient of a JVP" not in small(layer_norm)
    assert not small(torch.nn.RMSNorm, kind="rms_norm", **options)
    assert "ordinary rows" in small(stopped, **options)
    found = small(torch.nn.LayerNorm, **options)
    assert (
        set(found) == {"the gradient of a JVP"}
        and "<dy, JVP> with respect to x is wrong" in found.popitem()[1]
    )


def test_tensors_that_nobody_wrote_are_filled():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def partial_sums(gradients, x, dy):
        """256 partial sums, of which some are written."""
        partial = torch.empty(256, dy.shape[-1], dtype=dy.dtype)
        if (
            not torch.utils.deterministic.fill_uninitialized_memory
            or not torch.are_deterministic_algorithms_enabled()
        ):
            partial.zero_()  # as a fresh heap has it
        dx, dgamma, dbeta = gradients(dy)
        partial[0] = dgamma
        return dx, partial.sum(0), dbeta

    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        found = small(with_backward(torch, partial_sums))
        assert (
            set(found) == {"memory that nobody wrote"}
            and "dgamma is not finite" in found.popitem()[1]
        )
        assert (
            torch.are_deterministic_algorithms_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ) == (before[0], False)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = before[1]
