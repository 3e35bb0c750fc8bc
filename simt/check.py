"""The check of a kernel's source against the lists of :mod:`~simt.allowed`, before it runs."""

import ast
import builtins
import functools
import itertools
import types

from . import allowed
from .allowed import BUILTINS, CONSTANT, CUDA_CALLS, CUDA_VALUES, UNLISTED, refused

_NODES = frozenset((allowed.STATEMENTS + " " + allowed.EXPRESSIONS).split())

_CALLED_ONLY = "the interpreter knows it only where it is called"
_NOT_MODELLED = "the interpreter does not model it; simt.allowed has a list of what it does"


class _Checker(ast.NodeVisitor):
    """Checks a definition, of a kernel or what it calls, as far as no values are needed."""

    def __init__(self, definition, kernel):
        self.definition, self.kernel, self.nested = definition, kernel, False
        self.line = definition.lineno
        #: name -> the line of its first use; calls; (name, attribute, line); sizes of arrays.
        self.loaded, self.called, self.attributes, self.sizes, self.bare = {}, [], [], [], {}
        self.parameters = [argument.arg for argument in definition.args.args]
        nodes = itertools.chain(*map(ast.walk, definition.body))
        self.local = {*self.parameters, *itertools.chain(*map(_given, nodes))}
        self._signature(definition)
        for statement in definition.body:
            self.visit(statement)
        #: Parameters that are the size of an array: what is given for them must be a constant.
        names = {size.id for size, _ in self.sizes if isinstance(size, ast.Name)}
        self.sized = names & {*self.parameters}

    def refuse(self, node, what, why):
        line = getattr(node, "lineno", self.line)
        raise refused(f"{what}: {why}", self.definition.name, line)

    def visit(self, node):
        kind, self.line = type(node).__name__, getattr(node, "lineno", self.line)
        if kind not in _NODES and not hasattr(self, f"visit_{kind}"):
            what, why = UNLISTED.get(kind, ("", "Numba does not compile it"))
            called = "a " * isinstance(node, ast.expr) + kind.lower()
            self.refuse(node, what or called, why)
        super().visit(node)

    def _signature(self, node):
        """That of a function in the kernel, too."""
        given = node.args
        if given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs:
            self.refuse(
                node,
                "*, ** or / among the parameters",
                "Numba wants each parameter by its name alone",
            )

    def visit_FunctionDef(self, node):
        if node.decorator_list:
            self.refuse(node, "a decorator in a kernel", "define the function outside the kernel")
        self._signature(node)
        if any(isinstance(inner, ast.Name) and inner.id == node.name for inner in ast.walk(node)):
            why = "Numba puts it in the place of its call; use a loop"
            self.refuse(node, f"{node.name} calls itself", why)
        outside, self.nested = self.nested, True
        for value in (*node.args.defaults, *node.body):
            self.visit(value)
        self.nested = outside

    def visit_Return(self, node):
        value = node.value
        if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            if self.kernel and not self.nested:
                self.refuse(
                    node,
                    "a kernel that returns a value",
                    "it has nobody to return it to; write to an array",
                )
            self.visit(value)

    def visit_AugAssign(self, node):
        if isinstance(node.target, ast.Subscript) and isinstance(node.target.slice, ast.Slice):
            self.refuse(node, "arithmetic of a whole slice", "write a loop over its elements")
        if isinstance(node.value, ast.Tuple):
            self.refuse(
                node, "a tuple that grows", "Numba wants its length known; take cuda.local.array"
            )
        self.generic_visit(node)

    def visit_For(self, node):
        self.visit(node.target)
        self._iterated(node.iter)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def visit_Compare(self, node):
        self.visit(node.left)
        for operation, other in zip(node.ops, node.comparators):
            (self._iterated if isinstance(operation, (ast.In, ast.NotIn)) else self.visit)(other)

    def _iterated(self, node):
        """A list that is gone through, or looked through, where it stands is not kept."""
        for part in node.elts if isinstance(node, ast.List) else [node]:
            self.visit(part)

    def visit_List(self, node):
        if isinstance(node.ctx, ast.Load):
            self.refuse(node, "a list", UNLISTED["List"][1])
        self.generic_visit(node)

    def visit_Expr(self, node):
        value = node.value.value if isinstance(node.value, ast.Constant) else None
        if not isinstance(value, (str, types.EllipsisType)):
            self.visit(node.value)

    def visit_Assert(self, node):
        self.visit(node.test)
        if node.msg and not _is_text(node.msg):
            what = "an assert whose message is no constant text"
            self.refuse(node, what, "Numba makes no text when a kernel runs")

    def visit_Constant(self, node):
        value = node.value
        if isinstance(value, (str, bytes)):
            why = "the interpreter knows text in print and as a dtype only"
            self.refuse(node, f"the text {value!r}", why)
        if isinstance(value, (complex, types.EllipsisType)):
            self.refuse(node, ast.unparse(node), "the interpreter does not know it")
        if isinstance(value, int) and value >= 2**64:
            self.refuse(node, str(value), "no integer of a kernel is that large")

    def visit_Name(self, node):
        if node.id == "cuda" and node.id not in self.local:
            why = "the interpreter knows cuda.grid and the like"
            self.refuse(node, "cuda without a name behind it", why)
        if isinstance(node.ctx, ast.Load):
            self.loaded.setdefault(node.id, node.lineno)
            self.bare.setdefault(node.id, node.lineno)

    def visit_Attribute(self, node, called=False):
        name = ast.unparse(node)
        root, _, rest = name.partition(".")
        if not isinstance(node.ctx, ast.Load):
            self.refuse(node, f"an assignment to {name}", "Numba does not compile it")
        if root == "cuda" and root not in self.local:
            if rest not in (CUDA_CALLS if called else CUDA_VALUES):
                self.refuse(node, name, _CALLED_ONLY if rest in CUDA_CALLS else _NOT_MODELLED)
        elif rest.isidentifier() and root.isidentifier() and root not in self.local:
            self.loaded.setdefault(root, node.lineno)
            self.attributes.append((root, rest, node.lineno))
        elif node.attr in allowed.ATTRIBUTES:
            self.visit(node.value)
        else:
            self.refuse(node, f".{node.attr}", allowed.OF_ARRAYS)

    def visit_Call(self, node):
        called, plain = ast.unparse(node.func), isinstance(node.func, ast.Name)
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        if isinstance(node.func, ast.Attribute):
            self.visit_Attribute(node.func, called=True)
        elif plain:
            self.loaded.setdefault(called, node.lineno)
        else:
            self.visit(node.func)
        if called in ("cuda.shared.array", "cuda.local.array"):
            values = self._array(called, node)
        elif node.keywords and (called in self.local or not plain):
            self.refuse(node, f"{called} with {node.keywords[0].arg}=", allowed.PLACES)
        elif called.startswith("cuda.") and "cuda" not in self.local:
            self._count(node, called, CUDA_CALLS[called[5:]])
            if called in ("cuda.grid", "cuda.gridsize"):
                self.constant(node.args[0], f"{called}({ast.unparse(node.args[0])})", node)
        if plain:
            self.called.append((called, node))
            if called in ("print", "float"):
                values = [value for value in values if not _is_text(value)]
        if any(keyword.arg is None for keyword in node.keywords):
            self.refuse(node, "**", UNLISTED["Starred"][1])
        for value in values:
            self.visit(value)

    def _count(self, node, called, ends):
        low, high = ends
        if not low <= len(node.args) <= high:
            takes = f"it takes {low}" + f" to {high}" * (high > low)
            self.refuse(node, f"{called} with {len(node.args)} arguments", takes)

    def _array(self, called, node):
        """The arguments of an array's creation that are no constants: none, if they are right."""
        given = dict(zip(("shape", "dtype"), node.args))
        given |= {keyword.arg: keyword.value for keyword in node.keywords}
        if {*given} != {"shape", "dtype"} or len(node.args) + len(node.keywords) > 2:
            self.refuse(node, called, "it wants a shape and a dtype")
        shape, dtype = given["shape"], given["dtype"]
        if isinstance(dtype, ast.Name) and dtype.id in ("float", "int", "bool"):
            why = "Numba wants a type with its width, such as float32"
            self.refuse(dtype, f"the dtype {dtype.id}", why)
        constant = self.constant(shape, f"the shape {ast.unparse(shape)}", node)
        self.sizes.append((constant, shape))
        return [] if _is_text(dtype) else [dtype]

    def constant(self, node, what, where):
        """The constant that an expression is: an ast.Constant, or a name from outside."""
        if isinstance(node, ast.Tuple):
            if len(node.elts) != 1:
                self.refuse(where, what, allowed.ONE_DIMENSION)
            return self.constant(node.elts[0], what, where)
        if isinstance(node, ast.Name):
            if node.id not in self.local or node.id in self.parameters and not self.kernel:
                self.loaded.setdefault(node.id, where.lineno)
                return node
        elif (value := _folded(node)) is not None:
            return ast.Constant(value)
        self.refuse(where, what, CONSTANT)
        return None

    @property
    def outer(self):
        """The names that are to be found outside."""
        return {*self.loaded} - self.local

    # What can be said when the values of names are known.

    def check_values(self, known, given):
        """Check the names from outside. ``given``: those that the interpreter has itself."""
        name = self.definition.name
        for outer, line in self.loaded.items():
            if outer in self.local or outer in given:
                continue
            if outer not in known:
                if not hasattr(builtins, outer):
                    raise refused(f"{outer} is not defined", name, line)
                if outer not in BUILTINS:
                    why = "not one of the functions of Python that a kernel has, which are "
                    raise refused(f"{outer}: {why}{', '.join(sorted(BUILTINS))}", name, line)
            elif why := allowed.unknown(known[outer]):
                raise refused(f"{outer}: {why}", name, line)
            elif isinstance(known[outer], types.ModuleType) and outer in self.bare:
                raise refused(f"{outer}: Numba passes no modules", name, self.bare[outer])
        for outer, attribute, line in self.attributes:
            why = outer not in given and allowed.unknown_attribute(known.get(outer), attribute)
            if why:
                raise refused(f"{outer}.{attribute}: {why}", name, line)
        for size, node in self.sizes:
            if why := _no_size(size, known, self.sized):
                raise refused(f"the size {ast.unparse(node)}: {why}", name, node.lineno)

    def check_calls(self, known, given, helpers):
        """Check calls by name; ``helpers``: name -> the checker of the function that it names."""
        for called, node in self.called:
            if called in self.local:
                continue
            if helper := helpers.get(called):
                for parameter, value in _bound(helper.parameters, node):
                    if parameter in helper.sized:
                        what = f"{ast.unparse(value)}, which is a size in {called}"
                        if why := _no_size(self.constant(value, what, node), known, ()):
                            raise refused(f"{what}: {why}", self.definition.name, node.lineno)
            elif node.keywords:
                self.refuse(node, f"{called} with {node.keywords[0].arg}=", allowed.PLACES)
            elif called in BUILTINS:
                self._count(node, called, BUILTINS[called])
            elif allowed.is_type(known.get(called)):
                self._count(node, called, (1, 1))


#: The check of a definition, which is done once: a kernel is launched many times.
checker = functools.lru_cache(_Checker)


def _given(node):
    """The names that a node gives a value."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.FunctionDef):
        yield from (node.name, *(argument.arg for argument in node.args.args))
    elif isinstance(node, ast.MatchAs) and node.name:
        yield node.name


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _folded(node):
    """The number that Python makes of an expression without names; None if it has names."""
    kinds = ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop
    if not all(isinstance(inner, kinds) for inner in ast.walk(node)):
        return None
    return eval(compile(ast.Expression(node), "<constant>", "eval"), {})


def _bound(parameters, call):
    yield from zip(parameters, call.args)
    for keyword in call.keywords:
        yield keyword.arg, keyword.value


def _no_size(node, known, sized):
    """Why a constant is no size; None if it is one."""
    if isinstance(node, ast.Name) and node.id in sized:
        return None
    value = node.value if isinstance(node, ast.Constant) else known.get(node.id)
    if isinstance(value, tuple):
        return None if len(value) == 1 else allowed.ONE_DIMENSION
    if type(value) is int:
        return None if value > 0 else f"found {value}, expected a positive integer"
    found = f"found {value!r} ({type(value).__name__})"
    return f"{found}, expected a positive integer of Python; {CONSTANT}"
