"""From results to marks: rosters, overrides, late rules, tables, pages, the zip."""

import csv
import io
import os
import zipfile
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from classroom.grader import archive, feedback, late, overrides, place, points
from classroom.grader import marks as settling
from classroom.grader import roster as rosters

MOODLE = (
    "Identifier,Full name,Email address,Status,Grade,Maximum grade,Last modified (submission),Last"
    ' modified (grade),Feedback comments\nParticipant 101,Ann Smith,ann@x.org,,,10,"Friday, 20'
    ' November 2026, 11:59 PM",-,\nParticipant 102,José Díaz,jose@x.org,,,10,"Sunday, 22 November'
    ' 2026, 9:00 AM",-,"<p>One,\ntwo</p>"\nParticipant 103,Cara Lee,cara@x.org,,,10,-,-,\n'
)
CANVAS = (
    "Student,ID,SIS User ID,SIS Login ID,Section,Homework 1 (77),Final Score\n"
    "    Points Possible,,,,,10,(read only)\n"
    '"Smith, Ann",4001,s1,ann,A,,50\n"Díaz, José",4002,s2,jose,A,,60\n'
)
TASKS = (
    SimpleNamespace(id="a", points=6, title="A", checks=(1, 2)),
    SimpleNamespace(id="b", points=4, title="B", checks=(1,)),
)


def roster(tmp_path, text):
    path = tmp_path / "roster.csv"
    path.write_text(text, encoding="utf-8")
    return rosters.read(path)


def result(*got):
    tasks = [
        {"id": task.id, "of": task.points, "points": n, "checks": [("one", None if n else "wrong")]}
        | {"example": None, "diagnosis": None}
        for task, n in zip(TASKS, got)
    ]
    seen = {"note": None, "output": "", "printed": 0}
    nothing = {"errors": [], "missing": {}, "proposed": {}, "twice": []}
    return {"state": "graded", "tasks": tasks, "public": seen, **nothing, **seen}


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


# ---- Whose it is


def test_a_download_of_moodle(tmp_path):
    names = [
        "Ann Smith_101_assignsubmission_file",
        "Jose\u0301 Di\u0301az_102_assignsubmission_file_hw.ipynb",
        "Ann Smith_101_assignsubmission_onlinetext",
        "Nobody_999_assignsubmission_file",
    ]
    joined = rosters.join(names, roster(tmp_path, MOODLE))
    assert joined.student == {
        names[0]: "Participant 101",
        names[1]: "Participant 102",
        names[3]: "Nobody_999",
    }
    assert list(joined.ignored) == [names[2]] and "onlinetext" in joined.ignored[names[2]]
    assert joined.unknown == [names[3]] and joined.missing == ["Participant 103"]
    alone = rosters.join(names)
    assert alone.student[names[1]] == "José Díaz_102" and not alone.unknown and not alone.missing


@pytest.mark.parametrize(
    "text, whose",
    [
        # By the number first, by the name where the number is nobody's; by no name of a file.
        (
            CANVAS,
            {
                "smithann_4001_900_hw-1.ipynb": "s1",
                "díazjosé_LATE_4002_901_hw.ipynb": "s2",
                "smithann_4009_902_hw.ipynb": "s1",
            },
        ),
        (
            MOODLE,
            {"Ann Smith_101_assignsubmission_file_x_102_assignsubmission_file": "Participant 101"},
        ),
        # Ids that look like Canvas' names.
        ("Student ID\ns_20_1_ann\ns_20_1_ben\n", {"s_20_1_ann": "s_20_1_ann", "hw_1_2": "hw_1_2"}),
        # As people type: a name that two have is nobody's, two ways to write an accent are one.
        (
            "Name;Student ID\nJosé;s1\nAnn Smith;s2\nAnn Smith;s3\n",
            {"Jose\u0301": "s1", "S2": "s2", "ann  smith": "ann  smith", "s3.py": "s3"},
        ),
    ],
    ids=("canvas", "moodle", "ids", "typed"),
)
def test_whose_a_submission_is(tmp_path, text, whose):
    who = roster(tmp_path, text)
    joined = rosters.join(list(whose), who)
    assert joined.student == whose == {name: rosters.whose(name, who, joined) for name in whose}
    assert joined.late == {name for name in whose if "_LATE_" in name}
    ids = {student.id for student in who.students}
    assert joined.unknown == [name for name, id in whose.items() if id not in ids]


# ---- Late, overrides, the best of several


def test_days_late_and_what_they_cost():
    rule = late.rule("2026-11-20T23:59", "10% per day, at most 25%")
    deadline = rule.deadline
    assert [rule.days(deadline + timedelta(hours=h)) for h in (-5, 0, 1, 24, 25)] == [0, 0, 1, 1, 2]
    assert [rule.lost(8, days) for days in (0, 1, 2, 3, 9)] == [0, 0.8, 1.6, 2, 2]
    points_a_day = late.rule("2026-11-20", "1.5 points per day")
    assert points_a_day.deadline.hour == 23
    assert [points_a_day.lost(4, days) for days in (1, 2, 3)] == [1.5, 3, 4]
    assert late.rule("2026-11-20").lost(8, 3) == 0
    zoned = late.rule("2026-11-20T23:59+05:00").deadline
    assert zoned == datetime(2026, 11, 20, 18, 59, tzinfo=UTC)


def test_moodle_knows_when(tmp_path):
    times = [late.handed_in(student.row) for student in roster(tmp_path, MOODLE).students]
    assert times[0] == datetime(2026, 11, 20, 23, 59).astimezone() and times[2] is None


def settled(tmp_path, graded, text="", **more):
    path = tmp_path / overrides.FILE
    path.write_text(",".join(overrides.COLUMNS) + "\n" + text, encoding="utf-8")
    who = more.pop("who", None)
    changed = overrides.read(path, ["a", "b"], who)
    joined = rosters.join([entry for entry, _ in graded], who)
    return settling.settle(graded, joined, changed, **more), joined


def test_overrides_and_comments_are_kept_and_shown(tmp_path):
    text = "ann,a,6,See me\nann,,,Well done\nben,days late,2,\n"
    rule, now = late.rule("2026-11-20", "10% per day"), datetime(2026, 11, 1).astimezone()
    graded, times = [("ann", result(2, 4)), ("ben", result(6, 4))], {"ann": now, "ben": now}
    (ann, ben), _ = settled(tmp_path, graded, text, late=rule, times=times)
    said = "a: your instructor gives 6 points instead of 2."
    assert ann.total == 10 and ann.result["remarks"] == [said, "See me", "Well done"]
    assert ben.total == 8 and ben.days == 2
    assert "2 of 10 points are lost" in ben.result["remarks"][0]
    key = SimpleNamespace(tasks=TASKS)
    page = feedback.feedback("ann", ann.result, key)
    assert "<li>Well done</li>" in page and "ann: 10 of 10 points" in page
    ann.result["remarks"], ben.result["remarks"] = ["=a", "b"], []
    table = points.points_csv([ann, ben._replace(student="=ben")], key, late=True)
    assert table == (
        "student,a,b,days late,total,state,comment\n"
        "ann,6,4,0,10,graded,'=a b\n'=ben,6,4,2,8,graded,\n"
    )


def test_the_best_of_several_counts(tmp_path):
    who = roster(tmp_path, CANVAS)
    first, second = "smithann_4001_1_hw.ipynb", "smithann_4001_2_hw-1.ipynb"
    graded = [(first, result(2, 0)), (second, result(2, 4))]
    day = datetime(2026, 11, 20, 12).astimezone()
    times = {first: day, second: day + timedelta(days=1)}
    (mark,), joined = settled(tmp_path, graded, who=who, times=times)
    assert (mark.student, mark.total, mark.entry) == ("s1", 6, second)
    # What is late may cost more than it brings.
    rule = late.rule("2026-11-20", "90% per day")
    (mark,), _ = settled(tmp_path, graded, who=who, late=rule, times=times)
    assert (mark.total, mark.entry) == (2, first)
    look = settling.needs_a_look([mark], joined, lambda result: [], [[first, second]])
    assert look[-1] == ("s2", "", "in the roster, and handed in nothing")
    assert ("s1", first, f"the same file as {second}") in look
    (name, _, why), (other, *_) = settling.needs_a_look(
        [mark._replace(told=())], joined, lambda result: [], overrides={"s1", "Anne"}
    )
    assert (name, other) == ("Anne", "s2") and "no student who handed in" in why


# ---- For other systems, and pages


def filled(tmp_path, text, entry, override="", grade="Homework 1 (77)"):
    """The file that a system takes back, when this submission has 7 points: its name, text and the
    column of grades.
    """
    who = roster(tmp_path, text)
    found, _ = settled(tmp_path, [(entry, result(3, 4))], override, who=who)
    name, filled = points.for_import(found, who, "Homework 1")
    return name, filled, [row[grade] for row in rows(filled)]


def test_what_moodle_takes_back(tmp_path):
    ann, jose = "Ann Smith_101_assignsubmission_file", "José Díaz_102_assignsubmission_file"
    name, text, grades = filled(tmp_path, MOODLE, ann, "Participant 101,,,Good\n", "Grade")
    assert name == "moodle.csv" and text.splitlines()[0] == MOODLE.splitlines()[0]
    assert grades == ["7", "", ""]
    by_hand = "<p>One,\ntwo</p>"
    assert [row["Feedback comments"] for row in rows(text)] == ["Good", by_hand, ""]
    _, text, grades = filled(tmp_path, MOODLE, jose, grade="Grade")
    assert grades == ["", "7", ""] and rows(text)[1]["Feedback comments"] == by_hand


def test_what_canvas_takes_back(tmp_path):
    ann = "smithann_4001_1_hw.ipynb"
    name, text, grades = filled(tmp_path, CANVAS, ann)
    assert name == "canvas.csv" and grades == ["10", "7", ""]
    assert text.splitlines()[:2] == [
        "Student,ID,SIS User ID,SIS Login ID,Section,Homework 1 (77)",
        "    Points Possible,,,,,10",
    ]
    by_hand = CANVAS.replace("s2,jose,A,", "s2,jose,A,8.5")
    assert filled(tmp_path, by_hand, ann)[2] == ["10", "7", "8.5"]


def test_any_other_roster_gets_a_column(tmp_path):
    name, text, _ = filled(tmp_path, "Name,ID\nAnn,s1\n", "s1.ipynb", grade="Homework 1")
    assert (name, text) == ("gradebook.csv", "Name,ID,Homework 1\nAnn,s1,7\n")


def test_the_zip_has_moodles_folders(tmp_path):
    entries = ["Ann Smith_101_assignsubmission_file", "Ben_102_assignsubmission_file_hw.ipynb"]
    found, _ = settled(tmp_path, [(entry, result(1, 1)) for entry in entries])
    page = tmp_path / "page.html"
    page.write_text("x")
    contents = []
    for _ in range(2):
        archive.feedback_zip(tmp_path / "feedback.zip", found, dict.fromkeys(entries, page))
        contents.append((tmp_path / "feedback.zip").read_bytes())
    with zipfile.ZipFile(tmp_path / "feedback.zip") as file:
        assert file.namelist() == [
            "Ann Smith_101_assignsubmission_file_/feedback.html",
            "Ben_102_assignsubmission_file_/feedback.html",
        ]
        assert {one.date_time[0] for one in file.infolist()} == {1980}  # not the clock's
    assert contents[0] == contents[1]


# ---- The folder


def test_inputs_are_one_seed_a_grading(tmp_path):
    first = place.inputs(tmp_path)
    assert first == place.inputs(tmp_path) and not (tmp_path / "inputs").stat().st_mode & 0o077
    place.forget_inputs(tmp_path)
    assert first != place.inputs(tmp_path) and first > 2**97  # one in 2**31 is below
    assert os.listdir(tmp_path) == ["inputs"]
