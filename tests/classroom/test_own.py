"""Tasks of your own, a variant for each student, and new inputs for each grading."""

import pytest
from answers import failed
from pages import ROOT
from test_assignment import cells

from classroom import assignment, hidden, key
from classroom.tasks import TASKS, drawn, own

EXAMPLE = ROOT / "classroom" / "example"


@pytest.fixture(autouse=True)
def no_task_stays():
    before = dict(TASKS)
    yield
    TASKS.clear()
    TASKS.update(before)


def test_a_task_of_your_own(tmp_path):
    out = assignment.write((), tmp_path / "a", seed=5, tasks=EXAMPLE)
    copied = out / "instructor/tasks/softmax_backward.py"
    assert copied.read_bytes() == (EXAMPLE / "softmax_backward.py").read_bytes()
    TASKS.pop("own-softmax-backward")  # as in another process
    (task,) = key.load(out / "instructor/assignment.json").tasks
    assert task.id == "own-softmax-backward"
    assert task.stub in cells(out / "students/assignment.ipynb")[1] + "\n"
    for mistake in task.mistakes:
        assert mistake.wrong in (failed(task, task.function(mistake)).diagnosis() or mistake.wrong)
    both = assignment.write((3,), tmp_path / "b", seed=5, tasks=EXAMPLE)
    tasks = key.load(both / "instructor/assignment.json").tasks
    assert [task.id for task in tasks] == ["ch03-norm-backward", "own-softmax-backward"]
    copied.write_text(copied.read_text().replace("a softmax", "a soft maximum"))
    with pytest.raises(ValueError, match="another version"):
        key.load(out / "instructor/assignment.json")


def test_hidden_tests_find_a_task_of_your_own(monkeypatch):
    own.load(EXAMPLE)
    monkeypatch.setenv("LN_TASKS", str(EXAMPLE))
    task = drawn("own-softmax-backward", 3)
    assert hidden.points(task.function(), task.id, 3, key.fingerprint(task)) == task.points


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("own-softmax", "softmax", "expected one, whose id begins with own-"),
        ("np.exp(a - a.max(axis=-1, keepdims=True))", "np.exp(a)", "its solution fails the check"),
        (
            "expect_close(found, expected, self.rtol, 'dx')",
            "pass",
            "the stub passes|public example",
        ),
    ],
)
def test_what_is_wrong_with_a_task_of_your_own_is_said(tmp_path, old, new, says):
    source = (EXAMPLE / "softmax_backward.py").read_text().replace('"dx"', "'dx'")
    assert old in source
    (tmp_path / "mine.py").write_text(source.replace(old, new))
    with pytest.raises(ValueError, match=f"tasks: .*mine.py.*({says})"):
        own.try_out(*own.load(tmp_path))
    assert {id for id in TASKS if not id.startswith("ch")} <= {"own-softmax-backward"}


@pytest.fixture
def roster(tmp_path):
    path = tmp_path / "roster.csv"
    path.write_text("Student ID,Name\ns1,Ann\ns2,Ben\nJose\u0301,Jos\u00e9\n", encoding="utf-8")
    return path


def test_every_student_has_a_variant(tmp_path, roster):
    # Two draws may give the same variant: these seeds give three students three, and the first
    # another one each time.
    out = assignment.write((1, 9), tmp_path / "a", seed=5, per_student=roster)
    assert not (out / "nbgrader").exists()
    for folder in ("students", "instructor/solutions"):
        assert len(list((out / folder).iterdir())) == 3
    loaded = key.load(out / "instructor/assignment.json")
    sheets = {student: loaded.of(student) for student in ("s1", "s2", "Jos\u00e9")}
    for number in range(2):
        assert len({sheet.tasks[number].text for sheet in sheets.values()}) == 3
    assert len({sheet.key for sheet in sheets.values()}) == 3
    assert len({sheet.seed for sheet in sheets.values()}) == 1
    for student, sheet in sheets.items():
        (copy,) = (out / "students").glob(f"{student[:2]}*")
        assert sheet.tasks[0].statement.strip() in cells(copy, "markdown")[1]
    with pytest.raises(KeyError):
        loaded.of("s3")
    other = assignment.write((1, 9), tmp_path / "b", seed=6, per_student=roster)
    drawn_again = key.load(other / "instructor/assignment.json").of("s1")
    assert drawn_again.tasks[0].text != sheets["s1"].tasks[0].text
    path = out / "instructor/assignment.json"
    path.write_text(path.read_text().replace('"s2": "', '"s2": "0'))
    with pytest.raises(ValueError, match="another version"):
        key.load(path).of("s2")


def test_inputs_of_checks_are_new_each_time(tmp_path):
    out = assignment.write((3,), tmp_path / "a", seed=987654321012345)
    seeds = {key.load(out / "instructor/assignment.json").seed for _ in range(3)}
    assert len(seeds) == 3 and min(seeds) > 2**97  # one in 2**31 is below
