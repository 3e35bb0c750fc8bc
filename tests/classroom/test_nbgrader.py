"""nbgrader takes the source as it is: an assignment is generated, and three submissions are graded.

Needs nbgrader (requirements-grading.txt); where LN_REQUIRE_NBGRADER is set, its absence is a
failure.
"""

import csv
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

from classroom import assignment
from classroom import key as keys

REQUIRED = os.environ.get("LN_REQUIRE_NBGRADER")
if not REQUIRED and importlib.util.find_spec("nbgrader") is None:
    pytest.skip("nbgrader is not installed; see requirements-grading.txt", allow_module_level=True)

# What a student may try from inside a notebook: the tests' tools replaced, under every name they
# are known by.
TAMPERING = """
import numpy as np
import lnbook.exercises

def points(*args): return 4.0
def check(*args, **kwargs): return True
def compare(*args): print("agrees")

np.allclose = np.array_equal = lambda *args, **kwargs: True
np.testing.assert_allclose = np.testing.assert_array_equal = lambda *args, **kwargs: None
np.linalg.norm = lambda *args, **kwargs: np.float64(0)
lnbook.exercises.check = lnbook.exercises.expect = lnbook.exercises.expect_close = lambda *args, **kwargs: None
"""  # noqa: E501


def nbgrader(folder, *command):
    # nbgrader calls alembic by name: it must find it where it lies itself.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    run = subprocess.run(
        [sys.executable, "-m", "nbgrader", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": path},
    )
    assert run.returncode == 0, run.stderr


def solve(cells, tasks, sources):
    for task, source in zip(tasks, sources):
        cells[task.id]["source"] = source


def honest(cells, tasks):
    solve(cells, tasks, [task.solution for task in tasks])


def partly_right(cells, tasks):
    # Whole numbers come out right in any order: the first of four checks passes, worth one point.
    mistake = next(mistake for mistake in tasks[1].mistakes if "one sequence" in mistake.wrong)
    solve(cells, tasks, [tasks[0].solution, tasks[1].mistaken(mistake)])


def cheating(cells, tasks):
    for task in tasks:
        found = "".join(cells[f"{task.id}-example"]["source"]).rpartition("compare(found, ")[2][:-1]
        cells[task.id]["source"] = f"{TAMPERING}\ndef {task.name}(*args):\n    return {found}\n"
        cells[f"{task.id}-tests"]["source"] = f"{task.points}.0"


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """(score, maximum) by student, after generate_assignment and autograde; and the folder."""
    out = assignment.write(
        (1, 9), tmp_path_factory.mktemp("nbgrader") / "a", seed=20, title="Sheet 1"
    )
    tasks, *_ = keys.load(out / "instructor/assignment.json")
    folder = out / "nbgrader"
    nbgrader(folder, "generate_assignment", "sheet-1")
    released = (folder / "release/sheet-1/sheet-1.ipynb").read_text()
    for edit in (honest, partly_right, cheating):
        notebook = json.loads(released)
        edit({cell["id"]: cell for cell in notebook["cells"]}, tasks)
        path = folder / "submitted" / edit.__name__ / "sheet-1/sheet-1.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(notebook))
    nbgrader(folder, "autograde", "sheet-1")
    nbgrader(folder, "export")
    with open(folder / "grades.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in rows
    }, folder


def test_points(graded):
    points, _ = graded
    assert points == {"honest": (8, 8), "partly_right": (5, 8), "cheating": (0, 8)}


def test_what_is_released_holds_no_solution_and_no_seed(graded):
    _, folder = graded
    released = (folder / "release/sheet-1/sheet-1.ipynb").read_text()
    assert "raise NotImplementedError" in released
    assert not any(
        word in released for word in ("SOLUTION", "HIDDEN", "classroom", "np.sqrt", "points(")
    )
