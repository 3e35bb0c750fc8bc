"""Runs in Pyodide, in the worker of live cells: what must run before a cell."""

import ast
import symtable

IMPORTS = (ast.Import, ast.ImportFrom)


def _reads(code):
    """Names that the code takes from outside; a function's own variables are not among them."""
    def within(table, top):
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (top or symbol.is_global()):
                yield symbol.get_name()
        for child in table.get_children():
            yield from within(child, False)
    return set(within(symtable.symtable(code, "cell", "exec"), True))


def _binds(code):
    table = symtable.symtable(code, "cell", "exec")
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}


def _stands_alone(node):
    """Whether running the statement alone gives what it gives on the page: an import, a definition, a constant."""
    if isinstance(node, ast.Assign):
        try:
            ast.literal_eval(node.value)
            return True
        except ValueError:
            return False
    return isinstance(node, (*IMPORTS, ast.FunctionDef, ast.ClassDef))


def _statements(cells):
    """(number of the cell, statement, its code) of all cells that parse; a reader may be typing one."""
    for number, code in enumerate(cells):
        try:
            yield from ((number, node, ast.unparse(node)) for node in ast.parse(code).body)
        except SyntaxError:
            continue


def _narrowed(node, wanted):
    """The code of the statement; of ``from lnlib import a, figures`` perhaps ``a`` alone is wanted."""
    if isinstance(node, IMPORTS):
        node.names = [a for a in node.names if (a.asname or a.name).split(".")[0] in wanted]
    return ast.unparse(node)


def above(cells, index, least):
    """What must run before cell ``index``, as (number of its cell, code) pairs, and whether these stand alone.

    With ``least``, where imports, definitions and constants are enough: those that the cell needs. They stand alone,
    that is they run in any namespace, any number of times. Else: all cells above.
    """
    try:
        todo = _reads(cells[index]) - _binds(cells[index])
    except SyntaxError:  # which the run will report
        return [], least
    statements = list(_statements(cells[:index]))
    bound = [_binds(code) for _, _, code in statements]
    wanted, found = set(todo), set()
    while least and todo:
        name = todo.pop()
        place = max((i for i, names in enumerate(bound) if name in names), default=None)  # where it is bound last
        if place is None or place in found:
            continue
        found.add(place)
        _, node, code = statements[place]
        if not _stands_alone(node):
            least = False
        elif not isinstance(node, IMPORTS):
            todo |= _reads(code) - wanted
            wanted |= todo
    if not least:
        return list(enumerate(cells[:index])), False
    return [(statements[i][0], _narrowed(statements[i][1], wanted)) for i in sorted(found)], True
