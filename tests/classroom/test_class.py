"""A class from assignment to files for upload: variants, shards, likeness."""

import pytest
from answers import python
from test_grading import ROOT, sandbox, table  # noqa: F401  sandbox is a fixture

from classroom import assignment, similar

STUDENTS = "s1", "s2", "s3"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A variant for each of three students; s3 hands in that of s1."""
    place = tmp_path_factory.mktemp("class")
    (place / "roster.csv").write_text("Student ID,Name\ns1,Ann\ns2,Ben\ns3,Cara\n")
    assignment.write((9,), place / "hw", title="Homework 1", per_student=place / "roster.csv")
    (place / "in").mkdir()
    for student, whose in zip(STUDENTS, ("s1", "s2", "s1")):
        text = (place / f"hw/instructor/solutions/{whose}.ipynb").read_text()
        (place / "in" / f"{student}.ipynb").write_text(text)
    return place


def command(place, *words):
    run = python("-m", "classroom", *words, cwd=place)
    assert run.returncode == 0, run.stderr
    return run


KEY = "--assignment", "hw/instructor/assignment.json"


@pytest.fixture(scope="module")
def graded(sandbox, made):  # noqa: F811
    command(made, "grade", "in", *KEY, "--out", "graded")
    return made / "graded"


@pytest.mark.slow
def test_a_variant_is_worth_points_to_its_own_student_alone(graded):
    total = {row["student"]: float(row["total"]) for row in table(graded / "points.csv")}
    assert total["s1"] == total["s2"] == 4 > total["s3"]
    ann, *_ = table(graded / "gradebook.csv")
    assert ann == {"Student ID": "s1", "Name": "Ann", "Homework 1": "4"}
    whys = {(row["student"], row["why"]) for row in table(graded / "needs-a-look.csv")}
    assert ("s1", "the same file as s3") in whys and ("s3", "the same file as s1") in whys
    assert not (graded / "inputs").exists()


@pytest.mark.slow
def test_shards_give_the_same_table(graded):
    place = graded.parent
    for number in 1, 2:
        command(place, "grade", "in", *KEY, "--out", f"shard{number}", "--shard", f"{number}/2")
        assert not (place / f"shard{number}" / "points.csv").exists()
    command(place, "merge", "in", *KEY, "--out", "merged", "--from", "shard1", "shard2")
    for name in ("points.csv", "needs-a-look.csv", "gradebook.csv", "statistics.html"):
        assert (place / "merged" / name).read_bytes() == (graded / name).read_bytes(), name
    merge = "merge", "in", *KEY, "--out", "half", "--from", "shard1"
    assert python("-m", "classroom", *merge, cwd=place).returncode == 1
    states = [row["state"] for row in table(place / "half" / "points.csv")]
    assert states == ["graded", "not judged", "graded"]


HANDED_OUT = "import numpy as np\n\n\ndef f(x):\n    raise NotImplementedError\n"
ONE = f"""{HANDED_OUT}
def f(x):
    # my own idea
    total = np.zeros(3)
    for row in x:
        total = total + row * 2
    mean = total / len(x)
    scaled = np.sqrt(mean) + 1
    return scaled - mean
"""
COPY = (
    ONE.replace("total", "s").replace("mean", "m").replace("# my own idea", "'''Written by me.'''")
)
OTHER = f"""{HANDED_OUT}
def f(x):
    w = x.sum(axis=0)
    k = np.array([1, 2, 3])
    y = np.linalg.norm(w, axis=-1)
    if y > 2:
        y = y - 2
    return k * y
"""


def alike(sources, handed_out=HANDED_OUT):
    each = {name: [code] for name, code in sources.items()}
    return list(similar.pairs(each, [handed_out], 0.8))


def test_a_copy_with_other_names_is_found_and_shown():
    sources = {"ann": ONE, "ben": COPY, "cara": OTHER, "broken": "def f(:\n"}
    ((share, one, other, shared),) = alike(sources)
    assert (share, one, other) == (1.0, "ann", "ben")
    assert ("    total = np.zeros(3)", "    s = np.zeros(3)") in shared and len(shared) == 6
    untouched = {"dan": ONE, "eve": ONE}
    assert alike(untouched) and not alike(untouched, handed_out=ONE)
    # What many wrote is no sign.
    assert not alike({f"student {k}": COPY for k in range(8)} | {"x": OTHER})
