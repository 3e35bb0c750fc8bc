"""What the instructions of PTX compute: each a function of arrays with an element for each thread.

An instruction such as ``mul.wide.s32 d, a, b`` is split at the points: ``mul`` is looked up in
:data:`OPERATIONS`, ``s32`` is the type of a and b, and the function gets the whole to see the rest.
Those that concern memory or other threads are in :mod:`ptx.machine`.
"""

import ctypes
import operator

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 then
import numpy as np

from .text import dtype, size

_libm = ctypes.CDLL(None)  # the C library of Python itself
_libm.fma.restype, _libm.fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
_fma_of_float64 = np.frompyfunc(_libm.fma, 3, 1)


def fused(a, b, c):
    """a * b + c, rounded once."""
    if a.dtype == np.float64:
        return _fma_of_float64(a, b, c).astype(np.float64)
    product = a.astype(np.float64) * b.astype(np.float64)  # exact
    c = c.astype(np.float64)
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)  # what the sum has lost, exactly
    # To be rounded again, to float32, the sum must not look like a tie where it was none: a lost
    # part makes it odd.
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    lost = (error != 0) & even & np.isfinite(total)
    total[lost] = np.nextafter(total[lost], np.where(error[lost] > 0, np.inf, -np.inf))
    return total.astype(np.float32)


def _quotient(a, b):
    """Of integers, without the part behind the point."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    whole = np.abs(a) // np.abs(safe)
    return np.where((a < 0) != (safe < 0), -whole, whole) if a.dtype.kind == "i" else whole


def _product(line, a, b):
    if a.dtype.kind == "f" or "lo" in line.opcode:
        return a * b
    wide = np.dtype(f"{a.dtype.kind}{2 * a.itemsize}") if a.itemsize < 8 else object
    both = a.astype(wide) * b.astype(wide)
    return both if "wide" in line.opcode else (both >> 8 * a.itemsize).astype(a.dtype)


def _shifted(line, a, by):
    """By as many bits as a has, or more, nothing is left but the sign."""
    last = 8 * a.itemsize - 1
    within = np.minimum(by, last).astype(a.dtype)
    moved = a << within if line.opcode[0] == "shl" else a >> within
    return moved if a.dtype.kind == "i" else np.where(by > last, a.dtype.type(0), moved)


def _inserted(line, a, b, first, count):
    """The last ``count`` bits of a, in b from bit ``first`` on."""
    one = a.dtype.type(1)
    mask = ((one << count.astype(a.dtype)) - one) << first.astype(a.dtype)
    return (b & ~mask) | ((a << first.astype(a.dtype)) & mask)


_COMPARED = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def _compared(line, a, b):
    """Numbers that are NaN compare as false; with a u behind the name, as true."""
    name = line.opcode[1]
    if a.dtype.kind != "f":
        return _COMPARED[name](a, b)
    unordered = np.isnan(a) | np.isnan(b)
    if name in ("num", "nan"):
        return unordered if name == "nan" else ~unordered
    if name in _COMPARED:
        return _COMPARED[name](a, b) & ~unordered
    return _COMPARED[name.removesuffix("u")](a, b) | unordered


def _converted(line, a):
    if line.opcode[1:] == ("rn", "bf16", "f32"):
        return np.where(np.isnan(a), np.uint16(0x7FFF), a.astype("bfloat16").view("u2"))
    to = dtype(line.opcode[-2])
    if a.dtype.kind == "f" and to.kind != "f":
        raise line.wrong("unknown conversion")
    return a.astype(to)


def _plain(function):
    return lambda line, *values: function(*values)


#: The first part of an opcode -> what may stand between it and the types, and the function.
OPERATIONS = {
    "add": ({"rn"}, _plain(np.add)),
    "sub": ({"rn"}, _plain(np.subtract)),
    "mul": ({"rn", "lo", "hi", "wide"}, _product),
    "div": ({"rn"}, lambda line, a, b: a / b if a.dtype.kind == "f" else _quotient(a, b)),
    "rem": (set(), lambda line, a, b: a - b * _quotient(a, b)),
    "fma": ({"rn"}, _plain(fused)),
    "mad": ({"lo"}, lambda line, a, b, c: a * b + c),
    "min": (set(), _plain(np.fmin)),
    "max": (set(), _plain(np.fmax)),
    "neg": (set(), _plain(np.negative)),
    "abs": (set(), _plain(np.abs)),
    "sqrt": ({"rn"}, _plain(np.sqrt)),
    "rcp": ({"rn"}, lambda line, a: a.dtype.type(1) / a),
    "and": (set(), _plain(np.bitwise_and)),
    "or": (set(), _plain(np.bitwise_or)),
    "xor": (set(), _plain(np.bitwise_xor)),
    "not": (set(), _plain(np.invert)),
    "shl": (set(), _shifted),
    "shr": (set(), _shifted),
    "bfi": (set(), _inserted),
    "setp": ({*_COMPARED, *(f"{name}u" for name in _COMPARED), "num", "nan"}, _compared),
    "selp": (set(), lambda line, a, b, which: np.where(which, a, b)),
    "cvt": ({"rn"}, _converted),
    "mov": (set(), _plain(np.copy)),
    "cvta": ({"to", "global"}, _plain(np.copy)),
}

#: Operands, by their place among the sources, that have a type of their own.
SOURCES = {"selp": {2: "pred"}, "shl": {1: "u32"}, "shr": {1: "u32"}, "bfi": {2: "u32", 3: "u32"}}


def types(line):
    """The types of an instruction's sources and result; an error if it is not known."""
    root, *between, kind = line.opcode
    if root not in OPERATIONS:
        raise line.wrong("unknown instruction")
    result = kind
    if root == "setp":
        result = "pred"
    elif root == "cvt":
        result = between.pop()
    elif "wide" in between:
        result = f"{kind[0]}{16 * size(kind)}"
    if not set(between) <= OPERATIONS[root][0]:
        raise line.wrong("unknown instruction")
    own = SOURCES.get(root, {})
    return [own.get(k, kind) for k in range(len(line.operands) - 1)], result
