"""Command lines that nobody meant are refused in a sentence and leave nothing behind."""

import json
import re

import pytest

from classroom import __main__, assignment, rehearse
from classroom.grader import grade

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
    (place / "cells.csv").write_text("Name,ID\nLee, Ann,1\n")
    (place / "exits").mkdir()
    (place / "exits/exits.py").write_text("raise SystemExit(0)\n")
    whole = json.loads((place / KEY).read_text())
    (place / "seed.json").write_text(json.dumps(whole | {"seed": "x"}))
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
    ("assignment --out new --chapters 99", "chapters: found 99, expected some of 1, 2, 3"),
    ("assignment --chapters 1 --out hw", "out: found hw, which is there and not empty"),
    (f"{NEW} --tasks exits", "tasks: exits/exits.py raised SystemExit"),
    (f"{NEW} --per-student cells.csv", "roster: found cells.csv, line 2, with more cells"),
    (f"grade empty --assignment {KEY} --out new", "submissions: found 0 in empty, expected 1"),
    ("grade in --assignment seed.json --out new", "assignment: found seed.json, expected an"),
    (f"grade in --assignment {KEY} --out in/x", "out: found a folder inside the submissions"),
    (f"{GRADE} --shard 3/2", "shard: found '3/2', expected I/N"),
    (f"{GRADE} --deadline never", "deadline: found 'never', expected a time such as"),
    (f"merge in --assignment {KEY} --out new/1 --from nowhere", "shards: found nowhere, expected"),
    ("similar one --handed-out hw/students", "submissions: found .* in one.*, expected 2 or more"),
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
