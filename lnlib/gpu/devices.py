"""Where kernels run: on a GPU, or in the interpreter. Memory, launches, streams.

:func:`launch` runs any kernel, a lesson and no fast way: Numba's own launch looks at every array
anew, which takes longer than the GPU needs for millions of numbers. A :class:`PreparedLaunch` does
that once: it keeps, for each device, the compiled kernel and its packed parameters, where only the
addresses change from launch to launch. :mod:`lnlib.gpu.backend` has checked its arguments.
"""

import contextlib
import ctypes
import functools
import importlib.metadata
import platform
import struct
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import simt
from simt.cuda_access import cuda

from .. import validation

#: Numba passes a flat array as two addresses that a kernel does not use, count, bytes of a number,
#: address, count, and bytes from one number to the next.
ARRAY, ADDRESS = "PPnnPnn", 4

#: The ``with`` statement of a device that is the current one.
NOTHING = contextlib.nullcontext()

#: The driver's numbers for a pointer's device, and for the two ends of packed parameters.
_DEVICE_ORDINAL, _BUFFER, _BUFFER_SIZE = 9, 1, 2


@functools.cache
def compiled(kernel, threads=None):
    """``kernel``, compiled by Numba at its first call; with ``threads``, for blocks of so many."""
    if threads is None:
        return cuda.jit(kernel)
    if cuda.implementation == "NVIDIA":  # package numba-cuda; so many registers that one block fits
        return cuda.jit(kernel, launch_bounds=(threads, 1))
    return cuda.jit(kernel, max_registers=min(255, 65536 // threads))


@functools.cache
def driver():
    """The library of NVIDIA's driver."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise ImportError(f"found no driver for CUDA ({name})") from error
    pointers = [ctypes.c_void_p] * 3
    library.cuLaunchKernel.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *pointers]
    library.cuPointerGetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
    return library


def in_kernels(name):
    """The name of a dtype in kernels, where bfloat16 is 16 bits without a sign."""
    return "uint16" if name == "bfloat16" else name


class PreparedLaunch:
    """A kernel, its blocks and threads, and what it takes: arrays (dtype, count), then numbers.

    Forward, backward and the additions of partial sums each have one for every shape, kept by
    :mod:`lnlib.gpu.backend`: a later call of the same kind only writes addresses.
    """

    def __init__(self, kernel, blocks, threads, arrays, numbers):
        self.kernel, self.blocks, self.threads = kernel, blocks, threads
        self.arrays, self.numbers = tuple(arrays), tuple(numbers)
        self.prepared = {}

    def launch(self, device, stream, addresses):
        """Launch it on the device, which is the current one, and on a stream, a number."""
        if device not in self.prepared:
            self.prepared[device] = self._handle(), Parameters(self.arrays, self.numbers)
        handle, parameters = self.prepared[device]
        words = parameters.words
        for at, address in zip(parameters.places, addresses):
            words[at] = address
        code = driver().cuLaunchKernel(
            handle, self.blocks, 1, 1, self.threads, 1, 1, 0, stream, None, parameters.extra
        )
        if code:
            name = ctypes.c_char_p()
            driver().cuGetErrorName(code, ctypes.byref(name))
            called = (name.value or b"without a name").decode()
            tried = f"launch of {self.blocks} blocks of {self.threads} threads"
            raise RuntimeError(f"{tried}: CUDA error {code}, {called}")

    def _handle(self):
        """The number by which the driver knows the kernel, compiled for these types."""
        types = [f"{in_kernels(dtype.name)}[::1]" for dtype, _ in self.arrays]
        types += [number.dtype.name for number in self.numbers]
        made = compiled(self.kernel, self.threads).compile(f"void({', '.join(types)})")
        function = made._codelibrary.get_cufunc()  # Numba has no public name for it
        handle = getattr(function, "kernel", function).handle
        return int(getattr(handle, "value", handle))


class Parameters(threading.local):
    """Packed parameters of a launch, of which each thread of the host has its own."""

    def __init__(self, arrays, numbers):
        form = ARRAY * len(arrays) + "".join(number.dtype.char for number in numbers)
        words = []
        for dtype, count in arrays:
            words += [0, 0, count, dtype.itemsize, 0, count, dtype.itemsize]
        packed = struct.pack(form, *words, *(number.item() for number in numbers))
        whole = -(-len(packed) // 8)
        self.places = [len(ARRAY) * k + ADDRESS for k in range(len(arrays))]
        self.words = (ctypes.c_uint64 * whole).from_buffer_copy(packed.ljust(8 * whole))
        self.size = ctypes.c_size_t(len(packed))
        words_at, size_at = ctypes.addressof(self.words), ctypes.addressof(self.size)
        self.extra = (ctypes.c_void_p * 5)(_BUFFER, words_at, _BUFFER_SIZE, size_at, None)


@functools.cache
def _of_torch(kind):
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(kind, torch.Tensor)


def is_tensor(array):
    """Whether it is PyTorch's, whose own attributes are faster than the interface."""
    return _of_torch(type(array))


class Interpreter:
    """The GPU where there is none. Memory is NumPy's."""

    multiprocessors = 2
    current = NOTHING

    def __init__(self, x=None, stream=None):
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
            expected = f"{work.arrays}, which the kernel is compiled for"
            raise TypeError(f"arrays: found {found}, expected {expected}")
        flat = (a.ravel().view(in_kernels(a.dtype.name)) for a in arrays)
        simt.launch(work.kernel, work.blocks, work.threads, *flat, *work.numbers)

    def address(self, array):
        return 0  # the interpreter places arrays as a GPU's allocator does


class Gpu:
    """The GPU that the device array ``x`` is on, whose library allocates what is needed; for None
    the current GPU, and Numba. ``current`` is a ``with`` statement in which it is the current one.
    """

    def __init__(self, x=None, stream=None):
        self.x, self.stream, self.device = x, stream_of(x, stream), None
        if x is not None:
            self.device = self.device_of(x)
        if self.device is None:  # x has no elements, or is on the host
            self.device = cuda.get_current_device().id
        self.multiprocessors, number = _multiprocessors(self.device), ctypes.c_int()
        found = not driver().cuCtxGetDevice(ctypes.byref(number)) and number.value == self.device
        self.current = NOTHING if found else cuda.gpus[self.device]

    def put(self, array):
        plain = np.ascontiguousarray(array).view(in_kernels(array.dtype.name))
        return cuda.to_device(plain, stream=_numbas(self.stream)).view(array.dtype)

    def empty(self, shape, dtype):
        if is_tensor(self.x):
            if shape == self.x.shape and self.x.dtype == _torchs(dtype):  # in half the time
                return sys.modules["torch"].empty_like(self.x)
            return self.x.new_empty(shape, dtype=_torchs(dtype))
        if type(self.x).__module__.partition(".")[0] == "cupy":
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
        if is_tensor(array):
            return array.data_ptr()
        return array.__cuda_array_interface__["data"][0] or 0

    def device_of(self, array):
        """The number of the device that an array is on; this one's, if it has no elements."""
        if is_tensor(array):
            return array.get_device()
        number, address = ctypes.c_int(), self.address(array)
        ask = driver().cuPointerGetAttribute
        return self.device if ask(ctypes.byref(number), _DEVICE_ORDINAL, address) else number.value


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


def stream_of(x, stream):
    """The number of the stream to work on: the caller's, or that of the library of x, or 0."""
    if stream is None and is_tensor(x):
        stream = sys.modules["torch"].cuda.current_stream(x.device).cuda_stream
    elif stream is None and x is not None:
        stream = x.__cuda_array_interface__.get("stream")
    if not (stream is None or isinstance(stream, int)):
        stream = getattr(stream.handle, "value", stream.handle)
    return int(stream or 0) if stream != 1 else 0  # 1: the interface's name for the default


def machine_for(device, like, stream, interpreted=False):
    """Where kernels run: a GPU if there is one, or if the array ``like`` is on one; else the
    interpreter, which also finishes what it began (``interpreted``).
    """
    on_gpu = device or cuda.is_available() and not interpreted
    return (Gpu if on_gpu else Interpreter)(like if device else None, stream)


class Launched(NamedTuple):
    """What a launch was, and where it ran; shown as one line."""

    kernel: str  #: its name
    blocks: int  #: how many
    threads: int  #: in each block
    where: str  #: the GPU, by name, or the interpreter

    def __repr__(self):
        threads = self.blocks * self.threads
        return f"{self.kernel}[{self.blocks}, {self.threads}]: {threads} threads, {self.where}"


def device_name() -> str | None:
    """The GPU that kernels run on, with its compute capability; None where there is none."""
    if not cuda.is_available():
        return None
    device = cuda.get_current_device()
    name = device.name.decode() if isinstance(device.name, bytes) else device.name
    return f"{name} (compute capability {'.'.join(map(str, device.compute_capability))})"


def describe() -> str:
    """Two lines of text: the GPU, or what is missing for one to be used, and versions."""
    versions = [f"Python {platform.python_version()}"]
    for package in ("numpy", "numba", "numba-cuda", "torch", "cupy-cuda12x", "cupy-cuda13x"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    found = device_name()
    none = "No GPU that Numba can use: kernels are interpreted, by simt"
    where = f"GPU: {found}" if found else none
    if cuda.implementation != "NVIDIA" and sys.platform != "emscripten":
        where += ". numba-cuda is not installed: requirements-gpu.txt has it"
    return f"{where}.\n{', '.join(versions)}."


def launch(kernel: Callable, blocks: int, threads: int, *arguments: Any) -> Launched:
    """Run ``kernel[blocks, threads](*arguments)`` to its end, where that can be; a ``Launched``.

    * ``kernel``: what ``cuda.jit`` made of a function, or a plain function.
    * ``blocks``, ``threads``: how many blocks, and how many threads (1 to 1024) in each.
    * ``arguments``: numbers, and flat C-contiguous NumPy arrays, which the kernel writes in place.

    On a GPU the arrays are copied there and back, and the kernel is compiled at its first launch: a
    lesson, not a fast way. Else :func:`simt.launch` interprets it, with its checks and errors.
    """
    validation.require_count("blocks", blocks)
    validation.require_count("threads", threads, most=1024)
    if not cuda.is_available():
        simt.launch(kernel, blocks, threads, *arguments)
        where = "interpreted by simt"
    else:
        _on_gpu(kernel, blocks, threads, arguments)
        where = f"compiled by Numba, on {device_name()}"
    return Launched(getattr(kernel, "__name__", "kernel"), int(blocks), int(threads), where)


def _on_gpu(kernel, blocks, threads, arguments):
    validation.require_callable("kernel", kernel)
    # An array that is given twice is one array.
    hosts = {id(a): a for a in arguments if isinstance(a, np.ndarray)}
    devices = {key: cuda.to_device(host) for key, host in hosts.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Numba's, that few blocks leave the GPU idle
        dispatcher = kernel if hasattr(kernel, "py_func") else compiled(kernel)
        configured = dispatcher[int(blocks), int(threads)]
        configured(*(devices.get(id(a), a) for a in arguments))
    cuda.synchronize()  # a launch returns at once; what went wrong in it is told here
    for key, host in hosts.items():
        if host.flags.writeable:
            devices[key].copy_to_host(host)
