"""Targets of several kinds, each made to look the same: cases in, NumPy arrays out. A framework is imported when used."""

from typing import NamedTuple

import numpy as np

from .. import contract
from .cases import LAYOUTS


class TargetError(Exception):
    """The target is not what it was said to be; the message says what was found and what was expected."""


class Raised(Exception):
    """The target raised something, which the message says."""


def of_target(function, *arguments):
    """What a function of the target returns; :class:`Raised` if it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        text = str(error).strip().splitlines()
        raise Raised(f"raises {type(error).__name__}{': ' + text[0] if text else ''}") from error


class Outcome(NamedTuple):
    """What came of one call: arrays by name, and the names of the arguments that were changed by it."""

    tensors: dict
    changed: tuple = ()


class NumPyPair:
    """``forward(x, gamma, beta, eps) -> (y, saved)`` and ``backward(dy, saved) -> (dx, dgamma, dbeta)``."""

    layouts = LAYOUTS
    able = frozenset()
    lacks = ("one gradient alone, gradients that add up and a second derivative: "
             "a pair of functions on NumPy arrays has none of them",)

    def __init__(self, target, settings):
        pair = contract.require_several("target", target)
        if len(pair) != 2:
            raise TypeError(f"target: found {len(pair)} things, expected a pair (forward, backward)")
        self.forward, self.backward = (contract.require_callable(f"target[{k}]", f) for k, f in enumerate(pair))
        self.settings = settings

    def calls(self, cases):
        """The outcomes of several cases: every forward first, then the backwards, the last one first."""
        started = [self._forward(case) for case in cases]
        return [self._backward(*call) for call in reversed(started)][::-1]

    def _forward(self, case):
        arrays = {name: laid_out(a, case.dtype, case.layout) for name, a in named(case, self.settings).items()}
        before = {name: a.tobytes() for name, a in arrays.items()}
        eps = () if self.settings.eps is not None else (case.eps,)
        result = of_target(self.forward, *(a for name, a in arrays.items() if name != "dy"), *eps)
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise TargetError(f"forward: found {said(result)} returned, expected a pair (y, saved)")
        return arrays, before, np.array(result[0]), result[1]

    def _backward(self, arrays, before, y, saved):
        names = self.settings.tensors[1:]
        result = of_target(self.backward, arrays["dy"], saved)
        if not isinstance(result, (tuple, list)) or len(result) != len(names):
            raise TargetError(f"backward: found {said(result)} returned, expected {len(names)}: {', '.join(names)}")
        tensors = {"y": y, **{name: None if a is None else np.array(a) for name, a in zip(names, result)}}
        return Outcome(tensors, tuple(name for name, a in arrays.items() if a.tobytes() != before[name]))


def said(result):
    """A wrong result in words."""
    return f"{len(result)} values" if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"


def named(case, settings):
    """The arrays of a case that the target takes, by name, and dy."""
    return {name: getattr(case, name) for name in ("x", "gamma", "beta", "dy") if name != "beta" or settings.beta}


_VIEWS = {
    "as they are": lambda a: a,
    "Fortran order": np.asfortranarray,
    "reversed": lambda a: a[..., ::-1].copy()[..., ::-1],
    "every second": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "leading axes swapped": lambda a: np.swapaxes(np.swapaxes(a, 0, -2).copy(), 0, -2) if a.ndim > 2 else a,
    "one element further": lambda a: np.concatenate([np.zeros(1, a.dtype), a.ravel()])[1:].reshape(a.shape),
    "every row the same memory": lambda a: np.broadcast_to(a[(0,) * (a.ndim - 1)], a.shape) if a.ndim > 1 else a,
}


def laid_out(array, dtype, layout):
    """A new array of ``dtype`` with these numbers, laid out in memory in one of the ways of :data:`_VIEWS`."""
    return _VIEWS[layout](np.array(array, dtype=numpy_dtype(dtype)))


def numpy_dtype(name):
    """The dtype of this name; bfloat16 is the one of ml_dtypes."""
    if name == "bfloat16":
        try:
            import ml_dtypes  # noqa: F401 - importing it gives NumPy the dtype "bfloat16"
        except ImportError as error:
            raise TargetError("dtypes: found bfloat16, which NumPy knows only where ml_dtypes is installed") from error
    return np.dtype(name)


def adapt(target, settings):
    """The target behind one face: ``calls(cases)``, ``layouts``, ``able`` and ``lacks``."""
    if settings.framework == "numpy":
        return NumPyPair(target, settings)
    raise NotImplementedError(settings.framework)
