"""Targets on PyTorch tensors: a differentiable function ``f(x, gamma, beta, eps) -> y``, or a class
of these, that is an ``autograd.Function``; a class of modules, or a module.

A class is called as ``kind(D, eps=eps)`` once for each width and eps; its parameters, weight and
bias, get the case's numbers. So do those of a module, which has one width and one eps. Importing
this module loads PyTorch.
"""

import contextlib
import copy
import dataclasses
import inspect
import sys
import warnings
from typing import Any

import numpy as np
import torch

from .cases import UNWRITTEN, WRITTEN_OVER, Case
from .layouts import LAYOUTS, REVERSED, strides_seen
from .settings import Settings
from .targets import (
    Call,
    Differentiable,
    Outcome,
    Raised,
    Spelling,
    TargetError,
    in_one_line,
    of_target,
)

#: How eps is called, in attributes and arguments, and the parameters that are gamma and beta.
EPS = "eps", "epsilon", "variance_epsilon"
GAMMA, BETA = ("weight", "gamma", "scale", "gain"), ("bias", "beta", "shift")


def vjp(f, a, dy, again=False):
    """The gradient of <dy, f(a)>."""
    return torch.autograd.grad(f(a), a, dy, create_graph=again, allow_unused=not again)[0]


def grad(f, again=False):
    """The function that gives all gradients of a scalar function."""
    return lambda *inputs: torch.autograd.grad(f(*inputs), inputs, create_graph=again)


class TorchFunction(Differentiable):
    """See the module."""

    layouts = tuple(layout for layout in LAYOUTS if layout != REVERSED)
    able = WRITTEN_OVER, UNWRITTEN, "y without gradients", "one gradient alone", "gradients add up"
    transforms, vjp, grad = torch.func, staticmethod(vjp), staticmethod(grad)
    spelling = Spelling(
        "torch.from_numpy({a})",
        "{a}.detach().double().cpu().numpy()",
        "y{s} = {call}",
        "{results} = torch.autograd.grad(y{s}, ({inputs}), dy{s}, allow_unused=True)",
        "with torch.no_grad():\n    y = {call}",
        "{call}.backward(dy)\nd{a} = {a}.grad",
        "a.detach().copy_(b)",
    )

    def __init__(self, target: Any, settings: Settings):
        _require_device(settings.device)
        if isinstance(target, torch.nn.Module):
            settings = _of_one_width(target, settings)
        super().__init__(target, settings)
        self.function, self.poisoned = target, filled_memory
        self._modules: dict[tuple, torch.nn.Module] = {}
        if _is_function(target):
            self.function = target.apply
        elif inspect.isclass(target) or isinstance(target, torch.nn.Module):
            self.function = self._of_module

    def _of_module(self, x, *rest):
        """One module for all calls of a width, eps and dtype, so that what it keeps is kept."""
        count = 1 + self.settings.beta
        key = D, eps, _ = x.shape[-1], rest[count:], x.dtype
        if key not in self._modules:
            made = (
                self.target(D, **_as_it_is_called(self.target, eps))
                if inspect.isclass(self.target)
                else copy.deepcopy(self.target)
            )
            self._modules[key] = made.to(x.device, x.dtype)
        module = self._modules[key].train(torch.is_grad_enabled())
        names = _gamma_and_beta(module, count, D)
        return torch.func.functional_call(module, dict(zip(names, rest)), (x,))

    def put(self, array: np.ndarray, dtype: str) -> torch.Tensor:
        # without rows it has the strides of PyTorch; torch.tensor would take NumPy's
        made = torch.empty(array.shape, dtype=getattr(torch, dtype), device=self.settings.device)
        return made.copy_(torch.as_tensor(np.ascontiguousarray(array)))

    def view(self, array, seen):
        size = array.element_size()
        shape, strides, offset = strides_seen(array.shape, size, seen)
        return array.as_strided(shape, [stride // size for stride in strides], offset // size)

    def arguments(self, case: Case, wanted=("x", "gamma", "beta")) -> dict[str, torch.Tensor]:
        """The arguments of a case and dy, by name; those ``wanted`` ask for a gradient."""
        arrays = super().arguments(case)
        return {name: t.requires_grad_(name in wanted) for name, t in arrays.items()}

    def get(self, name: str, t: torch.Tensor) -> np.ndarray:
        wide = torch.float64 if t.dtype == torch.float64 else torch.float32
        return t.detach().to("cpu", wide, copy=True).numpy()

    def dtype_name(self, t: torch.Tensor, copy: np.ndarray) -> str:
        return str(t.dtype).removeprefix("torch.")

    def overwrite(self, t: torch.Tensor, numbers: torch.Tensor) -> None:
        with torch.no_grad():
            t.copy_(numbers)  # as optimizers do

    def y(self, case: Case, tensors: dict, **changed: torch.Tensor) -> torch.Tensor:
        given = [t for name, t in (tensors | changed).items() if name != "dy"]
        with _compiled_again():
            y = of_target(self.function, *given, *self.eps(case))
        if not isinstance(y, torch.Tensor):
            raise TargetError(f"target: found a {type(y).__name__} returned, expected the tensor y")
        if y.device != given[0].device:
            raise Raised(f"y is on {y.device}, x on {given[0].device}")
        return y

    def run(self, function, *tensors: torch.Tensor) -> Any:
        """What a function of these tensors returns, which ask for gradients."""
        with warnings.catch_warnings():  # of what PyTorch itself takes for its own JVPs
            warnings.simplefilter("ignore", DeprecationWarning)
            return of_target(function, *tensors)

    def call_forward(self, case: Case, tensors: dict) -> tuple:
        return self.y(case, tensors), None

    def gradients(self, call: Call) -> dict:
        """The gradients as they are handed on: .grad would keep a copy of what the target keeps."""
        inputs = {f"d{name}": t for name, t in call.arrays.items() if t.requires_grad}
        given = call.y, tuple(inputs.values()), call.arrays["dy"]
        return dict(zip(inputs, of_target(torch.autograd.grad, *given, allow_unused=True)))

    def only_y(self, case: Case) -> Outcome:
        """y where no gradient is asked for; of a module, as it is when it is evaluated."""
        with torch.no_grad():
            return self.outcome({"y": self.y(case, self.arguments(case, ()))})

    def added(self, case: Case) -> Outcome:
        """The gradients after two backwards, halved."""
        tensors = self.arguments(case)
        for _ in range(2):
            of_target(self.y(case, tensors).backward, tensors["dy"])
        grads = {f"d{name}": t.grad for name, t in tensors.items() if name != "dy"}
        return self.outcome({name: None if t is None else t / 2 for name, t in grads.items()})

    def spelt(self, case: Case, arguments: str) -> tuple[str, str]:
        """How the target is called with ``arguments`` of this case, as code; and how the ``module``
        is made that this calls, if it calls one.
        """
        target, D = self.target, case.width
        if self.function != self._of_module:
            return f"target{'.apply' * _is_function(target)}({arguments})", ""
        x, *rest = arguments.split(", ")
        made: Any = target
        code = "target"
        if inspect.isclass(target):
            options = _as_it_is_called(target, self.eps(case))
            made = self.target(D, **options)
            given = ", ".join([str(D), *(f"{name}={value!r}" for name, value in options.items())])
            code = f"target({given})"
        names = _gamma_and_beta(made, len(self.settings.arguments) - 2, D)
        parameters = ", ".join(f'"{name}": {value}' for name, value in zip(names, rest))
        module = "module.to(x.dtype).train(torch.is_grad_enabled())"
        return f"torch.func.functional_call({module}, {{{parameters}}}, ({x},))", f"module = {code}"


def _is_function(target):
    return inspect.isclass(target) and issubclass(target, torch.autograd.Function)


@contextlib.contextmanager
def filled_memory():
    """PyTorch fills fresh tensors with NaN where its algorithms have to be deterministic."""
    memory = torch.utils.deterministic
    before, filled = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of those that are not
            yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = filled


def _require_device(device):
    """Refuse a device that is not there, or keeps no numbers."""
    try:
        torch.zeros(1, device=device).cpu()
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        raise TargetError(
            f"device: found {device!r}, expected one that PyTorch has here ({in_one_line(error)})"
        ) from error


def _as_it_is_called(kind, eps):
    """The keyword of a class by which it takes this eps; none if eps is fixed in the target."""
    if not eps:
        return {}
    taken = inspect.signature(kind).parameters
    name = next((name for name in EPS if name in taken), None)
    if name is None and all(one.kind != one.VAR_KEYWORD for one in taken.values()):
        raise TargetError(
            f"target: found a class that takes {', '.join(taken)}, expected an argument"
            f" {' or '.join(EPS)}; the option eps says which number is fixed in it"
        )
    return {name or "eps": eps[0]}


def _gamma_and_beta(module, count, D):
    """The names of a module's gamma and beta; in its own order, if the names do not tell."""
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    if len(shapes) != count:
        raise TargetError(
            f"target: found a module with parameters {list(shapes)}, expected {count} of them"
            + '; kind="rms_norm" or beta=False says that it has no bias' * (len(shapes) == 1)
        )
    for name, shape in shapes.items():
        if shape != (D,):
            raise TargetError(
                f"target: found a parameter {name} of shape {shape}, expected {(D,)}: one number"
                " for each feature"
            )

    def place(name):
        last = name.rpartition(".")[2]
        return (last in BETA) - (last in GAMMA)

    return sorted(shapes, key=place)


def _compiled_again():
    """torch.compile compiles for every case; after eight it would run the function as it is."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled
        return contextlib.nullcontext()
    return torch._dynamo.config.patch(
        recompile_limit=sys.maxsize, accumulated_recompile_limit=sys.maxsize
    )


def _of_one_width(module, settings):
    """What a module says of itself: its width, its eps, and whether it has a bias."""
    shapes = [tuple(p.shape) for p in module.parameters()]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1 or shapes[0] == (1,):
        raise TargetError(
            f"target: found a module with parameters of shapes {shapes}, expected (D,) with D of 2"
            " or more"
        )
    said = (settings.eps, *(getattr(module, name, None) for name in EPS))
    eps = next((one for one in said if one is not None), None)
    if eps is None:
        raise TargetError(
            f"target: found a module with no number in its attribute {' or '.join(EPS)}, "
            "expected eps as an option"
        )
    (D,) = shapes[0]
    beta = settings.beta and len(shapes) > 1
    return dataclasses.replace(settings, multiple_of=D, most_features=D, eps=eps, beta=beta)
