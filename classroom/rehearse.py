"""A rehearsal: made-up submissions, hostile ones among them, graded twice and compared."""

import itertools
import random
import tempfile
import time
from pathlib import Path

from . import assignment as assignments
from . import tasks
from .grader import grade, hostile, schedule
from .grader.judge import Assignment
from .grader.marks import settle
from .grader.points import points_csv
from .grader.roster import join

_SETUP = "import numpy as np"


def notebook(*sources):
    """The bytes of a notebook with these code cells."""
    return assignments.notebook(
        ("code", f"cell-{k}", source, {}) for k, source in enumerate(sources)
    ).encode()


def honest(drawn, *after, before=()):
    """Every task solved, between other cells."""
    return notebook(_SETUP, *before, *(task.solution for task in drawn), *after)


def partly(drawn, rng):
    """At least one task solved and one not written; the others solved, wrong or not written."""
    kinds = ["solved", "stub", *(rng.choice(["solved", "wrong", "stub"]) for _ in drawn[2:])]
    rng.shuffle(kinds)
    return notebook(
        _SETUP,
        *(
            {"solved": task.solution, "stub": task.stub}.get(kind) or _mistaken(task, rng)
            for task, kind in zip(drawn, kinds)
        ),
    )


def wrong(drawn, rng):
    """Every task with one of its known mistakes."""
    return notebook(_SETUP, *(_mistaken(task, rng) for task in drawn))


def _mistaken(task, rng):
    return task.mistaken(rng.choice(task.mistakes))


def hostile_cells(drawn, name, secrets=(), port=9):
    """A submission of this kind of ``hostile.CELLS``: the harm first, then right answers."""
    names = f"SECRETS = {tuple(map(str, secrets))!r}\nPORT = {port}\n"
    names += f"NAMES = {[task.name for task in drawn]!r}"
    return honest(drawn, before=(names, hostile.FIRST, hostile.CELLS[name]))


def hostile_kinds(drawn, secrets=(), port=9):
    """(name, function (path) that writes it, state, "all", "none" or "some") of each kind."""

    def write(data):
        return lambda path: path.write_bytes(data)

    for name in hostile.CELLS:
        state, counts = hostile.ENDS.get(name, "graded"), name not in hostile.ENDS
        harm = write(hostile_cells(drawn, name, secrets, port))
        yield name, harm, state, "all" if counts else "none"
    for name, (body, state) in hostile.ONE.items():
        yield name, write(honest(drawn, f"def {drawn[0].name}(*args):\n    {body}")), state, "some"
    for name, source in hostile.ANSWERS.items():
        answers = (f"{task.name} = answer" for task in drawn)
        yield name, write(notebook(source, *answers)), "graded", "none"
    for name, make in hostile.FILES.items():
        yield name, make, "not a notebook", "none"
    names = "\n\n".join(f"def {task.name}(*args):\n    return None" for task in drawn)
    yield "two functions of one name", write(honest(drawn, names)), "graded", "none"


def _write_all(folder, drawn, students, hostile_share):
    """Write the submissions; student -> (state, "all", "some", "less" or "none") expected."""
    rng, expected = random.Random(1), {}
    number = round(students * hostile_share)
    kinds = itertools.cycle(hostile_kinds(drawn))
    for k, (name, write, state, points) in zip(range(number), kinds):
        student = f"hostile-{k:03}-{name.replace(' ', '-')}"
        write(folder / f"{student}.ipynb")
        expected[student] = state, points
    for k in range(students - number):
        data, points = (
            lambda: (honest(drawn), "all"),
            lambda: (partly(drawn, rng), "some"),
            lambda: (wrong(drawn, rng), "less"),
        )[k % 3]()
        # No two alike: otherwise one would be graded for many.
        data = data.replace(b"import numpy as np", f"import numpy as np  # {k}".encode(), 1)
        (folder / f"student-{k:03}.ipynb").write_bytes(data)
        expected[f"student-{k:03}"] = "graded", points
    return expected


def surprises(graded, expected):
    """Sentences, one for each result that is not as expected; also for one that is missing."""
    results, found = dict(graded), []
    for student in sorted(expected.keys() | results.keys()):
        if student not in results or student not in expected:
            found.append(f"{student}: {'not expected' if student in results else 'lost'}")
            continue
        result, (state, points) = results[student], expected[student]
        total, of = (sum(task[key] for task in result["tasks"]) for key in ("points", "of"))
        fits = {"all": total == of, "some": 0 < total < of, "less": total < of, "none": total == 0}
        if result["state"] != state or not fits[points]:
            found.append(
                f"{student}: {result['state']} ({result['note']}) with {total:g} of {of:g} points;"
                f" expected {state}, {points}"
            )
        if "LEAK" in result["output"]:
            lines = [line for line in result["output"].splitlines() if "LEAK" in line]
            found.append(f"{student}: {'; '.join(lines[:5])}")
    return found


def run(students=200, hostile=0.1, jobs=None, turns=2, chapters=(1, 3, 4)):
    """0 if none is lost, all are as expected, and the points are the same each turn."""
    drawn = tasks.draw(chapters, 1)
    assignment = Assignment(drawn, 1, "rehearsal")
    if not grade.has_sandbox():
        return 2
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "submissions")
        folder.mkdir()
        expected = _write_all(folder, drawn, students, hostile)
        texts, found = [], []
        for turn in range(1, turns + 1):
            start = time.monotonic()
            out = Path(place, f"out{turn}")
            graded = schedule.grade(folder, assignment, out, jobs, report=grade.progress)
            took = f"graded in {time.monotonic() - start:.1f} s"
            print(f"turn {turn}: {len(graded)} of {students} submissions {took}", flush=True)
            texts.append(points_csv(settle(graded, join(dict(graded))), assignment))
            found += surprises(graded, expected)
    if len(set(texts)) > 1:
        found.append("the points of the turns differ")
    same = ", the same points each time" if turns > 1 else ""
    print("\n".join(found) or f"none lost, each as expected{same}")
    return 1 if found else 0
