"""Targets on PyTorch tensors: a differentiable function ``f(x, gamma, beta, eps) -> y``, or a class
of these, that is an ``autograd.Function``; a class of modules, or a module.

A class is called as ``kind(D, eps=eps)`` once for each width and eps; its parameters, weight and
bias, get the case's numbers. So do those of a module, which has one width and one eps. Importing
this module loads PyTorch.
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import sys
import warnings

import torch

from lnlib import validation

from .cases import UNWRITTEN, WRITTEN_OVER
from .layouts import LAYOUTS, REVERSED
from .targets import Adapter, Raised, TargetError, arguments, eps_of, in_one_line, of_target

#: How eps is called, in attributes and arguments, and the parameters that are gamma and beta.
EPS = "eps", "epsilon", "variance_epsilon"
GAMMA, BETA = ("weight", "gamma", "scale", "gain"), ("bias", "beta", "shift")


class TorchFunction(Adapter):
    """See the module."""

    layouts = tuple(layout for layout in LAYOUTS if layout != REVERSED)
    able = WRITTEN_OVER, UNWRITTEN, "y without gradients", "one gradient alone", "gradients add up"

    def __init__(self, target, settings):
        _require_device(settings.device)
        if isinstance(target, torch.nn.Module):
            settings = _of_one_width(target, settings)
        super().__init__(validation.require_callable("target", target), settings)
        self.function, self._modules = target, {}
        if _is_function(target):
            self.function = target.apply
        elif inspect.isclass(target):
            self.function = functools.partial(
                self._of_module, lambda D, eps: target(D, **_as_it_is_called(target, eps))
            )
        elif isinstance(target, torch.nn.Module):
            self.function = functools.partial(self._of_module, lambda D, eps: copy.deepcopy(target))

    def _of_module(self, make, x, *rest):
        """One module for all calls of a width, an eps and a dtype: what it keeps of one is there in
        the next.
        """
        count = 1 + self.settings.beta
        key = x.shape[-1], rest[count:], x.dtype
        module = self._modules.get(key) or self._modules.setdefault(
            key, make(*key[:2]).to(x.device, x.dtype)
        )
        names = _gamma_and_beta(module, count, x.shape[-1])
        module.train(torch.is_grad_enabled())
        return torch.func.functional_call(module, dict(zip(names, rest)), (x,))

    def arguments(self, case, wanted=("x", "gamma", "beta")):
        """The arguments of a case and dy, by name; those ``wanted`` ask for a gradient."""

        def put(a):  # without rows it has the strides of PyTorch; torch.tensor would take NumPy's
            dtype = getattr(torch, case.dtype)
            made = torch.empty(a.shape, dtype=dtype, device=self.settings.device)
            return made.copy_(torch.as_tensor(a))

        return {
            name: a.requires_grad_(name in wanted)
            for name, a in arguments(case, self.settings, put).items()
        }

    def get(self, name, t):
        if t is None:
            return None
        wide = torch.float64 if t.dtype == torch.float64 else torch.float32
        return t.detach().to("cpu", wide, copy=True).numpy()

    def dtype_name(self, t, copy):
        return str(t.dtype).removeprefix("torch.")

    def overwrite(self, t, numbers):
        with torch.no_grad():
            t.copy_(numbers)  # as optimizers do

    def y(self, case, tensors):
        given = (t for name, t in tensors.items() if name != "dy")
        with _compiled_again():
            y = of_target(self.function, *given, *eps_of(case, self.settings))
        if not isinstance(y, torch.Tensor):
            raise TargetError(f"target: found a {type(y).__name__} returned, expected the tensor y")
        if y.device != tensors["x"].device:
            raise Raised(f"y is on {y.device}, x on {tensors['x'].device}")
        return y

    def call_forward(self, case, tensors):
        return self.y(case, tensors), None

    def gradients(self, call):
        """The gradients as they are handed on: .grad would keep a copy of what the target keeps."""
        inputs = {f"d{name}": t for name, t in call.arrays.items() if t.requires_grad}
        found = of_target(
            torch.autograd.grad,
            call.y,
            tuple(inputs.values()),
            call.arrays["dy"],
            allow_unused=True,
        )
        return dict(zip(inputs, found))

    def spelt(self, case, arguments):
        """How the target is called with ``arguments`` of this case, all of it as code."""
        target, D = self.target, case.x.shape[-1]
        if _is_function(target):
            return f"target.apply({arguments})"
        if not inspect.isclass(target) and not isinstance(target, torch.nn.Module):
            return f"target({arguments})"
        x, *rest = arguments.split(", ")
        made, module = target, "target"
        if inspect.isclass(target):
            options = _as_it_is_called(target, eps_of(case, self.settings))
            made = target(D, **options)
            module = (
                f"target({', '.join([str(D), *map('{}={!r}'.format, options, options.values())])})"
            )
        names = _gamma_and_beta(made, len(self.settings.tensors) - 2, D)
        parameters = ", ".join(f'"{name}": {value}' for name, value in zip(names, rest))
        return (
            f"torch.func.functional_call({module}.to(x.dtype).train(torch.is_grad_enabled()),"
            f" {{{parameters}}}, ({x},))"
        )

    @contextlib.contextmanager
    def poisoned(self):
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

    def only_y(self, case):
        """y where no gradient is asked for; of a module, as it is when it is evaluated."""
        with torch.no_grad():
            return self.get("y", self.y(case, self.arguments(case, ())))

    def alone(self, case, name):
        """The outcome where only the gradient of the argument ``name`` is asked for."""
        tensors = self.arguments(case, (name,))
        of_target(self.y(case, tensors).backward, tensors["dy"])
        return self.outcome({f"d{name}": tensors[name].grad})

    def added(self, case):
        """The gradients after two backwards, halved."""
        tensors = self.arguments(case)
        for _ in range(2):
            of_target(self.y(case, tensors).backward, tensors["dy"])
        grads = {f"d{name}": t.grad for name, t in tensors.items() if name != "dy"}
        return self.outcome({name: None if t is None else t / 2 for name, t in grads.items()})

    def second(self, case, v):
        """The gradients of the product of v and dx with respect to x, gamma and dy."""
        found, _ = of_target(self._twice, case, v)
        return [_numbers(t) for t in found]

    def forward_mode(self, case, v):
        """The gradients of the product of dy and the JVP along v with respect to x and gamma; and
        the JVP.
        """
        tensors = self.arguments(case, ())
        x, gamma, dy = (tensors[name] for name in ("x", "gamma", "dy"))
        v = torch.tensor(v, dtype=x.dtype, device=x.device)

        def product(x, gamma):
            of_x = lambda x: self.y(case, tensors | {"x": x, "gamma": gamma})  # noqa: E731
            _, along = torch.func.jvp(of_x, (x,), (v,))
            return (along * dy).sum(), along

        with warnings.catch_warnings():  # of what PyTorch itself takes for its own JVPs
            warnings.simplefilter("ignore", DeprecationWarning)
            differentiated = torch.func.grad(product, argnums=(0, 1), has_aux=True)
            found, along = of_target(differentiated, x, gamma)
        return [_numbers(t) for t in (*found, along)]

    def third(self, case, v, u):
        """The gradient with respect to x of the product of u and the gradient of <v, dx>."""

        def thrice():
            (dx, *_), x = self._twice(case, v, create_graph=True)
            product = (torch.tensor(u, dtype=x.dtype, device=x.device) * dx).sum()
            return torch.autograd.grad(product, x)[0]

        return _numbers(of_target(thrice))

    def _twice(self, case, v, create_graph=False):
        tensors = self.arguments(case, ("x", "gamma", "beta", "dy"))
        x, gamma, dy = (tensors[name] for name in ("x", "gamma", "dy"))
        y = self.y(case, tensors)
        (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
        product = (torch.tensor(v, dtype=y.dtype, device=y.device) * dx).sum()
        return torch.autograd.grad(product, [x, gamma, dy], create_graph=create_graph), x


def _numbers(t):
    return t.detach().double().cpu().numpy()


def _is_function(target):
    return inspect.isclass(target) and issubclass(target, torch.autograd.Function)


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
    """The names of a module's gamma and beta; in the order in which it has them, where the names do
    not tell.
    """
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


@contextlib.contextmanager
def _compiled_again():
    """What torch.compile makes is compiled for every case: after eight times it would be run as it
    is, without a word.
    """
    if "torch._dynamo" not in sys.modules:  # nothing is compiled
        yield
        return
    with torch._dynamo.config.patch(
        recompile_limit=sys.maxsize, accumulated_recompile_limit=sys.maxsize
    ):
        yield


def _of_one_width(module, settings):
    """What a module says of itself: its width, its eps, and whether it has a bias."""
    shapes = [tuple(p.shape) for p in module.parameters()]
    if not shapes or any(
        len(shape) != 1 or shape != shapes[0] or shape == (1,) for shape in shapes
    ):
        raise TargetError(
            f"target: found a module with parameters of shapes {shapes}, expected (D,) with D of 2"
            " or more"
        )
    eps = settings.eps
    if eps is None:
        said = (getattr(module, name, None) for name in EPS)
        eps = next((found for found in said if found is not None), None)
    if eps is None:
        raise TargetError(
            f"target: found a module with no number in its attribute {' or '.join(EPS)}, "
            "expected eps as an option"
        )
    (D,) = shapes[0]
    return dataclasses.replace(
        settings, multiple_of=D, most_features=D, eps=eps, beta=settings.beta and len(shapes) > 1
    )
