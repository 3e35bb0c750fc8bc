r"""Layer norm for PyTorch's autograd, by :mod:`lnlib.gpu` for tensors on a GPU and by
:mod:`lnlib.cpu` for the others.

:func:`layer_norm` is a differentiable function, :class:`LayerNorm` a module in the place of
:class:`torch.nn.LayerNorm`, with the same names in its ``state_dict``. Second derivatives
(``create_graph=True``) are refused. PyTorch is loaded with this module, which nothing in ``lnlib``
imports.

* **Dtypes.** float64 (CPU), float32, float16 and bfloat16 (on a GPU it needs package ml_dtypes).
  gamma and beta have x's dtype, or float32 beside half precision.
* **Streams.** On a GPU the work is queued on PyTorch's current stream, and nothing waits for it.
"""

import torch

from .. import cpu, validation
from . import backend as gpu


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


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gamma, beta, eps):
        y, ctx.cache = _backend(x).layer_norm_forward(_array(x), _array(gamma), _array(beta), eps)
        ctx.save_for_backward(x, gamma)  # so that PyTorch refuses tensors that have changed since
        return _tensor(y, x)

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():  # else terms through this layer would be missing in silence
            expected = "False: the gradient of this layer cannot be differentiated"
            raise NotImplementedError(f"create_graph: found True, expected {expected}")
        x, gamma = ctx.saved_tensors
        dx, dgamma, dbeta = _backend(x).layer_norm_backward(_array(dy), ctx.cache)
        return _tensor(dx, x), _tensor(dgamma, gamma), _tensor(dbeta, gamma), None


def layer_norm(x, gamma, beta, eps=1e-5):
    r"""Layer norm of the last axis of a tensor; formula and bounds as
    :func:`lnlib.layernorm.layer_norm_forward`.

    x: (..., D); gamma, beta: (D,), on x's device. Returns y, of x's shape, dtype and device.
    TypeError where something is no tensor; else errors are those of the backend.
    """
    for name, tensor in (("x", x), ("gamma", gamma), ("beta", beta)):
        validation.require_kind(name, tensor, torch.Tensor, "a tensor")
        if tensor.device != x.device:
            expected = f"one on {x.device}, where x is"
            raise ValueError(f"{name}: found a tensor on {tensor.device}, expected {expected}")
    return _LayerNorm.apply(x, gamma, beta, validation.require_eps(eps))


class LayerNorm(torch.nn.Module):
    """:func:`layer_norm` as a module: ``weight`` is gamma, ``bias`` beta, as in
    :class:`torch.nn.LayerNorm`.

    normalized_shape: D, or a tuple with it alone: other modules may take several axes, this one has
    the last.
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
