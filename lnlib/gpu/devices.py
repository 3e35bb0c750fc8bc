"""Where kernels run: on a GPU, or in the interpreter. Memory, launches, streams.

Arguments are not checked: :mod:`lnlib.gpu.backend` calls what is here, with arguments that it has checked.
"""

import functools
import sys
import warnings

import numpy as np

from .. import simt
from ..simt.cuda_access import cuda

#: What the interpreter takes for the number of multiprocessors of its GPU.
INTERPRETED_MULTIPROCESSORS = 2


@functools.lru_cache(maxsize=None)
def compiled(kernel, threads=None):
    """``kernel``, compiled by Numba when it is first called; with ``threads``, for blocks of so many."""
    if threads is None:
        return cuda.jit(kernel)
    if cuda.implementation == "NVIDIA":  # package numba-cuda; so many registers that one block fits
        return cuda.jit(kernel, launch_bounds=(threads, 1))
    return cuda.jit(kernel, max_registers=min(255, 65536 // threads))


class Interpreter:
    """The GPU where there is none. Memory is NumPy's."""

    multiprocessors = INTERPRETED_MULTIPROCESSORS

    def __init__(self, x=None, stream=None):
        pass

    def put(self, array):
        return np.array(array, order="C")

    def empty(self, shape, dtype):
        return np.empty(shape, dtype)

    def get(self, array, out):
        out[...] = array

    def launch(self, kernel, blocks, threads, *arguments):
        flat = [a.reshape(-1) if isinstance(a, np.ndarray) else a for a in arguments]
        simt.launch(kernel, blocks, threads, *flat)

    def address(self, array):
        return 0  # the interpreter places arrays as a GPU's allocator does


class Gpu:
    """A GPU; ``x`` is a device array whose library allocates what is needed, or None for Numba's own arrays."""

    def __init__(self, x=None, stream=None):
        self.library = sys.modules.get(type(x).__module__.partition(".")[0]) if x is not None else None
        self.x, self.stream = x, stream_of(x, stream)
        self.multiprocessors = cuda.get_current_device().MULTIPROCESSOR_COUNT

    def put(self, array):
        return cuda.to_device(np.ascontiguousarray(array), stream=self.stream)

    def empty(self, shape, dtype):
        name = getattr(self.library, "__name__", "numba")
        if name == "torch":
            return self.library.empty(shape, dtype=getattr(self.library, np.dtype(dtype).name), device=self.x.device)
        if name == "cupy":
            return self.library.empty(shape, dtype)
        return cuda.device_array(shape, dtype, stream=self.stream)

    def get(self, array, out):
        out[...] = array.copy_to_host(stream=self.stream)
        if self.stream:  # on the default stream, the copy has waited
            self.stream.synchronize()

    def launch(self, kernel, blocks, threads, *arguments):
        flat = [cuda.as_cuda_array(a, sync=False).reshape(-1) if hasattr(a, "__cuda_array_interface__") else a
                for a in arguments]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Numba, that few blocks leave the GPU idle: few rows are no mistake
            configured = compiled(kernel, threads)[blocks, threads, self.stream]
        configured(*flat)

    def address(self, array):
        return array.__cuda_array_interface__["data"][0]


def stream_of(x, stream):
    """The stream to work on: the caller's, if it says so, or else the current one of the library x comes from.

    The default stream is 0: of Numba's object for it, int() warns.
    """
    if stream is None and type(x).__module__.partition(".")[0] == "torch":
        stream = sys.modules["torch"].cuda.current_stream(x.device).cuda_stream
    if stream is None and x is not None:
        stream = x.__cuda_array_interface__.get("stream")
    if stream is None or isinstance(stream, int):
        # 1 is the interface's name for the default stream.
        return cuda.external_stream(stream) if stream not in (None, 0, 1) else 0
    return stream


def machine_for(device, like, stream, interpreted=False):
    """Where kernels run: a GPU if there is one, or if the array ``like`` is on one; else the interpreter.

    What the interpreter began (``interpreted``) it finishes: its cache may have been pickled, and now be near a GPU.
    """
    on_gpu = device or cuda.is_available() and not interpreted
    return (Gpu if on_gpu else Interpreter)(like if device else None, stream)
