"""Runs in Pyodide, for live cells: runs a cell, posts what it prints, shows and raises."""

import ast
import base64
import builtins
import contextlib
import functools
import inspect
import io
import linecache
import logging
import os
import sys
import traceback
import types
import warnings

import __main__
from lnbook import exercises

MOST_TEXT = 200_000  # characters that one run may print
MOST_CALLS = 12  # of an error's, shown
FACES = (
    ("_repr_html_", "text/html"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_latex_", "text/latex"),
    ("_repr_markdown_", "text/markdown"),
)


# Showing. ``post(kind, data)`` hands over to the page; it is None while what a cell needs runs,
# which shows nothing.


class Shown:
    post, room, missing = None, 0, ()


def post(kind, *data):
    if Shown.post:
        Shown.post(kind, *data)


class Stream(io.TextIOBase):
    """Posts whole lines, so that what a program prints before it hangs is seen."""

    def __init__(self, name):
        self.name, self.waiting = name, ""

    def writable(self):
        return True

    def write(self, text):
        self.waiting += text
        if "\n" in text or len(self.waiting) > 4096:
            self.flush()
        return len(text)

    def flush(self):
        text, self.waiting = self.waiting, ""
        if text and Shown.room > 0:
            post("stream", self.name, text[: Shown.room])
            Shown.room -= len(text)
            if Shown.room <= 0:
                more = f"\n(More than {MOST_TEXT:,} characters: the rest is not shown.)\n"
                post("stream", "stderr", more)


def show(value):
    """Post a value in the best form that it has."""
    sys.stdout.flush(), sys.stderr.flush()
    if type(value).__module__ == "lnbook.exercises.report":
        post("report", value.id, len(value.passed), value.total, value.written)
    for method, kind in FACES:
        data = getattr(value, method, lambda: None)() if not isinstance(value, type) else None
        if data is not None:
            data = base64.b64encode(data).decode() if isinstance(data, bytes) else data
            post("display", kind, data)
            return
    post("display", "text/plain", repr(value))


def reporting(check):
    """The same function; what it finds is shown at once, wherever in a cell it is called."""

    @functools.wraps(check)
    def checked(*arguments, **named):
        report = check(*arguments, **named)
        show(report)
        return report

    return checked


def figures():
    """Post the figures that are open, and close them, as notebooks do after a cell."""
    if "matplotlib.pyplot" not in sys.modules:
        return
    plt = sys.modules["matplotlib.pyplot"]
    try:
        for number in plt.get_fignums() if Shown.post else ():
            picture, how = io.StringIO(), {"bbox_inches": "tight", "metadata": {"Date": None}}
            plt.figure(number).savefig(picture, format="svg", **how)
            post("display", "image/svg+xml", picture.getvalue())
    finally:
        plt.close("all")


class _Face:
    def __init__(self, data):
        self.data = data


def _stand_in():
    """IPython.display in a few lines; IPython itself is 5 MB."""
    kinds = {
        name: type(name, (_Face,), {f"_repr_{name.lower()}_": lambda self: self.data})
        for name in ("HTML", "SVG", "Markdown", "Latex")
    }
    tex = {"_repr_latex_": lambda self: f"$\\displaystyle {self.data}$"}
    kinds["Math"] = type("Math", (_Face,), tex)
    package, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    package.get_ipython, package.display = lambda: None, display
    vars(display).update(kinds, display=lambda *values, **_: [show(v) for v in values])
    sys.modules.update({"IPython": package, "IPython.display": display})


def _no_input(*_):
    raise RuntimeError("input() does not work on a page")


class _Noticed:
    """The last to be asked for a module: notes those that could be loaded."""

    def __init__(self, offered):
        self.offered = offered

    def find_spec(self, name, path=None, target=None):
        if name in self.offered:
            Shown.missing = [*Shown.missing, name]


def missing():
    """Which of the packages offered the last run asked for in vain: it must run again."""
    return list(Shown.missing)


def settle(offered):
    """Once: what notebooks have and bare Python has not. offered: packages to be loaded."""
    sys.meta_path.append(_Noticed(set(offered)))
    os.environ["MPLBACKEND"] = "agg"
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it reports on its cache
    # plt.show(): figures() shows them
    warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
    builtins.input = _no_input
    exercises.check = reporting(exercises.check)
    _stand_in()


#: Of the value of a last line, what figures() and reporting() show.
SHOWN = "matplotlib.figure", "lnbook.exercises.report"
_done = {}  # number of a cell: the code that ran, in the page's namespace


async def _execute(code, name, space):
    """Run the code; its last line, if an expression, is shown."""
    # One name for each cell: simt reads a kernel's source, and finds it by this name.
    linecache.cache[name] = len(code), None, code.splitlines(True), name
    space.pop("__warningregistry__", None)  # a second run warns again
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    for part, mode in ((tree, "exec"), (last and ast.Expression(last.value), "eval")):
        if part is None:
            continue
        value = eval(compile(part, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), space)
        value = await value if inspect.iscoroutine(value) else value
    if last is not None and value is not None and not code.rstrip().endswith(";"):  # noqa: SIM102
        if type(value).__module__ not in SHOWN:
            show(value)
    figures()
    sys.stdout.flush(), sys.stderr.flush()


def _told(error, name):
    """([(text, is it the reader's line), ...], number of the reader's line or 0).

    What was raised comes first; of many calls, those in the middle are left out.
    """
    frames = traceback.extract_tb(error.__traceback__)
    while frames and not frames[0].filename.startswith("<"):
        del frames[0]
    mine = [frame.lineno for frame in frames if frame.filename == name]
    if isinstance(error, SyntaxError) and error.filename == name:
        mine.append(error.lineno)
    lines = [("".join(traceback.format_list([frame])), frame.filename == name) for frame in frames]
    if len(lines) > MOST_CALLS:
        lines[4:-4] = [(f"  [{len(lines) - 8} more calls]\n", False)]
    lines.insert(0, ("".join(traceback.format_exception_only(error)), False))
    return lines, mine[-1] if mine else 0


async def run(steps, index, code, label, fresh, post):
    """Run the steps, showing nothing, then the code. Returns whether all went well.

    fresh: in a namespace of its own; else in the page's, where each step runs once.
    """
    Shown.post, Shown.room, Shown.missing = None, MOST_TEXT, ()
    space = {"__name__": "__main__"} if fresh else vars(__main__)
    old, (sys.stdout, sys.stderr) = (sys.stdout, sys.stderr), (Stream("stdout"), Stream("stderr"))
    name = f"<{label}>"
    try:
        for number, piece in [*steps, (index, code)]:
            own = number == index
            name = f"<{label}>" if own else f"<cell {number + 1} of the page>"
            Shown.post = post if own else None
            if own or fresh or _done.get(number) != piece:
                await _execute(piece, name, space)
                if not fresh:
                    _done[number] = piece
        return True
    except BaseException as error:
        Shown.post = post
        sys.stdout.flush(), sys.stderr.flush()
        lines, line = _told(error, name)
        if not own:
            above = f"This was raised above, in cell {number + 1} of the page"
            lines.insert(0, (f"{above}, which has to run first.\n", False))
        post("error", lines, line if own else 0)
        # What it drew is its own, not the next cell's. One error is told already.
        Shown.post = post if own else None
        with contextlib.suppress(Exception):
            figures()
        return False
    finally:
        sys.stdout, sys.stderr = old
