"""Targets on CuPy's or Numba's device arrays: a pair of functions as on NumPy arrays. What lies on
a device stays there.

Importing this module loads neither: :class:`DevicePair` does.
"""

import importlib

import numpy as np

from .adapters import NumPyPair
from .layouts import FURTHER, LAYOUTS, REVERSED, SECOND, SLICE
from .targets import Raised, TargetError

#: framework -> its module, and the names of the functions that put an array on the device and wrap
#: what lies there.
LIBRARIES = {
    "cupy": ("cupy", "asarray", "asarray"),
    "numba": ("numba.cuda", "to_device", "as_cuda_array"),
}


class Part:
    """Some of the memory of a device array, as strides see it."""

    def __init__(self, of, seen):
        whole = np.empty(of.shape, of.dtype)
        part, interface = seen(whole), of.__cuda_array_interface__
        offset = part.ctypes.data - whole.ctypes.data
        self.of = of  # owns the memory
        self.__cuda_array_interface__ = {
            **interface,
            "data": (interface["data"][0] + offset, False),
            "shape": part.shape,
            "strides": part.strides,
        }


class DevicePair(NumPyPair):
    """A pair of functions on arrays of a device."""

    layouts = SECOND, SLICE, FURTHER  # what slices and reshapes make, for Numba's simulator
    able = ()

    def __init__(self, target, settings):
        super().__init__(target, settings)
        if "bfloat16" in settings.dtypes:
            raise TargetError(
                f"dtypes: found bfloat16, expected a dtype that {settings.framework} has"
            )
        module, put, wrap = LIBRARIES[settings.framework]
        library = importlib.import_module(module)
        self._put = getattr(library, put)
        # Numba's simulator cannot wrap arrays, and need not.
        self._wrap = lambda array: getattr(library, wrap)(array)
        if hasattr(self._put(np.zeros(1)), "__cuda_array_interface__"):
            # Numba copies no negative strides.
            self.layouts = tuple(layout for layout in LAYOUTS if layout != REVERSED)
            self.view = lambda a, seen: self._wrap(Part(a, seen))

    def put(self, array, dtype):
        return self._put(super().put(array, dtype))

    def get(self, name, array):
        """A NumPy copy of an array on the device."""
        if array is None:
            return None
        if hasattr(array, "__cuda_array_interface__") and not hasattr(array, "copy_to_host"):
            array = self._wrap(array)  # it may be another library's
        copy = getattr(array, "copy_to_host", getattr(array, "get", None))
        if copy is None:
            raise Raised(
                f"{name} is a {type(array).__name__}, expected an array on the device, as the"
                " arguments are"
            )
        return copy()
