r"""The names that CUDA kernels are written with, and access to four neighbours of an array at once.

Kernels say ``from simt.cuda_access import FULL, cuda, float32, int32, load4, store4``. With Numba
these are Numba's names. Without it (in a browser, say) they are stand-ins, so that a module of
kernels can still be imported, and run by the interpreter. Functions that kernels call are marked
with :func:`device`.

**Why load4 exists.** A thread that reads ``x[i]``, ``x[i + 1]``, ``x[i + 2]``, ``x[i + 3]`` asks
four times for 4 bytes, although the hardware can bring 16 in one go. The compiler does not merge
the four requests: one of 16 bytes is allowed only where the address is a multiple of 16, and of an
array of float32 all that is known is that addresses are multiples of 4. C programs promise more by
the type of a pointer (``float4*``); arrays in Numba have no such type. So ``load4`` makes that
promise itself, in the compiler's own language, LLVM.

The promise is the caller's: the array must start at such an address (memory from the GPU's
allocator does, at a multiple of 256) and i must be a multiple of 4. A broken promise stops the
kernel with "misaligned address".

Product and sum, as in ``a * b - c``, are compiled to one operation with one rounding. Where the
product must be rounded by itself, write ``libdevice.fmul_rn(a, b)`` (``dmul_rn`` for float64).
Nothing else is changed as long as ``cuda.jit`` gets no ``fastmath``: any of its settings, even
``{"contract"}``, also makes division and square root approximate, and 0 of subnormal numbers.

**bfloat16** is the upper half of a float32, and NumPy has no name for it. In kernels an array of it
is one of uint16: what is read from it goes through ``widened``, what is stored through
:func:`bfloat16`.

In a kernel that runs, arguments are not checked: a GPU has nobody to tell.
"""

from types import SimpleNamespace

import numpy as np

try:
    from llvmlite import ir
    from numba import cuda, float32, float64, int32, int64, types, uint16, uint64
    from numba.core.errors import TypingError
    from numba.core.types import float16
    from numba.cuda import libdevice
    from numba.cuda.extending import intrinsic
except ImportError:  # no Numba, or one without its CUDA target
    cuda = None  # type: ignore[assignment]

__all__ = [
    "FULL",
    "bfloat16",
    "cuda",
    "device",
    "float16",
    "float32",
    "float64",
    "int32",
    "int64",
    "libdevice",
    "load4",
    "store4",
    "uint64",
    "widened",
]

#: The mask of the lanes that take part in a shuffle, here all 32.
FULL = 0xFFFFFFFF


def device(function):
    """Mark a function that kernels call: its body is put in the place of the call. Without Numba it
    stays what it is.
    """
    return cuda.jit(device=True, inline="always")(function)


if cuda is None:

    class _NoNumba(SimpleNamespace):
        """Stands in for ``numba.cuda``, so that kernels can be defined; it compiles nothing."""

        def __getattr__(self, name):
            raise AttributeError(
                f"cuda.{name}: Numba's CUDA target is not installed, so no GPU can be reached"
            )

    def _jit(function=None, **options):
        """A kernel stays what it is, and bears the mark of one; with options, what marks it."""
        if function is None:
            return _jit
        function.py_func = function
        return function

    cuda = _NoNumba(implementation=None, is_available=lambda: False, jit=_jit)
    libdevice = SimpleNamespace()
    float16, float32, float64 = np.float16, np.float32, np.float64
    int32, int64, uint64 = np.int32, np.int64, np.uint64

    def _of_kernels(name):
        """What kernels call by this name, for which :mod:`simt` has a function of its own."""

        def function(*arguments):
            raise NotImplementedError(f"{name}: works in a kernel only")

        function.__name__ = name
        return _jit(function)

    load4, store4, widened, bfloat16 = map(_of_kernels, ("load4", "store4", "widened", "bfloat16"))

else:
    # An intrinsic is two functions. The outer one runs when Numba infers types and returns the
    # signature; the inner one runs when Numba writes LLVM instructions, and what it returns is the
    # value.

    def _check(name, array, i):
        if not (
            isinstance(array, types.Array)
            and array.ndim == 1
            and array.layout == "C"
            and getattr(array.dtype, "bitwidth", None) in (16, 32, 64)
        ):
            raise TypingError(
                f"{name}: array: found {array}, expected a flat C-contiguous array of numbers "
                "of 2, 4 or 8 bytes, such as float32[::1]"
            )
        if not isinstance(i, types.Integer):
            raise TypingError(f"{name}: i: found {i}, expected an integer")

    def _address(context, builder, array_type, array, index_type, index):
        """A pointer to four numbers, and what its address is a multiple of: their size, 16 bytes at
        most.
        """
        data = context.make_array(array_type)(context, builder, array).data
        pointer = builder.gep(data, [context.cast(builder, index, index_type, types.intp)])
        four = ir.VectorType(context.get_data_type(array_type.dtype), 4)
        # Four float64 are 32 bytes: two accesses of 16, the widest that all these GPUs have.
        return builder.bitcast(pointer, four.as_pointer()), min(16, array_type.dtype.bitwidth // 2)

    @intrinsic
    def load4(typingctx, array, i):
        """The four neighbours array[i], ..., array[i + 3], as a tuple, in one access; i is a
        multiple of 4.

        One access of 16 bytes for float32, of 8 for float16, two of 16 for float64. The array is
        flat and C-contiguous. Nothing is checked when the kernel runs, and i does not count from
        the end.
        """
        _check("load4", array, i)

        def generate(context, builder, signature, arguments):
            pointer, align = _address(context, builder, array, arguments[0], i, arguments[1])
            four = builder.load(pointer, align=align)
            return context.make_tuple(
                builder,
                signature.return_type,
                [builder.extract_element(four, ir.IntType(32)(k)) for k in range(4)],
            )

        return types.UniTuple(array.dtype, 4)(array, i), generate

    @intrinsic
    def store4(typingctx, array, i, a, b, c, d):
        """array[i], ..., array[i + 3] = a, b, c, d, in one access; i is a multiple of 4. See load4.

        The values are converted to the dtype of the array, as in an assignment.
        """
        _check("store4", array, i)

        def generate(context, builder, signature, arguments):
            pointer, align = _address(context, builder, array, arguments[0], i, arguments[1])
            four = ir.Constant(pointer.type.pointee, ir.Undefined)
            for k in range(4):
                four = builder.insert_element(four, arguments[2 + k], ir.IntType(32)(k))
            builder.store(four, pointer, align=align)
            return context.get_dummy_value()

        return types.void(array, i, *[array.dtype] * 4), generate

    @intrinsic
    def widened(typingctx, value):
        """The number that an element of an array stands for: of a uint16 the bfloat16, as float32,
        else itself.
        """
        if value != uint16:
            return value(value), lambda context, builder, signature, arguments: arguments[0]

        def generate(context, builder, signature, arguments):
            bits = builder.shl(builder.zext(arguments[0], ir.IntType(32)), ir.IntType(32)(16))
            return builder.bitcast(bits, ir.FloatType())

        return float32(value), generate

    @device
    def bfloat16(value):
        """The bits of the bfloat16 nearest to a float32 or float64, ties to even, as uint16."""
        single = float32(value)
        bits = libdevice.float_as_int(single)
        # Rounding twice must not make a tie of what is none: where float32 has lost something, its
        # last bit says so.
        if abs(single) > abs(value):
            bits -= 1
        if single != value:
            bits |= 1
        if value != value:
            bits = 0x7FC0 << 16
        return uint16(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF)
