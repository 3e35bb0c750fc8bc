"""What whoever marks decides: other points, comments and days late, in one file that grading reads
and never changes.

CSV with the columns of ``COLUMNS``, a row a decision. ``task`` is a task's id, ``days late``, or
empty where there is a comment only.
"""

import math
import unicodedata
from typing import NamedTuple

from .roster import whose
from .text import read_csv

COLUMNS = "student", "task", "points", "comment"
FILE, DAYS = "overrides.csv", "days late"


class Override(NamedTuple):
    """points : task's id -> points.  comments : for the student.  days : late, or None."""

    points: dict
    comments: list
    days: int | None


NONE = Override({}, [], None)


def read(path, ids, roster=None, joined=None):
    """Overrides by student's id, of a file; one with the columns alone is made where there is none.

    ids : of tasks.  roster : by which a row may name a student in other ways than by id.
    joined : as for :func:`.roster.whose`.
    """
    if not path.exists():
        path.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
        return {}
    found = {}
    columns, rows = read_csv(path, "overrides")
    if set(COLUMNS) - set(columns):
        raise ValueError(
            f"overrides: {path}: found columns {', '.join(columns)}, expected {', '.join(COLUMNS)}"
        )
    for line, row in rows:
        row = {column: row[column].strip() for column in COLUMNS}
        if any(row.values()):
            _take(found, row, ids, f"overrides: {path}, line {line}", roster, joined)
    return found


def _take(found, row, ids, where, roster, joined):
    student, task, text, comment = (row[column] for column in COLUMNS)
    if not student:
        raise ValueError(f"{where}: no student")
    if task and task != DAYS and task not in ids:
        raise ValueError(
            f"{where}: found the task {task!r}, expected {', '.join(ids)}, {DAYS!r} or nothing"
        )
    student = whose(unicodedata.normalize("NFC", student), roster, joined)
    points, comments, days = found.get(student, NONE)
    if text:
        number = _number(task, text, where)
        before = days if task == DAYS else points.get(task)
        if before not in (None, number):
            raise ValueError(
                f"{where}: found {number:g} of {student} for {task}, and {before:g} in a line"
                " above, expected one of the two"
            )
        points, days = (points, int(number)) if task == DAYS else (points | {task: number}, days)
    found[student] = Override(points, comments + [comment] * bool(comment), days)


def _number(task, text, where):
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not task or not math.isfinite(number) or number < 0 or (task == DAYS and number % 1):
        raise ValueError(
            f"{where}: found the points {text!r} for {task or 'no task'}, expected a number from 0"
            " on, and the id of a task"
        )
    return number
