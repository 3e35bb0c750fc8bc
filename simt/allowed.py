"""What a kernel may use, by name: what is not listed is refused.

Numba compiles a part of Python. A kernel that needs more runs on no GPU, so the interpreter does
not run it either. The lists are those of numba-cuda, less what :mod:`simt` does not model; a test
compiles a corpus of kernels and compares the verdicts (tests/simt/corpus.py, which also lists where
they differ). Types are not inferred: what an operation is given is seen when it runs. Functions
that kernels call are judged as ``device`` compiles them.
"""

import builtins
import inspect
import math
from typing import Any

import numpy as np


class KernelError(RuntimeError):
    """A mistake in a kernel. ``block`` and ``thread`` ran into it at ``line`` of the source;
    ``run`` is the Run until then.
    """

    block = thread = line = None
    run: Any = None


class Refused(KernelError):
    """What no kernel may use: Numba does not compile it or, if the message says so, the interpreter
    lacks it. Most of it is found in the source before anything runs, without block and thread.
    """


#: Statements.
STATEMENTS = (
    "FunctionDef Return Assign AugAssign For While If Match Expr Pass Break Continue Assert"
)
#: Expressions, and what they consist of. All operators but @ are among them.
EXPRESSIONS = (
    "BinOp UnaryOp BoolOp Compare IfExp Call Attribute Subscript Slice Name Constant Tuple"
    " keyword match_case MatchValue MatchSingleton MatchOr MatchAs Load Store And Or Add"
    " Sub Mult Div FloorDiv Mod Pow LShift RShift BitOr BitXor BitAnd Invert Not UAdd USub Eq NotEq"
    " Lt LtE Gt GtE Is IsNot In NotIn"
)

#: Functions of Python, and how many arguments they take at least and at most.
BUILTINS = dict(
    **dict.fromkeys(("abs", "bool", "float", "int", "len", "tuple"), (1, 1)),
    **dict.fromkeys(("divmod", "pow"), (2, 2)),
    **dict.fromkeys(("enumerate", "round", "sum"), (1, 2)),
    **dict.fromkeys(("max", "min"), (1, 99)),
    **dict.fromkeys(("print", "zip"), (0, 99)),
    range=(1, 3),
)


def _words(text):
    return frozenset(text.split())


MATH = _words("""
    acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh degrees e erf erfc exp exp2 expm1
    fabs floor fmod frexp gamma hypot inf isfinite isinf isnan ldexp lgamma log log10 log1p log2
    modf nan pi pow radians remainder sin sinh sqrt tan tanh tau trunc
""")

#: Of NumPy, types and constants.
NUMPY = _words("""
    float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 pi e inf nan
""")

LIBDEVICE = "fadd_rn", "fmul_rn", "dadd_rn", "dmul_rn"

#: What waits for other threads, and how many arguments it takes at least and at most.
WARP_OPERATIONS = {
    **dict.fromkeys(("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"), (3, 3)),
    **dict.fromkeys(("ballot_sync", "any_sync", "all_sync"), (2, 2)),
    "syncwarp": (0, 1),
}
BLOCK_OPERATIONS = {
    "syncthreads": (0, 0),
    **dict.fromkeys(("syncthreads_count", "syncthreads_and", "syncthreads_or"), (1, 1)),
}
WAITING = WARP_OPERATIONS | BLOCK_OPERATIONS
ATOMICS = "add", "sub", "max", "min", "and_", "or_", "xor", "exch"

_INDICES = "threadIdx", "blockIdx", "blockDim", "gridDim"
#: Of ``cuda``, what is a value, and what is called, with how many arguments.
_AXES = [f"{name}.{axis}" for name in _INDICES for axis in "xyz"]
CUDA_VALUES = {"laneid", "warpsize", *_INDICES, *_AXES}
CUDA_CALLS = {
    **dict.fromkeys(("grid", "gridsize"), (1, 1)),
    **dict.fromkeys(("shared.array", "local.array"), (0, 3)),
    **WAITING,
    **{f"atomic.{name}": (3, 3) for name in ATOMICS},
    **{f"libdevice.{name}": (2, 2) for name in LIBDEVICE},
}

#: Of arrays, and of threadIdx and its like.
ATTRIBUTES = _words("shape size ndim dtype itemsize nbytes strides type x y z")

OF_ARRAYS = f"of an array, a kernel has {', '.join(sorted(ATTRIBUTES - set('xyz')))}"

_NO_GENERATORS = "Numba compiles no generators"
_NO_LISTS = "Numba keeps no lists, sets and dicts; write a loop"
_VALUES_ONLY = "Numba compares with values only"

#: What is not listed: kind of node -> what it is called ("" for its own name), what to do instead.
UNLISTED = {
    "List": ("", "Numba keeps no lists in a kernel; take a tuple, or cuda.local.array to write to"),
    "Dict": ("", "Numba keeps no dicts in a kernel"),
    "Set": ("", "Numba keeps no sets in a kernel"),
    "ListComp": ("a list comprehension", _NO_LISTS),
    "SetComp": ("a set comprehension", _NO_LISTS),
    "DictComp": ("a dict comprehension", _NO_LISTS),
    "GeneratorExp": ("a generator", f"{_NO_GENERATORS}; write a loop"),
    **dict.fromkeys(("Yield", "YieldFrom", "Await"), ("", _NO_GENERATORS)),
    "AsyncFunctionDef": ("async", _NO_GENERATORS),
    **dict.fromkeys(("Try", "TryStar"), ("", "a kernel cannot catch errors; test by an if")),
    "With": ("", "a kernel has nothing to open and close"),
    "Delete": ("", "Numba does not compile it; leave it out"),
    **dict.fromkeys(("Import", "ImportFrom"), ("", "import what you need above the kernel")),
    "ClassDef": ("a class", "Numba compiles no classes in a kernel"),
    "NamedExpr": (":=", "Numba does not compile it; write an assignment of its own"),
    "AnnAssign": ("a type hint", "the interpreter does not read them; leave it out"),
    "JoinedStr": ("an f-string", "Numba makes no text of numbers; print(...) takes several values"),
    "Lambda": ("", "the interpreter does not know it; define a function by def"),
    "Raise": ("", "the interpreter does not know it; assert that all is well"),
    "Global": ("", "a kernel cannot change it; write to an array"),
    "Nonlocal": ("", "a kernel cannot change it; write to an array"),
    "Starred": ("*", "write each value by itself"),
    "MatMult": ("@", "Numba multiplies no matrices in a kernel; write loops"),
    **dict.fromkeys(
        ("MatchSequence", "MatchMapping", "MatchClass", "MatchStar"), ("", _VALUES_ONLY)
    ),
}

ONE_DIMENSION = "arrays of the interpreter have one dimension"
PLACES = "Numba wants these arguments by their places"
CONSTANT = "Numba wants a constant here; bind it to a name outside the kernel"


def words() -> dict[str, list[str]]:
    """The lists as text, {what: names}: for pages."""
    return {
        "functions of Python": sorted(BUILTINS),
        "math": sorted(MATH),
        "NumPy": sorted(NUMPY),
        "cuda": sorted({*CUDA_VALUES, *CUDA_CALLS} - set(_INDICES)),
        "of an array": sorted(ATTRIBUTES - set("xyz")),
    }


def refused(what, name, line):
    """The error, which says where it is."""
    error = Refused(f"{what} (line {line} of {name})")
    error.line = line
    return error


def device_function(value):
    """Whether kernels may call it: what Numba has compiled, or ``device`` has marked."""
    return inspect.isfunction(getattr(value, "py_func", None))


def unknown(value):
    """Why a kernel has no use for a value from outside; None if it has one."""
    if isinstance(value, tuple):
        return next(filter(None, map(unknown, value)), None)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return "no integer of a kernel is that large"
    if isinstance(value, np.ndarray) and value.ndim != 1:
        return ONE_DIMENSION
    if (
        value is None
        or isinstance(value, (int, float, str, np.generic, np.ndarray, np.dtype))
        or any(value is thing for thing in _KNOWN)
        or getattr(value, "__module__", None) == "math"
        and value.__name__ in MATH
        or device_function(value)
        or is_type(value)
    ):
        return None
    kind, have = type(value).__name__, "numbers, tuples, arrays, types and device functions"
    if inspect.isfunction(value):
        return "a plain Python function; put @device above its def, and Numba compiles it"
    if isinstance(value, (list, dict, set)):
        return f"a {kind}, which Numba does not keep; bind its elements to names, or take a tuple"
    return f"found {kind}; a kernel has {have} from outside; bind what you need to a name"


def is_type(value):
    name = getattr(value, "name", getattr(value, "__name__", None))
    return name in _TYPES and not inspect.isfunction(value)


def unknown_attribute(value, attribute):
    if value is math:
        return None if attribute in MATH else "not one of the functions of math that a kernel has"
    if value is np:
        why = "of NumPy a kernel has types and constants; functions are in math"
        return None if attribute in NUMPY else why
    return None if attribute in ATTRIBUTES else OF_ARRAYS


_KNOWN = math, np, *(getattr(builtins, name) for name in BUILTINS)
_TYPES = NUMPY | {"bool", "boolean", "bfloat16", "widened"}
