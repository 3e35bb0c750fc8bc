"""Slips that no list foresees: one small change anywhere in a solution, or the same in every place.

A wrong answer whose numbers are those of such a variation is told by its kind, not by its place: a
sign, a factor left out, a sum where a mean belongs. That is what a reader needs to look for it.
"""

import ast
import functools
import inspect
import re
import textwrap

import numpy as np

from .change import function_of

#: What the words end with where a change is made in several places at once.
EVERYWHERE = ", in every place"

_TURNED = {ast.Gt: "<", ast.GtE: "<", ast.Lt: ">", ast.LtE: ">"}
_EXCHANGED = {
    "mean": ("sum", "a sum where a mean belongs"),
    "sum": ("mean", "a mean where a sum belongs"),
    "std": ("var", "a variance where its root belongs"),
    "var": ("std", "a root too many"),
}
_DROPPED = {"sqrt": "a root", "abs": "an absolute value", "log10": "a logarithm"}


def _lstsq(columns, right, rcond=None):
    """:func:`numpy.linalg.lstsq`, which for a slip that makes NaN of its columns would print a word
    of LAPACK's for each.
    """
    if not (np.isfinite(columns).all() and np.isfinite(right).all()):
        raise np.linalg.LinAlgError("NaN or Inf in least squares")
    return np.linalg.lstsq(columns, right, rcond=rcond)


@functools.cache
def slips(solution):
    """A list of (what is wrong, in words, a function), one for every slip; empty for a kernel,
    which runs long in the interpreter, or a solution that may not end.
    """
    source = textwrap.dedent(inspect.getsource(solution))
    nodes = list(ast.walk(ast.parse(source)))
    if any(isinstance(n, ast.While) for n in nodes) or "cuda." in source:
        return []
    starts = [0]
    for line in source.splitlines(True):
        starts.append(starts[-1] + len(line))

    def place(node):
        return (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(node):
        return source[slice(*place(node))]

    arguments = [a.arg for a in nodes[1].args.args]
    others = {
        n.id: "" for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }  # name -> its formula
    others |= {
        n.targets[0].id: " ".join(text(n.value).split())
        for n in nodes
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
    }
    # Numbers of axes have words of their own, and no number is called or has attributes.
    left_alone = {
        inner
        for n in nodes
        if isinstance(n, ast.keyword) and n.arg == "axis"
        for inner in ast.walk(n.value)
    }
    left_alone |= {
        n.func for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    left_alone |= {
        n.value
        for n in nodes
        if isinstance(n, ast.Attribute | ast.Subscript) and isinstance(n.value, ast.Name)
    }
    found = {}  # (old, new, words) -> places
    for node in [n for n in nodes if n not in left_alone]:
        for part, new, words in _changes(node, text, arguments, others):
            start, end = place(part) if isinstance(part, ast.AST) else part(place(node))
            found.setdefault((source[start:end], new, words), set()).add((start, end))
        operands = ast.iter_child_nodes(node) if isinstance(node, (ast.BinOp, ast.UnaryOp)) else ()
        for operand in [child for child in operands if isinstance(child, ast.expr)]:
            start, end = place(operand)
            if source[start - 1] + source[end] == "()":
                new = " ".join(text(operand).split())
                found[source[start - 1 : end + 1], new, "a pair of brackets left out"] = {
                    (start - 1, end + 1)
                }
    changed = []
    for (_old, new, words), places in found.items():
        several = [(places, words + EVERYWHERE)] if len(places) > 1 else []
        for some, said in [([one], words) for one in places] + several:
            wrong = _replaced(source, some, new).replace("np.linalg.lstsq(", "_lstsq(")
            changed.append(
                (
                    said,
                    function_of(
                        wrong, solution.__name__, solution.__globals__ | {"_lstsq": _lstsq}
                    ),
                )
            )
    return changed


def _replaced(source, places, new):
    for start, end in sorted(places, reverse=True):
        source = source[:start] + new + source[end:]
    return source


def _changes(node, text, arguments, others):
    """Triples (the node that is replaced, or a function that finds its place; by what; words) of
    slips at this node.
    """
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() as sign, right):
            yield (
                node,
                f"(({text(left)}) {'-' if isinstance(sign, ast.Add) else '+'} ({text(right)}))",
                "a sign turned",
            )
            yield from ((part, "(0)", "a term left out") for part in (left, right))
            yield from ((part, "(1)", "a 1 where another term belongs") for part in (left, right))
            if isinstance(sign, ast.Add):
                yield (
                    node,
                    f"np.maximum({text(left)}, {text(right)})",
                    "the larger of two terms where their sum belongs",
                )
        case ast.BinOp(left, ast.Mult(), right):
            yield from ((part, "(1)", "a factor left out") for part in (left, right))
            for a, b in ((left, right), (right, left)):
                yield (
                    node,
                    f"(({text(a)}) / ({text(b)}))",
                    "a factor on the wrong side of a fraction",
                )
                yield node, f"(({text(a)}) * ({text(a)}) * ({text(b)}))", "a factor too many"
        case ast.BinOp(left, ast.Div(), right):
            yield right, "(1)", "a divisor left out"
            yield right, f"({text(right)} - 1)", "a divisor one too small"
            yield (
                node,
                f"(({text(left)}) * ({text(right)}))",
                "a factor on the wrong side of a fraction",
            )
            yield node, f"(({text(right)}) / ({text(left)}))", "a fraction upside down"
        case ast.BinOp(_, ast.Pow(), exponent):
            yield exponent, "(1)", "a power left out"
        case ast.BinOp(left, ast.BitOr(), right):
            yield node, f"(({text(left)}) & ({text(right)}))", "and in place of or"
        case ast.UnaryOp(ast.USub(), operand):
            yield node, f"({text(operand)})", "a sign turned"
        case ast.Compare(left, [operator], [right]) if type(operator) in _TURNED:
            yield (
                node,
                f"({text(left)} {_TURNED[type(operator)]} {text(right)})",
                "a comparison turned round",
            )
        case ast.Attribute(attr=name) if name in _EXCHANGED:
            yield (lambda p: (p[1] - len(name), p[1])), *_EXCHANGED[name]
        case ast.Assign(value=value) if "eps" in arguments:
            yield (
                value,
                f"np.maximum({' '.join(text(value).split())}, eps)",
                "a quantity that eps holds up",
            )
        case ast.keyword("axis", value) if text(value) == "-1":
            yield node, "axis=0", "the first axis in place of the last"
            yield node, "axis=None", "no axis where one belongs"
        case ast.Call(ast.Attribute(attr=name) | ast.Name(id=name), [argument]) if name in _DROPPED:
            yield node, f"({text(argument)})", f"{_DROPPED[name]} left out"
        case ast.Call(ast.Attribute(attr="var" | "std")):
            yield (
                (lambda p: (p[1] - 1, p[1])),
                ", ddof=1)" if node.args or node.keywords else "ddof=1)",
                "D - 1 where D belongs",
            )
        case ast.Name(id=name, ctx=ast.Load()) if name in arguments:
            yield from ((node, number, f"no {name}") for number in ("(0)", "(1)"))
            if name == "eps":
                yield node, "(1e-5)", "eps fixed at 1e-5"
        case ast.Name(id=name, ctx=ast.Load()) if name in others:
            yield from ((node, a, f"{a} itself where another quantity belongs") for a in arguments)
            if (without := re.sub(r"\beps\b", "0", others[name])) != others[name]:
                yield node, f"({without})", f"{name} without eps"
        case ast.Return(ast.Tuple([first, second])):
            yield node, f"return {text(second)}, {text(first)}", "two results exchanged"
        case ast.Constant(int() as value) if not isinstance(value, bool):
            yield node, f"({value + 1})", "a whole number one too large"
            yield node, f"({value - 1})", "a whole number one too small"
    if isinstance(node, (ast.BinOp, ast.Call)):
        yield node, f"(2 * ({text(node)}))", "a quantity twice as large"
        yield node, f"(({text(node)}) / 2)", "a quantity half as large"
        yield node, f"(({text(node)}) ** 0.5)", "a root too many"
        yield node, f"(({text(node)}) ** 2)", "a square too many"
        if "x" in arguments:
            yield node, f"(({text(node)}) * x.shape[-1])", "a factor D too many"
            yield node, f"(({text(node)}) / x.shape[-1])", "a division by D too many"
