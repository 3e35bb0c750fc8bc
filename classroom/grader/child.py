"""Inside the sandbox: runs the code cells of a notebook, then calls its functions as the grader asks.

Nothing here is secret or trusted: the notebook's code runs in this process and may change all of it. What the grader
believes is only that an answer has the form of an answer (:mod:`classroom.grader.wire`).

    ("run", notebook's bytes, names, seconds)        -> ("ran", notes) or ("not a notebook", why)
    ("call", name, arguments, seconds)               -> ("returned", result, positions of arguments it changed)
                                                        or ("raised", type, text) or ("slow",) or ("missing",)
"""

import contextlib
import json
import os
import re
import signal
import sys
import types

sys.path += ["/packages/book", "/packages/site"]

import wire  # noqa: E402  the path comes first; it lies beside this file, in the sandbox

_REQUEST, _REPLY = 3, 4
_TEXT = 500


def _read(number):
    data = b""
    while len(data) < number:
        part = os.read(_REQUEST, number - len(data))
        if not part:
            sys.exit()
        data += part
    return data


def _send(message):
    view = memoryview(wire.encode(message))
    while view:
        view = view[os.write(_REPLY, view):]


class TooLong(BaseException):
    """Not an Exception: ``except Exception`` in a loop must not catch it."""


def _too_long(*_):
    raise TooLong("it took too long")


def _without_magics(source):
    """The source with Jupyter's own lines (%magic, !shell, help?) replaced by pass."""
    return re.sub(r"^([ \t]*)(?:%{1,2}[a-zA-Z].*|!.*|[\w.]+\?+[ \t]*)$", r"\1pass", source, flags=re.MULTILINE)


def _compile(source, name):
    try:
        return compile(source, name, "exec")
    except SyntaxError:
        return compile(_without_magics(source), name, "exec")


class _Notebook:
    def __init__(self):
        self._module = types.ModuleType("__main__")
        sys.modules["__main__"] = self._module
        self._names = vars(self._module)
        self._names["display"] = print
        self._lines = {}

    def _words(self, error):
        """What was raised and where, in a line."""
        try:
            words = f"{type(error).__name__}: {error}"
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

    def run(self, data, names, seconds):
        try:
            cells = json.loads(data.tobytes().decode())["cells"]
            sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            return "not a notebook", f"{type(error).__name__}: {error}"[:_TEXT]
        errors, defined = [], dict.fromkeys(names, 0)
        for number, source in enumerate(sources, 1):
            name, before = f"code cell {number}", {n: self._names.get(n) for n in names}
            self._lines[name] = source.splitlines()
            try:
                self._timed(exec, seconds, _compile(source, name), self._names)
            except BaseException as error:  # exit() too: in a notebook it ends a cell, here as well
                errors.append((number, self._words(error)))
            for n in names:
                defined[n] += self._names.get(n) is not before[n]
        return "ran", {"cells": len(sources), "errors": errors[:20], "defined": defined}

    def call(self, name, args, seconds):
        function = self._names.get(name)
        if not callable(function):
            return "missing",
        before = wire.encode_all(args)
        try:
            result = self._timed(function, seconds, *args)
        except TooLong:
            return "slow",
        except BaseException as error:
            return "raised", type(error).__name__[:_TEXT], self._words(error)
        try:
            wire.encode(result)
        except wire.WireError as error:
            return "raised", "TypeError", f"your function returned {error}"
        return "returned", result, wire.changed(args, before)


def main():
    notebook = _Notebook()
    while True:
        kind, *rest = wire.receive(_read)
        _send(notebook.run(*rest) if kind == "run" else notebook.call(*rest))


main()
