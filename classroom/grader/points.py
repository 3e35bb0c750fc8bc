"""The points as CSV: of your own, and in the columns that Moodle and Canvas import.

What they take was read in their source: Moodle's
``mod/assign/feedback/offline/importgradeslib.php`` (it refuses a worksheet without Identifier,
Grade and Last modified (grade), and wants commas), and ``lib/gradebook_importer.rb`` of Canvas
(first columns in the order of ``_CANVAS``; an assignment is known by the number after its title).
"""

import re

from .text import cell, csv_text

_MOODLE = {"identifier", "grade", "last modified (grade)"}
#: Columns in front of the assignments, in Canvas' order; with names in one column or, as a course
#: may choose, in two.
_CANVAS = (
    *("student", "lastname", "firstname", "id", "sis user id", "sis login id"),
    *("integration id", "root account", "section"),
)


def points_csv(marks, assignment, late=False, names=None):
    """The points as text, a row a student: name if ``names`` (id -> name) are known, each task's
    points, days late if asked for, total, state; and comments, if there are any.
    """
    remarks = any(mark.result["remarks"] for mark in marks)
    columns = {"student": lambda mark: cell(mark.student)}
    if names:
        columns["name"] = lambda mark: cell(names.get(mark.student, ""))
    for number, task in enumerate(assignment.tasks):
        columns[task.id] = lambda mark, k=number: f"{mark.result['tasks'][k]['points']:g}"
    if late:
        columns["days late"] = lambda mark: mark.days
    columns |= {"total": lambda mark: f"{mark.total:g}", "state": lambda m: m.result["state"]}
    if remarks:
        columns["comment"] = lambda mark: cell(" ".join(mark.result["remarks"]))
    return csv_text([[*columns], *([of(mark) for of in columns.values()] for mark in marks)])


def looks_csv(look):
    """What needs a look, (student, entry, sentence) of each, as text."""
    return csv_text([["student", "handed in", "why"], *(map(cell, one) for one in look)])


#: Files that :func:`for_import` names.
FOR_IMPORT = "moodle.csv", "canvas.csv", "gradebook.csv"


def for_import(marks, roster, title):
    """(name of a file, its text): the roster with the points of those who handed in, as its system
    takes it back.

    Moodle's grading worksheet and Canvas' gradebook keep their columns; any other roster becomes a
    CSV for Moodle's gradebook, with a column of the assignment's ``title``.
    """
    by_id = {mark.student: mark for mark in marks}
    names = {column.strip().casefold(): column for column in roster.columns}
    if _MOODLE.issubset(names):
        return "moodle.csv", _worksheet(roster, by_id, names)
    if {"id", "section"}.issubset(names) and not {"student", "lastname"}.isdisjoint(names):
        return "canvas.csv", _gradebook(roster, by_id, names, title)
    points = [
        [*(student.row[column] for column in roster.columns), _total(by_id.get(student.id))]
        for student in roster.students
    ]
    return "gradebook.csv", csv_text([[*roster.columns, title], *points])


def _total(mark):
    return f"{mark.total:g}" if mark else ""


def _worksheet(roster, by_id, names):
    rows = [roster.columns]
    for student in roster.students:
        mark = by_id.get(student.id)
        row = dict(student.row)
        if mark:
            row[names["grade"]] = _total(mark)
            if "feedback comments" in names and mark.result["remarks"]:
                row[names["feedback comments"]] = " ".join(mark.result["remarks"])
        rows.append([row[column] for column in roster.columns])
    return csv_text(rows)


def _gradebook(roster, by_id, names, title):
    """Canvas makes an assignment it lacks. Who handed in nothing keeps what was there."""
    kept = [names[name] for name in _CANVAS if name in names]
    known = (c for c in roster.columns if re.sub(r" \(\d+\)$", "", c).strip() == title)
    column = next(known, title)
    tasks = [mark.result["tasks"] for mark in by_id.values()]
    possible = sum(task["of"] for task in tasks[0]) if tasks else 0
    rows = [[*kept, column], ["    Points Possible", *[""] * (len(kept) - 1), f"{possible:g}"]]
    for student in roster.students:
        total = _total(by_id.get(student.id)) or student.row.get(column, "")
        rows.append([*(student.row[c] for c in kept), total])
    return csv_text(rows)
