"""``launch``: a kernel on a GPU where there is one, else in the interpreter; and which it is."""

import importlib.metadata
import platform
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import simt
from simt.cuda_access import cuda

from .. import validation
from .devices import compiled


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
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    found = device_name()
    none = "No GPU that Numba can use: kernels are interpreted, by simt"
    where = f"GPU: {found}" if found else none
    if cuda.implementation != "NVIDIA" and sys.platform != "emscripten":
        where += ". numba-cuda is not installed: requirements-gpu.txt has it"
    return f"{where}.\n{', '.join(versions)}."


def launch(kernel: Callable, blocks: int, threads: int, *arguments: Any) -> Launched:
    """Run ``kernel[blocks, threads](*arguments)`` to its end, wherever that is possible; returns a
    named tuple.

    * ``kernel``: what ``cuda.jit`` made of a function, or a plain function.
    * ``blocks``, ``threads``: how many blocks, and how many threads (1 to 1024) in each.
    * ``arguments``: numbers, and flat C-contiguous NumPy arrays, which the kernel writes in place.

    On a GPU the arrays are copied there and back, and the kernel is compiled at its first launch: a
    lesson, not a fast way. Without one :func:`simt.launch` interprets the kernel, with all its
    checks; errors as there.
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
    if not callable(kernel):
        found = type(kernel).__name__
        raise TypeError(f"kernel: found {found}, expected a function or what cuda.jit makes of one")
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
