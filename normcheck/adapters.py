"""Targets on NumPy arrays; and :func:`adapt`, which finds the adapter of each framework."""

import contextlib
import ctypes
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from lnlib import validation

from .cases import UNWRITTEN, Case
from .layouts import LAYOUTS
from .report import name_of
from .settings import FRAMEWORKS, Settings
from .targets import Adapter, TargetError

try:  # glibc fills memory that it hands out, where it is told to by M_PERTURB, -6
    _mallopt: Any = ctypes.CDLL(None).mallopt
except (AttributeError, OSError, TypeError):
    _mallopt = None


def returning(where: str, function: Callable, names: tuple[str, ...]) -> Callable:
    """The function; :class:`TargetError` if it returns no tuple with a part for each name."""

    def checked(*arguments, **options):
        result = function(*arguments, **options)
        several = isinstance(result, (tuple, list))
        if not several or len(result) != len(names):
            found = f"{len(result)} values" if several else f"a {type(result).__name__}"
            expected = f"expected {len(names)}: {', '.join(names)}"
            raise TargetError(f"{where}: found {found} returned, {expected}")
        return result

    return checked


class NumPyPair(Adapter, framework="numpy"):
    """``forward(x, gamma, beta, eps) -> y, saved``; ``backward(dy, saved)`` -> the gradients."""

    layouts = tuple(LAYOUTS)
    lacks = (
        "one gradient alone, gradients that add up and a second derivative, which a pair of"
        " functions does not have",
    )
    entry = "forward"

    def __init__(self, target: Any, settings: Settings):
        bases = target.__mro__ if isinstance(target, type) else type(target).__mro__
        if any(base.__module__.startswith("torch.") for base in bases):
            raise TypeError(
                f"target: found {name_of(target)} of PyTorch, expected arrays of NumPy; say"
                ' framework="torch", from the shell --framework torch'
            )
        methods = [getattr(target, name, None) for name in ("forward", "backward")]
        pair = methods if all(map(callable, methods)) else target
        several = isinstance(pair, (tuple, list))
        if not several or len(pair) != 2:
            found = f"{len(target)} things" if several else f"a {type(target).__name__}"
            raise TypeError(
                f"target: found {found}, expected a pair (forward, backward), from the shell"
                " module:forward,backward, or an object with these methods; a differentiable"
                ' function, or a module, needs framework="torch" or "jax"'
            )
        forward, backward = (
            validation.require_callable(f"target[{k}]", f) for k, f in enumerate(pair)
        )
        entry, outputs = forward, settings.outputs
        if settings.out:  # it may return anything
            for name in "forward", "backward", "again":
                setattr(self, name, getattr(self, f"{name}_into"))
        else:
            forward = returning("forward", forward, (*outputs, "what backward needs"))
            backward = returning("backward", backward, settings.tensors[len(outputs) :])
        self.filled = self.filled if _mallopt else ""
        super().__init__(target, settings, entry, ctypes=ctypes, forward=forward, backward=backward)

    def put(self, dtype: str) -> tuple[str, str]:
        """bfloat16 is the one of ml_dtypes."""
        if dtype == "bfloat16":
            try:
                import ml_dtypes  # noqa: F401 - importing it gives NumPy the dtype "bfloat16"
            except ImportError as error:
                raise TargetError(
                    "dtypes: found bfloat16, which NumPy knows only where ml_dtypes is installed"
                ) from error
        return super().put(dtype)

    def get(self, array: Any) -> tuple[np.ndarray, str]:
        copy = np.array(array)
        return copy, copy.dtype.name

    @contextlib.contextmanager
    def context(self, case: Case):
        try:
            yield
        finally:
            if case.property == UNWRITTEN:
                _mallopt(-6, 0)


def adapt(target: Any, settings: Settings, called: Any = None) -> Adapter:
    """The target behind one face; it may have been called by a name, "module:name"."""
    module, _, name = FRAMEWORKS[settings.framework].partition(".")
    found = getattr(importlib.import_module(f".{module}", __package__), name)(target, settings)
    found.called_by = called if isinstance(called, str) else ""
    return found
