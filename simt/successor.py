"""The names of :mod:`simt.cuda_access` for numba-cuda-mlir, the compiler that follows numba-cuda.

Kernels stay as they are. What differs are imports, and what numba-cuda writes in LLVM's language,
which the successor has not: here it is plain Python. It has no loads of four neighbours for arrays,
so ``load4`` and its kin are several accesses, and slow. All of this compiles; nothing has run.
"""

from numba_cuda_mlir import cuda, tools
from numba_cuda_mlir.cuda import libdevice
from numba_cuda_mlir.extending import overload, typing_registry
from numba_cuda_mlir.types import float32, int32, uint16

# It asks the GPU what it can, even if it is told for which one to compile; here there may be none.
tools._cached_cc = 8, 0

_overloaded = {"inline": "always", "typing_registry": typing_registry}
_device = cuda.jit(device=True, inline="always")


@_device
def load4(array, i):
    return array[i], array[i + 1], array[i + 2], array[i + 3]


@_device
def load8(array, i):
    a, b, c, d = load4(array, i)
    e, f, g, h = load4(array, i + 4)
    return a, b, c, d, e, f, g, h


@_device
def store4(array, i, a, b, c, d):
    array[i], array[i + 1], array[i + 2], array[i + 3] = a, b, c, d


@_device
def store8(array, i, a, b, c, d, e, f, g, h):
    store4(array, i, a, b, c, d)
    store4(array, i + 4, e, f, g, h)


def widened(value):
    raise NotImplementedError("widened: works in a kernel only")


@overload(widened, **_overloaded)
def _widened(value):
    if value == uint16:
        return lambda value: libdevice.int_as_float(int32(value) << int32(16))
    return lambda value: value


def bfloat16(value):
    raise NotImplementedError("bfloat16: works in a kernel only")


@overload(bfloat16, **_overloaded)
def _bfloat16(value):
    def rounded(value):
        bits, nan = libdevice.float_as_int(float32(value)), int32(value != value)
        near = (bits + int32(0x7FFF) + ((bits >> int32(16)) & int32(1))) >> int32(16)
        return uint16(near * (int32(1) - nan) + int32(0x7FC0) * nan)

    return rounded
