"""Tasks of your own: a folder with one Python file a task, and what is tried before one is handed
out.

A file has one subclass of :class:`classroom.tasks.task.Task`, whose id begins with ``own-``;
``classroom/example`` has one to begin with.
"""

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from random import Random

import numpy as np

from lnbook.exercises.run import here, verdict
from normcheck.mistakes.change import function_of

from .task import TASKS

_DRAWS = 5


def load(folder):
    """Ids of the tasks in this folder, which :func:`classroom.tasks.draw` knows from now on."""
    files = sorted(Path(folder).glob("*.py"))
    if not files:
        raise ValueError(
            f"tasks: found {folder}, expected a folder with a Python file for each task"
        )
    return [_load(file) for file in files]


def _load(file):
    name = f"own_task_{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    before = dict(TASKS)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"tasks: {file} raised {_words(error, file)}") from error
    found = [id for id, task in TASKS.items() if task.__module__ == name]
    if len(found) != 1 or not found[0].startswith("own-"):
        TASKS.clear()
        TASKS.update(before)
        names = ", ".join(found) or "(none)"
        raise ValueError(
            f"tasks: {file} has the tasks {names}, expected one, whose id begins with own-"
        )
    return found[0]


def try_out(id):
    """Raise ValueError, which says what is wrong, unless in some draws of a task of your own the
    solution passes every check, neither the stub nor the public example's answer passes one, and
    every mistake fails one.
    """
    file = sys.modules[TASKS[id].__module__].__file__
    for seed in range(_DRAWS):
        try:
            task = TASKS[id](Random(f"{seed}/{id}"))
            problem = next(_problems(task), None)
        except (Exception, SystemExit) as error:
            problem = f"found {_words(error, file)}; expected a task that can be drawn and tried"
        if problem:
            raise ValueError(f"tasks: {file}: {id}, drawn by {seed}: {problem}")


def _words(error, file):
    """What was raised, and in which line of the file."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    where = f", in line {lines[-1]}" if lines else ""
    return f"{type(error).__name__}: {error}{where}"


def _problems(task):
    arguments, shown = task.shown()
    if not isinstance(arguments, tuple):
        yield f"its example: found {task.example}, expected arguments in brackets, with a comma"
    answers = {
        "stub": function_of(task.stub, task.name, {"np": np}),
        "answer to the public example": lambda *args: shown,
    }
    numbers = range(len(task.checks))
    for number, title in enumerate(repr(check.title) for check in task.checks):
        if message := _failed(task, number, task.function()):
            yield f"its solution fails the check {title}: found {message!r}, expected no message"
        for words, answer in answers.items():
            if not _failed(task, number, answer):
                yield f"the {words} passes the check {title}, expected that it fails: see judge"
    for mistake in task.mistakes:
        if not any(_failed(task, number, task.function(mistake)) for number in numbers):
            yield f"no check fails where {mistake.wrong}: expected one that does"


def _failed(task, number, answer):
    """What a check says against an answer, None if nothing."""
    with np.errstate(all="ignore"):
        try:
            return verdict(task.checks[number], np.random.default_rng((7, number)), here(answer))
        except NotImplementedError:
            return "not written"
