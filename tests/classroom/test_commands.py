"""Command lines that nobody meant are refused in a sentence and leave no results behind."""

import json

import pytest

from classroom import __main__, assignment, rehearse
from classroom.grader import grade

KEY = "hw/instructor/assignment.json"
GRADE = f"grade in --assignment {KEY} --out graded"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A place with an assignment, one submission and a damaged key."""
    place = tmp_path_factory.mktemp("place")
    assignment.write((1,), place / "hw", seed=8)
    (place / "in").mkdir()
    (place / "in/ann.ipynb").write_bytes(rehearse.notebook("1"))
    whole = json.loads((place / KEY).read_text())
    (place / "seed.json").write_text(json.dumps(whole | {"seed": "x"}))
    return place


@pytest.fixture
def place(made, monkeypatch):
    monkeypatch.chdir(made)
    monkeypatch.setattr(grade, "has_sandbox", lambda: True)
    monkeypatch.setattr(grade, "run_here", lambda jobs, end, *rest: [end(job.path) for job in jobs])
    return made


REFUSED = [
    ("assignment --out new --chapters 99", "chapters: found 99, expected some of 1, 2, 3"),
    ("assignment --chapters 1 --out hw", "out: found hw, which is there and not empty"),
    ("grade in --assignment seed.json --out new", "assignment: found seed.json, expected an"),
    (f"grade in --assignment {KEY} --out in/x", "out: found a folder inside the submissions"),
    (f"{GRADE} --deadline never", "deadline: found 'never', expected a time such as"),
    (f"merge in --assignment {KEY} --out new/1 --from nowhere", "shards: found nowhere, expected"),
]


@pytest.mark.parametrize("line, says", REFUSED, ids=[line for line, _ in REFUSED])
def test_a_slip_is_named_with_what_was_found_and_expected(line, says, place, capsys):
    try:
        code = __main__.main(line.split(" "))
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    assert code == 2 and not said.out and says in said.err, said
    assert {path.name for path in place.iterdir()} <= {"hw", "in", "seed.json", "graded"}
    assert not list(place.glob("graded/*.csv"))
