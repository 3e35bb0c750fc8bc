"""Arrays as Python hands them over: compiled code reads itself what NumPy has written at the head
of each.

It reads a copy, made while Python's lock is held: meanwhile another thread may give the array
another shape or dtype, and NumPy then frees the memory that the old one lay in. Asked for dtype,
axes or flags, Python answers in 20 to 60 ns each; Numba, which asks again, takes 40 an array: 0.8
us of the 2.2 us that a call on a row of 64 took. The fields are those of ``PyArrayObject`` and
``PyArray_Descr`` in the C API of NumPy, on which extensions rely:
https://numpy.org/doc/2.4/reference/c-api/types-and-structures.html.
"""

import ctypes
import sys

import numpy as np
from llvmlite import binding, ir
from numba import carray, config, njit, types
from numba.core import cgutils
from numba.extending import NativeValue, intrinsic, models, register_model, unbox

# A Python object begins with what Python keeps of it; the last word of that is the address of its
# type.
_OBJECT = [("python", np.intp, object.__basicsize__ // np.intp().itemsize - 1), ("type", np.intp)]

#: What NumPy keeps at the address of an array. ``shape``, ``strides`` and ``dtype`` are addresses,
#: as ``data`` is.
HEADER = np.dtype(
    [
        *_OBJECT,
        ("data", np.intp),
        ("ndim", np.intc),
        ("shape", np.intp),
        ("strides", np.intp),
        ("base", np.intp),
        ("dtype", np.intp),
        ("flags", np.intc),
    ],
    align=True,
)

#: What it keeps at the address of a dtype. ``num`` is the type of a number, ``order`` that of its
#: bytes.
DTYPE = np.dtype(
    [
        *_OBJECT,
        ("typeobj", np.intp),
        ("kind", "u1"),
        ("char", "u1"),
        ("order", "u1"),
        ("bits", "u1"),
        ("num", np.intc),
    ]
)

#: Flags of arrays that lie row after row, aligned, and may be read; of those that may be written,
#: too.
READABLE = 0x0001 | 0x0100  # NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED
WRITEABLE = READABLE | 0x0400  # NPY_ARRAY_WRITEABLE

_INTP = np.dtype(np.intp)
_NATIVE, _BY_NAME = (
    ord("="),
    ord("<" if sys.byteorder == "little" else ">"),
)  # NumPy's own order, and what it is here
_NUM32, _NUM64 = np.dtype(np.float32).num, np.dtype(np.float64).num


#: The most axes that an array may have; NumPy 1 allows 32.
_AXES = 64

#: The name by which compiled code, on disk too, finds the type of arrays in this process.
_NDARRAY = "lnlib_type_ndarray"
binding.add_symbol(_NDARRAY, id(np.ndarray))


class Argument(types.Type):
    """Of an argument that should be an array of ``dtype`` with any number of axes: the address of a
    copy of its head.

    The copy has those of shape and dtype beside it, and lies in the frame of the caller. Of what is
    no ndarray it says just this.
    """

    def __init__(self, dtype):
        self.dtype = dtype
        super().__init__(f"Argument({dtype})")


@register_model(Argument)
class _Model(models.PrimitiveModel):
    def __init__(self, data_models, kind):
        super().__init__(data_models, kind, ir.IntType(types.intp.bitwidth))


@unbox(Argument)
def _unbox(kind, value, c):
    builder, word = c.builder, c.context.get_value_type(types.intp)
    room = cgutils.alloca_once(
        builder, ir.ArrayType(word, (HEADER.itemsize + DTYPE.itemsize) // 8 + _AXES)
    )

    def later(address, nbytes):
        return builder.add(address, ir.Constant(word, nbytes))

    def place(address, layout, name):
        """Where a field of a record at an address lies."""
        dtype, start = layout.fields[name]
        return builder.inttoptr(later(address, start), ir.IntType(8 * dtype.itemsize).as_pointer())

    def read(address, layout, name):
        return builder.load(place(address, layout, name))

    value, head = builder.ptrtoint(value, word), builder.ptrtoint(room, word)
    found = read(value, HEADER, "type")
    builder.store(found, place(head, HEADER, "type"))
    builder.store(
        ir.Constant(ir.IntType(32), 0), place(head, HEADER, "ndim")
    )  # of what is no array
    ndarray = builder.module.globals.get(_NDARRAY) or ir.GlobalVariable(
        builder.module, ir.IntType(8), _NDARRAY
    )
    with builder.if_then(
        builder.icmp_unsigned("==", found, builder.ptrtoint(ndarray, word)), likely=True
    ):
        for name in ("data", "ndim", "flags"):
            builder.store(read(value, HEADER, name), place(head, HEADER, name))
        dtype, shape = later(head, HEADER.itemsize), later(head, HEADER.itemsize + DTYPE.itemsize)
        for name in ("order", "num"):
            builder.store(
                read(read(value, HEADER, "dtype"), DTYPE, name), place(dtype, DTYPE, name)
            )
        lengths, kept = (
            builder.inttoptr(a, word.as_pointer()) for a in (read(value, HEADER, "shape"), shape)
        )
        with cgutils.for_range(builder, read(value, HEADER, "ndim")) as loop:
            builder.store(
                builder.load(builder.gep(lengths, [loop.index])), builder.gep(kept, [loop.index])
            )
        builder.store(dtype, place(head, HEADER, "dtype"))
        builder.store(shape, place(head, HEADER, "shape"))
    return NativeValue(head)


@intrinsic
def _address(typing_context, argument):
    return types.intp(argument), lambda context, builder, signature, arguments: arguments[0]


@intrinsic
def _pointer(typing_context, kind, address):
    """To what lies there, which is of ``kind.dtype``."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[1], context.get_value_type(signature.return_type))

    return types.CPointer(kind.dtype)(kind, types.intp), generate


_inlined = njit(nogil=True, error_model="numpy", fastmath=False, forceinline=True, _nrt=True)


@_inlined
def _at(kind, address, n):
    """An array, at this address, of ``n`` of a dtype, or of the dtype of an argument."""
    return carray(_pointer(kind, address), n)


if config.DISABLE_JIT:  # the same in Python, where an argument is the array
    _address = id

    def _at(kind, address, n):
        """As above."""
        dtype = getattr(kind, "dtype", kind)
        return np.ndarray(
            n, dtype, (ctypes.c_char * int(n * dtype.itemsize)).from_address(int(address))
        )


@_inlined
def _header(argument):
    return _at(HEADER, _address(argument), 1)[0]


@_inlined
def _shape(argument):
    return _at(_INTP, _header(argument)["shape"], _header(argument)["ndim"])


@_inlined
def is_array(argument, example, flags):
    """Whether it is an ndarray as ``example`` is, not of a subclass, of its dtype, with these
    flags.
    """
    found = _header(argument)
    if found["type"] != _header(example)["type"] or found["flags"] & flags != flags:
        return False
    dtype = _at(DTYPE, found["dtype"], 1)[0]
    num = _NUM32 if _at(argument, found["data"], 0).itemsize == 4 else _NUM64
    return dtype["num"] == num and (dtype["order"] == _NATIVE or dtype["order"] == _BY_NAME)


@_inlined
def has_shape_of(argument, other):
    """Whether these arrays have the same shape."""
    shape, expected = _shape(argument), _shape(other)
    if len(shape) != len(expected):
        return False
    for k in range(len(shape)):  # noqa: SIM110
        if shape[k] != expected[k]:
            return False
    return True


@_inlined
def is_vector(argument, length):
    """Whether this array has the shape (length,)."""
    shape = _shape(argument)
    return len(shape) == 1 and shape[0] == length


@_inlined
def row_length(argument):
    """How many elements its rows have, 0 if none."""
    shape = _shape(argument)
    return shape[-1] if len(shape) else 0


@_inlined
def as_row(argument):
    """An array of one axis over its elements."""
    size = 1
    for length in _shape(argument):
        size *= length
    return _at(argument, _header(argument)["data"], size)


@_inlined
def as_rows(argument):
    """An array of two axes over its rows."""
    row, length = as_row(argument), row_length(argument)
    return row.reshape(len(row) // length, length)
