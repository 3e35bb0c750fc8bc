"""The points as CSV."""

import csv
import io

from .text import cell


def points_csv(graded, assignment):
    """The points as text: student, a column for each task, total, state."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["student", *(task.id for task in assignment.tasks), "total", "state"])
    for student, result in graded:
        points = [task["points"] for task in result["tasks"]]
        writer.writerow([cell(student), *(f"{number:g}" for number in (*points, sum(points))), result["state"]])
    return text.getvalue()
