"""The driver without a GPU, for this process: ``install(capability)``, before anything asks for a
driver.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np

from . import machine, text

#: PTX of the kernels that Numba has loaded, by name.
SOURCES = {}

#: What has run: (name of the kernel, blocks, threads, device, stream).
LAUNCHES = []


class _Allocation(ctypes.Structure):
    _fields_ = [
        ("start", ctypes.c_uint64),
        ("bytes", ctypes.c_size_t),
        ("written", ctypes.c_void_p),
        ("device", ctypes.c_long),
    ]


_SHAPE = ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint
_PARAMETERS = ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, *_SHAPE, ctypes.c_int, ctypes.c_void_p, *_PARAMETERS)

_MOST = 1 << 16  # allocations; driver.c has the same
_kernels, _kept, _rng = {}, [], np.random.default_rng(0)


def missing():
    """What is not there for compiled kernels to run, as a sentence; None if all is there."""
    if not shutil.which("cc"):
        return "cc not found: a C compiler makes the driver that stands in for NVIDIA's"
    if not sys.platform.startswith("linux"):
        return "the driver that stands in for NVIDIA's is made for Linux"
    try:
        from numba import cuda
    except ImportError:
        return "Numba's CUDA target not found; see requirements-gpu-code.txt"
    if cuda.implementation != "NVIDIA":
        return "numba-cuda not found, which compiles without a GPU; see requirements-gpu-code.txt"
    return None


def build(folder):
    """Compile driver.c; the path of the library."""
    library = Path(folder, "libcuda.so.1")
    options = "-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", "-ldl", "-pthread"
    source = Path(__file__).with_name("driver.c")
    subprocess.run(["cc", source, "-o", library, *options], check=True)
    return library


def install(capability=90):
    """Load the driver, so that whoever asks for libcuda.so.1 gets it. ``capability`` is that of the
    GPU it seems to be: 75, 80, 90.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = ctypes.CDLL(os.fspath(build(folder)), mode=ctypes.RTLD_GLOBAL)

    def launched(name, blocks, threads, device, stream, params, packed):
        try:
            LAUNCHES.append((name.decode(), blocks, threads, device, stream or 0))
            kernel = _kernel(name.decode())
            values = _packed(kernel, packed) if packed else _separate(kernel, params)
            machine.launch(kernel, blocks, threads, values, _allocations(library, device), _rng)
        except BaseException as error:
            if not isinstance(error, text.PtxError):
                traceback.print_exc()
            library.stub_message(f"{type(error).__name__}: {error}".encode())
            return 1
        return 0

    callback = _LAUNCH(launched)
    library.stub_set(callback, capability)
    _kept.extend([library, callback])
    _note_the_ptx()


def _note_the_ptx():
    """Have Numba tell the PTX of each kernel that it loads."""
    from numba.cuda.codegen import CUDACodeLibrary

    load = CUDACodeLibrary.get_cufunc

    def noted(self):
        if self._entry_name not in SOURCES:
            SOURCES[self._entry_name] = self.get_asm_str()
        return load(self)

    CUDACodeLibrary.get_cufunc = noted


def _kernel(name):
    if name not in _kernels:
        _kernels[name] = text.read(SOURCES[name])
    return _kernels[name]


def _separate(kernel, params):
    """Bits of the parameters, from the address of each."""
    return {n: _number(at, kind) for at, (n, kind) in zip(params, kernel.parameters.items())}


def _packed(kernel, at):
    """Bits of the parameters, which lie behind one another, each where its size divides the
    distance.
    """
    values, end = {}, 0
    for name, kind in kernel.parameters.items():
        place = -(-end // text.size(kind)) * text.size(kind)
        values[name] = _number(at + place, kind)
        end = place + text.size(kind)
    return values


def _number(address, kind):
    return int.from_bytes(ctypes.string_at(address, text.size(kind)), "little")


def _allocations(library, device):
    found = (_Allocation * _MOST)()
    count = library.stub_allocations(found)
    return [
        (a.start, a.bytes, _bytes(a.start, a.bytes), _bytes(a.written, a.bytes))
        for a in found[:count]
        if a.device == device
    ]


def _bytes(address, count):
    return np.frombuffer((ctypes.c_uint8 * (-(-count // 16) * 16)).from_address(address), np.uint8)
