"""Targets on NumPy arrays; and :func:`adapt`, which finds the adapter of each framework."""

import contextlib
import ctypes
import importlib

import numpy as np

from lnlib import validation

from .cases import UNWRITTEN, WRITTEN_OVER
from .layouts import LAYOUTS
from .settings import FRAMEWORKS
from .targets import Adapter, TargetError, eps_of, of_target, parts_of

try:  # glibc fills memory that it hands out or takes back, where it is told to by M_PERTURB
    _mallopt, _PERTURB = ctypes.CDLL(None).mallopt, -6
except (AttributeError, OSError, TypeError):
    _mallopt = None


class NumPyPair(Adapter):
    """``forward(x, gamma, beta, eps) -> (y, saved)`` and ``backward(dy, saved) -> (dx, dgamma,
    dbeta)``.
    """

    layouts = tuple(LAYOUTS)
    able = WRITTEN_OVER, *(UNWRITTEN,) * (_mallopt is not None)
    lacks = (
        "one gradient alone, gradients that add up, a second derivative: a pair of functions has"
        " none",
    )

    def __init__(self, target, settings):
        super().__init__(target, settings)
        self.able = type(self).able  # a pair has no derivatives of derivatives
        several = isinstance(target, (tuple, list))
        if not several or len(target) != 2:
            found = f"{len(target)} things" if several else f"a {type(target).__name__}"
            raise TypeError(
                f"target: found {found}, expected a pair (forward, backward); from the shell "
                "module:forward,backward"
            )
        self.forward, self.backward = (
            validation.require_callable(f"target[{k}]", f) for k, f in enumerate(target)
        )

    def call_forward(self, case, arrays):
        given = (a for name, a in arrays.items() if name != "dy")
        result = of_target(self.forward, *given, *eps_of(case, self.settings))
        return parts_of("forward", result, ("y", "what backward needs"))

    def gradients(self, call):
        names = self.settings.tensors[1:]
        result = of_target(self.backward, call.arrays["dy"], call.saved)
        return dict(zip(names, parts_of("backward", result, names)))

    @contextlib.contextmanager
    def poisoned(self):
        """Fresh memory is full of 0x7f: huge numbers. NumPy keeps pieces of up to 1024 bytes for
        itself, as they were.
        """
        _mallopt(_PERTURB, 0x80)
        try:
            yield
        finally:
            _mallopt(_PERTURB, 0)

    def put(self, array, dtype):
        """A new array of this dtype; bfloat16 is the one of ml_dtypes."""
        if dtype == "bfloat16":
            try:
                import ml_dtypes  # noqa: F401 - importing it gives NumPy the dtype "bfloat16"
            except ImportError as error:
                raise TargetError(
                    "dtypes: found bfloat16, which NumPy knows only where ml_dtypes is installed"
                ) from error
        return np.array(array, dtype=dtype)

    def get(self, name, array):
        """What is compared: a copy, which a later call cannot change."""
        return None if array is None else np.array(array)


def adapt(target, settings):
    """The target behind one face."""
    module, _, name = FRAMEWORKS[settings.framework].partition(".")
    return getattr(importlib.import_module(f".{module}", __package__), name)(target, settings)
