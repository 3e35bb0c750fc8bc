"""Targets on PyTorch tensors: a differentiable function ``f(x, gamma, beta, eps) -> y``, or a class of modules.

A class is called as ``kind(D, eps=eps)`` for each width; its parameters, weight and bias, get the case's numbers.
Importing this module loads PyTorch.
"""

import inspect

import torch

from .. import contract
from .targets import Outcome, Raised, TargetError, eps_of, named, of_target

_VIEWS = {
    "as they are": lambda t: t,
    "Fortran order": lambda t: t.permute(*range(t.ndim)[::-1]).contiguous().permute(*range(t.ndim)[::-1]),
    "every second": lambda t: t.repeat_interleave(2, dim=-1)[..., ::2],
    "leading axes swapped": lambda t: t.transpose(0, -2).contiguous().transpose(0, -2) if t.ndim > 2 else t,
    "one element further": lambda t: torch.cat([t.new_zeros(1), t.ravel()])[1:].view(t.shape),
    "every row the same memory": lambda t: t[(0,) * (t.ndim - 1)].expand(t.shape) if t.ndim > 1 else t,
}


class TorchFunction:
    """See the module."""

    layouts = tuple(_VIEWS)[1:]
    able = "one gradient alone", "gradients add up"
    lacks = ()

    def __init__(self, target, settings):
        if isinstance(target, torch.nn.Module):
            raise TypeError("target: found a module, whose width is fixed, expected its class, or a function "
                            "f(x, gamma, beta, eps) -> y")
        self.function = contract.require_callable("target", target)
        self.settings = settings
        if inspect.isclass(target):
            self.function = self._of_class(target)
        self.able += ("the second derivative",) * settings.double_backward

    def _of_class(self, kind):
        def function(x, *parameters_and_eps):
            parameters = parameters_and_eps[:1 + self.settings.beta]
            eps = {"eps": e for e in parameters_and_eps[1 + self.settings.beta:]}
            module = kind(x.shape[-1], **eps).to(x.device, x.dtype)
            names = [name for name, _ in module.named_parameters()]
            if len(names) != len(parameters):
                raise TargetError(f"target: found a module with parameters {names}, expected {len(parameters)} of them")
            return torch.func.functional_call(module, dict(zip(names, parameters)), (x,))
        return function

    def tensors(self, case, wanted=("x", "gamma", "beta")):
        """The arguments of a case and dy, by name; those ``wanted`` ask for a gradient."""
        made = {}
        for name, a in named(case, self.settings).items():
            tensor = _VIEWS[case.layout](torch.tensor(a, dtype=getattr(torch, case.dtype), device=self.settings.device))
            made[name] = tensor.requires_grad_(name in wanted)
        return made

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
        tensors = self.tensors(case, ("x", "gamma", "beta", "dy"))
        y = self.forward(case, tensors)
        v = torch.tensor(v, dtype=y.dtype, device=y.device)

        def twice():
            dx, = torch.autograd.grad(y, tensors["x"], tensors["dy"], create_graph=True)
            return torch.autograd.grad((v * dx).sum(), [tensors[name] for name in ("x", "gamma", "dy")])
        return [t.detach().double().cpu().numpy() for t in of_target(twice)]


def _outcome(tensors, changed=()):
    arrays = {name: None if t is None else t.detach().to("cpu", torch.float64 if t.dtype == torch.float64
                                                         else torch.float32).numpy() for name, t in tensors.items()}
    return Outcome(arrays, {name: str(t.dtype).removeprefix("torch.") for name, t in tensors.items() if t is not None},
                   changed)


def _bytes(tensor):
    return tensor.detach().to("cpu", torch.float64).numpy().tobytes()
