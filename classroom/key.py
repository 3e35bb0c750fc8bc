"""The private assignment.json: what it keeps, and the tasks drawn again from it."""

import hashlib
import json
import platform
import secrets
from pathlib import Path

import numpy as np

import lnlib
from lnbook import exercises
from normcheck import mistakes

from .grader.judge import Assignment
from .tasks import draw, own

#: What judges; a change of it grades again.
CODE = Path(__file__).parent, Path(exercises.__file__).parent, Path(mistakes.__file__).parent
_FORMAT = 2
#: Beside assignment.json: the tasks of your own, and the roster of variants for each student.
OWN, ROSTER = "tasks", "roster.csv"


def fingerprint(task):
    """16 hexadecimal digits of a task's text, solution and names of checks."""
    text = "\n".join([task.text, task.solution, *(check.title for check in task.checks)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sheet_print(tasks):
    """The same of all tasks of a student."""
    return hashlib.sha256("".join(map(fingerprint, tasks)).encode()).hexdigest()[:16]


def for_student(seed, student):
    """What draws the variants of one student: whoever lacks the seed cannot tell it."""
    return f"{seed}/{student}"


def text(title, name, seed, chapters, ids, tasks, prints=None):
    """The text of assignment.json; ``prints`` are of variants for each student."""
    about = [(task, fingerprint(task)) for task in tasks]
    kept = "id", "name", "points", "minutes"
    key = {
        "format": _FORMAT,
        "title": title,
        "name": name,
        "seed": seed,
        "chapters": sorted(set(chapters)),
        "own": ids,
        "tasks": [{k: getattr(t, k) for k in kept} | {"fingerprint": p} for t, p in about],
        "versions": {"python": platform.python_version()}
        | {"numpy": np.__version__, "lnlib": lnlib.__version__},
    }
    if prints is not None:
        key["students"] = prints
    return json.dumps(key, indent=1, ensure_ascii=False) + "\n"


def load(path):
    """The :class:`classroom.grader.judge.Assignment` of an assignment.json, with a new seed of 128
    bits for the inputs of its checks; ValueError where ``path`` is none, or of another version.
    """
    path = Path(path)
    data = path.read_bytes()
    try:
        key = json.loads(data)
        seed, chapters, ids = int(key["seed"]), tuple(map(int, key["chapters"])), key["own"]
        prints, title = [task["fingerprint"] for task in key["tasks"]], str(key["title"])
        students = key.get("students")
        first = None if students is None else next(iter(students))
        made_with = key["versions"]["lnlib"]
    except (ValueError, TypeError, KeyError, StopIteration) as error:
        raise ValueError(
            f"assignment: found {path}, expected an assignment.json of this kit "
            f"({type(error).__name__}: {error})"
        ) from None
    folders = (*CODE, path.parent / OWN) if ids else CODE

    def drawn(student):
        try:
            return draw(chapters, seed if student is None else for_student(seed, student), ids)
        except Exception as error:  # one that looks like a student's absence, too
            raise ValueError(
                f"assignment: the tasks of {path} cannot be drawn again ({type(error).__name__}:"
                f" {error})"
            ) from error

    def variants(student):
        expected, found = students[student], drawn(student)
        if sheet_print(found) != expected:
            raise ValueError(
                "assignment: written by another version of this repository, which draws other tasks"
            )
        return found

    if ids:
        own.load(path.parent / OWN)
    tasks = drawn(first)
    if prints != [fingerprint(task) for task in tasks]:
        raise ValueError(
            f"assignment: {path} was written by another version of this repository, which draws"
            f" other tasks; use that one: lnlib {made_with}"
        )
    code = hashlib.sha256()
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        code.update(f"{file.name}\n".encode() + file.read_bytes())
    judged_by = code.hexdigest() + hashlib.sha256(data).hexdigest()
    return Assignment(
        tasks, secrets.randbits(128), judged_by, title, variants if students else None
    )


def roster(path):
    """Path of the roster beside assignment.json, if every student has a variant; else None."""
    found = Path(path).parent / ROSTER
    return found if found.exists() else None
