"""Targets on NumPy arrays; and :func:`adapt`, which has the adapter of each framework.

An adapter has ``calls(cases)``: the outcomes of several calls, every forward first and then the backwards in the
opposite order; ``layouts``, the ways in which it can lay out arguments; ``able``, which of the properties of
differentiable functions it can be asked for; and ``lacks``, what is not tested of any such target.
"""

import numpy as np

from .. import contract
from .layouts import LAYOUTS, laid_out
from .targets import Outcome, TargetError, arguments, eps_of, of_target, parts_of


class NumPyPair:
    """``forward(x, gamma, beta, eps) -> (y, saved)`` and ``backward(dy, saved) -> (dx, dgamma, dbeta)``."""

    layouts = tuple(LAYOUTS)
    able = ()
    lacks = ("one gradient alone, gradients that add up, a second derivative: a pair of functions has none",)

    def __init__(self, target, settings):
        if not isinstance(target, (tuple, list)) or len(target) != 2:
            found = f"{len(target)} things" if isinstance(target, (tuple, list)) else f"a {type(target).__name__}"
            raise TypeError(f"target: found {found}, expected a pair (forward, backward); from the shell "
                            "module:forward,backward")
        self.forward, self.backward = (contract.require_callable(f"target[{k}]", f) for k, f in enumerate(target))
        self.settings = settings

    def calls(self, cases):
        started = [self._forward(case) for case in cases]
        return [self._backward(*call) for call in reversed(started)][::-1]

    def _forward(self, case):
        arrays = arguments(case, self.settings, lambda a: self.put(a, case.dtype))
        before = {name: self.get(name, a).tobytes() for name, a in arrays.items()}
        result = of_target(self.forward, *(a for name, a in arrays.items() if name != "dy"),
                           *eps_of(case, self.settings))
        y, saved = parts_of("forward", result, ("y", "what backward needs"))
        return arrays, before, self.get("y", y), saved

    def put(self, array, dtype):
        """A new array of this dtype; bfloat16 is the one of ml_dtypes."""
        if dtype == "bfloat16":
            try:
                import ml_dtypes  # noqa: F401 - importing it gives NumPy the dtype "bfloat16"
            except ImportError as error:
                raise TargetError("dtypes: found bfloat16, which NumPy knows only where ml_dtypes is installed") from error
        return np.array(array, dtype=dtype)

    def get(self, name, array):
        """What is compared: a copy, which a later call cannot change."""
        return None if array is None else np.array(array)

    def _backward(self, arrays, before, y, saved):
        names = self.settings.tensors[1:]
        result = parts_of("backward", of_target(self.backward, arrays["dy"], saved), names)
        tensors = {"y": y, **{name: self.get(name, a) for name, a in zip(names, result)}}
        return Outcome(tensors, {name: a.dtype.name for name, a in tensors.items() if a is not None},
                       tuple(name for name, a in arrays.items() if self.get(name, a).tobytes() != before[name]))


def adapt(target, settings):
    """The target behind one face."""
    adapter = NumPyPair
    if settings.framework == "torch":
        from .torch_adapter import TorchFunction as adapter
    elif settings.framework == "jax":
        from .jax_adapter import JaxFunction as adapter
    elif settings.framework != "numpy":
        from .device_adapter import DevicePair as adapter
    return adapter(target, settings)
