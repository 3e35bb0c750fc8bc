"""Inside the sandbox: runs the code cells of a notebook, then calls its functions as the grader
asks.

Nothing here is secret or trusted: the notebook's code runs in this process and may change all of
it. What the grader believes is only that an answer has the form of an answer
(:mod:`classroom.grader.wire`).

    ("part", bytes)                                  of what was handed in; no answer
    ("run", names, seconds)                          -> ("cell",) before each cell, then ("ran", notes);
                                                        or ("not a notebook", why)
    ("call", name, arguments, seconds)               -> ("returned", result, positions of arguments it changed)
                                                        or ("not sent", what it returned instead of
                                                        a value) or ("raised", type, text) or
                                                        ("slow",) or ("missing",)
"""  # noqa: E501

import __future__

import ast
import contextlib
import os
import signal
import sys
import types

sys.path += ["/packages/book", "/packages/site"]

import compare  # noqa: E402  these lie beside this file, in the sandbox
import forms  # noqa: E402
import numpy  # noqa: E402  the path comes first
import wire  # noqa: E402

_REQUEST, _REPLY = 3, 4
_TEXT = 500
_FUNCTIONS = 50  # of the notebook, that are told
_FUTURE = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
# What does not fit into the limits. Where the grader's own packages have it, it is absent as well:
# points must not depend on the machine that grades.
for _name in ("torch", "tensorflow", "jax", "flax", "keras", "cupy"):
    sys.modules[_name] = None


def _read(number):
    data = bytearray()
    while len(data) < number:
        part = os.read(_REQUEST, number - len(data))
        if not part:
            sys.exit()
        data += part
    return bytes(data)


def _send(message):
    try:
        frame = wire.encode(message)
    except wire.WireError as error:
        frame = wire.encode(("not sent", f"{error}"[:_TEXT]))
    view = memoryview(frame)
    while view:
        view = view[os.write(_REPLY, view) :]


class TooLong(BaseException):
    """Not an Exception: ``except Exception`` in a loop must not catch it."""


def _too_long(*_):
    raise TooLong("it took too long")


def _compiled(source, name):
    """(is it an import, code) of each statement of a cell; SyntaxError before any runs."""
    try:
        tree = ast.parse(source, name)
    except SyntaxError:
        tree = ast.parse(forms.without_magics(source), name)
    found, flags = [], 0
    for node in tree.body:
        code = compile(ast.Module([node], []), name, "exec", flags, dont_inherit=True)
        flags |= code.co_flags & _FUTURE
        found.append((isinstance(node, (ast.Import, ast.ImportFrom)), code))
    return found


class _Jupyter:
    """Stands for IPython's shell, which notebooks turned into Python call for magics."""

    def __init__(self, names):
        self._names = names

    def run_cell_magic(self, name, line, cell):
        exec(cell, self._names)  # %%time and its like

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class _Notebook:
    def __init__(self):
        self._module = types.ModuleType("__main__")
        sys.modules["__main__"] = self._module
        self._names = vars(self._module)
        # What the text promises is there, also where a student took the first cell away.
        self._names |= {"display": print, "np": numpy, "compare": compare.compare}
        self._names["get_ipython"] = lambda: _Jupyter(self._names)
        self._lines, self._data = {}, bytearray()

    def part(self, data):
        self._data += data.tobytes()

    def _words(self, error):
        """What was raised and where, in a line."""
        try:
            words = f"{type(error).__name__}: {error}"
            if isinstance(error, ModuleNotFoundError):
                there = "NumPy is, as np, and what comes with Python"
                words = f"{error.name} is not available here; {there}"
        except BaseException:
            words = type(error).__name__
        step, place = error.__traceback__, None
        while step:
            name = step.tb_frame.f_code.co_filename
            place = (name, step.tb_lineno) if name in self._lines else place
            step = step.tb_next
        if place:
            name, number = place
            line = self._lines[name][number - 1].strip() if number <= len(self._lines[name]) else ""
            words = f"{words[:300]}; in {name}, line {number}: {line}"
        return words[:_TEXT]

    def _timed(self, function, seconds, *args):
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(seconds)
        try:
            return function(*args)
        finally:
            signal.alarm(0)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()

    def run(self, names, seconds):
        try:
            sources = forms.code_cells(bytes(self._data))
        except (ValueError, MemoryError) as error:
            return "not a notebook", f"{error}"[:_TEXT] or type(error).__name__
        self._data, errors, defined = None, [], dict.fromkeys(names, 0)
        for number, source in enumerate(sources, 1):
            _send(("cell",))
            name, before = f"code cell {number}", {n: self._names.get(n) for n in names}
            self._lines[name] = source.splitlines()
            try:
                self._timed(self._cell, seconds, source, name, errors, number)
            except BaseException as error:  # exit() too: in a notebook it ends a cell, here as well
                errors.append((number, self._words(error)))
            for n in names:
                defined[n] += self._names.get(n) is not before[n]
        return "ran", {
            "cells": len(sources),
            "errors": errors[:20],
            "defined": defined,
            "missing": [n for n in names if not callable(self._names.get(n))],
            "functions": self._functions(names),
        }

    def _cell(self, source, name, errors, number):
        """Run a cell; what it cannot import is noted, and the rest of it runs."""
        for imports, code in _compiled(source, name):
            try:
                exec(code, self._names)
            except ImportError as error:
                if not imports:
                    raise
                errors.append((number, self._words(error)))

    def _functions(self, names):
        """(name, names of parameters) of functions in the cells that nobody asks for."""
        found = []
        for name, value in list(self._names.items()):
            code = value.__code__ if type(value) is types.FunctionType else None
            if code and code.co_filename in self._lines and type(name) is str and name not in names:
                parameters = code.co_varnames[: code.co_argcount][:20]
                found.append((name[:_TEXT], [one[:_TEXT] for one in parameters]))
        return found[:_FUNCTIONS]

    def call(self, name, args, seconds):
        function = self._names.get(name)
        if not callable(function):
            return ("missing",)
        before = wire.encode_all(args)
        try:
            result = self._timed(function, seconds, *args)
        except TooLong:
            return ("slow",)
        except BaseException as error:
            return "raised", type(error).__name__[:_TEXT], self._words(error)
        return "returned", result, wire.changed(args, before)


def main():
    notebook = _Notebook()
    while True:
        kind, *rest = wire.receive(_read)
        if kind == "part":
            notebook.part(*rest)
        else:
            _send(notebook.run(*rest) if kind == "run" else notebook.call(*rest))


main()
