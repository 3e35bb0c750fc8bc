"""Targets on NumPy arrays; and :func:`adapt`, which has the adapter of each framework.

An adapter has ``calls(cases)``: the outcomes of several calls, every forward first and then the
backwards in the opposite order, as they are when all is done (y: when all forwards are);
``layouts``, the ways in which it can lay out arguments; ``able``, which of the properties that not
every target has it can be asked for; and ``lacks``, what is not tested of any such target.
"""

import contextlib
import ctypes

import numpy as np

from lnlib import validation

from .cases import UNWRITTEN, WRITTEN_OVER
from .layouts import LAYOUTS
from .targets import Outcome, TargetError, arguments, changes, eps_of, of_target, parts_of

try:  # glibc fills memory that it hands out or takes back, where it is told to by M_PERTURB
    _mallopt, _PERTURB = ctypes.CDLL(None).mallopt, -6
except (AttributeError, OSError, TypeError):
    _mallopt = None


class NumPyPair:
    """``forward(x, gamma, beta, eps) -> (y, saved)`` and ``backward(dy, saved) -> (dx, dgamma,
    dbeta)``.
    """

    layouts, view = tuple(LAYOUTS), None
    able = WRITTEN_OVER, *(UNWRITTEN,) * (_mallopt is not None)
    lacks = (
        (
            "one gradient alone, gradients that add up, a second derivative: a pair of functions"
            " has none"
        ),
    )

    def __init__(self, target, settings):
        if not isinstance(target, (tuple, list)) or len(target) != 2:
            found = (
                f"{len(target)} things"
                if isinstance(target, (tuple, list))
                else f"a {type(target).__name__}"
            )
            raise TypeError(
                f"target: found {found}, expected a pair (forward, backward); from the shell "
                "module:forward,backward"
            )
        self.forward, self.backward = (
            validation.require_callable(f"target[{k}]", f) for k, f in enumerate(target)
        )
        self.settings = settings

    def calls(self, cases):
        started = [self._forward(case) for case in cases]
        copies = [
            self.get("y", y) for *_, y, _ in started
        ]  # a later forward may have written over it; a backward may
        found = [self._backward(arrays, saved) for arrays, _, _, saved in reversed(started)][::-1]
        if len(cases) > 1:
            self._forward(cases[0])  # may write over what the backwards returned
        return [
            self._outcome(*call[:2], y, result) for call, y, result in zip(started, copies, found)
        ]

    def written_over(self, case, other):
        """The outcome of a second call with the same arrays, in which the numbers of another case
        are by then.
        """
        arrays, _, _, saved = self._forward(case)
        self._backward(arrays, saved)
        for name, a in arguments(other, self.settings, lambda a: self.put(a, other.dtype)).items():
            arrays[name][...] = a
        arrays, seen, y, saved = self._forward(other, arrays)
        return self._outcome(arrays, seen, self.get("y", y), self._backward(arrays, saved))

    def _forward(self, case, arrays=None):
        arrays = arrays or arguments(
            case, self.settings, lambda a: self.put(a, case.dtype), self.view
        )
        before = self._bytes(arrays)
        result = of_target(
            self.forward,
            *(a for name, a in arrays.items() if name != "dy"),
            *eps_of(case, self.settings),
        )
        changed = changes(before, self._bytes(arrays))  # a backward may put it right again
        return arrays, (before, changed), *parts_of("forward", result, ("y", "what backward needs"))

    def _bytes(self, arrays):
        return {name: self.get(name, a).tobytes() for name, a in arrays.items()}

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

    def _backward(self, arrays, saved):
        return parts_of(
            "backward", of_target(self.backward, arrays["dy"], saved), self.settings.tensors[1:]
        )

    def _outcome(self, arrays, seen, y, result):
        tensors = {
            "y": y,
            **{name: self.get(name, a) for name, a in zip(self.settings.tensors[1:], result)},
        }
        before, changed = seen
        return Outcome(
            tensors,
            {name: a.dtype.name for name, a in tensors.items() if a is not None},
            changes(before, self._bytes(arrays), changed),
        )


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
