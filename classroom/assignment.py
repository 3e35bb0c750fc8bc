"""An assignment as files: for students, for the instructor, and a source for nbgrader."""

import inspect
import json
import math
import re
import secrets
import shutil
from pathlib import Path

import numpy as np

from . import key
from .grader import compare, roster, wire
from .grader.feedback import file_name
from .grader.launch import Limits
from .grader.notebook import Seconds
from .tasks import draw, own

_LONGEST_NAME = 80  # of a file
_MISTAKEN = "What goes wrong, and the checks tell apart:"
_SETUP = f"""import copy

import numpy as np


{inspect.getsource(compare.difference)}

{inspect.getsource(compare.unchanged)}

{inspect.getsource(compare.compare)}"""
_RULES = """Write the functions below; do not rename them, and give each the arguments that its first line has.
NumPy is there as `np`, and is all that is needed. Functions work on new arrays and leave their arguments as they are.

After each function a cell runs it on one example, and judges the result as the grader does. What is graded are other
inputs, also shapes and sizes that the text allows and the example does not show. Whoever grades may set other limits
than those in the text.

Hand in this notebook. The grader runs it once, from the first cell to the last, without what was printed or drawn."""  # noqa: E501
_README = """{title}

students/     Give this to the students, unless nbgrader grades them: then hand out nbgrader/release/, see below.
instructor/   PRIVATE: solutions.ipynb, and assignment.json with the seed, which `python -m classroom grade` needs.
              Whoever has it can draw the tasks, their solutions and their hidden tests again.
nbgrader/     PRIVATE: a course folder for nbgrader, with solutions and hidden tests. In it, with an environment of
              requirements-grading.txt active:
                  nbgrader generate_assignment {name}
                  PYTHONPATH=<folder of this repository> nbgrader autograde {name}
              Hand out the notebook that the first command writes to release/. Those made from students/ lack
              nbgrader's marks: it gives no points for them, and does not say so.
{own}              What nbgrader's feedback shows of hidden tests has the seed: draw another for the next assignment.
              nbgrader runs tests in the student's own process. A student who changes Python itself can forge points
              there; `python -m classroom grade` takes the same notebooks and keeps its tests to itself.
"""  # noqa: E501
_OWN = """\
              Your own tasks are found by a variable beside PYTHONPATH:
                  LN_TASKS=<folder of this file>/instructor/tasks
"""
_README_EACH = """{title}

students/     A notebook for each student, named by the id in the roster: everybody gets their own.
instructor/   PRIVATE: solutions, the roster, and assignment.json with the seed, which
              `python -m classroom grade` needs.
              Whoever has it can draw every variant with its solutions again.
              Own variants keep students from handing on a solution. They do not hide one:
              the code that draws is public.
nbgrader hands one notebook to all, so there is no source for it here.
"""
_CONFIG = """c = get_config()
c.CourseDirectory.course_id = "{name}"
c.ClearSolutions.code_stub = {{"python": 'raise NotImplementedError("write this function")'}}
c.Execute.timeout = 120
"""


def write(chapters, out, seed=None, title="Assignment", per_student=None, tasks=None):
    """Write an assignment on these chapters into the folder ``out`` and return its path.

    Without ``seed`` a private one of 128 bits is drawn; instructor/assignment.json keeps it. A
    folder that is not empty is refused. ``per_student``: a roster, whose students get a variant
    each. ``tasks``: a folder of own tasks.
    """
    out, title = Path(out), " ".join(title.split())
    name = re.sub(r"[^A-Za-z0-9]+", "-", title)[:_LONGEST_NAME].strip("-").lower()
    if not name:
        raise ValueError(f"title: found {title!r}, expected one with letters or digits")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"out: found {out}, which is there and not empty; expected a new folder")
    seed = secrets.randbits(128) if seed is None else int(seed)
    ids = sorted(own.load(tasks)) if tasks else []
    for id in ids:
        own.try_out(id)
    made = (title, name, seed, chapters, ids)
    try:
        files = [*(_for_each(roster.read(per_student), *made) if per_student else _for_all(*made))]
    except (ValueError, OSError):
        raise
    except Exception as error:  # of a task of somebody's own, in a draw that was not tried
        raise ValueError(
            f"tasks: one of them cannot be drawn ({type(error).__name__}: {error})"
        ) from error
    try:
        _write(files, out, tasks, per_student)
    except BaseException:  # half an assignment must not be handed out
        shutil.rmtree(out, ignore_errors=True)
        raise
    return out


def _write(files, out, tasks, per_student):
    for path, text in files:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text, encoding="utf-8")
    if tasks:
        (out / "instructor" / key.OWN).mkdir()
        for file in sorted(Path(tasks).glob("*.py")):
            shutil.copy(file, out / "instructor" / key.OWN)
    if per_student:
        shutil.copy(per_student, out / "instructor" / key.ROSTER)
    for private in ("instructor", "nbgrader"):  # others may have accounts on this machine
        if (out / private).exists():
            (out / private).chmod(0o700)


def _for_all(title, name, seed, chapters, ids):
    """(path, text) of the files of one assignment for all."""
    tasks = draw(chapters, seed, ids)
    yield f"students/{name}.ipynb", notebook(_cells(title, tasks, lambda task: task.stub))
    yield "instructor/solutions.ipynb", notebook(_solved(title, tasks))
    yield "instructor/assignment.json", key.text(title, name, seed, chapters, ids, tasks)
    yield f"nbgrader/source/{name}/{name}.ipynb", notebook(_nbgrader(title, tasks, seed))
    yield "nbgrader/nbgrader_config.py", _CONFIG.format(name=name)
    yield "README.txt", _README.format(title=title, own=_OWN if ids else "", name=name)


def _for_each(who, title, name, seed, chapters, ids):
    """The same of a variant for each student; nbgrader hands one notebook to all."""
    prints, first = {}, None
    for student in who.students:
        tasks = draw(chapters, key.for_student(seed, student.id), ids)
        prints[student.id], first = key.sheet_print(tasks), first or tasks
        file, for_whom = f"{file_name(student.id)}.ipynb", f"{title}, for {student.name}"
        yield f"students/{file}", notebook(_cells(for_whom, tasks, lambda task: task.stub))
        yield f"instructor/solutions/{file}", notebook(_solved(for_whom, tasks))
    yield "instructor/assignment.json", key.text(title, name, seed, chapters, ids, first, prints)
    yield "README.txt", _README_EACH.format(title=title)


def notebook(cells):
    """The text of a notebook of (kind, id, source, metadata) cells."""
    code = {"execution_count": None, "outputs": []}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    written = [
        {"cell_type": kind, "id": id, "metadata": metadata}
        | {"source": source.strip("\n").splitlines(True)}
        | (code if kind == "code" else {})
        for kind, id, source, metadata in cells
    ]
    found = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "cells": written,
    }
    return json.dumps(found, indent=1) + "\n"


def _text(task):
    head, _, rest = task.text.partition("\n")
    worth = f"*{task.points} points, about {task.minutes} minutes.*"
    return f"{head}\n\n{worth}\n{rest}\n{_judged(task)}\n"


def _judged(task):
    """How results are judged, in words, by the kinds of what the public example gives."""
    _, expected = task.shown()
    parts = expected if isinstance(expected, tuple) else (expected,)
    kinds = dict.fromkeys(_kind(part, task.rtol) for part in parts)
    several = f"a tuple or list of {len(parts)} results: " if isinstance(expected, tuple) else ""
    return (
        f"**How it is judged.** Return {several}{' and '.join(kinds)}. {task.tolerance} A call may"
        f" take {Seconds().call} seconds, the notebook {Seconds().wall}, both with"
        f" {Limits().memory // 2**30} GiB of memory."
    ).replace(".  ", ". ")


def _kind(value, rtol):
    if isinstance(value, (bool, str)):
        return "True or False, not 1 or 0" if isinstance(value, bool) else "one of the words"
    dtype = np.asarray(value).dtype
    if dtype == np.float32:
        return "float32, right to the last bit"
    if dtype.kind in "iu":
        return "whole numbers, exact"
    return (
        f"real numbers in the precision of float64 (allowed relative L2 error: {rtol:.0e}), no NaN"
        " or Inf"
    )


def source(value):
    """Python source of a result, np being NumPy; ValueError where no result is such."""
    if isinstance(value, (np.ndarray, np.generic)):
        return _source_of_array(np.asarray(value))
    if type(value) is dict:
        return f"{{{', '.join(f'{source(key)}: {source(one)}' for key, one in value.items())}}}"
    if type(value) in (tuple, list):
        text = ", ".join(map(source, value))
        return f"[{text}]" if type(value) is list else f"({text}{',' * (len(value) == 1)})"
    if type(value) is complex:
        return f"complex({source(value.real)}, {source(value.imag)})"
    if type(value) is float and not math.isfinite(value):
        return f"{'-' * (value < 0)}np.{abs(value)}"
    if value is not None and type(value) not in (bool, int, float, str):
        raise ValueError(
            f"found {type(value).__name__}, expected arrays, numbers, words, None, or tuples, lists"
            " and dicts of them"
        )
    return repr(value)


def _source_of_array(array):
    name, numbers = array.dtype.name, array.tolist()
    if array.dtype.kind != "U" and name not in wire.DTYPES:
        raise ValueError(f"found dtype {name}, expected one of {', '.join(wire.DTYPES)}, or words")
    if not array.size:  # of which the numbers do not tell the shape
        return f"np.zeros({array.shape}, {name!r})"
    # A matrix with a line for each row.
    text = "[" + ",\n     ".join(map(source, numbers)) + "]" if array.ndim > 1 else source(numbers)
    if np.asarray(numbers).dtype != array.dtype:
        return f"np.{name}({text})"
    return f"np.array({text})" if array.ndim else text


def _one_a_line(text):
    """Arguments or results in brackets, one array a line."""
    if text[0] != "(":
        return text
    return text.replace(", np.", ",\n    np.").replace("(np.", "(\n    np.", 1)


def _example(task):
    """The cell with the public example; ValueError where the solution does not agree with it."""
    try:
        expected = source(task.shown()[1])
        wire.encode(task.shown())  # as to a sandbox, and back
        # As in the notebook: from the text.
        found, right = task.function()(*eval(task.example, {"np": np})), eval(expected, {"np": np})
        wrong = compare.difference(found, right, task.rtol)
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        raise ValueError(
            f"tasks: {task.id}: its public example, run with its own solution: {wrong}; expected"
            " that it agrees"
        )
    arguments, expected = map(_one_a_line, (task.example, expected))
    return (
        f"# One example, with what it must give.\narguments = {arguments}\nexpected = {expected}\n"
        f"compare({task.name}, arguments, expected{f', rtol={task.rtol}' if task.rtol else ''})"
    )


def _cells(title, tasks, answer, after=lambda task: ()):
    """Of each task its text, ``answer(task)``, the example, and the cells ``after(task)``."""
    points, minutes = sum(task.points for task in tasks), sum(task.minutes for task in tasks)
    number = f"{len(tasks)} task{'s' * (len(tasks) > 1)}, {points} points, about {minutes} minutes."
    yield "markdown", "title", f"# {title}\n\n{number}\n\n{_RULES}", {}
    yield "code", "setup", _SETUP, {}
    for task in tasks:
        yield "markdown", f"{task.id}-text", _text(task), {}
        yield "code", task.id, answer(task), {"tags": [f"task:{task.id}"]}
        yield "code", f"{task.id}-example", _example(task), {"tags": [f"example:{task.id}"]}
        yield from after(task)


def _solved(title, tasks):
    def after(task):
        wrong = "\n".join(f"- {mistake.wrong};" for mistake in task.mistakes)
        yield "markdown", f"{task.id}-mistakes", f"{_MISTAKEN}\n\n{wrong[:-1]}.", {}

    return _cells(f"{title}: solutions", tasks, lambda task: task.solution, after)


def _marked(task):
    """The solution between the marks by which nbgrader takes it out."""
    head = task.stub[: task.stub.rindex("    raise NotImplementedError")]
    body = task.solution.removeprefix(head).strip("\n")
    return f"{head}    ### BEGIN SOLUTION\n{body}\n    ### END SOLUTION"


def _hidden(task, seed):
    return f"""# Hidden tests; there is nothing to do here.
### BEGIN HIDDEN TESTS
from classroom.hidden import points
points({task.name}, {task.id!r}, {seed}, {key.fingerprint(task)!r})
### END HIDDEN TESTS"""


def _nbgrader(title, tasks, seed):
    def after(task):
        yield "code", f"{task.id}-tests", _hidden(task, seed), {}

    marks = {task.id: {"solution": True, "locked": False} for task in tasks}
    marks |= {f"{task.id}-tests": {"grade": True, "points": task.points} for task in tasks}
    for kind, id, source, _ in _cells(title, tasks, _marked, after):
        mark = {"schema_version": 3, "grade_id": id, "cell_type": kind, "locked": True}
        mark |= {"grade": False, "solution": False, "task": False} | marks.get(id, {})
        yield kind, id, source, {"nbgrader": mark}
