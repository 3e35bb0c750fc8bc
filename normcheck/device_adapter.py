"""Targets on CuPy's or Numba's device arrays: a pair of functions as on NumPy arrays. What lies on
a device stays there.

Importing this module loads neither: :class:`DevicePair` does.
"""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .adapters import NumPyPair
from .layouts import FURTHER, LAYOUTS, REVERSED, SECOND, SLICE, strides_seen
from .settings import Settings
from .targets import Raised, Spelling, TargetError

#: framework -> its module, the names of the functions that put an array on the device and wrap what
#: lies there, and how a test spells it.
LIBRARIES = {
    "cupy": ("cupy", "asarray", "asarray", Spelling("cupy.asarray({a})", "{a}.get()")),
    "numba": (
        "numba.cuda",
        "to_device",
        "as_cuda_array",
        Spelling("cuda.to_device({a})", "{a}.copy_to_host()"),
    ),
}


class Part:
    """Some of the memory of a device array, as strides see it."""

    def __init__(self, of, seen):
        interface = of.__cuda_array_interface__
        shape, strides, offset = strides_seen(of.shape, of.dtype.itemsize, seen)
        place = {"data": (interface["data"][0] + offset, False), "shape": shape, "strides": strides}
        self.of = of  # owns the memory
        self.__cuda_array_interface__ = {**interface, **place}


class DevicePair(NumPyPair):
    """A pair of functions on arrays of a device."""

    # What slices and reshapes make, for Numba's simulator.
    layouts: tuple[str, ...] = (SECOND, SLICE, FURTHER)
    able = ()

    def __init__(self, target: Any, settings: Settings):
        super().__init__(target, settings)
        if "bfloat16" in settings.dtypes:
            raise TargetError(
                f"dtypes: found bfloat16, expected a dtype that {settings.framework} has"
            )
        module, put, wrap, self.spelling = LIBRARIES[settings.framework]
        library = importlib.import_module(module)
        self._put = getattr(library, put)
        # Numba's simulator cannot wrap arrays, and need not.
        self._wrap = lambda array: getattr(library, wrap)(array)
        if hasattr(self._put(np.zeros(1)), "__cuda_array_interface__"):
            # Numba copies no negative strides.
            self.layouts = tuple(layout for layout in LAYOUTS if layout != REVERSED)

    def view(self, array: Any, seen: Callable) -> Any:
        wraps = hasattr(array, "__cuda_array_interface__")
        return self._wrap(Part(array, seen)) if wraps else seen(array)

    def put(self, array: np.ndarray, dtype: str) -> Any:
        return self._put(super().put(array, dtype))

    def get(self, name: str, array: Any) -> np.ndarray:
        """A NumPy copy of an array on the device."""
        if hasattr(array, "__cuda_array_interface__") and not hasattr(array, "copy_to_host"):
            array = self._wrap(array)  # it may be another library's
        copy = getattr(array, "copy_to_host", getattr(array, "get", None))
        if copy is None:
            raise Raised(
                f"{name} is a {type(array).__name__}, expected an array on the device, as the"
                " arguments are"
            )
        return copy()
