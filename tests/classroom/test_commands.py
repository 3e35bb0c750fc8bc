"""Command lines that are not what somebody meant: each is refused in a sentence, and leaves nothing
behind.
"""

import json
import re
import sys

import pytest

from classroom import __main__, assignment, rehearse, spread
from classroom.grader import grade, schedule

KEY = "hw/instructor/assignment.json"
GRADE = f"grade in --assignment {KEY} --out graded"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A place with an assignment, two submissions, an empty folder and files of the wrong kinds."""
    place = tmp_path_factory.mktemp("place")
    assignment.write((1,), place / "hw", seed=8)
    for folder in ("in", "empty"):
        (place / folder).mkdir()
    for name in "ann", "ben":
        (place / f"in/{name}.ipynb").write_bytes(rehearse.notebook(name))
    (place / "one").mkdir()
    (place / "one/ann.ipynb").write_text("{")
    for name, content in {
        "file": b"x",
        "latin.csv": b"Name\nJos\xe9\n",
        "rest.csv": b'Name\n"Ann\nBen\n',
        "cells.csv": b"Name,ID\nLee, Ann,1\n",
        "long.csv": b"Name\n" + b"a" * 200000,
        "exits.py": b"raise SystemExit(0)\n",
    }.items():
        (place / name).write_bytes(content)
    (place / "exits").mkdir()
    (place / "exits.py").rename(place / "exits/exits.py")
    whole = json.loads((place / KEY).read_text())
    for name, change in {
        "nobody": {"students": {}},
        "seed": {"seed": "x"},
        "title": {"title": 7},
        "versions": {"versions": 7},
        "chapters": {"chapters": [99]},
        "own": {"own": 7},
    }.items():
        (place / f"{name}.json").write_text(json.dumps(whole | change))
    return place


@pytest.fixture
def place(made, monkeypatch):
    monkeypatch.chdir(made)
    monkeypatch.setattr(grade, "has_sandbox", lambda: True)
    monkeypatch.setattr(grade, "run_here", lambda jobs, end, *rest: [end(job.path) for job in jobs])
    return made


def tree(place):
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else None
        for path in place.rglob("*")
    }


NEW = "assignment --chapters 1 --out new"
REFUSED = [
    *(
        (
            f"assignment --out new --chapters {chapters}",
            f"chapters: found '{chapters}', expected numbers of chapters",
        )
        for chapters in ("1,x", ",", "3-5")
    ),
    ("assignment --out new --chapters 99", "chapters: found 99, expected some of 1, 2, 3"),
    ("assignment --out new", "chapters: found none, expected some of"),
    *(
        (f"{NEW} --seed {seed}", f"seed: found '{seed}', expected a whole number")
        for seed in ("x", "1e5", "0.5")
    ),
    ("assignment --chapters 1 --out ", "out: found '', expected a path"),
    (
        "assignment --chapters 1 --out file",
        "out: found file, which is there and not empty; expected a new folder",
    ),
    (
        "assignment --chapters 1 --out file/new",
        "out: found file/new.*(Not a directory), expected a place that can be",
    ),
    ("assignment --chapters 1 --out hw", "out: found hw, which is there and not empty"),
    *(
        (
            f"{NEW} --tasks {what}",
            f"tasks: found {what}, expected a folder with a Python file for each task",
        )
        for what in ("nowhere", "file", "empty")
    ),
    (f"{NEW} --tasks exits", "tasks: exits/exits.py raised SystemExit"),
    (
        f"{NEW} --per-student nowhere",
        "per-student: found nowhere (No such file or directory), expected a CSV file",
    ),
    (
        f"{NEW} --per-student empty",
        "per-student: found empty (Is a directory), expected a CSV file of the class",
    ),
    (f"{NEW} --per-student latin.csv", "roster: latin.csv is not UTF-8"),
    (f"{NEW} --per-student rest.csv", "roster: found rest.csv, after line .*; expected CSV"),
    (
        f"{NEW} --per-student long.csv",
        "roster: found long.csv, after line .* field limit .*; expected CSV",
    ),
    (
        f"{NEW} --per-student cells.csv",
        "roster: found cells.csv, line 2, with more cells .* expected 2",
    ),
    (
        f"grade nowhere --assignment {KEY} --out new",
        "submissions: found nowhere, expected a folder",
    ),
    (f"grade file --assignment {KEY} --out new", "submissions: found file, expected a folder"),
    (
        f"grade empty --assignment {KEY} --out new",
        "submissions: found 0 in empty, expected 1 or more",
    ),
    (
        f"merge empty --assignment {KEY} --out new/1",
        "submissions: found 0 in empty, expected 1 or more",
    ),
    (
        "grade in --assignment nowhere --out new",
        "assignment: found nowhere (No such file or directory), expected the",
    ),
    (
        "grade in --assignment hw --out new",
        "assignment: found hw (Is a directory), expected the private",
    ),
    *(
        (f"grade in --assignment {name} --out new", f"assignment: found {name}, .*{says}")
        for name, says in (
            ("file", "expected an assignment.json"),
            ("nobody.json", "whose students are none"),
            ("seed.json", "expected"),
            ("title.json", "expected an"),
            ("versions.json", "expected an"),
            ("own.json", "expected an"),
        )
    ),
    (
        "grade in --assignment chapters.json --out new",
        "assignment: the tasks of chapters.json cannot be .*found 99",
    ),
    (
        f"grade in --assignment {KEY} --out file",
        "out: found file (File exists), expected a place that can",
    ),
    (
        f"grade in --assignment {KEY} --out file/x",
        "out: found file/x (Not a directory), expected a place",
    ),
    (
        f"grade in --assignment {KEY} --out in/x",
        "out: found a folder inside the submissions, expected another place",
    ),
    *(
        (f"{GRADE} --{name} {number}", f"{name}: found '{number}', expected a whole number from 1")
        for name in ("wall", "call", "jobs")
        for number in (0, -1, "x", 1.5)
    ),
    *(
        (f"{GRADE} --{name} 86401", "found '86401', expected .* from 1 to 86400")
        for name in ("wall", "call")
    ),
    *(
        (f"{GRADE} --shard {shard}", f"shard: found '{shard}', expected I/N")
        for shard in ("0/2", "3/2", "x", "1/2/3")
    ),
    *(
        (f"{GRADE} --deadline {time}", f"deadline: found '{time}', expected a time such as")
        for time in ("never", "0001-01-01", "2026-13-01")
    ),
    (f"{GRADE} --deadline ", "deadline: found '', expected a time such as"),
    (f"{GRADE} --dask ", "dask: found '', expected an address such as"),
    (f"{GRADE} --late ", "late: a rule for being late needs --deadline"),
    (f"{GRADE} --late 10%", "late: a rule for being late needs --deadline"),
    (f"{GRADE} --deadline 2026-11-20 --late much", "late: found 'much', expected a rule such as"),
    (
        f"{GRADE} --roster nowhere",
        "roster: found nowhere (No such .*), expected a CSV file of the class",
    ),
    (f"{GRADE} --roster rest.csv", "roster: found rest.csv"),
    (
        f"merge in --assignment {KEY} --out new/1 --from nowhere",
        "shards: found nowhere, expected a folder that",
    ),
    (
        "similar nowhere --handed-out hw/students",
        "submissions: found nowhere (No such .*), expected a folder of",
    ),
    (
        "similar file --handed-out hw/students",
        "submissions: found file (Not a directory), expected a folder of",
    ),
    *(
        (
            f"similar {name} --handed-out hw/students",
            f"submissions: found .* in {name}.*, expected 2 or more",
        )
        for name in ("empty", "one")
    ),
    *(
        (
            f"similar in --handed-out {name}",
            f"handed-out: found no notebook in {name}, expected the one",
        )
        for name in ("nowhere", "file", "empty")
    ),
    *(
        (
            f"similar in --handed-out hw/students --threshold {share}",
            f"threshold: found '{share}', expected a share from",
        )
        for share in ("nan", "2", "x")
    ),
    (
        "similar in --handed-out hw/students --out empty",
        "out: found empty (Is a directory), expected a place",
    ),
    (
        "similar in --handed-out hw/students --out new/x",
        "out: found new/x (No such .*), expected a place that can be",
    ),
    ("guess nowhere", "notebooks: found nowhere (No such file or directory), expected notebooks"),
    *(
        (f"guess {name}", f"notebooks: found {name}, which has none of our tasks")
        for name in ("file", "in/ann.ipynb")
    ),
    *(
        (
            f"guess hw/students/assignment.ipynb --draws {number}",
            f"draws: found '{number}', expected a whole number",
        )
        for number in (0, -5, "x")
    ),
    *(
        (
            f"rehearse --{name} {number}",
            f"{name}: found '{number}', expected a whole number from 1 on",
        )
        for name in ("students", "turns", "jobs")
        for number in (0, -1)
    ),
    *(
        (f"rehearse --hostile {share}", f"hostile: found '{share}', expected a share")
        for share in ("nan", 2)
    ),
]


@pytest.mark.parametrize("line, says", REFUSED, ids=[line for line, _ in REFUSED])
def test_a_slip_is_named_with_what_was_found_and_expected(line, says, place, capsys):
    before, words = tree(place), line.split(" ")
    try:
        code = __main__.main(words)
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    assert code == 2 and not said.out, (said.out, said.err)
    pattern = ".*".join(map(re.escape, says.split(".*")))
    assert re.search(pattern, said.err), said.err
    after = tree(place)
    for name in {
        name for name in {*after} - {*before} if "__pycache__" not in name
    }:  # the folder of results is made, and kept for one grader, before it is read
        assert name.split("/")[0] == "graded" and not name.endswith((".csv", ".html", ".ipynb")), (
            name
        )
    assert {name: after[name] for name in before} == before


def test_nothing_in_a_folder_of_results_is_passed_over_or_lost(place, monkeypatch, capsys):
    """Files that are broken are named, and mended by hand; a result that is broken is judged
    again.
    """

    def graded():
        return __main__.main([*GRADE.split()[:-1], "results-here"]), capsys.readouterr().err

    judged = []
    monkeypatch.setattr(
        grade,
        "run_here",
        lambda jobs, end, *rest: [
            (
                judged.append(job.student),
                schedule.write(job.path, json.dumps(RESULT)),
                end(job.path),
            )
            for job in jobs
        ],
    )
    out, task = place / "results-here", "ch01-norm-forward"
    assert graded()[0] == 0 and sorted(judged) == ["ann", "ben"]
    assert graded()[0] == 0 and len(judged) == 2
    for broken in (b"", b'{"state', b"[]", b"{}", b"\xff", b"7"):
        next((out / "results").iterdir()).write_bytes(broken)
        assert graded()[0] == 0 and len(judged) == 3, broken
        judged.pop()
    for name, content, says in (
        (
            "overrides.csv",
            "student,task\n",
            "overrides: .*found columns student, task, expected student",
        ),
        (
            "overrides.csv",
            f"student,task,points,comment\nann,{task},1,a, b\n",
            "overrides: .*line 2, with more",
        ),
        (
            "overrides.csv",
            f'student,task,points,comment\nann,{task},1,"a\nben,,,\n',
            "overrides: .*expected CSV",
        ),
        ("overrides.csv", "\udcff", "overrides: .*is not UTF-8"),
        ("matches.csv", "\udcff", "matches: .*is not UTF-8"),
        ("matches.csv", "a,b\n1,2\n", "matches: .*found columns a, b, expected student, asked for"),
        (
            "overrides.csv",
            f"student,task,points,comment\nann,{task},1,\nben,{task},2,\nann,{task},2,a\n",
            f"overrides: .*line 4: found 2 of ann for {task}, and 1 in a line above, expected one",
        ),
        (
            "overrides.csv",
            "student,task,points,comment\nann,days late,1,\nann,days late,0,\n",
            "line 3: found 0 of ann",
        ),
        (
            "matches.csv",
            "student,asked for,found,agreed\nann,f,g,\nben,f,g,ja\n",
            "matches: .*line 3: found 'ja' under agreed, expected yes, no or nothing",
        ),
        ("inputs", "nonsense", "out: found .*inputs, which holds no seed of a grading; remove it"),
    ):
        kept = (out / name).read_bytes() if (out / name).exists() else None
        (out / name).write_bytes(content.encode(errors="surrogateescape"))
        code, said = graded()
        assert code == 2 and re.search(says, said), (name, said)
        (out / name).unlink()
        if kept is not None:
            (out / name).write_bytes(kept)
    assert graded()[0] == 0 and len(judged) == 2


RESULT = {
    "state": "graded",
    "note": None,
    "cells": 0,
    "errors": [],
    "twice": [],
    "missing": [],
    "taken": {},
    "proposed": {},
    "output": "",
    "printed": 0,
    "public": {"note": None, "output": "", "printed": 0},
    "tasks": [
        {
            "id": "ch01-norm-forward",
            "of": 4,
            "points": 4,
            "example": None,
            "checks": [],
            "diagnosis": None,
        }
    ],
}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_half_an_assignment_is_not_left_behind(error, place, monkeypatch, capsys):
    def copy(*args):
        raise error

    (place / "roster.csv").write_text("Name\nAnn\n")
    monkeypatch.setattr(assignment.shutil, "copy", copy)
    code = __main__.main(f"{NEW} --per-student roster.csv".split())
    assert code == (130 if error is KeyboardInterrupt else 2) and not (place / "new").exists()
    assert ("stopped" if code == 130 else "No space left") in capsys.readouterr().err


def test_a_task_of_your_own_that_cannot_be_drawn_for_somebody_is_said(place, monkeypatch, capsys):
    monkeypatch.setattr(assignment, "draw", lambda *args: 1 / 0)
    assert __main__.main(NEW.split()) == 2 and not (place / "new").exists()
    assert (
        "tasks: one of them cannot be drawn (ZeroDivisionError: division by zero)"
        in capsys.readouterr().err
    )


def test_a_long_title_and_one_of_two_lines(tmp_path):
    out = assignment.write((1,), tmp_path / "a", title="A\nvery " + "long " * 60)
    (notebook,) = (out / "students").iterdir()
    assert notebook.name.startswith("a-very-long-") and len(notebook.name) <= 86
    assert json.loads(notebook.read_text())["cells"][0]["source"][0].startswith(
        "# A very long long"
    )


def test_nothing_is_rehearsed_no_turns_at_all():
    for options in {"turns": 0}, {"students": 0}:
        with pytest.raises(ValueError, match=f"{[*options][0]}: found 0, expected 1 or more"):
            rehearse.run(**options)


def test_a_scheduler_that_is_not_there_is_named(monkeypatch, place):
    def client(address):
        raise OSError("Timed out")

    monkeypatch.setitem(sys.modules, "dask", object())
    monkeypatch.setitem(sys.modules, "dask.distributed", type("D", (), {"Client": client}))
    with pytest.raises(
        ValueError,
        match=r"dask: found no scheduler at tcp://x:1 \(Timed out\), expected one such as",
    ):
        spread.by_dask("tcp://x:1", KEY)(None)
