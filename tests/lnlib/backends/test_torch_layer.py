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


def rms_of_sum(x, gamma, residual):
    return ours.rms_norm(x, gamma, residual=residual + 0 * x)


def layer_of_sum(x, gamma, beta):
    return ours.layer_norm(x, gamma, beta, residual=x.flip(-1))


@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 6), (1, 2)])
@pytest.mark.parametrize("function", [ours.layer_norm, rms_of_sum, layer_of_sum])
def test_pytorch_checks_the_gradient_and_its_gradient(shape, function):
    assert torch.autograd.gradcheck(function, tensors(*shape))
    assert torch.autograd.gradgradcheck(function, tensors(*shape))


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


@pytest.mark.parametrize("shape", [24, (4, 6)])
@pytest.mark.parametrize(
    "name, options",
    [
        *(("LayerNorm", o) for o in ({}, {"elementwise_affine": False}, {"bias": False})),
        *(("RMSNorm", o) for o in ({}, {"elementwise_affine": False}, {"eps": 0.1})),
    ],
)
def test_a_module_takes_the_place_of_pytorchs(name, options, shape):
    theirs, layer = (getattr(m, name)(shape, **options) for m in (torch.nn, ours))
    x = tensors(5, 24, dtype=torch.float32)[0].detach()
    x = x.reshape(5, *theirs.normalized_shape).requires_grad_()
    if theirs.weight is not None:
        torch.nn.init.normal_(theirs.weight)
    layer.load_state_dict(theirs.state_dict())
    assert ("eps=None" in repr(layer)) == (name == "RMSNorm" and "eps" not in options)
    # |xhat| is below sqrt(24) < 5, and each of the two is off by at most 8 u of gamma times that.
    largest = 1 if theirs.weight is None else float(theirs.weight.detach().abs().max())
    bound = {"rtol": 0, "atol": 2 * 8 * 2.0**-24 * 5 * largest}
    assert torch.allclose(layer(x), theirs(x), **bound)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(again(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_and_its_norm_in_one(dtype):
    """What two modules give, bit by bit; the gradient that comes by h is added before rounding."""
    x, _, residual = (t.detach() / 2**10 for t in tensors(5, 24, dtype=dtype))  # eps counts
    x.requires_grad_()
    fused, norm = ours.FusedAddRMSNorm(24, dtype=dtype), ours.RMSNorm(24, dtype=dtype)
    residual = (residual * x.flip(0)).detach().requires_grad_()
    y, h = fused(x, residual)
    assert torch.equal(h, x + residual) and torch.equal(y, norm(h.detach()))
    dy, dh = x.detach().flip(1), residual.detach().flip(1)
    found = torch.autograd.grad((y, h), (x, residual), (dy, dh))
    wide, eps = h.detach().double().requires_grad_(), torch.finfo(torch.float32).eps
    (right,) = torch.autograd.grad(torch.rms_norm(wide, (24,), None, eps), wide, dy.double())
    right, u = right + dh.double(), torch.finfo(dtype).eps / 2
    theirs = torch.nn.RMSNorm(24, dtype=dtype)(h.detach())
    assert (y - theirs).norm() <= 4 * u * theirs.norm()
    assert torch.equal(*found)
    bound = u if dtype is torch.bfloat16 else 16 * u
    assert (found[0].double() - right).norm() <= bound * right.norm()
    (only,) = torch.autograd.grad(fused(x, residual)[1], x, dh)  # nothing comes by y
    assert torch.equal(only, dh)


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
