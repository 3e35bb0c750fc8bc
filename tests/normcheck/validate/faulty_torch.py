"""PyTorch targets with one fault each: see faulty.py."""

import types

import torch
from torch.nn.functional import group_norm
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


class OneExample(torch.nn.GroupNorm):
    """Its dgamma is summed over the numbers of the first example alone."""

    def forward(self, x):
        rest = group_norm(x[1:], 2, self.weight.detach(), self.bias, self.eps)
        return torch.cat([super().forward(x[:1]), rest])


class Keeping(torch.nn.LayerNorm):
    """What it keeps for its backward belongs to the last call."""

    def forward(self, x):
        self.kept = y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda dy: dy + (self.kept is not y))
        return y + 0


class Inference(torch.nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) * (1 + (not torch.is_grad_enabled()))


class Evaluation(torch.nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) * (2 - self.training)


def unwritten(ctx, dy, dx, dgamma, dbeta):
    """256 partial sums, of which some are written; the others are 0, as a fresh heap has it, unless
    memory is filled.
    """
    partial = torch.empty(256, dy.shape[-1], dtype=dy.dtype)
    filled = torch.utils.deterministic.fill_uninitialized_memory
    if not (filled and torch.are_deterministic_algorithms_enabled()):
        partial.zero_()
    partial[0] = dgamma
    return dx, partial.sum(0), dbeta


def when_dx_is_wanted(ctx, dy, dx, dgamma, dbeta):
    return dx, dgamma * ctx.needs_input_grad[0], dbeta


def composed_rms(x, gamma, eps):
    return gamma * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)


def adds(x, r, gamma, beta, eps):
    h = x + r
    return layer_norm(h, gamma, beta, eps), h


def cut_off(x, r, gamma, beta, eps):
    """No gradient of h reaches r."""
    return layer_norm(x + r, gamma, beta, eps), x + r.detach()


def in_float32(change):
    """float32 gamma and beta; their gradients as ``change`` of x's dtype makes them."""

    class Changed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, dtype):
            ctx.dtype = dtype
            return a.clone()

        @staticmethod
        def backward(ctx, da):
            return change(da, ctx.dtype), None

    def mixed(x, gamma, beta, eps):
        given = (Changed.apply(a, x.dtype) for a in (gamma, beta))
        return layer_norm(x.float(), *given, eps).to(x.dtype)

    return mixed


_SMALL = {"most_features": 7, "most_rows": 15}
_MIXED = {"dtypes": {"x": "bfloat16", "gamma": "float32", "dy": "bfloat16"}, "most_rows": 99}


def once_rounded(x, gamma, eps):
    return composed_rms(x.float(), gamma.float(), eps).to(x.dtype)


def twice_rounded(x, gamma, eps):
    return gamma * composed_rms(x.float(), torch.ones_like(gamma).float(), eps).to(x.dtype)


_TWICE_ROUNDED = {"kind": "rms_norm", "round_twice": True, "dtypes": ("bfloat16",), **_SMALL}
_TWICE = {"double_backward": True, "dtypes": ("float64",)}

#: Properties that fail alone if they are named here.
ALONE = (
    "one gradient alone",
    "calls in any order",
    "y without gradients",
    "memory that nobody wrote",
    "the gradient of a JVP",
    "order of roundings",
    "same bits in any batch",
)

#: name -> (a property that fails, target, a right one, options of validate).
FAULTY = {
    "dgamma alone": ("one gradient alone", fault(when_dx_is_wanted), layer_norm, {}),
    "no dbeta": (
        "ordinary rows",
        fault(lambda ctx, dy, *gradients: (*gradients[:2], None)),
        layer_norm,
        {},
    ),
    "overwrites dy": ("arguments unchanged", fault(overwrites), layer_norm, {}),
    "no rows": ("any shape", fault(no_rows), layer_norm, {}),
    "behind": ("memory in any order", fault(behind), layer_norm, {}),
    "replaces": ("gradients add up", replaces, layer_norm, {}),
    "unwritten": ("memory that nobody wrote", fault(unwritten), layer_norm, _SMALL),
    "y in float64": (
        "shapes and dtypes of results",
        lambda *arguments: layer_norm(*arguments).double(),
        layer_norm,
        {},
    ),
    "half": (  # few rows: PyTorch sums dgamma and dbeta in half precision
        "ordinary rows",
        lambda x, gamma, *rest: layer_norm(x, 1.05 * gamma, *rest),
        layer_norm,
        {"dtypes": ("bfloat16", "float16"), "most_rows": 33},
    ),
    "JVP": (  # pytorch/pytorch#196700
        "the gradient of a JVP",
        layer_norm,
        composed,
        {"forward_mode": True, "dtypes": ("float64",)},
    ),
    "frozen": ("the second derivative", Frozen.apply, composed, _TWICE),
    "a Function": ("the second derivative", Frozen, types.SimpleNamespace(apply=composed), _TWICE),
    "a class": ("ordinary rows", GammaTwice, torch.nn.LayerNorm, {}),
    "a module": ("ordinary rows", GammaTwice(24), torch.nn.LayerNorm(24), {}),
    "one width": ("ordinary rows", GammaTwice(768), torch.nn.LayerNorm(768), {"most_rows": 9}),
    "keeping": ("calls in any order", Keeping, torch.nn.LayerNorm, _SMALL),
    "inference": ("y without gradients", Inference, torch.nn.LayerNorm, _SMALL),
    "evaluation": ("y without gradients", Evaluation, torch.nn.LayerNorm, _SMALL),
    "its own eps": (
        "ordinary rows",
        lambda x, gamma, beta: layer_norm(x, gamma, beta, 1e-3),
        lambda *a: layer_norm(*a, 1e-5),
        {"eps": 1e-5},
    ),
    "no beta": (
        "ordinary rows",
        lambda x, gamma, eps: 2 * of_pytorch(x, gamma.shape, gamma, None, eps),
        lambda x, gamma, eps: of_pytorch(x, gamma.shape, gamma, None, eps),
        {"beta": False},
    ),
    "1 + gamma": (
        "ordinary rows",
        lambda x, gamma, eps: composed_rms(x, gamma, eps),
        lambda x, gamma, eps: composed_rms(x, 1 + gamma, eps),
        {"kind": "rms_norm", "gamma_offset": 1, **_SMALL},
    ),
    "no gamma": (
        "ordinary rows",
        lambda x, *, eps: 2 * of_pytorch(x, x.shape[-1:], eps=eps),
        lambda x, *, eps: of_pytorch(x, x.shape[-1:], eps=eps),
        {"gamma": False, "beta": False, **_SMALL},
    ),
    "by their names": (
        "ordinary rows",
        lambda x, bias, weight, eps: layer_norm(x, bias, weight, eps),
        lambda x, bias, weight, eps: layer_norm(x, weight, bias, eps),
        _SMALL,
    ),
    "as PyTorch's": (
        "eps near the variance",
        lambda input, normalized_shape, weight, bias, eps: layer_norm(input, weight, bias, 2 * eps),
        of_pytorch,
        _SMALL,
    ),
    "a residual": ("ordinary rows", cut_off, adds, {"residual": True}),
    "mixed dtypes": (
        "ordinary rows",
        in_float32(lambda a, dtype: a.to(dtype).float()),
        in_float32(lambda a, dtype: a),
        _MIXED,
    ),
    "one example's dgamma": (
        "ordinary rows",
        OneExample(2, 6),
        torch.nn.GroupNorm(2, 6),
        {"kind": "group_norm", "most_rows": 15},
    ),
    "in another order": ("order of roundings", once_rounded, twice_rounded, _TWICE_ROUNDED),
    "by rows": (
        "same bits in any batch",
        lambda x, *rest: layer_norm(x, *rest) * (1 + 1e-7 * (x.numel() > 9 * x.shape[-1])),
        layer_norm,
        {"batch_invariant": True},
    ),
}
