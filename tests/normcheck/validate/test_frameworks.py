"""normcheck on PyTorch, JAX and Numba's device arrays, where these are installed: what is right
holds, and what a target may be. Wrong ones are in faulty_torch.py.
"""

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
from normcheck.adapters import adapt
from normcheck.cases import UNWRITTEN, draw
from normcheck.checks import check, of_pytorch
from normcheck.layouts import laid_out
from normcheck.settings import Settings
from normcheck.targets import execute

pytestmark = pytest.mark.slow


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def jax(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    return pytest.importorskip("jax", reason="JAX is not installed")


def small(target, framework="torch", **options):
    """What failed of a small part of the run, by property: its sentence."""
    limits = {"quick": True, "most_features": 7, "most_rows": 15}
    report = validate(target, framework=framework, **limits, **options)
    return {failure.property: failure.sentence for failure in report.failures}


def test_pytorch(torch):
    def layer_norm(x, gamma, beta, eps):
        return torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, eps)

    def in_float32(x, *rest):
        return layer_norm(x.float(), *(a.float() for a in rest[:2]), rest[2]).to(x.dtype)

    options = {"framework": "torch", "quick": True, "double_backward": True, "gradcheck": True}
    report = validate(layer_norm, dtypes=("float32", "float64"), **options)
    assert report.held and {"gradients add up", "the second derivative"} <= set(report.kept)
    assert report.notes[0].startswith("torch.autograd.gradcheck passes on x of shape (2, 3), fl")
    (note,) = validate(in_float32, case="any shape", **options).notes
    assert note.startswith("torch.autograd.gradcheck raises GradcheckError: ")
    schema = "(Tensor x, Tensor gamma, Tensor beta, float eps) -> Tensor"
    op = torch.library.custom_op("ln::norm", layer_norm, mutates_args=(), schema=schema)
    *_, note = of_pytorch(adapt(op, Settings(framework="torch", gradcheck=True)))
    assert note.startswith("torch.library.opcheck raises OpCheckError: ")
    assert not small(torch.nn.RMSNorm, kind="rms_norm", dtypes=("float64",), forward_mode=True)
    with pytest.raises(TargetError, match="found a tuple returned, expected y, .*; residual=True"):
        validate(lambda x, *_: (x, x), framework="torch")
    with pytest.raises(TargetError, match="device: found 'meta', expected one that PyTorch has"):
        validate(torch.nn.LayerNorm, framework="torch", device="meta")


def test_jax(jax):
    traced = []

    def layer_norm(x, gamma, beta, eps):
        traced.append((x.shape, eps))
        c = x - x.mean(-1, keepdims=True)
        return gamma * c * jax.lax.rsqrt((c * c).mean(-1, keepdims=True) + eps) + beta

    options = {"double_backward": True, "forward_mode": True}
    limits = {"framework": "jax", "quick": True, "most_features": 64, "most_rows": 99}
    assert validate(layer_norm, **limits, **options).held
    # The same shape was compiled again in every call. Ten are for y or one gradient alone and the
    # derivatives.
    assert len(traced) <= len(set(traced)) + 10
    assert not small(lambda *given: layer_norm(*given), "jax", dtypes=("float64",))
    assert "ordinary rows" in small(lambda x, gamma, *a: layer_norm(x, gamma, *a) * gamma, "jax")


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_the_examples_of_the_page(name, monkeypatch, request):
    request.getfixturevalue(name)
    monkeypatch.syspath_prepend(BOOK / "examples")
    found = runpy.run_path(BOOK / f"examples/validate_{name}.py")
    tests = [value for key, value in found.items() if key.startswith("test_")]
    assert tests
    for test in tests:
        test()


def test_modules_of_one_width_and_one_eps(torch):
    nn = torch.nn
    for module, kind in (
        (nn.LayerNorm(768, eps=1e-6), "layer_norm"),
        (nn.RMSNorm(12, eps=1e-3), "rms_norm"),
        (nn.LayerNorm(5, bias=False), "layer_norm"),
        (nn.LayerNorm((4, 8)), "layer_norm"),
    ):
        report = validate(module, kind, "torch", quick=True)
        no_bias = kind == "layer_norm" and module.bias is None
        assert report.held and len(report.properties) > 15
        assert f"any eps but {module.eps:g}" in report.untested
        assert ("beta and dbeta" in report.untested) == no_bias
    for wrong, message in (
        (lambda x, w: x, r"expected x, gamma, beta, eps"),
        (lambda x, w, b, gate, eps: x, r"takes \(x, w, b, gate, eps\), .* a gate or dropout"),
        (lambda x, w, b: x, r"takes \(x, w, b\), .* eps. Options say .*eps=1e-5 .that number"),
        (lambda x, r, w, eps: x, r"Is it residual=True, .* Options say"),
        (lambda x, w, eps: x, r'Is it kind="rms_norm" \(from the shell --kind rms_norm\)'),
        (nn.RMSNorm(4, eps=None), "attribute eps"),
    ):
        with pytest.raises(TargetError, match=message):
            validate(wrong, framework="torch")


SIMULATED = """
import lnlib
from normcheck import validate
def my_forward(*given):
    *arrays, eps = given
    y, cache = lnlib.layer_norm_forward(*(a.copy_to_host() for a in arrays), eps)
    return cuda.to_device(y), cache
def my_backward(dy, cache):
    return tuple(map(cuda.to_device, lnlib.layer_norm_backward(dy.copy_to_host(), cache)))
report = validate((forward, backward), quick=True, contiguous=True)
print(report.held, "memory in any order" in report.kept)
"""


def test_the_pair_of_the_page_for_device_arrays():
    pytest.importorskip("numba.cuda", reason="Numba has no CUDA target here")
    page = (BOOK / "validate-your-own.md").read_text(encoding="utf-8")
    of_page = page.partition("```python\n")[2].partition("```")[0]
    command, env = [sys.executable, "-c", of_page + SIMULATED], {"NUMBA_ENABLE_CUDASIM": "1"}
    ran = subprocess.run(command, env=os.environ | env, capture_output=True, text=True)
    assert ran.stdout.split() == ["True", "True"], ran.stderr[-2000:]


def test_parameters_go_by_their_names_and_have_a_number_for_each_feature(torch):
    nn = torch.nn

    class BiasFirst(nn.Module):
        def __init__(self, D, epsilon=1e-5):
            super().__init__()
            self.bias, self.weight = nn.Parameter(torch.zeros(D)), nn.Parameter(torch.ones(D))
            self.variance_epsilon = epsilon

        def forward(self, x):
            given = x.shape[-1:], self.weight, self.bias, self.variance_epsilon
            return nn.functional.layer_norm(x, *given)

    class Swapped(BiasFirst):
        """Its names say the other way round what they are."""

        def forward(self, x):
            given = x.shape[-1:], self.bias, self.weight, self.variance_epsilon
            return nn.functional.layer_norm(x, *given)

    class OneGain(nn.Module):
        def __init__(self, D, eps=1e-5):
            super().__init__()
            self.g, self.eps = nn.Parameter(torch.ones(1)), eps

        def forward(self, x):
            return self.g * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    class NoEps(BiasFirst):
        def __init__(self, D):
            super().__init__(D)

    assert not small(BiasFirst) and not small(BiasFirst(5, 1e-3))
    assert "ordinary rows" in small(Swapped)
    for wrong in (OneGain, OneGain(7)):
        with pytest.raises(TargetError, match=r"parameter g of shape \(1,\), .*one gain for all"):
            small(wrong, kind="rms_norm")
    with pytest.raises(TargetError, match=r"takes \(D\), expected D, eps. Options say"):
        small(NoEps)
    with pytest.raises(TargetError, match=r'kind="rms_norm" \(from .* or beta=False'):
        small(nn.RMSNorm)
    with pytest.raises(TypeError, match="BiasFirst of PyTorch, .* --framework torch"):
        small(BiasFirst, "numpy")
    assert not small(NoEps, eps=1e-5)


def test_what_jax_runs_where_nothing_is_differentiated(jax):
    """Of a custom_vjp it is the function itself; elsewhere its forward rule."""

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
    assert not check(target, dataclasses.replace(case, property=""))
    assert check(target, case)[0].tensor == "y"
    assert not check(adapt(layer_norm, target.settings), case)


def test_what_is_compiled_is_compiled_for_every_case(torch):
    """PyTorch gives up after eight shapes, and runs the function as it is: right, in this case."""

    @functools.partial(torch.compile, backend="eager", dynamic=False)
    def target(x, gamma, beta, eps):
        y = torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, eps)
        return y * (1 + torch.compiler.is_compiling())

    limit = torch._dynamo.config.recompile_limit
    adapted = adapt(target, Settings(framework="torch"))
    for D in range(2, 2 + limit + 3):
        outcome = adapted.call(case := draw("any width", (2, D), "float32"))
        dbeta = case.dy.sum(axis=0)
        np.testing.assert_allclose(outcome.tensors["dbeta"], 2 * dbeta, rtol=1e-4, atol=1e-4)
    assert torch._dynamo.config.recompile_limit == limit


def test_memory_is_filled_only_for_its_property(torch):
    memory, before = torch.utils.deterministic, torch.are_deterministic_algorithms_enabled()
    was_filled, memory.fill_uninitialized_memory = memory.fill_uninitialized_memory, False
    filled = []

    def layer_norm(x, gamma, beta, eps):
        filled.append(bool(torch.empty(9).isnan().all()))
        return torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, eps)

    try:
        target = adapt(layer_norm, Settings(framework="torch"))
        for property in UNWRITTEN, "ordinary rows":
            assert not check(target, draw(property, (2, 3), "float32"))
        assert filled == [True, False]
        assert torch.are_deterministic_algorithms_enabled() == before
        assert not memory.fill_uninitialized_memory
    finally:
        memory.fill_uninitialized_memory = was_filled


def test_pytorch_has_the_layouts_of_numpy(torch):
    """The same strides and numbers, whatever the dtype; what asks for a gradient is a leaf."""
    target = adapt(torch.nn.functional.layer_norm, Settings(framework="torch"))
    case = draw("memory in any order", (3, 4, 7), "bfloat16")
    for layout in target.layouts:
        case = case.laid_out({"x": layout})
        names = {"np": np, "torch": torch, "x": case.x.astype(np.float32)}
        execute(target.placed("x", case, ["x"]), names)
        seen, expected = names["x"], laid_out(case.x, layout)
        assert seen.stride() == tuple(stride // 8 for stride in expected.strides), layout
        assert seen.dtype == torch.bfloat16 and seen.requires_grad and seen.is_leaf
        assert np.array_equal(seen.detach().double(), expected)
    strides = []
    target = adapt(lambda x, *_: strides.append(x.stride()) or x, target.settings)
    target.call(draw("any shape", (2, 0, 7), "float32"))  # NumPy has other strides, all 0
    assert strides == [torch.empty(2, 0, 7).stride()]
