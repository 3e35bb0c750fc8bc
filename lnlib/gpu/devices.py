"""Where kernels run: on a GPU, or in the interpreter. Memory, launches, streams.

Arguments are not checked: :mod:`lnlib.gpu.backend` calls what is here, with arguments that it has
checked.
"""

import functools
import sys

import numpy as np

import simt
from simt.cuda_access import cuda

from .prepared import device_of, in_kernels, on_device

#: What the interpreter takes for the number of multiprocessors of its GPU.
INTERPRETED_MULTIPROCESSORS = 2


@functools.cache
def _is_torchs(kind):
    return kind.__module__.partition(".")[0] == "torch"


def is_tensor(array):
    """Whether it is PyTorch's. What it is asked itself takes a tenth of what its
    ``__cuda_array_interface__`` takes.
    """
    return _is_torchs(type(array))


class Interpreter:
    """The GPU where there is none. Memory is NumPy's."""

    multiprocessors = INTERPRETED_MULTIPROCESSORS

    def __init__(self, x=None, stream=None):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def put(self, array):
        return np.array(array)

    def empty(self, shape, dtype):
        return np.empty(shape, dtype)

    def get(self, array, out):
        out[...] = array

    def launch(self, work, *arrays):
        # The compiled kernel gets addresses, and would read them as what they are declared to be.
        found = tuple((a.dtype, a.size) for a in arrays)
        if found != work.arrays:
            raise TypeError(
                f"arrays: found {found}, expected {work.arrays}, which the kernel is compiled for"
            )
        simt.launch(
            work.kernel,
            work.blocks,
            work.threads,
            *(a.ravel().view(in_kernels(a.dtype.name)) for a in arrays),
            *work.numbers,
        )

    def address(self, array):
        return 0  # the interpreter places arrays as a GPU's allocator does


class Gpu:
    """A GPU; ``x`` is a device array whose library allocates what is needed, or None for Numba's
    own arrays.

    It is the GPU that x is on, or else the current one. In a ``with`` statement it is the current
    one.
    """

    def __init__(self, x=None, stream=None):
        self.library = type(x).__module__.partition(".")[0] if x is not None else "numba"
        self.x, self.stream = x, stream_of(x, stream)
        self.device = (
            None
            if x is None
            else x.get_device()
            if self.library == "torch"
            else device_of(self.address(x))
        )
        if self.device is None:  # x has no elements, or is on the host
            self.device = cuda.get_current_device().id
        self.multiprocessors = _multiprocessors(self.device)

    def __enter__(self):
        self.current = on_device(self.device)
        self.current.__enter__()
        return self

    def __exit__(self, *error):
        self.current.__exit__(*error)

    def put(self, array):
        plain = np.ascontiguousarray(array).view(in_kernels(array.dtype.name))
        return cuda.to_device(plain, stream=_numbas(self.stream)).view(array.dtype)

    def empty(self, shape, dtype):
        if self.library == "torch":
            return self.x.new_empty(shape, dtype=_torchs(dtype))
        if self.library == "cupy":
            return sys.modules["cupy"].empty(shape, dtype)
        return cuda.device_array(shape, dtype, stream=_numbas(self.stream))

    def get(self, array, out):
        plain = array.view(in_kernels(array.dtype.name)).copy_to_host(stream=_numbas(self.stream))
        if self.stream:  # on the default stream, the copy has waited
            _numbas(self.stream).synchronize()
        out[...] = plain.view(array.dtype)

    def launch(self, work, *arrays):
        work.launch(self.device, self.stream, [self.address(a) for a in arrays])

    def address(self, array):
        if hasattr(array, "data_ptr"):  # PyTorch's
            return array.data_ptr()
        return array.__cuda_array_interface__["data"][0] or 0

    def device_of(self, array):
        """The number of the device that an array is on; this one's, if it has no elements."""
        if is_tensor(array):
            return array.get_device()
        found = device_of(self.address(array))
        return self.device if found is None else found


@functools.cache
def _multiprocessors(device):
    return cuda.gpus[device].MULTIPROCESSOR_COUNT


@functools.cache
def _torchs(dtype):
    """PyTorch's dtype for NumPy's."""
    return getattr(sys.modules["torch"], dtype.name)


def _numbas(stream):
    """Numba's object for a stream; 0 for the default one."""
    return cuda.external_stream(stream) if stream else 0


def _current_stream(device):
    """The number of PyTorch's current stream: in a thirtieth of the time by the name that its
    compiler's code uses.
    """
    torch = sys.modules["torch"]
    number = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return torch.cuda.current_stream(device).cuda_stream if number is None else number(device)


def stream_of(x, stream):
    """The number of the stream to work on: the caller's, if it says so, or the current one of the
    library of x.

    The default stream is 0: of Numba's object for it, int() warns.
    """
    if stream is None and is_tensor(x):
        stream = _current_stream(x.get_device())
    elif stream is None and x is not None:
        stream = x.__cuda_array_interface__.get("stream")
    if not (stream is None or isinstance(stream, int)):
        stream = getattr(stream.handle, "value", stream.handle)
    return (
        int(stream or 0) if stream != 1 else 0
    )  # 1 is the interface's name for the default stream


def machine_for(device, like, stream, interpreted=False):
    """Where kernels run: a GPU if there is one, or if the array ``like`` is on one; else the
    interpreter.

    What the interpreter began (``interpreted``) it finishes: its cache may have been pickled, and
    now be near a GPU.
    """
    on_gpu = device or cuda.is_available() and not interpreted
    return (Gpu if on_gpu else Interpreter)(like if device else None, stream)
