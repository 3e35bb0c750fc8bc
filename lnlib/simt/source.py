r"""From the source of a kernel to a Python generator, with the arithmetic of Numba: one half of :mod:`lnlib.simt`.

Calls that wait for other threads become ``yield``, calls of functions that may wait ``yield from``, and ``a + b``
becomes a function call that minds the types of a and b. Everything else in the source stays as it is.
"""

import ast
import builtins
import copy
import functools
import inspect
import math
import types

import numpy as np


class KernelError(RuntimeError):
    """A mistake in a kernel. ``block`` and ``thread`` ran into it at ``line`` of the source."""


class Promotion(KernelError):
    """What Numba silently does in float64, which most GPUs do slowly.

    That is ``+ - * /``, min and max of float32 or float16 with a Python float, a float64 or an integer; the quotient
    of two integers; float64 stored into a narrower array. Comparisons pass, and so does arithmetic of float64 alone.
    """


class Overflow(KernelError):
    """A number converted to, or stored as, an integer type that does not have it."""


# Numbers, as Numba treats them.

INTEGER = (int, np.integer)
NARROW = (np.float16, np.float32)
_RANGES = {"int32": (-2**31, 2**31), "int64": (-2**63, 2**63), "uint16": (0, 2**16), "uint32": (0, 2**32),
           "uint64": (0, 2**64)}


def to_integer(name, value):
    low, high = _RANGES[name]
    number = value if type(value) is int else int(value) if math.isfinite(value) else high
    if not low <= number < high:
        raise Overflow(f"{value} does not fit into {name}")
    return number


#: The types that kernels name, and what converts to them here. Integers are Python's: those are fastest.
TYPES = {"float16": np.float16, "float32": np.float32, "float64": np.float64,
          **{name: functools.partial(to_integer, name) for name in _RANGES}}
TYPE_NAMES = {convert: name for name, convert in TYPES.items()}


def widened(value):
    """Of an integer, the bits of a bfloat16, its number as float32; any other number itself."""
    return np.uint32(int(value) << 16).view(np.float32) if isinstance(value, INTEGER) else value


def bfloat16(value):
    """The bits of the nearest bfloat16, ties to even: a float32 is its upper half and 16 bits more."""
    if math.isnan(value):
        return 0x7fc0
    single = np.float32(value)
    bits = int(single.view(np.uint32)) - int(abs(single) > abs(value))
    if single != value:
        bits |= 1  # of a float64: what is lost already must not make a tie of what is none
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16


def _check_operands(symbol, a, b):
    for narrow, other in ((a, b), (b, a)):
        # np.float64 is a float, and np.float32 is not.
        if type(narrow) in NARROW and isinstance(other, (float, *INTEGER)) and not isinstance(other, bool):
            raise Promotion(f"{type(a).__name__} {symbol} {type(b).__name__} is computed in float64")


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
        for other in others:
            _check_operands(name, first, other)
            first = (of_integers if isinstance(first, INTEGER) else of_floats)(first, other)
        return first
    return choose


def _real(function):
    """A function that keeps float32 and makes float64 of an integer."""
    return lambda x: function(np.float64(x) if isinstance(x, INTEGER) else x)


_MATH = types.SimpleNamespace(
    **{name: _real(getattr(np, name)) for name in ("sqrt", "exp", "log", "fabs", "isnan", "isinf", "isfinite")},
    **{name: np.float64(getattr(math, name)) for name in ("inf", "nan", "pi")})
LIBDEVICE = types.SimpleNamespace(  # rounded by themselves, as everything is here
    fadd_rn=lambda a, b: np.float32(a) + np.float32(b), fmul_rn=lambda a, b: np.float32(a) * np.float32(b),
    dadd_rn=lambda a, b: np.float64(a) + b, dmul_rn=lambda a, b: np.float64(a) * b)


# From the source of a function to a generator.

WARP_OPERATIONS = {"shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync",
                    "ballot_sync", "any_sync", "all_sync", "syncwarp"}
BLOCK_OPERATIONS = {"syncthreads", "syncthreads_count", "syncthreads_and", "syncthreads_or"}
_ARITHMETIC = {ast.Add: "__simt_add", ast.Sub: "__simt_subtract",
               ast.Mult: "__simt_multiply", ast.Div: "__simt_divide"}


class _Rewriter(ast.NodeTransformer):
    """Makes the source of a kernel that of a generator. ``helpers`` are the names of functions it calls."""

    def __init__(self, helpers):
        self.helpers = helpers

    def visit_Call(self, node):
        """Wait by a yield; a function that may wait, by a yield from."""
        self.generic_visit(node)
        called = ast.unparse(node.func)
        module, _, name = called.partition(".")
        if called in ("cuda.shared.array", "cuda.local.array"):
            # Its name, if it gets no other, and its place: all threads of a block get one shared array at one place.
            node.args.insert(0, ast.Constant((called, node.lineno, node.col_offset)))
        if module == "cuda" and name in WARP_OPERATIONS | BLOCK_OPERATIONS:
            request = ast.Tuple([ast.Constant(name), ast.Constant(node.lineno), *node.args], ast.Load())
            return ast.Yield(request)
        if called in self.helpers:
            node.args.insert(0, ast.Name("cuda", ast.Load()))
            return ast.YieldFrom(node)
        return node

    def visit_Assign(self, node):
        """Tell arrays the names they are given."""
        self.generic_visit(node)
        target, value = node.targets[0], node.value
        several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        for name, call in zip(target.elts, value.elts) if several else [(target, value)]:
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("cuda.shared.array", "cuda.local.array"):
                _, *place = call.args[0].value
                call.args[0] = ast.Constant((ast.unparse(name), *place))
        return node

    def visit_Constant(self, node):
        """A Python float is a float64 on the GPU, although NumPy would adapt it to float32."""
        if not isinstance(node.value, float):
            return node
        return ast.Call(ast.Name("__simt_float64", ast.Load()), [node], [])

    def visit_BinOp(self, node):
        self.generic_visit(node)
        if type(node.op) not in _ARITHMETIC:
            return node
        function = ast.Name(_ARITHMETIC[type(node.op)], ast.Load())
        return ast.copy_location(ast.Call(function, [node.left, node.right], []), node)

    def visit_AugAssign(self, node):
        """``a[i] += b`` becomes ``index = i`` and ``a[index] = a[index] + b``, a checked sum."""
        target, statements = node.target, []
        if isinstance(target, ast.Subscript):
            statements = [ast.Assign([ast.Name("__simt_index", ast.Store())], self.visit(target.slice))]
            read, write = (ast.Subscript(target.value, ast.Name("__simt_index", ast.Load()), context)
                           for context in (ast.Load(), ast.Store()))
        else:
            read, write = ast.Name(target.id, ast.Load()), target
        statements.append(ast.Assign([write], self.visit(ast.BinOp(read, node.op, node.value))))
        return [ast.copy_location(statement, node) for statement in statements]


def plain(function):
    """The Python function behind ``function``, which Numba may have compiled; None if there is none."""
    function = getattr(function, "py_func", function)
    return function if isinstance(function, types.FunctionType) else None


@functools.lru_cache(maxsize=256)
def _parse(code):
    """The definition of a function, as a syntax tree with the line numbers of its file, and the names it calls.

    Of its code, which the functions of a factory, made anew at each call, have in common.
    """
    try:
        source = inspect.getsource(code)
        indented = source != source.lstrip()  # the body of an if may be, and no string need be changed
        definition = ast.parse("if True:\n" * indented + source).body[0]
        definition = definition.body[0] if indented else definition
        if not isinstance(definition, ast.FunctionDef) or definition.name != code.co_name:
            raise OSError("something else stands there")
    except (OSError, SyntaxError) as error:
        raise ValueError(f"kernel: found no source of {code.co_name} ({error}), expected a function defined "
                         f"with def in a file or in a cell of a notebook") from error
    ast.increment_lineno(definition, code.co_firstlineno - 1 - indented)
    calls = (node.func for node in ast.walk(definition) if isinstance(node, ast.Call))
    return definition, {called.id for called in calls if isinstance(called, ast.Name)}


@functools.lru_cache(maxsize=256)
def _compile(code, helpers):
    """The code that defines the generator of a function with this code."""
    definition = copy.deepcopy(_parse(code)[0])
    definition.decorator_list = []
    definition.args.args.insert(0, ast.arg("cuda"))
    definition = _Rewriter(helpers).visit(definition)
    # So that what never waits becomes a generator, too:
    definition.body.append(ast.If(ast.Constant(False), [ast.Expr(ast.Yield())], []))
    return compile(ast.fix_missing_locations(ast.Module([definition], [])), code.co_filename, "exec")


#: The types, and what kernels make bfloat16 with; arrays of it are arrays of uint16.
CONVERSIONS = {**TYPES, "bfloat16": bfloat16, "widened": widened}

#: What stands for these names in every kernel.
_NAMES = {"__simt_add": _add, "__simt_subtract": _subtract, "__simt_multiply": _multiply, "__simt_divide": _divide,
          "__simt_float64": np.float64, "float": np.float64, "libdevice": LIBDEVICE,
          "min": _extreme("min", min, np.fmin), "max": _extreme("max", max, np.fmax),  # of NaN and 1 a GPU takes 1
          "__builtins__": builtins}


def _translate(value):
    """What a kernel's name for ``value`` stands for here: types of Numba and of NumPy, and functions of math."""
    name = getattr(value, "name", getattr(value, "__name__", None))
    if isinstance(name, str) and name in CONVERSIONS:
        return CONVERSIONS[name]
    if value is math:
        return _MATH
    if getattr(value, "__module__", None) == "math":
        return getattr(_MATH, name, value)
    return np.float64(value) if isinstance(value, float) else value


def generator(function, names):
    """``function`` as a generator function with ``cuda`` as its first argument; ``names`` gives names a meaning."""
    known, called = inspect.getclosurevars(function), _parse(function.__code__)[1]
    known = known.globals | known.nonlocals
    scope = {name: _translate(value) for name, value in known.items()}
    given = _NAMES | names
    helpers = {name: generator(plain(value), names) for name, value in scope.items()
               if name in called and name not in given and value is known[name] and plain(value)}
    scope |= given | helpers
    exec(_compile(function.__code__, frozenset(helpers)), scope)
    return scope[function.__name__]
