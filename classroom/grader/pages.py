"""Pages on a whole class, as HTML without script: an index of feedback, and statistics."""

import html
import statistics

from .feedback import file_name, page

_BARS = 10
_BAR = 20  # rem


def index(marks, assignment, names):
    """A table of all students, with links to their pages. ``names``: dict, id -> name."""
    head = [
        "student",
        *(task.id for task in assignment.tasks),
        "days late",
        "total",
        "state",
        "for you",
    ]
    rows = []
    for mark in marks:
        name = f"{file_name(mark.student)}.html"
        points = [f"{task['points']:g}" for task in mark.result["tasks"]]
        rows.append(
            [
                _link(f"feedback/{name}", names.get(mark.student, mark.student)),
                *points,
                str(mark.days or ""),
                f"{mark.total:g}",
                html.escape(mark.result["state"]),
                _link(f"instructor/{name}", "details"),
            ]
        )
    return page(
        "Feedback",
        [
            "<h1>Feedback</h1>",
            _p("For the instructor. " + _link("statistics.html", "Statistics")),
            _table(head, rows),
        ],
    )


def class_statistics(marks, assignment):
    """Of all points and of each task: mean, median, who has all and who has none, a histogram; and
    of each check, how many passed it.
    """
    parts = ["<h1>Statistics</h1>", _p(f"{len(marks)} students. For the instructor.")]
    of = sum(task.points for task in assignment.tasks)
    parts += _on("Total", [mark.total for mark in marks], of)
    for number, task in enumerate(assignment.tasks):
        results = [mark.result["tasks"][number] for mark in marks]
        parts += _on(task.id, [result["points"] for result in results], task.points)
        passed = {}
        for result in results:
            for title, message in result["checks"]:
                passed.setdefault(title, []).append(message is None)
        if len(passed) <= 2 * len(task.checks):  # with a variant for each student titles may differ
            parts.append(
                _table(
                    ["check", "passed"],
                    [
                        [html.escape(title), f"{sum(found)} of {len(found)}"]
                        for title, found in passed.items()
                    ],
                )
            )
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
    return [
        f"<h2>{html.escape(title)}</h2>",
        _p(
            f"Of {of:g} points: mean {statistics.fmean(points):.2f}, median"
            f" {statistics.median(points):g}, {full} with all, {none} with none."
        ),
        _table(["points", "students", ""], bars),
    ]


def _bar(count, most):
    return (
        f'<div style="background:#3a6ea5;height:1rem;width:{_BAR * count / most:.2f}rem"'
        f' title="{count}"></div>'
    )


def _p(text):
    return f"<p>{text}</p>"


def _link(target, text):
    return f'<a href="{html.escape(target)}">{html.escape(text)}</a>'


def _table(head, rows):
    """A table; its cells are HTML."""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    return f"<table><tr>{''.join(f'<th>{html.escape(name)}</th>' for name in head)}</tr>\n{body}</table>"  # noqa: E501
