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
Atomic additions of float32 to global memory make 0 of subnormal numbers. Nothing else is changed as
long as ``cuda.jit`` gets no ``fastmath``: any of its settings, even ``{"contract"}``, also makes
division and square root approximate, and 0 of subnormal numbers.

**bfloat16** is the upper half of a float32, and NumPy has no name for it. In kernels an array of it
is one of uint16: what is read from it goes through ``widened``, what is stored through
``bfloat16``.

In a kernel that runs, arguments are not checked: a GPU has nobody to tell.
"""

import os
from types import SimpleNamespace

import numpy as np

#: Whether numba-cuda-mlir compiles the kernels: see :mod:`simt.successor`. No launch does so.
SUCCESSOR = "LN_NUMBA_CUDA_MLIR" in os.environ

try:
    if SUCCESSOR:
        from numba_cuda_mlir.types import float16, float32, float64, int32, int64, uint64

        from .successor import bfloat16, cuda, libdevice, load4, load8, store4, store8, widened
    else:
        from llvmlite import ir
        from numba import cuda, float32, float64, int32, int64, types, uint16, uint64
        from numba.core.errors import TypingError
        from numba.core.types import float16
        from numba.cuda import libdevice
        from numba.cuda.extending import intrinsic
        from numba.cuda.nvvmutils import targetconfig  # where both of Numba's CUDA targets have it
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
    "load8",
    "store4",
    "store8",
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

    load4, store4, load8, store8 = map(_of_kernels, ("load4", "store4", "load8", "store8"))
    widened, bfloat16 = map(_of_kernels, ("widened", "bfloat16"))

elif not SUCCESSOR:
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

    def _fours(context, builder, array_type, array, index_type, index, count):
        """Pointers to vectors of four that are ``count`` numbers together, and what the address is
        a multiple of: their size, 16 bytes at most.
        """
        data = context.make_array(array_type)(context, builder, array).data
        pointer = builder.gep(data, [context.cast(builder, index, index_type, types.intp)])
        kind, bits, vectors = context.get_data_type(array_type.dtype), array_type.dtype.bitwidth, 1
        if count == 8 and bits == 16:
            kind = ir.IntType(32)  # of eight numbers of 16 bits, LLVM would make two accesses
        else:
            # Four float64 are 32 bytes: two accesses of 16, the widest that all these GPUs have.
            vectors = count // 4
        first = builder.bitcast(pointer, ir.VectorType(kind, 4).as_pointer())
        fours = [builder.gep(first, [ir.IntType(64)(k)]) for k in range(vectors)]
        return fours, min(16, count * bits // 8)

    def _load(name, typingctx, array, i):
        count = int(name[-1])
        _check(name, array, i)

        def generate(context, builder, signature, arguments):
            fours, align = _fours(context, builder, array, arguments[0], i, arguments[1], count)
            numbers = []
            for pointer in fours:
                four = builder.load(pointer, align=align)
                numbers += [builder.extract_element(four, ir.IntType(32)(k)) for k in range(4)]
            if len(numbers) < count:  # two numbers in each, the first in the lower half
                half, sixteen = ir.IntType(16), ir.IntType(32)(16)
                pairs = [(n, builder.lshr(n, sixteen)) for n in numbers]
                numbers = [builder.trunc(n, half) for pair in pairs for n in pair]
            return context.make_tuple(builder, signature.return_type, numbers)

        return types.UniTuple(array.dtype, count)(array, i), generate

    def _store(name, typingctx, array, i, *values):
        count = int(name[-1])
        _check(name, array, i)

        def generate(context, builder, signature, arguments):
            fours, align = _fours(context, builder, array, arguments[0], i, arguments[1], count)
            numbers = arguments[2:]
            if 4 * len(fours) < count:
                word, sixteen = ir.IntType(32), ir.IntType(32)(16)
                words = [builder.zext(n, word) for n in numbers]
                pairs = zip(words[::2], words[1::2])
                numbers = [builder.or_(low, builder.shl(high, sixteen)) for low, high in pairs]
            for first, pointer in enumerate(fours):
                four = ir.Constant(pointer.type.pointee, ir.Undefined)
                for k in range(4):
                    number = numbers[4 * first + k]
                    four = builder.insert_element(four, number, ir.IntType(32)(k))
                builder.store(four, pointer, align=align)
            return context.get_dummy_value()

        return types.void(array, i, *[array.dtype] * count), generate

    @intrinsic
    def load4(typingctx, array, i):
        """The four neighbours array[i], ..., array[i + 3], as a tuple, in one access; i is a
        multiple of 4.

        One access of 16 bytes for float32, of 8 for float16, two of 16 for float64. The array is
        flat and C-contiguous. Nothing is checked when the kernel runs, and i does not count from
        the end.
        """
        return _load("load4", typingctx, array, i)

    @intrinsic
    def load8(typingctx, array, i):
        """The eight neighbours array[i], ..., array[i + 7], as a tuple; i is a multiple of 8. See
        load4. One access of 16 bytes for numbers of 2 bytes, two for float32, four for float64.
        """
        return _load("load8", typingctx, array, i)

    @intrinsic
    def store4(typingctx, array, i, a, b, c, d):
        """array[i], ..., array[i + 3] = a, b, c, d, in one access; i is a multiple of 4. See load4.

        The values are converted to the dtype of the array, as in an assignment.
        """
        return _store("store4", typingctx, array, i, a, b, c, d)

    @intrinsic
    def store8(typingctx, array, i, a, b, c, d, e, f, g, h):
        """array[i], ..., array[i + 7] = a, ..., h; i is a multiple of 8. See load8 and store4."""
        return _store("store8", typingctx, array, i, a, b, c, d, e, f, g, h)

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

    @intrinsic
    def bfloat16(typingctx, value):
        """The bits of the bfloat16 nearest to a float32 or float64, ties to even, as uint16. From
        sm_80 on that is one instruction.
        """

        def generate(context, builder, signature, arguments):
            number, word = arguments[0], ir.IntType(32)
            if value == float64:
                # Rounding twice must not make a tie of what is none: where float32 has lost
                # something, its last bit says so.
                single, quad = builder.fptrunc(number, ir.FloatType()), ir.IntType(64)
                wide = builder.fpext(single, ir.DoubleType())
                sizes = [
                    builder.and_(builder.bitcast(n, quad), quad(2**63 - 1)) for n in (wide, number)
                ]
                larger, lost = (builder.icmp_unsigned(sign, *sizes) for sign in (">", "!="))
                bits = builder.sub(builder.bitcast(single, word), builder.zext(larger, word))
                number = builder.bitcast(
                    builder.or_(bits, builder.zext(lost, word)), ir.FloatType()
                )
            if targetconfig.ConfigStack().top().compute_capability >= (8, 0):
                kind = ir.FunctionType(ir.IntType(16), [ir.FloatType()])
                instruction = ir.InlineAsm(kind, "cvt.rn.bf16.f32 $0, $1;", "=h,f")
                return builder.call(instruction, [number])
            bits = builder.bitcast(number, word)
            odd = builder.and_(builder.lshr(bits, word(16)), word(1))
            near = builder.lshr(builder.add(builder.add(bits, word(0x7FFF)), odd), word(16))
            unordered = builder.fcmp_unordered("uno", number, number)
            return builder.trunc(builder.select(unordered, word(0x7FC0), near), ir.IntType(16))

        return uint16(value), generate
