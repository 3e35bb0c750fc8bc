"""Targets on PyTorch tensors: a differentiable function ``f(x, gamma, beta, eps) -> y``, or a class of these, that is
an ``autograd.Function``; a class of modules, or a module.

A class is called as ``kind(D, eps=eps)`` for each width; its parameters, weight and bias, get the case's numbers. So do
those of a module, which has one width and one eps. Importing this module loads PyTorch.
"""

import copy
import dataclasses
import inspect

import torch

from .. import contract
from .layouts import LAYOUTS, REVERSED
from .targets import Outcome, Raised, TargetError, arguments, eps_of, of_target


class TorchFunction:
    """See the module."""

    layouts = tuple(layout for layout in LAYOUTS if layout != REVERSED)
    able = "one gradient alone", "gradients add up"
    lacks = ()

    def __init__(self, target, settings):
        self.function, self.settings = contract.require_callable("target", target), settings
        if inspect.isclass(target) and issubclass(target, torch.autograd.Function):
            self.function = target.apply
        elif inspect.isclass(target):
            self.function = lambda x, *rest: self._of_module(
                target(x.shape[-1], **{"eps": eps for eps in rest[1 + settings.beta:]}), x, *rest)
        elif isinstance(target, torch.nn.Module):
            self.settings = _of_one_width(target, settings)
            self.function = lambda x, *rest: self._of_module(copy.deepcopy(target), x, *rest)
        self.able += ("the second derivative",) * settings.double_backward + ("nested derivatives",) * settings.nested

    def _of_module(self, module, x, *rest):
        parameters = rest[:1 + self.settings.beta]
        names = [name for name, _ in module.named_parameters()]
        if len(names) != len(parameters):
            raise TargetError(f"target: found a module with parameters {names}, expected {len(parameters)} of them"
                              + "; beta=False says that it has no bias" * (len(names) == 1))
        return torch.func.functional_call(module.to(x.device, x.dtype), dict(zip(names, parameters)), (x,))

    def tensors(self, case, wanted=("x", "gamma", "beta")):
        """The arguments of a case and dy, by name; those ``wanted`` ask for a gradient."""
        def put(a):
            """A new tensor; without rows it has the strides that PyTorch gives, where torch.tensor takes NumPy's."""
            made = torch.empty(a.shape, dtype=getattr(torch, case.dtype), device=self.settings.device)
            return made.copy_(torch.as_tensor(a))
        return {name: a.requires_grad_(name in wanted) for name, a in arguments(case, self.settings, put).items()}

    def forward(self, case, tensors):
        y = of_target(self.function, *(t for name, t in tensors.items() if name != "dy"), *eps_of(case, self.settings))
        if not isinstance(y, torch.Tensor):
            raise TargetError(f"target: found a {type(y).__name__} returned, expected the tensor y")
        if y.device != tensors["x"].device:
            raise Raised(f"y is on {y.device}, x on {tensors['x'].device}")
        return y

    def calls(self, cases):
        started = []
        for case in cases:
            tensors = self.tensors(case)
            before = {name: _bytes(t) for name, t in tensors.items()}
            started.append((tensors, before, self.forward(case, tensors)))
        return [self._backward(*call) for call in reversed(started)][::-1]

    def _backward(self, tensors, before, y):
        kept = y.detach().clone()  # a backward may write over it
        of_target(y.backward, tensors["dy"])
        return _outcome({"y": kept, **{f"d{name}": t.grad for name, t in tensors.items() if name != "dy"}},
                        tuple(name for name, t in tensors.items() if _bytes(t) != before[name]))

    def alone(self, case, name):
        """The outcome where only the gradient of the argument ``name`` is asked for."""
        tensors = self.tensors(case, (name,))
        of_target(self.forward(case, tensors).backward, tensors["dy"])
        return _outcome({f"d{name}": tensors[name].grad})

    def added(self, case):
        """The gradients after two backwards, halved."""
        tensors = self.tensors(case)
        for _ in range(2):
            of_target(self.forward(case, tensors).backward, tensors["dy"])
        return _outcome({f"d{name}": None if t.grad is None else t.grad / 2
                         for name, t in tensors.items() if name != "dy"})

    def second(self, case, v):
        """The gradients of the product of v and dx with respect to x, gamma and dy."""
        found, _ = of_target(self._twice, case, v)
        return [t.detach().double().cpu().numpy() for t in found]

    def third(self, case, v, u):
        """The gradient with respect to x of the product of u and the gradient of <v, dx>."""
        def thrice():
            (dx, *_), x = self._twice(case, v, create_graph=True)
            return torch.autograd.grad((torch.tensor(u, dtype=x.dtype, device=x.device) * dx).sum(), x)[0]
        return of_target(thrice).detach().double().cpu().numpy()

    def _twice(self, case, v, create_graph=False):
        tensors = self.tensors(case, ("x", "gamma", "beta", "dy"))
        y = self.forward(case, tensors)
        dx, = torch.autograd.grad(y, tensors["x"], tensors["dy"], create_graph=True)
        product = (torch.tensor(v, dtype=y.dtype, device=y.device) * dx).sum()
        return torch.autograd.grad(product, [tensors[name] for name in ("x", "gamma", "dy")],
                                   create_graph=create_graph), tensors["x"]


def _of_one_width(module, settings):
    """What a module says of itself: its width, its eps, and whether it has a bias."""
    shapes = [tuple(p.shape) for p in module.parameters()]
    if not shapes or any(len(shape) != 1 or shape != shapes[0] for shape in shapes):
        raise TargetError(f"target: found a module with parameters of shapes {shapes}, expected (D,)")
    eps = getattr(module, "eps", None) if settings.eps is None else settings.eps
    if eps is None:
        raise TargetError("target: found a module with no number in its attribute eps, expected eps as an option")
    D, = shapes[0]
    return dataclasses.replace(settings, multiple_of=D, most_features=D, eps=eps,
                               beta=settings.beta and len(shapes) > 1)


def _outcome(tensors, changed=()):
    arrays = {name: None if t is None else t.detach().to("cpu", torch.float64 if t.dtype == torch.float64
                                                         else torch.float32).numpy() for name, t in tensors.items()}
    return Outcome(arrays, {name: str(t.dtype).removeprefix("torch.") for name, t in tensors.items() if t is not None},
                   changed)


def _bytes(tensor):
    return tensor.detach().to("cpu", torch.float64).numpy().tobytes()
