"""What a student gets: the best of their submissions, with overrides, less what lateness costs."""

from typing import NamedTuple

from .overrides import NONE


class Mark(NamedTuple):
    """entry : the submission that counts.  result : its own, with the points that count, the
    ``total`` and, as ``remarks``, sentences for the student.  total : less what lateness costs.
    days : late.  told : sentences for the instructor.
    """

    student: str
    entry: str
    result: dict
    total: float
    days: int
    told: tuple


def settle(graded, joined, overrides=None, late=None, times=None):
    """The :class:`Mark` of each student, in the order of their first submissions.

    graded : (entry, result) pairs.  joined : :class:`.roster.Joined`.  overrides : student ->
    Override.  late : :class:`.late.Late`.  times : entry -> time it was handed in.
    """
    by_student = {}
    for entry, result in graded:
        by_student.setdefault(joined.student[entry], []).append((entry, result))
    found = []
    for student, entries in by_student.items():
        override = (overrides or {}).get(student, NONE)
        when = times or {}
        marks = [_mark(student, *one, override, late, when.get(one[0])) for one in entries]
        best = max(marks, key=lambda mark: mark.total)  # of equals the first
        told = [*best.told]
        if len(marks) > 1:
            others = ", ".join(mark.entry for mark in marks if mark is not best)
            told.append(f"the best of {len(marks)}; the others: {others}")
        if best.entry in joined.late and not best.days:
            told.append("Canvas marks it as late; its time does not, or no deadline is given")
        found.append(best._replace(told=tuple(told)))
    return found


def _mark(student, entry, result, override, late, when):
    tasks, remarks, told = [], [], []
    for task in result["tasks"]:
        if task["id"] in override.points:
            points = override.points[task["id"]]
            given = f"your instructor gives {points:g} points instead of {task['points']:g}."
            remarks.append(f"{task['id']}: {given}")
            told.append(remarks[-1].replace("your instructor gives", "overridden,"))
            if points > task["of"]:
                told.append(f"{task['id']}: more than its {task['of']:g} points.")
            task = task | {"points": points}
        tasks.append(task)
    remarks += override.comments
    total = sum(task["points"] for task in tasks)
    days = override.days if override.days is not None else late.days(when) if late and when else 0
    lost = late.lost(total, days) if late and days else 0
    if lost and override.points:
        told.append(
            "the rule for being late also reduces overridden points; an override that sets days"
            " late to 0 prevents that"
        )
    if days:
        remarks.append(f"{days} day{'s' * (days > 1)} late: {lost:g} of {total:g} points are lost.")
    total = round(total - lost, 2)
    # A copy: equal files share a result.
    result = result | {"tasks": tasks, "remarks": remarks, "total": total}
    return Mark(student, entry, result, total, days, tuple(told))


def needs_a_look(marks, joined, looks, identical=(), overrides=()):
    """(student, entry, sentence) of what somebody should look at.

    looks : function (result) -> sentences.  identical : lists of entries whose files are the same.
    overrides : students who have some.
    """

    def of(entry, why):
        return joined.student[entry], entry, why

    found = [of(mark.entry, why) for mark in marks for why in (*looks(mark.result), *mark.told)]
    found += [of(entry, "nobody in the roster has this name") for entry in joined.unknown]
    found += [
        of(entry, f"the same file as {', '.join(e for e in group if e != entry)}")
        for group in identical
        for entry in group
    ]
    found += [(student, "", "in the roster, and handed in nothing") for student in joined.missing]
    unused = (
        "in the file of overrides, not used: no student who handed in has this name; the first"
        " column of points.csv has those that count"
    )
    found += [(name, "", unused) for name in set(overrides) - {mark.student for mark in marks}]
    return sorted(found, key=lambda one: one[:2])
