r"""Norms for PyTorch's autograd, by :mod:`lnlib.gpu` on a GPU and by :mod:`lnlib.cpu` elsewhere.

:func:`layer_norm` and :func:`rms_norm` are differentiable functions. :class:`LayerNorm` and
:class:`RMSNorm` are modules in the place of PyTorch's, with the same arguments (``device`` and
``dtype`` by name) and the same names in their ``state_dict``; :class:`FusedAddRMSNorm` adds a
residual first. Gradients can be differentiated again. PyTorch is loaded with this module, which
nothing in ``lnlib`` imports.

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
from ..norms import LAYER_NORM, RMS_NORM
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
    """y, h if there is a residual; backward by :class:`_Backward`, which can be differentiated."""

    @staticmethod
    def forward(ctx, norm, eps, x, residual, *parameters):
        ctx.norm, ctx.eps, ctx.added = norm, eps, residual is not None
        ctx.set_materialize_grads(False)
        h, others = x, {}
        if ctx.added and not x.is_cuda and x.dtype is torch.bfloat16:
            h = x + residual  # which is rounded; as float32 it would not be
        elif ctx.added:
            others["residual"] = _array(residual)
        forward = getattr(_backend(x), f"{norm.name}_forward")
        y, *sums, ctx.cache = forward(_array(h), *map(_array, parameters), eps, **others)
        h = _tensor(sums[0], x) if others else h
        ctx.save_for_backward(h, parameters[0])  # so that PyTorch refuses what has changed since
        return (_tensor(y, x), h) if ctx.added else _tensor(y, x)

    @staticmethod
    def backward(ctx, dy, dh=None):
        h, gamma = ctx.saved_tensors
        dy = torch.zeros_like(h) if dy is None else dy
        dx, *others = _Backward.apply(ctx.norm, ctx.eps, ctx.cache, dy, dh, h, gamma)
        return None, None, dx, dx if ctx.added else None, *others


class _Backward(torch.autograd.Function):
    """dx, dgamma and dbeta as a function of dy, dh, h and gamma."""

    @staticmethod
    def forward(ctx, norm, eps, cache, dy, dh, h, gamma):
        ctx.save_for_backward(dy, h, gamma)
        ctx.norm, ctx.eps, ctx.added = norm, eps, dh is not None
        others = {"dh": _array(dh)} if ctx.added else {}
        dx, *sums = getattr(_backend(h), f"{norm.name}_backward")(_array(dy), cache, **others)
        return _tensor(dx, h), *(_tensor(a, gamma) for a in sums)

    @staticmethod
    # to PyTorch what follows is constant: a third derivative is refused
    @torch.autograd.function.once_differentiable
    def backward(ctx, v, *others):
        """Gradients of <v, dx> + <v_gamma, dgamma> + <v_beta, dbeta> to dy, dh, h and gamma."""
        dy, h, gamma = ctx.saved_tensors
        arrays = (_array(t.cpu()) for t in (v, dy, h, gamma, *others))
        wide, upstream, rows, scale, v_gamma, *v_beta = arrays
        ways = "forward", "backward"
        forward, backward = (getattr(layernorm, f"{ctx.norm.name}_{way}") for way in ways)
        _, cache = forward(rows, scale, *[0 * scale for _ in v_beta], ctx.eps)
        grad_h, grad_gamma, grad_dy = layernorm.layer_norm_double_backward(wide, upstream, cache)
        # dgamma is the sum of dy * xhat: its part in dx is a backward pass with v_gamma for gamma.
        other = cache._replace(gamma=v_gamma.astype(scale.dtype))
        grad_h = grad_h + backward(upstream, other)[0]
        grad_dy = grad_dy + v_gamma * cache.xhat + sum(v_beta)
        grad_dy = _tensor(grad_dy.astype(upstream.dtype), dy)
        grads = grad_dy, v if ctx.added else None, _tensor(grad_h, h), _tensor(grad_gamma, gamma)
        return None, None, None, *grads


def _apply(norm, x, residual, eps, **parameters):
    others = {"residual": residual} if residual is not None else {}
    for name, tensor in ({"x": x} | parameters | others).items():
        validation.require_kind(name, tensor, torch.Tensor, "a tensor")
        if tensor.dtype not in _DTYPES:
            expected = "float64, float32, float16 or bfloat16"
            raise TypeError(f"{name}: found {tensor.dtype}, expected {expected}")
        both = x.dtype.itemsize == 2 and name != "residual"
        allowed = (x.dtype, torch.float32) if both else (x.dtype,)
        if tensor.dtype not in allowed:
            expected = f"{' or '.join(map(str, allowed))}, as x is {x.dtype}"
            raise TypeError(f"{name}: found {tensor.dtype}, expected {expected}")
        if tensor.device != x.device:
            expected = f"one on {x.device}, where x is"
            raise ValueError(f"{name}: found a tensor on {tensor.device}, expected {expected}")
    if others:
        validation.require_shape("residual", residual.shape, x.shape, ", the shape of x")
    return _Forward.apply(norm, validation.require_eps(eps), x, residual, *parameters.values())


def layer_norm(x, gamma, beta, eps=1e-5, *, residual=None):
    r"""Layer norm of the last axis of a tensor, differentiable twice; formula and bounds as
    :func:`lnlib.layernorm.layer_norm_forward`.

    x: (..., D); gamma, beta: (D,), on x's device. Returns y, of x's shape, dtype and device; with
    ``residual``, of x's shape and dtype, (y, h), where h is their rounded sum. TypeError: what is
    no tensor, or of another dtype than the module's text has. Else errors are the backend's.
    """
    return _apply(LAYER_NORM, x, residual, eps, gamma=gamma, beta=beta)


def rms_norm(x, gamma, eps=1e-5, *, residual=None):
    """RMS norm of the last axis of a tensor; everything else as :func:`layer_norm`."""
    return _apply(RMS_NORM, x, residual, eps, gamma=gamma)


class _Norm(torch.nn.Module):
    norm = RMS_NORM

    def __init__(self, normalized_shape, eps, affine, bias, *, device=None, dtype=None):
        super().__init__()
        several = isinstance(normalized_shape, (tuple, list))
        self.normalized_shape = tuple(normalized_shape) if several else (normalized_shape,)
        for side in self.normalized_shape:
            validation.require_count("normalized_shape", side)
        self.eps = eps if eps is None else validation.require_eps(eps)
        self.elementwise_affine = affine
        for name, made, wanted in (("weight", torch.ones, True), ("bias", torch.zeros, bias)):
            numbers = made(self.normalized_shape, device=device, dtype=dtype)
            given = torch.nn.Parameter(numbers) if affine and wanted else None
            self.register_parameter(name, given)

    def forward(self, x):
        return self._normalise(x, None)

    def _normalise(self, x, residual):
        sides, axes = self.normalized_shape, len(self.normalized_shape)
        validation.require_shape("x", tuple(x.shape[-axes:]), sides, ", those of its last axes")
        arithmetic = torch.promote_types(x.dtype, torch.float32)
        eps = torch.finfo(arithmetic).eps if self.eps is None else self.eps
        weight = x.new_ones(sides) if self.weight is None else self.weight
        parameters = {"gamma": weight.flatten()}
        if self.norm.beta:
            bias = torch.zeros_like(weight) if self.bias is None else self.bias
            parameters["beta"] = bias.flatten()
        rows = [a if a is None else a.flatten(-axes) for a in (x, residual)]
        found = _apply(self.norm, *rows, eps, **parameters)
        return found.view_as(x) if residual is None else tuple(a.view_as(x) for a in found)

    def extra_repr(self):
        sides = ", ".join(map(str, self.normalized_shape))
        return f"{sides}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class LayerNorm(_Norm):
    """:func:`layer_norm` as a module: ``weight`` is gamma, ``bias`` beta. Arguments as those of
    :class:`torch.nn.LayerNorm`, whose place it takes.
    """

    norm = LAYER_NORM

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True, **place):
        super().__init__(normalized_shape, eps, elementwise_affine, bias, **place)


class RMSNorm(_Norm):
    """:func:`rms_norm` as a module, for :class:`torch.nn.RMSNorm`. An eps of None is what PyTorch
    takes for it: that of the arithmetic's dtype, which is float32 for half precision.
    """

    def __init__(self, normalized_shape, eps=None, elementwise_affine=True, **place):
        super().__init__(normalized_shape, eps, elementwise_affine, False, **place)


class FusedAddRMSNorm(RMSNorm):
    """RMS norm of a sum: ``y, h = module(x, residual)``, where h = x + residual is the residual of
    the next layer. Arguments as those of :class:`RMSNorm`.
    """

    def forward(self, x, residual):
        return self._normalise(x, residual)
