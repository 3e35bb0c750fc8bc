"""A launch with little between it and the driver.

Numba's own launch looks at every array anew: what it is, how it lies in memory, and which compiled
kernel fits; that takes longer than the GPU needs for millions of numbers. All of it is the same in
every call with arrays of these shapes. So it is done once: a :class:`Work` knows what its arrays
are and keeps, for each device, the compiled kernel and its packed parameters, where only the
addresses change from launch to launch.

Arguments are not checked: :mod:`lnlib.gpu.backend` calls what is here, with arguments that it has
checked.
"""

import contextlib
import ctypes
import functools
import struct
import sys
import threading

from simt.cuda_access import cuda

#: Numba passes a flat array as two addresses that a kernel does not use, count, bytes of a number,
#: address, count, and bytes from one number to the next.
ARRAY, ADDRESS = "PPnnPnn", 4

#: Of the driver's names: the attribute that is the number of a pointer's device, and the two ends
#: of packed parameters.
_DEVICE_ORDINAL, _BUFFER, _BUFFER_SIZE = 9, 1, 2


@functools.cache
def compiled(kernel, threads=None):
    """``kernel``, compiled by Numba when it is first called; with ``threads``, for blocks of so
    many.
    """
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
        raise ImportError(
            f"found no driver for CUDA ({name}), so arrays on a device cannot be reached"
        ) from error
    library.cuLaunchKernel.argtypes = (
        [ctypes.c_void_p] + [ctypes.c_uint] * 7 + [ctypes.c_void_p] * 3
    )
    library.cuPointerGetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
    return library


def in_kernels(name):
    """The name of the dtype that an array of the dtype ``name`` has in kernels: bfloat16 is 16 bits
    without a sign.
    """
    return "uint16" if name == "bfloat16" else name


def device_of(address):
    """The number of the device that this address is on; None if it is on none."""
    number = ctypes.c_int()
    return (
        None
        if driver().cuPointerGetAttribute(ctypes.byref(number), _DEVICE_ORDINAL, address)
        else number.value
    )


def on_device(device):
    """A ``with`` statement in which this device is the current one; one that does nothing if it is
    already.
    """
    number = ctypes.c_int()
    if driver().cuCtxGetDevice(ctypes.byref(number)) or number.value != device:
        return cuda.gpus[device]
    return contextlib.nullcontext()


class Work:
    """What is launched: a kernel, blocks, threads of a block, its arrays as (dtype, count), and the
    numbers behind them.

    A kernel takes its arrays first, flat, then these numbers, NumPy's.
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
            raise RuntimeError(
                f"launch of {self.blocks} blocks of {self.threads} threads: CUDA error {code}, "
                f"{(name.value or b'without a name').decode()}"
            )

    def _handle(self):
        """The number by which the driver knows the kernel, compiled for arguments of these
        types.
        """
        types = [f"{in_kernels(dtype.name)}[::1]" for dtype, _ in self.arrays] + [
            number.dtype.name for number in self.numbers
        ]
        made = compiled(self.kernel, self.threads).compile(f"void({', '.join(types)})")
        function = made._codelibrary.get_cufunc()  # Numba has no public name for it
        handle = getattr(function, "kernel", function).handle
        return int(getattr(handle, "value", handle))


class Parameters(threading.local):
    """Packed parameters of a launch. Each thread of the host has its own: the driver reads while
    others go on.
    """

    def __init__(self, arrays, numbers):
        packed = struct.pack(
            ARRAY * len(arrays) + "".join(number.dtype.char for number in numbers),
            *(
                word
                for dtype, count in arrays
                for word in (0, 0, count, dtype.itemsize, 0, count, dtype.itemsize)
            ),
            *(number.item() for number in numbers),
        )
        self.places = [len(ARRAY) * k + ADDRESS for k in range(len(arrays))]
        self.words = (ctypes.c_uint64 * -(-len(packed) // 8)).from_buffer_copy(
            packed.ljust(-(-len(packed) // 8) * 8)
        )
        self.size = ctypes.c_size_t(len(packed))
        self.extra = (ctypes.c_void_p * 5)(
            _BUFFER, ctypes.addressof(self.words), _BUFFER_SIZE, ctypes.addressof(self.size), None
        )
