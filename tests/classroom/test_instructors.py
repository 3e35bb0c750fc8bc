"""The page for instructors: what it points to exists, its example runs."""

import os
import re
import shlex
import sys

import pytest
from answers import python
from pages import BOOK

from classroom.__main__ import parser

TEXT = (BOOK / "for-instructors.md").read_text(encoding="utf-8")


def commands(prefix):
    return [
        line.strip()
        for line in TEXT.replace("\\\n", "").splitlines()
        if line.startswith(f"    {prefix}")
    ]


def test_commands_are_understood():
    lines = commands("python -m classroom ")
    assert len(lines) >= 5
    for line in lines:
        parser().parse_args(shlex.split(line)[3:])


@pytest.mark.slow
def test_the_example_gives_what_the_page_shows(tmp_path):
    files, points = re.findall(r"```text\n(.*?)```", TEXT, re.S)
    new, grade = (
        shlex.split(commands(f"python -m classroom {command}")[0])[1:]
        for command in ("assignment", "grade")
    )
    made = python(*new, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    there = [
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    ]
    assert sorted(files.split()) == sorted(there)
    if sys.platform != "linux":
        pytest.skip("the grader needs Linux")

    student = (tmp_path / "homework-1/students/homework-1.ipynb").read_text(encoding="utf-8")
    solved = (tmp_path / "homework-1/instructor/solutions.ipynb").read_text(encoding="utf-8")
    path = "dx = dc - w * dc.sum(axis=-1, keepdims=True)"
    assert path in solved
    (tmp_path / "handed-in/ann").mkdir(parents=True)
    for name, text in {
        "ann/homework.ipynb": solved,
        "ben.ipynb": student,
        "dan.docx": "not a notebook",
        "cara.ipynb": solved.replace(path, "dx = dc"),
    }.items():
        (tmp_path / "handed-in" / name).write_text(text, encoding="utf-8")
    graded = python(*grade, cwd=tmp_path)
    if graded.returncode == 2 and not os.environ.get("LN_REQUIRE_SANDBOX"):
        pytest.skip(graded.stderr.splitlines()[0])
    assert graded.returncode == 0, graded.stderr
    assert (tmp_path / "graded/points.csv").read_text(encoding="utf-8") == points
    diagnosis = re.search(r"^> (Diagnosis\..+)$", TEXT, re.M)[1]
    assert diagnosis in (tmp_path / "graded/feedback/cara.html").read_text(encoding="utf-8")
