"""Small wrong changes of Python source, one at a time: what tools/mutants.py gives the tests to
find.

A change replaces one expression or statement where it stands, so that the rest of the file,
comments and all, keeps its text: kernels and exercises are shown, compiled and changed from their
source. Messages, docstrings, annotations and decorators are left alone, for no result hangs on
them.
"""

import ast
import copy
import random
from typing import NamedTuple

_NEIGHBOUR = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_OPPOSITE = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}
for _one, _other in (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn):
    _OPPOSITE |= {_one: _other, _other: _one}
_ARITHMETIC = {ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult}
_ARITHMETIC |= {ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd}
for _one, _other in (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.LShift, ast.RShift):
    _ARITHMETIC |= {_one: _other, _other: _one}
#: Kinds of which most only crash are drawn half as often.
_RARELY = {"swapped arguments", "removed keyword", "dropped call", "return None", "dropped sign"}
#: A change in a call of these could harm what lies outside the copy.
_HARMFUL = {"kill", "killpg", "rmtree", "unlink", "rmdir", "chmod"}
#: Of these nobody sees the order (agree: but for a tolerance, relative to the second).
_SYMMETRIC = {"min", "max", "np.minimum", "np.maximum", "agree", "_same", "_times"}
#: Of these nobody sees the width, but in compiled code: integers of simt have none.
_INTEGERS = {"int32", "int64", "uint64", "np.uintp"}
_UNREAD = {"annotation", "returns", "decorator_list", "msg", "type_comment", "ctx", "exc", "cause"}


class Mutant(NamedTuple):
    """One change: where, of what kind, the lines before and after, and how to make it.

    ``key`` finds it again after the file has changed elsewhere: file, function and text, no line
    number.
    """

    file: str
    function: str
    kind: str
    line: int
    old: str
    new: str
    source: str

    @property
    def key(self):
        return f"{self.file} {self.function}: {self.old} -> {self.new}"


def _changed(node, **fields):
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _without(items, k):
    return [*items[:k], *items[k + 1 :]]


def _of_constant(node):
    value, others = node.value, ()
    if isinstance(value, bool):
        others = (not value,)
    elif isinstance(value, int):
        others = {value + 1, max(value - 1, 0)} - {value}
    elif isinstance(value, float):
        others = (value + 1,) if value == 0 or 0.1 <= value <= 10 else (value * 1000, value / 1000)
    yield from (("constant", ast.Constant(new)) for new in others)


def _of_call(node, modules):
    called = ast.unparse(node.func)
    for k, (a, b) in enumerate(zip(node.args, node.args[1:]) if called not in _SYMMETRIC else ()):
        if ast.dump(a) != ast.dump(b) and not {type(a), type(b)} & {ast.Starred}:
            swapped = _changed(node, args=[*node.args[:k], b, a, *node.args[k + 2 :]])
            yield "swapped arguments", swapped
    for k in range(len(node.keywords)):
        yield "removed keyword", _changed(node, keywords=_without(node.keywords, k))
    plain = len(node.args) == 1 and not node.keywords and called not in _INTEGERS
    if plain and not isinstance(node.args[0], (ast.Starred, ast.GeneratorExp)):
        method = isinstance(node.func, ast.Attribute)
        method = method and ast.unparse(node.func.value).split(".")[0] not in modules
        yield "dropped call", node.func.value if method else node.args[0]


def changes(node, modules=frozenset()):
    """(kind, node in its place) of every change of this node; modules: names imported."""
    if isinstance(node, ast.Compare):
        for k, op in enumerate(node.ops):
            for table in (_NEIGHBOUR, _OPPOSITE):
                if type(op) in table:
                    other = [*node.ops[:k], table[type(op)](), *node.ops[k + 1 :]]
                    yield "comparison", _changed(node, ops=other)
    elif isinstance(node, ast.Constant):
        yield from _of_constant(node)
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        yield "dropped not" if isinstance(node.op, ast.Not) else "dropped sign", node.operand
    elif isinstance(node, ast.BoolOp):
        yield "and/or", _changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        for k in range(len(node.values)):
            rest = _without(node.values, k)
            yield "dropped condition", _changed(node, values=rest) if len(rest) > 1 else rest[0]
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _ARITHMETIC:
        yield "arithmetic", _changed(node, op=_ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.IfExp):
        yield "swapped branches", _changed(node, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.Call):
        yield from _of_call(node, modules)
    elif isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
        yield "return None", ast.Return(None)
    dropped = isinstance(node, (ast.AugAssign, ast.Raise, ast.Break, ast.Continue))
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if dropped or called or _rebinds(node):
        yield "dropped statement", ast.Pass()


def _rebinds(node):
    """An assignment such as x = f(x): without it, the name keeps its older value."""
    return isinstance(node, ast.Assign) and bool(
        {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        & {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    )


def _text(node):
    written = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return written or isinstance(node, ast.JoinedStr)


def _left_alone(node):
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.AnnAssign)) or _text(node):
        return True
    if isinstance(node, ast.IfExp):
        return _text(node.body) or _text(node.orelse)
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]).startswith("__")
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in _HARMFUL


def _nodes(node, function=""):
    """(qualified name of the function, node) of all that may be changed."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or name in _UNREAD or _left_alone(child):
                continue
            inner = function
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                inner = f"{function}.{child.name}".strip(".")
            yield inner, child
            yield from _nodes(child, inner)


def _replaced(source, node, new):
    """The source with this node replaced, or None where that is no Python, or the same."""
    lines = source.encode().splitlines(keepends=True)
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    text = ast.unparse(new)
    plain = ast.Constant, ast.Name, ast.Call, ast.Attribute
    if isinstance(node, ast.expr) and not isinstance(new, plain):
        text = f"({text})"
    result = (before + text.encode() + after).decode()
    try:
        return None if ast.dump(ast.parse(result)) == ast.dump(ast.parse(source)) else result
    except SyntaxError:
        return None


def _lines(source, first, last):
    return " ".join(line.strip() for line in source.splitlines()[first - 1 : last])


def mutants(file, source, left_out=lambda place: False, more=lambda function, node: ()):
    """All changes of a file as (kind, line, function that makes the Mutant, or None where it is no
    Python).

    left_out: tells of "file function" whether it is not to be changed; more: other changes.
    """
    tree = ast.parse(source)
    modules = {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }

    def make(function, kind, node, new):
        changed = _replaced(source, node, new)
        if changed is None:
            return None
        first, last = node.lineno, node.end_lineno
        old = _lines(source, first, last)
        new = _lines(changed, first, last + changed.count("\n") - source.count("\n"))
        return Mutant(file, function, kind, first, old, new, changed)

    return [
        (kind, node.lineno, lambda args=(function, kind, node, new): make(*args))
        for function, node in _nodes(tree)
        if isinstance(node, (ast.expr, ast.stmt)) and not left_out(f"{file} {function}")
        for kind, new in (*changes(node, modules), *more(function, node))
    ]


def draw(found, count, rng):
    """``count`` of a file's changes: first a kind, then one of it; at most one a line."""
    chosen, left = [], list(found)
    while left and len(chosen) < count:
        kinds = sorted({kind for kind, *_ in left})
        kind = rng.choices(kinds, [1 if kind in _RARELY else 2 for kind in kinds])[0]
        one = rng.choice([one for one in left if one[0] == kind])
        if mutant := one[2]():
            chosen.append(mutant)
            left = [other for other in left if other[1] != one[1]]
        else:
            left.remove(one)
    return chosen


def sample(files, count, seed, left_out=lambda place: False):
    """About ``count`` mutants of {file: source}: of each file one at least, of a long one more."""
    found = {file: mutants(file, source, left_out) for file, source in files.items()}
    whole, chosen = max(1, sum(map(len, found.values()))), []
    for file, those in found.items():
        many = max(1, round(count * len(those) / whole))
        chosen += draw(those, many, random.Random(f"{seed} {file}"))
    random.Random(seed).shuffle(chosen)  # a run that is cut short has seen all modules
    return chosen
