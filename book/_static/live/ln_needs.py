"""Runs in Pyodide, in the worker of live cells: what must run before a cell."""

import ast
import functools
import symtable

IMPORTS = (ast.Import, ast.ImportFrom)


def reads(code):
    """Names that the code takes from outside; a function's own variables are not among them."""

    def within(table, top):
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (top or symbol.is_global()):
                yield symbol.get_name()
        for child in table.get_children():
            yield from within(child, False)

    return set(within(symtable.symtable(code, "cell", "exec"), True))


@functools.cache  # of the cells of a page, most are the same in each run
def binds(code):
    """The names that the code binds; none where it does not parse: a reader may be typing it."""
    try:
        symbols = symtable.symtable(code, "cell", "exec").get_symbols()
    except SyntaxError:
        return frozenset()
    bound = [s for s in symbols if s.is_assigned() or s.is_imported() or s.is_namespace()]
    return frozenset(s.get_name() for s in bound)


def _stands_alone(node):
    """Whether the statement alone does what it does on the page: import, def, constant."""
    if isinstance(node, ast.Assign):
        try:
            ast.literal_eval(node.value)
            return True
        except ValueError:
            return False
    return isinstance(node, (*IMPORTS, ast.FunctionDef, ast.ClassDef))


@functools.cache
def _statement(code, name):
    """The last statement of a cell that binds the name: how many stand before it, and its code."""
    pieces = enumerate(map(ast.unparse, ast.parse(code).body))
    return [(place, piece) for place, piece in pieces if name in binds(piece)][-1]


def _narrowed(code, wanted):
    """The statement; of ``from lnlib import a, forms`` perhaps ``a`` alone is wanted."""
    node = ast.parse(code).body[0]
    if isinstance(node, IMPORTS):
        node.names = [a for a in node.names if (a.asname or a.name).split(".")[0] in wanted]
    return ast.unparse(node)


def above(cells, index, least):
    """What must run before cell ``index``, as (number of its cell, code) pairs, and whether these
    stand alone.

    With ``least``, where imports, definitions and constants are enough: those that the cell needs.
    They stand alone, that is they run in any namespace, any number of times. Else: all cells above.
    """
    try:
        todo = reads(cells[index]) - binds(cells[index])
    except SyntaxError:  # which the run will report
        return [], least
    wanted, found = set(todo), set()
    while least and todo:
        name = todo.pop()
        binding = [number for number in range(index) if name in binds(cells[number])]
        if not binding:
            continue
        number = binding[-1]
        place, code = _statement(cells[number], name)
        if (number, place, code) in found:
            continue
        found.add((number, place, code))
        node = ast.parse(code).body[0]
        if not _stands_alone(node):
            least = False
        elif not isinstance(node, IMPORTS):
            todo |= reads(code) - wanted
            wanted |= todo
    if not least:
        return list(enumerate(cells[:index])), False
    return [(number, _narrowed(code, wanted)) for number, _, code in sorted(found)], True
