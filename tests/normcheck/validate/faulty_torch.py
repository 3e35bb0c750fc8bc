"""PyTorch targets with one fault each: see faulty.py."""

import types

import torch
from torch.nn.functional import layer_norm as of_pytorch


def layer_norm(x, gamma, beta, eps):
    return of_pytorch(x, gamma.shape, gamma, beta, eps)


class _Norm(torch.autograd.Function):
    """Right, but for what ``fault`` makes of (ctx, dy, dx, dgamma, dbeta)."""

    @staticmethod
    def forward(ctx, x, gamma, beta, eps, fault):
        ctx.fault, ctx.eps = fault, eps
        ctx.save_for_backward(x, gamma, beta)
        return layer_norm(x, gamma, beta, eps)

    @staticmethod
    def backward(ctx, dy):
        inputs = [a.detach().requires_grad_() for a in ctx.saved_tensors]
        with torch.enable_grad():
            gradients = torch.autograd.grad(layer_norm(*inputs, ctx.eps), inputs, dy)
        return *ctx.fault(ctx, dy, *gradients), None, None


def fault(change):
    return lambda x, gamma, beta, eps: _Norm.apply(x, gamma, beta, eps, change)


def overwrites(ctx, dy, *gradients):
    dy.mul_(2)
    return gradients


def no_rows(ctx, dy, *gradients):
    if not dy.numel():
        raise ZeroDivisionError("no rows")
    return gradients


def behind(ctx, dy, dx, dgamma, dbeta):
    """dy is read as if its numbers lay one behind the other."""
    return dx, dgamma, dbeta if dy.is_contiguous() else dbeta + dy.flatten()[0]


def replaces(x, gamma, beta, eps):
    """The gradient that is there goes."""
    gamma.grad = None
    return layer_norm(x, gamma, beta, eps)


class Frozen(torch.autograd.Function):
    """Its second derivative takes 1/s for a constant."""

    @staticmethod
    def forward(ctx, x, gamma, beta, eps):
        ctx.save_for_backward(x, gamma)
        ctx.eps = eps
        return layer_norm(x, gamma, beta, eps)

    @staticmethod
    def backward(ctx, dy):
        x, gamma = ctx.saved_tensors
        c = x - x.mean(-1, keepdim=True)
        r = (1 / torch.sqrt((c * c).mean(-1, keepdim=True) + ctx.eps)).detach()
        xhat, g = c * r, gamma * dy
        dx = r * (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True))
        return dx, (dy * xhat).sum_to_size(gamma.shape), dy.sum_to_size(gamma.shape), None


def composed(x, gamma, beta, eps):
    """Of operations that can be differentiated as often as one likes."""
    c = x - x.mean(-1, keepdim=True)
    return gamma * c / torch.sqrt((c * c).mean(-1, keepdim=True) + eps) + beta


class GammaTwice(torch.nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) * self.weight


_TWICE = {"double_backward": True, "nested": True, "dtypes": ("float64",)}

#: name -> (target, a right one, options of validate).
FAULTY = {
    **{
        name: (target, layer_norm, {})
        for name, target in {
            "dgamma alone": fault(
                lambda ctx, dy, dx, dgamma, dbeta: (dx, dgamma * ctx.needs_input_grad[0], dbeta)
            ),
            "dx twice": fault(lambda ctx, dy, dx, dgamma, dbeta: (2 * dx, dgamma, dbeta)),
            "wide": fault(
                lambda ctx, dy, dx, *rest: (dx * (1 + 0.01 * (dy.shape[-1] > 512)), *rest)
            ),
            "no dbeta": fault(lambda ctx, dy, dx, dgamma, dbeta: (dx, dgamma, None)),
            "overwrites dy": fault(overwrites),
            "no rows": fault(no_rows),
            "behind": fault(behind),
            "replaces": replaces,
            "y in float64": lambda *arguments: layer_norm(*arguments).double(),
        }.items()
    },
    "half": (
        lambda x, gamma, *rest: layer_norm(x, 1.05 * gamma, *rest),
        layer_norm,
        {"dtypes": ("bfloat16", "float16"), "most_rows": 99},
    ),
    "JVP": (
        layer_norm,
        composed,
        {"forward_mode": True, "dtypes": ("float64",)},
    ),  # pytorch/pytorch#196700
    "frozen": (Frozen.apply, composed, _TWICE),
    "a Function": (Frozen, types.SimpleNamespace(apply=composed), _TWICE),
    "a class": (GammaTwice, torch.nn.LayerNorm, {}),
    "a module": (GammaTwice(24), torch.nn.LayerNorm(24), {}),
    "one width": (GammaTwice(768), torch.nn.LayerNorm(768), {"most_rows": 9}),
    "its own eps": (
        lambda x, gamma, beta: layer_norm(x, gamma, beta, 1e-3),
        lambda *a: layer_norm(*a, 1e-5),
        {"eps": 1e-5},
    ),
    "no beta": (
        lambda x, gamma, eps: 2 * of_pytorch(x, gamma.shape, gamma, None, eps),
        lambda x, gamma, eps: of_pytorch(x, gamma.shape, gamma, None, eps),
        {"beta": False},
    ),
}
