r"""From the source of a kernel to a Python generator, with the arithmetic of Numba.

Calls that wait for other threads become ``yield``, calls of functions that may wait ``yield from``,
and ``a + b`` becomes a function call that minds the types of a and b. Everything else in the source
stays as it is. What a kernel may not use is refused before, by :mod:`~simt.check`.
"""

import ast
import builtins
import copy
import functools
import inspect
import math
import types

import numpy as np

from . import allowed
from .allowed import WAITING, KernelError, refused
from .check import checker as checker_of


class Promotion(KernelError):
    """What Numba silently does in float64, which most GPUs do slowly.

    That is ``+ - * /``, min and max of float32 or float16 with a Python float, a float64 or an
    integer (also of 8 or 16 bits, with which Numba may stay in float32); the quotient of two
    integers; float64 stored into a narrower array. Comparisons pass, and so does arithmetic of
    float64 alone.
    """


class Overflow(KernelError):
    """A number converted to, or stored as, an integer type that does not have it."""


# Numbers, as Numba treats them.

INTEGER = (int, np.integer)
NARROW = (np.float16, np.float32)
EXCHANGED = (*INTEGER, np.float32, np.float64)  # what a shuffle takes
_RANGES = {f"int{bits}": (-(2**bits // 2), 2**bits // 2) for bits in (8, 16, 32, 64)}
_RANGES |= {f"uint{bits}": (0, 2**bits) for bits in (8, 16, 32, 64)}


def to_integer(name, value):
    low, high = _RANGES[name]
    number = value if type(value) is int else int(value) if math.isfinite(value) else high
    if not low <= number < high:
        raise Overflow(f"{value} does not fit into {name}")
    return number


#: The types that kernels name, and what converts to them here. Integers are Python's: those are
#: fastest.
TYPES = {
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    **{name: functools.partial(to_integer, name) for name in _RANGES},
}
TYPE_NAMES = {convert: name for name, convert in TYPES.items()}


def widened(value):
    """Of an integer, the bits of a bfloat16, its number as float32; any other number itself."""
    return np.uint32(int(value) << 16).view(np.float32) if isinstance(value, INTEGER) else value


def bfloat16(value):
    """The bits of the nearest bfloat16, ties to even: the upper half of a float32."""
    if math.isnan(value):
        return 0x7FC0
    single = np.float32(value)
    bits = int(single.view(np.uint32)) - int(abs(single) > abs(value))
    if single != value:
        bits |= 1  # of a float64: what is lost already must not make a tie of what is none
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def _check_operands(symbol, a, b):
    for narrow, other in ((a, b), (b, a)):
        # np.float64 is a float, and np.float32 is not.
        wide = isinstance(other, (float, *INTEGER)) and not isinstance(other, bool)
        if wide and type(narrow) in NARROW:
            what = f"{type(a).__name__} {symbol} {type(b).__name__}"
            raise Promotion(f"{what} is computed in float64")


# Operators that mind that operands are of one type. Each is written out: kernels consist of them.


def _add(a, b):
    if type(a) is not type(b):
        _check_operands("+", a, b)
    return a + b


def _subtract(a, b):
    if type(a) is not type(b):
        _check_operands("-", a, b)
    return a - b


def _multiply(a, b):
    if type(a) is not type(b):
        _check_operands("*", a, b)
    return a * b


def _divide(a, b):
    if type(a) is not type(b):
        _check_operands("/", a, b)
    if isinstance(a, INTEGER) and isinstance(b, INTEGER):
        raise Promotion(f"the quotient {a} / {b} of two integers is float64")
    return a / b


def _extreme(name, of_integers, of_floats):
    def choose(first, *others):
        if not others:
            first, *others = first  # of an array or a tuple
        for other in others:
            _check_operands(name, first, other)
            first = (of_integers if isinstance(first, INTEGER) else of_floats)(first, other)
        return first

    return choose


def _tuple(values):
    if not isinstance(values, tuple):
        kind = type(values).__name__
        raise TypeError(f"the length of a {kind} is no constant, so it makes no tuple")
    return values


def _print(*values):
    kinds = str, int, float, tuple, np.generic
    if not all(isinstance(value, kinds) for value in values):
        raise TypeError("print of what is no number, no tuple and no text")
    print(*values)


def _real(function):
    """A function that keeps float32 and makes float64 of an integer."""
    return lambda x: function(np.float64(x) if isinstance(x, INTEGER) else x)


def _beyond(name, first, *others):
    """What a function of math is on a GPU where Python's has an error: an infinity, or NaN."""
    if name == "lgamma":
        return math.inf
    if name == "gamma":
        return np.copysign(math.inf, first) if first >= 0 else math.nan
    return getattr(np, name)(float(first), *others)


def _by_python(name):
    """A function of math that NumPy lacks, rounded to the type of the first argument."""

    def rounded(*values):
        convert = type(values[0]) if type(values[0]) in NARROW else np.float64
        values = [value if isinstance(value, INTEGER) else float(value) for value in values]
        try:
            found = getattr(math, name)(*values)
        except (ValueError, OverflowError):
            found = _beyond(name, *values)
        if isinstance(found, tuple):  # frexp has an integer as well
            return tuple(part if isinstance(part, int) else convert(part) for part in found)
        return found if isinstance(found, int) else convert(found)

    return rounded


#: What is one thing in both, and has no error where it is infinite.
_BY_NUMPY = "sqrt", "exp", "log", "log2", "log10", "log1p", "fabs", "isnan", "isinf", "isfinite"


def _of_math(name):
    if isinstance(value := getattr(math, name), float):
        return np.float64(value)
    return _real(getattr(np, name)) if name in _BY_NUMPY else _by_python(name)


_MATH = types.SimpleNamespace(**{name: _of_math(name) for name in allowed.MATH})
_NUMPY = types.SimpleNamespace(
    **{name: TYPES.get(name) or np.float64(getattr(np, name)) for name in allowed.NUMPY}
)
LIBDEVICE = types.SimpleNamespace(  # rounded by themselves, as everything is here
    fadd_rn=lambda a, b: np.float32(a) + np.float32(b),
    fmul_rn=lambda a, b: np.float32(a) * np.float32(b),
    dadd_rn=lambda a, b: np.float64(a) + b,
    dmul_rn=lambda a, b: np.float64(a) * b,
)


# From the source of a function to a generator.

_ARITHMETIC = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
_ARRAYS = "cuda.shared.array", "cuda.local.array"


def _called(name, *arguments):
    """The call of one of the functions that stand in every kernel as ``__simt_...``."""
    return ast.Call(ast.Name(f"__simt_{name}", ast.Load()), [*arguments], [])


def _waits(function):
    """Whether a function is made from one of the kernel's source, and so a generator."""
    plain = type(function) is types.FunctionType
    return plain and function.__code__.co_flags & inspect.CO_GENERATOR


def _call(function, cuda, *values):
    """Call what may be such a function, or not."""
    return (yield from function(cuda, *values)) if _waits(function) else function(*values)


class _Rewriter(ast.NodeTransformer):
    """Makes the source of a kernel that of a generator. ``helpers``: the names of functions from
    outside that it calls, ``local``: those that are given in the kernel.
    """

    def __init__(self, helpers, local):
        self.helpers, self.local = helpers, local

    def visit_FunctionDef(self, node):
        """A function in the kernel, which may wait like one outside."""
        self.generic_visit(node)
        return _generator(node)

    def visit_Call(self, node):
        """Wait by a yield; a function that may wait, by a yield from."""
        self.generic_visit(node)
        called = ast.unparse(node.func)
        name = called.removeprefix("cuda.")
        if called in _ARRAYS:
            # Its name, if it gets no other, and its place, where a block has one shared array.
            node.args.insert(0, ast.Constant((called, node.lineno, node.col_offset)))
        if name != called and name in WAITING:
            request = [ast.Constant(name), ast.Constant(node.lineno), *node.args]
            return ast.Yield(ast.Tuple(request, ast.Load()))
        mine = ast.Name("cuda", ast.Load())
        if called in self.helpers:
            node.args.insert(0, mine)
            return ast.YieldFrom(node)
        if called in self.local or not isinstance(node.func, (ast.Name, ast.Attribute)):
            return ast.YieldFrom(_called("call", node.func, mine, *node.args))
        return node

    def visit_Subscript(self, node):
        """A slice of an array is a part of it that can be written to."""
        self.generic_visit(node)
        if not isinstance(node.slice, ast.Slice):
            return node
        ends = node.slice.lower, node.slice.upper, node.slice.step
        ends = [end or ast.Constant(None) for end in ends]
        part = ast.copy_location(_called("part", node.value, *ends), node)
        if isinstance(node.ctx, ast.Load):
            return part
        return ast.Subscript(part, ast.Constant(...), node.ctx)

    def visit_MatchValue(self, node):
        return node

    def visit_Assign(self, node):
        """Tell arrays the names they are given."""
        self.generic_visit(node)
        target, value = node.targets[0], node.value
        several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        for name, call in zip(target.elts, value.elts) if several else [(target, value)]:
            if isinstance(call, ast.Call) and ast.unparse(call.func) in _ARRAYS:
                _, *place = call.args[0].value
                call.args[0] = ast.Constant((ast.unparse(name), *place))
        return node

    def visit_Constant(self, node):
        """A Python float is a float64 on the GPU, although NumPy would adapt it to float32."""
        if not isinstance(node.value, float):
            return node
        return _called("float64", node)

    def visit_BinOp(self, node):
        self.generic_visit(node)
        if type(node.op) not in _ARITHMETIC:
            return node
        return ast.copy_location(_called(_ARITHMETIC[type(node.op)], node.left, node.right), node)

    def visit_UnaryOp(self, node):
        """Of True and False, Numba makes the other by ``~``."""
        self.generic_visit(node)
        if not isinstance(node.op, ast.Invert):
            return node
        return ast.copy_location(_called("invert", node.operand), node)

    def visit_AugAssign(self, node):
        """``a[i] += b`` becomes ``index = i`` and ``a[index] = a[index] + b``, a checked sum."""
        target, statements = node.target, []
        if isinstance(target, ast.Subscript):
            index = ast.Name("__simt_index", ast.Store())
            statements = [ast.Assign([index], self.visit(target.slice))]
            index = ast.Name("__simt_index", ast.Load())
            read, write = (ast.Subscript(target.value, index, c()) for c in (ast.Load, ast.Store))
        else:
            read, write = ast.Name(target.id, ast.Load()), target
        statements.append(ast.Assign([write], self.visit(ast.BinOp(read, node.op, node.value))))
        return [ast.copy_location(statement, node) for statement in statements]


def plain(function):
    """The Python function behind what Numba may have compiled; None if there is none."""
    function = getattr(function, "py_func", function)
    return function if isinstance(function, types.FunctionType) else None


def _generator(definition):
    """The definition of a generator function with ``cuda`` as its first argument."""
    definition.args.args.insert(0, ast.arg("cuda"))
    # So that what never waits becomes a generator, too:
    definition.body.append(ast.If(ast.Constant(False), [ast.Expr(ast.Yield())], []))
    return definition


@functools.lru_cache
def _parse(code):
    """The definition of a function with this code, with the line numbers of its file."""
    try:
        source = inspect.getsource(code)
        indented = source != source.lstrip()  # the body of an if may be
        definition = ast.parse("if True:\n" * indented + source).body[0]
        definition = definition.body[0] if indented else definition
        if not isinstance(definition, ast.FunctionDef) or definition.name != code.co_name:
            raise OSError("something else stands there")
    except (OSError, SyntaxError) as error:
        expected = "a function defined with def in a file or in a cell of a notebook"
        raise ValueError(
            f"kernel: found no source of {code.co_name} ({error}), expected {expected}"
        ) from error
    ast.increment_lineno(definition, code.co_firstlineno - 1 - indented)
    definition.decorator_list, definition.returns = [], None
    for argument in definition.args.args:
        argument.annotation = None
    return definition


@functools.lru_cache
def _compile(code, helpers):
    """The code that defines the generator of a function with this code."""
    definition = copy.deepcopy(_parse(code))
    # What the defaults are is known; how they were found out is not.
    definition.args.defaults = [ast.Constant(None) for _ in definition.args.defaults]
    rewriter = _Rewriter(helpers, checker_of(_parse(code), False).local)
    definition.body = rewriter.visit(ast.Module(definition.body, [])).body
    module = ast.Module([_generator(definition)], [])
    return compile(ast.fix_missing_locations(module), code.co_filename, "exec")


#: The types, and what kernels make bfloat16 with; arrays of it are arrays of uint16.
CONVERSIONS = {**TYPES, "bfloat16": bfloat16, "widened": widened}

#: What stands for these names in every kernel.
_NAMES = {
    "__simt_add": _add,
    "__simt_subtract": _subtract,
    "__simt_multiply": _multiply,
    "__simt_divide": _divide,
    "__simt_float64": np.float64,
    "__simt_invert": lambda a: not a if isinstance(a, bool) else ~a,
    "__simt_call": _call,
    "float": np.float64,
    "libdevice": LIBDEVICE,
    "print": _print,
    "tuple": _tuple,
    "sum": lambda values, start=0: functools.reduce(_add, values, start),
    "min": _extreme("min", min, np.fmin),
    "max": _extreme("max", max, np.fmax),  # of NaN and 1 a GPU takes 1
    "__builtins__": builtins,
}


def _translate(value, made):
    """What a kernel's name for ``value`` stands for here; ``made``: function -> what it becomes."""
    if type(value) is tuple:
        return tuple(_translate(part, made) for part in value)
    name = getattr(value, "name", getattr(value, "__name__", None))
    if name in CONVERSIONS and not isinstance(value, np.dtype):
        return CONVERSIONS[name]
    if allowed.device_function(value):
        return made(value.py_func)
    if value is math or value is np:
        return _MATH if value is math else _NUMPY
    if getattr(value, "__module__", None) == "math":
        return getattr(_MATH, name, value)
    return np.float64(value) if isinstance(value, float) else value


def _outside(function, names):
    """{name: value} of the names that a function finds outside itself."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    return {
        name: cells[name].cell_contents if name in cells else function.__globals__[name]
        for name in names
        if name in cells or name in function.__globals__
    }


def generator(function, names, outer=()):
    """``function`` as a generator function with ``cuda`` as its first argument. ``names`` gives
    names a meaning; ``outer`` are the functions that call it: none for a kernel.
    """
    given, callers = _NAMES | names, (*outer, function)
    checker = checker_of(_parse(function.__code__), not outer)
    known = _outside(function, checker.outer)
    for name, value in known.items():
        if plain(value) in callers:
            what = f"{name} calls itself: the interpreter cannot follow; use a loop"
            raise refused(what, function.__name__, checker.loaded[name])
    checker.check_values(known, given)
    known = {name: value for name, value in known.items() if name not in given}

    def made(inner):
        return generator(inner, names, callers)

    scope = {name: _translate(value, made) for name, value in known.items()}
    for name, value in known.items():
        if isinstance(value, np.ndarray):
            scope[name] = given["__simt_constant"](name, value)
    helpers = {
        name: checker_of(_parse(value.py_func.__code__), False)
        for name, value in known.items()
        if _waits(scope[name])
    }
    checker.check_calls(known, given, helpers)
    scope |= given
    exec(_compile(function.__code__, frozenset(helpers)), scope)
    result = scope[function.__name__]
    if function.__defaults__:
        result.__defaults__ = tuple(_translate(value, None) for value in function.__defaults__)
    return result
