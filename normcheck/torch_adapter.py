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
import math
import sys
import warnings
from typing import Any

import numpy as np
import torch

from lnlib import validation

from .cases import Case
from .layouts import LAYOUTS, REVERSED
from .settings import Settings
from .targets import NAMES, Adapter, Raised, TargetError, in_one_line, taken

#: The classes of custom operators.
OPERATORS = "CustomOpDef", "OpOverload", "OpOverloadPacket"


class TorchFunction(Adapter, framework="torch"):
    """See the module."""

    layouts = tuple(layout for layout in LAYOUTS if layout != REVERSED)
    array = torch.Tensor

    def __init__(self, target: Any, settings: Settings):
        try:
            torch.zeros(1, device=settings.device).cpu()  # "meta" keeps no numbers
        except (AssertionError, NotImplementedError, RuntimeError) as error:
            found = f"found {settings.device!r}, expected one that PyTorch has here"
            raise TargetError(f"device: {found} ({in_one_line(error)})") from error
        is_module, is_class = isinstance(target, torch.nn.Module), inspect.isclass(target)
        if is_module:
            settings, target = _of_one_width(target, settings), copy.deepcopy(target)
        of_function = is_class and issubclass(target, torch.autograd.Function)
        function = target.forward if of_function else validation.require_callable("target", target)
        super().__init__(target, settings, function, torch=torch)
        if of_function:
            self.entry = "target.apply"
        elif is_class:  # one module for all calls of a width and eps, so that what it keeps is kept
            made = {"D": str(settings.normalized_shape or "{D}")}
            made |= {} if settings.eps is not None else {"eps": "{eps}"}
            lacks = {"affine": settings.gamma, "no beta": settings.beta}
            made |= {name: "False" for name in lacks if not lacks[name]}
            made["groups"] = str(settings.groups)
            self.prepare = f"module = target({taken(self.signature, made)})"
        elif is_module:
            self.prepare = "module = target"
        if type(target).__name__ not in OPERATORS:
            self.opcheck = ""

    def called(self, case: Case, *given: str, s: str = "") -> str:
        if not self.prepare:
            return super().called(case, *given)
        of = dict(zip(self.settings.inputs, given))
        arrays = [of.pop(name) for name in ("x", "r") if name in of]
        names = ["weight", "bias"]
        with contextlib.suppress(Raised):  # of what the script will raise again
            made = self.prepared(self.spelt("prepare", {"": case}))["module"]
            names = _parameters(made, [*of], self.settings.normalized_shape or case.gamma.shape)
        parameters = ", ".join(f'"{name}": {value}' for name, value in zip(names, of.values()))
        module = f"module.to({arrays[0]}).train(torch.is_grad_enabled())"
        return f"torch.func.functional_call({module}, {{{parameters}}}, ({', '.join(arrays)},))"

    @contextlib.contextmanager
    def context(self, case: Case):
        """A script may fill memory; PyTorch does that where algorithms have to be deterministic."""
        memory = torch.utils.deterministic
        before, filled = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
        try:
            with warnings.catch_warnings(), _compiled_again():
                # of what PyTorch itself takes for its own JVPs
                warnings.simplefilter("ignore", DeprecationWarning)
                warnings.filterwarnings("ignore", "(?is).*deterministic")  # of those that are not
                yield
        finally:
            torch.set_deterministic_debug_mode(before)
            memory.fill_uninitialized_memory = filled

    def put(self, dtype: str) -> tuple[str, str]:
        options = ", dtype=torch.bfloat16" * (dtype == "bfloat16")
        if self.settings.device is not None:
            options += f", device={self.settings.device!r}"
        return "float32" if dtype == "bfloat16" else dtype, f"torch.tensor({{a}}{options})"

    def get(self, array: torch.Tensor) -> tuple[np.ndarray, str]:
        wide = torch.float64 if array.dtype == torch.float64 else torch.float32
        copy = array.detach().to("cpu", wide, copy=True).numpy()
        return copy, str(array.dtype).removeprefix("torch.")


def _parameters(module, wanted, expected):
    """The names of a module's gamma and beta; in its own order, if the names do not tell."""
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    for name, shape in shapes.items():
        if shape != expected:
            one = "one gain for all features, as in ScaleNorm, cannot be tried"
            said = f"normalized_shape={shape} says that x's last axes are one row"
            said = said if shape[1:] else one
            found = f"found a parameter {name} of shape {shape}, expected {expected}"
            raise TargetError(f"target: {found}; {said}")
    if len(shapes) != len(wanted):
        raise TargetError(
            f"target: found a module with parameters {list(shapes)}, expected {len(wanted)} of"
            ' them; kind="rms_norm" (from the shell --kind rms_norm) or beta=False says that it has'
            " no bias, gamma=False no weight,"
            " and a function of x, gamma and beta can fix what else it has, such as a gate"
        )

    def place(name):
        last = name.rpartition(".")[2]
        return (last in NAMES["beta"]) - (last in NAMES["gamma"])

    return sorted(shapes, key=place)


def _compiled_again():
    """torch.compile compiles for every case; after eight it would run the function as it is."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled
        return contextlib.nullcontext()
    return torch._dynamo.config.patch(
        recompile_limit=sys.maxsize, accumulated_recompile_limit=sys.maxsize
    )


def _of_one_width(module, settings):
    """What a module says of itself: its width, its eps, and whether it has a weight and a bias."""
    shapes = [tuple(p.shape) for p in module.parameters()]
    shape = shapes[0] if shapes else getattr(module, "normalized_shape", settings.most_features)
    if shape is None:
        raise TargetError("target: found no parameters, expected its width as most_features")
    D = max(math.prod(np.atleast_1d(shape).tolist()), 2)  # of one nothing could be told
    gamma, beta = settings.gamma and bool(shapes), settings.beta and len(shapes) > 1
    wanted = dataclasses.replace(settings, gamma=gamma, beta=beta)
    several = tuple(shape) if np.size(shape) > 1 else None
    names = [name for name in ("gamma", "beta") if name in wanted.inputs]
    _parameters(module, names, several or (D,))
    said = (settings.eps, *(getattr(module, name, None) for name in NAMES["eps"]))
    eps = next((one for one in said if one is not None), None)
    if eps is None:
        raise TargetError("target: found no number in its attribute eps, expected eps as an option")
    groups = settings.groups and getattr(module, "num_groups", settings.groups)
    width = {"multiple_of": D, "most_features": D, "normalized_shape": several}
    return dataclasses.replace(wanted, **width, eps=eps, groups=groups)
