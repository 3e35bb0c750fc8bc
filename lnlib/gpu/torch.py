r"""Layer norm for PyTorch's autograd, by :mod:`lnlib.gpu` for tensors on a GPU and by
:mod:`lnlib.cpu` for the others.

:func:`layer_norm` is a differentiable function, :class:`LayerNorm` a module in the place of
:class:`torch.nn.LayerNorm`, with the same names in its ``state_dict``. The gradient can be
differentiated again. PyTorch is loaded with this module, which nothing in ``lnlib`` imports.

* **Dtypes.** float64 (CPU), float32, float16 and bfloat16 (on a GPU it needs package ml_dtypes).
  gamma and beta have x's dtype, or float32 beside half precision.
* **Streams.** On a GPU the work is queued on PyTorch's current stream, and nothing waits for it.
* **Twice.** The second derivative is computed on the host, by
  :func:`lnlib.layernorm.layer_norm_double_backward`: right, and slow for tensors on a GPU. A third
  is refused by ``backward()``; ``torch.autograd.grad`` towards some tensors only does not come by
  the place that refuses, and lacks what goes through the layer.
"""

import torch

from .. import cpu, layernorm, validation
from . import backend as gpu

_DTYPES = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


def _backend(x):
    return gpu if x.is_cuda else cpu


def _array(tensor):
    """What the backends take: a device tensor or an array; on the CPU bfloat16 as float32."""
    tensor = tensor.detach().contiguous()
    if tensor.is_cuda:
        return tensor
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _tensor(array, like):
    tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
    return tensor.to(like.device, like.dtype)


class _Forward(torch.autograd.Function):
    """y, and backward by :class:`_Backward`, so that PyTorch can differentiate that, too."""

    @staticmethod
    def forward(ctx, x, gamma, beta, eps):
        y, ctx.cache = _backend(x).layer_norm_forward(_array(x), _array(gamma), _array(beta), eps)
        ctx.save_for_backward(x, gamma)  # so that PyTorch refuses tensors that have changed since
        ctx.eps = eps
        return _tensor(y, x)

    @staticmethod
    def backward(ctx, dy):
        return *_Backward.apply(dy, *ctx.saved_tensors, ctx.cache, ctx.eps), None


class _Backward(torch.autograd.Function):
    """dx, dgamma and dbeta as a function of dy, x and gamma."""

    @staticmethod
    def forward(ctx, dy, x, gamma, cache, eps):
        ctx.save_for_backward(dy, x, gamma)
        ctx.eps = eps
        dx, dgamma, dbeta = _backend(x).layer_norm_backward(_array(dy), cache)
        return _tensor(dx, x), _tensor(dgamma, gamma), _tensor(dbeta, gamma)

    @staticmethod
    # to PyTorch what follows is constant: a third derivative is refused
    @torch.autograd.function.once_differentiable
    def backward(ctx, v, v_gamma, v_beta):
        """Gradients of <v, dx> + <v_gamma, dgamma> + <v_beta, dbeta> to dy, x and gamma."""
        dy, x, gamma = ctx.saved_tensors
        arrays = (_array(t.cpu()) for t in (v, v_gamma, v_beta, dy, x, gamma))
        v, v_gamma, v_beta, upstream, rows, scale = arrays
        _, cache = layernorm.layer_norm_forward(rows, scale, 0 * scale, ctx.eps)
        grad_x, grad_gamma, grad_dy = layernorm.layer_norm_double_backward(v, upstream, cache)
        # dgamma is the sum of dy * xhat: its part in dx is a backward pass with v_gamma for gamma.
        other = cache._replace(gamma=v_gamma.astype(scale.dtype))
        grad_x = grad_x + layernorm.layer_norm_backward(upstream, other)[0]
        grad_dy = grad_dy + v_gamma * cache.xhat + v_beta
        grad_dy = _tensor(grad_dy.astype(upstream.dtype), dy)
        return grad_dy, _tensor(grad_x, x), _tensor(grad_gamma, gamma), None, None


def layer_norm(x, gamma, beta, eps=1e-5):
    r"""Layer norm of the last axis of a tensor, differentiable twice; formula and bounds as
    :func:`lnlib.layernorm.layer_norm_forward`.

    x: (..., D); gamma, beta: (D,), on x's device. Returns y, of x's shape, dtype and device.
    TypeError where something is no tensor or of another dtype than the module's text has; else
    errors are those of the backend.
    """
    for name, tensor in (("x", x), ("gamma", gamma), ("beta", beta)):
        validation.require_kind(name, tensor, torch.Tensor, "a tensor")
        if tensor.dtype not in _DTYPES:
            expected = "float64, float32, float16 or bfloat16"
            raise TypeError(f"{name}: found {tensor.dtype}, expected {expected}")
        allowed = (x.dtype, torch.float32) if x.dtype.itemsize == 2 else (x.dtype,)
        if tensor.dtype not in allowed:
            expected = f"{' or '.join(map(str, allowed))}, as x is {x.dtype}"
            raise TypeError(f"{name}: found {tensor.dtype}, expected {expected}")
        if tensor.device != x.device:
            expected = f"one on {x.device}, where x is"
            raise ValueError(f"{name}: found a tensor on {tensor.device}, expected {expected}")
    return _Forward.apply(x, gamma, beta, validation.require_eps(eps))


class LayerNorm(torch.nn.Module):
    """:func:`layer_norm` as a module: ``weight`` is gamma, ``bias`` beta, as in
    :class:`torch.nn.LayerNorm`.

    normalized_shape: D, or a tuple with it alone: this module has one axis, the last.
    """

    def __init__(self, normalized_shape, eps=1e-5, *, device=None, dtype=None):
        super().__init__()
        D = normalized_shape
        if isinstance(D, (tuple, list)) and len(D) == 1:
            (D,) = D
        validation.require_count("normalized_shape", D)
        self.eps = validation.require_eps(eps)
        self.weight = torch.nn.Parameter(torch.ones(D, device=device, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(D, device=device, dtype=dtype))

    def forward(self, x):
        return layer_norm(x, self.weight, self.bias, self.eps)

    def extra_repr(self):
        return f"{len(self.weight)}, eps={self.eps}"
