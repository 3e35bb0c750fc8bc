"""lnlib.gpu.torch: what PyTorch itself says of our layer. Skipped without PyTorch."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from lnlib.gpu import torch as ours  # noqa: E402
from normcheck import assert_valid  # noqa: E402


def tensors(*shape, dtype=torch.float64, seed=5):
    made = torch.Generator().manual_seed(seed)
    x = 3 + 2 * torch.randn(shape, generator=made, dtype=torch.float64)
    gamma, beta = torch.randn((2, shape[-1]), generator=made, dtype=torch.float64)
    return [t.to(dtype).requires_grad_() for t in (x, gamma, beta)]


@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 6), (1, 2)])
def test_pytorch_checks_the_gradient_and_its_gradient(shape):
    assert torch.autograd.gradcheck(ours.layer_norm, tensors(*shape))
    assert torch.autograd.gradgradcheck(ours.layer_norm, tensors(*shape))


def test_a_third_derivative_is_refused():
    """Its terms through the layer would be missing without a word."""
    x, gamma, beta = tensors(3, 7)
    (first,) = torch.autograd.grad(
        ours.layer_norm(x, gamma, beta).pow(2).sum(), x, create_graph=True
    )
    (second,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        second.sum().backward()


def test_validate_finds_nothing():
    assert_valid(ours.layer_norm, framework="torch", quick=True, double_backward=True)


@pytest.mark.parametrize(
    "dtype, u", [(torch.float16, 2.0**-11), (torch.bfloat16, 2.0**-8), (torch.float32, 2.0**-24)]
)
def test_short_dtypes_are_rounded_once(dtype, u):
    x, gamma, beta = tensors(4, 6, 33, dtype=dtype)
    dy = torch.randn(x.shape, generator=torch.Generator().manual_seed(6)).to(dtype)
    wide = [t.detach().double().requires_grad_() for t in (x, gamma, beta)]
    y, right = ours.layer_norm(x, gamma, beta), ours.layer_norm(*wide)
    found = torch.autograd.grad(y, (x, gamma, beta), dy)
    wanted = torch.autograd.grad(right, wide, dy.double())
    for a, b in zip((y, *found), (right, *wanted)):
        assert a.dtype is dtype
        # One rounding of the result. In float32, where the arithmetic rounds too: at most 8 times 2
        # u, with means of 33 numbers of size 1, and the mean 1.5 sigma from 0.
        bound = u if dtype is not torch.float32 else 16 * u
        assert (a.double() - b).norm() <= bound * b.norm()


def test_a_module_takes_the_place_of_pytorchs():
    theirs, x = torch.nn.LayerNorm(24), tensors(5, 24, dtype=torch.float32)[0]
    torch.nn.init.normal_(theirs.weight)
    layer = ours.LayerNorm(24)
    layer.load_state_dict(theirs.state_dict())
    assert repr(layer) == "LayerNorm(24, eps=1e-05)"
    # |xhat| is below sqrt(24) < 5, and each of the two is off by at most 8 u of gamma times that.
    largest = float(theirs.weight.detach().abs().max())
    assert torch.allclose(layer(x), theirs(x), rtol=0, atol=2 * 8 * 2.0**-24 * 5 * largest)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(again(x), layer(x))


def test_the_gpu_backend_behind_the_same_function(monkeypatch):
    """Here its kernels are interpreted, on arrays of the host: the way through caches and tensors
    is that of a GPU.
    """
    monkeypatch.setattr(ours, "_backend", lambda x: ours.gpu)
    x, gamma, beta = tensors(3, 40, dtype=torch.float32)
    dy = torch.ones_like(x) + x.detach()
    found = torch.autograd.grad(ours.layer_norm(x, gamma, beta), (x, gamma, beta), dy)
    monkeypatch.undo()
    right = torch.autograd.grad(ours.layer_norm(x, gamma, beta), (x, gamma, beta), dy)
    for a, b in zip(found, right):
        assert (a - b).norm() <= 16 * 2.0**-24 * b.norm()  # a few u each, as above


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_a_gpu(dtype):
    host = tensors(33, 1000, dtype=dtype)
    device = [t.detach().cuda().requires_grad_() for t in host]
    dy = torch.randn(33, 1000).to(dtype)
    found = torch.autograd.grad(ours.layer_norm(*device), device, dy.cuda())
    right = torch.autograd.grad(ours.layer_norm(*host), host, dy)
    u = torch.finfo(dtype).eps / 2
    for a, b in zip(found, right):
        assert a.is_cuda and (a.cpu().double() - b.double()).norm() <= 16 * u * b.double().norm()


def test_what_has_changed_since_forward_is_refused():
    x, gamma, beta = tensors(2, 5)
    y = ours.layer_norm(x * 1, gamma, beta)
    with torch.no_grad():
        gamma.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
