"""Pages on a whole class, as HTML without script: an index of feedback, and statistics."""

import html
import statistics

from .feedback import file_name, page

_BARS = 10
_BAR = 20  # rem


def index(marks, assignment, names):
    """A table of all students, with links to their pages. ``names``: dict, id -> name."""
    ids = [task.id for task in assignment.tasks]
    rows = []
    for mark in marks:
        name = f"{file_name(mark.student)}.html"
        rows.append(
            [
                _link(f"feedback/{name}", names.get(mark.student, mark.student)),
                *(f"{task['points']:g}" for task in mark.result["tasks"]),
                str(mark.days or ""),
                f"{mark.total:g}",
                html.escape(mark.result["state"]),
                _link(f"instructor/{name}", "details"),
            ]
        )
    table = _table(["student", *ids, "days late", "total", "state", "for you"], rows)
    about = "For the instructor. " + _link("statistics.html", "Statistics")
    return page("Feedback", ["<h1>Feedback</h1>", f"<p>{about}</p>", table])


def class_statistics(marks, assignment):
    """Of all points and of each task mean, median and a histogram; how many passed each check."""
    parts = ["<h1>Statistics</h1>", f"<p>{len(marks)} students. For the instructor.</p>"]
    of = sum(task.points for task in assignment.tasks)
    parts += _on("Total", [mark.total for mark in marks], of)
    for number, task in enumerate(assignment.tasks):
        results = [mark.result["tasks"][number] for mark in marks]
        parts += _on(task.id, [result["points"] for result in results], task.points)
        passed = {}
        for title, message in (check for result in results for check in result["checks"]):
            passed.setdefault(title, []).append(message is None)
        if len(passed) <= 2 * len(task.checks):  # with a variant for each student titles may differ
            rows = [[html.escape(t), f"{sum(all)} of {len(all)}"] for t, all in passed.items()]
            parts.append(_table(["check", "passed"], rows))
    return page("Statistics", parts)


def _on(title, points, of):
    if not points:
        return []
    full, none = sum(number >= of for number in points), sum(number == 0 for number in points)
    counts = [0] * _BARS
    for number in points:
        counts[min(_BARS - 1, max(0, int(number / of * _BARS)))] += 1
    bars = [
        [f"{of * k / _BARS:g} to {of * (k + 1) / _BARS:g}", _bar(count, max(counts)), str(count)]
        for k, count in enumerate(counts)
    ]
    said = (
        f"Of {of:g} points: mean {statistics.fmean(points):.2f}, median"
        f" {statistics.median(points):g}, {full} with all, {none} with none."
    )
    table = _table(["points", "students", ""], bars)
    return [f"<h2>{html.escape(title)}</h2>", f"<p>{said}</p>", table]


def _bar(count, most):
    style = f"background:#3a6ea5;height:1rem;width:{_BAR * count / most:.2f}rem"
    return f'<div style="{style}" title="{count}"></div>'


def _link(target, text):
    return f'<a href="{html.escape(target)}">{html.escape(text)}</a>'


def _table(head, rows):
    """A table; its cells are HTML."""
    names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    return f"<table><tr>{names}</tr>\n{body}</table>"
